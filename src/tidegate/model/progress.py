"""What a sink keeps of a feed beside its rows: records of progress, by key. Pure.

    SPAN_ID/RULES   SpanProgress   how far a span's rows are there, by table rules with this digest
    SPAN_ID         SpanProgress   the same in a feed without tables
    rules/RULES     TableRules     what the digest stands for
    load/RANGE_ID   LoadProgress   how far a range of an initial load is, until the whole load is
    owner           Journal        what the owner has told
    topics          Topics         of a sink with topics: those in use, with their numbers of partitions

A record is written with what it speaks of, durable together: in a transaction of Kafka, of a database, in the
commit of a table. Whoever reads the records fences all their writers first: they cannot grow then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tidegate.model.ddl import DdlEvent
from tidegate.model.layout import Layout
from tidegate.model.position import Position
from tidegate.model.span import Span

JOURNAL_KEY: Final = "owner"
TOPICS_KEY: Final = "topics"
LOAD_PREFIX: Final = "load/"
RULES_PREFIX: Final = "rules/"


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
    """The digest of the rules that chose the span's tables: it speaks of their rows alone. Empty: of all."""
    bounds: Span | None = None
    """The span's keys; None in a record of an earlier version."""

    @property
    def last_ts(self) -> int:
        """It says nothing about rows beyond this commit ts."""
        return self.ts if self.position is None else max(self.ts, self.position.commit_ts)

    def to_bytes(self) -> bytes:
        """The value of the progress record."""
        known: dict[str, object] = {
            "instance": self.instance,
            "token": self.token,
            "incarnation": self.incarnation,
            "ts": self.ts,
        }
        if self.position is not None:
            known["position"] = self.position.to_json()
        if self.rules:
            known["rules"] = self.rules
        if self.bounds is not None:
            known["bounds"] = [self.bounds.start.hex(), self.bounds.end.hex()]
        return json.dumps(known).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> SpanProgress:
        """The inverse of `to_bytes`; a record of an earlier version has fewer members."""
        found = json.loads(data)
        first, second = found["token"]
        place = Position.from_json(found["position"]) if found.get("position") else None
        bounds = found.get("bounds")
        return cls(
            found["instance"],
            (first, second),
            found["incarnation"],
            found["ts"],
            place,
            found.get("rules", ""),
            Span(*map(bytes.fromhex, bounds)) if bounds else None,
        )


@dataclass(frozen=True, slots=True)
class TableRules:
    """What decides which tables a feed follows, and how they are cut into spans. Records name its digest."""

    patterns: tuple[str, ...]
    """As in `[filter] rules`."""
    case_sensitive: bool
    force_replicate: bool
    width: int
    """Table ids a stripe; 1: a span a table. It chooses no table, but spans of one width have records apart
    from those of another."""

    @property
    def digest(self) -> str:
        """16 hex digits."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:16]

    def to_bytes(self) -> bytes:
        """The value of the record."""
        return json.dumps([self.patterns, self.case_sensitive, self.force_replicate, self.width]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> TableRules:
        """The inverse of `to_bytes`."""
        patterns, case_sensitive, force_replicate, width = json.loads(data)
        return cls(tuple(patterns), case_sensitive, force_replicate, width)


@dataclass(frozen=True, slots=True)
class Delivered:
    """Rows that are in the sink already, though the span they lie in now has no record that says so.

    A record of progress stays true for ever: another cut of the key space, or other rules, changes what is
    delivered next, never what was. So nothing is translated when they change. The records of before are kept
    under their own keys, and a row that one of them covers is left out.
    """

    span: Span
    rules: str
    """The digest of the rules that the rows' tables pass; empty: all rows there are meant."""
    ts: int
    """Rows with a commit ts up to this one."""
    position: Position | None
    """And of the commit ts after it, those up to here."""

    @property
    def last_ts(self) -> int:
        """No row beyond this commit ts is meant."""
        return self.ts if self.position is None else max(self.ts, self.position.commit_ts)


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


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics that a feed writes, and on how many partitions of each.

    The numbers are fixed when a topic is first used: were each writer to look for itself, partitions that
    somebody adds would part the changes of a row.
    """

    instance: str
    """`FeedInfo.instance`; the record of another feed says nothing about this one."""
    partitions: Mapping[str, int]
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """Of topics whose number has changed: since when, and how many partitions get Resolved."""

    def to_bytes(self) -> bytes:
        """The value of the record."""
        known: dict[str, Any] = {"instance": self.instance, "partitions": dict(self.partitions)}
        if self.layouts:
            known["layouts"] = {topic: layout.to_json() for topic, layout in self.layouts.items()}
        return json.dumps(known).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Topics:
        """The inverse of `to_bytes`; a record of an earlier version has fewer members."""
        found = json.loads(data)
        kept = {topic: Layout.from_json(one) for topic, one in found.get("layouts", {}).items()}
        return cls(found["instance"], found["partitions"], kept)


def load_key(range_id: str) -> str:
    """Where a range's `LoadProgress` lies."""
    return LOAD_PREFIX + range_id


