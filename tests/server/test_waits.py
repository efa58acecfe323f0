"""A changefeed's loop waits most of the time: its end must reach it there, whatever else happens then."""

from __future__ import annotations

import asyncio
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.test_capture import Running, bank, capture, check_order, wait_for, work

from tidegate.config.settings import ReplicaConfig
from tidegate.control.barrier import Barrier, DdlBatch
from tidegate.control.ddl_log import KnownDdl
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import Dispatch, Header, RangeProgress, Wish
from tidegate.control.metadata import FeedId, FeedInfo
from tidegate.control.owner import Owner, Persist, SendResolved
from tidegate.control.watchdog import STEP_MAX_S
from tidegate.eventstore import store_view
from tidegate.eventstore.floors import FloorPage
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, Transaction, TwoPhase
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX
from tidegate.server.catalogue.schema_tracker import load_catalogue
from tidegate.server.delivery.plan import Paths
from tidegate.server.owner.ddl import OwnerDdl
from tidegate.server.owner.effects import OwnerEffects
from tidegate.server.owner.replication import Replication
from tidegate.server.owner.tick_pause import TICK_S, WATCH_S, TickPause
from tidegate.server.processor.processor import FeedProcessor
from tidegate.server.pulling.pulse import CALMER_S, RESTS, Pulse
from tidegate.tidb import keys
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

__all__ = ["bank", "capture"]


def resting(rest_s: float) -> Any:
    """The pause of a loop that rests for this time, without a call that may hang."""
    node: Any = SimpleNamespace(
        clock=Still(0.0), pulse=SimpleNamespace(rest_s=lambda store: rest_s), shared=""
    )
    return pause_of(node)


def pause_of(node: Any) -> Any:
    record: Any = SimpleNamespace(captured=SimpleNamespace(store=STORE))
    ddl: Any = SimpleNamespace(is_behind=False)
    return TickPause(node, record, ddl, lambda: None, lambda: False)


def never_due() -> Any:
    return SimpleNamespace(due_in=lambda now: inf)


def test_a_loop_that_is_woken_and_cancelled_at_once_is_cancelled() -> None:
    """Before Python 3.12 `asyncio.wait_for` loses such a cancellation: a pause of the feed never ended."""

    async def scenario() -> None:
        pause = resting(600)
        loop = asyncio.create_task(pause.until_next(never_due()))
        await asyncio.sleep(0.005)
        pause.wake()
        loop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop

    asyncio.run(scenario())


def test_a_loop_that_is_not_woken_continues() -> None:
    pause = resting(0.02)
    asyncio.run(pause.until_next(never_due()))
    assert not pause._woken.is_set()


