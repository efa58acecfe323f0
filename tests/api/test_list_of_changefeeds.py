"""The list of changefeeds is answered from memory, so that 200 of them are listed at once."""

from __future__ import annotations

import asyncio
import builtins
import io
import json
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from tidegate.api import feed_json
from tidegate.api.changefeeds import show_all
from tidegate.clock import SystemClock
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.metadata import FeedId, FeedInfo, FeedStatus
from tidegate.server.capture import Capture, Options
from tidegate.server.changefeeds.feeds import Feeds
from tidegate.server.changefeeds.readers import Readers
from tidegate.server.delivery.plan import Paths
from tidegate.server.node import Node
from tidegate.server.owner.feed import Feed
from tidegate.server.pulling.spans import Captured

URI = "kafka://127.0.0.1:9092/t?protocol=open-protocol"


class Watched:
    """In the place of PD and the metadata store: counts each use, and answers nothing."""

    def __init__(self, name: str, uses: Counter[str]) -> None:
        self._name, self._uses = name, uses

    def __getattr__(self, call: str) -> Callable[..., None]:
        def used(*_: Any, **__: Any) -> None:
            self._uses[f"{self._name}.{call}"] += 1

        return used


class WatchedDisk(Executor):
    """In the place of the thread of the metadata store."""

    def __init__(self, uses: Counter[str]) -> None:
        self._uses = uses

    def submit(self, work: Any, /, *values: Any, **named: Any) -> Future[Any]:
        self._uses["disk"] += 1
        done: Future[Any] = Future()
        done.set_result(work(*values, **named))
        return done


def capture_with(feeds: int, folder: Path, uses: Counter[str], state: str = "normal") -> Capture:
    """A capture that is open and has this many changefeeds of a state, none of which runs."""
    nothing: Any = None
    outside: Any = {name: Watched(name, uses) for name in ("pd", "metadata", "application")}
    node = Node(
        cluster=7,
        address="",
        identity="",
        capture="a",
        epoch=1,
        owner_rev=1,
        paths=Paths(folder, folder / "events"),
        captured=lambda kv_mode: Captured(folder, nothing),
        clock=SystemClock(),
        disk=WatchedDisk(uses),
        open_sink=nothing,
        lost=lambda error: None,
        **outside,
    )
    config = merge_config({}, parse_sink_uri(URI)).to_json()
    capture = Capture(Options(pd="", data_dir=folder))
    reactor: Any = SimpleNamespace(feeds=Feeds(), node=node)
    for number in range(feeds):
        info = FeedInfo(URI, config, 5, 0, 1, state, f"i{number}")
        feed = FeedId("default", f"f{number}")
        reactor.feeds[feed] = Feed(node, feed, info, FeedStatus(5))
    tenure: Any = SimpleNamespace(reactor=reactor, readers=Readers(reactor))
    capture.node, capture.tenure = node, tenure
    capture._ready = True
    return capture


async def listed(feeds: int, folder: Path, uses: Counter[str]) -> dict[str, Any]:
    """The list of so many changefeeds. Counts what it uses, without the start of the capture."""
    app = Starlette()
    app.state.capture = capture_with(feeds, folder, uses)
    uses.clear()
    scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"state=all", "app": app}
    with pytest.MonkeyPatch.context() as watching:
        for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "listdir")):
            watching.setattr(module, name, _counted(name, getattr(module, name), uses))
        answer = await show_all(Request(scope))
    found: dict[str, Any] = json.loads(bytes(answer.body))
    return found


def _counted(name: str, function: Callable[..., Any], uses: Counter[str]) -> Callable[..., Any]:
    def counted(*values: Any, **named: Any) -> Any:
        uses[name] += 1
        return function(*values, **named)

    return counted


def test_a_further_changefeed_in_the_list_costs_no_call_and_no_file(tmp_path: Path) -> None:
    found = []
    for feeds in (1, 200):
        uses: Counter[str] = Counter()
        answer = asyncio.run(listed(feeds, tmp_path, uses))
        assert answer["total"] == len(answer["items"]) == feeds
        found.append(uses)
    assert found[0] == found[1], "as many for 200 changefeeds as for one"


async def shown(folder: Path, state: str) -> list[dict[str, Any]]:
    """One changefeed of a state, in the list and by itself."""
    app = Starlette()
    app.state.capture = capture_with(1, folder, Counter(), state)
    (feed,) = app.state.capture.tenure.reactor.feeds.values()
    scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "app": app}
    return [feed_json.brief(feed), feed_json.full(feed, Request(scope))]


@pytest.mark.parametrize("state", ["normal", "stopped", "finished"])
def test_only_a_finished_changefeed_has_no_lag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    for part in ("own", "task_status"):  # they need a capture that runs
        monkeypatch.setattr(feed_json, part, lambda *_: {})
    for answer in asyncio.run(shown(tmp_path, state)):
        assert answer["state"] == state
        assert (answer["tidegate"]["checkpoint_lag_ms"] is None) == (state == "finished")
