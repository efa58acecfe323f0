"""Captures that share an etcd, in one process: what each says, holds, refuses and keeps apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.etcd.line import Line
from tests.server.test_capture import Running, bank, wait_for, work

from tidegate.api.forward import PASSED_ON
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.gc import service_id
from tidegate.control.metadata import FeedId
from tidegate.errors import InvalidInput, Retryable
from tidegate.server.captures.data_folder import check_mode
from tidegate.server.captures.membership import NAME_FILE, capture_name
from tidegate.server.changefeeds.new_feed import NewFeed, check_shared
from tidegate.server.changefeeds.reactor import Reactor
from tidegate.server.delivery.plan import FeedPlan, Paths
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration
__all__ = ["bank"]

Start = Callable[[str], Running]


@pytest.fixture
def start(upstream: EmbeddedUpstream, etcd: str, tmp_path: Path) -> Iterator[Start]:
    running: list[Running] = []

    def one(name: str) -> Running:
        running.append(Running(upstream.pd_addr, tmp_path / name, tmp_path / "out", etcd=etcd))
        return running[-1]

    yield one
    for each in running:
        each.stop()


def reached(running: Running) -> int:
    """The changefeed's checkpoint; 0 while no capture can say it."""
    found: int = running.feed("one").get("checkpoint_ts", 0)
    return found


def held(upstream: EmbeddedUpstream) -> set[str]:
    """Under which names PD holds history."""
    services = upstream._safe_points.services(upstream.tso.present())
    return {each.service_id for each in services if each.service_id != "gc_worker"}


@pytest.mark.slow
def test_the_next_owner_continues_and_holds_history_under_its_own_name(
    upstream: EmbeddedUpstream, start: Start, bank: BankWorkload
) -> None:
    first = start("a")
    assert first.create("one")["http"] == 200
    second = start("b")
    assert not second.capture.ready
    assert second.call("GET", "/changefeeds/one")["http"] == 200, "passed on to the owner"
    answer = httpx.get(
        f"http://{second.address}/api/v2/changefeeds/one",
        headers={PASSED_ON: "another"},
        trust_env=False,
        timeout=120,
    )
    assert answer.status_code == 503, "and once only"
    work(bank, 20)
    last = first.capture.pd.tso()
    wait_for(lambda: reached(first) >= last, "the first delivers")
    node = first.capture.node
    assert held(upstream) == {service_id(node.cluster, f"{node.identity}-{node.term}")}
    first.stop()
    wait_for(lambda: second.capture.ready, "the second is elected")
    work(bank, 20)
    last = second.capture.pd.tso()
    wait_for(lambda: reached(second) >= last, "the second delivers")
    node = second.capture.node
    name = service_id(node.cluster, f"{node.identity}-{node.term}")
    wait_for(lambda: held(upstream) == {name}, "the first's hold is gone")
    (there,) = second.call("GET", "/captures")["items"]
    assert (there["is_owner"], there["address"]) == (True, second.address)


@pytest.mark.parametrize("lacks", [{"here": True}, {"fenced_by": ""}, {}])
def test_a_sink_that_another_capture_could_not_take_over_is_refused(lacks: dict[str, Any]) -> None:
    uri = parse_sink_uri("kafka://127.0.0.1:1/t?protocol=open-protocol")
    new = NewFeed(FeedId("default", "one"), uri, merge_config({}, uri), 0, 0)
    sink = FeedPlan.sink_of(1, new.feed, uri, new.config, Paths(Path("d"), Path("s"))).describe()
    if lacks:
        with pytest.raises(InvalidInput, match="cannot have this changefeed"):
            check_shared(new, replace(sink, **lacks))
    else:
        check_shared(new, sink)


def test_a_reader_is_refused(start: Start) -> None:
    one = start("a")
    reader = one.call(
        "POST",
        "/readers",
        {"changefeed_id": "r", "tables": ["bank.accounts"], "rows": "typed", "start_ts": 0},
    )
    assert reader["http"] == 400, reader
    assert "disk of one capture" in reader["error_msg"]
    assert one.call("GET", "/changefeeds")["total"] == 0


def test_etcd_that_goes_away_while_a_capture_takes_over_is_waited_for(
    upstream: EmbeddedUpstream, etcd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all that stand by would end, one after the other, in one outage."""
    monkeypatch.setattr("tidegate.etcd.client.PATIENCE_S", 0.5)
    line = Line(etcd)
    start, begun, failed = Reactor.start, [], threading.Event()

    async def start_in_the_dark(self: Reactor) -> None:
        begun.append(self)
        if len(begun) > 1:
            return await start(self)
        line.requests.clear()
        line.cut()
        try:
            await start(self)
        except Retryable:
            failed.set()
            raise

    monkeypatch.setattr(Reactor, "start", start_in_the_dark)

    def lights_up() -> None:
        failed.wait(240)
        line.requests.set()
        line.cut()

    threading.Thread(target=lights_up, daemon=True).start()
    running = Running(upstream.pd_addr, tmp_path / "a", tmp_path / "out", etcd=line.endpoint)
    try:
        wait_for(lambda: running.capture.ready, "it is elected again")
        assert failed.is_set()
        assert len(begun) >= 2
    finally:
        running.stop()
        line.close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_data_folder_is_used_in_one_way(tmp_path: Path, shared: bool) -> None:
    """Its changefeeds would be gone, or run twice."""
    paths = Paths(tmp_path, tmp_path / "events")
    check_mode(paths, shared=shared)
    if shared:
        paths.metadata.write_bytes(b"")
    else:
        capture_name(tmp_path)
    with pytest.raises(InvalidInput, match="used in another way"):
        check_mode(paths, shared=shared)
    check_mode(paths, shared=not shared)


def test_a_capture_keeps_its_name(tmp_path: Path) -> None:
    assert capture_name(tmp_path) == capture_name(tmp_path)
    (tmp_path / NAME_FILE).write_text("../../another")
    with pytest.raises(InvalidInput, match="name is damaged"):
        capture_name(tmp_path)


def test_a_capture_cut_off_from_etcd_stops_and_resumes_once_etcd_answers(
    upstream: EmbeddedUpstream, etcd: str, bank: BankWorkload, tmp_path: Path
) -> None:
    line = Line(etcd)
    running = Running(upstream.pd_addr, tmp_path / "a", tmp_path / "out", etcd=line.endpoint)
    try:
        assert running.create("one")["http"] == 200
        first = running.capture
        work(bank, 20)
        last = first.pd.tso()
        wait_for(lambda: reached(running) >= last, "it delivers")
        pid = first.node.application.pid
        line.requests.clear()
        line.cut()
        wait_for(lambda: not running.call("GET", "/status")["is_owner"], "its session is over")
        line.requests.set()
        line.cut()
        wait_for(lambda: running.capture is not first and running.capture.ready, "it is elected again")
        work(bank, 20)
        last = running.capture.pd.tso()
        wait_for(lambda: reached(running) >= last, "it delivers again")
        assert running.capture.node.owner_rev > first.node.owner_rev
        assert running.capture.node.application.pid == pid != 0, "the application has not ended"
    finally:
        running.stop()
        line.close()
