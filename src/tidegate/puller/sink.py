"""What the puller needs of the place that changes go to: the event store, seen from here."""

from __future__ import annotations

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

    def close(self) -> None:
        """Forget what is not sealed; later calls do nothing."""
        ...


class Sink(Protocol):
    """Where all changes go: `eventstore.store.EventStore`."""

    @property
    def held_bytes(self) -> int:
        """What waits in memory over all spans."""
        ...

    def open_span(self, span: Span) -> SpanSink:
        """One span's place."""
        ...

    def publish(self) -> None:
        """Tell readers how far each span is sealed."""
        ...
