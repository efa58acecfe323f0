"""History that a feed reads again after a pause is held at upstream; collected history is never read."""

from __future__ import annotations

import os
import shutil
import signal
from typing import Any

import pytest
from tests.server.test_capture import Running, bank, capture, wait_for, work
from tests.server.test_gc_safepoint import Watched, service_id, watched

from tidegate.control.metadata import FeedId
from tidegate.kvclient.pd import PdClient
from tidegate.mounter import bases
from tidegate.server.pulling.puller_process import store_dir
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration
__all__ = ["bank", "capture", "watched"]

ONE, TWO = FeedId("default", "one"), FeedId("default", "two")


def collect(upstream: EmbeddedUpstream, pd: PdClient) -> int:
    """Let upstream's GC take all that nobody holds; the safepoint."""
    reached = upstream._safe_points.update(pd.tso(), pd.tso())
    wait_for(lambda: upstream._collector.done >= reached, "the collector")
    return reached


def lose_store(running: Running) -> None:
    """As if the disk of the event store had been replaced."""
    puller = running.capture.pullers.processes["tidb"]
    os.kill(puller.pid, signal.SIGSTOP)
    shutil.rmtree(store_dir(running.data_dir, running.capture.cluster))
    os.kill(puller.pid, signal.SIGKILL)
    wait_for(lambda: running.capture.pullers.processes["tidb"].pid != puller.pid, "another puller")


def delivered(running: Running, name: str) -> set[Any]:
    lines = running.lines(name)
    rows = {(line["row"], line["key"], line["table"]) for line in lines if "row" in line}
    return rows | {line["ddl"] for line in lines if "ddl" in line}


@pytest.mark.parametrize("saved", [True, False], ids=["saved before the pause", "not saved"])
def test_ddl_delivered_before_a_pause_is_in_the_catalogue_after_it(
    watched: Watched,
    bank: BankWorkload,
    upstream: EmbeddedUpstream,
    capture: Running,
    pd: PdClient,
    monkeypatch: pytest.MonkeyPatch,
    saved: bool,
) -> None:
    """Neither GC nor a loss in the event store removes it."""
    monkeypatch.setattr("tidegate.control.gc.REFRESH_S", 0.0)
    monkeypatch.setattr("tidegate.server.changefeeds.housekeeping.HOUSEKEEPING_S", 0.1)
    monkeypatch.setattr("tidegate.server.catalogue.catalogues.SAVE_REST", 1)
    if not saved:

        def full(*given: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("tidegate.server.catalogue.catalogues.Catalogues._save", full)
    start = pd.tso()
    for name in ("one", "two"):
        assert capture.create(name, start_ts=start)["http"] == 200
    work(bank, 400)  # with DDL
    for name in ("one", "two"):
        capture.wait_checkpoint(name, pd.tso())
    feed = capture.capture.reactor.feeds[ONE]
    folder = bases.folder_of(capture.capture.node.paths.store)
    if saved:
        wait_for(lambda: bases.found(folder)[-1].since > start, "a base with the DDL in it")
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    base = bases.serving(bases.found(folder), feed.record.persisted)
    assert base is not None
    assert (base.since > start) is saved
    work(bank, 200)
    capture.wait_checkpoint("two", pd.tso())
    held = service_id(capture)
    wait_for(
        lambda: watched.held()[held] == min(feed.record.needs) - 1, "the hold of what the paused feed needs"
    )
    assert collect(upstream, pd) == min(feed.record.needs) - 1
    watched.registrations.clear()
    lose_store(capture)
    assert capture.call("POST", "/changefeeds/one/resume", {})["http"] == 200
    work(bank, 100)
    end = pd.tso()
    for name in ("one", "two"):
        capture.wait_checkpoint(name, end)
        assert capture.call("POST", f"/changefeeds/{name}/pause")["http"] == 200
    assert delivered(capture, "one") == delivered(capture, "two")
    assert capture.catalogue("one") == capture.catalogue("two")


def test_history_of_a_feed_stopped_beyond_gc_ttl_is_released_and_reported(
    watched: Watched,
    bank: BankWorkload,
    upstream: EmbeddedUpstream,
    capture: Running,
    pd: PdClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it is resumed before anything is collected it continues; later it reports what is gone."""
    monkeypatch.setattr("tidegate.control.gc.REFRESH_S", 0.0)
    monkeypatch.setattr("tidegate.server.changefeeds.housekeeping.HOUSEKEEPING_S", 0.1)
    node, ours = capture.capture.node, service_id(capture)
    assert capture.create("one")["http"] == 200
    work(bank, 60)
    capture.wait_checkpoint("one", pd.tso())
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    feed = capture.capture.reactor.feeds[ONE]
    wait_for(lambda: watched.held().get(ours) == min(feed.record.needs) - 1, "the hold of a stopped feed")
    assert feed.waits_for() == ""
    monkeypatch.setattr(node, "gc_ttl_s", 0)
    wait_for(lambda: ours not in watched.held(), "the release of upstream's history")
    words = capture.feed("one")["tidegate"]["waiting_for"]
    assert "for longer than gc-ttl (0 s), so nothing is held for it" in words
    assert capture.feed("one")["state"] == "stopped"

    work(bank, 60)
    assert capture.call("POST", "/changefeeds/one/resume", {})["http"] == 200
    capture.wait_checkpoint("one", pd.tso())
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    wait_for(lambda: ours not in watched.held(), "the release once more")
    work(bank, 60)
    gone = pd.tso()
    pd.update_service_gc_safepoint("gc_worker", 1 << 40, gone)
    collect(upstream, pd)
    watched.registrations.clear()
    assert capture.call("POST", "/changefeeds/one/resume", {})["http"] == 200
    message = capture.wait_state("one", "failed")["error"]["message"]
    assert "[CDC:ErrSnapshotLostByGC]upstream's GC safepoint" in message
    assert (
        f"has passed the checkpoint\n  where: changefeed default/one, checkpoint {feed.record.persisted}"
        in message
    )
    assert "the event store does not have it from there either" in message
    assert watched.registrations == [], "nothing is registered below the safepoint"
