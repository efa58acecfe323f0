"""The pause of the owner's loop between two ticks: until a wake-up, or until something is due by time.

    tick --> until_next: [look whether a call hangs ...] --> woken or due --> tick

A tick costs much more than a look, so looks come in between.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from math import inf
from typing import Final

from tidegate.control.owner import Owner
from tidegate.server.node import Node
from tidegate.server.owner.ddl import OwnerDdl
from tidegate.server.owner.record import FeedRecord
from tidegate.server.owner.sharing import CAPTURES_S

TICK_S: Final = 0.02
"""The pause between ticks while new DDL waits for the catalogue, which another thread may be using."""
WATCH_S: Final = 1.5
"""The pause between two looks at a call that may hang. A watchdog counts at most `STEP_MAX_S` of each."""


class TickPause:
    """The pauses of one changefeed's owner. Lives in one asyncio loop."""

    def __init__(
        self,
        node: Node,
        record: FeedRecord,
        ddl: OwnerDdl,
        look: Callable[[], None],
        is_any_call: Callable[[], bool],
    ) -> None:
        """`look`: looks whether a call hangs, and wakes if it does. `is_any_call`: whether one may hang."""
        self._node, self._record, self._ddl = node, record, ddl
        self._look, self._is_any_call = look, is_any_call
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """End the pause, or the next one."""
        self._woken.set()

    def begin(self) -> None:
        """Forget the wake-ups of the incarnation before."""
        self._woken.clear()

    async def until_next(self, owner: Owner | None) -> None:
        """Wait for the next tick, which comes at once when something has happened."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.rest_s(owner)
        while not self._woken.is_set() and loop.time() < until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, loop.time() + self.watch_s())):
                    await self._woken.wait()
            self._look()
        # After the wait: what comes during a tick ends the next wait at once.
        self._woken.clear()

    def watch_s(self) -> float:
        """The time until the next look whether a call hangs; infinite while there is no call."""
        return WATCH_S if self._is_any_call() else inf

    def rest_s(self, owner: Owner | None) -> float:
        """The time until something is due if nothing happens before."""
        node, store = self._node, self._record.captured.store
        if owner is None or self._ddl.is_behind:
            return TICK_S
        rest_s = node.pulse.rest_s(store)
        if node.shared:
            # With many changefeeds less often, as everything that is done for changefeeds without rows.
            rest_s = min(rest_s, max(CAPTURES_S, node.pulse.calmer_s(store) / 2))
        return min(rest_s, owner.due_in(node.clock.monotonic()))
