"""How much of a directory's past is kept, and when it is tidied: of Delta and of Iceberg targets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.consumer.thinning import HOUR_MS, forgotten
from tidegate.model.timestamp import LOGICAL_BITS

GRACE_S: Final = 3600.0
"""How long ago a data file must have left the newest version, and how old a file of a log must be, before it
is deleted: somebody may just have opened a snapshot that is thinned now."""

Kept = Callable[[int], Mapping[str, Sequence[int]]]
"""Further versions to keep, by path, given the oldest ts within the retention."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """When and how much."""

    retention_hours: int = 24
    """How long snapshots stay, and how long a dropped table can come back."""
    every_s: float = 600.0
    """Seconds between two rounds."""
    all_hours: float = 1.0
    """Every snapshot of this time stays."""
    minute_hours: float = 6.0
    """After `all_hours` and up to this age one a minute stays; after it one an hour."""
    piece_s: float = 0.1
    """After this time a round lets commits go on."""

    def forgotten(self, snapshots: Iterable[int]) -> list[int]:
        """The ts of the snapshots that are to be forgotten, ascending."""
        return forgotten(
            snapshots,
            all_hours=min(self.all_hours, self.retention_hours),
            minute_hours=self.minute_hours,
            hours=self.retention_hours,
        )

    def oldest(self, ts: int) -> int:
        """The oldest ts within the retention when the newest snapshot is at `ts`."""
        return max(0, ts - (self.retention_hours * HOUR_MS << LOGICAL_BITS))
