"""Which snapshots are kept: all recent ones, then one per minute, then one per hour. Pure.

Age is measured in the source's time, back from the newest snapshot. The last snapshot of a minute or an hour
is kept, so that the newest snapshot at or before a full minute or hour is the nearest one that ever existed.
The last one of an hour is also the last one of its last minute, so one round never removes a snapshot that
the next would keep.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from tidegate.model.timestamp import LOGICAL_BITS

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS


def forgotten(snapshots: Iterable[int], *, all_hours: float, minute_hours: float, hours: float) -> list[int]:
    """The ts of the snapshots to forget, ascending; never the newest of all.

    Snapshots of the last `all_hours` are kept; up to an age of `minute_hours` the last of each minute; up to
    `hours` the last of each hour; none that is older.
    """
    found = sorted(snapshots)
    if not found:
        return []
    newest = found[-1] >> LOGICAL_BITS
    gone = []
    # docs/guarantees.md#a-named-snapshot-stays-readable: only the ts decides, so a consumer that was stopped
    # for days removes no more than one that ran.
    for ts, following in pairwise(found):
        at, after = ts >> LOGICAL_BITS, following >> LOGICAL_BITS
        age = newest - at
        if age > hours * HOUR_MS:
            gone.append(ts)
        elif age > all_hours * HOUR_MS:
            step = MINUTE_MS if age <= minute_hours * HOUR_MS else HOUR_MS
            if at // step == after // step:
                gone.append(ts)
    return gone
