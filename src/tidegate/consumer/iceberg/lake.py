"""Iceberg tables with the verbs of `Lake`: rows merged by copying only the files that can hold their keys.

Layout under the root: `catalog.db` is the catalog; `SCHEMA/TABLE-1a2b3c4d` holds a table's files (`tables`);
`_tidegate/snapshots` those of the table of snapshots (`index`), whose commits are the only commit point. In
the catalog each table has its schema as the namespace, and its name. What the current snapshot of a table
holds beyond the one that the newest snapshot of the target names is unfinished: `restore_all` undoes it.

Each change of columns makes a snapshot, too, so that a table's snapshot says with which columns it is read.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from tidegate.consumer.ddl_plan import Source
from tidegate.consumer.directory_lock import OWN
from tidegate.consumer.iceberg import columns as of_columns
from tidegate.consumer.iceberg import index
from tidegate.consumer.iceberg.catalog import FILE, WriterCatalog
from tidegate.consumer.iceberg.columns import Evolution, stored
from tidegate.consumer.iceberg.data_files import FILE_BYTES, Touched, by_key, read, written
from tidegate.consumer.iceberg.index import Index
from tidegate.consumer.iceberg.tables import DROPPED, Tables, Writing, change_columns
from tidegate.errors import Fatal, InvalidInput
from tidegate.sink.snapshot_rows import SnapshotRow
from tidegate.sink.store import DiskStore

COMPACT_FILES: Final = 10
"""A table with more small data files than this is compacted before the next snapshot names it."""
SMALL_BYTES: Final = 4 << 20
"""Of a small data file, on disk."""
FULL_MAX: Final = 100_000
"""Files that are remembered as full, over all tables; then it begins again."""
OWN_NAMESPACES: Final = (OWN, DROPPED)


class IcebergLake:
    """The Iceberg tables below one root directory."""

    def __init__(self, root: Path) -> None:
        """Raises InvalidInput for a directory name that cannot stand in a URI as it is."""
        self.root = root.absolute()
        if set(str(self.root)) & set("%?#\\[]^|"):
            raise InvalidInput(
                "the target directory's name holds a character that Iceberg tables cannot live under",
                where=str(self.root),
                why="one of % ? # \\ [ ] ^ |",
                fix="choose another directory",
            )
        self.store = DiskStore(self.root)
        self._writer: tuple[WriterCatalog, Tables, Index] | None = None
        self._full: set[str] = set()
        """Files that compaction has made of as many rows as one takes, whatever their size on disk."""

    # --- what is ours

    def check(self) -> None:
        """Raise InvalidInput unless the root is a target, or may become one: it is empty or not there."""
        if not self.root.is_dir():
            return
        if (self.root / FILE).exists() and self._is_begun():
            return
        ours = (OWN, "lost+found", FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal")
        others = sorted(e.name for e in self.root.iterdir() if e.name not in ours)
        if others:
            raise InvalidInput(
                "the target directory holds something else",
                where=f"{self.root}: {', '.join(others[:5])}",
                why="none of it was made by a consumer that writes Iceberg, and a target owns its directory",
                fix="choose a new or empty directory",
            )

    def _is_begun(self) -> bool:
        """Whether the catalog has the table of snapshots; InvalidInput if it has others only."""
        found = index.names_in(self.root)
        if found and index.NAME not in found:
            shown = ", ".join(f"{namespace}.{name}" for namespace, name in sorted(found)[:5])
            raise InvalidInput(
                "the directory's catalog holds tables, and no table of snapshots",
                where=f"{self.root / FILE}: {shown}",
                why="without it nobody can tell which of their snapshots are valid, or it is no target's",
                fix=f"restore {index.NAME[0]}.{index.NAME[1]}, or choose a new or empty directory",
            )
        return bool(found)

    def check_writer(self) -> None:
        """Nothing: the process has the directory's lock, and the catalog's token is in each commit."""

    def begin(self) -> None:
        """Open the catalog, shut out every earlier writer, and remove what was about to be removed."""
        if self._writer is None:
            catalog = WriterCatalog(self.root)
            tables = Tables(self.root, catalog)
            self._writer = catalog, tables, Index(tables)
        catalog, tables, snapshots = self._writer
        catalog.take_over()
        tables.read_names()
        tables.empty_trash()
        if index.PATH not in tables.names():
            tables.identity = uuid.uuid4().hex
            snapshots.begin()
        tables.identity = snapshots.identity()

    @property
    def tables(self) -> Tables:
        """The tables, once `begin` was called."""
        assert self._writer is not None, "begin first"
        return self._writer[1]

    @property
    def index(self) -> Index:
        """The table of snapshots, once `begin` was called."""
        assert self._writer is not None, "begin first"
        return self._writer[2]

    def close(self) -> None:
        """Let go of the catalog's connections."""
        if self._writer is not None:
            self._writer[0].close()
            self._writer = None

    # --- what there is

    def position(self) -> str | None:
        """What `publish` committed with the newest snapshot; None: nothing was ever published."""
        return self.index.position()

    def snapshot_rows(self, at: int | None = None) -> list[SnapshotRow]:
        """The tables of the newest snapshot with ts <= `at` (None: the newest of all)."""
        ts = index.newest(self.index.table(), at)
        return [] if ts is None else index.rows_at(self.index.table(), ts)

    def named_versions(self) -> dict[str, list[int]]:
        """Every path and the snapshots of it that some snapshot names."""
        return index.named(self.index.table())

    def slots(self) -> list[str]:
        """The paths of all tables in the catalog but the table of snapshots."""
        return sorted(path for path in self.tables.names() if path != index.PATH)

    def exists(self, path: str) -> bool:
        """Whether a table is there."""
        return self.tables.exists(path)

    def version(self, path: str) -> int:
        """The newest snapshot of a table."""
        return self.tables.head(path)

    def holds(self, path: str, columns: pa.Schema) -> bool:
        """Whether a table's columns are these."""
        return of_columns.holds(self.tables.table(path).schema(), columns)

    def columns(self, path: str) -> list[str]:
        """Their names, in order."""
        return [field.name for field in self.tables.table(path).schema().fields]

    def batches(self, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """A table's rows as they are when this is called, a data file at a time in memory."""
        table = self.tables.table(path)
        tasks = self.tables.manifests.tasks(table)
        view = Table(table.name(), table.metadata, table.metadata_location, table.io, table.catalog)
        return (batch for task in tasks for batch in read(view, task, columns).to_batches())

    # --- start

    def restore_all(self, rows: Sequence[SnapshotRow]) -> None:
        """Take these tables back to their snapshots and names, whatever came after.

        A table that has none of these names loses the one it has: it was made or came back afterwards.
        """
        wanted = {row.path: (row.schema, row.table) for row in rows}
        held = self.tables.names()
        for path, name in held.items():
            if name[0] not in OWN_NAMESPACES and wanted.get(path) != name and self.tables.is_ours(path):
                self.tables.park(path)
        for path, name in wanted.items():
            self.tables.rename(path, name)
        for row in rows:
            self.restore(row.path, row.version)

    def restore(self, path: str, version: int) -> bool:
        """Undo everything after a snapshot; False when there is nothing to undo."""
        return self.tables.restore(path, version)

    def discard(self, path: str) -> bool:
        """Remove a table that no snapshot names, with its files. False when it is not ours."""
        return self.tables.discard(path)

    # --- DDL

    def make(self, schema: str, table: str, columns: pa.Schema) -> str:
        """A new, empty table; Fatal when the name is somebody else's, or one of ours."""
        path = self.tables.fresh_path(schema, table)
        self.tables.create(path, _name(schema, table), columns)
        return path

    def vanish(self, path: str) -> None:
        """The name of a table is free; its rows can come back."""
        self.tables.park(path)

    def move(self, path: str, schema: str, table: str, version: int | None = None) -> str:
        """Give a table another name; `version`: it has the rows of this snapshot again."""
        name = _name(schema, table)
        for other, held in self.tables.names().items():
            if held == name and other != path and self.tables.is_ours(other):
                self.tables.park(other)  # it is to get another name by a further step
        if version is not None:
            self.tables.check_files(path, version)
        self.tables.rename(path, name)
        if version is not None:
            self.restore(path, version)
        return path

    def add_null_columns(self, path: str, columns: pa.Schema) -> None:
        """Append the columns that are missing, null in all rows."""
        held = set(self.columns(path))
        adds = tuple((field.name, field.type) for field in columns if field.name not in held)
        self._evolve(path, Evolution(adds=adds), columns.names)

    def evolve(self, path: str, columns: pa.Schema, sources: Sequence[Source]) -> bool:
        """Change the columns without touching data files; False when Iceberg cannot."""
        change = of_columns.evolution(self.tables.table(path).schema(), columns, sources)
        if change is None:
            return False
        self._evolve(path, change, columns.names)
        return True

    def _evolve(self, path: str, change: Evolution, order: Sequence[str]) -> None:
        with self.tables.writing(path) as writing:
            change_columns(writing, change, order)
            self._commit(writing, [], [])

    def replace(self, path: str, columns: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Put `batches` in the place of all rows, in one commit. They may come from the table's own files."""
        table = self.tables.table(path)
        tasks = self.tables.manifests.tasks(table)
        change, types = of_columns.replaced(table.schema(), columns), stored(columns)
        with self.tables.writing(path) as writing:
            change_columns(writing, change, columns.names)
            rows = (_cast(batch, types) for batch in batches)
            self._commit(writing, [task.file for task in tasks], _files(writing, rows))

    # --- rows

    def append(self, path: str, rows: pa.Table) -> None:
        """Add rows."""
        with self.tables.writing(path) as writing:
            self._commit(writing, [], _files(writing, _stored(rows).to_batches()))

    def merge(self, path: str, upserts: pa.Table, deletes: pa.Table, keys: Sequence[str]) -> None:
        """Replace or insert rows and delete keys, in one commit. Keys are not null and distinct over both.

        Data files that can hold a key are read one by one, and written again if they do hold one: an updated
        row stays among its neighbours. Files whose bounds leave out all keys are not read.
        """
        table = self.tables.table(path)
        upserts = _stored(upserts)
        gone = _stored(deletes.select(list(keys)))
        touched = Touched(pa.concat_tables([upserts.select(list(keys)), gone]), table.schema())
        tasks = [task for task in self.tables.manifests.tasks(table) if touched.may_be_in(task.file)]
        replaced, placed = list[DataFile](), np.zeros(upserts.num_rows, np.bool_)
        with self.tables.writing(path) as writing:
            made = list[DataFile]()
            for task in tasks:
                if _hits(table, task, touched):
                    rest = _merged(read(table, task, upserts.schema), touched, upserts, placed)
                    made += _files(writing, rest.to_batches())
                    replaced.append(task.file)
            fresh = upserts.filter(pa.array(~placed))
            made += _files(writing, fresh.to_batches())
            self._commit(writing, replaced, made)

    def _commit(self, writing: Writing, replaced: Sequence[DataFile], made: Sequence[DataFile]) -> None:
        self.tables.manifests.commit(writing, writing.io, replaced, made)

    def compact(self, path: str, keys: Sequence[str]) -> bool:
        """Merge small data files if there are many; the rows stay the same. Whether anything was done."""
        table = self.tables.table(path)
        tasks = self.tables.manifests.tasks(table)
        small = [task for task in tasks if self._is_small(task.file)]
        if len(small) <= COMPACT_FILES:
            return False
        schema = table.schema()
        types = schema.as_arrow()
        with self.tables.writing(path) as writing:
            made = list[DataFile]()
            for rows in _bundles(read(table, task, types) for task in by_key(small, schema, keys)):
                order = [(key, "ascending") for key in keys if not pa.types.is_nested(rows[key].type)]
                files = _files(writing, (rows.sort_by(order) if order else rows).to_batches())
                made += files
                if rows.nbytes >= FILE_BYTES:
                    self._full |= {file.file_path for file in files}
            self._commit(writing, [task.file for task in small], made)
        return True

    def _is_small(self, file: DataFile) -> bool:
        """Whether it is to be merged with others: rows that compress well make a small file of many."""
        if len(self._full) > FULL_MAX:
            self._full.clear()
        return file.file_size_in_bytes < SMALL_BYTES and file.file_path not in self._full

    def publish(self, ts: int, rows: Sequence[SnapshotRow], position: str) -> None:
        """Name a snapshot: the commit point. `position` travels in the same commit."""
        self.index.publish(ts, rows, position)


def _name(schema: str, table: str) -> tuple[str, str]:
    if schema in OWN_NAMESPACES:
        raise Fatal(
            "a schema has the name of one of the target's own namespaces",
            where=f"{schema}.{table}",
            why=f"{' and '.join(OWN_NAMESPACES)} are where the target keeps its snapshots and dropped tables",
            fix="leave the schema out of the changefeed, or rename it",
        )
    return schema, table


def _files(writing: Writing, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    return list(written(writing.table_metadata, writing.io, batches))


def _stored(rows: pa.Table) -> pa.Table:
    return rows.cast(stored(rows.schema))


def _cast(batch: pa.RecordBatch, types: pa.Schema) -> pa.RecordBatch:
    return batch.select(types.names).cast(types)


def _hits(table: Table, task: FileScanTask, touched: Touched) -> bool:
    """Whether a file has a row with one of the keys. Reads the keys alone."""
    return bool((touched.found_in(read(table, task, touched.columns)) >= 0).any())


def _merged(held: pa.Table, touched: Touched, upserts: pa.Table, placed: Any) -> pa.Table:
    """A file's rows after the merge; the upserts that are among them are marked in `placed`."""
    found = touched.found_in(held)
    rest = held.filter(pa.array(found < 0))
    mine = np.unique(found[(found >= 0) & (found < upserts.num_rows)])
    placed[mine] = True
    return pa.concat_tables([rest, upserts.take(pa.array(mine))])


def _bundles(files: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows of neighbours together, as many as one file takes: about `FILE_BYTES` in memory."""
    held, size = list[pa.Table](), 0
    for rows in files:
        held.append(rows)
        size += rows.nbytes
        if size >= FILE_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
