"""The Iceberg tables below a root, by path: opened, committed to, renamed, restored.

A table's *path* is the directory of its files below the root, given once: `SCHEMA/TABLE-` and eight random
hex digits. Its name in the catalog can change. A dropped table gets a name in the namespace
`_tidegate_dropped`, until its rows are removed or recovered.

Each table carries the property `tidegate.target` with the target's identity. A table without it is never
written or removed. For each table, the snapshot that this process has last committed or restored is
remembered. A commit must directly follow it: pyiceberg must not retry after a commit of another program.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from sqlalchemy.exc import OperationalError

from tidegate.consumer.iceberg.catalogs import AnyWriterCatalog, location_of, path_in
from tidegate.consumer.iceberg.columns import Evolution, iceberg_schema, iceberg_type
from tidegate.consumer.iceberg.manifests import Manifests, deletes_rows
from tidegate.consumer.iceberg.partitions import iceberg_spec
from tidegate.consumer.iceberg.position_deletes import DeleteFiles
from tidegate.consumer.iceberg.table_files import TableFiles
from tidegate.consumer.table.partition_spec import Spec
from tidegate.errors import Fatal, Retryable
from tidegate.model.path_part import path_part
from tidegate.sink.lakehouse.store import Store

MARK: Final = "tidegate.target"
"""The table property that names the target to which a table belongs."""
DROPPED: Final = "_tidegate_dropped"
"""The namespace of dropped tables."""
OPEN_MAX: Final = 64
"""How many tables' metadata stay in memory."""
BRANCH: Final = "main"
PROPERTIES: Final = {
    "format-version": "2",
    # A commit that fails shows another writer (`_written_by_others`). A retry of pyiceberg would hide it.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.parquet.compression-codec": "zstd",
    # One row group per file: if some groups have no bounds, pyiceberg uses those of the others for the file.
    "write.parquet.row-group-limit": str(1 << 30),
}
Name = tuple[str, str]


