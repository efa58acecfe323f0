"""Compares PD's physical time with the monotonic clock and with this machine's wall clock.

PD's timestamps never decrease. If the clock of its machine is set back, PD's physical time *stops* until
that clock has caught up. Everything that depends on it stops as well: the lifetime of a dead client's locks,
and the time for which a GC safepoint is held. If the clock is set forward, PD's time *jumps*, and those
lifetimes end at once. Neither case loses a change. Pure: the caller passes PD's answers in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

JUMP_MS: Final = 10_000
"""Smaller differences may come from a change of PD's leader or a slow answer, and are ignored."""


@dataclass(frozen=True, slots=True)
class Jumped:
    """PD's time has advanced by this much more than the monotonic clock."""

    ahead_ms: int


@dataclass(frozen=True, slots=True)
class Halted:
    """PD's time has not advanced, or hardly, for this long."""

    for_ms: int


@dataclass(frozen=True, slots=True)
class Advances:
    """PD's time advances again, and is this much behind the monotonic clock."""

    behind_ms: int


@dataclass(frozen=True, slots=True)
class Differs:
    """This machine's wall clock is this much ahead of PD's time. Below 0: behind; 0: they agree again."""

    by_ms: int


Remark = Jumped | Halted | Advances | Differs


class UpstreamTime:
    """Keeps PD's time, and reports its jumps, stops and differences."""

    def __init__(self) -> None:
        self.is_halted = False
        self.differs_ms = 0
        """The wall clock's lead in the last `Differs`."""
        self._received: tuple[int, float] | None = None
        self._in_step: tuple[int, float] = (0, 0.0)
        """PD's time and the monotonic clock when both last advanced together."""

    def now_ms(self, now: float) -> int | None:
        """PD's physical time at monotonic second `now`. None until PD has answered once."""
        if self._received is None:
            return None
        physical_ms, at = self._received
        return physical_ms if self.is_halted else physical_ms + _ms(now - at)

    def received(self, physical_ms: int, wall_ms: int, now: float) -> list[Remark]:
        """PD has answered with `physical_ms` at monotonic second `now`, at wall clock time `wall_ms`."""
        found: list[Remark] = []
        if self._received is None:
            self._in_step = (physical_ms, now)
        else:
            found += self._moved(physical_ms, now, *self._received)
        self._received = (physical_ms, now)
        lead = wall_ms - physical_ms
        # Compared with the last remark, not with 0, so that a lasting difference is reported once.
        if abs(lead - self.differs_ms) > JUMP_MS:
            self.differs_ms = lead if abs(lead) > JUMP_MS else 0
            found.append(Differs(self.differs_ms))
        return found

    def _moved(self, physical_ms: int, now: float, before_ms: int, before: float) -> list[Remark]:
        passed, moved = _ms(now - before), physical_ms - before_ms
        # Compared with the last answer, not with the last moment in step: a jump is one step.
        if moved - passed > JUMP_MS:
            self._in_step, self.is_halted = (physical_ms, now), False
            return [Jumped(moved - passed)]
        # Summed since both last moved together, because a halted clock differs by little from answer
        # to answer.
        behind = _ms(now - self._in_step[1]) - (physical_ms - self._in_step[0])
        # Half the pace counts as advancing, because answers may come late.
        if 2 * moved >= passed:
            was, self.is_halted = self.is_halted, False
            self._in_step = (physical_ms, now)
            return [Advances(behind)] if was else []
        if behind > JUMP_MS and not self.is_halted:
            self.is_halted = True
            return [Halted(behind)]
        return []


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
