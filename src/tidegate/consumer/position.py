"""How far the target is, as it is kept with the data: in the commit that names a snapshot. Pure.

The Delta commit that appends a snapshot to `_tidegate/snapshots` adds one row whose column `position` is
this as JSON. So the snapshot, the offsets to restart from and what was applied change in one atomic step:
kill -9 before it leaves the previous snapshot in force, after it the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import orjson

from tidegate.consumer.places import number_of, place_of
from tidegate.errors import Fatal

FORMAT: Final = 1
SEVERAL: Final = 2
"""The format of a position in several topics: their partitions lie below their names."""
RULED: Final = 3
"""As `SEVERAL`, of a position from which earlier releases must not go on: by offset, or under rules."""

Source: TypeAlias = tuple[str, str, str, str]
"""Schema and table at the target, and those of the source."""


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """One partition of the topic."""

    offset: int
    """The first Kafka offset still needed."""
    applied: int
    """Every row with commit_ts <= applied is in the target; by offset: every row before `applied`."""
    watermark: int
    """The largest Resolved ts that stands before `offset`, or `applied`: what needs not be read again.

    Below `applied` only where a DDL of that ts waits. By offset: a commit ts above which
    nothing was applied."""


@dataclass(frozen=True, slots=True)
class Position:
    """The state of a target after its newest snapshot."""

    ts: int
    """The snapshot's ts. Of TiCDC's topics a DDL of this very ts may still come: after it."""
    topic: str
    """Of several, all of them, sorted, with commas between."""
    protocol: str
    mode: str
    partitions: Mapping[int, PartitionPosition]
    """By number (`places`)."""
    ddl_ts: int = 0
    """Every DDL below it is executed."""
    ddls: tuple[str, ...] = ()
    """Which DDLs of ddl_ts are executed: their identities (`flow.identity`)."""
    definitions: Mapping[str, int] | None = None
    """By table path, the number of the definition that its rows have; None: an earlier release kept none."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Kafka's id of each topic that was read; those of which it is not known are missing."""
    time_zone: str | None = ""
    """Of the topics' TIMESTAMP texts, as they were read; empty: it is not known, and none was read yet.
    None: an earlier release did not keep it."""
    parts: tuple[tuple[str, str, int], ...] = ()
    """Of a step that does not fit into memory: schema, table, and into how many parts its rows are cut."""
    by_offset: bool = False
    """Whether offsets are the progress, since the topics have no watermarks (`offset_flow`)."""
    rules: tuple[str, ...] = ()
    """Which tables and columns are applied, and under which names: as the user gave it (`Rules.given`)."""
    sources: tuple[Source, ...] = ()
    """Where the tables at the target come from; none without a route."""
    barriers: tuple[tuple[str, str, int], ...] = ()
    """By offset: schema and table at the target, and the ts of the last DDL about them."""
    epoch: int = 0
    """How often the number of partitions of a topic has changed, by what was read. From the first time on
    `partition-num` of the source is a lower bound."""
    switches: tuple[int, ...] = ()
    """Where that number changes and not all partitions are. A mark read later names the last alone."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Their names, sorted."""
        return tuple(self.topic.split(","))

    def zone_from(self, given: str) -> str:
        """The zone in which reading goes on, when the user says `given` (empty: nothing); empty: not known.

        Releases that did not keep it read in UTC when nothing was said.
        """
        return given or ("UTC" if self.time_zone is None else self.time_zone)

    def over(self, topics: Sequence[str], fresh: Iterable[int] = ()) -> Position:
        """The same in more topics, sorted; `fresh`: the partitions of which nothing is applied, from 0 on."""
        moved = {number_of(topics, *place_of(self.topics, n)): p for n, p in self.partitions.items()}
        begin = PartitionPosition(0, 0, 0)
        partitions = dict.fromkeys(fresh, begin) | moved
        return replace(self, topic=",".join(topics), partitions=partitions)

    def to_json(self) -> str:
        """The text of the commit metadata."""
        topics: dict[str, dict[str, Any]] = {name: {} for name in self.topics}
        for number, p in self.partitions.items():
            topic, partition = place_of(self.topics, number)
            kept = {"offset": p.offset, "applied": p.applied, "watermark": p.watermark}
            topics[topic][str(partition)] = kept
        ruled = self.by_offset or bool(self.rules)
        single = len(topics) == 1 and not ruled
        several = RULED if ruled else SEVERAL
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
        body |= {"barriers": self.barriers} if self.barriers else {}
        body |= {"epoch": self.epoch} if self.epoch else {}
        body |= {"switches": self.switches} if self.switches else {}
        partitions = topics[self.topic] if single else topics
        return orjson.dumps(body | {"mode": self.mode, "partitions": partitions}).decode()

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Read it back; Fatal when it is not one of ours."""
        try:
            body = orjson.loads(text)
            if body["format"] not in (FORMAT, SEVERAL, RULED):
                raise ValueError(f"format {body['format']}, this release reads {FORMAT} to {RULED}")
            names = body["topic"].split(",")
            topics = {names[0]: body["partitions"]} if body["format"] == FORMAT else body["partitions"]
            partitions = {
                number_of(names, name, int(partition)): PartitionPosition(**p)
                for name, kept in topics.items()
                for partition, p in kept.items()
            }
            # A position of an earlier release took every DDL up to its ts for executed.
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
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Fatal(
                "the consumer's position cannot be read",
                where="column position of _tidegate/snapshots",
                why=str(error),
                fix="use the release that wrote it, or start a new target directory",
            ) from error
