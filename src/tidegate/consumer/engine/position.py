"""How far the target is, as it is stored with the data: in the commit that names a snapshot. Pure.

The Delta commit that appends a snapshot to `_tidegate/snapshots` adds one row whose column `position` is this
as JSON. So the snapshot, the offsets to restart from and what was applied change in one atomic step: after a
kill -9 before it the previous snapshot is valid, after it the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import orjson

from tidegate.consumer.engine.places import number_of, place_of
from tidegate.errors import Fatal

FORMAT: Final = 1
SEVERAL: Final = 2
"""The format of a position in several topics: partitions are listed by topic."""
RULED: Final = 3
"""Like `SEVERAL`, for positions that earlier releases must not resume from: by offset, or under rules."""
INCOMPLETE: Final = 4
"""Like `RULED`, if tables are set aside: an earlier release would apply their later changes."""

Source: TypeAlias = tuple[str, str, str, str]
"""Schema and table at the target, then schema and table at the source."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A table that is set aside: the target lacks its changes from some moment on, and gets no later ones."""

    schema: str
    table: str
    ts: int
    """All rows up to this commit ts are in the table, and no later change; a DDL of this very ts may be
    missing. In a database in table mode, later changes may be in it, up to the moment of its topic. By
    offset: no change above it is in the table, and some below it may be missing."""
    why: str
    """Why its changes could not be applied, in words."""

    @property
    def name(self) -> tuple[str, str]:
        """Schema and table at the target."""
        return self.schema, self.table


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """The position in one partition."""

    offset: int
    """The first Kafka offset still needed."""
    applied: int
    """Every row with commit_ts <= applied is in the target; by offset: every row before `applied`."""
    watermark: int
    """The largest Resolved ts before `offset`, or `applied` if that is larger: known without reading again.

    It is below `applied` only if a DDL of that ts waits. By offset: a commit ts above which nothing was
    applied."""


