"""Removes what a target no longer needs, without breaking what snapshots promise. The driver calls it between
commits.

As for Delta (`delta.maintenance`), the target's snapshots are thinned (`thinning`). Then what no named
snapshot needs is removed: first a table's own snapshots, then its files, then tables that no snapshot names
any more. A file is deleted only an hour after it was written, and if no remaining snapshot has it. A round
consists of short pieces, with commits between them. A kill at any step leaves too many files, never too few.
Tables without files older than an hour are not read. In a bucket, folders of tables that no catalog names go,
too, and catalogs that newer ones have replaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence, Set

from pyiceberg.table import Table

from tidegate.consumer.engine.position import Position
from tidegate.consumer.iceberg import index
from tidegate.consumer.iceberg.catalogs import location_of
from tidegate.consumer.iceberg.lake import IcebergLake
from tidegate.consumer.iceberg.removal import delete, files_before, orphans, removing
from tidegate.consumer.lakehouse.upkeep import GRACE_S, Kept, Upkeep


class Tidying:
    """The upkeep of one target, by the process that writes it."""

    def __init__(self, lake: IcebergLake, upkeep: Upkeep, kept: Kept = lambda since: {}) -> None:
        self._lake, self._upkeep, self._kept = lake, upkeep, kept

    def round(self, position: Position) -> Iterator[int]:
        """One round, in pieces; yields how many files each piece has deleted.

        Begin and continue it only when a snapshot names the newest version of each table. It may be killed at
        any step.
        """
        lake = self._lake
        # Otherwise files that a successor has removed already would be missed.
        lake.check_writer()
        for _ in lake.snapshots.forget(self._upkeep.forgotten(lake.snapshots.all_ts())):
            yield 0
        # One piece, so that the decision is made at one moment. Later tables and snapshots are not affected.
        paths, needed = lake.table_paths(), lake.snapshots.named_versions()
        # Everything that is named by now is in `needed`. From here on `named_since` has what commits between
        # the pieces add.
        lake.snapshots.named_since.clear()
        since = self._upkeep.oldest(position.ts)
        yield 0
        for path in [*paths, index.PATH]:
            if path == index.PATH or path in self._needed(needed, since):
                if path == index.PATH or lake.tables.is_ours(path):
                    self._expire(path, self._needed(needed, since).get(path, set()))
                    yield 0
                    yield from self._sweep(path)
            else:
                lake.discard(path)
            yield 0
        # A restart must not find a catalog that names a table without files.
        lake.tables.confirm()
        for path in orphans(lake.store, {*lake.table_paths(), index.PATH}):
            yield from removing(lake.store, path, lake.check_writer)
            yield 0
        yield lake.tables.thin(time.time() - self._grace_s)

    @property
    def _grace_s(self) -> float:
        return min(GRACE_S, self._upkeep.retention_hours * 3600)

    def _needed(self, decided: Mapping[str, Sequence[int]], since: int) -> dict[str, set[int]]:
        """By path, the snapshots that are needed now, because commits and DDLs may come between pieces."""
        needed = {path: set(versions) for path, versions in decided.items()}
        for path, versions in self._kept(since).items():
            needed.setdefault(path, set()).update(versions)
        for path, version in self._lake.snapshots.named_since:
            needed.setdefault(path, set()).add(version)
        return needed

    def _expire(self, path: str, needed: Set[int]) -> None:
        """Expire the snapshots of a table that are not needed; its newest is always kept."""
        metadata = self._lake.tables.table(path).metadata
        stay = {*needed, metadata.current_snapshot_id}
        if path == index.PATH:  # a reader that has just opened it still reads its files
            since = (time.time() - self._grace_s) * 1000
            stay |= {one.snapshot_id for one in metadata.snapshots if one.timestamp_ms > since}
        gone = [one.snapshot_id for one in metadata.snapshots if one.snapshot_id not in stay]
        if gone:
            self._lake.tables.expire(path, gone)

    def _sweep(self, path: str) -> Iterator[int]:
        """Delete the files of a table that are old enough and belong to none of its snapshots."""
        store, tables = self._lake.store, self._lake.tables
        # Listed before the snapshots are read, so a file that a later commit adds is not among them.
        old = files_before(store, path, time.time() - self._grace_s)
        if not old:
            return
        held, root = set[str](), f"{location_of(store)}/"
        with tables.translated(path):  # Fenced if a successor has removed what only this process knows
            for found in _held_by(tables.table(path)):
                held |= {name.removeprefix(root) for name in found}
                yield 0
        gone = old - held
        if gone:
            # A restart must not find a catalog whose snapshots need these files.
            tables.confirm()
            yield from delete(store, gone)


def _held_by(table: Table) -> Iterator[set[str]]:
    """The locations of the files of a table's snapshots and of its metadata; yields those of one snapshot at
    a time.
    """
    logs = [entry.metadata_file for entry in table.metadata.metadata_log]
    yield {table.metadata_location, *logs}
    manifests = set[str]()
    for snapshot in table.metadata.snapshots:
        found = {snapshot.manifest_list}
        for manifest in snapshot.manifests(table.io):
            # Snapshots share most of their manifests, and each one costs a request.
            if manifest.manifest_path not in manifests:
                manifests.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                found |= {manifest.manifest_path, *(e.data_file.file_path for e in entries)}
        yield found
