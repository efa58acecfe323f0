"""The timestamp oracle: strictly increasing timestamps, also across restarts.

Mode `system`: physical time, never behind the machine's clock or an earlier timestamp. An upper bound is
stored before use, so a restart begins above all timestamps of the last run.
Mode `manual`: the current ts changes only by `advance`, and every request gets it. This is for logs recorded
in the past, whose transactions bring their own timestamps.
While the TSO is frozen (a fault), requests fail.
"""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import Final

from tidegate.clock import Clock
from tidegate.errors import InvalidInput, Retryable
from tidegate.model import timestamp
from tidegate.tikv.engine import META, Engine

BOUND_KEY: Final = b"tso/bound"
AHEAD_MS: Final = 3000
LOGICAL_END: Final = 1 << timestamp.LOGICAL_BITS


class TsoMode(StrEnum):
    """The source of timestamps."""

    SYSTEM = "system"
    MANUAL = "manual"


class Tso:
    """Timestamps for the whole cluster. Thread-safe."""

    def __init__(self, engine: Engine, clock: Clock, mode: TsoMode) -> None:
        self.mode = mode
        self._engine = engine
        self._clock = clock
        self._mutex = threading.Lock()
        self._bound = int.from_bytes(engine.get(META, BOUND_KEY) or b"", "big")
        self._thawed = threading.Event()
        self._thawed.set()
        self._last = self._bound
        """Manual: the current ts. System: the last allocated ts; the bound itself is never allocated."""

    def present(self) -> int:
        """The last allocated ts (system) or the current ts (manual); allocates nothing."""
        with self._mutex:
            return self._last

    def get(self, count: int = 1) -> int:
        """Allocate `count` consecutive timestamps and return the last; manual: always the current ts.

        Raises Retryable while the TSO is frozen.
        """
        with self._mutex:
            if not self._thawed.is_set():
                raise Retryable("the TSO is frozen", fix="run `tidegate upstream fault tso thaw`")
            if self.mode is TsoMode.MANUAL:
                return self._last
            if not 0 < count < LOGICAL_END:
                raise InvalidInput(
                    f"{count} timestamps were asked for at once", fix=f"ask for 1 to {LOGICAL_END - 1}"
                )
            return self._allocate(count)

    def _allocate(self, count: int) -> int:
        floor = timestamp.compose(self._clock.now_ms())
        last = max(self._last, floor) + count
        # All of them must be in one millisecond, because clients subtract from the logical part of the last.
        if timestamp.physical_ms(last) != timestamp.physical_ms(last - count + 1):
            last = timestamp.compose(timestamp.physical_ms(last)) + count
        # Durable before a ts from it is given out: after a crash the TSO begins at the bound, above all
        # that it gave out.
        if last >= self._bound:
            self._store(timestamp.compose(timestamp.physical_ms(last) + AHEAD_MS))
        self._last = last
        return last

    @property
    def is_frozen(self) -> bool:
        """Whether requests for timestamps fail."""
        return not self._thawed.is_set()

    def freeze(self) -> None:
        """Stop allocating timestamps."""
        with self._mutex:
            self._thawed.clear()

    def thaw(self) -> None:
        """Allocate timestamps again."""
        self._thawed.set()

    def wait_thawed(self, timeout_s: float) -> bool:
        """Wait until the TSO is not frozen; False if it still is after `timeout_s`."""
        return self._thawed.wait(timeout_s)

    def advance(self, ts: int) -> int:
        """Move a manual clock to `ts`, durably and never back; returns the current ts."""
        with self._mutex:
            if self.mode is not TsoMode.MANUAL:
                raise InvalidInput(
                    "the TSO follows the system clock", fix="start the upstream with --tso manual"
                )
            if ts > self._last:
                # Durable first: after a restart the clock must not be below a ts that was given out.
                self._store(ts)
                self._last = ts
            return self._last

    def _store(self, bound: int) -> None:
        self._engine.write([(META, BOUND_KEY, bound.to_bytes(8, "big"))])
        self._engine.sync()
        self._bound = bound
