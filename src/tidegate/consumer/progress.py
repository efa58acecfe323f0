"""What a run of the consumer says of itself to its caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate.consumer.lag import Partition
from tidegate.errors import TidegateError


@dataclass(frozen=True, slots=True)
class Progress:
    """What an operator wants to see."""

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
    """Values of this run that are NULL at the target: zero dates, and days of no calendar."""
    bad_texts: int
    """Texts of this run that are not UTF-8."""
    missing_deletes: int
    """Rows of tables without a key that were to be deleted in this run and not found."""
    guessed: int
    """Tables whose columns are guessed from their rows: the topic has no header for them."""
    trouble: str
    """Why nothing moves, in words; empty when nothing is known to be wrong."""
    partitions: tuple[Partition, ...] = ()
    """How far each is."""


@dataclass(frozen=True, slots=True)
class Listener:
    """What a caller wants to hear; called by the driver's loop, so that each call should be short."""

    ready: Callable[[Progress], None] = lambda progress: None
    """Once, when the loop begins."""
    report: Callable[[Progress], None] = lambda progress: None
    """About every second."""
    warn: Callable[[TidegateError], None] = lambda error: None
    """Each trouble once, when it begins."""
    note: Callable[[str], None] = lambda text: None
    """A trouble is over."""


QUIET: Final = Listener()
