"""Which registrations have been silent for so long that their store may have forgotten them.

Silent is a live registration whose resolved ts stands, and one being scanned for which nothing comes. A lock
that lives explains it: a bulk transaction of hours must not make us scan its regions every five minutes, so
one whose lock was seen (`lock_cleaner`) is not silent until that is as long ago. Where
the stream's own worker is behind, for instance because the store of events has no room, nobody on it is
judged: what seems silent may lie in its queue. TiCDC has no such thing (tiflow#6914, tiflow#10157).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from tidegate.model.timestamp import Timestamp
from tidegate.puller.event_feed import Stream
from tidegate.puller.match.matched import Registration
from tidegate.puller.region_feed import State
from tidegate.puller.watched_span import RegisteredRange

SILENT_S: Final = 300.0
"""A registration that is silent for so long, and has no live lock, is made anew."""
LOOK_SHARE: Final = 10
"""It is looked for so many times in that time."""


def look(
    held: Iterable[tuple[RegisteredRange, Timestamp]], streams: Collection[Stream], now: float
) -> list[tuple[RegisteredRange, float]]:
    """The silent ones among what is registered, each with the seconds it has been.

    `held`: with the resolved ts of each; `now`: monotonic seconds. Scans that have been silent for half of
    their patience are listened for from now on (`Stream.doubt`).
    """
    busy = {stream for stream in streams if not stream.keeps_up()}
    doubted: dict[Stream, list[Registration]] = {stream: [] for stream in streams}
    silent = []
    for one, ts in held:
        assert one.registration is not None
        scanning = one.feed.state is State.SCANNING
        patience = one.feed.patience_s(SILENT_S)
        received = one.stream.receives(one.registration) if scanning else ts != one.resolved
        if received or not one.moved_at or one.stream in busy:
            one.resolved, one.moved_at = ts, now
        elif now - (one.moved_at if scanning else max(one.moved_at, one.locked_at)) >= patience:
            silent.append((one, now - one.moved_at))
        elif scanning and now - one.moved_at >= patience / 2 and one.stream in doubted:
            doubted[one.stream].append(one.registration)
    for stream, registrations in doubted.items():
        stream.doubt(registrations)
    return silent
