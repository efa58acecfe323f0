"""The changefeeds that a capture owns, by name, and the turns of requests that change one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from tidegate.control.metadata import FeedId
from tidegate.server.changefeeds.new_feed import Refused
from tidegate.server.changefeeds.unreadable import UnreadableFeed
from tidegate.server.owner.feed import Feed


class Feeds(dict[FeedId, Feed]):
    """All stored changefeeds. A feed moved to another checkpoint is a new object under the same name."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: dict[FeedId, UnreadableFeed] = {}
        """Changefeeds that are stored in a form which this version cannot read."""

    def named(self, feed: FeedId) -> Feed:
        """A feed by name; raises Refused (CDC:ErrChangeFeedNotExists, CDC:ErrChangefeedUnreadable)."""
        found = self.get(feed)
        if feed in self.unreadable:
            raise self.unreadable[feed].refused()
        if found is None:
            raise Refused(
                "CDC:ErrChangeFeedNotExists",
                f"[CDC:ErrChangeFeedNotExists]changefeed not exists, {feed}",
                fix="choose one that `tidegate changefeed list` shows",
            )
        return found

    @contextlib.asynccontextmanager
    async def in_turn(self, feed: FeedId) -> AsyncIterator[Feed]:
        """A feed, for one request at a time, so that each request sees the result of the one before.

        Raises Refused (CDC:ErrChangeFeedNotExists), also when an earlier request has removed it.
        """
        while True:
            found = self.named(feed)
            async with found.turn:
                # The request before may have replaced the feed by a new object, whose turn is another one.
                if self.get(feed) is found:
                    yield found
                    return

    def kv_modes(self) -> set[str]:
        """The kv modes of all feeds; each mode has its own event store."""
        return {feed.record.config.tidegate.kv_mode for feed in self.values()}