def test_a_call_that_hangs_ends_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for all the time, although a tick may be long in coming."""
    pause, looks = resting(600), []
    monkeypatch.setattr("tidegate.server.owner.tick_pause.WATCH_S", 0.005)

    def look() -> None:
        looks.append(1)
        if len(looks) == 3:
            pause.wake()

    pause._look, pause._is_any_call = look, lambda: True
    asyncio.run(pause.until_next(never_due()))
    assert len(looks) == 3


REST_S = CALMER_S * RESTS
STORE = Path("store")


class Still:
    """A clock that does not advance."""

    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now


def test_an_owner_rests_until_something_is_due_by_time() -> None:
    granted = GrantedRange(Span(b"", b""), (1, 1))
    owner = Owner(100, Barrier(1000), granted.id, resolved_interval_s=0.125)
    clock = Still(5.0)
    node = SimpleNamespace(clock=clock, pulse=Pulse(), shared="")
    pause = pause_of(node)
    assert pause.rest_s(owner) == REST_S, "nothing is granted"
    owner.grant("a", 1, [granted])
    owner.sink_open(0)
    owner.running("a", 1, [granted])
    owner.report("a", 1, [RangeProgress(granted.id, granted.token, 200, 200)])
    owner.tick(5.0)
    owner.resolved_done(200)
    owner.persisted(200)
    owner.report("a", 1, [RangeProgress(granted.id, granted.token, 300, 300)])
    clock.now = 5.0625
    owner.tick(clock.now)
    assert pause.rest_s(owner) == 0.0625, "the next Resolved"
    assert pause.rest_s(None) == TICK_S
    pause._ddl.is_behind = True
    assert pause.rest_s(owner) == TICK_S, "the catalogue tells nobody when it has read on"


@pytest.mark.parametrize("why", ["floors have moved", "DDL is behind", "a capture knows more", "long", ""])
def test_an_owner_reads_on_in_the_span_of_ddl_when_there_is_a_reason(why: str) -> None:
    looks: list[int] = []

    def look(resolved: int, waiting: int) -> tuple[list[Any], int]:
        looks.append(resolved)
        return [], resolved

    owner = Owner(100, Barrier(100), Span(b"", b""))
    if why == "a capture knows more":
        owner.grant("a", 1, [GrantedRange(Span(b"", b""), (1, 1))])
        owner.receive_ddl("a", KnownDdl(100, 150, 0))
    ddl: Any = SimpleNamespace(
        _ddl=SimpleNamespace(resolved=200, look=look),
        _node=SimpleNamespace(pulse=Pulse()),
        _record=SimpleNamespace(captured=SimpleNamespace(store=STORE)),
        _floors_moved=why == "floors have moved",
        is_behind=why == "DDL is behind",
        _looked_at=10.0 - (REST_S if why == "long" else REST_S / 2),
        _log_disagreement=lambda owner: None,
    )
    OwnerDdl.read(ddl, owner, 10.0)
    assert looks == ([200] if why else [])


@pytest.mark.parametrize(
    ("target_ts", "due_in", "wakes"), [(0, 0.5, False), (0, 0.0, True), (900, 0.5, True)]
)
def test_an_owner_ticks_after_a_stored_checkpoint_only_if_something_waits(
    target_ts: int, due_in: float, wakes: bool
) -> None:
    """A tick costs the same whatever it is for, and every changefeed stores its checkpoint once a second."""
    stored: list[int] = []

    async def persist(owner: Any, ts: int, patience_s: float) -> None:
        stored.append(ts)

    async def scenario() -> bool:
        woken = asyncio.Event()
        effects: Any = SimpleNamespace(
            _sink=SimpleNamespace(opened=object()),
            _wake=woken.set,
            _persist=persist,
            _node=SimpleNamespace(clock=Still(1.0)),
        )
        owner: Any = SimpleNamespace(barrier=SimpleNamespace(target_ts=target_ts), due_in=lambda now: due_in)
        await OwnerEffects.perform(effects, owner, Persist(5))
        return woken.is_set()

    assert (asyncio.run(scenario()), stored) == (wakes, [5])


@pytest.mark.parametrize(
    ("target_ts", "due_in", "wakes"), [(0, inf, False), (0, 0.5, True), (0, 0.0, True), (900, inf, True)]
)
def test_an_owner_ticks_after_a_resolved_only_if_it_may_do_more(
    target_ts: int, due_in: float, wakes: bool
) -> None:
    """Most changefeeds have no rows, and each of them sends a Resolved every few seconds."""
    owner: Any = SimpleNamespace(barrier=SimpleNamespace(target_ts=target_ts), due_in=lambda now: due_in)
    sent: list[int] = []
    owner.resolved_done = sent.append

    async def send(ts: int) -> None: ...

    async def scenario() -> bool:
        woken = asyncio.Event()
        effects: Any = SimpleNamespace(
            _sink=SimpleNamespace(opened=SimpleNamespace(send_resolved=send)),
            _wake=woken.set,
            _node=SimpleNamespace(clock=Still(1.0), ballast=SimpleNamespace(trouble="the disk is full")),
        )
        await OwnerEffects.perform(effects, owner, SendResolved(5))
        return woken.is_set()

    assert (asyncio.run(scenario()), sent) == (wakes, [5])


def test_an_owner_without_rows_sends_at_each_wake_up() -> None:
    """A Resolved that is due a moment after the wake-up costs another tick of each of hundreds of owners."""
    granted, pulse, clock = GrantedRange(Span(b"", b""), (1, 1)), Pulse(), Still(0.0)
    owner, effects = Owner(100, Barrier(1000), granted.id), list[Any]()
    owner.grant("a", 1, [granted])
    owner.sink_open(0)
    owner.running("a", 1, [granted])
    feed: Any = SimpleNamespace(
        _node=SimpleNamespace(clock=clock, pulse=pulse),
        _record=SimpleNamespace(captured=SimpleNamespace(store=STORE), resolved_ts=100),
        _effects=SimpleNamespace(perform=lambda owner, effect: effect, records_over=lambda owner: []),
        _jobs=SimpleNamespace(spawn=effects.append),
        _link=SimpleNamespace(repeat=lambda: None),
        ddl=SimpleNamespace(read=lambda owner, now: None),
        sink=SimpleNamespace(opened=None),
        owner=owner,
    )
    for number, late_s in enumerate([0.03, 0.0, 0.03, 0.0]):
        clock.now, ts = 10.0 + number * pulse.calmer_s(STORE) + late_s, 200 + number
        owner.report("a", 1, [RangeProgress(granted.id, granted.token, ts, ts)])
        Replication._tick(feed)
        assert effects == [SendResolved(ts), Persist(ts, may_wait=True)]
        owner.resolved_done(ts)
        owner.persisted(ts)
        effects.clear()
        assert owner.due_in(clock.now) == inf, "the next tick is that of the next wake-up"


def opened(*, undelivered: list[str]) -> Any:
    """Return a processor's openings, with spans that have rows to deliver."""
    plan = SimpleNamespace(paths=SimpleNamespace(store=STORE))
    arrivals = SimpleNamespace(undelivered=undelivered)
    return SimpleNamespace(opened=SimpleNamespace(plan=plan, is_behind=False, arrivals=arrivals))


