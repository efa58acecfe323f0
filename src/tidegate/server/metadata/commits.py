"""Combines writes to the metadata store: all that arrive during one commit go into the next commit.

    asked for --> waiting --the thread is free--> one commit of all that wait --> answers

Each changefeed stores its checkpoint twice a second, and each commit waits for the disk. With one commit for
each write, a hundred changefeeds would keep the store's thread busy, and a new changefeed would wait for it.
Each write still has its own revision and guards, and a guard that fails does not affect other writes. If the
commit itself fails, none of the writes is stored, and every caller gets the error.

A write may have patience: it waits for others before a commit begins for it. It goes with the next commit,
whatever that is for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import Executor
from math import inf
from typing import Final

from tidegate.control.metadata import GuardedWrites, MetadataStore, WriteResult

AT_ONCE: Final = 256
"""The greatest number of transactions in one commit."""


class Commits:
    """The queue of writes. Lives in one asyncio loop."""

    def __init__(self, metadata: MetadataStore, disk: Executor) -> None:
        """`disk`: the metadata store's thread."""
        self._metadata, self._disk = metadata, disk
        self._waiting: list[tuple[GuardedWrites, asyncio.Future[WriteResult]]] = []
        self._work: asyncio.Task[None] | None = None
        self._due = inf
        """When the next commit must begin, in the loop's time."""
        self._is_due_sooner = asyncio.Event()

    async def transact(self, asked: GuardedWrites, patience_s: float = 0.0) -> WriteResult:
        """As `MetadataStore.transact`. A call that is cancelled while it waits writes nothing.

        `patience_s`: for how long it may wait for others before its commit begins.
        """
        loop = asyncio.get_running_loop()
        answer, due = loop.create_future(), loop.time() + patience_s
        self._waiting.append((asked, answer))
        if due < self._due:
            self._due = due
            self._is_due_sooner.set()
        # At most one task: what arrives during its commit waits for the next one.
        if self._work is None:
            self._work = asyncio.create_task(self._run(), name="commits")
        outcome: WriteResult = await answer
        return outcome

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._wait_until_due()
                if batch := self._next():
                    await self._commit(batch)
        finally:
            # Also after an error: the next write begins a new task.
            self._work = None

    async def _wait_until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while (rest_s := self._due - loop.time()) > 0:
            self._is_due_sooner.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._is_due_sooner.wait()

    def _next(self) -> list[tuple[GuardedWrites, asyncio.Future[WriteResult]]]:
        # Skip cancelled writes: the changefeed they belong to may have been deleted by now.
        wanted = [one for one in self._waiting if not one[1].done()]
        self._waiting = wanted[AT_ONCE:]
        # Those that are left have waited for a whole commit, so the next one begins at once.
        self._due = -inf if self._waiting else inf
        return wanted[:AT_ONCE]

    async def _commit(self, batch: Sequence[tuple[GuardedWrites, asyncio.Future[WriteResult]]]) -> None:
        loop = asyncio.get_running_loop()
        asked = [one for one, _ in batch]
        answers = [answer for _, answer in batch]
        try:
            outcomes = await loop.run_in_executor(self._disk, self._metadata.transact_all, asked)
        except asyncio.CancelledError:
            for answer in answers:
                # Whether the commit happened is unknown, so no caller may take it for a failure.
                answer.cancel()
            raise
        except Exception as error:
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
            return
        for answer, outcome in zip(answers, outcomes, strict=True):
            if not answer.done():
                answer.set_result(outcome)
