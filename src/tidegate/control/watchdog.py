"""When something that has work gives no sign of life any more: stopped, hung, waiting for ever.

    nothing to do ------ work comes ------> silent: counts ------ patience is over ------> Hung
          ^                                   |  ^
          +--------- the work is done --------+  +---- any report: from zero again

One watchdog looks after one thing: a feed's pipeline, the owner's calls to its sink, a puller. Its keeper
calls `step` every two seconds or more often, with what that thing has to do and everything it has reported.
The reports may be anything that changes. Slow is not hung: each acknowledged piece is a report.

Silence is counted in time that the caller itself was awake. Each step adds what has passed since the last
one, at most `STEP_MAX_S`. A control process that stood still, because the machine slept or was too busy, has
not read the reports of that time and must not blame others for them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

STEP_MAX_S: Final = 2.0
"""One step adds no more than this to the silence; the caller's own pauses beyond that do not count."""


@dataclass(frozen=True, slots=True)
class Hung:
    """Work waits, and nothing has been reported for as long as it was given."""

    work: str
    """What waits, in words."""
    silent_s: float


class Watchdog:
    """The silence of one thing. No clock of its own; forget it with what it watches, and make a new one."""

    def __init__(self) -> None:
        self._silent_s = 0.0
        self._reports: Hashable = None
        self._stepped_at: float | None = None

    def step(self, now: float, work: str, reports: Hashable, patience_s: float) -> Hung | None:
        """A look at it, `now` in monotonic seconds; says Hung from then on until something is reported.

        `work`: what it has to do, in words; empty: nothing, and silence is right. `reports`: any value that
        differs from the last one when something was reported in between. `patience_s` may differ from step to
        step: a start takes longer than a report.
        """
        passed = 0.0 if self._stepped_at is None else now - self._stepped_at
        self._stepped_at = now
        if not work or reports != self._reports:
            self._reports = reports
            self._silent_s = 0.0
            return None
        self._silent_s += min(max(passed, 0.0), STEP_MAX_S)
        return Hung(work, self._silent_s) if self._silent_s >= patience_s else None
