"""Ticks and looks cost the same, however many tables a changefeed follows.

The work that is done many times a second may go over spans, ranges and captures, but not over tables. The
instructions that Python executes are counted, because times vary. Both sizes have the same 48 stripes. A loop
inside a C function counts as one instruction: `python -m benchmarks.tables` measures the CPU of the whole.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import cache, partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from benchmarks.scheduling import Cluster

from tidegate.config.settings import ReplicaConfig
from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.grants import Grant, GrantedRange
from tidegate.control.messages import Dispatch, Header, Wish
from tidegate.control.metadata import FeedId, FeedInfo
from tidegate.control.owner import Persist, SendResolved
from tidegate.control.processor import Goal
from tidegate.eventstore import store_view
from tidegate.eventstore.floors import FloorReader
from tidegate.eventstore.store import EventStore
from tidegate.model.reports import SpanStatus
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import MAX, compose
from tidegate.pipeline.host.backlog import Backlog
from tidegate.pipeline.host.due_scan import DueScan
from tidegate.server.catalogue.stripes import STRIPES, Stripes, table_task
from tidegate.server.delivery.plan import Paths
from tidegate.server.node import Node
from tidegate.server.owner.ddl import OwnerDdl
from tidegate.server.owner.replication import Replication
from tidegate.server.owner.shares import FeedShares
from tidegate.server.processor.processor import FeedProcessor
from tidegate.server.pulling.pulse import Pulse
from tidegate.server.pulling.spans import SpanRegistry
from tidegate.tidb import keys

FEW, MANY = 21 * STRIPES, 2_100 * STRIPES
"""1,008 and 100,800 tables, as many in each stripe."""
WIDTH = 4096
ONE = FeedId("default", "one")
EVERYTHING, DDL = Span(b"", b""), Span(b"m", b"n")
START = compose(1_000_000)
MINUTE = compose(60_000)
APART = tuple(table_task(100 * number, START) for number in range(1, 301))
"""Tables that are far apart."""


@cache
def stripes(tables: int) -> tuple[SpanTask, ...]:
    """So many tables, spread over 48 stripes."""
    ids = (place % STRIPES * WIDTH + place // STRIPES for place in range(tables))
    return Stripes(WIDTH).begin(SpanTask("", EVERYTHING, one, START) for one in ids)


def instructions(work: Callable[[], object]) -> Counter[str]:
    """How many instructions Python executes for some work, by function, so that a failure names its cause."""
    count = Counter[str]()

    def step(frame: FrameType, what: str, argument: object) -> Any:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if what == "opcode":
            count[frame.f_code.co_qualname] += 1
        return step

    before = sys.gettrace()
    # The collector would run the finalizers of what other tests have left: a warning about an unclosed file
    # takes thousands of instructions.
    gc.disable()
    sys.settrace(step)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing."""
    with pytest.raises(StopIteration):
        work.send(None)


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class FollowedTables:
    """The DDL of a changefeed with these spans, as its processor sees it."""

    span, span_id, is_open = DDL, span_id(DDL), True
    tracker = SimpleNamespace(name_of=lambda table: "")

    def __init__(self, tasks: tuple[SpanTask, ...]) -> None:
        self.initial = tasks
        self.coming = list[DdlBatch]()

    async def open(self, *given: Any) -> tuple[list[DdlBatch], int]:
        return [], START

    def look(self, resolved: int, waiting: int) -> tuple[list[DdlBatch], int]:
        found, self.coming = self.coming, []
        return found, resolved

    def base_ts(self, checkpoint: int) -> int:
        return checkpoint

    def check_history(self, checkpoint: int) -> None: ...


