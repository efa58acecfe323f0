"""The time of a capture between start and end: what it waits for, and why it cannot continue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from tidegate.errors import Retryable, TidegateError

WAITS_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Pauses in seconds between attempts at the start; the last one repeats."""

T = TypeVar("T")


class Lifetime:
    """Used only in the capture's asyncio loop. Only the first reason to end counts."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[TidegateError] = asyncio.get_running_loop().create_future()
        """Resolves with the reason when the capture cannot continue."""
        self.waiting_for = ""
        """Describes what the start waits for; empty when the start is over."""

    def lose(self, error: TidegateError) -> None:
        """End the capture for this reason, unless there is an earlier one."""
        if not self.lost.done():
            self.lost.set_result(error)

    def raise_if_lost(self) -> None:
        """Raises the reason if the capture cannot continue."""
        if self.lost.done():
            raise self.lost.result()

    @contextmanager
    def wait(self, what: str) -> Iterator[None]:
        """Say during the `with` block what the start waits for, in words."""
        self.waiting_for = what
        try:
            yield
        finally:
            self.waiting_for = ""

    async def until(
        self,
        work: Callable[[], T],
        what: str,
        on_wait: Callable[[Retryable], None],
        pause_s: float = WAITS_S[-1],
    ) -> T:
        """Repeat `work`, which blocks, until it does not raise Retryable, however long that takes.

        `what`: what it waits for, in words. `on_wait` is called with the first Retryable. `pause_s`: the
        longest pause between two attempts. Raises other errors of `work`, and the reason if the capture is
        lost meanwhile.
        """
        failures = 0
        while True:
            self.raise_if_lost()
            try:
                found = await asyncio.to_thread(work)
            except Retryable as error:
                if failures == 0:
                    self.waiting_for = what
                    on_wait(error)
                await asyncio.sleep(min(pause_s, WAITS_S[min(failures, len(WAITS_S) - 1)]))
                failures += 1
                continue
            self.waiting_for = ""
            return found
