"""A processor that lacks a DDL which its owner knows: its reports count for nothing, and the feed says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.server.test_capture import Running, bank, capture, check_order, wait_for, work

from tidegate.control.barrier import DdlBatch
from tidegate.kvclient.pd import PdClient
from tidegate.server.feed_ddl import FeedDdl
from tidegate.workload.bank import BankWorkload

__all__ = ["bank", "capture"]
pytestmark = pytest.mark.integration


class Forgetful(FeedDdl):
    """Loses its messages as long as `loses` holds."""

    loses = True

    def look(self, resolved: int, waiting: int) -> tuple[list[DdlBatch], int]:
        batches, known = super().look(resolved, waiting)
        return ([] if self.loses else batches), known


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Forgetful]]:
    monkeypatch.setattr("tidegate.server.processor.opening.FeedDdl", Forgetful)
    yield Forgetful
    Forgetful.loses = True


def test_the_checkpoint_waits_until_owner_and_processor_know_the_same_ddl(
    bank: BankWorkload,
    capture: Running,
    pd: PdClient,
    forgetful: type[Forgetful],
    caplog: pytest.LogCaptureFixture,
) -> None:
    capture.create("one", start_ts=pd.tso())
    capture.wait_checkpoint("one", pd.tso())
    before, early = pd.tso(), bank.stats.ddls
    work(bank, 400)
    assert bank.stats.ddls > early
    words = wait_for(
        lambda: (w := capture.feed("one")["tidegate"]["waiting_for"]).startswith("agreement") and w, "a word"
    )
    assert "knows other DDL up to ts" in words
    wait_for(lambda: any("checkpoint held" in r.getMessage() for r in caplog.records), "a line of the log")
    assert check_order(capture.lines("one"))[1] == 0, "no DDL has left"
    forgetful.loses = False
    capture.call("POST", "/changefeeds/one/pause")
    capture.wait_state("one", "stopped")
    capture.call("POST", "/changefeeds/one/resume")
    end = pd.tso()
    assert end > before
    capture.wait_checkpoint("one", end)
    assert check_order(capture.lines("one"))[1] == bank.stats.ddls - early