def test_a_processor_rests_unless_the_catalogue_lacks_ddl_that_has_come() -> None:
    processor: Any = SimpleNamespace(
        machine=SimpleNamespace(spans=SimpleNamespace(is_open=True)),
        node=SimpleNamespace(pulse=Pulse()),
        openings=opened(undelivered=[]),
        pipeline=SimpleNamespace(is_starting=False, load_plan=None),
    )
    assert FeedProcessor._rest_s(processor) == REST_S
    processor.openings.opened.is_behind = True
    assert FeedProcessor._rest_s(processor) == TICK_S, "the catalogue tells nobody when it has read on"


def test_a_feed_that_may_hang_is_checked_often_among_many_changefeeds() -> None:
    """A watchdog counts two seconds of a pause: with longer ones its patience would last a multiple."""
    pulse, sink = Pulse(), SimpleNamespace(is_called=True)
    for number in range(1000):
        pulse.follow(STORE, FeedId("default", f"f{number}"), lambda: None)
    node = SimpleNamespace(pulse=pulse, clock=Still(5.0), shared="")
    processor: Any = SimpleNamespace(
        machine=SimpleNamespace(spans=SimpleNamespace(is_open=True)),
        node=node,
        openings=opened(undelivered=["0001"]),
        pipeline=SimpleNamespace(is_starting=False, load_plan=None),
    )
    owner = Owner(100, Barrier(1000), Span(b"", b""))
    pause = pause_of(node)
    feed: Any = SimpleNamespace(sink=sink, _jobs=SimpleNamespace(are_any=False))
    pause._is_any_call = lambda: Replication._is_any_call(feed)
    assert (pause.watch_s(), FeedProcessor._rest_s(processor)) == (WATCH_S, REST_S)
    assert max(WATCH_S, REST_S) < STEP_MAX_S
    sink.is_called, feed._jobs.are_any = False, True
    assert pause.watch_s() == WATCH_S, "a call that was only just spawned"
    feed._jobs.are_any, processor.openings = False, opened(undelivered=[])
    processor.pipeline.is_starting = True
    assert FeedProcessor._rest_s(processor) == REST_S
    processor.pipeline.is_starting = False
    assert pause.watch_s() == inf
    assert pause.rest_s(owner) == FeedProcessor._rest_s(processor) > STEP_MAX_S


class OpenDdl:
    """A catalogue that is open, and empty."""

    is_open, initial, span_id = True, (), "ddl"

    def base_ts(self, checkpoint: int) -> int:
        return checkpoint

    async def open(self, checkpoint: int, waits: Any, held_from: int) -> tuple[list[DdlBatch], int]:
        return [], checkpoint


