"""How much history of a target of files is kept, and when the rest is removed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.consumer.lakehouse.thinning import HOUR_MS, forgotten
from tidegate.model.timestamp import LOGICAL_BITS

GRACE_S: Final = 3600.0
"""Seconds for which a data file must be unused by the newest version, or a log file must be old, before it is
deleted: a reader may just have opened a snapshot that is being forgotten."""

Kept = Callable[[int], Mapping[str, Sequence[int]]]
"""Returns further versions to keep, by path, given the oldest ts within the retention."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """When history is removed, and how much of it."""

    retention_hours: int = 24
    """Hours for which snapshots are kept, and for which a dropped table can be recovered."""
    every_s: float = 600.0
    """Seconds between two rounds."""
    all_hours: float = 1.0
    """Hours for which every snapshot is kept."""
    minute_hours: float = 6.0
    """Hours up to which one snapshot per minute is kept, after `all_hours`; then one per hour."""
    piece_s: float = 0.1
    """Seconds after which a round pauses, so that commits can proceed."""
    keep_changes_hours: float | None = None
    """Change log only: hours for which changes are kept; None: for ever."""

    def forgotten(self, snapshots: Iterable[int]) -> list[int]:
        """The ts of the snapshots to forget, ascending."""
        return forgotten(
            snapshots,
            all_hours=min(self.all_hours, self.retention_hours),
            minute_hours=self.minute_hours,
            hours=self.retention_hours,
        )

    def oldest(self, ts: int) -> int:
        """The oldest ts within the retention when the newest snapshot is at `ts`."""
        return max(0, ts - (self.retention_hours * HOUR_MS << LOGICAL_BITS))
