"""Delta tables with the verbs of `Lake`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from tidegate.consumer.ddl.ddl_steps import Source
from tidegate.consumer.table.partition_spec import PartitionField, Spec
from tidegate.sink.lakehouse.snapshot_rows import SnapshotRow
from tidegate.sink.lakehouse.store import Store
from tidegate.sink.lakehouse.tables import Lakehouse


class DeltaLake(Lakehouse):
    """One target. A table's path is the folder of its files; on a disk its name determines it."""

    def __init__(self, root: Path | Store, consumer: str = "") -> None:
        """`consumer`: its name, which a target in an object store records."""
        super().__init__(root)
        self._consumer = consumer

    def begin(self) -> None:
        """Fence an earlier writer, and finish the removal of files that it had begun."""
        if self.store.shared:
            self.take_over(self._consumer)
        self.empty_trash()

    def holds(self, path: str, columns: pa.Schema) -> bool:
        """Whether a table's columns are these."""
        return bool(self.dataset(path).schema.equals(columns))

    def columns(self, path: str) -> list[str]:
        """The names of a table's columns, in order."""
        return list(self.dataset(path).schema.names)

    def batches(self, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """A table's rows at the time of this call, even if the table is written while they are read."""
        batches: Iterator[pa.RecordBatch] = self.dataset(path).to_batches()
        return batches

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

    def compact(self, path: str, keys: Sequence[str] = ()) -> bool:
        """See `Lakehouse.compact`, which uses only the files' sizes."""
        return super().compact(path)
