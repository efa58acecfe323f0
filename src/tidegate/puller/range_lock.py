"""Each byte of a span belongs to at most one live registration; the rest remembers how far it came.

Across stale region caches, splits and merges two registrations over the same keys would deliver twice and
report resolved ts of different completeness. So a region's part is locked before it is registered; unlocking
writes its resolved ts back. After a split the children start from the parent's ts, after a merge the region
starts from the least of its parts, all of which it takes at once. Invariant: locked and unlocked ranges are
disjoint and tile the span. A region may hold several ranges, each a registration of its own: waiting for the
other one, as tiflow does, may take for ever when a merge made one region of two (tiflow#10157). Pure; owned
by the puller's coordinator. Source: tiflow `cdc/kv/regionlock/region_range_lock.go`.
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
    """The range is the caller's, from this ts on."""

    resolved: Timestamp
    bounds: Span


@dataclass(frozen=True, slots=True)
class Stale:
    """A registration of the same or a newer region version holds part of it: locate only `rest` again.

    What older ones hold is not in it: they end by their own error, and are located again then.
    """

    rest: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Older registrations hold part of it; try again when they have ended."""


@dataclass(frozen=True, slots=True)
class _Holder:
    bounds: Span
    region_id: int
    version: int


class RangeLock:
    """The ranges of one span. A step costs a search and a shift of arrays, whatever the number of ranges."""

    def __init__(self, span: Span, resolved: Timestamp | Sequence[tuple[Span, Timestamp]]) -> None:
        """`resolved`: what the span starts from; or parts that tile it in key order, each with its ts."""
        self.span = span
        self._held: list[_Holder] = []  # by start key, disjoint
        self._held_at: list[bytes] = []  # their start keys
        self._free: dict[bytes, tuple[Span, Timestamp]] = {}  # by start key, disjoint
        self._free_at: list[bytes] = []  # their start keys, ascending
        self._least: list[tuple[Timestamp, bytes]] = []  # a heap; entries outlive what they stand for
        for part, ts in [(span, resolved)] if isinstance(resolved, int) else resolved:
            self._give(part, ts)

    def lock(
        self, bounds: Span, region_id: int, version: int, limits: Span | None = None
    ) -> Locked | Stale | Wait:
        """Try to take `bounds`, which lies inside the span, for a region at an epoch version.

        With `limits` also what is free on both sides of it, as far as it is without a gap inside them.
        """
        overlapping = self._holders(bounds)
        if not overlapping:
            bounds = bounds if limits is None else self._widened(bounds, limits)
            resolved = self._take(bounds)
            at = bisect_left(self._held_at, bounds.start)
            holder = _Holder(bounds, region_id, version)
            self._held.insert(at, holder)
            self._held_at.insert(at, bounds.start)
            return Locked(resolved, bounds)
        if all(h.version < version for h in overlapping):
            return Wait()
        return Stale(_without(bounds, [h.bounds for h in overlapping]))

    def unlock(self, bounds: Span, region_id: int, version: int, resolved: Timestamp) -> None:
        """Give back exactly what was locked, with the ts it has reached."""
        at = bisect_left(self._held_at, bounds.start)
        holder = _Holder(bounds, region_id, version)
        assert self._held[at : at + 1] == [holder], f"{holder} is not what is locked"
        del self._held[at], self._held_at[at]
        self._give(bounds, resolved)

    @property
    def free_resolved(self) -> Timestamp | None:
        """The least ts of the ranges nobody holds; None when all are held."""
        least = self._least
        while least:
            resolved, start = least[0]
            known = self._free.get(start)
            if known is not None and known[1] == resolved:
                return resolved
            heapq.heappop(least)
        return None

    @property
    def free(self) -> list[tuple[Span, Timestamp]]:
        """The ranges nobody holds."""
        return [self._free[start] for start in self._free_at]

    @property
    def holes(self) -> int:
        """How many ranges nobody holds."""
        return len(self._free_at)

    @property
    def held(self) -> list[Span]:
        """The ranges that are locked, in key order."""
        return [h.bounds for h in self._held]

    def _holders(self, bounds: Span) -> list[_Holder]:
        """Those that overlap `bounds`, in key order."""
        first = max(bisect_right(self._held_at, bounds.start) - 1, 0)
        last = bisect_left(self._held_at, bounds.end) if bounds.end else len(self._held)
        return [h for h in self._held[first:last] if _overlap(h.bounds, bounds)]

    def _widened(self, bounds: Span, limits: Span) -> Span:
        """Free `bounds` with its free neighbours inside `limits`."""
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
        wide = Span(low, high).intersect(limits)
        assert wide is not None
        return wide

    def _give(self, span: Span, resolved: Timestamp) -> None:
        at = bisect_left(self._free_at, span.start)
        self._free_at.insert(at, span.start)
        self._free[span.start] = span, resolved
        heapq.heappush(self._least, (resolved, span.start))
        if len(self._least) > 64 + 2 * len(self._free):
            self._least = [(ts, start) for start, (_, ts) in self._free.items()]
            heapq.heapify(self._least)

    def _take(self, bounds: Span) -> Timestamp:
        """Cut `bounds` out of the free ranges; the least ts among the pieces."""
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
