"""A transaction at the sink, as a worker fills it: rows, and the records of progress that belong to them.

Rows and records become durable together, so a record never claims rows that were not delivered. The record of
a span names the feed's rules by their digest. Each process writes the rules themselves once, with its first
commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegate.metrics import INTEGRITY_OUTCOMES
from tidegate.model.position import Position
from tidegate.model.progress import SpanProgress, rules_key, span_key
from tidegate.model.span import Span
from tidegate.model.timestamp import physical_ms
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.exchange.work import Report
from tidegate.pipeline.worker.stages import Encoded
from tidegate.sink.base import Writer


class ProgressRecords:
    """Makes the records of progress that one process of an incarnation writes."""

    def __init__(self, spec: FeedSpec, keys_of: Callable[[str], Span]) -> None:
        """`keys_of`: the key range of a span."""
        self._spec, self._keys_of = spec, keys_of
        self._rules = spec.rules
        self._unnamed = spec.table_rules
        """The rules with the digest `_rules`, until this process has written them. None in a feed of keys."""

    def progress(self, span: str, ts: int, position: Position | None) -> tuple[str, bytes]:
        """Key and record: all rows of a span up to `ts`, and up to a position after it, are delivered."""
        spec, keys = self._spec, self._keys_of(span)
        record = SpanProgress(spec.instance, spec.token, spec.incarnation, ts, position, self._rules, keys)
        return span_key(span, self._rules), record.to_bytes()

    def rules(self) -> Mapping[str, bytes]:
        """The record of the rules, if this process has not written it. Records cannot be read without it."""
        return {} if self._unnamed is None else {rules_key(self._rules): self._unnamed.to_bytes()}

    def rules_written(self) -> None:
        """The record that `rules` returned is durable."""
        self._unnamed = None


class SinkTransaction:
    """Rows and progress that become durable together. After `commit` the same object is the next one."""

    def __init__(
        self,
        writer: Writer,
        records: ProgressRecords,
        now_ms: Callable[[], int],
        beat: Callable[[], None],
    ) -> None:
        """`beat`: called after each commit."""
        self._writer, self._records, self._now_ms, self._beat = writer, records, now_ms, beat
        self._reached: dict[str, bytes] = {}
        """Records of progress by their keys."""

    @property
    def is_due(self) -> bool:
        """Whether it is time to commit."""
        return self._writer.is_due

    @property
    def room(self) -> int:
        """Bytes that may be added before `is_due` is asked again."""
        return self._writer.room

    def add(self, encoded: Encoded, report: Report, *, again: bool = False) -> None:
        """Add the rows of one piece. `again`: count only its messages, because its entries were counted."""
        if encoded.content:
            self._writer.write(encoded.content)
        report.bytes += encoded.bytes
        report.messages += encoded.messages
        report.misencoded += len(encoded.misencoded)
        report.alignments += encoded.alignments
        report.lag_ms = self._now_ms() - physical_ms(encoded.last_ts)
        if again:
            return
        report.rows += encoded.rows
        report.quarantined += len(encoded.bad)
        for name in INTEGRITY_OUTCOMES:
            setattr(report, name, getattr(report, name) + getattr(encoded.tally, name))

    def progress(self, report: Report, ts: int, position: Position | None = None) -> None:
        """All rows of the span up to `ts`, and up to a position after it, are in this transaction or an
        earlier one.
        """
        report.ts = ts
        self.note(*self._records.progress(report.span, ts, position))

    def note(self, key: str, record: bytes) -> None:
        """Add a record about this transaction and earlier ones. A later record of the key replaces it."""
        self._reached[key] = record

    def commit(self) -> None:
        """Make it durable. Does nothing if the transaction has no records."""
        if not self._reached:
            return
        self._writer.commit({**self._reached, **self._records.rules()})
        # Only after the commit. If that fails, the rules must be written with the next one.
        self._records.rules_written()
        self._beat()
        self._reached = {}
