"""How much is under way follows what the broker has taken."""

from __future__ import annotations

from tidegate.sink.kafka.pace import (
    LOOK_S,
    PIECE_MAX,
    TRANSACTION_BYTES,
    TRANSACTION_S,
    WINDOW_MAX,
    WINDOW_MIN,
    Pace,
)

MB = 1 << 20


def fed(pace: Pace, rate: int, seconds: float, now: float = 0.0) -> float:
    """Acknowledgements at a steady rate; the time at their end."""
    for _ in range(int(seconds * 10)):
        now += 0.1
        pace.acknowledged(rate // 10, now)
    return now


def test_it_starts_small_and_forgets_what_was() -> None:
    pace = Pace()
    assert pace.window(0.0) == pace.piece(0.0) == WINDOW_MIN
    now = fed(pace, 200 * MB, 20)
    assert (pace.window(now), pace.piece(now)) == (WINDOW_MAX, PIECE_MAX)
    assert pace.window(now + LOOK_S + 1) == WINDOW_MIN
    now = fed(pace, 200 * MB, 20, now)
    pace.slowed()
    assert pace.window(now) == WINDOW_MIN


def test_the_window_is_half_a_second_of_data_at_1_mb_a_second_and_more() -> None:
    for rate in (MB, 10 * MB, 100 * MB):
        pace = Pace()
        assert pace.window(fed(pace, rate, 30)) <= rate * 0.51


def test_a_burst_that_a_quota_allows_is_not_taken_for_the_brokers_pace() -> None:
    """Kafka lets a rested client send ten seconds' worth, and then holds it to the rate."""
    pace = Pace()
    pace.acknowledged(10 * MB, 100.0)
    assert pace.window(100.0) <= 0.51 * MB


def test_a_transaction_ends_by_time_or_size_and_only_while_it_is_open() -> None:
    pace = Pace()
    assert not pace.is_due(1e9)
    pace.begin(5.0)
    assert not pace.is_due(5.0 + TRANSACTION_S - 0.1)
    assert pace.is_due(5.0 + TRANSACTION_S)
    pace.begin(50.0)
    pace.sent(TRANSACTION_BYTES)
    assert pace.is_due(50.0)
    pace.ended()
    assert not pace.is_due(1e9)
