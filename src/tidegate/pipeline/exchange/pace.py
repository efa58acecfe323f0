"""How often the rows of a changefeed move on when many changefeeds have rows. Pure.

    rows --> [the pause after its last wake-up] --> bound --> [the gap after its last piece] --> a piece

Each piece of work costs much apart from its rows: a wake-up of owner and processor, a bounds file, a
transaction with its markers at the sink, a report, and a Resolved with another transaction. So up to
FEW_A_CORE changefeeds with rows for each core move on at once. If there are more, each has a pause, and it
grows with their number: on 2 cores it is 0.7 s with 20, and from 26 on it is PAUSE_MAX_S, which
bounds the lag that this adds. A changefeed whose rows begin waits for no pause.

`server.pulling.pulse` spaces wake-ups, and so the bounds, by `pause_s`. `pipeline.host.placement` spaces
pieces by `Pace`, because several spans of a changefeed may come to have rows below one bound.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from tidegate.cores import usable

Key = TypeVar("Key", bound=Hashable)

CORES_MAX: Final = 12
"""More cores count as this many: all wake-ups are the work of one thread of the control process."""
CORES: Final = min(CORES_MAX, usable())
"""The cores that a capture may use. Its control process and its application must take the same number, so
that gaps are shorter than pauses. So the cores of a cluster do not count.
"""
FEW_A_CORE: Final = 2
"""Up to this many changefeeds with rows for each core there is no pause."""
PIECES_A_CORE: Final = 11
"""About how many pieces begin in a second for each core, if many changefeeds have rows."""
PAUSE_MAX_S: Final = 1.0
"""The longest pause."""
LATELY_S: Final = 2.0
"""A changefeed counts until this long after its last piece began. Longer than the longest pause."""
GAP_SHARE: Final = 0.8
"""The gap between two pieces, as a share of the pause between two wake-ups. A piece follows its wake-up by
some milliseconds, more or less. If both were the same, many a piece would wait for the rest of its gap.
"""
FRESH_S: Final = 2.0
"""A changefeed has no gap for this long after its rows have begun, and its wake-ups have no pause
(`server.pulling.pulse`, EAGER_S): the parts of one transaction may come to be due one after the other.
"""


def pause_s(active: int) -> float:
    """The pause of one of so many changefeeds with rows, in seconds."""
    return min(PAUSE_MAX_S, max(0, active - FEW_A_CORE * CORES) / (PIECES_A_CORE * CORES))


class Pace(Generic[Key]):
    """When the next piece of each changefeed may begin. Asks no clock: `now` is in monotonic seconds."""

    def __init__(self) -> None:
        self._active: dict[Key, tuple[float, float]] = {}
        """When the rows of each began, and its last piece; of those that had a piece within LATELY_S."""

    def next_at(self, key: Key, now: float, *, is_cut: bool) -> float:
        """Note that a piece begins. Returns when the next one may begin. `is_cut`: rows were left for it."""
        self._active = {one: times for one, times in self._active.items() if now - times[1] < LATELY_S}
        since = self._active.get(key, (now, now))[0]
        self._active[key] = since, now
        # With rows left the piece is as large as pieces are, and costs more for its rows than for itself.
        if is_cut or now - since < FRESH_S:
            return now
        return now + GAP_SHARE * pause_s(len(self._active))
