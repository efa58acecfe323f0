"""An owner counts the requests that may change what it owns: it resigns after the last of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.api.app import ForOwner
from tidegate.server.capture import Capture
from tidegate.server.captures.requests_in_flight import RequestsInFlight


@pytest.mark.parametrize(
    ("method", "path", "is_waited_for"),
    [
        ("POST", "/api/v2/changefeeds", True),
        ("DELETE", "/api/v2/changefeeds/one", True),
        ("PUT", "/api/v2/captures/a/drain", True),
        ("GET", "/api/v2/changefeeds", False),
        ("POST", "/api/v2/messages", False),
    ],
)
def test_requests_that_may_change_something_are_waited_for(
    method: str, path: str, is_waited_for: bool
) -> None:
    capture: Any = Capture.__new__(Capture)
    capture._ready, capture._requests = True, RequestsInFlight()
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}
    scope["app"] = SimpleNamespace(state=SimpleNamespace(capture=capture))

    async def run() -> None:
        arrived, answer = asyncio.Event(), asyncio.Event()

        async def answered_late(*_: object) -> None:
            arrived.set()
            await answer.wait()

        request = asyncio.create_task(ForOwner(answered_late)(scope, None, None))  # type: ignore[arg-type]
        await arrived.wait()
        ended = asyncio.create_task(capture._requests.ended())
        await asyncio.sleep(0.02)
        assert ended.done() is not is_waited_for
        answer.set()
        await request
        async with asyncio.timeout(60):
            await ended

    asyncio.run(run())
