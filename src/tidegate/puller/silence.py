"""Finds registrations that their store may have forgotten, because they are silent for too long.

A live registration is silent if its resolved ts does not rise; a scanning one if nothing arrives for it. A
live lock explains the silence: a bulk transaction of hours must not make the puller scan its regions every
five minutes. So if a range's lock was seen (`lock_cleaner`), the time of silence counts from that moment. If
a stream's worker is behind, for example because the event store has no room, none of its registrations is
checked, because their messages may be in its queue. TiCDC has no such check (tiflow#6914, tiflow#10157).
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
"""A registration that is silent for this long, without a live lock, is made again."""
LOOK_SHARE: Final = 10
"""The number of checks in that time."""


def look(
    registered: Iterable[tuple[RegisteredRange, Timestamp]], streams: Collection[Stream], now: float
) -> list[tuple[RegisteredRange, float]]:
    """The silent ones among the registered ranges, each with the seconds of its silence.

    `registered`: the ranges, each with its resolved ts. `now`: monotonic seconds. If a scan has been silent
    for half of its patience, its stream checks from now on whether messages arrive for it (`Stream.doubt`).
    """
    busy = {stream for stream in streams if not stream.keeps_up()}
    doubted: dict[Stream, list[Registration]] = {stream: [] for stream in streams}
    silent = []
    for one, ts in registered:
        assert one.registration is not None
        scanning = one.feed.state is State.SCANNING
        patience = one.feed.patience_s(SILENT_S)
        received = one.stream.receives(one.registration) if scanning else ts != one.resolved
        # A busy stream counts as progress: its messages may be in the queue, so silence proves nothing.
        if received or not one.moved_at or one.stream in busy:
            one.resolved, one.moved_at = ts, now
        elif now - (one.moved_at if scanning else max(one.moved_at, one.locked_at)) >= patience:
            silent.append((one, now - one.moved_at))
        elif scanning and now - one.moved_at >= patience / 2 and one.stream in doubted:
            doubted[one.stream].append(one.registration)
    for stream, registrations in doubted.items():
        stream.doubt(registrations)
    return silent