class Writing(Transaction):
    """A transaction that does not copy the table's whole metadata each time they are read.

    pyiceberg 0.12 makes about twenty deep copies per commit, of every snapshot that the table has.
    """

    _seen: tuple[int, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with the staged changes. They must not be changed in place."""
        if not self._updates:
            return self._table.metadata
        if self._seen is None or self._seen[0] != len(self._updates):
            self._seen = len(self._updates), super().table_metadata
        return self._seen[1]

    @property
    def io(self) -> FileIO:
        """The table's FileIO, which reads and writes its files."""
        return self._table.io


class Tables:
    """The tables of one target. Several threads may use it, but only one at a time for the same table."""

    def __init__(self, store: Store, catalog: AnyWriterCatalog) -> None:
        self._store, self._catalog = store, catalog
        self.identity = ""
        self.manifests, self._delete_files = Manifests(), DeleteFiles()
        self._lock = threading.Lock()
        self._names: dict[str, Name] = {}
        self._heads: dict[str, int] = {}
        self._open: OrderedDict[str, Table] = OrderedDict()
        self._namespaces: set[str] = set()
        self.read_names()

    # --- names

    def read_names(self) -> None:
        """Read the tables' names from the catalog; forget everything else that is known about tables."""
        held = self._catalog.locations()
        found = {path_in(self._store, location): name for name, location in held.items()}
        with self._lock:
            self._names = {path: name for path, name in found.items() if path is not None}
            self._heads.clear()
            self._open.clear()

    def names(self) -> dict[str, Name]:
        """Each table's name in the catalog, by path; tables that are not the target's may be among them."""
        with self._lock:
            return dict(self._names)

    def fresh_path(self, schema: str, table: str) -> str:
        """A path that no table has ever had."""
        return f"{path_part(schema)}/{path_part(table)}-{uuid.uuid4().hex[:8]}"

    def create(self, path: str, name: Name, columns: pa.Schema, spec: Spec = ()) -> None:
        """Create an empty table, with a snapshot; Fatal when the catalog has another table of this name."""
        self._make_namespace(name[0])
        properties = PROPERTIES | {MARK: self.identity}
        with self.translated(path):
            schema = iceberg_schema(columns)
            transaction = self._catalog.create_table_transaction(
                *(name, schema, f"{location_of(self._store)}/{path}", iceberg_spec(spec, schema)),
                properties=properties,
            )
            # An empty snapshot, so that a snapshot of the target can name the table before it has a row.
            transaction.update_snapshot().fast_append().commit()
            try:
                table = transaction.commit_transaction()
            except (TableAlreadyExistsError, CommitFailedException) as error:
                raise self._foreign(name) from error
        with self._lock:
            self._names[path], self._heads[path] = name, _head(table)

    def rename(self, path: str, name: Name) -> None:
        """Rename a table; Fatal when a table that is not the target's has the name."""
        old = self._name_of(path)
        if old == name:
            return
        self._make_namespace(name[0])
        with self.translated(path):
            try:
                self._catalog.rename_table(old, name)
            except TableAlreadyExistsError as error:
                raise self._foreign(name) from error
        with self._lock:
            self._names[path] = name
            # The open table has its old name.
            self._open.pop(path, None)

    def park(self, path: str) -> None:
        """Free a table's name; its rows can be recovered."""
        self.rename(path, (DROPPED, path.replace("/", "+")))

    def _make_namespace(self, namespace: str) -> None:
        if namespace not in self._namespaces:
            with self.translated(namespace):
                self._catalog.create_namespace_if_not_exists((namespace,))
            self._namespaces.add(namespace)

    def _foreign(self, name: Name) -> Fatal:
        return Fatal(
            "a table that is not the target's has the name of one of its tables",
            where=f"{name[0]}.{name[1]} in the catalog of {self._store}",
            why=f"it does not carry the target's mark, the table property {MARK}",
            fix="rename or drop it there and restart the consumer; it continues at its newest snapshot",
        )

    # --- tables

    def exists(self, path: str) -> bool:
        """Whether there is such a table."""
        return path in self.names() and self._store.has_folder(path)

    def is_ours(self, path: str) -> bool:
        """Whether a table carries the target's mark."""
        return bool(self.identity) and self.mark_of(path) == self.identity

    def mark_of(self, path: str) -> str | None:
        """The identity of the target to which a table belongs; None if it has none, or does not exist."""
        try:
            found = self._catalog.load_table(self._name_of(path)).properties.get(MARK)
        except (NoSuchTableError, FileNotFoundError, Fatal):
            return None
        return None if found is None else str(found)

    def table(self, path: str) -> Table:
        """A table at its newest snapshot; Fatal when it is not the target's, or another process wrote it."""
        with self._lock:
            held = self._open.get(path)
            if held is not None:
                self._open.move_to_end(path)
                return held
        with self.translated(path):
            table = self._catalog.load_table(self._name_of(path))
        if table.properties.get(MARK) != self.identity:
            raise self._foreign(self._name_of(path))
        head = self._heads.get(path)
        if head is not None and _head(table) != head:
            raise self._written_by_others(path, f"its snapshot is {_head(table)}, and ours is {head}")
        self._keep(path, table)
        return table

    def files(self, path: str) -> TableFiles:
        """The files of a table at its newest snapshot."""
        with self.translated(path):
            table = self.table(path)
            held = self.manifests.files(table)
            deletes = [(one, self._delete_files.contents(one, table.io)) for one in held if deletes_rows(one)]
            return TableFiles(table, [FileScanTask(one) for one in held if not deletes_rows(one)], deletes)

    def head(self, path: str) -> int:
        """The newest snapshot of a table."""
        known = self._heads.get(path)
        return _head(self.table(path)) if known is None else known

    @contextmanager
    def writing(self, path: str) -> Iterator[Writing]:
        """A transaction on a table, committed at the end of the context."""
        table = self.table(path)
        with self._lock:
            self._open.pop(path, None)  # a failed commit leaves the table in an unknown state in memory
        with self.translated(path):
            transaction = Writing(table)
            yield transaction
            transaction.commit_transaction()
        self._keep(path, table)

    def restore(self, path: str, snapshot_id: int) -> bool:
        """Make a snapshot, with its columns, the newest; False when it is the newest already.

        Fatal when the table does not have it any more.
        """
        table = self.table(path)
        wanted = self._snapshot(path, table, snapshot_id)
        updates: list[TableUpdate] = []
        if wanted.schema_id is not None and wanted.schema_id != table.metadata.current_schema_id:
            updates.append(SetCurrentSchemaUpdate(schema_id=wanted.schema_id))
        if _head(table) != snapshot_id:
            updates.append(SetSnapshotRefUpdate(ref_name=BRANCH, type="branch", snapshot_id=snapshot_id))
        if not updates:
            return False
        self._update(path, table, updates)
        return True

    def expire(self, path: str, snapshot_ids: Sequence[int]) -> None:
        """Expire snapshots of a table; their files stay."""
        self._update(path, self.table(path), [RemoveSnapshotsUpdate(snapshot_ids=list(snapshot_ids))])

    def _update(self, path: str, table: Table, updates: Sequence[TableUpdate]) -> None:
        # The catalog compares it, so a commit of another program makes this one fail.
        asserted = AssertRefSnapshotId(ref=BRANCH, snapshot_id=_head(table))
        # The head is read again below: a restore makes an old snapshot the newest, and no new one.
        with self._lock:
            self._open.pop(path, None)
            self._heads.pop(path, None)
        with self.translated(path):
            self._catalog.commit_table(table, (asserted,), tuple(updates))
        self.table(path)

    def check_files(self, path: str, snapshot_id: int) -> None:
        """Fatal when a snapshot of a table, or a file with its rows or deleted rows, was deleted."""
        table = self.table(path)
        self._snapshot(path, table, snapshot_id)
        for task in table.scan(snapshot_id=snapshot_id).plan_files():
            for file in (task.file, *task.delete_files):
                if not table.io.new_input(file.file_path).exists():
                    raise self._deleted(file.file_path)

    def _snapshot(self, path: str, table: Table, snapshot_id: int) -> Snapshot:
        found = table.snapshot_by_id(snapshot_id)
        if found is None:
            raise self._deleted(f"{self._store.uri(path)}, snapshot {snapshot_id}")
        return found

    def _deleted(self, where: str) -> Fatal:
        return Fatal(
            "rows that are to come back are deleted already",
            where=where,
            why="the table's snapshot is older than the target's retention, or somebody has removed it",
            fix="start a new target directory; a longer --retention-hours keeps them",
        )

    def confirm(self) -> None:
        """Make all commits durable together. Fenced if another process has taken the target over.

        `Index.publish` does it, and upkeep before it removes files that no snapshot needs any more.
        """
        self._catalog.confirm()

    def check_writer(self) -> None:
        """Fenced if another process has taken the target over, where no lock prevents that."""
        self._catalog.check_writer()

    def thin(self, before: float) -> int:
        """Remove catalogs that a newer one of before this Unix time has replaced. Returns how many."""
        return self._catalog.thin(before)

    def discard(self, path: str) -> bool:
        """Remove a table that no snapshot names. False when it is not the target's.

        In a bucket its files stay until upkeep finds that no catalog names them (`removal.orphans`).
        """
        if self._store.has_folder(path):
            if not self.is_ours(path):
                return False
            if not self._store.shared:
                # Before the name is dropped: files without a name would never be found again.
                self._store.discard(path, self.check_writer)
        # If a process was killed here, the catalog has a name without files: the next start removes it.
        with self.translated(path), suppress(NoSuchTableError):
            self._catalog.drop_table(self._name_of(path))
        with self._lock:
            for known in (self._names, self._heads, self._open):
                known.pop(path, None)
        self.empty_trash()
        return True

    def empty_trash(self) -> None:
        """Remove the files of discarded tables. In a bucket there is no trash."""
        if not self._store.shared:
            for _ in self._store.emptying_trash():
                pass

    # --- inside

    def _name_of(self, path: str) -> Name:
        with self._lock:
            name = self._names.get(path)
        if name is None:
            raise Fatal(
                "a table that a snapshot needs is gone",
                where=self._store.uri(path),
                why="the catalog has no table with these files",
                fix="restore the directory, or start a new target",
            )
        return name

    def _keep(self, path: str, table: Table) -> None:
        with self._lock:
            self._heads[path] = _head(table)
            self._open[path] = table
            while len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)

    def _written_by_others(self, path: str, why: str) -> Fatal:
        return Fatal(
            "somebody else has written a table of the target at the same time",
            where=self._store.uri(path),
            why=why,
            fix="end what else writes there, and restart the consumer at its newest snapshot",
        )

    @contextmanager
    def translated(self, path: str) -> Iterator[None]:
        """Translate errors of pyiceberg. Fenced if a file is gone because another process has taken over."""
        try:
            yield
        except CommitFailedException as error:
            raise self._written_by_others(path, str(error)) from error
        except (NoSuchTableError, FileNotFoundError) as error:
            self.check_writer()  # the upkeep of a successor removes files that only this process needs
            raise Fatal(
                "a table that a snapshot needs is gone, or a file of it",
                where=self._store.uri(path),
                why=str(error),
                fix="restore the directory, or start a new target",
            ) from error
        except OSError as error:  # of a large file in a bucket, which pyarrow reads: with the server's words
            trouble = self._store.trouble(error, path)
            if trouble is error:
                raise
            raise trouble from error
        except OperationalError as error:
            raise Retryable(
                "the catalog cannot be written now",
                where=str(self._store),
                why=str(error.orig),
                fix="end what else holds the catalog's file, or free space on the disk",
            ) from error


