"""Tables as files in a directory, as `lake_target` needs them: what Delta and Iceberg have in common.

A table has a *path*, which names it for as long as its rows can be read, and *versions*: numbers that its
commits make. One commit names a snapshot: a version of each table, with the consumer's position. What a
table has beyond the version that the newest snapshot names is unfinished, and can be undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from tidegate.consumer.ddl_plan import Source
from tidegate.sink.snapshot_rows import SnapshotRow
from tidegate.sink.store import Store


class Lake(Protocol):
    """The tables below one root directory. One process writes; its threads may write different tables."""

    @property
    def store(self) -> Store:
        """Where its files are."""

    # --- what there is

    def check(self) -> None:
        """Raise InvalidInput or Fatal unless the root is a target, or may become one."""

    def begin(self) -> None:
        """Shut out an earlier writer, and remove what it was about to remove."""

    def check_writer(self) -> None:
        """Fenced if another process has taken the target over, where that can happen without a lock."""

    def position(self) -> str | None:
        """What `publish` committed with the newest snapshot; None: nothing was ever published."""

    def snapshot_rows(self, at: int | None = None) -> list[SnapshotRow]:
        """The tables of the newest snapshot with ts <= `at` (None: the newest of all)."""

    def named_versions(self) -> dict[str, list[int]]:
        """Every path and the versions of it that some snapshot names."""

    def slots(self) -> list[str]:
        """The paths of all tables; other people's may be among them."""

    def exists(self, path: str) -> bool:
        """Whether a table is there."""

    def version(self, path: str) -> int:
        """The newest version of a table."""

    def holds(self, path: str, columns: pa.Schema) -> bool:
        """Whether a table's columns are these."""

    def columns(self, path: str) -> list[str]:
        """Their names, in order."""

    def batches(self, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """A table's rows at its newest version, in the types of `columns`, its columns."""

    # --- start

    def restore_all(self, rows: Sequence[SnapshotRow]) -> None:
        """Take these tables back to their versions and names, whatever came after."""

    def restore(self, path: str, version: int) -> bool:
        """Undo everything after `version`; False when there is nothing to undo."""

    def discard(self, path: str) -> bool:
        """Remove a table that no snapshot names, with its files. False when it is not ours."""

    # --- DDL

    def make(self, schema: str, table: str, columns: pa.Schema) -> str:
        """A new, empty table; its path. Fatal when the name is somebody else's."""

    def vanish(self, path: str) -> None:
        """The name of a table is free; its rows can come back."""

    def move(self, path: str, schema: str, table: str, version: int | None = None) -> str:
        """Give a table another name; its path then. `version`: it has the rows of this one again."""

    def add_null_columns(self, path: str, columns: pa.Schema) -> None:
        """Append the columns that are missing, null in all rows, without touching data files."""

    def evolve(self, path: str, columns: pa.Schema, sources: Sequence[Source]) -> bool:
        """Change the columns without touching data files; False when the format cannot."""

    def replace(self, path: str, columns: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Put `batches` in the place of all rows, in one commit. They may come from the table's own files."""

    # --- rows

    def append(self, path: str, rows: pa.Table) -> None:
        """Add rows."""

    def merge(self, path: str, upserts: pa.Table, deletes: pa.Table, keys: Sequence[str]) -> None:
        """Replace or insert rows and delete keys, in one commit. Keys are not null and distinct over both."""

    def compact(self, path: str, keys: Sequence[str]) -> bool:
        """Merge small data files if there are many; the rows stay the same. Whether anything was done."""

    def publish(self, ts: int, rows: Sequence[SnapshotRow], position: str) -> None:
        """Name a snapshot: the commit point. `position` travels in the same commit.

        Fatal or Fenced when another consumer has named one meanwhile.
        """
