"""Concurrent transactions of every kind are isolated; and the checker would notice if they were not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.tikv import isolation
from tests.tikv.cluster import Cluster
from tidegate.tikv.percolator.prewrite import _Prewriter


@pytest.mark.slow
def test_histories_of_concurrent_transactions_are_snapshot_isolation(
    make: Callable[..., Cluster], pytestconfig: pytest.Config
) -> None:
    """Many short runs over one store; `make isolation SEEDS=n` for more."""
    cluster = make(b"g", b"p", stores=3)
    first, count = pytestconfig.getoption("first_seed"), pytestconfig.getoption("isolation_seeds")
    kinds: Counter[str] = Counter()
    for seed in range(first, first + count):
        history = isolation.run(cluster, seed, transactions=4)
        assert isolation.violations(history) == [], f"seed {seed}"
        kinds.update(txn.kind for txn in history if txn.commit_ts)
    print(f"{count} seeds, committed: {dict(kinds)}")
    assert kinds.keys() == set(isolation.KINDS)


def test_the_checker_finds_lost_updates_when_conflicts_are_not_checked(
    make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchecked(self: Any, *arguments: Any) -> None:
        return

    monkeypatch.setattr(_Prewriter, "_check_newer", unchecked)
    found = [text for seed in range(3) for text in isolation.violations(isolation.run(make(b"m"), seed))]
    assert any("wrote" in text for text in found)
