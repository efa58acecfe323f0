"""Keeping a target small without breaking what snapshots promise. Called between commits by the driver.

As for Delta (`delta.maintenance`): snapshots of the target are thinned (`thinning`), and then what no named
snapshot needs goes: first a table's own snapshots, then its files, then tables that no snapshot names any
more. A file is deleted only an hour after it was written, and if no snapshot that is left has it. A round is
made of short pieces, and commits go on between two of them. A kill at any step leaves too much, never less
than is needed. Tables that have nothing older than an hour to delete are not read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

from pyiceberg.table import Table

from tidegate.consumer.iceberg import index
from tidegate.consumer.iceberg.lake import IcebergLake
from tidegate.consumer.position import Position
from tidegate.consumer.upkeep import GRACE_S, Kept, Upkeep

FILES_A_PIECE: Final = 200


class Tidying:
    """The upkeep of one target, by the process that writes it."""

    def __init__(self, lake: IcebergLake, upkeep: Upkeep, kept: Kept = lambda since: {}) -> None:
        self._lake, self._upkeep, self._kept = lake, upkeep, kept

    def round(self, position: Position) -> Iterator[int]:
        """One round, by pieces; how many files each has deleted.

        To be begun and gone on with when a snapshot names the newest version of each table. Safe to be killed
        at any step.
        """
        lake = self._lake
        for _ in lake.index.forget(self._upkeep.forgotten(index.all_ts(lake.index.table()))):
            yield 0
        # In one piece: tables and snapshots that come later are not of this decision.
        slots, needed = lake.slots(), lake.named_versions()
        lake.index.named_since.clear()
        since = self._upkeep.oldest(position.ts)
        yield 0
        for path in [*slots, index.PATH]:
            if path == index.PATH or path in self._needed(needed, since):
                if path == index.PATH or lake.tables.is_ours(path):
                    self._expire(path, self._needed(needed, since).get(path, set()))
                    yield 0
                    yield from self._sweep(path)
            else:
                lake.discard(path)
            yield 0

    @property
    def _grace_s(self) -> float:
        return min(GRACE_S, self._upkeep.retention_hours * 3600)

    def _needed(self, decided: Mapping[str, Sequence[int]], since: int) -> dict[str, set[int]]:
        """By path, the snapshots that are needed now: commits and DDLs come between two pieces."""
        needed = {path: set(versions) for path, versions in decided.items()}
        for path, versions in self._kept(since).items():
            needed.setdefault(path, set()).update(versions)
        for path, version in self._lake.index.named_since:
            needed.setdefault(path, set()).add(version)
        return needed

    def _expire(self, path: str, needed: Set[int]) -> None:
        """Forget the snapshots of a table that are not needed; its newest always is."""
        metadata = self._lake.tables.table(path).metadata
        stay = {*needed, metadata.current_snapshot_id}
        if path == index.PATH:  # whoever has just opened it reads its files
            since = (time.time() - self._grace_s) * 1000
            stay |= {one.snapshot_id for one in metadata.snapshots if one.timestamp_ms > since}
        gone = [one.snapshot_id for one in metadata.snapshots if one.snapshot_id not in stay]
        if gone:
            self._lake.tables.expire(path, gone)

    def _sweep(self, path: str) -> Iterator[int]:
        """Delete the files of a table that are old enough, and that none of its snapshots has."""
        old = _files_before(self._lake.root / path, time.time() - self._grace_s)
        if not old:
            return
        held = set[str]()
        for found in _held_by(self._lake.tables.table(path)):
            held |= found
            yield 0
        gone = sorted(old - held)
        for at in range(0, len(gone), FILES_A_PIECE):
            piece = gone[at : at + FILES_A_PIECE]
            for name in piece:
                Path(name).unlink(missing_ok=True)
            yield len(piece)


def _files_before(folder: Path, before: float) -> set[str]:
    """The files in a table's folders that were written before a time."""
    found = set[str]()
    for part in ("data", "metadata"):
        if (folder / part).is_dir():
            with os.scandir(folder / part) as entries:
                found |= {entry.path for entry in entries if entry.stat().st_mtime <= before}
    return found


def _held_by(table: Table) -> Iterator[set[str]]:
    """The files that a table's snapshots have, and its own; a snapshot's at a time."""
    logs = [entry.metadata_file for entry in table.metadata.metadata_log]
    yield {_file(name) for name in (table.metadata_location, *logs)}
    manifests = set[str]()
    for snapshot in table.metadata.snapshots:
        found = {_file(snapshot.manifest_list)}
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in manifests:
                manifests.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                found |= {_file(manifest.manifest_path), *(_file(e.data_file.file_path) for e in entries)}
        yield found


def _file(location: str) -> str:
    return location.removeprefix("file://")
