"""Events leave the store only after the sink has made them durable, however much was received beyond."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.test_capture import Running, bank, capture, check_order, wait_for, work
from tests.server.test_shared_events import dropped

from tidegate.config.settings import ReplicaConfig
from tidegate.control.barrier import SpanTask
from tidegate.control.grants import Grant, GrantedRange
from tidegate.control.messages import Checkpoint, Dispatch, Header, Wish
from tidegate.control.metadata import FeedId
from tidegate.disk import Ballast, DiskFull
from tidegate.eventstore import reader, store_view
from tidegate.eventstore.manifest import Manifest
from tidegate.eventstore.order import Entry, block_of, entries_of
from tidegate.eventstore.span_store import SpanStore
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.server.delivery.plan import BoundsFile
from tidegate.server.processor.processor import FeedProcessor
from tidegate.server.processor.reader_floor import DROP_AFTER_S, FLOOR_S
from tidegate.server.pulling.puller_process import store_dir
from tidegate.server.pulling.pulse import Pulse
from tidegate.workload.bank import BankWorkload

__all__ = ["bank", "capture"]

SPAN = Span(b"a", b"b")
RECEIVED = 900
"""The resolved ts of the event store: all rows up to here were received."""


class Delivering:
    """A changefeed that delivers one span of a real event store; its sink and its owner are the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self._sequence = folder, 1000.0, 0
        self.store = EventStore(folder)
        self.span: SpanStore = self.store.open_span(SPAN)
        self.span.begin(100)
        for ts in (150, 250, 450, 650):
            self.span.append(block_of([Entry(ts, ts - 1, 1, b"a%d" % ts, b"v", b"")]))
            self.span.seal(ts)
        self.span.seal(RECEIVED)
        self.store.publish()
        clock = SimpleNamespace(monotonic=lambda: self.now)
        node: Any = SimpleNamespace(cluster=1, capture="here", shared="", epoch=1, pulse=Pulse(), clock=clock)
        node.ballast, node.files = Ballast(None), None
        self.processor = FeedProcessor(node, FeedId("default", "one"))
        self.machine = self.processor.machine
        self.stored(100)
        self.machine.open(100, [SpanTask(self.span.id, SPAN, 1, 100)], [], 1000)
        plan: Any = SimpleNamespace(folder=folder, config=ReplicaConfig())
        opening: Any = SimpleNamespace(
            plan=plan,
            ddl=SimpleNamespace(span_id="0" * 16, base_ts=lambda ts: ts),
            arrivals=SimpleNamespace(all_idle=False),
            look=lambda dispatch: self.machine.resolve({self.span.id: RECEIVED}),
        )
        self.processor.openings.current = opening
        self.processor._bounds.begin(plan, Grant("i", (1, 1), 1, 1), opening)

    def stored(self, checkpoint: int) -> None:
        """The owner has stored a checkpoint, and says so."""
        self._sequence += 1
        header = Header(1, "default/one", "i", 1, "here", 1, self._sequence)
        ranges = (GrantedRange(Span(b"", b""), (1, 1)),)
        assert self.machine.receive(Dispatch(header, Wish.RUN, 1, ranges, 1000, checkpoint, load=False))

    def durable(self, ts: int) -> None:
        """The sink has made all rows up to a ts durable."""
        assert self.machine.report((1, 1), 1, {self.span.id: ts})

    async def tick(self) -> None:
        """Tick once, and have the bounds written."""
        self.processor._tick()
        await self.processor._bounds.written()

    def left(self, after_s: float) -> list[int]:
        """The commit ts in the store after some time of ticks, in each of which it drops what it may."""
        end = self.now + after_s
        while self.now < end:
            self.now += FLOOR_S / 2
            asyncio.run(self.tick())
            released = self.processor.openings.drop_below
            assert released is not None
            self.span.drop_below(released[0])
        after = store_view.read_manifest(self.folder, self.span.id).dropped_to
        blocks = reader.read(self.folder, self.span.id, after, RECEIVED)
        return [entry.commit_ts for block in blocks for entry in entries_of(block)]


