"""A process that hangs with work to do is named, killed and started again: real processes are stopped.

The pipeline and the owner's sink are stand-ins; tests/integration/test_hangs.py stops the real ones.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.server.stand_in_pipeline import FileSink
from tests.server.test_capture import Running, bank, check_order, wait_for, work
from tests.server.test_supervisor import runs

from tidegate.errors import Retryable
from tidegate.kvclient.pd import PdClient
from tidegate.server.delivery.plan import FeedPlan
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

__all__ = ["bank"]

pytestmark = pytest.mark.integration

SETTINGS = {"ignore_ineligible_table": True, "tidegate": {"stall_timeout": "2s", "start_timeout": "10s"}}


class BlockingSink(FileSink):
    """A sink whose opening or sending does not return, while there is a file that says so."""

    def __init__(self, path: Path, instance: str, released: threading.Event) -> None:
        self._flags, self._released = path, released
        self._block("opening")
        super().__init__(path, instance)

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        self._block("sending")
        super().send_resolved(ts, build_ms)

    def _block(self, what: str) -> None:
        if self._flags.with_suffix(f".{what}").exists():
            self._released.wait()
            raise Retryable("Released, after its successor was opened.")


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def capture(upstream: EmbeddedUpstream, tmp_path: Path, released: threading.Event) -> Iterator[Running]:
    def open_sink(plan: FeedPlan) -> FileSink:
        return BlockingSink(tmp_path / "out" / f"{plan.uri.topic}.jsonl", plan.instance, released)

    running = Running(
        upstream.pd_addr, tmp_path / "capture", tmp_path / "out", open_sink=open_sink, puller_timeout_s=2.0
    )
    yield running
    running.stop()


def wait_error(capture: Running, code: str, words: str) -> Any:
    """The error of a feed that shows `code` and these words, and is a warning then.

    A slow machine may let another process look as if it hung before: that is not the one.
    """

    def shown() -> Any:
        feed = capture.feed("one")
        error = feed["error"] or {"code": "", "message": ""}
        return (feed["state"], error["code"]) == ("warning", code) and words in error["message"] and error

    return wait_for(shown, f"a warning {code}: {words}")


def stopped(pid: Callable[[], int]) -> int:
    """SIGSTOP for the process of a role, and its pid."""
    while True:
        found = pid()
        with suppress(ProcessLookupError):  # it was taken for a hung one, and there is another
            os.kill(found, signal.SIGSTOP)
            return found


@pytest.mark.slow
def test_each_hung_part_is_named_and_the_feed_recovers_by_itself(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    start_ts, early_ddls = pd.tso(), bank.stats.ddls
    assert capture.create("one", start_ts=start_ts, replica_config=SETTINGS)["http"] == 200

    def recovers() -> None:
        work(bank, 200)
        capture.wait_checkpoint("one", pd.tso())
        capture.wait_state("one", "normal")

    recovers()
    pipeline = stopped(lambda: capture.pipeline_pid("one"))
    work(bank, 200)
    error = wait_error(capture, "CDC:ErrPipelineHung", f"({pipeline})")
    # Without the table's name if the table was dropped since, or if its schema is being read now.
    assert "waiting: rows of span" in error["message"]
    recovers()
    assert not runs(pipeline)

    puller = stopped(lambda: capture.capture.pullers.processes["tidb"].pid)
    work(bank, 200)
    wait_error(capture, "CDC:ErrPullerHung", f"({puller})")
    recovers()
    assert not runs(puller)

    blocked = [capture.out / "one.opening", capture.out / "one.sending"]
    for flag in blocked:
        flag.touch()
    wait_error(capture, "CDC:ErrSinkHung", "Resolved")
    # The next one hangs while it is opened.
    wait_error(capture, "CDC:ErrSinkHung", "its opening")
    for flag in blocked:
        flag.unlink()
    recovers()

    end = pd.tso()
    wait_for(lambda: max(x.get("resolved", 0) for x in capture.lines("one")) >= end, "Resolved")
    rows, ddls = check_order(capture.lines("one"))
    assert ddls == bank.stats.ddls - early_ddls
    again = {"replica_config": SETTINGS, "start_ts": start_ts, "target_ts": end}
    assert capture.create("two", **again)["http"] == 200
    capture.wait_state("two", "finished")
    assert check_order(capture.lines("two")) == (rows, ddls)
