"""All watched spans of a puller, how far each of their ranges is, and which ranges are locked.

Two things here belong together in every step: a range that is locked has a mark of its own in the frontier,
and the ranges of a span that nobody has share its `free_mark`. The sealer takes the minimum of a span's marks
and seals to it. If it saw a moment at which a range had neither mark, it would seal beyond what was pulled of
that range, and readers would miss its rows for good. So lock and marks change under one lock, and a new mark
counts before the old one rises.

Streams raise marks (`advance`), the sealer reads minima, the puller's owner adds and removes spans, and the
coordinator does the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.frontier import Frontier
from tidegate.puller.range_lock import Locked, RangeLock, Stale, Wait
from tidegate.puller.store_protocol import SpanSink
from tidegate.puller.watched_span import RegisteredRange, Watched


class SpanTable:
    """The spans by number and by bounds. Any thread may call it."""

    def __init__(self) -> None:
        self._state = threading.Lock()  # guards all of it, and the range locks of the spans
        self._frontier = Frontier()
        self._spans: list[Watched | None] = []
        self._watched: dict[Span, Watched] = {}

    def find(self, span: Span) -> Watched | None:
        """A watched span by its bounds."""
        with self._state:
            return self._watched.get(span)

    def numbered(self, number: int) -> Watched | None:
        """A span by its number; None: it is not watched any more."""
        return self._spans[number]

    def all(self) -> list[Watched]:
        """Those that are watched now."""
        with self._state:
            return list(self._watched.values())

    def add(
        self, span: Span, sink: SpanSink, request_id: int, *, records: bool, guarded: bool, now: float
    ) -> Watched:
        """Watch a span above what its store holds. `now`: monotonic seconds; for the rest see `Watched`."""
        with self._state:
            number = len(self._spans)  # never used twice: a stream may still hold rows of an older one
            free_mark = self._frontier.hold(number, sink.resolved)
            lock = RangeLock(span, sink.ranges)
            watched = Watched(
                number, request_id, span, sink, lock, free_mark, records=records, guarded=guarded
            )
            watched.request_ids.add(watched.request_id)
            watched.moved_at = now
            self._spans.append(watched)
            self._watched[span] = watched
            return watched

    def remove(self, span: Span) -> Watched | None:
        """Watch a span no longer; its marks go with `forget`, once its ranges are given back."""
        with self._state:
            watched = self._watched.pop(span, None)
            if watched is not None:
                watched.gone = True
                self._spans[watched.number] = None
            return watched

    def forget(self, watched: Watched) -> None:
        """Release the last mark of a removed span."""
        with self._state:
            self._frontier.release(watched.free_mark)

    def lines(self, kv_mode: str, waiting: Callable[[Watched], str]) -> list[dict[str, Any]]:
        """`Watched.line` of each span."""
        with self._state:
            return [watched.line(kv_mode, waiting(watched)) for watched in self._watched.values()]

    def lock(
        self, watched: Watched, bounds: Span, region: RegionInfo, limits: Span
    ) -> tuple[Locked | Stale | Wait, int]:
        """Lock a region's part of a range, with what is free beside it up to `limits`; and its mark."""
        with self._state:
            answer, mark = watched.lock.lock(bounds, region.id, region.epoch_version, limits), -1
            if isinstance(answer, Locked):
                mark = self._frontier.hold(watched.number, answer.resolved)
                self._frontier.put(watched.free_mark, watched.lock.free_resolved)
            return answer, mark

    def unlock(self, held: RegisteredRange) -> None:
        """Free a range at the ts that it has reached."""
        region = held.feed.region
        # The mark is released last: until the free ranges' mark covers the range, it holds the minimum down.
        with self._state:
            resolved = self._frontier.at(held.mark)
            held.watched.lock.unlock(held.feed.bounds, region.id, region.epoch_version, resolved)
            free = None if held.watched.gone else held.watched.lock.free_resolved
            self._frontier.put(held.watched.free_mark, free)
            self._frontier.release(held.mark)

    def restart(self, watched: Watched) -> None:
        """Begin a span again at its resolved ts. Its ranges have been given back."""
        with self._state:
            watched.lock = RangeLock(watched.span, watched.sink.resolved)
            self._frontier.put(watched.free_mark, watched.sink.resolved)

    def advance(self, marks: npt.NDArray[np.int64], resolved: npt.NDArray[np.uint64]) -> None:
        """Raise marks. What lies at or below must have been appended."""
        with self._state:
            self._frontier.advance(marks, resolved)

    def minima(self) -> list[tuple[Watched, Timestamp]]:
        """All spans, each with the least of its marks."""
        with self._state:
            spans = [w for w in self._spans if w is not None]
            minima = self._frontier.minima(len(self._spans)).tolist()
        return [(watched, minima[watched.number]) for watched in spans]

    def at(self, ranges: Iterable[RegisteredRange]) -> list[tuple[RegisteredRange, Timestamp]]:
        """How far locked ranges are."""
        with self._state:
            return [(held, self._frontier.at(held.mark)) for held in ranges]

    def ranges(self, watched: Watched) -> list[tuple[Span, Timestamp]]:
        """How far each part of a span is, in key order."""
        with self._state:
            held = [(h.feed.bounds, self._frontier.at(h.mark)) for h in watched.feeds]
            return sorted([*held, *watched.lock.free])