class Capture:
    """A capture that delivers a changefeed with these spans. No rows come, but time passes."""

    def __init__(self, folder: Path, tasks: tuple[SpanTask, ...], step: int) -> None:
        self.step = step
        self.store, self.clock, self.ts = EventStore(folder / "events"), Clock(), START
        self.spans = [self.store.open_span(span) for span in (DDL, *(one.span for one in tasks))]
        for span in self.spans:
            span.begin(START)
        self.receive()
        captured = SimpleNamespace(store=self.store.folder, spans=SpanRegistry())
        self.sent: list[object] = []
        node: Any = SimpleNamespace(
            cluster=1, capture="a", shared="", epoch=1, pulse=Pulse(), clock=self.clock, manifests={},
            paths=Paths(folder, self.store.folder), captured=lambda mode: captured, read=self._read,
            receive_history=lambda scope, order, said: False,
            router=SimpleNamespace(to_owner=self.sent.append),
            application=SimpleNamespace(working=SimpleNamespace(workers=2), pid=1),
            ballast=SimpleNamespace(small=lambda put: put()), files=None,
        )  # fmt: skip
        node.manifest = partial(Node.manifest, node)
        self.processor = FeedProcessor(node, ONE)

    async def _read(self, key: str) -> bytes:
        uri = "kafka://a/b?protocol=open-protocol"
        return FeedInfo(uri, ReplicaConfig().to_json(), 1, 0, 0, "normal", "i").to_bytes()

    def receive(self) -> None:
        """Receive for some time, in which a table that the changefeed does not want is locked."""
        self.ts += self.step
        for span in self.spans:
            if span.span == keys.stripe_span(0, WIDTH):
                edge = keys.table_prefix(WIDTH - 1)
                parts = Span(span.span.start, edge), Span(edge, span.span.end)
                span.keep(list(zip(parts, (self.ts, START + 1), strict=True)))
            else:
                span.seal(self.ts)
        self.store.publish()

    async def open(self) -> Path:
        """Open it, with bounds for workers. Returns the folder of the bounds."""
        granted = (GrantedRange(EVERYTHING, (1, 1)),)
        header = Header(1, str(ONE), "i", 1, "a", 1, 1)
        dispatch = Dispatch(header, Wish.PREPARE, 1, granted, MAX, START, load=False)
        processor = self.processor
        assert processor.machine.receive(dispatch)
        processor._goal = Goal.of(dispatch)
        await processor._reach(dispatch)
        opening = processor.openings.opened
        opening.plan.folder.mkdir(parents=True)
        processor._bounds.begin(opening.plan, Grant("i", (1, 1), 1, 2, granted), opening)
        return opening.plan.folder

    def tick(self) -> None:
        """Tick a second after the last time."""
        self.clock.now += 1.0
        at_once(self.processor._step())


CaptureOf = Callable[..., Capture]


@pytest.fixture
def capture_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CaptureOf]:
    made: list[Capture] = []
    # A process knows the pages of 16 stores. Threads that earlier tests have left read those of other stores,
    # and ours would be opened again inside the work that is counted.
    monkeypatch.setattr(store_view, "_floors", cache(lambda store: FloorReader(Path(store))))

    def capture(tasks: tuple[SpanTask, ...], step: int = MINUTE) -> Capture:
        monkeypatch.setattr("tidegate.server.processor.opening.FeedDdl", lambda *given: FollowedTables(tasks))
        made.append(Capture(tmp_path / str(len(made)), tasks, step))
        return made[-1]

    yield capture
    for one in made:
        one.store.close()


async def ticks(capture: Capture, ddls: int = 0, pause_s: float = 0.0) -> list[Counter[str]]:
    """The instructions of ticks with and without floors that have risen. `ddls`: so many DDLs that concern no
    span come with each rise. `pause_s`: between two ticks, beyond the usual second.
    """
    found = list[Counter[str]]()
    await capture.open()
    capture.processor.openings.opened.spans.status = [SpanStatus(one.id, capture.ts) for one in capture.spans]
    for time_passes in (True, True, False, False):
        if time_passes:
            ddl: Any = capture.processor.openings.opened.ddl
            ddl.coming = [DdlBatch(capture.ts + 1 + number, ()) for number in range(ddls)]
            capture.receive()
        capture.clock.now += pause_s
        found.append(instructions(capture.tick))
        assert {task.start_ts for task in capture.processor.machine.spans.tasks.values()} == {capture.ts}
        await capture.processor._bounds.written()
    return found[1:]  # the first tick fills caches


def looks(capture: Capture) -> list[Counter[str]]:
    """The instructions of scans and looks after floors have risen."""
    found = list[Counter[str]]()
    folder = asyncio.run(capture.open())
    settings = SimpleNamespace(tidegate=SimpleNamespace(max_batch_bytes=1 << 20))
    spec: Any = SimpleNamespace(feed_dir=folder, store_dir=capture.store.folder, config=settings)
    backlog, scan = Backlog(spec, {}), DueScan()
    one: Any = SimpleNamespace(backlog=backlog, store=str(spec.store_dir), bounds_mark=None)
    one.eager_until = one.looks_at = 0.0
    # Long ago: for a file that was just replaced, a reader makes sure that it is no other one.
    os.utime(folder / "bounds.json", (1, 1))
    for now in (1.0, 2.0, 3.0, 4.0):
        capture.receive()
        found.append(instructions(lambda now=now: scan.may_be_due([one], now)))  # type: ignore[misc]
        found.append(instructions(lambda: backlog.take(4)))
        assert len(backlog.spans) == len(capture.spans) - 1
    return found[4:]  # the first look reads all files, and the second one the spans again


