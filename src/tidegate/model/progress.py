"""Records of progress, by key, which a sink stores in addition to a feed's rows. Pure.

    SPAN_ID/RULES   SpanProgress   how far a span's rows are delivered, under table rules with this digest
    SPAN_ID         SpanProgress   the same in a feed without tables
    rules/RULES     TableRules     the rules that have this digest
    load/RANGE_ID   LoadProgress   how far a range of an initial load is, until the whole load is done
    owner           Journal        the last DDL and Resolved that the owner has sent
    topics          Topics         for a sink with topics: those in use, with their numbers of partitions

A record and the rows or messages that it covers become durable together: in one transaction of the sink, or
in the commit of a table. Before an incarnation reads the records it fences all their writers, so that no
record is added afterwards.
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
    """How far one span's rows are in the sink, and under which grant they were written."""

    instance: str
    """`FeedInfo.instance`; a record of another feed is ignored."""
    token: tuple[int, int]
    incarnation: int
    ts: int
    """All rows with a commit ts up to this are in the sink."""
    position: Position | None = None
    """The changes of the next commit ts up to this position are in the sink, too; None: none of them."""
    rules: str = ""
    """The digest of the rules that chose the span's tables: the record covers only their rows. Empty: all."""
    bounds: Span | None = None
    """The span's keys; None in a record of an earlier version."""

    @property
    def last_ts(self) -> int:
        """The record covers no row beyond this commit ts."""
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
        """The inverse of `to_bytes`. A record of an earlier version has fewer members."""
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
    """The settings that decide which tables a feed follows, and how it divides them into spans. Keys of
    records contain its digest.
    """

    patterns: tuple[str, ...]
    """As in `[filter] rules`."""
    case_sensitive: bool
    force_replicate: bool
    width: int
    """Table ids per stripe; 1: one span per table. It selects no table, but makes spans of one width have
    other records than those of another width."""

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
    """Rows that are in the sink already, although the record that covers them is not one of a current span.

    A record of progress stays true for ever: other spans or other rules change what is delivered next, never
    what was delivered. So records are not converted when spans or rules change. The older records stay under
    their own keys, and a row that one of them covers is not delivered again.
    """

    span: Span
    rules: str
    """The digest of the rules that select the rows' tables; empty: all rows in the span."""
    ts: int
    """Rows with a commit ts up to this are covered."""
    position: Position | None
    """The rows of the next commit ts up to this position are covered, too."""

    @property
    def last_ts(self) -> int:
        """No row beyond this commit ts is covered."""
        return self.ts if self.position is None else max(self.ts, self.position.commit_ts)


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How much of one range of an initial load is in the sink."""

    instance: str
    """`FeedInfo.instance`; a record of another feed is ignored."""
    token: tuple[int, int]
    incarnation: int
    ts: int
    """The ts of the load."""
    rows: int
    """How many entries of the range were read so far."""
    left_from: str | None
    """The first key that is not in the sink, in hex; None: the range is done."""

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
    """The last DDL and the last Resolved that the owner has sent."""

    ddl_ts: int = 0
    """FinishedTS of the last DDL event delivered, 0: none."""
    ddl_seq: int = -1
    """The number of that event among the events of the same FinishedTS."""
    resolved_ts: int = 0
    instance: str = ""
    """`FeedInfo.instance`; the journal of an earlier feed with the same name is ignored."""

    def to_bytes(self) -> bytes:
        """The value of the journal record."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Journal:
        """The inverse of `to_bytes`."""
        found = json.loads(data)
        return cls(found["ddl_ts"], found["ddl_seq"], found["resolved_ts"], found["instance"])

    def holds(self, event: DdlEvent) -> bool:
        """Whether the event is already durable in the sink."""
        # docs/guarantees.md#a-ddl-is-delivered-once: by number as well, because several events may share a
        # ts.
        return (event.finished_ts, event.seq) <= (self.ddl_ts, self.ddl_seq)


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics that a feed writes, and the number of partitions it uses of each.

    The numbers are fixed when a topic is first used. If each writer looked the number up, partitions that are
    added to the topic would spread the changes of one row over two partitions.
    """

    instance: str
    """`FeedInfo.instance`; a record of another feed is ignored."""
    partitions: Mapping[str, int]
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """By topic whose number has changed: since when, and how many partitions get Resolved."""

    def to_bytes(self) -> bytes:
        """The value of the record."""
        known: dict[str, Any] = {"instance": self.instance, "partitions": dict(self.partitions)}
        if self.layouts:
            known["layouts"] = {topic: layout.to_json() for topic, layout in self.layouts.items()}
        return json.dumps(known).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Topics:
        """The inverse of `to_bytes`. A record of an earlier version has fewer members."""
        found = json.loads(data)
        kept = {topic: Layout.from_json(one) for topic, one in found.get("layouts", {}).items()}
        return cls(found["instance"], found["partitions"], kept)


def load_key(range_id: str) -> str:
    """The key of a range's `LoadProgress`."""
    return LOAD_PREFIX + range_id


