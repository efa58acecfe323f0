"""All watched spans of a puller, the resolved ts of each of their ranges, and which ranges are locked.

Range locks and marks must agree at every moment: a locked range has its own mark in the frontier, and the
unlocked ranges of a span share its `free_mark`. The sealer takes the minimum of a span's marks and seals to
it. If at any moment a range were covered by neither mark, the sealer could seal beyond the changes pulled for
that range, and readers would never see its later rows. Therefore range locks and marks change under one
mutex, and a new mark is in place before the old one rises.

Streams raise marks (`advance`), the sealer reads minima, the puller's owner adds and removes spans, and the
coordinator calls the other methods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.reports import SpanStatus
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.frontier import Frontier
from tidegate.puller.range_lock import Locked, RangeLock, Stale, Wait
from tidegate.puller.store_protocol import SpanChanges
from tidegate.puller.watched_span import RegisteredRange, WatchedSpan


class SpanTable:
    """The spans by number and by bounds. Thread-safe."""

    def __init__(self) -> None:
        self._state = threading.Lock()  # guards all of it, and the range locks of the spans
        self._frontier = Frontier()
        self._spans: list[WatchedSpan | None] = []
        self._by_span: dict[Span, WatchedSpan] = {}

    def find(self, span: Span) -> WatchedSpan | None:
        """A watched span by its bounds."""
        with self._state:
            return self._by_span.get(span)

    def numbered(self, number: int) -> WatchedSpan | None:
        """A span by its number; None if it is no longer watched."""
        # Without the lock, because the list only grows and a number is never used twice.
        return self._spans[number]

    def all(self) -> list[WatchedSpan]:
        """The spans that are watched now."""
        with self._state:
            return list(self._by_span.values())

    def add(
        self, span: Span, changes: SpanChanges, request_id: int, *, records: bool, guarded: bool, now: float
    ) -> WatchedSpan:
        """Watch a span above its resolved ts. `now`: monotonic seconds; for the rest see `WatchedSpan`."""
        with self._state:
            number = len(self._spans)  # never used twice: a stream may still hold rows of an older one
            free_mark = self._frontier.hold(number, changes.resolved)
            lock = RangeLock(span, changes.ranges)
            watched_span = WatchedSpan(
                number, request_id, span, changes, lock, free_mark, records=records, guarded=guarded
            )
            watched_span.request_ids.add(watched_span.request_id)
            watched_span.moved_at = now
            self._spans.append(watched_span)
            self._by_span[span] = watched_span
            return watched_span

    def remove(self, span: Span) -> WatchedSpan | None:
        """Stop watching a span. Its marks are released by `forget`, after its ranges were unlocked."""
        with self._state:
            watched_span = self._by_span.pop(span, None)
            if watched_span is not None:
                watched_span.gone = True
                self._spans[watched_span.number] = None
            return watched_span

    def forget(self, watched_span: WatchedSpan) -> None:
        """Release the last mark of a removed span."""
        with self._state:
            self._frontier.release(watched_span.free_mark)

    def status(self, kv_mode: str, waiting: Callable[[WatchedSpan], str]) -> list[SpanStatus]:
        """`WatchedSpan.status` of each span."""
        with self._state:
            return [
                watched_span.status(kv_mode, waiting(watched_span)) for watched_span in self._by_span.values()
            ]

    def lock(
        self, watched_span: WatchedSpan, bounds: Span, region: RegionInfo, limits: Span
    ) -> tuple[Locked | Stale | Wait, int]:
        """Lock a region's part of a range, with adjacent free ranges in `limits`; also returns its mark."""
        with self._state:
            answer, mark = watched_span.lock.lock(bounds, region.id, region.epoch_version, limits), -1
            if isinstance(answer, Locked):
                mark = self._frontier.hold(watched_span.number, answer.resolved)
                # Only now may the mark of the free ranges rise: the new mark limits the minimum from here on.
                self._frontier.put(watched_span.free_mark, watched_span.lock.free_resolved)
            return answer, mark

    def unlock(self, registered: RegisteredRange) -> None:
        """Unlock a range at the ts that it has reached."""
        region = registered.feed.region
        # The mark is released last: it limits the minimum until the mark of the free ranges covers the range.
        with self._state:
            resolved = self._frontier.at(registered.mark)
            registered.watched_span.lock.unlock(
                registered.feed.bounds, region.id, region.epoch_version, resolved
            )
            free = None if registered.watched_span.gone else registered.watched_span.lock.free_resolved
            self._frontier.put(registered.watched_span.free_mark, free)
            self._frontier.release(registered.mark)

    def restart(self, watched_span: WatchedSpan) -> None:
        """Begin a span again at its resolved ts. All its ranges must have been unlocked."""
        with self._state:
            watched_span.lock = RangeLock(watched_span.span, watched_span.changes.resolved)
            self._frontier.put(watched_span.free_mark, watched_span.changes.resolved)

    def advance(self, marks: npt.NDArray[np.int64], resolved: npt.NDArray[np.uint64]) -> None:
        """Raise marks. All rows at or below them must have been appended."""
        with self._state:
            self._frontier.advance(marks, resolved)

    def minima(self) -> list[tuple[WatchedSpan, Timestamp]]:
        """All spans, each with its smallest mark."""
        with self._state:
            spans = [w for w in self._spans if w is not None]
            minima = self._frontier.minima(len(self._spans)).tolist()
        return [(watched_span, minima[watched_span.number]) for watched_span in spans]

    def below(self, watched_span: WatchedSpan, ts: Timestamp) -> list[int]:
        """The marks of a span below `ts`: of locked ranges, and that of the free ranges if one is below."""
        with self._state:
            return self._frontier.below(watched_span.number, ts).tolist()  # type: ignore[no-any-return]

    def at(self, ranges: Iterable[RegisteredRange]) -> list[tuple[RegisteredRange, Timestamp]]:
        """The resolved ts of locked ranges."""
        with self._state:
            return [(registered, self._frontier.at(registered.mark)) for registered in ranges]

    def ranges(self, watched_span: WatchedSpan) -> list[tuple[Span, Timestamp]]:
        """The resolved ts of each part of a span, in key order."""
        with self._state:
            registered = [(h.feed.bounds, self._frontier.at(h.mark)) for h in watched_span.feeds.values()]
            return sorted([*registered, *watched_span.lock.free])
