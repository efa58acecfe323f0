"""Upstream keeps the history that feeds need: from before a region is registered until it is delivered."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.server.test_capture import Running, bank, capture, wait_for, work

from tidegate.control.gc import service_id as service_of
from tidegate.control.messages import FromProcessor, Sync
from tidegate.errors import Retryable
from tidegate.kvclient.pd import PdClient
from tidegate.server.changefeeds.housekeeping import Housekeeping
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration
__all__ = ["bank", "capture"]


@pytest.fixture(autouse=True)
def catalogues_are_saved_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """PD's holds follow the saved catalogues."""
    monkeypatch.setattr("tidegate.server.processor.reader_floor.FLOOR_S", 0.1)
    for name, seconds in (("SAVE_REST", 1), ("RENAME_S", 0.1)):
        monkeypatch.setattr(f"tidegate.server.catalogue.catalogues.{name}", seconds)


class Watched:
    """An upstream that notes what PD holds for us at each registration of a region."""

    def __init__(self, upstream: EmbeddedUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
        self._upstream = upstream
        self.registrations: list[dict[str, int]] = []
        monkeypatch.setattr(upstream.faults, "capture_error", self._record)

    def _record(self, region_id: int) -> Any:
        self.registrations.append(self.held())

    def held(self) -> dict[str, int]:
        """Safepoints by service, but the collector's own."""
        services = self._upstream._safe_points.services(self._upstream.tso.present())
        return {each.service_id: each.safe_point for each in services if each.service_id != "gc_worker"}


def service_id(running: Running) -> str:
    return service_of(running.capture.cluster, running.capture.node.identity)


@pytest.fixture
def watched(upstream: EmbeddedUpstream, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(upstream, monkeypatch)


def test_history_is_held_until_it_is_delivered_and_then_released(
    watched: Watched,
    bank: BankWorkload,
    upstream: EmbeddedUpstream,
    pd: PdClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hold starts before the first registration."""
    running = Running(upstream.pd_addr, tmp_path / "capture", tmp_path / "out")
    ours = service_id(running)
    try:
        start = pd.tso()
        patient = {"ignore_ineligible_table": True, "tidegate": {"stall_timeout": "1h"}}
        running.create("one", start_ts=start, replica_config=patient)
        assert watched.held() == {ours: start - 1}, (
            "the hold while it was created has given way to the lasting one"
        )
        monkeypatch.setattr("tidegate.control.gc.REFRESH_S", 0.0)
        monkeypatch.setattr("tidegate.server.changefeeds.housekeeping.HOUSEKEEPING_S", 0.1)
        work(bank, 50)
        running.wait_checkpoint("one", pd.tso())
        assert watched.registrations
        assert min(watched.registrations[0].values()) == start - 1
        assert all(watched.registrations), "at every moment something is held"

        os.kill(running.pipeline_pid("one"), signal.SIGSTOP)
        work(bank, 50)
        beyond = pd.tso()
        wait_for(
            lambda: running.feed("one")["resolved_ts"] > beyond, "a resolved ts beyond what is delivered"
        )
        wait_for(
            lambda: watched.held()[ours] == running.feed("one")["checkpoint_ts"] - 1,
            "the hold at the checkpoint",
        )
        assert running.feed("one")["checkpoint_ts"] < beyond
        os.kill(running.pipeline_pid("one"), signal.SIGCONT)
        running.wait_checkpoint("one", beyond)
        wait_for(lambda: watched.held()[ours] >= beyond, "the hold to follow the checkpoint")
        feed = next(iter(running.capture.reactor.feeds.values()))
        monkeypatch.setattr("tidegate.control.owner.PERSIST_S", 1e9)
        running.wait_checkpoint("one", pd.tso())
        running.wait_checkpoint("one", pd.tso())
        assert feed.record.persisted < feed.replication.checkpoint, (
            "delivered, but a restart would begin from further back"
        )
        wait_for(lambda: watched.held()[ours] == feed.record.persisted - 1, "the hold at what is persisted")

        assert running.call("POST", "/changefeeds/one/pause")["http"] == 200
        # A pause stores the checkpoint, which may lie above the last catalogue that was saved.
        wait_for(
            lambda: watched.held()[ours] == min(feed.record.needs) - 1, "the hold of a feed that is paused"
        )
        monkeypatch.setattr("tidegate.control.gc.REFRESH_S", 60.0)
        assert running.call("DELETE", "/changefeeds/one")["http"] == 200
        assert watched.held() == {}
    finally:
        running.stop()


def test_history_stays_until_the_processor_here_has_reported(
    watched: Watched, bank: BankWorkload, capture: Running, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner reads no object of a processor, on one capture either: without a Sync it releases nothing."""
    monkeypatch.setattr("tidegate.control.gc.REFRESH_S", 0.0)
    monkeypatch.setattr("tidegate.server.changefeeds.housekeeping.HOUSEKEEPING_S", 0.1)
    node, ours = capture.capture.node, service_id(capture)
    assert capture.create("one")["http"] == 200
    work(bank, 50)
    capture.wait_checkpoint("one", pd.tso())
    (feed,) = capture.capture.reactor.feeds.values()
    to_owner = node.router.to_owner

    def without_sync(message: FromProcessor) -> None:
        if not isinstance(message, Sync):
            to_owner(message)

    with monkeypatch.context() as silent:
        silent.setattr(node.router, "to_owner", without_sync)
        work(bank, 50)
        beyond = pd.tso()
        wait_for(lambda: feed.record.persisted >= beyond, "the stored checkpoint")
        said = feed.replication.peers[node.capture].needs
        assert said < beyond
        wait_for(lambda: watched.held()[ours] == said - 1, "the hold at what it has reported")
        housekeeping = capture.capture.reactor.housekeeping
        for _ in range(3):
            capture._loop.call_soon_threadsafe(housekeeping.wake)
            time.sleep(0.2)
        assert watched.held()[ours] == said - 1
    wait_for(lambda: watched.held()[ours] >= beyond, "the hold to follow the report")


def test_a_hold_that_pd_does_not_take_over_is_not_released(
    watched: Watched, bank: BankWorkload, capture: Running, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the temporary one and the lasting one there is no moment without."""
    client, ours, refused = capture.capture.node.pd, service_id(capture), list[int]()
    answers = threading.Event()
    update = client.update_service_gc_safepoint

    def away(service: str, ttl_s: int, safe_point: int) -> int:
        if service == ours and not answers.is_set():
            refused.append(safe_point)
            raise Retryable("PD does not answer.")
        return update(service, ttl_s, safe_point)

    monkeypatch.setattr(client, "update_service_gc_safepoint", away)
    start = pd.tso()
    assert capture.create("one", start_ts=start)["http"] == 200
    assert refused[0] == start - 1
    assert watched.held() == {f"{ours}-creating-default_one": start - 1}
    answers.set()
    wait_for(lambda: ours in watched.held(), "the lasting hold")


def test_a_start_after_the_hold_expired_registers_nothing_and_gives_advice(
    watched: Watched,
    bank: BankWorkload,
    upstream: EmbeddedUpstream,
    pd: PdClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A feed that continued where its history is gone would miss deletes unnoticed."""
    running = Running(upstream.pd_addr, tmp_path / "capture", tmp_path / "out")
    try:
        running.create("one")
        running.wait_checkpoint("one", pd.tso())
        running.stop()
        assert list(watched.held()) == [service_id(running)], "a stop gives nothing back"
        pd.update_service_gc_safepoint(service_id(running), 0, 0)
        gone = pd.tso()
        pd.update_service_gc_safepoint("gc_worker", 1 << 40, gone)
        watched.registrations.clear()
        monkeypatch.setattr("tidegate.server.changefeeds.housekeeping.HOUSEKEEPING_S", 60.0)
        running = Running(upstream.pd_addr, running.data_dir, running.out)
        message = running.wait_state("one", "failed")["error"]["message"]
        assert f"upstream's GC safepoint {gone} has passed the checkpoint" in message
        assert "remove the changefeed and create it again" in message
        assert watched.registrations == []
    finally:
        running.stop()


def test_a_feed_whose_history_is_gone_does_not_cost_the_others_theirs(
    watched: Watched,
    bank: BankWorkload,
    upstream: EmbeddedUpstream,
    pd: PdClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PD holds what is asked for all feeds together, or nothing."""
    running = Running(upstream.pd_addr, tmp_path / "capture", tmp_path / "out")
    ours = service_id(running)
    try:
        running.create("lost")
        running.wait_checkpoint("lost", pd.tso())
        assert running.call("POST", "/changefeeds/lost/pause")["http"] == 200
        gone = pd.tso()

        def collected() -> bool:
            pd.update_service_gc_safepoint(ours, 0, 0)
            return pd.update_service_gc_safepoint("gc_worker", 1 << 40, gone) >= gone

        wait_for(collected, "a safepoint beyond what the feed needs")
        assert running.create("kept", start_ts=gone + 1)["http"] == 200
        words = running.feed("lost")["tidegate"]["waiting_for"]
        assert f"upstream's GC safepoint {gone} has passed ts" in words
        assert running.feed("lost")["state"] == "stopped", "the event store may have it"
        assert running.call("POST", "/changefeeds/lost/resume", {})["http"] == 200
        assert "ErrSnapshotLostByGC" in running.wait_state("lost", "failed")["error"]["message"]
        wait_for(lambda: watched.held().get(ours, 0) >= gone, "the hold of the other feed")
        monkeypatch.setattr("tidegate.control.gc.REFRESH_S", 0.0)
        work(bank, 50)
        beyond = pd.tso()
        running.wait_checkpoint("kept", beyond)
        wait_for(lambda: watched.held()[ours] >= beyond, "the hold to follow its checkpoint")
    finally:
        running.stop()


def test_a_capture_whose_housekeeping_fails_ends_with_the_reason(
    upstream: EmbeddedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would continue and hold no history, unnoticed."""
    running = Running(upstream.pd_addr, tmp_path / "capture", tmp_path / "out")
    try:

        def defect(self: Housekeeping) -> None:
            raise ZeroDivisionError("a defect")

        monkeypatch.setattr(Housekeeping, "_measure", defect)
        wait_for(lambda: not running._thread.is_alive(), "the end of the capture")
        error = running.capture.lost.result()
        assert error.what == "the capture's housekeeping has failed"
        assert error.why == "ZeroDivisionError: a defect"
    finally:
        running.stop()
