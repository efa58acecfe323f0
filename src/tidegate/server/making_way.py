"""Whether a changefeed makes way for others while the event store fills up.

    it stands still, others need room --> is_due: it fails --> is_done: it holds no spans --> it runs again

What a changefeed has not delivered stays in the event store, also for all others that follow the same tables.
If one stood still for ever, their spans would be given up, too. So it lets go of its own spans. When it runs
again, what it lacks is pulled again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from tidegate.control.metadata import FeedId
from tidegate.errors import Retryable
from tidegate.log import event
from tidegate.server.spans import SpanRegistry

LOG: Final = logging.getLogger(__name__)

OTHERS_SHOWN: Final = 3


class MakingWay:
    """Of one changefeed on one capture. Times are monotonic, in seconds."""

    def __init__(self, feed: FeedId) -> None:
        self._feed = feed
        self._passed: tuple[int, Mapping[str, int]] = (0, {})
        """Checkpoint, and the beats of a pipeline that has delivered: either changes while it goes on."""
        self.is_due = False
        """Whether it is to let go of its spans for others."""
        self.is_done = False
        """Whether it has: it holds none until it is to run again."""

    def look(
        self, now: float, spans: SpanRegistry, checkpoint: int, beats: Mapping[str, int], *, loads: bool
    ) -> Retryable | None:
        """The failure with which it makes way, if it must now.

        `beats`: of its pipeline, empty if there is none. `loads`: whether its initial load goes on.
        """
        before, self._passed = self._passed, (checkpoint, beats or self._passed[1])
        if self._passed != before or loads:
            spans.went_on(self._feed, now)
            return None
        others = spans.in_the_way_of(self._feed, now)
        if not others:
            return None
        names = ", ".join(map(str, others[:OTHERS_SHOWN])) + (", ..." if len(others) > OTHERS_SHOWN else "")
        event(LOG, logging.WARNING, "changefeed makes way", changefeed=str(self._feed), of=names)
        self.is_due = True
        return Retryable(
            "[CDC:ErrEventStoreQuota]the changefeed stands still and makes way for others.",
            where=f"others that follow its tables: {names}",
            why=spans.filling,
            fix="see what it waits for; it is started again by itself, and what it has not "
            "delivered is pulled again. That must fit --event-store-quota",
        )

    def done(self) -> None:
        """Its spans are let go of."""
        self.is_due, self.is_done = False, True

    def over(self) -> None:
        """It may hold spans again."""
        self.is_due = self.is_done = False
