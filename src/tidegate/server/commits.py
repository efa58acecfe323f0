"""Writes to the metadata store, of which those that come while one is under way become one commit.

    asked for --> waiting --the thread is free--> one commit of all that wait --> answers

Each changefeed stores its checkpoint twice a second, and each commit waits for the disk: a hundred of them
would keep the store's thread busy all the time, and a new one would wait for it. Each of the writes still has
a revision and guards of its own; a guard that fails concerns no other. If the commit itself fails, none of
them is stored, and each is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final

from tidegate.control.metadata import MetadataStore, Outcome, Transaction

AT_ONCE: Final = 256
"""Transactions in one commit."""


class Commits:
    """One asyncio loop."""

    def __init__(self, metadata: MetadataStore, disk: Executor) -> None:
        """`disk`: the metadata store's thread."""
        self._metadata, self._disk = metadata, disk
        self._waiting: list[tuple[Transaction, asyncio.Future[Outcome]]] = []
        self._work: asyncio.Task[None] | None = None

    async def transact(self, asked: Transaction) -> Outcome:
        """As `MetadataStore.transact`. Not begun if it is cancelled while it waits for its turn."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        if self._work is None:
            self._work = asyncio.create_task(self._run(), name="commits")
        outcome: Outcome = await answer
        return outcome

    async def _run(self) -> None:
        try:
            while batch := self._next():
                await self._commit(batch)
        finally:
            self._work = None

    def _next(self) -> list[tuple[Transaction, asyncio.Future[Outcome]]]:
        # Who was cancelled is gone: what it wanted to write may be deleted by now.
        wanted = [one for one in self._waiting if not one[1].done()]
        self._waiting = wanted[AT_ONCE:]
        return wanted[:AT_ONCE]

    async def _commit(self, batch: Sequence[tuple[Transaction, asyncio.Future[Outcome]]]) -> None:
        loop = asyncio.get_running_loop()
        asked = [one for one, _ in batch]
        answers = [answer for _, answer in batch]
        try:
            outcomes = await loop.run_in_executor(self._disk, self._metadata.transact_all, asked)
        except asyncio.CancelledError:
            for answer in answers:
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
