"""Delta tables through delta-rs (no JVM, no jar): how a consumer writes and reads the tables of one target.

Layout under the root: `SCHEMA/TABLE` (encoded, see `table_path`) is a Delta table. `_tidegate/snapshots` is
itself one (`snapshot_table`), and an append to it is the only commit point. Any version of a table after the
one that the newest snapshot names is unfinished work: `restore` undoes it.

A path has one linear history: a table that is dropped and created again, or truncated, continues in the same
log, so older snapshots stay readable at their versions. A rename links the data files into the folder at the
new path.

Every change of a table is one commit through `own_tables`, which guarantees that a table of someone else is
never written, emptied, vacuumed or removed. In `rename` the order matters: the new path is emptied before
files are linked into it, and no snapshot names it before it has its rows.

The files are in a `Store`: a local disk or an object store. On a disk one process writes: the consumer's
driver, which holds the lock of its root. An object store has no lock; there only the newest consumer that
called `take_over` can name snapshots (`takeover`).

The threads of one process may write to different tables at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidegate.errors import Fatal, InvalidInput, Retryable
from tidegate.model.path_part import path_part
from tidegate.sink.lakehouse import delta_commit
from tidegate.sink.lakehouse.delta_commit import MARK, configuration
from tidegate.sink.lakehouse.own_tables import OwnTables, deleted_already, entries_of, files_of, listed
from tidegate.sink.lakehouse.partition_values import check_rows, columns_of, files_of_fullest, values_of
from tidegate.sink.lakehouse.snapshot_rows import COMPACT_FILES
from tidegate.sink.lakehouse.snapshot_table import SnapshotTable
from tidegate.sink.lakehouse.store import OWN, SNAPSHOTS, DiskStore, Store, store_of, translated
from tidegate.sink.lakehouse.table_files import TableFiles
from tidegate.sink.lakehouse.vector_tables import VectorTables, may_have_vectors

USED_PATHS: Final = f"{OWN}/slots"
"""In an object store: an empty object for each path that was ever given to a table. The folder keeps the name
that earlier releases gave it: in a folder of another name, the paths that they discarded would look unused.
"""
NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})
_NO_COLUMNS: Final = pa.schema([pa.field("_tidegate_none", pa.int8())])
"""A Delta table must have at least one column."""


def table_path(schema: str, table: str) -> str:
    """The path of a new table below the root, see `path_part`; a table made earlier keeps the path it has.

    No part begins with an underscore or a dot, because those names are reserved for the consumer's own files.
    """
    return f"{path_part(schema)}/{path_part(table)}"


class Lakehouse:
    """The Delta tables below one root: a directory, or a prefix in an object store."""

    def __init__(self, root: Path | Store, begun_with: Mapping[str, str] = NO_PROPERTIES) -> None:
        """`begun_with`: properties of a new target, which its table of snapshots gets.

        Raises InvalidInput for a directory name that delta-rs cannot open.
        """
        self.store = store_of(root)
        if isinstance(self.store, DiskStore) and set(str(self.store)) & set("%\\[]^|"):
            raise InvalidInput(
                "the target directory's name holds a character that Delta tables cannot have in their path",
                where=str(self.store),
                why="one of % \\ [ ] ^ |",
                fix="choose another directory",
            )
        self._tables = OwnTables(self.store, begun_with)
        self.vectors = VectorTables(self.store, self._tables)
        """The tables whose data files may have deleted rows."""
        self.snapshots = SnapshotTable(self.store, self._tables)
        """The table of snapshots: an append to it is the commit point of the target."""

    @property
    def root(self) -> Path:
        """The directory of a target on the local disk."""
        assert isinstance(self.store, DiskStore), "an object store has no directory"
        return self.store.root

    # --- whether the target is ours

    def check(self) -> None:
        """Raise unless the root is a target or can become one, because it is empty or does not exist.

        InvalidInput if it holds anything else; Fatal if it holds a target's tables but no table of snapshots,
        without which it is not known which of their versions are valid.
        """
        if self.exists(SNAPSHOTS):
            if self._tables.mark_of(SNAPSHOTS) is None:
                raise _unmarked(self.store)
            return
        marked = [path for path in self.table_paths() if self._tables.mark_of(path) is not None]
        if marked:
            raise _lost_snapshots(self.store, marked)
        _check_empty(self.store)

    def target_property(self, name: str) -> str | None:
        """A property of the target, with which it was begun; None: it has none, or there is no target."""
        if not self.exists(SNAPSHOTS):
            return None
        found: str | None = self._tables.open(SNAPSHOTS).metadata().configuration.get(name)
        return found

    def take_over(self, name: str) -> None:
        """Make this process the writer, as the consumer `name`; every earlier one is fenced from here on.

        InvalidInput if the target belongs to another consumer. Retryable if other processes committed first
        each time.
        """
        self._tables.take_over(name)

    def check_writer(self) -> None:
        """Fenced if another process has taken over. Does nothing on a disk: this process has the lock."""
        self._tables.check_writer()

    # --- tables

    def writable(self, path: str) -> DeltaTable:
        """A table to write to; Fatal unless it carries this target's mark."""
        return self._tables.writable(path)

    def exists(self, path: str) -> bool:
        """Whether there is a Delta table at a path."""
        return self._tables.exists(path)

    def version(self, path: str) -> int:
        """The newest version of a table."""
        return int(self._tables.open(path).version())

    def partition_columns(self, path: str, version: int | None = None) -> list[str]:
        """The columns by which a table is partitioned at a version; empty: it is not."""
        return columns_of(self._tables.open(path, version))

    def create(self, path: str, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        """Make the path an empty table of this schema; its earlier rows stay readable at older versions.

        Fatal if something that is not the target's is at this path, or the folder of another table whose name
        differs only in ways that the disk ignores: earlier releases used capital letters in folder names.
        """
        # The table of snapshots comes first: without it a table with the mark would be one of a broken
        # target.
        self._tables.identity()
        self.store.check_folder(path)
        if self.exists(path) and self._tables.is_own(path):
            self._overwrite(path, schema, iter(()), partition_by)
        else:
            self._tables.begin(path, schema, partition_by)

    def append(self, path: str, rows: pa.Table) -> None:
        """Add rows."""
        with self._tables.writing(path) as table:
            check_rows(rows, columns_of(table), self.store.uri(path))
            delta_commit.append(table, rows)

    def merge(self, path: str, upserts: pa.Table, deletes: pa.Table, keys: Sequence[str]) -> None:
        """Insert or replace rows and delete keys, in one commit: see `delta_commit.merge`."""
        with self._tables.writing(path) as table:
            check_rows(upserts, columns_of(table), self.store.uri(path))
            delta_commit.merge(table, upserts, deletes, keys)

    def add_null_columns(self, path: str, schema: pa.Schema) -> None:
        """Append the columns of `schema` that the table lacks, null in all rows. Data files are not
        rewritten.
        """
        with self._tables.writing(path) as table:
            delta_commit.add_columns(table, schema)

    def replace(self, path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Replace all rows with those of `batches`, in one commit. They may be read from the table's own
        files. The partition columns stay.
        """
        self._overwrite(path, schema, batches, self.partition_columns(path))

    def rename(self, source: str, target: str, version: int | None = None) -> None:
        """Copy the rows of one path to another: the data files are linked or copied, none is rewritten.

        In an object store the copies get new names, because a writer that was replaced may still be about to
        delete a file in `target` by its old name. Files with deleted rows are rewritten without them.

        `version` is that of the source, None: its newest. Fatal if files of an older version were deleted.
        """
        held = self._tables.open(source, version)
        # Checked before `create`, which would already empty the target's folder.
        there, vectors = set(self.store.files_below(source)), self.vectors.vectors(source, held)
        needed = [*files_of(held), *(one.vector.file for one in vectors.values() if one.vector is not None)]
        missing = [name for name in needed if name not in there]
        if missing:
            raise deleted_already(self.store.uri(f"{source}/{missing[0]}"))
        schema = pa.schema(held.schema())
        self.create(target, schema, columns_of(held))
        if vectors:
            self._overwrite(target, schema, self.vectors.batches(source, version), columns_of(held))
            return
        actions = delta_commit.files_with_counts(held)
        # The files before the commit that names them.
        for action in actions:
            name = unquote(action.path)
            # delta-rs encodes the path again.
            action.path = f"{uuid.uuid4().hex}.parquet" if self.store.shared else name
            self.store.copy(f"{source}/{name}", f"{target}/{action.path}")
        with self._tables.writing(target) as table:
            delta_commit.add_files(table, actions, schema)
        self._tables.skip_commit(target)

    def restore(self, path: str, version: int) -> bool:
        """Undo all commits after `version`; False if there is nothing to undo."""
        table = self._tables.found(path)
        if table.version() == version:
            return False
        # A restore is a version of its own, so after a crash the newest version differs although the rows
        # are right.
        if delta_commit.is_restored(table, version):
            return False
        self.check_writer()
        if may_have_vectors(table):
            self.vectors.restore(path, version)
            return True
        with self._tables.writing(path) as table:
            delta_commit.restore(table, version)
        return True

    def dataset(self, path: str, version: int | None = None) -> ds.Dataset:
        """A table's rows, as a pyarrow dataset over its files; InvalidInput if these have deleted rows."""
        table = self._tables.open(path, version)
        if self.vectors.vectors(path, table):
            raise _deleted_rows(self.store.uri(path))
        return self._tables.rows_of(path, table, files_of(table))

    def schema(self, path: str, version: int | None = None) -> pa.Schema:
        """A table's columns at a version."""
        return pa.schema(self._tables.open(path, version).schema())

    def files(self, path: str, version: int | None = None) -> list[Path]:
        """The data files of a table at a version, which may have deleted rows (`vectors.deleted_rows`).

        InvalidInput for a target that is not on the local disk.
        """
        found = [self.store.local(f"{path}/{name}") for name in files_of(self._tables.open(path, version))]
        local = [file for file in found if file is not None]
        if len(local) < len(found):
            raise _not_on_this_machine(self.store.uri(path))
        return local

    def partition_values(self, path: str, version: int | None = None) -> dict[str, dict[str, Any]]:
        """The values of the partition columns by the name of a data file, which is its own in the table."""
        found = values_of(self._tables.open(path, version))
        return {unquote(name).rpartition("/")[2]: values for name, values in found.items()}

    def read(self, path: str, version: int | None = None, columns: list[str] | None = None) -> pa.Table:
        """A table's rows at a version."""
        table = self._tables.open(path, version)
        if may_have_vectors(table):
            return self.vectors.read(path, table, columns)
        return self._tables.rows_of(path, table, files_of(table)).to_table(columns=columns)

    def compact(self, path: str) -> bool:
        """Merge small data files when a partition has more than `COMPACT_FILES`; the rows stay the same."""
        if files_of_fullest(self._tables.open(path)) <= COMPACT_FILES:
            return False
        with self._tables.writing(path) as table:
            delta_commit.compact(table)
        return True

    def file_count(self, path: str) -> int:
        """The number of data files of a table's newest version."""
        return len(files_of(self._tables.open(path)))

    def files_of(self, path: str) -> TableFiles:
        """An object that deletes the files of a table that no needed version has."""

        def files_at(version: int) -> tuple[list[str], list[tuple[str, str]]]:
            table = self._tables.open(path, version)
            return files_of(table), self.vectors.files_of(path, table)

        def check() -> None:
            self._tables.writable(path)
            self.check_writer()

        return TableFiles(self.store, path, files_at, check)

    def path_for(self, schema: str, table: str) -> str:
        """The path of a new table of this name. On a disk this is always the path named after the table.

        In an object store a path that was ever discarded is not used again: a process that was replaced may
        still be deleting files there (`ObjectStore.discard`). A path that the newest snapshot names was never
        discarded, so it may be used. Any other path must never have been used before.
        """
        path = table_path(schema, table)
        return _path_in_bucket(self, schema, table, path) if self.store.shared else path

    # --- tables that no snapshot names

    def discard(self, path: str) -> bool:
        """Remove a table that no snapshot names, with its files. False if it is not ours."""
        if not self.set_aside(path):
            return False
        self.empty_trash()
        return True

    def set_aside(self, path: str) -> bool:
        """Move a table that no snapshot names to the trash. False if it is not ours."""
        self.vectors.forget(path)
        return self._tables.set_aside(path)

    def empty_trash(self) -> None:
        """Remove the files of discarded tables, also of those that a killed writer has discarded."""
        for _ in self.emptying_trash():
            pass

    def emptying_trash(self) -> Iterator[None]:
        """`empty_trash` in pieces: each step removes some hundred files."""
        return self.store.emptying_trash()

    def table_paths(self) -> list[str]:
        """All Delta tables at paths that tables may have, including those of others. Links are not followed.

        In an object store: all folders at such paths, because a check would take one request per folder.
        """
        store = self.store
        schemas = _folders_of_tables(store, "")
        found = {f"{schema}/{table}" for schema in schemas for table in _folders_of_tables(store, schema)}
        found -= set(store.discarded())
        return sorted(path for path in found if store.shared or store.has_folder(f"{path}/_delta_log"))

    def _overwrite(
        self, path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], partition_by: Sequence[str]
    ) -> None:
        raised: list[Exception] = []
        if partition_by:
            batches = _checked(batches, partition_by, self.store.uri(path))
        reader = pa.RecordBatchReader.from_batches(schema, _keeping_errors(batches, raised))
        held = pa.schema(self._tables.writable(path).schema()).names
        if held != schema.names and set(held) == set(schema.names):
            # delta-rs ignores a schema that differs only in the order of columns, so remove all columns
            # first.
            self._overwrite(path, _NO_COLUMNS, iter(()), ())
        try:
            with self._tables.writing(path) as table:
                delta_commit.overwrite(table, reader, partition_by)
        except (DeltaError, InvalidInput, Retryable) as error:
            if not raised:
                raise
            with translated(self.store, path):
                raise raised[0] from error
        # A commit of its own. If the process dies before it, no snapshot names the rows either, and both are
        # undone.
        with self._tables.writing(path) as table:
            delta_commit.set_properties(table, configuration(schema, partition_by))


def _path_in_bucket(lake: Lakehouse, schema: str, table: str, path: str) -> str:
    """See `Lakehouse.path_for`. `path`: the one named after the table."""
    named = {(row.schema, row.table): row.path for row in lake.snapshots.rows()}
    if (schema, table) in named:
        return named[schema, table]
    taken = f"{USED_PATHS}/{path}"
    if lake.store.get(taken) is None and lake.store.has_folder(path):
        return path  # it belongs to someone else: `create` raises
    if lake.store.create(taken, b""):
        return path
    return f"{path}~{uuid.uuid4().hex[:8]}"


def _unmarked(store: Store) -> InvalidInput:
    return InvalidInput(
        "the target's table of snapshots was not made by this release",
        where=store.uri(SNAPSHOTS),
        why=f"it lacks the table property {MARK}",
        fix="choose a new or empty directory",
    )


def _lost_snapshots(store: Store, marked: Sequence[str]) -> Fatal:
    return Fatal(
        "the directory holds tables of a target whose table of snapshots is gone",
        where=f"{store}: {listed(marked)}; {SNAPSHOTS} is missing or has no readable log",
        why="without it, the valid versions and the place to continue are not known",
        fix=f"restore {SNAPSHOTS}, or choose a new or empty directory",
    )


def _not_on_this_machine(where: str) -> InvalidInput:
    return InvalidInput(
        "the rows are in an object store, and their files have no path on this machine",
        where=where,
        fix="read the table with `dataset()` or `to_arrow()`, or open it as the Delta table it is",
    )


def _deleted_rows(where: str) -> InvalidInput:
    return InvalidInput(
        "a pyarrow dataset of this table would have deleted rows",
        where=where,
        why="the target was begun with --write-mode merge-on-read: its data files keep deleted rows",
        fix="read it with `to_arrow()` or `batches()`, or with an engine that reads deletion vectors",
    )


def _check_empty(store: Store) -> None:
    """Raises InvalidInput if the root of a new target holds anything."""
    others = sorted(name for name in entries_of(store, "") if name not in (OWN, "lost+found"))
    if others:
        kind = "prefix" if store.shared else "directory"
        raise InvalidInput(
            f"the target {kind} holds something else",
            where=f"{store}: {listed(others)}",
            why=f"none of it was made by a consumer, and a target owns its {kind}",
            fix=f"choose a new or empty {kind}",
        )


def _checked(
    batches: Iterator[pa.RecordBatch], partition_by: Sequence[str], where: str
) -> Iterator[pa.RecordBatch]:
    """Yield the batches; Fatal at one with a partition value that cannot be stored."""
    for batch in batches:
        check_rows(batch, partition_by, where)
        yield batch


def _keeping_errors(batches: Iterator[pa.RecordBatch], raised: list[Exception]) -> Iterator[pa.RecordBatch]:
    """Yield the batches; keep an error raised while one is made, because delta-rs passes on only its text."""
    try:
        yield from batches
    except Exception as error:
        raised.append(error)
        raise


def _folders_of_tables(store: Store, folder: str) -> list[str]:
    """The folders in a folder that may be a schema or a table: their names are not reserved."""
    return [name for name in store.folders(folder) if not name.startswith((".", "_"))]
