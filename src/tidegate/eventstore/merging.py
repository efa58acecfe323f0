"""Chooses the small segments of a span that are merged into one, so that the number of files stays low.

A segment that outweighs all younger ones together is not merged again: each byte is rewritten a few times
(the logarithm of the number of segments), not once for each merge.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from tidegate.eventstore.segment import SegmentInfo
from tidegate.model.timestamp import Timestamp

MERGE_COUNT: Final = 16
"""The least number of small neighbours that are merged into one segment."""

MERGE_BELOW: Final = 4 << 20
"""Segments of this size or larger are never merged, so that a merge delays a seal by well under 0.1 s."""


def mergeable(
    segments: tuple[SegmentInfo, ...], resolved: Timestamp, but: Container[str] = ()
) -> list[SegmentInfo]:
    """The newest small resolved neighbours; empty if they are fewer than MERGE_COUNT. `but`: files to leave
    out.

    A segment that outweighs all younger ones together is left out.
    """
    chosen: list[SegmentInfo] = []
    for info in reversed(segments):
        if info.bytes < MERGE_BELOW and info.last_ts <= resolved and info.file not in but:
            chosen.append(info)
        # Only neighbours: merging across a segment that stays would change the order of the list, which is
        # that of their making.
        elif chosen:
            break
    weight = sum(s.bytes for s in chosen)
    # `chosen` goes from the newest to the oldest, so the last one is the oldest.
    while len(chosen) >= MERGE_COUNT and 2 * chosen[-1].bytes > weight:
        weight -= chosen.pop().bytes
    return chosen[::-1] if len(chosen) >= MERGE_COUNT else []
