"""Manifests of a table: each is read once, and commits keep their number small.

pyiceberg 0.12 reads every manifest three times for an overwrite, and keeps manifests that list only deleted
files for ever, so each commit is slower than the one before. Here entries are remembered by the manifest's
path, because a manifest never changes. A commit leaves out manifests without live files, and merges many
small ones into one. A manifest lists data files or delete files, and pyiceberg writes only the former kind.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles

REMEMBERED_MAX: Final = 200_000
"""How many column statistics are remembered in entries, over all tables: about half a kB each."""
SMALL_ENTRIES: Final = 100
"""A manifest with fewer live files is small."""
SMALL_MAX: Final = 8
"""If there are more small manifests, a commit merges them into one."""


class Manifests:
    """Remembers the live entries of manifests. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, list[ManifestEntry]] = OrderedDict()
        self._count = 0

    def entries(self, manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
        """The live entries of a manifest: files that it adds or keeps."""
        with self._lock:
            held = self._known.get(manifest.manifest_path)
            if held is not None:
                self._known.move_to_end(manifest.manifest_path)
                return held
        # Outside the lock: if two threads read one manifest, that costs only time.
        found = list(manifest.fetch_manifest_entry(io, discard_deleted=True))
        with self._lock:
            if manifest.manifest_path not in self._known:
                self._known[manifest.manifest_path] = found
                self._count += _size(found)
            while self._count > REMEMBERED_MAX and len(self._known) > 1:
                self._count -= _size(self._known.popitem(last=False)[1])
        return found

    def files(self, table: Table) -> list[DataFile]:
        """The data files and delete files of a table at its newest snapshot."""
        snapshot = table.current_snapshot()
        if snapshot is None:
            return []
        live = [m for m in snapshot.manifests(table.io) if _is_live(m)]
        return [e.data_file for m in live for e in self.entries(m, table.io)]

    def tasks(self, table: Table) -> list[FileScanTask]:
        """The data files of a table at its newest snapshot."""
        return [FileScanTask(file) for file in self.files(table) if not deletes_rows(file)]

    def commit(
        self, writing: Transaction, io: FileIO, replaced: Sequence[DataFile], made: Sequence[DataFile]
    ) -> None:
        """Stage a snapshot in which the files `made` replace the files `replaced`: data and delete files."""
        appends = not replaced and not any(deletes_rows(file) for file in made)
        snapshot = _Replacing(Operation.APPEND if appends else Operation.OVERWRITE, writing, io)
        snapshot.remembered = self
        for file in replaced:
            snapshot.delete_data_file(file)
        for file in made:
            snapshot.append_data_file(file)
        snapshot.commit()


def deletes_rows(file: DataFile) -> bool:
    """Whether it is a delete file."""
    return bool(file.content != DataFileContent.DATA)


class _Replacing(_OverwriteFiles):
    """A snapshot whose manifests are made from its parent's, with their remembered entries."""

    remembered: Manifests

    def _manifests(self) -> list[ManifestFile]:
        """The manifests of the snapshot: of each content, one for what is added and one for what is removed,
        and those that stay.
        """
        added = [self._added(file) for file in self._added_data_files]
        removed, found = self._deleted_entries(), list[ManifestFile]()
        for content in (ManifestContent.DATA, ManifestContent.DELETES):
            for entries in (added, removed):
                found += self._write([e for e in entries if _content(e) is content], content)
            found += self._kept(content)
        return found

    def _added(self, file: DataFile) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=self._snapshot_id,
            # None: in format 2 an added file inherits the sequence number that its snapshot gets with the
            # commit.
            sequence_number=None,
            file_sequence_number=None,
            data_file=file,
        )

    def _deleted_entries(self) -> list[ManifestEntry]:
        gone = self._gone()
        found = [
            self._as(entry, ManifestEntryStatus.DELETED, self._snapshot_id)
            for manifest in self._parents()
            for entry in self.remembered.entries(manifest, self._io)
            if entry.data_file.file_path in gone
        ]
        # A missing file was merged into another one meanwhile: the table would then have its rows twice.
        assert len(found) == len(gone), "the files that are replaced are the table's"
        return found

    def _kept(self, content: ManifestContent) -> list[ManifestFile]:
        """The parent's manifests of data files, or of delete files, without the replaced files.

        Manifests that lose files are rewritten into one, together with the small ones if these are many.
        """
        gone, kept = self._gone(), list[ManifestFile]()
        small, loose = list[ManifestFile](), list[ManifestEntry]()
        for manifest in self._parents():
            if manifest.content != content:
                continue
            entries = self.remembered.entries(manifest, self._io)
            left = [entry for entry in entries if entry.data_file.file_path not in gone]
            if len(left) < len(entries):
                loose += left
            elif len(entries) < SMALL_ENTRIES:
                small.append(manifest)
            else:
                kept.append(manifest)
        if len(small) > SMALL_MAX:
            loose += [entry for manifest in small for entry in self.remembered.entries(manifest, self._io)]
            small = []
        # Each entry keeps the snapshot and the sequence number with which its file was added.
        stay = [self._as(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id) for entry in loose]
        return kept + small + self._write(stay, content)

    def _write(self, entries: Sequence[ManifestEntry], content: ManifestContent) -> list[ManifestFile]:
        if not entries:
            return []
        form = _DeleteManifestWriter if content is ManifestContent.DELETES else ManifestWriterV2
        output = self.new_manifest_output()
        # The spec 0: a table keeps the one with which it was made (`IcebergLake.partition_spec`).
        with form(self.spec(0), self.schema(), output, self._snapshot_id, self._compression) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return [writer.to_manifest_file()]

    def _as(self, entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _gone(self) -> set[str]:
        return {file.file_path for file in self._deleted_data_files}

    def _parents(self) -> list[ManifestFile]:
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id or 0)
        return [m for m in parent.manifests(self._io) if _is_live(m)] if parent is not None else []


class _DeleteManifestWriter(ManifestWriterV2):
    """Writes a manifest of delete files, which pyiceberg 0.12 only reads."""

    def content(self) -> ManifestContent:
        """The kind of files, as the manifest list has it."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _content(entry: ManifestEntry) -> ManifestContent:
    return ManifestContent.DELETES if deletes_rows(entry.data_file) else ManifestContent.DATA


def _is_live(manifest: ManifestFile) -> bool:
    return bool(manifest.has_added_files() or manifest.has_existing_files())


def _size(entries: Sequence[ManifestEntry]) -> int:
    return 1 + sum(1 + len(entry.data_file.column_sizes or {}) for entry in entries)
