"""The cache of promises of large transactions."""

from __future__ import annotations

import pytest

from tidegate.tikv.txn import status_cache as txn_status
from tidegate.tikv.txn.status_cache import TxnStatusCache


def test_a_promise_only_rises_and_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txn_status, "TXNS_MAX", 2)
    cache = TxnStatusCache()
    assert cache.min_commit_ts(5) == 5
    cache.update(5, 20)
    cache.update(5, 10)
    assert cache.min_commit_ts(5) == 20
    cache.update(6, 30)
    cache.update(5, 21)
    cache.update(7, 40)
    assert [cache.min_commit_ts(ts) for ts in (5, 6, 7)] == [21, 6, 40]
