"""Concurrent transactions of every kind are isolated; and the checker would notice if they were not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tikv import isolation
from tests.tikv.cluster import Cluster
from tidegate.tikv.percolator.prewrite import _Prewriter


@pytest.mark.parametrize("seed", range(6))
def test_a_history_of_concurrent_transactions_is_snapshot_isolation(
    make: Callable[..., Cluster], seed: int
) -> None:
    history = isolation.run(make(b"g", b"p"), seed)
    assert isolation.violations(history) == []
    kinds = {txn.kind for txn in history if txn.commit_ts}
    assert kinds == set(isolation.KINDS)


def test_the_checker_finds_lost_updates_when_conflicts_are_not_checked(
    make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchecked(self: Any, *arguments: Any) -> None:
        return

    monkeypatch.setattr(_Prewriter, "_check_newer", unchecked)
    found = [text for seed in range(3) for text in isolation.violations(isolation.run(make(b"m"), seed))]
    assert any("wrote" in text for text in found)