@dataclass(frozen=True, slots=True)
class Position:
    """The state of a target after its newest snapshot."""

    ts: int
    """The snapshot's ts. On TiCDC's topics a DDL of this very ts may still follow; it comes after the
    snapshot."""
    topic: str
    """The topic's name; for several topics all names, sorted and joined by commas."""
    protocol: str
    mode: str
    partitions: Mapping[int, PartitionPosition]
    """By number (`places`)."""
    ddl_ts: int = 0
    """Every DDL below it is executed."""
    ddls: tuple[str, ...] = ()
    """The identities of executed DDLs of ddl_ts (`ddl_queue.identity`)."""
    definitions: Mapping[str, int] | None = None
    """By table path, the number of the definition for its rows; None: written by a release without
    numbers."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Kafka's id of each topic that was read; topics whose id is not known are missing."""
    time_zone: str | None = ""
    """The zone in which the topics' TIMESTAMP texts were read; empty: it is not known, and none was read yet.
    None: written by a release that did not store it."""
    parts: tuple[tuple[str, str, int], ...] = ()
    """For a step that does not fit into memory: schema, table, and into how many parts its rows are split."""
    by_offset: bool = False
    """Whether offsets are the progress, because the topics have no watermarks (`offset_flow`)."""
    rules: tuple[str, ...] = ()
    """Which tables and columns are applied, and under which names, as the user gave it (`Rules.given`)."""
    sources: tuple[Source, ...] = ()
    """From which tables the tables at the target come; empty without a route."""
    ddl_floors: tuple[tuple[str, str, int], ...] = ()
    """By offset: schema and table at the target, and the ts of the last DDL about the table."""
    epoch: int = 0
    """How often the number of partitions of a topic has changed, in what was read. From the first change on,
    `partition-num` of the source is a lower bound."""
    switches: tuple[int, ...] = ()
    """Each ts at which that number changes, until all partitions have reached it. It must be stored, because
    a mark that is read later names only the last change."""
    set_aside: tuple[SetAside, ...] = ()
    """Tables whose changes are not applied (`set_aside`). An entry is stored before, or together with, the
    first position that passes a change which the table lacks."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics, sorted."""
        return tuple(self.topic.split(","))

    def zone_from(self, given: str) -> str:
        """The zone in which to continue reading, if the user gives `given` (empty: nothing); empty: not
        known.

        Releases that did not store the zone read in UTC unless the user gave one.
        """
        # An empty stored zone is not the same as none: it says that no text was read yet, so the zone is
        # still free.
        return given or ("UTC" if self.time_zone is None else self.time_zone)

    @property
    def complete_ts(self) -> int:
        """The commit ts up to which all rows are applied; by offset, the ts of the state."""
        if self.by_offset or not self.partitions:
            return self.ts
        return min(part.applied for part in self.partitions.values())

    def without_tables(self, entries: Iterable[SetAside]) -> Position:
        """The same position with more tables set aside; an entry that a table has already stays."""
        held = {one.name: one for one in self.set_aside}
        return replace(self, set_aside=tuple(({one.name: one for one in entries} | held).values()))

    def over(self, topics: Sequence[str], fresh: Iterable[int] = ()) -> Position:
        """The same position in more topics, sorted. `fresh`: partitions that are read from 0 on."""
        moved = {number_of(topics, *place_of(self.topics, n)): p for n, p in self.partitions.items()}
        # A topic that is new to the consumer is read from its first offset on, so nothing of it is applied
        # yet.
        begin = PartitionPosition(0, 0, 0)
        partitions = dict.fromkeys(fresh, begin) | moved
        return replace(self, topic=",".join(topics), partitions=partitions)

    def to_json(self) -> str:
        """The text that is stored with a snapshot."""
        topics: dict[str, dict[str, Any]] = {name: {} for name in self.topics}
        for number, p in self.partitions.items():
            topic, partition = place_of(self.topics, number)
            kept = {"offset": p.offset, "applied": p.applied, "watermark": p.watermark}
            topics[topic][str(partition)] = kept
        ruled = self.by_offset or bool(self.rules) or bool(self.set_aside)
        # The plain form as long as possible: earlier releases can then still resume from it.
        single = len(topics) == 1 and not ruled
        several = INCOMPLETE if self.set_aside else RULED if ruled else SEVERAL
        body: dict[str, Any] = {
            "format": FORMAT if single else several,
            "ts": self.ts,
            "topic": self.topic,
            "protocol": self.protocol,
        }
        body |= {"ddl_ts": self.ddl_ts, "ddls": list(self.ddls), "definitions": self.definitions}
        body |= {"ids": dict(self.ids), "time_zone": self.time_zone}
        body |= {"parts": self.parts} if self.parts else {}
        body |= {"by_offset": True} if self.by_offset else {}
        body |= {"rules": self.rules} if self.rules else {}
        body |= {"sources": self.sources} if self.sources else {}
        # The name that it had in earlier releases, whose positions are still read.
        body |= {"barriers": self.ddl_floors} if self.ddl_floors else {}
        body |= {"epoch": self.epoch} if self.epoch else {}
        body |= {"switches": self.switches} if self.switches else {}
        aside = [[one.schema, one.table, one.ts, one.why] for one in self.set_aside]
        body |= {"set_aside": aside} if aside else {}
        partitions = topics[self.topic] if single else topics
        return orjson.dumps(body | {"mode": self.mode, "partitions": partitions}).decode()

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Read what `to_json` wrote; Fatal when it is something else."""
        try:
            body = orjson.loads(text)
            if body["format"] not in (FORMAT, SEVERAL, RULED, INCOMPLETE):
                raise ValueError(f"format {body['format']}, this release reads {FORMAT} to {INCOMPLETE}")
            names = body["topic"].split(",")
            topics = {names[0]: body["partitions"]} if body["format"] == FORMAT else body["partitions"]
            partitions = {
                number_of(names, name, int(partition)): PartitionPosition(**p)
                for name, kept in topics.items()
                for partition, p in kept.items()
            }
            # A position of an earlier release counts every DDL up to its ts as executed.
            ddl_ts = body.get("ddl_ts", body["ts"] + 1)
            done, definitions = tuple(body.get("ddls", ())), body.get("definitions")
            return cls(
                *(body["ts"], body["topic"], body["protocol"], body["mode"], partitions),
                *(ddl_ts, done, definitions, dict(body.get("ids", {})), body.get("time_zone")),
                tuple((schema, table, int(count)) for schema, table, count in body.get("parts", ())),
                body.get("by_offset", False),
                tuple(body.get("rules", ())),
                tuple((to, table, of, name) for to, table, of, name in body.get("sources", ())),
                tuple((schema, table, int(ts)) for schema, table, ts in body.get("barriers", ())),
                int(body.get("epoch", 0)),
                tuple(int(ts) for ts in body.get("switches", ())),
                tuple(SetAside(to, name, int(ts), why) for to, name, ts, why in body.get("set_aside", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Fatal(
                "the consumer's position cannot be read",
                where="column position of _tidegate/snapshots",
                why=str(error),
                fix="use the release that wrote it, or start a new target directory",
            ) from error
