"""Stores and publishes the changes of a stripe without those of a few slow ranges.

A transaction lock that stays, or a region without a leader, holds back one range of a stripe, and with it the
stripe's resolved ts. Changefeeds that want no table of that range must not wait for it
(docs/guarantees.md#trouble-in-one-region-delays-only-the-changefeeds-that-want-a-table-of-it). For them the
manifest has a ts of its own for each range.

While no range is slow, this module looks for one twice a second. While some are, each risen mark asks for a
look, because readers of the other ranges wait for it as they otherwise wait for the sealer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from tidegate.clock import Clock
from tidegate.errors import Retryable
from tidegate.model import timestamp
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.inbox import Inbox
from tidegate.puller.span_table import SpanTable
from tidegate.puller.store_protocol import ChangeStore
from tidegate.puller.watched_span import WatchedSpan

LOOK_S: Final = 0.5
"""How often the puller looks for slow ranges while it finds none."""
LOOK_REST: Final = 4
"""After a look that has found some, the next one waits this many times as long as it took, and at least
REST_S. So looks use at most a fifth of a core, as seals do, however many stripes have slow ranges."""
REST_S: Final = 0.01
BEHIND_MS: Final = 1_000
"""A range is slow if it is this far behind the newest resolved ts of all spans."""
BEHIND_MAX: Final = 64
"""If more ranges than this are BEHIND_MS behind, the cause is not a single table, and all readers wait."""


class SlowRanges:
    """Looks for slow ranges. The coordinator calls `look`, streams call `risen`.

    `keep`: stores the changes and the ts of each range of a span (`Upkeep.keep`).
    """

    def __init__(
        self,
        store: ChangeStore,
        spans: SpanTable,
        inbox: Inbox,
        clock: Clock,
        keep: Callable[[WatchedSpan, Sequence[tuple[Span, Timestamp]]], None],
    ) -> None:
        self._store, self._spans, self._inbox, self._clock, self._keep = store, spans, inbox, clock, keep
        self._looked_at = self._next_at = float("-inf")
        self._is_found = self._is_due = False

    def risen(self) -> None:
        """Marks have risen. If ranges are slow, ask the coordinator for a look, once."""
        if self._is_found and not self._is_due:
            self._is_due = True
            self._inbox.put(self._look_after_rest)

    def tend(self) -> None:
        """Look, if ranges may have become slow since the last look. Called a few times a second."""
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOK_S and now >= self._next_at:
            self.look()

    def _look_after_rest(self) -> None:
        # Otherwise `tend` has looked since the mark rose, so nothing is asked for any more.
        if not self._is_due:
            return
        rest = self._next_at - self._clock.monotonic()
        if rest > 0:
            self._inbox.after(rest, self._look_after_rest)
        else:
            self.look()

    def look(self) -> None:
        """Store and publish the changes of the ranges that are not slow, in all stripes with slow ranges."""
        # Before the marks are read: one that rises during this look asks for the next one, unless no range
        # was slow before.
        self._is_due = False
        began = self._looked_at = self._clock.monotonic()
        # While there is no room, storing more for some readers would take it from all.
        self._is_found = not self._store.pressure and self._part(self._spans.all())
        if self._is_found:
            # On a full disk, the sealer publishes the same with its next pass.
            with contextlib.suppress(Retryable):
                # At once. If this waited for the sealer, which rests after the seal of the same mark, the lag
                # of these readers would double.
                self._store.publish()
            ended = self._clock.monotonic()
            self._next_at = ended + max(REST_S, LOOK_REST * (ended - began))

    def _part(self, spans: Sequence[WatchedSpan]) -> bool:
        """For each stripe with slow ranges, store the changes of the other ranges and record their ts in the
        manifest, so that readers that want no table of the slow ranges can continue. Returns whether there
        are such stripes.

        The largest resolved ts of all spans shows the current ts of the upstream: usually that of the DDL
        span, which every changefeed of tables follows.
        """
        found = False
        limit = max((w.changes.resolved for w in spans), default=0) - timestamp.compose(BEHIND_MS)
        for watched_span in spans:
            if not watched_span.records or watched_span.paused or watched_span.changes.resolved >= limit:
                continue
            # Before any range is listed: while a span of 100,000 regions opens, nearly all of them are
            # behind, and each list of them would stop the streams for a tenth of a second.
            if len(self._spans.below(watched_span, limit)) > BEHIND_MAX + 1:
                continue
            ranges = self._spans.ranges(watched_span)
            near = [ts for _, ts in ranges if ts >= limit]
            # If many ranges are behind, readers wait anyway, and each pass would write a manifest for
            # nothing.
            if near and len(ranges) - len(near) <= BEHIND_MAX:
                found = True
                least = min(near)
                self._keep(watched_span, [(span, least if ts >= limit else ts) for span, ts in ranges])
        return found
