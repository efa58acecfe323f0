"""An owner resigns only after the requests of its term, and tells late ones that the session is lost."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.errors import Retryable, TidegateError
from tidegate.server import tenure as module
from tidegate.server.captures.membership import Resigned
from tidegate.server.captures.requests_in_flight import RequestsInFlight
from tidegate.server.tenure import Tenure


class World:
    """A tenure whose reactor and candidacy write down what is asked of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.lost: list[TidegateError] = []
        self.requests = RequestsInFlight()
        self.end_s = 0.0
        self.step_down_fails = False
        reactor = SimpleNamespace(start=self._start, stop=self._stop)
        monkeypatch.setattr(Tenure, "_new", lambda _: (reactor, None))
        monkeypatch.setattr(Tenure, "begin", self._start)
        node = SimpleNamespace(
            capture="a", address="here", owner_rev=7, steps_down=False, lost=self.lost.append,
            forget_ownership=lambda: self.said.append("forget"),
        )  # fmt: skip
        registry = SimpleNamespace(stand_by=lambda: self.said.append("stand by"))
        candidacy: Any = SimpleNamespace(step_down=self._step_down)
        self.node: Any = node
        self.tenure = Tenure(self.node, registry, candidacy, elsewhere=False)  # type: ignore[arg-type]

    async def _start(self, *_: object) -> None:
        self.said.append("begin")

    async def _stop(self) -> None:
        self.said.append("end")
        await asyncio.sleep(self.end_s)
        self.said.append("ended")

    async def _step_down(self, revision: int) -> None:
        self.said.append(f"delete the key of {revision}")
        if self.step_down_fails:
            raise Retryable("etcd does not answer")

    async def resign(self) -> None:
        await self.tenure.step_down(self.requests.ended)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_the_key_is_deleted_after_the_requests_of_this_term(world: World) -> None:
    async def run() -> None:
        with world.requests.one():
            resigning = asyncio.create_task(world.resign())
            await asyncio.sleep(0.05)
            assert (world.said, world.node.steps_down) == ([], False)
            world.said.append("answer")
        await resigning

    asyncio.run(run())
    assert world.said == ["answer", "end", "ended", "delete the key of 7", "forget", "stand by", "begin"]
    assert world.lost == []


@pytest.mark.parametrize("late", ["request", "work"])
def test_what_does_not_end_in_time_loses_the_session_first(
    world: World, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """`Node.write` refuses everything once the capture is lost."""
    monkeypatch.setattr(module, "STEP_DOWN_S", 0.02)
    world.end_s = 0.2 if late == "work" else 0.0

    async def run() -> None:
        with world.requests.one() if late == "request" else contextlib.nullcontext():
            with pytest.raises(Resigned):
                await world.resign()
            assert [type(error) for error in world.lost] == [Resigned]
            assert "delete the key of 7" not in world.said
        await asyncio.sleep(0.3)
        assert world.said[-1] == "ended", "the end itself is not interrupted"

    asyncio.run(run())


def test_an_etcd_that_does_not_answer_ends_the_session(world: World) -> None:
    world.step_down_fails = True
    with pytest.raises(Retryable):
        asyncio.run(world.resign())
    assert [error.what for error in world.lost] == ["etcd does not answer"]
    assert "begin" not in world.said
