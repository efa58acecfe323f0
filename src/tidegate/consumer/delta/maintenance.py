"""Keeping a target small without breaking what snapshots promise. Called between commits by the driver.

Snapshots are thinned (`thinning`): all of the last hour stay readable, then one a minute, then one an hour,
until `retention_hours`; within that time what was dropped can come back. The newest snapshot always stays.
Then files go that no named version needs, the log's among them, and tables that no snapshot names any more
(dropped, or renamed away) with their directories. What does not carry the target's mark is left alone,
whatever its name.

A round is made of short pieces, and commits go on between two of them. Snapshots are forgotten first, and
then one piece decides which versions and which tables stay. Later pieces only delete files, and never
one of a version after those that were seen then. Tables that have no new version, and none that was
forgotten, since the last round of this process are not touched.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from tidegate.consumer.position import Position
from tidegate.consumer.upkeep import GRACE_S, Kept, Upkeep
from tidegate.sink.lakehouse import Lakehouse
from tidegate.sink.slot_files import SlotFiles
from tidegate.sink.store import SNAPSHOTS

REMEMBERED_MAX: Final = 1_000
"""Tables whose log is not read again by the next round."""


class Tidying:
    """The upkeep of one target, by the process that writes it."""

    def __init__(self, lake: Lakehouse, upkeep: Upkeep, kept: Kept = lambda since: {}) -> None:
        self._lake, self._upkeep, self._kept = lake, upkeep, kept
        self._remembered: OrderedDict[str, SlotFiles] = OrderedDict()
        self._clean: dict[str, tuple[int, ...]] = {}
        """By path, the needed versions when a round left nothing to do; the last is the newest version."""

    def round(self, position: Position) -> Iterator[int]:
        """One round, by pieces; how many files each has deleted.

        To be begun and gone on with when a snapshot names the newest version of each table. Safe to be killed
        at any step.
        """
        for _ in self._lake.forget(self._upkeep.forgotten(self._lake.snapshots())):
            yield 0
        versions = self._decide(position)
        yield 0
        for _ in self._lake.emptying_trash():
            yield 0
        for path, needed in versions.items():
            yield from self._tidy(path, needed)
            yield 0  # also where nothing was to be done: there may be thousands of tables

    def _decide(self, position: Position) -> dict[str, list[int]]:
        """By path, the versions that stay needed, ascending. Tables that none names go into the trash."""
        lake = self._lake
        named = lake.named_versions()
        for path, versions in self._kept(self._upkeep.oldest(position.ts)).items():
            named.setdefault(path, []).extend(versions)
        slots = lake.slots()
        for path in slots:
            if path not in named:
                lake.set_aside(path)
        self._clean = {path: self._clean[path] for path in slots if path in self._clean and path in named}
        found = {path: sorted(set(named[path])) for path in slots if path in named}
        return found | {SNAPSHOTS: [lake.version(SNAPSHOTS)]}

    def _tidy(self, path: str, needed: list[int]) -> Iterator[int]:
        if self._clean.get(path) == tuple(needed):
            return
        files = self._remembered.pop(path, None) or self._lake.slot_files(path)
        now = time.time()
        grace = min(GRACE_S, self._upkeep.retention_hours * 3600)
        yield from files.clean(needed, now - grace, now - GRACE_S)
        self._remembered[path] = files
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        if not files.left:
            self._clean[path] = tuple(needed)


def tidy(lake: Lakehouse, position: Position, upkeep: Upkeep, kept: Kept = lambda since: {}) -> int:
    """One whole round at once; how many files were deleted."""
    return sum(Tidying(lake, upkeep, kept).round(position))
