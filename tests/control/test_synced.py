"""When a changefeed is said to be synced."""

from __future__ import annotations

import pytest

from tidegate.control.synced import synced
from tidegate.model.timestamp import compose

NOW_S = 1_000_000


def at(seconds_ago: float) -> int:
    return compose(round((NOW_S - seconds_ago) * 1000))


@pytest.mark.parametrize(
    ("checkpoint", "resolved", "last", "verdict", "why"),
    [
        (1, 0, 400, True, "follows upstream's time"),
        (14, 14, 301, True, "follows upstream's time"),
        (1, 0, 299, False, "within the last 300 s"),
        (100, 95, 400, False, "stands still"),
        (100, 10, 400, False, "behind what was received"),
    ],
)
def test_the_verdict(checkpoint: float, resolved: float, last: float, verdict: bool, why: str) -> None:
    found = synced(at(checkpoint), at(resolved), at(last), at(0), 300, 15)
    assert found[0] is verdict
    assert why in found[1]


def test_a_feed_that_never_had_a_row_is_synced_when_its_checkpoint_follows() -> None:
    assert synced(at(1), at(0), 0, at(0), 300, 15)[0]
