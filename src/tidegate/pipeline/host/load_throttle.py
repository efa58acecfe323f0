"""How much of the workers' time initial loads may have, so that changefeeds with rows come first. Pure.

    rows of changefeeds are delivered, and threads wait for cores --> less, down to LOAD_SHARE_MIN
    threads do not wait                                           --> more, up to all
    no rows are delivered                                         --> all

A load that runs as fast as it can fills every core that it gets. Then all that delivers rows takes longer:
puller, control process, application, workers. The kernel knows how much longer: for each thread it counts
how long it ran, and how long it was ready and waited for a core (`cpu_wait`). If threads wait twice as long
as they run, the work takes three times as long as it would alone. Slow sinks do not matter: they make nobody
wait for a core, and a load that stopped because of them would stop for nothing.

The share is that of the time of all `cores` workers that loads may have (`timetable`). Pauses between pieces
keep it: after a piece that used s seconds, the next one begins s / (share * cores) seconds after it began.
Pieces are short while rows are delivered, because one that has begun is not interrupted: they end when they
have used SHORT_S of CPU time. One that takes longer than that has waited, for a core or its sink, and no
pause follows for that.

Bounds: a load always has LOAD_SHARE_MIN of that time, so it takes at most about 1 / LOAD_SHARE_MIN times as
long as at full speed. No pause is longer than PAUSE_MAX_S. In a second the share rises by SHARE_STEP or is
halved, so it does not swing between its bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

LOAD_SHARE_MIN: Final = 0.1
"""The least share. Without it, a machine that is full for another reason would stop a load for ever."""
SHARE_STEP: Final = 0.1
"""Added to the share in a second in which threads did not wait for cores."""
SHARE_CUT: Final = 0.5
"""The factor of the share for a second in which they did."""
LATE: Final = 2.0
"""From so many seconds of waiting for each second of running on, rows count as late: all takes three times as
long as alone.
"""
EASY: Final = 1.0
"""The same up to which the share rises. In between it stays."""
RUN_MIN_S: Final = 0.005
"""Threads that ran for less count as if they had run for this time, because little says little."""
LOOK_S: Final = 1.0
"""The time between two looks."""
LIVE_S: Final = 3.0
"""Rows are being delivered until this long after a worker last had a piece. Longer than the longest pause
between pieces (`exchange.pace`).
"""
IDLE_S: Final = 10.0
"""After this time without a load, the next one begins with the least share."""
PAUSE_MAX_S: Final = 5.0
"""The longest pause. Longer than a piece of a load reads (`load_task.TASK_S`)."""
SHORT_S: Final = 0.5
"""The CPU time of a piece of a load while rows are delivered."""
LONG_S: Final = 4.0
"""The same while none are."""


@dataclass(frozen=True, slots=True)
class CpuTime:
    """The time of the threads that deliver rows since the last look. Seconds, summed over them."""

    run_s: float
    """How long they had a core."""
    wait_s: float
    """How long they were ready and had none."""


class LoadThrottle:
    """When the next piece of a load may begin. Asks no clock: `now` is in monotonic seconds.

    Without a call of `look`, as on a cluster, whose machines cannot be looked at, there is no limit.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._share = 1.0
        self._begins_at = float("-inf")
        self._looked_at = float("-inf")
        self._live_at = float("-inf")
        self._is_known = False
        """Whether the last look has found anything."""

    @property
    def share(self) -> float:
        """The share of the workers' time that loads may have now."""
        return self._share

    def delivers(self, now: float) -> None:
        """A worker has a piece of a changefeed's stream, at a sink that is not in doubt."""
        self._live_at = now

    def is_look_due(self, now: float) -> bool:
        """Whether it is time for a look. Call `look` only while there is a load."""
        return now - self._looked_at >= LOOK_S

    def look(self, now: float, found: CpuTime | None) -> None:
        """Take what threads have done since the last look. None: it is not known, so nothing is limited."""
        is_new, self._looked_at = now - self._looked_at > IDLE_S, now
        self._is_known = found is not None
        if found is None or not self._is_live(now):
            self._share = 1.0
        elif is_new:
            # The other way round, a full machine would have the load at full speed for some seconds.
            self._share = LOAD_SHARE_MIN
        else:
            self._step(found.wait_s / max(found.run_s, RUN_MIN_S))

    def may_begin(self, now: float, out: int) -> bool:
        """Whether a piece may begin. `out`: how many workers have a piece of a load."""
        if self._share == 1.0:
            return True
        return now >= self._begins_at and out < math.ceil(self._share * self._cores)

    def ended(self, now: float, seconds: float) -> None:
        """A piece that took `seconds` has ended."""
        # From its beginning on, so that with the time of several workers their pieces overlap. Not all of its
        # time: on a full machine most of it is waiting, and the load would have much less than its share.
        used_s = min(seconds, SHORT_S)
        begins_at = max(self._begins_at, now - seconds) + used_s / (self._share * self._cores)
        self._begins_at = min(begins_at, now + PAUSE_MAX_S)

    def piece_s(self, now: float) -> float:
        """The CPU time that a piece which begins now may use."""
        return SHORT_S if self._is_known and self._is_live(now) else LONG_S

    def _step(self, late: float) -> None:
        """`late`: seconds of waiting for each second of running."""
        if late >= LATE:
            self._share = max(LOAD_SHARE_MIN, self._share * SHARE_CUT)
        elif late <= EASY:
            self._share = min(1.0, self._share + SHARE_STEP)

    def _is_live(self, now: float) -> bool:
        return now - self._live_at < LIVE_S
