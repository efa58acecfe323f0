"""Each key of a span belongs to at most one live registration; free ranges remember their resolved ts.

With stale region caches, splits and merges, two registrations over the same keys could deliver changes twice
and report resolved ts of different completeness. Therefore a region's part is locked before it is registered;
unlocking writes its resolved ts back. After a split the children start from the parent's ts; after a merge
the region takes all its parts at once and starts from the smallest of their ts. Invariant: locked and
unlocked ranges are disjoint and tile the span. A region may hold several ranges, each with its own
registration. Waiting for the other registration, as tiflow does, may take for ever if a merge has joined two
regions (tiflow#10157). Pure; owned by the puller's coordinator. Source: tiflow
`cdc/kv/regionlock/region_range_lock.go`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class Locked:
    """The caller holds the range and registers it from this ts."""

    resolved: Timestamp
    bounds: Span


@dataclass(frozen=True, slots=True)
class Stale:
    """A registration of the same or a newer region version holds part of the range: locate only `rest` again.

    `rest` excludes the parts that older registrations hold, too: these will fail by themselves, and their
    parts are located again then.
    """

    rest: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Only registrations of older region versions hold part of the range; try again when they have ended."""


@dataclass(frozen=True, slots=True)
class _Holder:
    bounds: Span
    region_id: int
    version: int


