"""A pipeline process that was replaced and still talks: nothing that it says counts."""

from __future__ import annotations

import os
import signal

import pytest
from tests.server.test_capture import Running, bank, capture, wait_for, work

from tidegate.control.grants import Grant
from tidegate.control.metadata import FeedId, grant_key
from tidegate.ipc import ControlClient
from tidegate.kvclient.pd import PdClient
from tidegate.model.reports import Durable, Failed, PipelineHello, Started
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration

__all__ = ["bank", "capture"]


def test_what_an_earlier_incarnation_says_changes_nothing(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    capture.create("one")
    capture.wait_checkpoint("one", pd.tso())
    (feed,) = capture.capture.reactor.feeds.values()
    node = capture.capture.node
    stored = node.metadata.get(grant_key(pd.cluster_id, FeedId("default", "one"), node.capture))
    assert stored is not None
    earlier = Grant.from_bytes(stored.value)
    os.kill(capture.pipeline_pid("one"), signal.SIGKILL)
    # The kill's own warning ends with the next one's first checkpoint, and must not be taken for another.
    wait_for(
        lambda: (
            feed.replication.reports.totals.starts == 2
            and not feed.replication.waiting_for
            and feed.record.life.error is None
        ),
        "the next incarnation",
    )
    rows, beyond = feed.replication.reports.totals.rows, pd.tso() + (1 << 40)

    late = ControlClient(
        capture.data_dir / "control.sock", PipelineHello("default/one", earlier.incarnation, os.getpid())
    )
    spans = dict.fromkeys(capture.capture.spans.held, beyond)
    late.send(Started(spans))
    late.send(Durable(earlier.token, spans, {"rows": 1_000_000}))
    late.send(Failed("an earlier incarnation failed", "", "", "", retry=False))
    late.close()

    work(bank, 50)
    end = pd.tso()
    wait_for(
        lambda: feed.record.life.error or feed.replication.checkpoint >= end, "the checkpoint, or a failure"
    )
    assert feed.replication.checkpoint < beyond
    assert (feed.record.life.error, feed.replication.reports.totals.starts) == (None, 2)
    assert rows < feed.replication.reports.totals.rows < 1_000_000
