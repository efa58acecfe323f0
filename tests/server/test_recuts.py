"""An owner cuts a table that is too hot while its changefeed runs: one write, whatever happens around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.api.test_ranges_shown import NOW_MS, TABLES, capture, feed_of
from tests.server.test_hot_cuts import of_handles

from tidegate.api.feed_json import cuts_chosen_json
from tidegate.config.reading import config_from_json, merge_config
from tidegate.config.settings import SchedulerConfig
from tidegate.control.changefeed import Life, State
from tidegate.control.metadata import FeedError, FeedInfo, GuardedWrites, Put, WriteResult, feed_key
from tidegate.errors import Fenced, InvalidInput, Retryable
from tidegate.eventstore.key_loads import KeyLoads
from tidegate.model.span import Span
from tidegate.model.timestamp import compose
from tidegate.server.capture import Capture
from tidegate.server.catalogue.hot_cuts import (
    COOL_DOWN_MAX_S,
    COOL_DOWN_S,
    HELPS,
    LOOKS_HOT,
    HotWatch,
    cool_down_s,
    greatest_share,
    in_a_row,
)
from tidegate.server.catalogue.stripes import Stripes
from tidegate.server.changefeeds import recuts
from tidegate.server.changefeeds.hot_spans import Hottest, hot_spans
from tidegate.server.changefeeds.recuts import RECEIVED_S, Recuts
from tidegate.server.owner.feed import Feed
from tidegate.tidb import keys, memcomparable

__all__ = ["capture"]

HOT = TABLES[1]
LOADS = of_handles(range(10_000), table=20)


class World:
    """A changefeed that is shared by two captures, one of which has a hot table. Its life is a stand-in."""

    def __init__(self, capture: Capture, **own: Any) -> None:
        self.feed: Feed = feed_of(capture)
        self.node: Any = capture.node
        self.node.shared = "etcd:x"
        self.done: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.stored: dict[str, bytes] = {}
        self.samples: list[Any] = []
        """The next answers, or errors; `LOADS` when there are none."""
        self.fails: dict[str, BaseException] = {}
        """By step, what it raises."""
        record = self.feed.record
        on = {"scheduler": {"enable-table-across-nodes": True}, "tidegate": {"ids-per-stripe": 1, **own}}
        record.info = replace(record.info, config=merge_config(on, record.uri).to_json())
        record.config = config_from_json(record.info.config)
        record.resolved_ts = compose(NOW_MS - 1_000)
        self.key = feed_key(self.node.cluster, self.feed.id, "info")
        self.stored[self.key] = record.info.to_bytes()
        life: Any = SimpleNamespace(stop=self._step("stop"), start=lambda: self.done.append("start"))
        self.feed._life = life
        self.node._commits = SimpleNamespace(transact=self.transact)
        self.node.key_loads = self._key_loads
        located = SimpleNamespace(start_key=b"", end_key=b"")
        self.node.pd = SimpleNamespace(
            regions=SimpleNamespace(clear=lambda: None, locate=lambda key: located)
        )
        self.located = located
        self.recuts = Recuts(self.node, capture.reactor.feeds)
        self.loads(9 << 20)

    def _step(self, name: str) -> Callable[..., Awaitable[None]]:
        async def step(*, forget: bool) -> None:
            self.done.append(name)
            await asyncio.sleep(0)
            if (error := self.fails.get(name)) is not None:
                raise error

        return step

    async def transact(self, asked: GuardedWrites, patience_s: float) -> WriteResult:
        if (error := self.fails.get("write")) is not None:
            raise error
        self.stored |= {put.key: put.value for put in asked.writes if isinstance(put, Put)}
        self.done.append("write")
        if (error := self.fails.get("answer")) is not None:
            raise error
        return WriteResult(True, 1)

    async def _key_loads(self, holder: str, span: str) -> KeyLoads:
        self.asked.append((holder, span))
        found = self.samples.pop(0) if self.samples else LOADS
        if isinstance(found, Retryable):
            raise found
        return found

    def loads(self, hot: int) -> None:
        sharing = self.feed.replication.shares.sharing
        sharing.spans.loads["b"] = {task.id: 1 << 20 for task in TABLES} | {HOT.id: hot}

    def look(self, times: int = LOOKS_HOT) -> None:
        async def looks() -> None:
            for _ in range(times):
                await self.recuts._look(self.feed)

        asyncio.run(looks())

    def info(self) -> FeedInfo:
        """The info that the next owner would find."""
        return FeedInfo.from_bytes(self.stored[self.key])

    def cuts(self) -> list[bytes]:
        return list(config_from_json(self.info().config).tidegate.cuts)

    def words(self) -> str:
        (one,) = hot_spans(self.feed).spans
        return one.by_itself


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


@pytest.fixture
def world(capture: Capture) -> World:
    return World(capture)


def test_a_table_that_stays_hot_is_cut_by_one_write_between_two_runs(world: World) -> None:
    before = world.info()
    assert "if it stays hot for a minute" in world.words()
    world.look(LOOKS_HOT - 1)
    assert world.done == []
    world.look(1)
    assert world.done == ["stop", "write", "start"]
    assert {*world.asked} == {("b", HOT.id)}, "the capture that delivers it"
    after, cuts = world.info(), world.cuts()
    assert len(cuts) == 3, "into pieces of half the mean"
    assert greatest_share(LOADS, cuts) < 0.3
    assert (after.cuts_at_ms, after.cuts_why) == (
        NOW_MS,
        "id 20 had 9.0 MiB/s, 1.6 times the mean of a capture",
    )
    same = {**before.config, "tidegate": {**before.config["tidegate"], "table_cuts": [c.hex() for c in cuts]}}
    assert replace(after, cuts_at_ms=0, cuts_why="", recuts=0, config=same) == replace(before, config=same)
    assert world.feed.record.info == after
    shown = cuts_chosen_json(after)
    assert shown == {"at": "1970-01-01 02:46:40+00:00", "why": after.cuts_why}
    assert cuts_chosen_json(before) is None
    assert after.settings != before.settings, "so that the next one begins at what the sink has"
    spans = Stripes(1, cuts).begin(TABLES)
    assert [task.physical_id for task in spans] == [10, 20, 20, 20, 20, 30]


def test_load_that_comes_and_goes_cuts_nothing(world: World) -> None:
    for _ in range(3):
        world.look(LOOKS_HOT - 1)
        world.loads(1 << 20)
        world.look(1)
        world.loads(9 << 20)
    assert world.done == []


def test_after_a_choice_of_cuts_there_is_none_for_some_time(world: World) -> None:
    """Also after one of an earlier owner, or of an update."""
    record = world.feed.record
    record.info = replace(record.info, cuts_at_ms=NOW_MS - round(COOL_DOWN_S * 1000) + 1)
    world.look(LOOKS_HOT + 5)
    assert (world.done, world.asked) == ([], []), "a sample of now would be old by then"
    assert "none are chosen for another 1 min" in world.words()
    record.info = replace(record.info, cuts_at_ms=NOW_MS - round(COOL_DOWN_S * 1000))
    world.look(LOOKS_HOT - 1)
    assert world.done == []
    world.look(1)
    assert world.done == ["stop", "write", "start"]


def test_each_choice_makes_the_next_one_later(world: World) -> None:
    """Changes that move through a table pass both samples, and each cut of it costs a restart."""
    record, times = world.feed.record, []
    for choices in (0, 1, 4, 30):
        wait_ms = round(cool_down_s(choices) * 1000)
        for since_ms, is_cut in ((wait_ms - 1, False), (wait_ms, True)):
            world.done.clear()
            world.feed.hot_watch = HotWatch()
            record.info = replace(record.info, recuts=choices, cuts_at_ms=NOW_MS - since_ms)
            world.look()
            assert bool(world.done) is is_cut
        assert world.info().recuts == choices + 1
        times.append(wait_ms // 60_000)
    assert times == [10, 20, 160, 24 * 60]
    assert [in_a_row(7, since_s) for since_s in (600.0, 3 * COOL_DOWN_MAX_S)] == [8, 1]


def test_a_choice_in_the_future_is_not_waited_for(world: World) -> None:
    """An owner whose clock was ahead has stored it."""
    record = world.feed.record
    record.info = replace(record.info, cuts_at_ms=NOW_MS + 86_400_000, recuts=2)
    world.look()
    assert world.done == ["stop", "write", "start"]
    assert (world.info().cuts_at_ms, world.info().recuts) == (NOW_MS, 3)


def test_the_stored_reason_names_a_span_that_was_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the hottest one if no cut helps that."""
    both = [(TABLES[0], 12.0 * (1 << 20)), (HOT, 9.0 * (1 << 20))]
    monkeypatch.setattr(recuts, "hottest", lambda feed: Hottest(both, 6.0 * (1 << 20)))
    world.samples = [of_handles([5] * 500, table=10)]
    world.look()
    assert {keys.parse_record(cut).table_id for cut in world.cuts()} == {20}
    assert world.info().cuts_why == "id 20 had 9.0 MiB/s, 1.5 times the mean of a capture"