def test_a_tick_of_a_processor_costs_the_same_for_any_number_of_tables(
    capture_of: CaptureOf,
) -> None:
    few, many = (asyncio.run(ticks(capture_of(stripes(tables)))) for tables in (FEW, MANY))
    assert few == many


def test_a_look_of_the_pipeline_costs_the_same_for_any_number_of_tables(
    capture_of: CaptureOf,
) -> None:
    few, many = (looks(capture_of(stripes(tables))) for tables in (FEW, MANY))
    assert few == many


@pytest.mark.parametrize(("work", "at_most"), [("ticks", 0), ("tenth ticks", 60), ("ddls", 0), ("looks", 4)])
def test_a_span_more_costs_few_instructions(capture_of: CaptureOf, work: str, at_most: int) -> None:
    """Tables that are far apart have a span each. No row comes, and a tick costs nothing for a span. Each
    tenth tick of an idle changefeed writes the starts of workers and measures loads.
    """

    def costs(spans: int) -> list[Counter[str]]:
        capture = capture_of(APART[:spans], compose(1000))  # after a minute the manifests follow the floors
        if work == "looks":
            return looks(capture)
        pause_s = 10.0 if work == "tenth ticks" else 0.0
        return asyncio.run(ticks(capture, 20 if work == "ddls" else 0, pause_s))

    for one, other in zip(costs(100), costs(300), strict=True):
        more = other - one
        assert more.total() <= at_most * 200, more.most_common(5)


def test_a_tick_of_an_owner_costs_the_same_for_any_number_of_tables() -> None:
    def costs(tables: int) -> list[Counter[str]]:
        cluster, found = Cluster(stripes(tables), ("a", "b", "c")), list[Counter[str]]()
        cluster.meet()
        cluster.share_out(cluster.sharing.divide({}, shared=True))
        cluster.receive(cluster.running())
        owner, node, effects = cluster.owner, cluster.link._node, list[Any]()
        node.pulse, node.shared = Pulse(), "etcd"  # type: ignore[misc]
        record: Any = SimpleNamespace(
            id=ONE, captured=SimpleNamespace(store=Path()), resolved_ts=0, loading=False
        )
        ddl, view = (
            OwnerDdl(node, record),
            SimpleNamespace(resolved=0, look=lambda *given: ([], view.resolved)),
        )
        ddl._ddl = view  # type: ignore[assignment]
        feed: Any = SimpleNamespace(
            _node=node, _record=record, owner=owner, ddl=ddl, _link=cluster.link,
            _effects=SimpleNamespace(perform=lambda owner, effect: effect, records_over=lambda owner: []),
            _jobs=SimpleNamespace(spawn=effects.append), sink=SimpleNamespace(opened=None),
        )  # fmt: skip
        shares: Any = SimpleNamespace(
            _node=node, _record=record, _peers=cluster.peers, _link=cluster.link, sharing=cluster.sharing,
            reason="", may_be_shared=True,
        )  # fmt: skip

        def tick() -> None:
            Replication._tick(feed)
            FeedShares.check_shares(shares, owner, is_starting=False)
            owner.due_in(cluster.now)

        for progress in (True, True, False, False):
            cluster.pass_time()
            if progress:
                view.resolved = owner.barrier.resolved + 1
                ddl.floors_have_moved()
                messages = cluster.progress(3)
                found.append(instructions(lambda messages=messages: cluster.receive(messages)))  # type: ignore[misc]
                owner.synced(cluster.ts)
            found.append(instructions(tick))
            for effect in effects:
                owner.resolved_done(effect.ts) if isinstance(effect, SendResolved) else owner.persisted(
                    effect.ts
                )
            assert [type(one) for one in effects] == ([SendResolved, Persist] if progress else [])
            effects.clear()
        assert not shares.reason
        return found[2:]

    assert costs(FEW) == costs(MANY)
