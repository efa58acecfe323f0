"""A round of a changefeed that several captures share: what it does not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.clock import SystemClock
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.grants import Grant
from tidegate.control.messages import Wish
from tidegate.control.metadata import FeedId
from tidegate.errors import Retryable
from tidegate.server.owner.fence_ahead import TAKE_S, FenceAhead
from tidegate.server.owner.hand_over import HandOver, Step
from tidegate.server.owner.replication import Replication
from tidegate.server.owner.shares import FeedShares
from tidegate.sink.base import SinkFeed
from tidegate.sink.kafka import slot
from tidegate.sink.kafka.sink import KafkaSink

URI = parse_sink_uri("kafka://h/own?protocol=open-protocol")


class Ahead:
    """The preparation of a fence, done when `made` is set."""

    def __init__(self, asked: list[str], made: asyncio.Event) -> None:
        self._asked, self._made = asked, made

    @property
    def is_done(self) -> bool:
        return self._made.is_set()

    def begin(self) -> None:
        self._asked.append("prepare")


def delivering(reason: str, ahead: Ahead, *, planned: bool) -> Any:
    """A replication that delivers, until it finds at its first look that shares must change."""
    shares: Any = SimpleNamespace(reason="", _planned=reason if planned else "", ahead=ahead)
    shares.may_hand_over = lambda: FeedShares.may_hand_over(shares)

    def look(owner: object, *, is_starting: bool) -> None:
        shares.reason = reason

    shares.check_shares = look
    feed: Any = SimpleNamespace(shares=shares, owner=None, waiting_for="")
    feed._effects = SimpleNamespace(is_target_reached=False, is_repartitioned=False)
    feed._jobs = SimpleNamespace(failure=None)
    feed._tick = feed._check_sink = lambda: None
    return feed


@pytest.mark.parametrize("planned", [True, False])
def test_captures_deliver_until_the_next_fence_is_prepared(planned: bool) -> None:
    """Not if one of them is gone. In either case no pause follows: the checkpoint stays from the last tick
    on.
    """
    asked: list[str] = []

    async def deliver() -> None:
        made = asyncio.Event()
        feed = delivering("other shares are better", Ahead(asked, made), planned=planned)

        async def pause(owner: object) -> None:
            asked.append("pause")
            made.set()

        feed._pause = SimpleNamespace(until_next=pause)
        await Replication._deliver(feed)

    asyncio.run(deliver())
    assert asked == (["prepare", "pause", "prepare"] if planned else ["prepare"])


def test_a_round_begins_when_captures_have_given_up_and_the_sink_is_closed() -> None:
    """Otherwise a worker would be fenced in the middle of a piece, which is sent again."""
    peers = [SimpleNamespace(capture=name, runs=name != "rests") for name in ("a", "b", "rests")]
    asked: list[object] = []

    async def end() -> None:
        gave_up, closed = asyncio.Event(), asyncio.Event()

        async def ask_to_end(wish: Wish, those: list[Any]) -> None:
            asked.extend([wish, *(one.capture for one in those)])
            await gave_up.wait()

        async def close(sink: object) -> None:
            await closed.wait()

        feed: Any = SimpleNamespace(steps=HandOver(SystemClock()), _close=close)
        feed.owner = SimpleNamespace(sink_lost=lambda: asked.append("the owner sends nothing more"))
        feed.sink = SimpleNamespace(release=lambda: None)
        feed._link = SimpleNamespace(ask_to_end=ask_to_end, reachable=lambda: peers)
        ending = asyncio.create_task(Replication._end_incarnation(feed))
        for done in (gave_up, closed):
            await asyncio.sleep(0.01)
            assert not ending.done()
            done.set()
        await ending

    asyncio.run(end())
    assert asked == ["the owner sends nothing more", Wish.PREPARE, "a", "b"]


def test_a_fence_is_prepared_for_the_stored_grants_and_given_away_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken: list[str] = []
    connected: list[Mapping[str, int]] = []
    monkeypatch.setattr(KafkaSink, "connect", lambda self, writers: connected.append(writers))

    async def grants(feed: FeedId) -> dict[str, Grant]:
        return {"a": Grant("i", (1, 1), 1, 4, givers={"b": 6})}

    async def prepare() -> None:
        sink = KafkaSink(SinkFeed(1, "default", "one", "i", URI, merge_config({}, URI), capture="a"))
        plan = SimpleNamespace(sink=sink)
        record: Any = SimpleNamespace(id=FeedId("default", "one"), loading=False, plan=plan)
        node: Any = SimpleNamespace(grants=grants, clock=SystemClock())
        ahead = FenceAhead(node, record, lambda: True, lambda: woken.append("wake"))
        assert await ahead.take() is None, "nothing has begun"
        ahead.begin()
        ahead.begin()
        assert not ahead.is_done
        assert await ahead.take() is sink
        assert not ahead.is_done
        ahead.begin()
        await ahead.drop()
        record.loading = True
        ahead.begin()
        assert await ahead.take() is None

    asyncio.run(prepare())
    writers = {"a": 4, "b": 6}
    assert connected == [writers, writers, {}]
    assert len(woken) == 3


@pytest.mark.parametrize("trouble", ["it hangs", "a defect", "etcd is away"])
def test_a_round_does_without_a_fence_that_cannot_be_prepared(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.server.owner.fence_ahead.TAKE_S", 0.05)
    hangs = asyncio.Event()

    async def grants(feed: FeedId) -> dict[str, Grant]:
        match trouble:
            case "it hangs":
                await hangs.wait()
            case "a defect":
                raise RuntimeError("can't start new thread")
        raise Retryable("etcd does not answer")

    async def prepare() -> None:
        plan = SimpleNamespace(sink=None)
        record: Any = SimpleNamespace(id=FeedId("default", "one"), loading=False, plan=plan)
        ahead = FenceAhead(
            SimpleNamespace(grants=grants, clock=SystemClock()),  # type: ignore[arg-type]
            record,
            lambda: True,
            lambda: None,
        )
        ahead.begin()
        async with asyncio.timeout(60):
            while not ahead.is_done:
                await asyncio.sleep(0.01)
            assert await ahead.take() is None
            ahead.begin()
            await ahead.drop()
        hangs.set()

    asyncio.run(prepare())


async def _hanging() -> tuple[FenceAhead, asyncio.Event]:
    """A preparation that does not end by itself, and what ends it."""
    hangs = asyncio.Event()

    async def grants(feed: FeedId) -> dict[str, Grant]:
        await hangs.wait()
        return {}

    record: Any = SimpleNamespace(id=FeedId("default", "one"), loading=False, plan=SimpleNamespace(sink=None))
    node: Any = SimpleNamespace(grants=grants, clock=SystemClock())
    ahead = FenceAhead(node, record, lambda: True, lambda: None)
    ahead.begin()
    return ahead, hangs


@pytest.mark.parametrize("by", ["take", "drop"])
def test_a_round_waits_for_a_hanging_preparation_up_to_its_bound(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is delivered while it waits. Without the bound it would wait for ever."""
    monkeypatch.setattr("tidegate.server.owner.fence_ahead.TAKE_S", 0.05)

    async def round_begins() -> bool:
        ahead, hangs = await _hanging()
        begins = asyncio.create_task(ahead.take() if by == "take" else ahead.drop())
        done, _ = await asyncio.wait({begins}, timeout=60)
        hangs.set()
        await begins
        return bool(done)

    assert asyncio.run(round_begins())


