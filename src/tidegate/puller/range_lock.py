"""Each byte of a span belongs to at most one live registration; the rest remembers how far it came.

Across stale region caches, splits and merges two registrations over the same keys would deliver twice and
report resolved ts of different completeness. So a region's part is locked before it is registered; unlocking
writes its resolved ts back. After a split the children start from the parent's ts, after a merge the region
starts from the least of its parts. Invariant: locked and unlocked ranges are disjoint and tile the span.
Pure; owned by the puller's coordinator. Source: tiflow `cdc/kv/regionlock/region_range_lock.go`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class Locked:
    """The range is the caller's, from this ts on."""

    resolved: Timestamp


@dataclass(frozen=True, slots=True)
class Stale:
    """A registration of the same or a newer region version holds part of it: locate only `rest` again."""

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
    """The ranges of one span."""

    def __init__(self, span: Span, resolved: Timestamp) -> None:
        self.span = span
        self._locked: list[_Holder] = []  # by start key, disjoint
        self._free: list[tuple[Span, Timestamp]] = [(span, resolved)]  # by start key, disjoint

    def lock(self, bounds: Span, region_id: int, version: int) -> Locked | Stale | Wait:
        """Try to take `bounds`, which lies inside the span, for a region at an epoch version."""
        holders = [h for h in self._locked if _overlap(h.bounds, bounds) or h.region_id == region_id]
        if not holders:
            resolved = self._take(bounds)
            at = bisect_left([h.bounds.start for h in self._locked], bounds.start)
            self._locked.insert(at, _Holder(bounds, region_id, version))
            return Locked(resolved)
        newer = [h.bounds for h in holders if h.version >= version and _overlap(h.bounds, bounds)]
        return Stale(_without(bounds, newer)) if newer else Wait()

    def unlock(self, bounds: Span, region_id: int, version: int, resolved: Timestamp) -> None:
        """Give back exactly what was locked, with the ts it has reached."""
        self._locked.remove(_Holder(bounds, region_id, version))
        at = bisect_left([s.start for s, _ in self._free], bounds.start)
        self._free.insert(at, (bounds, resolved))

    @property
    def free_resolved(self) -> Timestamp | None:
        """The least ts of the ranges nobody holds; None when all are held."""
        return min((ts for _, ts in self._free), default=None)

    @property
    def free(self) -> list[tuple[Span, Timestamp]]:
        """The ranges nobody holds."""
        return list(self._free)

    @property
    def held(self) -> list[Span]:
        """The ranges that are locked, in key order."""
        return [h.bounds for h in self._locked]

    def _take(self, bounds: Span) -> Timestamp:
        """Cut `bounds` out of the free ranges; the least ts among the pieces."""
        pieces: list[Timestamp] = []
        free: list[tuple[Span, Timestamp]] = []
        covered: list[Span] = []
        for span, ts in self._free:
            common = span.intersect(bounds)
            if common is None:
                free.append((span, ts))
                continue
            pieces.append(ts)
            covered.append(common)
            free += [(rest, ts) for rest in _without(span, [bounds])]
        assert not _without(bounds, covered), f"{bounds} is neither free nor held in {self.span}"
        self._free = free
        return min(pieces)


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
