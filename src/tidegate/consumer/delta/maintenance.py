"""Keeping a target small without breaking what snapshots promise. Called between commits by the driver.

Within `retention` every named snapshot stays readable, and what was dropped can come back. Older ones are
forgotten; then files that no version within the retention and no named version needs are deleted, the log's
among them, and tables that no snapshot names any more (dropped, or renamed away) with their directories. The
newest snapshot is always kept. What does not carry the target's mark is left alone, whatever its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.consumer.position import Position
from tidegate.model.timestamp import LOGICAL_BITS
from tidegate.sink.lakehouse import SNAPSHOTS, Lakehouse

MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Upkeep:
    """When and how much."""

    retention_hours: int = 24
    every_s: float = 600.0


def tidy(
    lake: Lakehouse,
    position: Position,
    upkeep: Upkeep,
    kept: Callable[[int], Mapping[str, Sequence[int]]] = lambda since: {},
) -> int:
    """One round; returns how many files were deleted. Safe to be killed at any step.

    `kept`: further versions to keep, by path, given the oldest ts within the retention.
    """
    oldest = max(0, position.ts - (upkeep.retention_hours * 60 * MINUTE_MS << LOGICAL_BITS))
    lake.trim_snapshots(oldest)
    named = lake.named_versions()
    for path, versions in kept(oldest).items():
        named.setdefault(path, []).extend(versions)
    deleted = 0
    for path in lake.slots():
        if path in named:
            deleted += lake.vacuum(path, upkeep.retention_hours, sorted(set(named[path])))
            deleted += lake.trim_log(path, min(named[path]))
        else:
            lake.discard(path)
    deleted += lake.vacuum(SNAPSHOTS, upkeep.retention_hours, [])
    return deleted + lake.trim_log(SNAPSHOTS, lake.version(SNAPSHOTS))
