"""How a capture waits while it starts, and what ends the wait."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tidegate.errors import Fatal, InvalidInput, Retryable
from tidegate.server.captures import lifetime
from tidegate.server.captures.lifetime import Lifetime


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "WAITS_S", (0.0, 0.001))


def test_a_call_is_repeated_until_it_answers_and_the_wait_is_said_once() -> None:
    async def waited() -> None:
        life, said, seen = Lifetime(), list[str](), list[str]()

        def work() -> int:
            seen.append(life.waiting_for)
            if len(seen) < 4:
                raise Retryable(f"attempt {len(seen)}")
            return 7

        assert await life.until(work, "PD to answer", lambda error: said.append(error.what)) == 7
        assert seen == ["", "PD to answer", "PD to answer", "PD to answer"]
        assert said == ["attempt 1"]
        assert life.waiting_for == ""

    asyncio.run(waited())


def test_the_longest_pause_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "WAITS_S", (3600.0,))

    async def waited() -> None:
        attempts = iter((Retryable("etcd does not answer"), None))

        def work() -> None:
            if (error := next(attempts)) is not None:
                raise error

        async with asyncio.timeout(60):
            await Lifetime().until(work, "etcd to answer", lambda error: None, 0.001)

    asyncio.run(waited())


def test_an_error_that_does_not_pass_ends_the_wait() -> None:
    def work() -> None:
        raise InvalidInput("this is no PD")

    async def waited() -> None:
        with pytest.raises(InvalidInput, match="this is no PD"):
            await Lifetime().until(work, "PD to answer", lambda error: None)

    asyncio.run(waited())


def test_a_capture_that_is_lost_waits_no_longer_and_keeps_the_first_reason() -> None:
    async def waited() -> None:
        life, tried = Lifetime(), threading.Event()

        def work() -> None:
            tried.set()
            raise Retryable("etcd does not answer")

        waiting = asyncio.create_task(life.until(work, "etcd to answer", lambda error: None))
        assert await asyncio.to_thread(tried.wait, 10)
        life.lose(Fatal("the session has ended"))
        life.lose(Fatal("a later reason"))
        with pytest.raises(Fatal, match="the session has ended"):
            async with asyncio.timeout(10):
                await waiting
        assert life.lost.result().what == "the session has ended"

    asyncio.run(waited())
