"""Decides whether a changefeed releases its spans while the event store fills up, for the sake of others.

    it makes no progress, others need room --> is_due: it fails --> is_done: it holds none --> it runs again

Changes that a changefeed has not delivered stay in the event store, and so do those of all other changefeeds
with the same tables. If one never made progress, the store would fill up and drop the spans of all. So this
one releases its spans. When it runs again, the missing part is pulled again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from tidegate.control.metadata import FeedId
from tidegate.errors import Retryable
from tidegate.log import event
from tidegate.server.pulling.spans import SpanRegistry

LOG: Final = logging.getLogger(__name__)

OTHERS_SHOWN: Final = 3


class SpaceRelease:
    """For one changefeed on one capture. Times are monotonic, in seconds."""

    def __init__(self, feed: FeedId) -> None:
        self._feed = feed
        self._passed: tuple[int, Mapping[str, int]] = (0, {})
        """The last checkpoint, and the beats of the last pipeline that delivered; progress changes either."""
        self.is_due = False
        """Whether the changefeed must release its spans for others."""
        self.is_done = False
        """Whether it has released them; it holds none until it runs again."""

    def look(
        self, now: float, spans: SpanRegistry, checkpoint: int, beats: Mapping[str, int], *, loads: bool
    ) -> Retryable | None:
        """The failure with which the changefeed makes way, if it must now.

        `beats`: those of its pipeline, empty if it has none. `loads`: whether its initial load is under way.
        """
        # A pipeline that ends has no beats. That is no progress, so those of the last one stay.
        before, self._passed = self._passed, (checkpoint, beats or self._passed[1])
        if self._passed != before or loads:
            spans.note_progress(self._feed, now)
            return None
        # Only for the sake of others. If none is blocked, a feed that waits keeps what it has pulled.
        others = spans.feeds_blocked_by(self._feed, now)
        if not others:
            return None
        names = ", ".join(map(str, others[:OTHERS_SHOWN])) + (", ..." if len(others) > OTHERS_SHOWN else "")
        event(
            LOG,
            logging.WARNING,
            "changefeed stopped to free event store space",
            changefeed=str(self._feed),
            of=names,
        )
        self.is_due = True
        return Retryable(
            "[CDC:ErrEventStoreQuota]the changefeed made no progress: stopped to free space for others",
            where=f"others that follow its tables: {names}",
            why=spans.filling,
            fix="see what it waits for; it is started again by itself, and what it has not "
            "delivered is pulled again, which must fit --event-store-quota",
        )

    def done(self) -> None:
        """Note that its spans are released."""
        self.is_due, self.is_done = False, True

    def over(self) -> None:
        """Note that it may hold spans again."""
        self.is_due = self.is_done = False
