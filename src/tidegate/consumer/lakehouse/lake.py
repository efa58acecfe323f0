"""The interface to tables as files in a directory, for `lake_target`: what Delta and Iceberg have in common.

A table has a *path*, which names it as long as its rows can be read, and *versions*: the numbers of its
commits. One commit names a snapshot: a version of each table, together with the consumer's position. Versions
of a table after the one that the newest snapshot names are unfinished, and can be undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from tidegate.consumer.ddl.ddl_steps import Source
from tidegate.consumer.table.partition_spec import Spec
from tidegate.sink.lakehouse.snapshot_rows import SnapshotRow
from tidegate.sink.lakehouse.store import Store


class Snapshots(Protocol):
    """The table whose commits name snapshots, of one target. One thread writes it."""

    def publish(self, ts: int, rows: Sequence[SnapshotRow], position: str) -> None:
        """Name a snapshot: the commit point. `position` is part of the same commit.

        Fatal or Fenced when another consumer has named one meanwhile.
        """

    def position(self) -> str | None:
        """The position that `publish` committed with the newest snapshot; None if there is no snapshot."""

    def rows(self, at: int | None = None) -> list[SnapshotRow]:
        """The tables of the newest snapshot with ts <= `at` (None: the newest of all)."""

    def named_versions(self) -> dict[str, list[int]]:
        """By path, the versions that some snapshot names."""


class Lake(Protocol):
    """The tables below one root directory. One process writes; its threads may write different tables."""

    @property
    def store(self) -> Store:
        """The store that holds the files."""

    @property
    def snapshots(self) -> Snapshots:
        """The table of snapshots."""

    # --- what there is

    def check(self) -> None:
        """Raise InvalidInput or Fatal unless the root is a target, or may become one."""

    def begin(self) -> None:
        """Fence an earlier writer, and finish the removal of files that it had begun."""

    def check_writer(self) -> None:
        """Fenced if another process has taken the target over, where no lock prevents that."""

    def table_paths(self) -> list[str]:
        """The paths of all tables; tables that are not the consumer's may be among them."""

    def exists(self, path: str) -> bool:
        """Whether a table is there."""

    def version(self, path: str) -> int:
        """The newest version of a table."""

    def holds(self, path: str, columns: pa.Schema) -> bool:
        """Whether a table's columns are these."""

    def columns(self, path: str) -> list[str]:
        """The names of a table's columns, in order."""

    def partition_spec(self, path: str, version: int | None = None) -> Spec:
        """A table's partition spec at a version (None: its newest), as its own metadata have it."""

    def batches(self, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """A table's rows at its newest version; `columns` are its columns and the types to return."""

    # --- start

    def restore_all(self, rows: Sequence[SnapshotRow]) -> None:
        """Restore these tables' versions and names in the snapshot, and undo everything after it."""

    def restore(self, path: str, version: int) -> bool:
        """Undo everything after `version`; False when there is nothing to undo."""

    def discard(self, path: str) -> bool:
        """Remove a table that no snapshot names, with its files. False when it is not ours."""

    # --- DDL

    def make(self, schema: str, table: str, columns: pa.Schema, spec: Spec = ()) -> str:
        """Create a new, empty table, partitioned by `spec`, which it keeps. Returns its path.

        Fatal when a table of someone else has the name.
        """

    def vanish(self, path: str) -> None:
        """Free the name of a table; `move` can bring its rows back."""

    def move(self, path: str, schema: str, table: str, version: int | None = None) -> str:
        """Rename a table. Returns its new path. `version`: restore the rows of that version as well."""

    def add_null_columns(self, path: str, columns: pa.Schema) -> None:
        """Append the missing columns, null in all rows, without rewriting data files."""

    def evolve(self, path: str, columns: pa.Schema, sources: Sequence[Source]) -> bool:
        """Change the columns without rewriting data files; False when the format cannot do that."""

    def replace(self, path: str, columns: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Replace all rows by `batches`, in one commit. They may be read from the table's own files."""

    # --- rows

    def append(self, path: str, rows: pa.Table) -> None:
        """Add rows."""

    def merge(self, path: str, upserts: pa.Table, deletes: pa.Table, keys: Sequence[str]) -> None:
        """Replace or insert rows and delete keys, in one commit. Keys are not null and distinct over both."""

    def compact(self, path: str, keys: Sequence[str]) -> bool:
        """Merge small data files if there are many; the rows stay the same. Returns whether it did so."""