@pytest.mark.parametrize("before", [[], [LOADS]])
def test_a_capture_that_does_not_say_its_keys_is_said_to_be_the_reason(
    world: World, before: list[KeyLoads]
) -> None:
    """At the first sample and at the last one; after the first one only until it is repeated."""
    world.samples = [*before, Retryable("capture b does not say them", why="timeout")]
    world.look(LOOKS_HOT if before else 1)
    assert world.done == []
    assert "capture b does not say them: timeout" in world.words()
    world.look(1)
    assert ("capture b does not say them" in world.words()) is bool(before)


def test_cuts_of_other_tables_stay_and_those_of_dropped_ones_go(capture: Capture) -> None:
    there = [keys.int_record(table, 5) for table in (10, 15, 30)]
    world = World(capture, **{"table-cuts": [cut.hex() for cut in there]})
    world.look()
    cuts = world.cuts()
    assert (cuts[0], cuts[-1], len(cuts)) == (there[0], there[2], 5)
    assert cuts == sorted(cuts)


def test_the_edge_of_a_region_close_to_a_cut_is_taken(world: World) -> None:
    edge = keys.int_record(20, 5_040)
    world.located.end_key = memcomparable.encode_bytes(edge)
    world.look()
    assert edge in world.cuts()


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (of_handles(range(10_000, 20_000), table=20), "move on to other keys"),
        (of_handles([*range(500), *[7] * 9_000], table=20), "move on to other keys"),
        (KeyLoads(), "too few of its rows"),
    ],
)
def test_a_table_that_no_cut_helps_is_left_and_the_reason_is_said(
    world: World, last: KeyLoads, why: str
) -> None:
    world.samples = [LOADS, last]
    world.look()
    assert world.done == []
    assert why in world.words()
    asked = len(world.asked)
    world.look(1)
    assert why in world.words()
    world.look()
    assert len(world.asked) == asked + 1, "it is not tried again before some time has passed"


