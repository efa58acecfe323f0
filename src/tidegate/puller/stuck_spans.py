"""The spans that have not moved for some seconds, for the lock cleaner."""

from __future__ import annotations

from functools import partial

from tidegate.clock import Clock
from tidegate.model.timestamp import Timestamp
from tidegate.puller.lock_cleaner import STUCK_S, Behind, Stuck
from tidegate.puller.region_feed import State
from tidegate.puller.span_table import SpanTable
from tidegate.puller.watched_span import RegisteredRange, WatchedSpan


class StuckSpans:
    """The spans of one puller that have not moved for STUCK_S."""

    def __init__(self, spans: SpanTable, clock: Clock) -> None:
        self._spans, self._clock = spans, clock

    def __call__(self) -> list[Stuck]:
        """The spans."""
        now = self._clock.monotonic()
        return [
            Stuck(watched_span.changes.resolved, partial(self._behind, watched_span))
            for watched_span in self._spans.all()
            if now - watched_span.moved_at >= STUCK_S
        ]

    def _behind(self, watched_span: WatchedSpan, target: Timestamp) -> list[Behind]:
        """The live ranges of a span whose resolved ts is below `target`."""
        found = [watched_span.feeds.get(mark) for mark in self._spans.below(watched_span, target)]
        live = [held for held in found if held is not None and held.feed.state is State.LIVE]
        return [
            Behind(held.feed.bounds, ts, partial(self._lock_lives, held))
            # Asked once more, because the marks may have moved since `below` found them.
            for held, ts in self._spans.at(live)
            if ts < target
        ]

    def _lock_lives(self, held: RegisteredRange) -> None:
        held.locked_at = self._clock.monotonic()
