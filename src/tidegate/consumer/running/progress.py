"""Reports of a run of the consumer to its caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate.consumer.running.lag import Partition
from tidegate.errors import TidegateError


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run, for an operator."""

    ts: int
    """The newest snapshot."""
    watermark: int
    waiting_rows: int
    rows: int
    snapshots: int
    ddls: int
    quarantined: int
    """Messages and rows set aside, those of earlier runs included."""
    bad_dates: int
    """Values of this run that are NULL at the target: zero dates, and days that no calendar has."""
    bad_texts: int
    """Texts of this run that are not UTF-8."""
    missing_deletes: int
    """Rows of tables without a key that this run had to delete and did not find."""
    guessed: int
    """Tables whose columns are guessed from their rows, because the topic has no header for them."""
    trouble: str
    """Why nothing moves, in words; empty when nothing is known to be wrong."""
    partitions: tuple[Partition, ...] = ()
    """How far each partition is."""
    set_aside: int = 0
    """Tables whose changes are not applied, because one of them could not be."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A caller's functions for reports. The driver's loop calls them, so each call should be short."""

    ready: Callable[[Progress], None] = lambda progress: None
    """Called once, when the loop begins."""
    report: Callable[[Progress], None] = lambda progress: None
    """Called about every second."""
    warn: Callable[[TidegateError], None] = lambda error: None
    """Called once for each trouble, when it begins."""
    note: Callable[[str], None] = lambda text: None
    """Called when a trouble is over, and for other notices."""


QUIET: Final = Listener()