def taken_by_hand(world: World) -> None:
    world.feed.replication.shares.sharing._kept_for = frozenset("ab")


def received_late(world: World) -> None:
    world.feed.record.resolved_ts = compose(NOW_MS - round(RECEIVED_S * 1000) - 1)


def alone(world: World) -> None:
    world.feed.replication.peers["a"].ready = False


def loads_first(world: World) -> None:
    world.feed.record.loading = True


def begins(world: World) -> None:
    world.feed.replication.waiting_for = "sink"


def repartitions(world: World) -> None:
    world.feed.record.info = replace(world.feed.record.info, repartition=9)


@pytest.mark.parametrize("so", [taken_by_hand, received_late, alone, loads_first, begins, repartitions])
def test_a_changefeed_that_does_not_run_as_usual_is_not_cut(
    world: World, so: Callable[[World], None]
) -> None:
    world.look(LOOKS_HOT - 1)
    so(world)
    world.look(3)
    assert world.done == []
    assert "not cut by itself now" in world.words()


def test_a_reason_that_is_over_is_not_said_any_more(world: World) -> None:
    begins(world)
    world.look(1)
    assert "not cut by itself now: the changefeed starts" in world.words()
    world.feed.replication.waiting_for = ""
    world.look(1)
    assert "it is cut by itself if it stays hot" in world.words()


def test_nothing_is_cut_without_the_switch_or_against_the_setting(capture: Capture) -> None:
    world = World(capture, **{"cut-hot-tables": False})
    world.look()
    assert (world.done, world.asked, world.words()) == ([], [], "")
    record = world.feed.record
    allowed = replace(record.config, tidegate=replace(record.config.tidegate, cut_hot_tables=True))
    record.config = replace(allowed, scheduler=SchedulerConfig())
    world.look()
    assert (world.done, world.asked, world.words()) == ([], [], "")
    record.config = allowed
    world.look()
    assert world.done


@pytest.mark.parametrize("step", ["stop", "check", "write", "answer"])
def test_an_owner_that_fails_at_any_step_leaves_old_or_new_cuts_that_run(world: World, step: str) -> None:
    """The stored state is that of a running changefeed at each moment, so the next owner continues."""
    before = world.info()
    error = Retryable("it has not ended yet") if step == "check" else Fenced("another one is the owner")
    world.fails[step] = error
    if step == "check":
        world.feed.replication._link.left_behind = True
    with pytest.raises(type(error)):
        world.look()
    assert world.done[-1] == "start", "what is left of this owner does not leave it ended"
    found = world.info()
    assert Life.restored(found.state, found.error).runs
    assert found.sink_uri == before.sink_uri
    assert bool(world.cuts()) is (step == "answer")
    if step != "answer":
        assert found == before


