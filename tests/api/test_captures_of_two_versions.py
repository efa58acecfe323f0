"""Captures of two versions: the list shows both, a log says why one gets nothing, newer forms are refused."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from tests.api.test_list_of_changefeeds import capture_with
from tidegate import __version__
from tidegate.api import captures, messages
from tidegate.control.messages import Announce, Header, Sync, to_json
from tidegate.errors import InvalidInput
from tidegate.server.captures.membership import CaptureInfo
from tidegate.server.captures.message_client import CLUSTER, SENDER
from tidegate.server.captures.message_router import Box, MessageRouter

HEADER = Header(7, "default/f0", "i", 3, "b", 1, 1)


def posted(capture: Any, body: list[Any]) -> Request:
    app = Starlette()
    app.state.capture = capture
    headers = [(CLUSTER.encode(), str(capture.cluster).encode()), (SENDER.encode(), b"b")]
    scope = {"type": "http", "method": "POST", "headers": headers, "query_string": b"", "app": app}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    return Request(scope, receive)


@pytest.fixture
def capture(tmp_path: Path) -> Any:
    async def made() -> Any:  # parts of it want a loop
        return capture_with(1, tmp_path, Counter())

    return asyncio.run(made())


def test_the_list_of_captures_has_their_versions(capture: Any) -> None:
    there = [CaptureInfo("1", "a", "x:1", __version__), CaptureInfo("2", "b", "x:2", "99.0.0")]
    capture.session = SimpleNamespace(membership=SimpleNamespace(captures=lambda: there))
    capture.reactor.placement = SimpleNamespace(tables_of=lambda name: 0, left_on=lambda name: 0)
    answer = asyncio.run(captures.show_all(posted(capture, [])))
    items = json.loads(bytes(answer.body))["items"]
    shown = [(one["tidegate"]["name"], one["tidegate"]["version"]) for one in items]
    assert shown == [("a", __version__), ("b", "99.0.0")]


def router() -> tuple[MessageRouter, Box]:
    found = MessageRouter(lambda changefeed: None, "b", lambda capture, message: None)
    box = found.processors["default/f0"] = found.owners["default/f0"] = Box(lambda: None)
    return found, box


def test_a_message_of_a_newer_form_is_refused_in_words_and_has_no_effect(capture: Any) -> None:
    found, box = router()
    capture.takes_messages = True
    capture.session, capture.node.router = SimpleNamespace(membership=True), found
    known = to_json(Sync(HEADER, "99.0.0", 4, 0, (), ()))
    newer = [known | {"temperature": 4}, known | {"type": "forecast"}, {**known, "cores": "four"}]
    for message in newer:
        with pytest.raises(InvalidInput, match="not a message of a capture") as refused:
            asyncio.run(messages.take(posted(capture, [message])))
        assert "same version of Tidegate on all captures" in refused.value.render()
        assert box.is_empty
    asyncio.run(messages.take(posted(capture, [known])))
    assert len(box.take()) == 1, "one whose form is the same is taken, whatever its version"


def test_a_capture_logs_once_that_its_owner_has_another_version(caplog: pytest.LogCaptureFixture) -> None:
    found, box = router()
    for version in (__version__, "99.0.0", "99.0.0", __version__):
        found.deliver("a", json.dumps(to_json(Announce(HEADER, version))).encode())
    assert len(box.take()) == 4, "it answers, so that the owner knows its version"
    lines = [record for record in caplog.records if "gets no ranges" in record.getMessage()]
    assert len(lines) == 1
