"""A changefeed's loop waits most of the time: its end must reach it there, whatever else happens then."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.server.feed import Feed


def test_a_loop_that_is_woken_and_cancelled_at_once_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.12 `asyncio.wait_for` loses such a cancellation: a pause of the feed never ended."""

    monkeypatch.setattr("tidegate.server.feed.TICK_S", 600)

    async def scenario() -> None:
        feed: Any = SimpleNamespace(_wake=asyncio.Event())
        loop = asyncio.create_task(Feed._pause(feed))
        await asyncio.sleep(0.005)
        feed._wake.set()
        loop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop

    asyncio.run(scenario())


def test_a_loop_that_is_not_woken_goes_on() -> None:
    feed: Any = SimpleNamespace(_wake=asyncio.Event())
    asyncio.run(Feed._pause(feed))
    assert not feed._wake.is_set()
