"""What the puller needs of the place that changes go to: the event store, seen from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp


class SpanSink(Protocol):
    """Where a span's changes go: `eventstore.store.SpanStore`."""

    @property
    def resolved(self) -> Timestamp:
        """What is sealed."""
        ...

    @property
    def ranges(self) -> Sequence[tuple[Span, Timestamp]]:
        """How far each part of the span is kept, in key order; the least is `resolved`."""
        ...

    @property
    def disk_bytes(self) -> int:
        """What it takes on disk."""
        ...

    @property
    def complete_from(self) -> Timestamp:
        """Rows at or below may be missing."""
        ...

    def begin(self, start_ts: Timestamp) -> None:
        """Be complete from start_ts on."""
        ...

    def append(self, block: pa.RecordBatch) -> None:
        """Take changes above the resolved ts."""
        ...

    def seal(self, resolved: Timestamp) -> None:
        """Make what lies at or below durable."""
        ...

    def keep(self, ranges: Sequence[tuple[Span, Timestamp]]) -> None:
        """Make what was appended durable, also beyond the resolved ts, and remember how far each part is."""
        ...

    def shed(self) -> None:
        """Forget what lies beyond the resolved ts."""
        ...

    def close(self) -> None:
        """Forget what is not sealed; later calls do nothing."""
        ...


class Sink(Protocol):
    """Where all changes go: `eventstore.store.EventStore`."""

    @property
    def held_bytes(self) -> int:
        """What waits in memory over all spans."""
        ...

    @property
    def pressure(self) -> str:
        """Why appending should wait, in words; empty when it need not."""
        ...

    @property
    def disk_bytes(self) -> int:
        """Its share of the disk; 0: what there is."""
        ...

    @property
    def over_quota(self) -> bool:
        """Whether more than its share of the disk is taken."""
        ...

    @property
    def crowded(self) -> str:
        """Why there will soon be no room, in words; empty while much is free, or without a share."""
        ...

    @property
    def used_bytes(self) -> int:
        """What all spans take on disk, with what was charged."""
        ...

    def charge(self, memory: int = 0, disk: int = 0) -> None:
        """Count bytes (below 0: no longer) that others keep on the same share of memory or disk."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether what was given up may come back."""
        ...

    def recover(self) -> None:
        """See whether a full disk has room again."""
        ...

    def open_span(self, span: Span) -> SpanSink:
        """One span's place."""
        ...

    def publish(self) -> None:
        """Tell readers how far each span is sealed."""
        ...
