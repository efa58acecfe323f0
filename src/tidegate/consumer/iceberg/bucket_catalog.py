"""The catalog of a target in a bucket: a chain of objects, each with all tables' newest metadata.

A writer has the catalog in memory. A commit of a table writes its metadata under a new name, and nothing else
knows of it. `confirm` puts the next object of the chain (`catalog_chain`), which names the metadata of all
tables at once. So after a crash there is nothing to undo: the files of unfinished commits are named by no
catalog, and upkeep removes them. A writer that was replaced can write such files, but no catalog.

Readers open it by `snapshots.open_catalog("iceberg+s3://bucket/prefix")`.
"""

from __future__ import annotations

import threading
from typing import Final

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from tidegate.consumer.iceberg.catalog_chain import CatalogChain, Name
from tidegate.consumer.iceberg.file_io import ObjectFileIO, root_of
from tidegate.consumer.iceberg.known_tables import KnownTables
from tidegate.sink.lakehouse.object_store import ObjectStore
from tidegate.sink.lakehouse.takeover import Writer

NAME: Final = "tidegate"


class BucketCatalog(MetastoreCatalog, NoopCatalog):
    """The catalog for readers, as it was when `locations` was called last, or when it was first used.

    `NoopCatalog` refuses everything that is not implemented here.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(NAME)
        self._io, self._root = ObjectFileIO(store), root_of(store)
        self._chain = CatalogChain(store)
        self._tables: dict[Name, str] | None = None
        """By name, the key of a table's newest metadata; None: not read yet."""
        self._known = KnownTables(self)

    def locations(self) -> dict[Name, str]:
        """The location of each table's newest metadata, by namespace and name."""
        self._tables = None
        return self._located()

    def _located(self) -> dict[Name, str]:
        return {name: f"{self._root}/{key}" for name, key in self._keys().items()}

    def _keys(self) -> dict[Name, str]:
        if self._tables is None:
            found = self._chain.find()
            self._tables = dict(found.tables) if found is not None else {}
        return self._tables

    def load_table(self, identifier: str | Identifier) -> Table:
        """A table at its newest metadata, which are read only if this process did not write or read them."""
        name = _name_of(identifier)
        key = self._keys().get(name)
        if key is None:
            raise NoSuchTableError(f"Table does not exist: {'.'.join(name)}")
        location = f"{self._root}/{key}"
        held = self._known.find(name, location)
        if held is None:
            metadata = FromInputFile.table_metadata(self._io.new_input(location))
            self._known.remember(location, metadata, self._io)
            held = Table(name, metadata, location, self._io, self)
        return held

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """The namespaces that have tables."""
        return [] if namespace else [(found,) for found in sorted({name[0] for name in self._keys()})]

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        """The tables of a namespace."""
        wanted = ".".join(self.identifier_to_tuple(namespace))
        return sorted(name for name in self._keys() if name[0] == wanted)

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        """Whether a namespace has tables."""
        return bool(self.list_tables(namespace))

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return self._io

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Does nothing: the newest catalog may still name them. Upkeep removes them."""


class BucketWriterCatalog(BucketCatalog):
    """The catalog for the process that has taken the target over. Any thread may use it, except `confirm`."""

    def __init__(self, store: ObjectStore, consumer: str) -> None:
        """`consumer`: its name, which the catalog records. Nothing is fenced until `take_over`."""
        super().__init__(store)
        # Not None: a writer's tables come from `take_over` alone, never from a look at the chain.
        self._consumer, self._tables = consumer, {}
        self._lock = threading.Lock()

    def take_over(self) -> None:
        """Fence every earlier writer, and go back to the newest catalog."""
        found = self._chain.begin(Writer.of_this_process(self._consumer))
        with self._lock:
            self._tables = dict(found.tables)

    def check_writer(self) -> None:
        """Fenced if another process has taken the target over."""
        self._chain.check_writer()

    def confirm(self) -> None:
        """Put the catalog if it has changed. Fenced if another process has taken the target over."""
        newest = self._chain.newest
        assert newest is not None, "`take_over` comes first"
        with self._lock:
            tables = dict(self._keys())
        # There is nothing to put, but the caller still relies on being the only writer.
        if tables == newest.tables:
            self._chain.check_writer()
        else:
            self._chain.append(tables)

    def thin(self, before: float) -> int:
        """Remove catalogs that a newer one of before this Unix time has replaced. Returns how many."""
        return self._chain.thin(before)

    def locations(self) -> dict[Name, str]:
        """The location of each table's newest metadata, by namespace and name."""
        with self._lock:
            return self._located()

    def create_namespace_if_not_exists(
        self, namespace: str | Identifier, properties: Properties = EMPTY_DICT
    ) -> None:
        """Does nothing: a namespace exists while it has tables."""

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Write a table's next metadata, and remember that they are its newest."""
        name = _name_of(table.name())
        held = self.load_table(name) if name in self._keys() else None
        staged = self._update_and_stage_table(held, table.name(), requirements, updates)
        # Nothing has changed, and another file of metadata would be waste for upkeep.
        if held is not None and staged.metadata == held.metadata:
            return CommitTableResponse(metadata=held.metadata, metadata_location=held.metadata_location)
        # Before they are named: `confirm` may put a catalog at any moment, and all that it names must be
        # there.
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        with self._lock:
            # Another thread may have committed the table since `held` was read, and its commit would be lost.
            if held is not None and self._keys().get(name) != self._key(held.metadata_location):
                raise CommitFailedException(f"Table was written at the same time: {'.'.join(name)}")
            self._keys()[name] = self._key(staged.metadata_location)
        self._known.remember(staged.metadata_location, staged.metadata, staged.io)
        return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.metadata_location)

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        """Give a table another name."""
        old, new = _name_of(from_identifier), _name_of(to_identifier)
        with self._lock:
            tables = self._keys()
            if old not in tables:
                raise NoSuchTableError(f"Table does not exist: {'.'.join(old)}")
            if new in tables:
                raise TableAlreadyExistsError(f"Table {'.'.join(new)} already exists")
            tables[new] = tables.pop(old)
        return self.load_table(new)

    def drop_table(self, identifier: str | Identifier) -> None:
        """Forget a table; its files stay."""
        name = _name_of(identifier)
        with self._lock:
            if self._keys().pop(name, None) is None:
                raise NoSuchTableError(f"Table does not exist: {'.'.join(name)}")

    def _key(self, location: str) -> str:
        return location.removeprefix(f"{self._root}/")


def _name_of(identifier: str | Identifier) -> Name:
    *namespace, name = MetastoreCatalog.identifier_to_tuple(identifier)
    return ".".join(namespace), name
