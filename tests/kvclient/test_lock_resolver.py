from collections import Counter
from typing import Any

import pytest

from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.lock_resolver import LockResolver
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.model.span import Span

KEYS = [bytes([first, n]) for first in range(1, 250, 20) for n in range(5)]


def test_a_span_is_cleared_of_ended_transactions_and_live_ones_are_left(pd: PdClient) -> None:
    dead = TwoPhase(pd, pd.tso(), KEYS[0], ttl_ms=1)
    dead.prewrite([Mutation(PUT, key, b"dead") for key in KEYS], Backoff())
    half = TwoPhase(pd, pd.tso(), b"half0")
    half.prewrite([Mutation(PUT, b"half%d" % n, b"v") for n in range(3)], Backoff())
    commit_ts = pd.tso()
    half.commit([b"half0"], commit_ts, Backoff())
    live = TwoPhase(pd, pd.tso(), b"live", ttl_ms=60_000)
    live.prewrite([Mutation(PUT, b"live", b"v")], Backoff())

    resolver = LockResolver(RegionRequester(pd))
    assert resolver.resolve_span(Span(b"", b""), pd.tso(), Backoff()) == 1
    now = Snapshot(pd, pd.tso(), budget_ms=500)
    assert now.batch_get(KEYS) == {}
    assert now.get(b"half2") == b"v"
    live.commit([b"live"], pd.tso(), Backoff())
    assert resolver.resolve_span(Span(b"", b""), pd.tso(), Backoff()) == 0


def test_what_became_of_a_transaction_is_asked_once_however_many_locks_it_left(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By several pages, as there are regions and thousands of locks."""
    monkeypatch.setattr("tidegate.kvclient.lock_resolver.SCAN_LOCK_LIMIT", 10)
    dead = TwoPhase(pd, pd.tso(), KEYS[0], ttl_ms=1)
    dead.prewrite([Mutation(PUT, key, b"dead") for key in KEYS], Backoff())
    requester, asked = RegionRequester(pd), Counter[str]()
    at_key = requester.at_key

    def counting(key: bytes, method: str, request: Any, backoff: Backoff) -> Any:
        asked[method] += 1
        return at_key(key, method, request, backoff)

    monkeypatch.setattr(requester, "at_key", counting)
    assert LockResolver(requester).resolve_span(Span(b"", b""), pd.tso(), Backoff()) == 0
    assert asked == {"KvCheckTxnStatus": 1}
    assert Snapshot(pd, pd.tso(), budget_ms=500).batch_get(KEYS) == {}


def test_locks_above_the_ts_are_not_looked_at(pd: PdClient) -> None:
    ts = pd.tso()
    later = TwoPhase(pd, pd.tso(), b"k", ttl_ms=60_000)
    later.prewrite([Mutation(PUT, b"k", b"v")], Backoff())
    assert LockResolver(RegionRequester(pd)).resolve_span(Span(b"a", b"z"), ts, Backoff()) == 0


def test_a_page_full_of_live_locks_is_passed_and_the_dead_one_behind_it_cleared(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.kvclient.lock_resolver.SCAN_LOCK_LIMIT", 2)
    live = TwoPhase(pd, pd.tso(), b"l0", ttl_ms=60_000)
    live.prewrite([Mutation(PUT, b"l%d" % n, b"v") for n in range(5)], Backoff())
    dead = TwoPhase(pd, pd.tso(), b"m0", ttl_ms=1)
    dead.prewrite([Mutation(PUT, b"m0", b"v")], Backoff())
    resolver = LockResolver(RegionRequester(pd))
    assert resolver.resolve_span(Span(b"l", b"n"), pd.tso(), Backoff()) == 5
    assert Snapshot(pd, pd.tso(), budget_ms=500).get(b"m0") is None
