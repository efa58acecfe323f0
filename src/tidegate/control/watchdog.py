"""Detects that something with work to do gives no sign of life any more: stopped, hung, or blocked forever.

    nothing to do ------ work comes ------> silent: counts ------ patience is over ------> Hung
          ^                                   |  ^
          +--------- the work is done --------+  +---- any report: from zero again

One watchdog watches one thing: a feed's pipeline, the owner's calls to its sink, a puller. The caller calls
`step` at least every two seconds, with the work of that thing and everything it has reported. Any change of
the reports counts. Slow is not hung: each acknowledged piece is a report.

Only time during which the caller itself ran counts as silence. Each step adds the time since the last step,
at most `STEP_MAX_S`. If the control process was stopped, because the machine slept or was too busy, it could
not read any reports during that time, so the missing reports prove nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

STEP_MAX_S: Final = 2.0
"""The most that one step adds to the silence. Longer pauses of the caller do not count."""


@dataclass(frozen=True, slots=True)
class Hung:
    """Work waits, and nothing was reported for `patience_s`."""

    work: str
    """The work that waits, in words."""
    silent_s: float


class Watchdog:
    """Measures the silence of one thing. It has no clock. When that thing is replaced, make a new
    watchdog.
    """

    def __init__(self) -> None:
        self._silent_s = 0.0
        self._reports: Hashable = None
        self._stepped_at: float | None = None

    def step(self, now: float, work: str, reports: Hashable, patience_s: float) -> Hung | None:
        """Look once. Returns Hung when the silence has lasted `patience_s`, until something is reported.

        `now`: monotonic seconds. `work`: its work, in words; empty: it has none, and silence is fine.
        `reports`: a value that differs from the last one if something was reported in between. `patience_s`
        may differ from step to step, because a start takes longer than a report.
        """
        passed = 0.0 if self._stepped_at is None else now - self._stepped_at
        self._stepped_at = now
        if not work or reports != self._reports:
            self._reports = reports
            self._silent_s = 0.0
            return None
        # docs/guarantees.md#a-hang-never-goes-unnoticed: at most `STEP_MAX_S` a step, because this process
        # may have been stopped itself, and then nobody's silence is proven.
        self._silent_s += min(max(passed, 0.0), STEP_MAX_S)
        return Hung(work, self._silent_s) if self._silent_s >= patience_s else None