def test_captures_deliver_on_while_a_preparation_hangs_until_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`may_hand_over` looks at `is_done`: neither at once, nor never."""
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(SystemClock, "monotonic", lambda self: clock.now)

    async def delivers() -> list[bool]:
        ahead, hangs = await _hanging()
        found = []
        for clock.now in (100.0, 100.0 + 0.9 * TAKE_S, 100.0 + TAKE_S):
            await asyncio.sleep(0)
            found.append(ahead.is_done)
        hangs.set()
        await ahead.take()
        return found

    assert asyncio.run(delivers()) == [False, False, True]


def test_a_client_that_does_not_end_is_dropped_after_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Librdkafka ends a client only when its threads have ended, and the next round waits for `drop`."""
    monkeypatch.setattr("tidegate.server.owner.fence_ahead.TAKE_S", 0.05)
    ends = threading.Event()

    def connect(self: KafkaSink, writers: Mapping[str, int]) -> None:
        if not writers:
            ends.wait(120)

    async def grants(feed: FeedId) -> dict[str, Grant]:
        return {"a": Grant("i", (1, 1), 1, 4)}

    async def drops() -> bool:
        sink = KafkaSink(SinkFeed(1, "default", "one", "i", URI, merge_config({}, URI), capture="a"))
        record: Any = SimpleNamespace(
            id=FeedId("default", "one"), loading=False, plan=SimpleNamespace(sink=sink)
        )
        node: Any = SimpleNamespace(grants=grants, clock=SystemClock())
        ahead = FenceAhead(node, record, lambda: True, lambda: None)
        ahead.begin()
        while not ahead.is_done:
            await asyncio.sleep(0.001)
        dropping = asyncio.create_task(ahead.drop())
        done, _ = await asyncio.wait({dropping}, timeout=60)
        ends.set()
        await dropping
        return bool(done)

    monkeypatch.setattr(KafkaSink, "connect", connect)
    assert asyncio.run(drops())


