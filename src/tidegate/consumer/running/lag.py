"""How far each partition of a consumer is behind, and what holds it back, in words. Pure.

    watermark   the last Resolved that was read: all rows of the partition up to it were read
    applied     all rows of the partition up to it are at the target
    offset      the first message that a restart reads; all before it is applied
    read        the first message that was not read yet
    end         the offset after the last message of the partition

The live line of a running consumer, its metrics and `tidegate consumer status` all show these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.consumer.engine.flow import Flow
from tidegate.consumer.engine.offset_flow import OffsetFlow
from tidegate.consumer.engine.places import place_of
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.model.timestamp import physical_ms

SLOW_S: Final = 10.0
"""Seconds after which a watermark counts as old and its partition as holding the consumer back."""
UNKNOWN: Final = -1
"""The end of a partition whose broker does not answer."""


@dataclass(frozen=True, slots=True)
class Partition:
    """How far one partition is; a ts that is not known yet is 0."""

    name: str
    """`topic/partition`."""
    watermark: int
    applied: int
    offset: int
    read: int
    end: int
    marked: bool = True
    """Whether the topic has watermarks; otherwise lag is known in messages only."""

    @property
    def to_apply(self) -> int | None:
        """Messages, Resolved included, that a restart would have to read; None when not known."""
        return None if self.end == UNKNOWN else max(0, self.end - self.offset)

    @property
    def to_read(self) -> int | None:
        """Messages that were not read yet; None when not known."""
        return None if self.end == UNKNOWN else max(0, self.end - self.read)


def partitions_of(
    topics: Sequence[str], flow: Flow | OffsetFlow, unnamed_since: Position | None, ends: Mapping[int, int]
) -> tuple[Partition, ...]:
    """The partitions of a running consumer. `ends`: by number, the end that the broker reported last.

    `unnamed_since`: the newest snapshot's position, if rows were written since that no snapshot names. A
    restart at a Delta target removes them, so they do not count as applied.
    """
    at = (unnamed_since or flow.position(0)).partitions
    none = PartitionPosition(0, 0, 0)
    return tuple(
        Partition(
            name="/".join(map(str, place_of(topics, number))),
            watermark=0 if flow.by_offset else flow.watermarks.of(number),
            applied=0 if flow.by_offset else at.get(number, none).applied,
            offset=at.get(number, none).offset,
            read=read,
            # The end was asked for before the last fetch, which may have read beyond it.
            end=max(read, ends.get(number, 0)),
            marked=not flow.by_offset,
        )
        for number, read in sorted(flow.next_offsets().items())
    )


def seconds_behind(ts: int, now_ms: int) -> float:
    """How old a ts is by this machine's clock; never negative."""
    # The ts is of upstream's clock, which may be ahead of this machine's.
    return max(0.0, (now_ms - physical_ms(ts)) / 1000)


def applied_lag_s(partitions: Sequence[Partition], now_ms: int) -> float | None:
    """Age in seconds of the ts up to which all rows are at the target; None while there is no such ts."""
    lowest = min((one.applied for one in partitions), default=0)
    return seconds_behind(lowest, now_ms) if lowest else None


def messages_behind(partitions: Sequence[Partition]) -> int | None:
    """Messages that are not applied yet; None when the end of a partition is not known."""
    found = [one.to_apply for one in partitions]
    known = [count for count in found if count is not None]
    return sum(known) if len(known) == len(found) else None


def slowest_first(partitions: Sequence[Partition]) -> list[Partition]:
    """The partition that holds the watermark back comes first."""
    return sorted(partitions, key=lambda one: (one.watermark, one.applied, -(one.to_read or 0)))


def laggard(partitions: Sequence[Partition], now_ms: int) -> Partition | None:
    """The partition that holds the watermark back; None while the lowest watermark is fresh."""
    if not partitions or not partitions[0].marked:
        return None
    last = slowest_first(partitions)[0]
    return last if seconds_behind(last.watermark, now_ms) > SLOW_S else None


def held_back_by(partitions: Sequence[Partition], now_ms: int) -> str:
    """Which partition holds the watermark back, in words; empty when none does."""
    last = laggard(partitions, now_ms)
    if last is None:
        return ""
    if not last.watermark:
        return f"a first watermark of {last.name}; {_unread(last)}"
    age = span(seconds_behind(last.watermark, now_ms))
    return f"a newer watermark of {last.name}: the last is {age} old, {_unread(last)}"


def held_back_briefly(partitions: Sequence[Partition], now_ms: int) -> str:
    """The same for a live line."""
    last = laggard(partitions, now_ms)
    if last is None:
        return ""
    age = span(seconds_behind(last.watermark, now_ms)) if last.watermark else "no watermark"
    return f"{last.name} holds the watermark back ({age}, {last.to_read or 0:,} to read)"


def _unread(one: Partition) -> str:
    if one.to_read is None:
        return "and it is not known how many messages follow"
    return f"{one.to_read:,} messages are not read yet" if one.to_read else "and no message follows it"


def span(seconds: float) -> str:
    """A time in the unit that fits: `4.2 s`, `95 s`, `12 min`, `31 h`, `9 days`."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds:.1f} s" if seconds < 10 else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"
