"""Wakes those who wait for a store of events: one look at its page of floors for all feeds of a capture.

    page of floors --look every LOOK_S--> has it changed? --> wake all that follow it

While nothing changes a look costs some microseconds, and the followers nothing. No change is missed: a
follower begins to follow, and only then reads the page. A change after that differs from what the last look
saw, unless that look came after the change, and then it has woken the follower. Its event stays set until it
is waited for, and is cleared before the page is read again. Looks and followers share one asyncio loop, so
nothing comes between these steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate.eventstore import outlook
from tidegate.log import event

LOG: Final = logging.getLogger(__name__)

LOOK_S: Final = 0.02
RETRY_S: Final = 1.0
"""After a look that failed; followers look for themselves now and then, too."""

Wake = Callable[[], None]


class Pulse:
    """Who follows which store. One asyncio loop."""

    def __init__(self) -> None:
        self._followers: dict[Path, dict[Wake, bool]] = {}
        """By store, each with whether it is woken first."""
        self._seen: dict[Path, object] = {}

    def follow(self, store: Path, wake: Wake, *, first: bool = False) -> None:
        """Call `wake` when the page of a store has changed, until `leave`. Read what it holds after this.

        `first`: before the others. Owners are: what they dispatch is there when their processor ticks.
        """
        self._followers.setdefault(store, {})[wake] = first

    def leave(self, store: Path, wake: Wake) -> None:
        """The inverse of `follow`; nothing where that was not called."""
        followers = self._followers.get(store, {})
        followers.pop(wake, None)
        if not followers:
            self._followers.pop(store, None)
            self._seen.pop(store, None)

    def look(self) -> None:
        """One look at all pages."""
        for store, followers in self._followers.items():
            mark = outlook.floors_mark(store)
            if mark != self._seen.get(store):
                self._seen[store] = mark
                for now in (True, False):
                    for wake in (wake for wake, first in followers.items() if first is now):
                        wake()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            pause_s = LOOK_S
            try:
                self.look()
            except OSError as error:
                event(LOG, logging.WARNING, "page of floors not read", why=str(error))
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)