def _head(table: Table) -> int:
    snapshot = table.metadata.current_snapshot_id
    return -1 if snapshot is None else snapshot


def change_columns(transaction: Transaction, change: Evolution, order: Sequence[str]) -> None:
    """Change a table's columns and their order. Names are given as paths, so that a dot in one is no
    separator.
    """
    # Drops first and additions last, because a renamed or new column may have the name of a dropped one.
    if change.drops:
        _drop(transaction, change.drops)
    if change.renames:
        _rename(transaction, change.renames)
    if change.widened or change.adds:
        _widen_and_add(transaction, change)
    _order(transaction, order)


def _drop(transaction: Transaction, names: Sequence[str]) -> None:
    with transaction.update_schema(allow_incompatible_changes=True) as update:
        for name in names:
            update.delete_column((name,))


def _rename(transaction: Transaction, pairs: Sequence[Name]) -> None:
    with transaction.update_schema(allow_incompatible_changes=True) as update:
        for old, new in pairs:
            update.rename_column((old,), new)


def _widen_and_add(transaction: Transaction, change: Evolution) -> None:
    with transaction.update_schema(allow_incompatible_changes=True) as update:
        for name, of_type in change.widened:
            update.update_column((name,), iceberg_type(of_type))
        for name, of_type in change.adds:
            update.add_column((name,), iceberg_type(of_type))


def _order(transaction: Transaction, order: Sequence[str]) -> None:
    held = [field.name for field in transaction.table_metadata.schema().fields]
    if held == list(order):
        return
    with transaction.update_schema(allow_incompatible_changes=True) as update:
        update.move_first((order[0],))
        for before, name in pairwise(order):
            update.move_after((name,), (before,))
