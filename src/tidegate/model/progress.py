"""What a sink keeps of a feed beside its rows: records of progress, by key. Pure.

    SPAN_ID         SpanProgress   how far a span's rows are there
    load/RANGE_ID   LoadProgress   how far a range of an initial load is, until the whole load is
    owner           Journal        what the owner has told

A record is written with what it speaks of, durable together: in a transaction of Kafka, of a database, in the
commit of a table. Whoever reads the records fences all their writers first: they cannot grow then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from tidegate.model.ddl import DdlEvent
from tidegate.model.position import Position

JOURNAL_KEY: Final = "owner"
LOAD_PREFIX: Final = "load/"


@dataclass(frozen=True, slots=True)
class SpanProgress:
    """How far one span's rows are in the sink, and under which grant that was written."""

    instance: str
    """`FeedInfo.instance`; the record of another feed says nothing about this one."""
    token: tuple[int, int]
    incarnation: int
    ts: int
    """All rows up to here."""
    position: Position | None = None
    """And of the commit ts after it, what comes up to this position; None: nothing."""
    rules: str = ""
    """Of a stripe, by which rules its tables were chosen: under others it says nothing, since rows of tables
    that are wanted now may not have gone out."""

    def to_bytes(self) -> bytes:
        """The value of the progress record."""
        known = {
            "instance": self.instance,
            "token": self.token,
            "incarnation": self.incarnation,
            "ts": self.ts,
        }
        place = {} if self.position is None else {"position": self.position.to_json()}
        rules = {"rules": self.rules} if self.rules else {}
        return json.dumps(known | place | rules).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> SpanProgress:
        """The inverse of `to_bytes`; a record of former versions has no position."""
        found = json.loads(data)
        first, second = found["token"]
        place = Position.from_json(found["position"]) if found.get("position") else None
        token, rules = (first, second), found.get("rules", "")
        return cls(found["instance"], token, found["incarnation"], found["ts"], place, rules)


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """What of one range of an initial load is in the sink."""

    instance: str
    """`FeedInfo.instance`; the record of another feed says nothing about this one."""
    token: tuple[int, int]
    incarnation: int
    ts: int
    """Of the load."""
    rows: int
    """Entries of the range that were read so far."""
    left_from: str | None
    """The first key that is not in, in hex; None: the range is done."""

    def to_bytes(self) -> bytes:
        """The value of the record."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LoadProgress:
        """The inverse of `to_bytes`."""
        found = json.loads(data)
        first, second = found["token"]
        token = (first, second)
        return cls(
            found["instance"], token, found["incarnation"], found["ts"], found["rows"], found["left_from"]
        )


@dataclass(frozen=True, slots=True)
class Journal:
    """The last things the owner has told the sink."""

    ddl_ts: int = 0
    """FinishedTS of the last DDL event delivered, 0: none."""
    ddl_seq: int = -1
    """That event's number among those of the same FinishedTS."""
    resolved_ts: int = 0
    instance: str = ""
    """`FeedInfo.instance`: the journal of an earlier feed of the same name does not count."""

    def to_bytes(self) -> bytes:
        """The value of the journal record."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Journal:
        """The inverse of `to_bytes`."""
        found = json.loads(data)
        return cls(found["ddl_ts"], found["ddl_seq"], found["resolved_ts"], found["instance"])

    def holds(self, event: DdlEvent) -> bool:
        """Whether the event is out already."""
        return (event.finished_ts, event.seq) <= (self.ddl_ts, self.ddl_seq)


def load_key(range_id: str) -> str:
    """Where a range's `LoadProgress` lies."""
    return LOAD_PREFIX + range_id


def span_progress(records: Mapping[str, bytes], instance: str, rules: str = "") -> dict[str, SpanProgress]:
    """The progress of a feed's spans, by span id, as far as it was noted under these rules."""
    found = {
        key: SpanProgress.from_bytes(value)
        for key, value in records.items()
        if key != JOURNAL_KEY and not key.startswith(LOAD_PREFIX)
    }
    return {span: one for span, one in found.items() if (one.instance, one.rules) == (instance, rules)}


def load_progress(records: Mapping[str, bytes], instance: str, ts: int) -> dict[str, LoadProgress]:
    """The progress of the ranges of a feed's load at `ts`, by range id."""
    found = {
        key.removeprefix(LOAD_PREFIX): LoadProgress.from_bytes(value)
        for key, value in records.items()
        if key.startswith(LOAD_PREFIX)
    }
    return {name: one for name, one in found.items() if (one.instance, one.ts) == (instance, ts)}


def journal(records: Mapping[str, bytes], instance: str) -> Journal:
    """What the feed's owners have told; empty when they have told nothing."""
    data = records.get(JOURNAL_KEY)
    found = Journal.from_bytes(data) if data else Journal()
    return found if found.instance == instance else Journal(instance=instance)