def test_what_was_prepared_is_dropped_if_a_start_fails() -> None:
    dropped: list[bool] = []

    async def meet() -> None:
        raise Retryable("the catalogue is away")

    async def drop() -> None:
        dropped.append(True)

    async def replicate() -> None:
        feed: Any = SimpleNamespace(_meet=meet, _node=None, _record=None)
        feed._jobs = feed._effects = SimpleNamespace(begin=lambda: None)
        feed.shares = SimpleNamespace(ahead=SimpleNamespace(begin=lambda: None, drop=drop))
        feed._replicate = lambda: Replication._replicate(feed)
        with pytest.raises(Retryable):
            await Replication.replicate(feed)

    asyncio.run(replicate())
    assert dropped == [True]


def test_processors_are_asked_to_end_while_a_call_of_the_sink_is_under_way() -> None:
    asked: list[str] = []

    async def end_incarnation() -> None:
        asked_for = asyncio.Event()

        async def end_calls() -> None:
            await asked_for.wait()
            asked.append("the call has ended")

        async def ask_to_end(wish: Wish, peers: list[Any]) -> None:
            asked.extend(f"{peer.capture}: {wish}" for peer in peers)
            asked_for.set()

        async def close() -> None:
            asked.append("the sink is closed")

        feed: Any = SimpleNamespace(owner=None, steps=HandOver(SystemClock()))
        feed.sink = SimpleNamespace(release=lambda: SimpleNamespace(close=close))
        feed._jobs = SimpleNamespace(end=end_calls)
        feed._link = SimpleNamespace(ask_to_end=ask_to_end)
        feed._link.reachable = lambda: [SimpleNamespace(runs=True, capture="b")]
        feed._close = lambda sink: Replication._close(feed, sink)
        async with asyncio.timeout(60):
            await Replication._end_incarnation(feed)

    asyncio.run(end_incarnation())
    assert asked == ["b: prepare", "the call has ended", "the sink is closed"]


def test_a_prepared_fence_fences_nobody_before_and_everybody_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are made once: those that have connected, and those of writers that the round has found."""

    class Client:
        def __init__(self, settings: Mapping[str, Any]) -> None:
            self.id = settings["transactional.id"]
            made.append(self.id)

        def init_transactions(self, timeout_s: float) -> None:
            fenced.append(self.id)

    made: list[str] = []
    fenced: list[str] = []
    monkeypatch.setattr(slot, "Producer", Client)
    sink = KafkaSink(SinkFeed(1, "default", "one", "i", URI, merge_config({}, URI), capture="a"))
    sink.connect({"a": 2, "b": 2})
    assert (len(made), fenced) == (4, [])
    proofs: list[int] = []
    sink.fence_only({"a": 2, "b": 3}, lambda: proofs.append(len(fenced)))
    assert len(made) == len({*made}) == 5
    assert sorted(fenced) == sorted(made)
    assert proofs == [5], "the grant is proven after the fence"
    sink.fence_only({"a": 2}, lambda: None)
    assert len(made) == 7, "a client that was used fences no second time"


def test_clients_of_a_begin_connect_while_the_progress_topic_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The records are read after the fence all the same."""
    done: list[str] = []

    class Client:
        def __init__(self, settings: Mapping[str, Any]) -> None:
            done.append("connect")

        def init_transactions(self, timeout_s: float) -> None:
            done.append("fence")

    monkeypatch.setattr(slot, "Producer", Client)
    for name, what in (("ensure_progress_topic", "topic"), ("read_records", "read")):
        monkeypatch.setattr(f"tidegate.sink.kafka.sink.{name}", lambda *_, what=what: done.append(what))
    sink = KafkaSink(SinkFeed(1, "default", "one", "i", URI, merge_config({}, URI), capture="a"))
    sink.fence({"a": 1}, lambda: done.append("prove"))
    assert done == ["connect", "topic", "fence", "prove", "read"]


def test_the_steps_of_a_round_say_how_long_each_took() -> None:
    clock = SimpleNamespace(now=10.0)
    clock.monotonic = lambda: clock.now
    steps = HandOver(clock)  # type: ignore[arg-type]
    steps.reached(Step.GRANTED)  # the first round: no incarnation has ended before
    clock.now += 0.2
    steps.reached(Step.FENCED)
    assert steps.end() == {"granted_ms": 0, "fenced_ms": 200, "delivered_ms": 0}
    steps.begin()
    clock.now += 0.05
    steps.reached(Step.GIVEN_UP)
    clock.now += 0.1
    assert steps.end() == {"given_up_ms": 50, "delivered_ms": 100}


def test_only_the_pause_of_a_division_counts_as_its_gap() -> None:
    clock = SimpleNamespace(now=10.0)
    clock.monotonic = lambda: clock.now
    steps = HandOver(clock)  # type: ignore[arg-type]
    steps.pause(divides=True)
    clock.now += 0.5
    steps.end()
    assert steps.last_gap_s == 0.5
    steps.pause(divides=True)
    steps.pause(divides=False)  # a failure ends the division before it delivers
    clock.now += 7
    steps.end()
    assert steps.last_gap_s == 0.5
