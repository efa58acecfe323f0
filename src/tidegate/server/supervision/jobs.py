"""Background tasks of a changefeed's loop, and how they end with it.

    spawn --> done | failed: the first failure is kept, and the loop is woken

A loop that fails raises the first failure, because later ones are mostly its consequences. Work that must not
be interrupted, such as the end of an incarnation, is awaited by `to_its_end`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final

from tidegate.control.metadata import FeedId
from tidegate.errors import Retryable, TidegateError

LOG: Final = logging.getLogger(__name__)

JOBS_S: Final = 2.0
"""How long running calls are waited for when an incarnation ends."""


class Jobs:
    """The tasks of a changefeed, for one incarnation after the other. Lives in one asyncio loop."""

    def __init__(self, feed: FeedId, wake: Callable[[], None]) -> None:
        """`wake`: is called after a failure."""
        self._feed, self._wake = feed, wake
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: TidegateError | None = None
        """The first failure since `begin`."""

    @property
    def are_any(self) -> bool:
        """Whether a task is running."""
        return bool(self._tasks)

    def begin(self) -> None:
        """Forget the failure of the incarnation before."""
        self.failure = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background; its failure is the incarnation's."""
        task = asyncio.create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def fail(self, error: TidegateError) -> None:
        """Keep the failure if it is the incarnation's first one, and wake the loop."""
        if self.failure is None:
            self.failure = error
        self._wake()

    async def end(self) -> None:
        """Wait for running tasks, `JOBS_S` at most, and cancel the others."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=JOBS_S)
            for job in late:
                job.cancel()

    @contextlib.asynccontextmanager
    async def watched(self, look: Callable[[], None], every_s: float) -> AsyncIterator[None]:
        """Call `look`, which may `fail`, while the block runs. A failure ends the block and is raised."""
        loop = asyncio.get_running_loop()

        async def watch(limit: asyncio.Timeout) -> None:
            while self.failure is None:
                await asyncio.sleep(every_s)
                look()
            # An expired limit cancels the block at whatever it awaits.
            limit.reschedule(loop.time())

        try:
            async with asyncio.timeout(None) as limit:
                watching = asyncio.create_task(watch(limit))
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError:
            # The block's own TimeoutError, which is not ours to replace.
            if self.failure is None:
                raise
            raise self.failure from None

    async def wait_for_tasks(self) -> None:
        """Wait until no task is running, however long that takes."""
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
    """An error that our code did not raise on purpose, as a failure that is tried again."""
    return Retryable("an unexpected error stopped the changefeed", why=f"{type(error).__name__}: {error}")


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that must not be interrupted; a cancellation meanwhile is raised afterwards."""
    task, cancelled = asyncio.create_task(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            # Kept, and the wait continues: a second cancellation must not end it either.
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
