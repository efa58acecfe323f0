"""The interface that the puller needs from the store of its changes, which is the event store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp


class SpanChanges(Protocol):
    """The store of one span's changes: `eventstore.span_store.SpanStore`."""

    @property
    def resolved(self) -> Timestamp:
        """The ts up to which every change is sealed."""
        ...

    @property
    def ranges(self) -> Sequence[tuple[Span, Timestamp]]:
        """The ts up to which each part of the span is stored, in key order; the smallest is `resolved`."""
        ...

    @property
    def disk_bytes(self) -> int:
        """The bytes that the span uses on disk."""
        ...

    @property
    def complete_from(self) -> Timestamp:
        """Rows with commit_ts at or below this ts may be missing."""
        ...

    def begin(self, start_ts: Timestamp) -> None:
        """Prepare the span for changes above start_ts; from there on it will be complete."""
        ...

    def append(self, block: pa.RecordBatch) -> None:
        """Add changes above the resolved ts, in any order."""
        ...

    def seal(self, resolved: Timestamp) -> None:
        """Make all changes at or below this ts durable."""
        ...

    def keep(self, ranges: Sequence[tuple[Span, Timestamp]]) -> None:
        """Make all appended changes durable, even above the resolved ts, and store the ts of each part."""
        ...

    def shed(self) -> None:
        """Discard all changes above the resolved ts."""
        ...

    def close(self) -> None:
        """Discard the changes that are not sealed; later calls do nothing."""
        ...


class ChangeStore(Protocol):
    """The store of all spans' changes: `eventstore.store.EventStore`."""

    @property
    def held_bytes(self) -> int:
        """The bytes that wait in memory, over all spans."""
        ...

    @property
    def pressure(self) -> str:
        """The reason why appending should wait; empty if it need not."""
        ...

    @property
    def disk_bytes(self) -> int:
        """The store's quota in bytes; 0: no quota."""
        ...

    @property
    def over_quota(self) -> bool:
        """Whether the store uses more than its quota."""
        ...

    @property
    def crowded(self) -> str:
        """A warning that the quota will soon be used up; empty while enough of it is free, or without one."""
        ...

    @property
    def used_bytes(self) -> int:
        """The bytes that all spans use on disk, plus the charged bytes."""
        ...

    def charge(self, memory: int = 0, disk: int = 0) -> None:
        """Add bytes that others keep in the same budget of memory or disk (negative when they are freed)."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether there is enough space to pull the spans again that were given up."""
        ...

    def tend(self) -> None:
        """Give back what is kept only for a while. Called four times a second, whether or not rows come."""
        ...

    def recover(self) -> None:
        """Check whether a full disk has room again."""
        ...

    def open_span(self, span: Span) -> SpanChanges:
        """The store of one span."""
        ...

    def publish(self) -> None:
        """Publish the resolved ts of each span to readers."""
        ...
