"""The requests that are being answered, so that an owner can wait for their end before it resigns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class RequestsInFlight:
    """A count of requests. Lives in one asyncio loop."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """A request, from its first look at what this capture owns to its answer."""
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()

    async def ended(self) -> None:
        """Wait until none is in flight. The caller has made sure that no new one finds the owner."""
        while self._count:
            await self._none.wait()