def span_key(span: str, rules: str) -> str:
    """The key of the `SpanProgress` of a span under these rules."""
    return f"{span}/{rules}" if rules else span


def rules_key(digest: str) -> str:
    """The key of `TableRules`."""
    return RULES_PREFIX + digest


def span_progress(records: Mapping[str, bytes], instance: str, rules: str = "") -> dict[str, SpanProgress]:
    """The progress of a feed's spans, by span id, from the records written under these rules."""
    found = _of_spans(records, instance)
    return {key.partition("/")[0]: one for key, one in found.items() if one.rules == rules}


def delivered(
    records: Mapping[str, bytes], instance: str, own: Container[str], since: int
) -> list[Delivered]:
    """The rows above `since` that are in the sink by records of spans that the feed does not have now.

    `own`: the keys of its current spans. A record whose rules are not among the records is ignored.
    """
    others = (one for key, one in _of_spans(records, instance).items() if key not in own)
    found = (
        Delivered(one.bounds, one.rules, one.ts, one.position)
        for one in others
        # Without them it is not known which rows the record covers, and a row must never be taken for
        # delivered.
        if one.bounds is not None and (not one.rules or rules_key(one.rules) in records)
    )
    return [one for one in found if one.last_ts > since]


def table_rules(records: Mapping[str, bytes]) -> dict[str, TableRules]:
    """All rules in the records, by digest."""
    return {
        key.removeprefix(RULES_PREFIX): TableRules.from_bytes(value)
        for key, value in records.items()
        if key.startswith(RULES_PREFIX)
    }


def outlived(records: Mapping[str, bytes], instance: str, rules: str) -> dict[str, int]:
    """The records that an incarnation under these rules does not write, by key. Each can be deleted once the
    feed can never again start at or below its ts: at once (ts 0) if it is of another feed of the same name.
    """
    others = {key: one for key, one in _of_all_spans(records).items() if one.rules != rules}
    # docs/guarantees.md#a-changefeeds-progress-is-its-own: records of an earlier feed are of no use to
    # anybody.
    found = {key: one.last_ts if one.instance == instance else 0 for key, one in others.items()}
    for digest in table_rules(records).keys() - {rules}:
        # Rules go last: without them, records that name them could not be understood.
        used = (found[key] for key, one in others.items() if one.rules == digest)
        found[rules_key(digest)] = max(used, default=0)
    return found


def _of_spans(records: Mapping[str, bytes], instance: str) -> dict[str, SpanProgress]:
    # docs/guarantees.md#a-changefeeds-progress-is-its-own: records of an earlier changefeed of this name say
    # nothing about ours.
    return {key: one for key, one in _of_all_spans(records).items() if one.instance == instance}


def _of_all_spans(records: Mapping[str, bytes]) -> dict[str, SpanProgress]:
    return {
        key: SpanProgress.from_bytes(value)
        for key, value in records.items()
        if key not in (JOURNAL_KEY, TOPICS_KEY) and not key.startswith((LOAD_PREFIX, RULES_PREFIX))
    }


def load_progress(records: Mapping[str, bytes], instance: str, ts: int) -> dict[str, LoadProgress]:
    """The progress of the ranges of the load at `ts`, by range id."""
    found = {
        key.removeprefix(LOAD_PREFIX): LoadProgress.from_bytes(value)
        for key, value in records.items()
        if key.startswith(LOAD_PREFIX)
    }
    return {name: one for name, one in found.items() if (one.instance, one.ts) == (instance, ts)}


def journal(records: Mapping[str, bytes], instance: str) -> Journal:
    """The journal of what the feed's owners have sent; empty if they have sent nothing."""
    data = records.get(JOURNAL_KEY)
    found = Journal.from_bytes(data) if data else Journal()
    return found if found.instance == instance else Journal(instance=instance)


def topics(records: Mapping[str, bytes], instance: str) -> dict[str, int]:
    """The feed's topics and the number of partitions it uses of each; {} if nothing is recorded."""
    return dict(topics_record(records, instance).partitions)


def topics_record(records: Mapping[str, bytes], instance: str) -> Topics:
    """The record of topics, which includes changes of these numbers; empty if nothing is recorded."""
    data = records.get(TOPICS_KEY)
    found = Topics.from_bytes(data) if data else Topics(instance, {})
    return found if found.instance == instance else Topics(instance, {})


def furthest(records: Mapping[str, bytes], instance: str) -> int:
    """The highest commit ts of a row of the feed that may be in the sink, by the records; 0: no row is."""
    return max((one.last_ts for one in _of_spans(records, instance).values()), default=0)
