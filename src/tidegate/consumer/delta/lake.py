"""Delta tables with the verbs of `Lake`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from tidegate.consumer.ddl_plan import Source
from tidegate.sink.lakehouse import Lakehouse
from tidegate.sink.snapshot_rows import SnapshotRow
from tidegate.sink.store import Store


class DeltaLake(Lakehouse):
    """One target; a table's path is its slot, which on a disk follows from its name."""

    def __init__(self, root: Path | Store, consumer: str = "") -> None:
        """`consumer`: its name, which a target in an object store keeps."""
        super().__init__(root)
        self._consumer = consumer

    def begin(self) -> None:
        """Shut out an earlier writer, and remove what an earlier process was about to remove."""
        if self.store.shared:
            self.take_over(self._consumer)
        self.empty_trash()

    def holds(self, path: str, columns: pa.Schema) -> bool:
        """Whether a table's columns are these."""
        return bool(self.dataset(path).schema.equals(columns))

    def columns(self, path: str) -> list[str]:
        """Their names, in order."""
        return list(self.dataset(path).schema.names)

    def batches(self, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """A table's rows as they are when this is called, whatever is written until they are read."""
        batches: Iterator[pa.RecordBatch] = self.dataset(path).to_batches()
        return batches

    def restore_all(self, rows: Sequence[SnapshotRow]) -> None:
        """Take these tables back to their versions; a name is a path, so it needs nothing."""
        for row in rows:
            self.restore(row.path, row.version)

    def make(self, schema: str, table: str, columns: pa.Schema) -> str:
        """A new, empty table in the slot of this name."""
        path = self.slot_for(schema, table)
        self.create(path, columns)
        return path

    def vanish(self, path: str) -> None:
        """Nothing: no reader sees a slot that no snapshot names, and a new table of the name uses it."""

    def move(self, path: str, schema: str, table: str, version: int | None = None) -> str:
        """The same rows in the slot of another name."""
        target = self.slot_for(schema, table)
        if path != target:
            self.rename(path, target, version)
        elif version is not None:
            self.restore(path, version)
        return target

    def evolve(self, path: str, columns: pa.Schema, sources: Sequence[Source]) -> bool:
        """Never: delta-rs neither renames nor drops columns without new files."""
        return False

    def compact(self, path: str, keys: Sequence[str] = ()) -> bool:
        """See `Lakehouse.compact`, which goes by the files' sizes alone."""
        return super().compact(path)
