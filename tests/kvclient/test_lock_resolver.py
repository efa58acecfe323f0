import threading
import time
from collections import Counter
from typing import Any

import pytest

from tidegate.errors import Fatal, Retryable
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.lock_resolver import LockResolver, _async_commit_ts
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.model.span import Span
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.tidb.memcomparable import decode_bytes

ALL = Span(b"", b"")

KEYS = [bytes([first, n]) for first in range(1, 250, 20) for n in range(5)]


def test_a_span_is_cleared_of_ended_transactions_and_live_ones_are_left(pd: PdClient) -> None:
    dead = TwoPhase(pd, pd.tso(), KEYS[0], ttl_ms=1)
    dead.prewrite([Mutation(PUT, key, b"dead") for key in KEYS], Backoff())
    time.sleep(0.01)
    half = TwoPhase(pd, pd.tso(), b"half0")
    half.prewrite([Mutation(PUT, b"half%d" % n, b"v") for n in range(3)], Backoff())
    commit_ts = pd.tso()
    half.commit([b"half0"], commit_ts, Backoff())
    live = TwoPhase(pd, pd.tso(), b"live", ttl_ms=60_000)
    live.prewrite([Mutation(PUT, b"live", b"v")], Backoff())

    resolver = LockResolver(RegionRequester(pd))
    assert resolver.resolve_span(Span(b"", b""), pd.tso(), Backoff()).keys == 1
    now = Snapshot(pd, pd.tso(), budget_ms=500)
    assert now.batch_get(KEYS) == {}
    assert now.get(b"half2") == b"v"
    live.commit([b"live"], pd.tso(), Backoff())
    assert resolver.resolve_span(Span(b"", b""), pd.tso(), Backoff()).keys == 0


