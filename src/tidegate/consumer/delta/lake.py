"""Delta tables with the verbs of `Lake`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidegate.consumer.ddl.ddl_steps import Source
from tidegate.consumer.delta.merging import Change, Merging
from tidegate.consumer.lakehouse.compaction import Compaction
from tidegate.consumer.lakehouse.write_mode import WriteMode
from tidegate.consumer.table.partition_spec import PartitionField, Spec
from tidegate.errors import InvalidInput
from tidegate.sink.lakehouse.partition_values import check_rows
from tidegate.sink.lakehouse.snapshot_rows import SnapshotRow
from tidegate.sink.lakehouse.store import SNAPSHOTS, Store
from tidegate.sink.lakehouse.tables import NO_PROPERTIES, Lakehouse

WRITE_MODE: Final = "tidegate.writeMode"
"""The property of the table of snapshots that says how a target's rows are deleted. Without it:
copy-on-write."""


class DeltaLake(Lakehouse):
    """One target. A table's path is the folder of its files; on a disk its name determines it."""

    def __init__(self, root: Path | Store, consumer: str = "", mode: WriteMode | None = None) -> None:
        """`consumer`: its name, which a target in an object store records. `mode`: of a new target; None:
        copy-on-write, or the one that the target was begun with.
        """
        merges = mode is WriteMode.MERGE_ON_READ
        super().__init__(root, {WRITE_MODE: WriteMode.MERGE_ON_READ} if merges else NO_PROPERTIES)
        self._consumer, self._wanted = consumer, mode
        self._mode = mode or WriteMode.COPY_ON_WRITE
        self._compaction = Compaction(WriteMode.MERGE_ON_READ)

    def check(self) -> None:
        """See `Lakehouse.check`. InvalidInput also if the target was begun with another write mode."""
        super().check()
        held = write_mode_of(self)
        if held is not None:
            self._take_mode(held)

    def _take_mode(self, held: WriteMode) -> None:
        if self._wanted not in (None, held):
            raise InvalidInput(
                "a Delta target keeps the write mode that it was begun with",
                where=str(self.store),
                why=f"it was begun with {held}, and --write-mode is {self._wanted}",
                fix=f"leave --write-mode out, or start a new target with --write-mode {self._wanted}",
            )
        self._mode = held

    def begin(self) -> None:
        """Fence an earlier writer, and finish the removal of files that it had begun."""
        if self.store.shared:
            self.take_over(self._consumer)
            # Another consumer may have begun the target since `check`.
            self._take_mode(write_mode_of(self) or self._mode)
        self.empty_trash()

    def holds(self, path: str, columns: pa.Schema) -> bool:
        """Whether a table's columns are these."""
        return bool(self.schema(path).equals(columns))

    def columns(self, path: str) -> list[str]:
        """The names of a table's columns, in order."""
        return list(self.schema(path).names)

    def batches(self, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """A table's rows at the time of this call, even if the table is written while they are read."""
        return self.vectors.batches(path)

    def restore_all(self, rows: Sequence[SnapshotRow]) -> None:
        """Restore these tables' versions. Their names need no work: each name has a path of its own."""
        for row in rows:
            self.restore(row.path, row.version)

    def partition_spec(self, path: str, version: int | None = None) -> Spec:
        """The partition columns of a table."""
        return tuple(map(PartitionField, self.partition_columns(path, version)))

    def make(self, schema: str, table: str, columns: pa.Schema, spec: Spec = ()) -> str:
        """Create a new, empty table at the path of this name."""
        path = self.path_for(schema, table)
        self.create(path, columns, [field.column for field in spec])
        return path

    def vanish(self, path: str) -> None:
        """Does nothing: readers do not see a path that no snapshot names, and a new table may reuse it."""

    def move(self, path: str, schema: str, table: str, version: int | None = None) -> str:
        """Move the rows to the path of another name."""
        target = self.path_for(schema, table)
        if path != target:
            self.rename(path, target, version)
        elif version is not None:
            self.restore(path, version)
        return target

    def evolve(self, path: str, columns: pa.Schema, sources: Sequence[Source]) -> bool:
        """False: delta-rs cannot rename or drop columns without writing new files."""
        return False

    def merge(self, path: str, upserts: pa.Table, deletes: pa.Table, keys: Sequence[str]) -> None:
        """Replace or insert rows and delete keys, in one commit; `merging` says which files it changes."""
        if self._mode is WriteMode.COPY_ON_WRITE:
            super().merge(path, upserts, deletes, keys)
            return
        check_rows(upserts, self.partition_columns(path), self.store.uri(path))
        merging = self._merging(path)
        change = merging.merged(upserts, deletes, keys)
        self._commit(path, merging.version, change)
        self._compaction.lost(path, change.lost_rows)

    def compact(self, path: str, keys: Sequence[str] = ()) -> bool:
        """Rewrite small data files if there are many, and some with many dead rows; the rows stay the same.

        Returns whether it did so.
        """
        if self._mode is WriteMode.COPY_ON_WRITE:
            return super().compact(path)
        merging = self._merging(path)
        change = merging.compacted(self._compaction, keys)
        self._commit(path, merging.version, change)
        return not change.is_empty

    def set_aside(self, path: str) -> bool:
        """Move a table that no snapshot names to the trash. False if it is not ours."""
        self._compaction.forget(path)
        return super().set_aside(path)

    def _merging(self, path: str) -> Merging:
        # Checked before any file is written into the folder.
        return Merging(self.store, self.vectors, path, self.writable(path))

    def _commit(self, path: str, base: int, change: Change) -> None:
        if not change.is_empty:
            self.vectors.commit(path, base, change.replaced, change.made, change.lost)


def write_mode_of(lake: Lakehouse) -> WriteMode | None:
    """The write mode with which a target was begun; None: there is no target."""
    if not lake.exists(SNAPSHOTS):
        return None
    return WriteMode(lake.target_property(WRITE_MODE) or WriteMode.COPY_ON_WRITE)