def test_a_processor_is_woken_by_floors_that_move_while_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself: its owner may be another machine's, and looks at no page of floors here."""
    monkeypatch.setattr("tidegate.server.processor.opening.FeedDdl", lambda *given: OpenDdl())
    spans = SimpleNamespace(release=lambda feed, forget, but: None, within=lambda feed, ranges: frozenset())
    spans.needed, spans.behind = (lambda feed, rows, ddl: None), lambda feed, floors: MAX
    node: Any = SimpleNamespace(cluster=1, capture="a", shared="", epoch=1, pulse=Pulse())
    node.receive_history = lambda scope, order, said: False
    node.clock = Still(10.0)
    node.paths, node.captured = (
        Paths(tmp_path, tmp_path),
        lambda mode: SimpleNamespace(store=tmp_path, spans=spans),
    )
    info = FeedInfo("kafka://a/b?protocol=open-protocol", ReplicaConfig().to_json(), 1, 0, 0, "normal", "i")

    async def stored(key: str) -> bytes:
        return info.to_bytes()

    node.read, node.manifest = stored, lambda store, span: None
    processor = FeedProcessor(node, FeedId("default", "one"))
    header = Header(1, "default/one", "i", 1, "a", 1, 1)
    dispatch = Dispatch(header, Wish.PREPARE, 0, [GrantedRange(Span(b"", b""), (0, 0))], 100, 100, False)
    assert processor.machine.receive(dispatch)
    page = FloorPage(tmp_path, "process")

    def wakes(floor: int) -> bool:
        page.put([("0" * 15 + "1", floor, floor)])
        processor._wake.clear()
        node.pulse.look()
        return processor._wake.is_set()

    assert not wakes(1), "nothing is open"
    asyncio.run(processor.openings.open(dispatch))
    assert wakes(2)
    assert wakes(3)
    processor.openings.close()
    assert not wakes(4)
    page.close()


@pytest.mark.integration
def test_rows_ddl_and_checkpoints_need_only_the_ticks_that_events_cause(
    bank: BankWorkload, capture: Running, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were one wake-up missing, the rest would end it after a while, and nobody would know."""
    monkeypatch.setattr("tidegate.server.pulling.pulse.RESTS", 3600.0)
    early = bank.stats.ddls
    capture.create("one", start_ts=pd.tso())
    work(bank, 400)
    end = pd.tso()
    capture.wait_checkpoint("one", end)
    (feed,) = capture.capture.reactor.feeds.values()
    wait_for(lambda: feed.record.persisted >= end, "the stored checkpoint")
    wait_for(lambda: capture.lines("one")[-1].get("resolved", 0) >= end, "Resolved")
    assert check_order(capture.lines("one"))[1] == bank.stats.ddls - early > 0


@pytest.mark.integration
def test_rows_in_a_stripe_with_a_lock_need_only_ticks_that_events_cause(
    bank: BankWorkload,
    capture: Running,
    upstream: EmbeddedUpstream,
    pd: PdClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stripe's floor does not rise; only its manifest shows the others' rows."""
    monkeypatch.setattr("tidegate.server.pulling.pulse.RESTS", 3600.0)
    start_ts = pd.tso()
    ids = {table.name: table.id for table in load_catalogue(pd, start_ts).entries(start_ts)}
    locked, wanted = ids["bank.accounts"], ids["bank.orders"]
    edges = [table for at in (locked, wanted) for table in (at, at + 1)]
    upstream.operators.split_at([encode_bytes(keys.table_prefix(table)) for table in sorted({*edges})])
    settings = {"filter": {"rules": ["bank.orders"]}, "tidegate": {"ids_per_stripe": 4096}}
    assert capture.create("one", start_ts=start_ts, replica_config=settings)["http"] == 200
    capture.wait_checkpoint("one", pd.tso())
    key = keys.int_record(locked, 1 << 40)
    held = TwoPhase(pd, pd.tso(), key, ttl_ms=600_000)
    held.prewrite([Mutation(PUT, key, b"row")], Backoff())
    locked_at = pd.tso()
    for handle in range(3):
        transaction = Transaction(pd)
        transaction.put(keys.int_record(wanted, 1 << 40 | handle), b"row")
        transaction.commit()
        capture.wait_checkpoint("one", pd.tso())
        assert len([line for line in capture.lines("one") if "row" in line]) == handle + 1
    (stripe,) = capture.capture.processor_registry.processors[FeedId("default", "one")].machine.spans.tasks
    store = capture.capture.node.captured("tidb").store
    assert store_view.read_frontier(store)[stripe] < locked_at
    held.rollback([key], Backoff())