def test_the_status_of_a_transaction_is_asked_once_for_all_its_locks(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By several pages, as there are regions and thousands of locks."""
    monkeypatch.setattr("tidegate.kvclient.lock_resolver.SCAN_LOCK_LIMIT", 10)
    dead = TwoPhase(pd, pd.tso(), KEYS[0], ttl_ms=1)
    dead.prewrite([Mutation(PUT, key, b"dead") for key in KEYS], Backoff())
    time.sleep(0.01)
    requester, asked = RegionRequester(pd), Counter[str]()
    at_key = requester.at_key

    def counting(key: bytes, method: str, request: Any, backoff: Backoff) -> Any:
        asked[method] += 1
        return at_key(key, method, request, backoff)

    monkeypatch.setattr(requester, "at_key", counting)
    assert LockResolver(requester).resolve_span(Span(b"", b""), pd.tso(), Backoff()).keys == 0
    assert asked == {"KvCheckTxnStatus": 1}
    assert Snapshot(pd, pd.tso(), budget_ms=500).batch_get(KEYS) == {}


def test_locks_above_the_ts_are_not_looked_at(pd: PdClient) -> None:
    ts = pd.tso()
    later = TwoPhase(pd, pd.tso(), b"k", ttl_ms=60_000)
    later.prewrite([Mutation(PUT, b"k", b"v")], Backoff())
    assert LockResolver(RegionRequester(pd)).resolve_span(Span(b"a", b"z"), ts, Backoff()).keys == 0


def test_a_page_of_live_locks_is_passed_and_a_dead_lock_after_it_cleared(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.kvclient.lock_resolver.SCAN_LOCK_LIMIT", 2)
    live = TwoPhase(pd, pd.tso(), b"l0", ttl_ms=60_000)
    live.prewrite([Mutation(PUT, b"l%d" % n, b"v") for n in range(5)], Backoff())
    dead = TwoPhase(pd, pd.tso(), b"m0", ttl_ms=1)
    dead.prewrite([Mutation(PUT, b"m0", b"v")], Backoff())
    time.sleep(0.01)
    resolver = LockResolver(RegionRequester(pd))
    assert resolver.resolve_span(Span(b"l", b"n"), pd.tso(), Backoff()).keys == 5
    assert Snapshot(pd, pd.tso(), budget_ms=500).get(b"m0") is None


def locks_of(pd: PdClient) -> list[bytes]:
    """The keys of all locks there are."""
    found: list[bytes] = []
    region = None
    while region is None or region.end_key:
        region = pd.regions.locate_start(decode_bytes(region.end_key)[0] if region else b"")
        request = kvrpcpb.ScanLockRequest(max_version=pd.tso(), limit=1000)
        response = RegionRequester(pd).send(region, "KvScanLock", request, Backoff())
        found += [lock.key for lock in response.locks]
    return found


def expired_claims(pd: PdClient, *keys: bytes) -> TwoPhase:
    """A pessimistic transaction whose claims are too old, and whose client lives."""
    txn = TwoPhase(pd, start := pd.tso(), keys[0], for_update_ts=start, ttl_ms=1)
    txn.pessimistic_lock(keys, Backoff())
    time.sleep(0.01)
    return txn


def test_claims_of_a_pessimistic_transaction_are_left_alone_and_it_commits(pd: PdClient) -> None:
    """However old they are: no record of a rollback lets its own prewrite fail."""
    keys = [b"claim0", b"claim1", b"x" * 9]
    txn = expired_claims(pd, *keys)
    assert LockResolver(RegionRequester(pd)).resolve_span(ALL, pd.tso(), Backoff()).keys == 0
    assert locks_of(pd) == keys
    txn.prewrite([Mutation(PUT, key, b"v") for key in keys], Backoff(), pessimistic=keys)
    txn.commit(keys, pd.tso(), Backoff())
    assert set(Snapshot(pd, pd.tso()).batch_get(keys)) == set(keys)


def claim(txn: TwoPhase, key: bytes, ttl_ms: int) -> kvrpcpb.LockInfo:
    """Return the lock that a writer gets when it meets the claim."""
    return kvrpcpb.LockInfo(
        key=key,
        primary_lock=txn.primary,
        lock_version=txn.start_ts,
        lock_ttl=ttl_ms,
        lock_type=kvrpcpb.PessimisticLock,
        lock_for_update_ts=txn.for_update_ts,
    )


def test_a_writer_takes_an_expired_claim_away_and_leaves_no_mark_of_it(pd: PdClient) -> None:
    """Its transaction may still write the key, if nobody else does before."""
    txn = expired_claims(pd, b"primary", b"wanted")
    resolver = LockResolver(RegionRequester(pd))
    assert resolver.resolve([claim(txn, b"wanted", 1)], 0, Backoff()) == ([], 0)
    assert b"wanted" not in locks_of(pd)
    for key in (b"wanted", b"primary"):
        txn.prewrite([Mutation(PUT, key, b"v")], Backoff(2000), pessimistic=[key])
    txn.commit([b"primary", b"wanted"], pd.tso(), Backoff())
    assert Snapshot(pd, pd.tso()).get(b"wanted") == b"v"


def test_a_writer_waits_for_a_claim_that_is_alive(pd: PdClient) -> None:
    txn = TwoPhase(pd, start := pd.tso(), b"k", for_update_ts=start, ttl_ms=60_000)
    txn.pessimistic_lock([b"k"], Backoff())
    _, wait_ms = LockResolver(RegionRequester(pd)).resolve([claim(txn, b"k", 60_000)], 0, Backoff())
    assert wait_ms > 1000
    assert locks_of(pd) == [b"k"]


def test_a_lock_that_names_a_former_primary_is_left_alone(pd: PdClient) -> None:
    """A pessimistic transaction chose another primary; a late prewrite still names the first one."""
    start = pd.tso()
    late = TwoPhase(pd, start, b"first", for_update_ts=start, ttl_ms=1)
    late.prewrite([Mutation(PUT, b"key", b"late")], Backoff())
    txn = TwoPhase(pd, start, b"second", for_update_ts=start, ttl_ms=1)
    txn.pessimistic_lock([b"second", b"first"], Backoff())
    time.sleep(0.01)
    assert LockResolver(RegionRequester(pd)).resolve_span(ALL, pd.tso(), Backoff()).keys == 1
    assert sorted(locks_of(pd)) == [b"first", b"key", b"second"]
    keys = [b"second", b"first"]
    txn.prewrite([Mutation(PUT, key, b"v") for key in keys], Backoff(), pessimistic=keys)
    txn.commit(keys, pd.tso(), Backoff())
    assert set(Snapshot(pd, pd.tso()).batch_get(keys)) == set(keys)


def async_prewrite(pd: PdClient, start_ts: int, key: bytes, others: list[bytes], max_commit_ts: int) -> int:
    """Prewrite one key of a transaction whose primary is `p`; its min_commit_ts, 0: it fell back."""
    request = kvrpcpb.PrewriteRequest(
        mutations=[kvrpcpb.Mutation(op=kvrpcpb.Put, key=key, value=b"v")],
        primary_lock=b"p",
        start_version=start_ts,
        lock_ttl=1,
        use_async_commit=True,
        secondaries=others,
        max_commit_ts=max_commit_ts,
    )
    response = RegionRequester(pd).at_key(key, "KvPrewrite", request, Backoff())
    assert not response.errors
    return int(response.min_commit_ts)


def test_locks_do_not_commit_an_async_commit_that_fell_back_to_two_phases(pd: PdClient) -> None:
    start = pd.tso()
    assert async_prewrite(pd, start, b"p", [b"s"], pd.tso() + (1 << 40))
    assert async_prewrite(pd, start, b"s", [], start) == 0
    time.sleep(0.01)
    assert LockResolver(RegionRequester(pd)).resolve_span(ALL, pd.tso(), Backoff()).keys == 0
    assert locks_of(pd) == []
    assert Snapshot(pd, pd.tso()).batch_get([b"p", b"s"]) == {}
    with pytest.raises(Retryable, match="rolled back"):
        TwoPhase(pd, start, b"p").commit([b"p", b"s"], pd.tso(), Backoff())


def test_an_async_commit_whose_locks_are_all_there_is_committed(pd: PdClient) -> None:
    start = pd.tso()
    least = [async_prewrite(pd, start, key, others, 1 << 62) for key, others in ((b"p", [b"s"]), (b"s", []))]
    time.sleep(0.01)
    assert LockResolver(RegionRequester(pd)).resolve_span(ALL, pd.tso(), Backoff()).keys == 0
    assert set(Snapshot(pd, max(least)).batch_get([b"p", b"s"])) == {b"p", b"s"}
    assert Snapshot(pd, max(least) - 1).batch_get([b"p", b"s"]) == {}


def lock(start_ts: int = 10, min_commit_ts: int = 0) -> kvrpcpb.LockInfo:
    return kvrpcpb.LockInfo(
        primary_lock=b"p", lock_version=start_ts, use_async_commit=True, min_commit_ts=min_commit_ts
    )


def test_the_commit_ts_of_an_async_commit_is_the_largest_its_locks_ask_for() -> None:
    assert _async_commit_ts(lock(min_commit_ts=20), [lock(min_commit_ts=30), lock()], []) == 30
    assert _async_commit_ts(lock(min_commit_ts=20), [lock(min_commit_ts=30)], [30]) == 30
    assert _async_commit_ts(lock(min_commit_ts=20), [], [0, 0]) == 0


@pytest.mark.parametrize(
    ("locks", "decided"),
    [([], [19]), ([lock(min_commit_ts=31)], [30]), ([], [30, 0]), ([], [30, 31]), ([lock(start_ts=11)], [])],
)
def test_keys_of_an_async_commit_that_contradict_each_other_decide_nothing(
    locks: list[kvrpcpb.LockInfo], decided: list[int]
) -> None:
    with pytest.raises(Fatal, match="contradict"):
        _async_commit_ts(lock(min_commit_ts=20), locks, decided)


def test_a_contradictory_transaction_does_not_keep_others_uncleared(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = TwoPhase(pd, pd.tso(), b"q", ttl_ms=1)
    dead.prewrite([Mutation(PUT, b"q", b"v")], Backoff())
    start = pd.tso()
    async_prewrite(pd, start, b"p", [b"s"], 1 << 62)
    time.sleep(0.01)

    def contradict(*_: object) -> int:
        raise Fatal("the keys of an async-commit transaction contradict each other")

    monkeypatch.setattr("tidegate.kvclient.lock_resolver._async_commit_ts", contradict)
    assert LockResolver(RegionRequester(pd)).resolve_span(ALL, pd.tso(), Backoff()).keys == 1
    assert locks_of(pd) == [b"p"]


def test_an_eager_cleaner_loses_nothing_of_transactions_that_wait_long(
    pd: PdClient,
) -> None:
    """Their claims expire while they wait, and all of them commit."""
    closing, rounds = threading.Event(), Counter[str]()

    def clean() -> None:
        resolver = LockResolver(RegionRequester(pd))
        while not closing.is_set():
            resolver.resolve_span(ALL, pd.tso(), Backoff())
            rounds["done"] += 1

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    rows = [b"row%d" % number for number in range(40)]
    try:
        for row in rows:
            keys = [b"hot", row]
            claims = expired_claims(pd, *keys)
            seen = rounds["done"]
            while rounds["done"] < seen + 2:
                assert cleaner.is_alive()
                time.sleep(0.001)
            txn = TwoPhase(pd, claims.start_ts, b"hot", for_update_ts=claims.for_update_ts)
            txn.prewrite([Mutation(PUT, key, row) for key in keys], Backoff(), pessimistic=keys)
            txn.commit(keys, pd.tso(), Backoff())
    finally:
        closing.set()
        cleaner.join()
    assert Snapshot(pd, pd.tso()).batch_get([b"hot", *rows]) == {row: row for row in rows} | {
        b"hot": rows[-1]
    }