def test_a_range_is_reported_up_to_what_is_durable_not_what_was_received(tmp_path: Path) -> None:
    feed = Delivering(tmp_path)
    asyncio.run(feed.tick())
    feed.durable(500)
    (said,) = (one for one in feed.machine.tick(feed.now) if isinstance(one, Checkpoint))
    assert [(one.checkpoint_ts, one.resolved_ts) for one in said.ranges] == [(500, RECEIVED)]


def test_events_leave_the_store_only_below_the_stored_checkpoint(tmp_path: Path) -> None:
    """A restart begins there, and another capture may have to."""
    feed = Delivering(tmp_path)
    assert feed.left(after_s=3 * DROP_AFTER_S) == [150, 250, 450, 650], "all were received, none is durable"
    feed.durable(500)
    assert feed.left(after_s=3 * DROP_AFTER_S) == [150, 250, 450, 650], "durable, but that is not stored"
    feed.stored(300)
    assert feed.left(after_s=DROP_AFTER_S / 2) == [150, 250, 450, 650], "workers may still read from there"
    assert feed.left(after_s=2 * DROP_AFTER_S) == [450, 650]
    feed.stored(500)
    assert feed.left(after_s=2 * DROP_AFTER_S) == [650]


def test_events_stay_while_workers_still_begin_at_an_earlier_ts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, so the file with that ts cannot be replaced."""
    feed = Delivering(tmp_path)
    feed.durable(500)
    feed.stored(500)

    def full(self: BoundsFile, *given: Any, **more: Any) -> None:
        raise DiskFull("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(BoundsFile, "put", full)
        assert feed.left(after_s=3 * DROP_AFTER_S) == [150, 250, 450, 650]
    assert feed.left(after_s=3 * DROP_AFTER_S) == [650]


@pytest.fixture
def released_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("FLOOR_S", 0.1), ("DROP_AFTER_S", 0.2)):
        monkeypatch.setattr(f"tidegate.server.processor.reader_floor.{name}", seconds)
    for name, seconds in (("SAVE_REST", 1), ("RENAME_S", 0.1)):
        monkeypatch.setattr(f"tidegate.server.catalogue.catalogues.{name}", seconds)
    monkeypatch.setattr("tidegate.server.changefeeds.housekeeping.HOUSEKEEPING_S", 0.1)


def manifests(capture: Running) -> list[Manifest]:
    store = store_dir(capture.data_dir, capture.capture.cluster)
    return [store_view.read_manifest(store, line.span) for line in capture.capture.spans.status]


@pytest.mark.integration
@pytest.mark.usefixtures("released_at_once")
def test_events_of_a_pipeline_without_progress_stay_in_the_store(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    patient = {"ignore_ineligible_table": True, "tidegate": {"stall_timeout": "1h"}}
    assert capture.create("one", start_ts=pd.tso(), replica_config=patient)["http"] == 200
    work(bank, 50)
    capture.wait_checkpoint("one", pd.tso())
    os.kill(capture.pipeline_pid("one"), signal.SIGSTOP)
    try:
        work(bank, 100)
        beyond = pd.tso()
        wait_for(lambda: capture.feed("one")["resolved_ts"] > beyond, "all rows to be received")
        time.sleep(2.0)  # many rounds of housekeeping, each of which drops what it may
        checkpoint = capture.feed("one")["checkpoint_ts"]
        assert checkpoint < beyond
        assert all(each.dropped_to <= checkpoint for each in manifests(capture))
    finally:
        os.kill(capture.pipeline_pid("one"), signal.SIGCONT)
    capture.wait_checkpoint("one", beyond)
    wait_for(lambda: dropped(capture, beyond), "the segments to go")
    rows, _ = check_order(capture.lines("one"))
    assert rows >= 100
