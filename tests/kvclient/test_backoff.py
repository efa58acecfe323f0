import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import Retryable
from tidegate.kvclient.backoff import CURVES, Backoff, Cause


@given(st.integers(0, 5000), st.lists(st.sampled_from(list(Cause)), max_size=200), st.integers())
def test_waits_never_add_up_to_more_than_the_budget(budget_ms: int, causes: list[Cause], seed: int) -> None:
    backoff, total = Backoff(budget_ms, seed), 0.0
    for cause in causes:
        try:
            total += backoff.next(cause)
        except Retryable:
            break
    assert total <= budget_ms / 1000 + 1e-9


def test_waits_grow_to_the_cap_of_their_cause() -> None:
    backoff = Backoff(10_000_000, seed=1)
    waits = [backoff.next(Cause.BUSY) * 1000 for _ in range(12)]
    curve = CURVES[Cause.BUSY]
    assert waits[0] <= 1.5 * curve.base_ms
    assert max(waits) <= 1.5 * curve.cap_ms
    assert waits[-1] >= 0.5 * curve.cap_ms


def test_the_same_seed_gives_the_same_waits() -> None:
    first, second = Backoff(seed=7), Backoff(seed=7)
    assert [first.next(Cause.RPC) for _ in range(5)] == [second.next(Cause.RPC) for _ in range(5)]


def test_a_peers_own_wish_is_kept_within_the_budget() -> None:
    assert Backoff(seed=1).next(Cause.BUSY, at_least_ms=5000) >= 5
    assert Backoff(100, seed=1).next(Cause.BUSY, at_least_ms=5000) == 0.1


def test_a_spent_budget_names_the_cause_and_the_place() -> None:
    backoff = Backoff(1, seed=1)
    backoff.next(Cause.LOCK)
    with pytest.raises(Retryable) as caught:
        backoff.next(Cause.LOCK, where="key 00")
    assert "a lock of a live transaction" in str(caught.value)
    assert "key 00" in str(caught.value)