@pytest.mark.parametrize("within", ["stop", "write"])
def test_a_stop_of_the_capture_waits_until_the_changefeed_is_started_again(
    world: World, monkeypatch: pytest.MonkeyPatch, within: str
) -> None:
    monkeypatch.setattr(recuts, "LOOK_S", 0.0)
    write = world.transact

    async def scenario() -> None:
        reached, released = asyncio.Event(), asyncio.Event()

        async def held(*given: Any, **more: Any) -> WriteResult | None:
            reached.set()
            await released.wait()
            return await write(*given) if given else None

        if within == "stop":
            world.feed._life.stop = held  # type: ignore[method-assign]
        else:
            world.node._commits.transact = held
        task = asyncio.create_task(world.recuts.run())
        await reached.wait()
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done()
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario)
    assert world.done[-2:] == ["write", "start"]
    assert world.cuts()


def test_an_update_that_comes_first_is_not_undone(world: World) -> None:
    """Its settings may not allow cuts any more, and are for other tables."""

    async def scenario() -> None:
        async with world.feed.turn:
            for _ in range(LOOKS_HOT - 1):
                await world.recuts._look(world.feed)
            look = asyncio.create_task(world.recuts._look(world.feed))
            while not world.feed.turn._waiters:
                await asyncio.sleep(0.001)
            record = world.feed.record
            record.config = replace(record.config, case_sensitive=True)
        await look

    run(scenario)
    assert world.done == []


@pytest.mark.parametrize("so", [taken_by_hand, alone, repartitions])
def test_a_request_that_comes_first_is_not_disturbed(world: World, so: Callable[[World], None]) -> None:
    """The settings are the same after it, but the changefeed does not run as usual any more."""

    async def scenario() -> None:
        async with world.feed.turn:
            for _ in range(LOOKS_HOT - 1):
                await world.recuts._look(world.feed)
            look = asyncio.create_task(world.recuts._look(world.feed))
            while not world.feed.turn._waiters:
                await asyncio.sleep(0.001)
            so(world)
        await look

    run(scenario)
    assert world.done == []


@pytest.mark.parametrize(("state", "is_cut"), [(State.WARNING, True), (State.FAILED, False)])
def test_what_is_stored_while_it_ends_stays(world: World, state: State, is_cut: bool) -> None:
    """A changefeed that fails meanwhile is not changed; a warning, or another layout, is not undone."""
    record, error = world.feed.record, FeedError("a region has no leader", "CDC:ErrRetryable", NOW_MS)

    async def stop(*, forget: bool) -> None:
        await asyncio.sleep(0)
        record.life = Life(state, error)
        record.info = replace(record.info, state=str(state), error=error, partitions=7)
        world.stored[world.key] = record.info.to_bytes()

    world.feed._life.stop = stop  # type: ignore[method-assign]
    world.look()
    found = world.info()
    assert (found.state, found.error, found.partitions) == (state, error, 7)
    assert bool(world.cuts()) is is_cut
    assert world.done == ["write", "start"][not is_cut :]


def test_a_defect_in_the_choice_ends_neither_changefeed_nor_owner(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recuts, "LOOK_S", 0.0)

    def broken(*given: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(recuts, "chosen", broken)

    async def scenario() -> None:
        task = asyncio.create_task(world.recuts.run())
        while world.feed.hot_watch.not_before < 0:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    run(scenario)
    assert world.done == []
    assert "an unexpected error, which is in the owner's log (ZeroDivisionError); " in world.words()


def test_cuts_that_cannot_be_stored_do_not_end_the_changefeed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(puts: Any) -> None:
        raise InvalidInput("the changefeed is too large")

    monkeypatch.setattr(recuts, "check_size", refused)
    with pytest.raises(InvalidInput, match="too large"):
        world.look()
    assert world.done == []


def test_a_piece_that_stays_hot_is_cut_in_its_own_keys(capture: Capture) -> None:
    """The changes of the second sample must be even in it, too: `HELPS` at most in one piece."""
    first = keys.int_record(20, 5_000)
    world = World(capture, **{"table-cuts": [first.hex()]})
    sharing = world.feed.replication.shares.sharing
    tasks = Stripes(1, [first]).begin(TABLES)
    sharing.begin(tasks)
    piece = next(task for task in tasks if task.span == Span(first, keys.record_span(20).end))
    sharing.spans.loads["b"] = {task.id: 1 << 20 for task in tasks} | {piece.id: 12 << 20}
    world.samples = [of_handles(range(5_000, 9_000), table=20)] * 2
    world.look()
    cuts = world.cuts()
    assert cuts[0] == first
    assert len(cuts) > 2
    assert all(piece.span.contains(cut) for cut in cuts[1:])
    assert greatest_share(of_handles(range(5_000, 9_000), table=20), cuts) < HELPS
