"""Locks of dead clients hold no resolved ts back for ever; no part of the capture asks the wall clock."""

from __future__ import annotations

import random
import re
import threading
import time
from pathlib import Path
from typing import cast

import pytest

import tidegate
from tests.puller.test_puller import SPAN, World, eventually, fail
from tidegate.config.values import TXN_MODE
from tidegate.eventstore import store_view
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.lock_resolver import LiveTransactions
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.model import timestamp
from tidegate.model.span import Span, span_id
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.puller import lock_cleaner
from tidegate.puller.lock_cleaner import REST_ROUNDS, Behind, Rests, Stuck, clean
from tidegate.puller.puller import Puller
from tidegate.tikv.server import EmbeddedUpstream


@pytest.mark.integration
def test_the_lock_of_a_dead_client_is_resolved_but_not_that_of_a_live_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("lock_cleaner", "stuck_spans"):
        monkeypatch.setattr(f"tidegate.puller.{module}.STUCK_S", 0.4)
    upstream = EmbeddedUpstream(tmp_path / "upstream", regions=1)
    pd = PdClient(upstream.start().pd)
    world = World(upstream, pd, tmp_path / "events", random.Random(3))
    start = pd.tso()
    dead, alive = pd.tso(), pd.tso()
    TwoPhase(pd, dead, b"t-dead", ttl_ms=300).prewrite([Mutation(PUT, b"t-dead", b"v")], Backoff(5000))
    living = TwoPhase(pd, alive, b"t-live", ttl_ms=3_600_000)
    living.prewrite([Mutation(PUT, b"t-live", b"v")], Backoff(5000))
    store = EventStore(world.folder)
    puller = Puller(pd, store, on_failure=fail)
    puller.watch(SPAN, start)  # only now: a tick between `alive` and its lock would go beyond it
    eventually(
        lambda: store_view.read_frontier(world.folder).get(span_id(SPAN), 0) > dead, "the dead one's end"
    )
    assert store_view.read_frontier(world.folder)[span_id(SPAN)] == alive
    commit_ts = pd.tso()
    living.commit([b"t-live"], commit_ts, Backoff(5000))
    world.last_ts = commit_ts
    world.await_published(SPAN)
    assert [entry.key for entry in world.stored(SPAN, start)] == [b"t-live"]
    puller.close()
    store.close()
    pd.close()
    upstream.stop()


def test_a_range_whose_locks_live_is_asked_for_them_seldom() -> None:
    """TiCDC's resolve-lock limiter: once in 10 s for each region, and what waits counts once."""
    rests = Rests()
    one, other = Span(b"a", b"b"), Span(b"b", b"c")
    taken = []
    for number in range(12):
        rests.next_round()
        taken += [number for bounds in (one, one) if rests.take(bounds)]
        if number == 3:
            assert rests.take(other)
    assert taken == [0, REST_ROUNDS, 2 * REST_ROUNDS]
    assert list(rests._looked) == [one], "what has rested is forgotten"


