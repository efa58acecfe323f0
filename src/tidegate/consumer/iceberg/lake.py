"""Iceberg tables with the verbs of `Lake`: a merge changes only files that hold one of its keys (`merging`).

Layout under the root: `catalog.db` is the catalog, or `_catalog` in a bucket (`catalogs`);
`SCHEMA/TABLE-1a2b3c4d` holds a table's files (`tables`); `_tidegate/snapshots` those of the table of
snapshots (`index`), whose commits are the only commit point. In the catalog each table has its name, with its
schema as the namespace. Changes in a table's current snapshot that the target's newest snapshot does not name
are unfinished: `restore_all` undoes them. In a bucket no catalog names them, so a restart finds none.

Each change of columns creates a snapshot of the table too, so that a snapshot determines the columns with
which it is read.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyiceberg.manifest import DataFile

from tidegate.consumer.ddl.ddl_steps import Source
from tidegate.consumer.iceberg import catalog_chain, index
from tidegate.consumer.iceberg import columns as of_columns
from tidegate.consumer.iceberg.catalog import FILE
from tidegate.consumer.iceberg.catalogs import AnyWriterCatalog, writer_catalog
from tidegate.consumer.iceberg.columns import Evolution, stored
from tidegate.consumer.iceberg.data_files import by_key, written
from tidegate.consumer.iceberg.index import Index
from tidegate.consumer.iceberg.merging import merged
from tidegate.consumer.iceberg.partitions import spec_of, values_of
from tidegate.consumer.iceberg.table_files import Change, TableFiles
from tidegate.consumer.iceberg.tables import DROPPED, Tables, Writing, change_columns
from tidegate.consumer.lakehouse.compaction import Compactable, Compaction, bundles
from tidegate.consumer.lakehouse.directory_lock import OWN
from tidegate.consumer.lakehouse.write_mode import DEFAULT, WriteMode
from tidegate.consumer.table.partition_spec import Spec
from tidegate.errors import Fatal, InvalidInput
from tidegate.sink.lakehouse.object_store import PROBE
from tidegate.sink.lakehouse.own_tables import entries_of, listed
from tidegate.sink.lakehouse.snapshot_rows import SnapshotRow
from tidegate.sink.lakehouse.store import Store, store_of

OWN_NAMESPACES: Final = (OWN, DROPPED)
_OWN_ENTRIES: Final = (OWN, "lost+found", FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal")


class IcebergLake:
    """The Iceberg tables below one root: a directory, or a prefix of a bucket."""

    def __init__(self, root: Path | Store, mode: WriteMode = DEFAULT, consumer: str = "") -> None:
        """`consumer`: its name, which a target in a bucket records.

        Raises InvalidInput for a directory name that cannot be part of a URI without encoding.
        """
        self.store = store_of(root)
        if not self.store.shared and set(str(self.store)) & set("%?#\\[]^|"):
            raise InvalidInput(
                "the target directory's name holds a character that the paths of Iceberg tables cannot have",
                where=str(self.store),
                why="one of % ? # \\ [ ] ^ |",
                fix="choose another directory",
            )
        self._consumer = consumer
        self._writer: tuple[AnyWriterCatalog, Tables, Index] | None = None
        self._mode, self._compaction = mode, Compaction(mode)

    # --- what is ours

    def check(self) -> None:
        """Raise InvalidInput unless the root is a target, or may become one: empty or missing."""
        if self._is_begun():
            return
        others = [name for name in entries_of(self.store, "") if name not in _OWN_ENTRIES]
        if self.store.shared:  # another kind of target that has no table yet
            others += [f"{OWN}/{name}" for name in self.store.folders(OWN) if name != PROBE]
        if others:
            kind = "prefix" if self.store.shared else "directory"
            raise InvalidInput(
                f"the target {kind} holds something else",
                where=f"{self.store}: {listed(others)}",
                why=f"none of it was made by a consumer that writes Iceberg, and a target owns its {kind}",
                fix=f"choose a new or empty {kind}",
            )

    def _is_begun(self) -> bool:
        """Whether there is a catalog with the table of snapshots; InvalidInput if it has only other tables.

        In a bucket also one without any table, because a consumer puts it before everything else.
        """
        found = index.names_in(self.store)
        if found and index.NAME not in found:
            shown = ", ".join(f"{namespace}.{name}" for namespace, name in sorted(found)[:5])
            kind = "prefix" if self.store.shared else "directory"
            raise InvalidInput(
                f"the {kind}'s catalog holds tables, and no table of snapshots",
                where=f"{self.store.uri(catalog_chain.FOLDER if self.store.shared else FILE)}: {shown}",
                why="without it, it is not known which of their snapshots are valid; or it is not a target's",
                fix=f"restore {index.NAME[0]}.{index.NAME[1]}, or choose a new or empty {kind}",
            )
        return bool(found) or (self.store.shared and self.store.has_folder(catalog_chain.FOLDER))

    def check_writer(self) -> None:
        """Fenced if another process has taken the target over. Does nothing on a disk."""
        self.tables.check_writer()

    def begin(self) -> None:
        """Open the catalog, fence every earlier writer, and finish the removal of files that it had begun."""
        if self._writer is None:
            catalog = writer_catalog(self.store, self._consumer)
            tables = Tables(self.store, catalog)
            self._writer = catalog, tables, Index(tables)
        catalog, tables, snapshots = self._writer
        # The fence before everything else: names that are read earlier could still be changed by the consumer
        # that is replaced.
        catalog.take_over()
        tables.read_names()
        tables.empty_trash()
        if index.PATH not in tables.names():
            # The table of snapshots carries the identity, so it is also what a later run compares marks with.
            tables.identity = uuid.uuid4().hex
            snapshots.begin()
        tables.identity = snapshots.identity()

    @property
    def tables(self) -> Tables:
        """The tables, once `begin` was called."""
        assert self._writer is not None, "begin first"
        return self._writer[1]

    @property
    def snapshots(self) -> Index:
        """The table of snapshots, once `begin` was called."""
        assert self._writer is not None, "begin first"
        return self._writer[2]

    def close(self) -> None:
        """Close the catalog's connections."""
        if self._writer is not None:
            self._writer[0].close()
            self._writer = None

    # --- what there is

    def table_paths(self) -> list[str]:
        """The paths of all tables in the catalog except the table of snapshots."""
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
        """The names of a table's columns, in order."""
        return [field.name for field in self.tables.table(path).schema().fields]

    def partition_spec(self, path: str, version: int | None = None) -> Spec:
        """The partition spec of a table, which is that of all its versions."""
        return spec_of(self.tables.table(path).metadata)

    def batches(self, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """A table's rows at the time of this call, with one data file at a time in memory."""
        return self._rows_of(path, self.tables.files(path), columns)

    def _rows_of(self, path: str, files: TableFiles, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self.tables.translated(path):
            for task in files.tasks:
                yield from files.rows(task, columns).to_batches()

    # --- start

    def restore_all(self, rows: Sequence[SnapshotRow]) -> None:
        """Restore these tables' snapshots and names, and undo everything after them.

        A table of the target that is not in `rows` loses its name: it was created or recovered later.
        """
        wanted = {row.path: (row.schema, row.table) for row in rows}
        held = self.tables.names()
        # First all names that are wrong are freed, because two tables may have exchanged theirs.
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
        self._compaction.forget(path)
        return self.tables.discard(path)

    # --- DDL

    def make(self, schema: str, table: str, columns: pa.Schema, spec: Spec = ()) -> str:
        """Create a new, empty table; Fatal when a table of someone else has the name, or it is reserved."""
        path = self.tables.fresh_path(schema, table)
        self.tables.create(path, _name(schema, table), columns, spec)
        return path

    def vanish(self, path: str) -> None:
        """Free the name of a table; `move` can bring its rows back."""
        self.tables.park(path)

    def move(self, path: str, schema: str, table: str, version: int | None = None) -> str:
        """Rename a table; `version`: also restore the rows of this snapshot."""
        name = _name(schema, table)
        for other, held in self.tables.names().items():
            if held == name and other != path and self.tables.is_ours(other):
                self.tables.park(other)  # a later step gives it another name
        if version is not None:
            # Before the name changes: if rows are gone, nothing has happened yet.
            self.tables.check_files(path, version)
        self.tables.rename(path, name)
        if version is not None:
            self.restore(path, version)
        return path

    def add_null_columns(self, path: str, columns: pa.Schema) -> None:
        """Append the missing columns, null in all rows."""
        held = set(self.columns(path))
        adds = tuple((field.name, field.type) for field in columns if field.name not in held)
        self._evolve(path, Evolution(adds=adds), columns.names)

    def evolve(self, path: str, columns: pa.Schema, sources: Sequence[Source]) -> bool:
        """Change the columns without rewriting data files; False when Iceberg cannot do that."""
        change = of_columns.evolution(self.tables.table(path).schema(), columns, sources)
        if change is None:
            return False
        self._evolve(path, change, columns.names)
        return True

    def _evolve(self, path: str, change: Evolution, order: Sequence[str]) -> None:
        with self.tables.writing(path) as writing:
            change_columns(writing, change, order)
            # Without files: it makes the snapshot from which a reader, or a restart, gets these columns.
            self.tables.manifests.commit(writing, writing.io, [], [])

    def replace(self, path: str, columns: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Replace all rows by `batches`, in one commit. They may be read from the table's own files."""
        files = self.tables.files(path)
        change, types = of_columns.replaced(files.table.schema(), columns), stored(columns)
        with self.tables.writing(path) as writing:
            change_columns(writing, change, columns.names)
            rows = (_cast(batch, types) for batch in batches)
            self._commit(writing, files, Change(files.data_files, _files(writing, rows)))

    # --- rows

    def append(self, path: str, rows: pa.Table) -> None:
        """Add rows."""
        with self.tables.writing(path) as writing:
            made = _files(writing, _stored(rows).to_batches())
            self.tables.manifests.commit(writing, writing.io, [], made)

    def merge(self, path: str, upserts: pa.Table, deletes: pa.Table, keys: Sequence[str]) -> None:
        """Replace or insert rows and delete keys, in one commit. Keys are not null and distinct over both.

        Files whose bounds exclude all keys are not read: see `merging`.
        """
        files, upserts = self.tables.files(path), _stored(upserts)
        with self.tables.writing(path) as writing:
            gone = _stored(deletes.select(list(keys)))
            change = merged(files, writing, upserts, gone, keys, self._mode)
            self._commit(writing, files, change)
        self._compaction.lost(path, change.lost_rows)

    def _commit(self, writing: Writing, files: TableFiles, change: Change) -> None:
        removed, added = files.settle(change, writing.io)
        self.tables.manifests.commit(writing, writing.io, removed, added)

    def compact(self, path: str, keys: Sequence[str]) -> bool:
        """Rewrite small data files if there are many, and some with many dead rows; the rows stay the same.

        Returns whether it did so.
        """
        files = self.tables.files(path)
        chosen = [
            [files.tasks[at] for at in part] for part in self._compaction.choose(path, _compactable(files))
        ]
        if not chosen:
            return False
        schema = files.table.schema()
        types, made = schema.as_arrow(), list[DataFile]()
        with self.tables.writing(path) as writing:
            for part in chosen:
                for rows in bundles(files.rows(task, types) for task in by_key(part, schema, keys)):
                    # Sorted by key, so that the bounds of the new files let later merges pass over most of
                    # them.
                    order = [(key, "ascending") for key in keys if not pa.types.is_nested(rows[key].type)]
                    new = _files(writing, (rows.sort_by(order) if order else rows).to_batches())
                    self._compaction.made(rows, [file.file_path for file in new])
                    made += new
            replaced = [task.file for part in chosen for task in part]
            self._commit(writing, files, Change(replaced, made))
        return True


def _name(schema: str, table: str) -> tuple[str, str]:
    if schema in OWN_NAMESPACES:
        raise Fatal(
            "a schema has the name of one of the target's own namespaces",
            where=f"{schema}.{table}",
            why=f"{' and '.join(OWN_NAMESPACES)} are where the target keeps its snapshots and dropped tables",
            fix="leave the schema out of the changefeed, or rename it",
        )
    return schema, table


def _compactable(files: TableFiles) -> list[Compactable]:
    return [
        Compactable(
            file.file_path, file.file_size_in_bytes, file.record_count, files.dead(file), values_of(file)
        )
        for file in files.data_files
    ]


def _files(writing: Writing, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    return list(written(writing.table_metadata, writing.io, batches))


def _stored(rows: pa.Table) -> pa.Table:
    return rows.cast(stored(rows.schema))


def _cast(batch: pa.RecordBatch, types: pa.Schema) -> pa.RecordBatch:
    return batch.select(types.names).cast(types)
