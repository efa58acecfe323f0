"""What a task is asked to fetch from a topic, and what comes back to the driver. No rows: they are staged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.codec.base import BadMessage, DdlMessage
from tidegate.consumer.assembler import Segment
from tidegate.model.layout import Layout

MAX_BYTES: Final = 48 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of one partition to read."""

    partition: int
    """Its number, as everywhere behind the source."""
    start: int
    end: int
    max_bytes: int = MAX_BYTES
    """About how many bytes of messages are read of it at once."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one task found."""

    partition: int
    next_offset: int
    messages: int = 0
    segments: tuple[Segment, ...] = ()
    resolved: tuple[tuple[int, int], ...] = ()
    """(ts, offset), in offset order; without alignment marks."""
    ddls: tuple[DdlMessage, ...] = ()
    bad: tuple[BadMessage, ...] = ()
    unmarked: bool = False
    """Written without what its protocol needs for watermarks: nothing in it can be one."""
    repartitions: tuple[tuple[int, int], ...] = ()
    """(partitions, offset): the producer changed the number of partitions it writes, and its message does not
    say since when."""
    layouts: tuple[Layout, ...] = ()
    """What its Resolved say of the number of partitions: each different one once, in their order."""
    trouble: str = ""
    """Why the broker gave nothing, when it did not; the range stays to be read."""
    outage: tuple[str, str, str, str] | None = None
    """What, where, why and what to do: a schema registry gives no schemas; the range stays to be read."""
    aligns: tuple[tuple[int, int], ...] = ()
    """(commit ts, offset) of alignment marks."""
    lost_aligns: tuple[tuple[int, str], ...] = ()
    """(offset, why) of alignment marks that cannot be read; they are in `bad`, too."""