def test_a_round_asks_for_few_ranges_without_locks_and_all_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A span of 100,000 regions that is being opened must not cost a request for each of them."""
    ranges = [Span(b"%04d" % number, b"%04d" % (number + 1)) for number in range(300)]
    held_up = {ranges[number] for number in range(0, 200, 2)}
    asked: list[Span] = []

    def resolved(_pd: PdClient, bounds: Span, _target: int, _now: int) -> LiveTransactions:
        asked.append(bounds)
        return LiveTransactions(locks_found=3 if bounds in held_up else 0)

    monkeypatch.setattr(lock_cleaner, "_resolve", resolved)
    now = timestamp.compose(1_000_000)
    behind = [Behind(bounds, at, lambda: None) for at, bounds in enumerate(ranges)]
    random.Random(4).shuffle(behind)
    rests = Rests()
    pd = cast(PdClient, None)
    lock_cleaner._unstick(pd, Stuck(0, lambda _: behind), now, rests, threading.Event())
    assert asked == ranges[: 2 * lock_cleaner.FRUITLESS_MAX], (
        "the lowest first; locks that are found are free"
    )
    rests.next_round()
    lock_cleaner._unstick(pd, Stuck(0, lambda _: behind), now, rests, threading.Event())
    assert asked == ranges[: len(asked)], "the next round asks for the next ranges"
    assert len(asked) > 2 * lock_cleaner.FRUITLESS_MAX


@pytest.mark.integration
def test_locks_of_dead_clients_are_resolved_in_a_keyspace_of_api_v2_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("lock_cleaner", "stuck_spans"):
        monkeypatch.setattr(f"tidegate.puller.{module}.STUCK_S", 0.4)
    span, key = Span(b"x\0\0\1", b"x\0\0\2"), b"x\0\0\1k"
    name = span_id(span, TXN_MODE)
    with (
        EmbeddedUpstream(tmp_path / "upstream", api_version=2, keyspaces=["tenant"]) as upstream,
        PdClient(upstream.pd_addr) as pd,
    ):
        start = pd.tso()
        store = EventStore(tmp_path / "events", kv_mode=TXN_MODE)
        puller = Puller(pd, store, kv_mode=TXN_MODE, on_failure=fail)
        puller.watch(span, start)
        dead = pd.tso()
        prewrite = kvrpcpb.PrewriteRequest(primary_lock=key, start_version=dead, lock_ttl=300)
        prewrite.mutations.add(op=kvrpcpb.Put, key=key, value=b"v")
        answer = RegionRequester(pd, 1).at_key(key, "KvPrewrite", prewrite, Backoff(5000))
        assert not answer.errors
        after = pd.tso()
        eventually(
            lambda: store_view.read_frontier(tmp_path / "events").get(name, 0) >= after, "the dead one's end"
        )
        puller.close()
        store.close()


@pytest.mark.integration
def test_a_round_over_many_spans_takes_one_timestamp_and_the_oldest_first(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bulk transaction that leaves locks in a thousand regions must not ask PD a thousand times."""
    monkeypatch.setattr("tidegate.puller.lock_cleaner.STUCK_S", 0.1)
    dead = pd.tso()
    rows = [Mutation(PUT, b"k%03d" % number, b"v") for number in range(40)]
    for row in rows:  # each a transaction of its own
        TwoPhase(pd, pd.tso(), row.key, ttl_ms=1).prewrite([row], Backoff(5000))
    closing, looked = threading.Event(), []
    asked = []
    tso = pd.tso

    def stuck() -> list[Stuck]:
        if looked:
            closing.set()
            return []
        spans = [Span(b"k%03d" % number, b"k%03d" % (number + 1)) for number in range(40)]

        def behind(number: int, span: Span) -> list[Behind]:
            looked.append(number)
            return [Behind(span, number, lambda: None)]

        stamps = [(dead - (number * 7 % 40) * 1000, span) for number, span in enumerate(spans)]
        return [Stuck(ts, lambda _, ts=ts, span=span: behind(ts, span)) for ts, span in stamps]  # type: ignore[misc]

    def counting() -> int:
        asked.append(1)
        return tso()

    time.sleep(0.2)
    monkeypatch.setattr(pd, "tso", counting)
    clean(pd, stuck, closing)
    assert looked == sorted(looked)
    assert len(looked) == 40
    assert len(asked) == 1
    assert Snapshot(pd, tso(), budget_ms=500).batch_get([row.key for row in rows]) == {}


def test_capture_and_control_ask_only_the_monotonic_clock() -> None:
    """A wall clock that jumps either way cannot concern what does not look at it."""
    package = Path(tidegate.__file__).parent
    for folder in ("puller", "eventstore", "kvclient", "control"):
        for source in (package / folder).glob("*.py"):
            found = re.findall(r"now_ms\(\)|time\.time\(|datetime\.now\(|time_ns\(", source.read_text())
            assert not found, f"{source.name} asks the wall clock"
