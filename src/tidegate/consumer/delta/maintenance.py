"""Removes what a target no longer needs, without breaking what snapshots promise. The driver calls it between
commits.

Snapshots are thinned (`thinning`): all of the last hour stay readable, then one a minute, then one an hour,
until `retention_hours`; within that time dropped tables can be recovered. The newest snapshot is always kept.
Then files are deleted that no named version needs, files of the log included, and tables that no snapshot
names any more (dropped, or renamed away) with their directories. Tables without the target's mark are left
alone, whatever their names.

A round consists of short pieces, with commits between them. Snapshots are forgotten first, and then one piece
decides which versions and which tables are kept. Later pieces only delete files, and never one of a version
after those that existed then. A table is not read again if it has no new version and no forgotten one since
the last round of this process.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from tidegate.consumer.engine.position import Position
from tidegate.consumer.lakehouse.upkeep import GRACE_S, Kept, Upkeep
from tidegate.sink.lakehouse.store import SNAPSHOTS
from tidegate.sink.lakehouse.table_files import TableFiles
from tidegate.sink.lakehouse.tables import Lakehouse

REMEMBERED_MAX: Final = 1_000
"""How many tables are remembered whose log the next round need not read again."""


class Tidying:
    """The upkeep of one target, by the process that writes it."""

    def __init__(self, lake: Lakehouse, upkeep: Upkeep, kept: Kept = lambda since: {}) -> None:
        self._lake, self._upkeep, self._kept = lake, upkeep, kept
        self._remembered: OrderedDict[str, TableFiles] = OrderedDict()
        self._clean: dict[str, tuple[int, ...]] = {}
        """By path, the needed versions when a round found nothing more to do; the last is the newest
        version."""

    def round(self, position: Position) -> Iterator[int]:
        """One round, in pieces; yields how many files each piece has deleted.

        Begin and continue it only when a snapshot names the newest version of each table. It may be killed at
        any step.
        """
        for _ in self._lake.snapshots.forget(self._upkeep.forgotten(self._lake.snapshots.all_ts())):
            yield 0
        versions = self._decide(position)
        yield 0
        for _ in self._lake.emptying_trash():
            yield 0
        for path, needed in versions.items():
            yield from self._tidy(path, needed)
            yield 0  # even if nothing was deleted, because there may be thousands of tables

    def _decide(self, position: Position) -> dict[str, list[int]]:
        """By path, the versions that are still needed, ascending. Tables without any go into the trash."""
        lake = self._lake
        named = lake.snapshots.named_versions()
        for path, versions in self._kept(self._upkeep.oldest(position.ts)).items():
            named.setdefault(path, []).extend(versions)
        paths = lake.table_paths()
        for path in paths:
            if path not in named:
                lake.set_aside(path)
        self._clean = {path: self._clean[path] for path in paths if path in self._clean and path in named}
        found = {path: sorted(set(named[path])) for path in paths if path in named}
        # The table of snapshots is read at its newest version only. A reader that has just opened an older
        # one has the grace of `_tidy`.
        return found | {SNAPSHOTS: [lake.version(SNAPSHOTS)]}

    def _tidy(self, path: str, needed: list[int]) -> Iterator[int]:
        if self._clean.get(path) == tuple(needed):
            return
        # Taken out while files are deleted: if the round ends here with an error, the next one reads the log
        # again.
        files = self._remembered.pop(path, None) or self._lake.files_of(path)
        now = time.time()
        grace = min(GRACE_S, self._upkeep.retention_hours * 3600)
        yield from files.clean(needed, now - grace, now - GRACE_S)
        self._remembered[path] = files
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        if not files.left:
            self._clean[path] = tuple(needed)


def tidy(lake: Lakehouse, position: Position, upkeep: Upkeep, kept: Kept = lambda since: {}) -> int:
    """One whole round at once. Returns how many files were deleted."""
    return sum(Tidying(lake, upkeep, kept).round(position))
