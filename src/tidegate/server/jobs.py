"""Tasks beside a changefeed's loop, and what becomes of them when it ends.

    spawn --> done | failed: the first failure is kept, and the loop is woken

A loop that fails raises the first failure, because later ones are mostly consequences of it. Work that must
not be cut off, such as the end of an incarnation, is awaited by `to_its_end`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from tidegate.control.metadata import FeedId
from tidegate.errors import Retryable, TidegateError

LOG: Final = logging.getLogger(__name__)

JOBS_S: Final = 2.0
"""How long calls under way are waited for when an incarnation ends."""


class Jobs:
    """Of one changefeed's incarnation after the other. One asyncio loop."""

    def __init__(self, feed: FeedId, wake: Callable[[], None]) -> None:
        """`wake`: is called after a failure."""
        self._feed, self._wake = feed, wake
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: TidegateError | None = None
        """The first since `begin`."""

    @property
    def are_any(self) -> bool:
        """Whether something is under way."""
        return bool(self._tasks)

    def begin(self) -> None:
        """What failed before is another incarnation's."""
        self.failure = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the loop; its failure is the incarnation's."""
        task = asyncio.create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def fail(self, error: TidegateError) -> None:
        """The first failure of an incarnation is the one that is shown."""
        if self.failure is None:
            self.failure = error
        self._wake()

    async def end(self) -> None:
        """Wait for what is under way, for `JOBS_S` at most; what is not over then is cancelled."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=JOBS_S)
            for job in late:
                job.cancel()

    async def settle(self) -> None:
        """Wait until nothing is under way, however long that takes."""
        while under_way := [job for job in self._tasks if not job.done()]:
            await asyncio.wait(under_way)

    async def _guard(self, work: Awaitable[None]) -> None:
        try:
            await work
        except TidegateError as error:
            self.fail(error)
        except Exception as error:
            LOG.exception("changefeed %s: unexpected error", self._feed)
            self.fail(unexpected(error))


def unexpected(error: Exception) -> TidegateError:
    """What no code of ours raised on purpose, as a failure that is tried again."""
    return Retryable("An unexpected error stopped the changefeed.", why=f"{type(error).__name__}: {error}")


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that must not be cut off; a cancellation that comes meanwhile is passed on afterwards."""
    task, cancelled = asyncio.create_task(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
