"""Files of a capture that a loss of power has cut: read again, rewritten, and nothing is lost or doubled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.server.test_capture import Running, bank, capture, check_order, wait_for, work

from tidegate.errors import Fenced, Retryable
from tidegate.kvclient.pd import PdClient
from tidegate.mounter import bases
from tidegate.pipeline.exchange.feed import LOAD_FILE, Bounds, FeedSpec
from tidegate.server.catalogue.schema_tracker import table_task
from tidegate.server.delivery.initial_load import plan_load
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration
__all__ = ["bank", "capture"]


def cut(path: Path, share: float) -> None:
    """Leave the first part of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def test_a_feed_continues_after_its_files_were_cut(
    upstream: EmbeddedUpstream, bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    start_ts, early_ddls = pd.tso(), bank.stats.ddls
    capture.create("one", start_ts=start_ts)
    work(bank, 200)
    capture.wait_checkpoint("one", pd.tso())
    capture.stop()
    folder = capture.data_dir / "feeds" / "default" / "one"
    (spec,) = folder.glob("spec-*.json")
    for base in bases.folder_of(capture.capture.node.paths.store).iterdir():
        cut(base, 0.5)
    for path, share in ((folder / "bounds.json", 0.9), (folder / "bound.json", 0.5), (spec, 0.0)):
        cut(path, share)
    work(bank, 200)
    running = Running(upstream.pd_addr, capture.data_dir, capture.out)
    try:
        running.wait_checkpoint("one", pd.tso())
        running.wait_state("one", "normal")
        end = pd.tso()
        wait_for(lambda: max(x.get("resolved", 0) for x in running.lines("one")) >= end, "Resolved")
        rows, ddls = check_order(running.lines("one"))
        assert ddls == bank.stats.ddls - early_ddls
        running.create("two", start_ts=start_ts, target_ts=end)
        running.wait_state("two", "finished")
        assert check_order(running.lines("two")) == (rows, ddls)
    finally:
        running.stop()


def test_a_new_feed_has_no_file_of_an_earlier_feed_of_its_name(capture: Running) -> None:
    folder = capture.data_dir / "feeds" / "default" / "one"
    folder.mkdir(parents=True)
    left = folder / "quarantine.jsonl"
    left.write_text("{}")
    capture.create("one")
    assert not left.exists()


def test_a_plan_of_an_initial_load_that_was_cut_is_made_again(pd: PdClient, tmp_path: Path) -> None:
    tasks = [table_task(number, 5) for number in (101, 102)]
    plan = plan_load(pd, 5, tasks, tmp_path)
    whole = (tmp_path / LOAD_FILE).read_bytes()
    for end in range(0, len(whole), 7):
        (tmp_path / LOAD_FILE).write_bytes(whole[:end])
        assert plan_load(pd, 5, tasks, tmp_path) == plan
        assert (tmp_path / LOAD_FILE).read_bytes() == whole


def test_a_pipeline_retries_after_a_torn_file_but_not_after_a_missing_spec(
    tmp_path: Path,
) -> None:
    spec, bounds = tmp_path / "spec-1-f00d.json", tmp_path / "bounds.json"
    spec.write_text(json.dumps({"cluster_id": 1})[:-3])
    bounds.write_text('{"bound": 5, "spa')
    for load in (lambda: FeedSpec.load(spec), lambda: Bounds.load(bounds)):
        with pytest.raises(Retryable, match="the pipeline's orders file is damaged") as caught:
            load()
        assert str(tmp_path) in caught.value.where
    spec.write_text('{"cluster_id": 1}')
    bounds.write_text('{"bound": 5, "spans": {"a": {}}}')
    for load, member in (
        (lambda: FeedSpec.load(spec), "namespace"),
        (lambda: Bounds.load(bounds), "start_ts"),
    ):
        with pytest.raises(Retryable, match="the pipeline's orders file is damaged") as caught:
            load()
        assert member in caught.value.why
    spec.unlink()
    with pytest.raises(Fenced, match="has been replaced"):
        FeedSpec.load(spec)


def test_a_pause_that_cannot_be_stored_is_refused_and_the_feed_runs(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    capture.create("one")
    work(bank, 50)
    capture.wait_checkpoint("one", pd.tso())
    database = capture.capture.node.metadata._db  # type: ignore[attr-defined]
    database.execute("PRAGMA query_only = ON")
    refused = capture.call("POST", "/changefeeds/one/pause")
    assert refused["http"] != 200
    assert "metadata store cannot be used" in refused["error_msg"]
    assert capture.feed("one")["state"] in ("normal", "warning"), "what is shown is what a restart would find"
    database.execute("PRAGMA query_only = OFF")
    work(bank, 50)
    capture.wait_checkpoint("one", pd.tso())
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    assert capture.feed("one")["state"] == "stopped"
