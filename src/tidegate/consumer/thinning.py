"""Which snapshots stay: all young ones, then one a minute, then one an hour. Pure.

Age is measured in the source's time, back from the newest snapshot. Of a minute or an hour the last one
stays, so that asking for the newest snapshot at or before a full minute or hour finds the nearest there
ever was. The last of an hour is the last of its last minute: what stays in one round is never missed by the
next.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from tidegate.model.timestamp import LOGICAL_BITS

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS


def forgotten(snapshots: Iterable[int], *, all_hours: float, minute_hours: float, hours: float) -> list[int]:
    """The ts of the snapshots that are forgotten, ascending; never the newest of all.

    Those of the last `all_hours` stay; up to an age of `minute_hours` the last of each minute; up to `hours`
    the last of each hour; none is older.
    """
    found = sorted(snapshots)
    if not found:
        return []
    newest = found[-1] >> LOGICAL_BITS
    gone = []
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