class RangeLock:
    """The ranges of one span. Each operation costs a binary search and a shift of arrays."""

    def __init__(self, span: Span, resolved: Timestamp | Sequence[tuple[Span, Timestamp]]) -> None:
        """`resolved`: the ts the span starts from, or parts that tile it in key order with their ts."""
        self.span = span
        self._held: list[_Holder] = []  # by start key, disjoint
        self._held_at: list[bytes] = []  # their start keys
        self._free: dict[bytes, tuple[Span, Timestamp]] = {}  # by start key, disjoint
        self._free_at: list[bytes] = []  # their start keys, ascending
        self._least: list[tuple[Timestamp, bytes]] = []  # a heap; it also holds entries of former ranges
        for part, ts in [(span, resolved)] if isinstance(resolved, int) else resolved:
            self._give(part, ts)

    def lock(
        self, bounds: Span, region_id: int, version: int, limits: Span | None = None
    ) -> Locked | Stale | Wait:
        """Try to lock `bounds`, which must be inside the span, for a region at an epoch version.

        With `limits`, adjacent free ranges on both sides are locked as well, as far as they are inside
        `limits` and without a gap.
        """
        # docs/guarantees.md#a-resolved-ts-of-the-event-store-is-complete: no key has two registrations, so no
        # range counts as complete while rows of it come by another one.
        overlapping = self._holders(bounds)
        if not overlapping:
            bounds = bounds if limits is None else self._widened(bounds, limits)
            resolved = self._take(bounds)
            at = bisect_left(self._held_at, bounds.start)
            holder = _Holder(bounds, region_id, version)
            self._held.insert(at, holder)
            self._held_at.insert(at, bounds.start)
            return Locked(resolved, bounds)
        # The holders are older than what PD says now, so their stores will end them by themselves.
        if all(h.version < version for h in overlapping):
            return Wait()
        return Stale(_without(bounds, [h.bounds for h in overlapping]))

    def unlock(self, bounds: Span, region_id: int, version: int, resolved: Timestamp) -> None:
        """Unlock a range, exactly as it was locked, at the ts that it has reached."""
        at = bisect_left(self._held_at, bounds.start)
        holder = _Holder(bounds, region_id, version)
        assert self._held[at : at + 1] == [holder], f"{holder} is not what is locked"
        del self._held[at], self._held_at[at]
        self._give(bounds, resolved)

    @property
    def free_resolved(self) -> Timestamp | None:
        """The smallest ts of the unlocked ranges; None if all are locked."""
        least = self._least
        # Entries of ranges that are no longer free are dropped when they come up, not when the range is
        # taken: a heap cannot remove from its middle.
        while least:
            resolved, start = least[0]
            known = self._free.get(start)
            if known is not None and known[1] == resolved:
                return resolved
            heapq.heappop(least)
        return None

    @property
    def free(self) -> list[tuple[Span, Timestamp]]:
        """The unlocked ranges with their ts, in key order."""
        return [self._free[start] for start in self._free_at]

    @property
    def holes(self) -> int:
        """The number of unlocked ranges."""
        return len(self._free_at)

    @property
    def held(self) -> list[Span]:
        """The ranges that are locked, in key order."""
        return [h.bounds for h in self._held]

    def _holders(self, bounds: Span) -> list[_Holder]:
        """The holders of locks that overlap `bounds`, in key order."""
        # The lock that begins before `bounds` may reach into it.
        first = max(bisect_right(self._held_at, bounds.start) - 1, 0)
        last = bisect_left(self._held_at, bounds.end) if bounds.end else len(self._held)
        return [h for h in self._held[first:last] if _overlap(h.bounds, bounds)]

    def _widened(self, bounds: Span, limits: Span) -> Span:
        """Extend the free range `bounds` by its adjacent free ranges inside `limits`."""
        low, high = bounds.start, bounds.end
        first = last = max(bisect_right(self._free_at, low) - 1, 0)
        while first >= 0 and low > limits.start:
            span, _ = self._free[self._free_at[first]]
            if span.end != b"" and span.end < low:
                break
            low, first = min(low, span.start), first - 1
        while last < len(self._free_at) and high != b"" and (limits.end == b"" or high < limits.end):
            span, _ = self._free[self._free_at[last]]
            if span.start > high:
                break
            high, last = b"" if span.end == b"" else max(high, span.end), last + 1
        # Free ranges next to it may reach beyond the region that is being locked.
        wide = Span(low, high).intersect(limits)
        assert wide is not None
        return wide

    def _give(self, span: Span, resolved: Timestamp) -> None:
        at = bisect_left(self._free_at, span.start)
        self._free_at.insert(at, span.start)
        self._free[span.start] = span, resolved
        heapq.heappush(self._least, (resolved, span.start))
        # Bounds what former ranges leave in the heap.
        if len(self._least) > 64 + 2 * len(self._free):
            self._least = [(ts, start) for start, (_, ts) in self._free.items()]
            heapq.heapify(self._least)

    def _take(self, bounds: Span) -> Timestamp:
        """Remove `bounds` from the free ranges; returns the smallest ts of the removed pieces."""
        first = max(bisect_right(self._free_at, bounds.start) - 1, 0)
        last = bisect_left(self._free_at, bounds.end) if bounds.end else len(self._free_at)
        touched = [self._free[start] for start in self._free_at[first:last]]
        cut = [(span, ts) for span, ts in touched if _overlap(span, bounds)]
        assert not _without(bounds, [span for span, _ in cut]), (
            f"{bounds} is neither free nor held in {self.span}"
        )
        for span, _ in cut:
            del self._free[span.start]
            del self._free_at[bisect_left(self._free_at, span.start)]
        for span, ts in cut:
            # The pieces outside keep their own ts, which may be higher than that of the locked range.
            for rest in _without(span, [bounds]):
                self._give(rest, ts)
        return min(ts for _, ts in cut)


def _overlap(a: Span, b: Span) -> bool:
    return a.intersect(b) is not None


def _without(bounds: Span, taken: list[Span]) -> tuple[Span, ...]:
    """The parts of `bounds` outside all of `taken`, in key order."""
    rest = [bounds]
    for cut in taken:
        pieces: list[Span] = []
        for piece in rest:
            if not _overlap(piece, cut):
                pieces.append(piece)
                continue
            if piece.start < cut.start:
                pieces.append(Span(piece.start, cut.start))
            if cut.end != b"" and (piece.end == b"" or cut.end < piece.end):
                pieces.append(Span(cut.end, piece.end))
        rest = pieces
    return tuple(rest)
