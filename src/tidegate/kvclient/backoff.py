"""The waits between retries, by kind of error. Pure: no clock, no sleep; jitter from a seed.

Each operation (a read, a commit) uses one `Backoff` for all its retries: waits grow for each kind of error,
and the operation's budget bounds their sum. When it is spent, `next` raises Retryable with the last cause.
Nested retry loops share the budget, so their number of attempts cannot multiply.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.errors import Retryable


class Cause(StrEnum):
    """The reason why the operation has to wait."""

    RPC = "no answer"
    PD = "PD has no answer"
    REGION_MISS = "the region moved or was split"
    NOT_LEADER = "the region has another leader"
    BUSY = "the store is busy"
    LOCK = "a lock of a live transaction is in the way"
    CONFLICT = "another transaction wrote the key"


@dataclass(frozen=True, slots=True)
class Curve:
    """Waits of `base_ms` * 2^n, at most `cap_ms`, plus or minus half."""

    base_ms: int
    cap_ms: int


CURVES: Final[dict[Cause, Curve]] = {
    Cause.RPC: Curve(50, 2_000),
    Cause.PD: Curve(50, 2_000),
    Cause.REGION_MISS: Curve(2, 500),
    Cause.NOT_LEADER: Curve(2, 500),
    Cause.BUSY: Curve(200, 3_000),
    Cause.LOCK: Curve(5, 1_000),
    Cause.CONFLICT: Curve(5, 500),
}
"""Close to client-go's `retry/config.go`, with lower caps: our operations are small."""

DEFAULT_BUDGET_MS: Final = 20_000


class Backoff:
    """The waits of one operation."""

    def __init__(self, budget_ms: int = DEFAULT_BUDGET_MS, seed: int | None = None) -> None:
        self._left_ms = budget_ms
        self._budget_ms = budget_ms
        self._random = random.Random(seed)
        self._attempts: dict[Cause, int] = {}

    def next(self, cause: Cause, *, at_least_ms: int = 0, where: str = "", why: str = "") -> float:
        """The seconds to wait before the next attempt.

        `at_least_ms`: the wait that the peer requested. Raises Retryable if the budget is spent.
        """
        if self._left_ms <= 0:
            raise Retryable(
                f"gave up after {self._budget_ms / 1000:g} s of retries: {cause.value}",
                where=where,
                why=why,
                fix="check that the cluster is healthy, then try again",
            )
        attempt = self._attempts.get(cause, 0)
        self._attempts[cause] = attempt + 1
        curve = CURVES[cause]
        # The shift is bounded because attempts are not; at 20 every curve has reached its cap.
        flat = min(curve.cap_ms, curve.base_ms << min(attempt, 20))
        # With jitter: if a store dies, thousands of callers fail at the same moment and must not return
        # together. At least 1 ms, so that each retry takes something from the budget and the loop ends.
        wait_ms = max(1, at_least_ms, round(flat * (0.5 + self._random.random())))
        # The last wait takes what is left, so an attempt follows it before the operation gives up.
        wait_ms = min(wait_ms, self._left_ms)
        self._left_ms -= wait_ms
        return wait_ms / 1000

    @property
    def attempts(self) -> int:
        """The number of waits so far."""
        return sum(self._attempts.values())