def span_key(span: str, rules: str) -> str:
    """Where the `SpanProgress` of a span under these rules lies."""
    return f"{span}/{rules}" if rules else span


def rules_key(digest: str) -> str:
    """Where `TableRules` lie."""
    return RULES_PREFIX + digest


def span_progress(records: Mapping[str, bytes], instance: str, rules: str = "") -> dict[str, SpanProgress]:
    """The progress of a feed's spans, by span id, as far as it was noted under these rules."""
    found = _of_spans(records, instance)
    return {key.partition("/")[0]: one for key, one in found.items() if one.rules == rules}


def delivered(
    records: Mapping[str, bytes], instance: str, own: Container[str], since: int
) -> list[Delivered]:
    """What of a feed is in the sink above `since`, by the records of spans that it does not have now.

    `own`: the keys of those it has. A record whose rules are not among the records says nothing.
    """
    others = (one for key, one in _of_spans(records, instance).items() if key not in own)
    found = (
        Delivered(one.bounds, one.rules, one.ts, one.position)
        for one in others
        if one.bounds is not None and (not one.rules or rules_key(one.rules) in records)
    )
    return [one for one in found if one.last_ts > since]


def table_rules(records: Mapping[str, bytes]) -> dict[str, TableRules]:
    """All rules that are among the records, by digest."""
    return {
        key.removeprefix(RULES_PREFIX): TableRules.from_bytes(value)
        for key, value in records.items()
        if key.startswith(RULES_PREFIX)
    }


def outlived(records: Mapping[str, bytes], instance: str, rules: str) -> dict[str, int]:
    """The records that an incarnation under these rules does not write, by key: each is of no use from the
    moment that the feed can never again begin at or below its ts: one of another feed of that name at once.
    """
    others = {key: one for key, one in _of_all_spans(records).items() if one.rules != rules}
    found = {key: one.last_ts if one.instance == instance else 0 for key, one in others.items()}
    for digest in table_rules(records).keys() - {rules}:
        used = (found[key] for key, one in others.items() if one.rules == digest)
        found[rules_key(digest)] = max(used, default=0)
    return found


def _of_spans(records: Mapping[str, bytes], instance: str) -> dict[str, SpanProgress]:
    return {key: one for key, one in _of_all_spans(records).items() if one.instance == instance}


def _of_all_spans(records: Mapping[str, bytes]) -> dict[str, SpanProgress]:
    return {
        key: SpanProgress.from_bytes(value)
        for key, value in records.items()
        if key not in (JOURNAL_KEY, TOPICS_KEY) and not key.startswith((LOAD_PREFIX, RULES_PREFIX))
    }


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


def topics(records: Mapping[str, bytes], instance: str) -> dict[str, int]:
    """The feed's topics and the number of partitions it writes of each; {} when nothing is known."""
    return dict(topics_record(records, instance).partitions)


def topics_record(records: Mapping[str, bytes], instance: str) -> Topics:
    """The same with what is known of changes of these numbers; empty when nothing is known."""
    data = records.get(TOPICS_KEY)
    found = Topics.from_bytes(data) if data else Topics(instance, {})
    return found if found.instance == instance else Topics(instance, {})


def furthest(records: Mapping[str, bytes], instance: str) -> int:
    """No row of the feed above this commit ts is in the sink, by the records; 0: none is."""
    return max((one.last_ts for one in _of_spans(records, instance).values()), default=0)
