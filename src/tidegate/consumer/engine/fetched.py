"""The request to fetch a range of a topic, and the result for the driver. It has no rows: they are staged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.codec.base import BadMessage, DdlMessage
from tidegate.consumer.engine.assembler import StagedRun
from tidegate.model.layout import Layout

MAX_BYTES: Final = 48 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of one partition to read."""

    partition: int
    """The partition's number, unique over all topics of the source (`places`)."""
    start: int
    end: int
    max_bytes: int = MAX_BYTES
    """About how many bytes of messages to read at once."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of one task."""

    partition: int
    next_offset: int
    messages: int = 0
    segments: tuple[StagedRun, ...] = ()
    resolved: tuple[tuple[int, int], ...] = ()
    """(ts, offset), in offset order; without alignment marks."""
    ddls: tuple[DdlMessage, ...] = ()
    bad: tuple[BadMessage, ...] = ()
    unmarked: bool = False
    """Whether it was written without the options that its protocol needs for watermarks."""
    repartitions: tuple[tuple[int, int], ...] = ()
    """(partitions, offset): the producer changed the number of partitions that it writes, and its message
    does not say from which ts on."""
    layouts: tuple[Layout, ...] = ()
    """The numbers of partitions that its Resolved name: each different layout once, in order."""
    trouble: str = ""
    """Why the broker did not answer, if it did not. The range must be read again."""
    outage: tuple[str, str, str, str] | None = None
    """What, where, why and what to do if a schema registry fails or the disk is full. The range must be read
    again.
    """
    aligns: tuple[tuple[int, int], ...] = ()
    """(commit ts, offset) of alignment marks."""
    lost_aligns: tuple[tuple[int, str], ...] = ()
    """(offset, why) of alignment marks that cannot be read; they are in `bad` too."""
