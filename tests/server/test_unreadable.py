"""A changefeed that this version cannot read: it is set aside with its reason, and the others run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.server.test_capture import Running, bank, wait_for, work
from tests.server.test_gc_safepoint import Watched, service_id, watched

from tidegate.control.metadata import FeedId, Put, feed_key
from tidegate.errors import InvalidInput
from tidegate.kvclient.pd import PdClient
from tidegate.server.changefeeds.unreadable import NOT_KNOWN, UnreadableFeed
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

__all__ = ["bank", "watched"]

ONE, TWO = FeedId("default", "one"), FeedId("default", "two")
WRONG = InvalidInput("No such option.", where="tidegate.warp")


def found(info: Any, status: Any = None) -> UnreadableFeed:
    def raw(value: Any) -> bytes:
        return value if isinstance(value, bytes) else json.dumps(value).encode()

    return UnreadableFeed.of(ONE, raw(info), None if status is None else raw(status), WRONG)


@pytest.mark.parametrize(
    ("info", "status", "checkpoint", "scope"),
    [
        ({"start_ts": 50, "config": {"tidegate": {"keyspace_id": 4}}}, {"checkpoint_ts": 70}, 70, 4),
        ({"start_ts": 50, "config": {}}, b"{", 50, None),
        (b"{", {"checkpoint_ts": 70}, 70, None),
        ({"start_ts": "50", "config": 7}, None, NOT_KNOWN, None),
        ([], {"checkpoint_ts": -1}, NOT_KNOWN, None),
    ],
)
def test_what_cannot_be_known_of_it_is_held_to_be_the_worst(
    info: Any, status: Any, checkpoint: int, scope: int | None
) -> None:
    one = found(info, status)
    assert (one.checkpoint, one.scope) == (checkpoint, scope)
    assert one.is_held(10**15, 1)
    assert "No such option" in str(one.refused())
    assert "tidegate.warp" in str(one.refused())


def test_its_history_is_released_as_that_of_one_that_can_be_read() -> None:
    stopped = {"start_ts": 50, "state": "stopped", "ended_ms": 1000}
    assert found(stopped).is_held(61_000, 60)
    assert not found(stopped).is_held(61_001, 60)
    assert found(stopped | {"state": "warped"}).is_held(61_001, 60)
    assert not found(stopped | {"state": "finished"}).is_held(1000, 60)


@pytest.mark.integration
def test_one_that_cannot_be_read_ends_no_capture_and_keeps_its_history(
    watched: Watched,
    upstream: EmbeddedUpstream,
    pd: PdClient,
    bank: BankWorkload,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (
        ("control.gc.REFRESH_S", 0),
        ("server.changefeeds.housekeeping.HOUSEKEEPING_S", 0.1),
    ):
        monkeypatch.setattr(f"tidegate.{name}", seconds)
    for name, seconds in (("catalogue.catalogues.SAVE_REST", 1), ("catalogue.catalogues.RENAME_S", 0.1)):
        monkeypatch.setattr(f"tidegate.server.{name}", seconds)  # what PD holds follows them
    running = Running(upstream.pd_addr, tmp_path / "data", tmp_path / "out")
    try:
        for name in ("one", "two"):
            running.create(name, start_ts=pd.tso())
        running.wait_checkpoint("one", pd.tso())
        running.call("POST", "/changefeeds/one/pause")
        checkpoint = running.feed("one")["checkpoint_ts"]
        metadata, cluster = running.capture.node.metadata, running.capture.cluster
        stored = metadata.get(feed_key(cluster, ONE, "info"))
        assert stored is not None
        info = json.loads(stored.value)
        info["config"]["tidegate"]["warp"] = 9
        metadata.transact([], [Put(stored.key, json.dumps(info).encode())])
        running.stop()
        running = Running(upstream.pd_addr, tmp_path / "data", tmp_path / "out")
        work(bank, 60)
        running.wait_checkpoint("two", pd.tso())

        items = {one["id"]: one for one in running.call("GET", "/changefeeds")["items"]}
        assert {name: one["state"] for name, one in items.items()} == {"one": "unreadable", "two": "normal"}
        assert items["one"]["checkpoint_tso"] == checkpoint
        lags = {name: one["tidegate"]["checkpoint_lag_ms"] for name, one in items.items()}
        assert lags["one"] > lags["two"] >= 0
        assert running.feed("two")["tidegate"]["checkpoint_lag_ms"] >= 0
        assert "warp" in items["one"]["error"]["message"]
        for method, path in (("GET", ""), ("POST", "/resume"), ("PUT", "")):
            answer = running.call(method, f"/changefeeds/one{path}", {} if method != "GET" else None)
            assert (answer["http"], answer["error_code"]) == (400, "CDC:ErrChangefeedUnreadable")
        assert running.create("one")["error_code"] == "CDC:ErrChangeFeedAlreadyExists"

        held = service_id(running)
        moved = pd.tso()
        running.wait_checkpoint("two", moved)
        assert watched.held()[held] < checkpoint, "nothing that it needs is released"
        assert running.call("DELETE", "/changefeeds/one")["http"] == 200
        wait_for(lambda: watched.held()[held] >= moved, "its history to be released")
        assert running.create("one")["http"] == 200
    finally:
        running.stop()
