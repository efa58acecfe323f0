"""Asks PD for its time every few seconds and reports irregularities: `control.upstream_time`.

No other component depends on these findings: positions are TiKV's timestamps, and pauses and leases are
measured with the monotonic clock. But an operator should know what is delayed when PD's time stops or jumps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidegate import metrics
from tidegate.clock import Clock
from tidegate.control.upstream_time import Advances, Differs, Halted, Jumped, Remark, UpstreamTime
from tidegate.errors import TidegateError
from tidegate.kvclient.pd import PdClient
from tidegate.log import event
from tidegate.model.timestamp import physical_ms

LOG: Final = logging.getLogger(__name__)

ASK_S: Final = 5.0


class ClockWatch:
    """PD's time as received by this capture. `on_jump` is called when it has jumped ahead."""

    def __init__(self, pd: PdClient, clock: Clock, on_jump: Callable[[], None]) -> None:
        self._pd, self._clock, self._on_jump = pd, clock, on_jump
        self._time = UpstreamTime()

    async def run(self) -> None:
        """Run until cancelled. It reports nothing while PD does not answer, because others report that."""
        while True:
            try:
                received = physical_ms(await asyncio.to_thread(self._pd.tso))
            except TidegateError:
                await asyncio.sleep(ASK_S)
                continue
            for remark in self._time.received(received, self._clock.now_ms(), self._clock.monotonic()):
                self._log(remark)
            metrics.clock_differs_s.set((self._clock.now_ms() - received) / 1000)
            await asyncio.sleep(ASK_S)

    def now_ms(self) -> int:
        """PD's physical time; before PD's first answer the wall clock's."""
        found = self._time.now_ms(self._clock.monotonic())
        return self._clock.now_ms() if found is None else found

    @property
    def trouble(self) -> str:
        """The current irregularities, in words; empty if there are none."""
        time = self._time
        words = ["PD's time does not advance, because its clock was set back"] if time.is_halted else []
        if time.differs_ms:
            words.append(f"this machine's clock is {_lead(time.differs_ms)} PD's time")
        return "; ".join(words)

    def _log(self, remark: Remark) -> None:
        match remark:
            case Jumped(ahead_ms):
                event(
                    LOG,
                    logging.WARNING,
                    "PD time jumped ahead",
                    ahead_s=round(ahead_ms / 1000),
                    effect="locks of clients that live may expire; the GC safepoint is renewed at once",
                )
                self._on_jump()
            case Halted(for_ms):
                event(
                    LOG,
                    logging.WARNING,
                    "PD time does not advance",
                    for_s=round(for_ms / 1000),
                    effect="changes continue; locks of dead clients delay changefeeds until it advances",
                    fix="set the clock of PD's machine right",
                )
            case Advances(behind_ms):
                event(LOG, logging.INFO, "PD time advances again", halted_s=round(behind_ms / 1000))
            case Differs(0):
                event(LOG, logging.INFO, "this machine's clock agrees with PD again")
            case Differs(by_ms):
                event(
                    LOG,
                    logging.WARNING,
                    "this machine's clock differs from PD",
                    clock=f"{_lead(by_ms)} PD's time",
                    effect="only ages and times shown to people are off",
                    fix="set the clock that is wrong",
                )


def _lead(by_ms: int) -> str:
    return f"{abs(by_ms) / 1000:.0f} s {'ahead of' if by_ms > 0 else 'behind'}"
