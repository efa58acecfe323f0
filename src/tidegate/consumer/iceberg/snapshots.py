"""Read a consistent snapshot of all tables of an Iceberg target, from plain Python.

    from tidegate.consumer.iceberg.snapshots import open_snapshot
    tables = open_snapshot("/path/to/target").tables
    tables["bank.accounts"].to_arrow()

All tables of one `open_snapshot` are at the same ts. `tidegate consumer snapshot` prints the same for other
engines: each table's name in the catalog, and the snapshot id at which to read it. With pyiceberg alone:

    catalog = SqlCatalog("tidegate", uri="sqlite:////path/to/target/catalog.db")
    catalog.load_table(("bank", "accounts")).scan(snapshot_id=5781947118336215154).to_arrow()

A target in a bucket has another catalog, which `open_catalog` opens for pyiceberg. Other tools open the file
of metadata that `TableSnapshot.metadata` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from tidegate.consumer.iceberg import index
from tidegate.consumer.iceberg.catalogs import AnyCatalog, catalog_of, path_in
from tidegate.consumer.iceberg.scheme import BUCKETS, SCHEME
from tidegate.errors import InvalidInput, shown
from tidegate.sink.lakehouse.object_store import Bucket, ObjectStore
from tidegate.sink.lakehouse.store import DiskStore, Store, no_snapshot

LOADS_MAX: Final = 5
"""How often the lookup of a table is repeated if its name changes meanwhile."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One table in the snapshot."""

    schema: str
    table: str
    table_id: int
    identifier: tuple[str, str]
    """Its name in the catalog now; it differs from the one in the snapshot if the table was renamed since."""
    snapshot_id: int
    path: str
    """The path of its files below the target's root: independent of its name."""
    metadata: str
    """The location of its newest metadata now, which have the snapshot; empty if the table is gone."""
    _store: Store

    def columns(self) -> Schema:
        """Its columns in the snapshot."""
        with _catalog(self._store) as catalog:
            table = _load(catalog, self._store, self.path)
            found = table.snapshot_by_id(self.snapshot_id)
            kept = found.schema_id if found is not None else None
            return table.schema() if kept is None else table.schemas()[kept]

    def to_arrow(self, columns: list[str] | None = None) -> pa.Table:
        """The rows in memory. Also works if the table was renamed meanwhile."""
        with _catalog(self._store) as catalog:
            wanted = ("*",) if columns is None else tuple(columns)
            table = _load(catalog, self._store, self.path)
            return table.scan(selected_fields=wanted, snapshot_id=self.snapshot_id).to_arrow()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All tables at one ts."""

    ts: int
    tables: Mapping[str, TableSnapshot]
    """By `schema.table`."""


def open_snapshot(target: str | Path, at: int | None = None) -> Snapshot:
    """The newest snapshot with ts <= `at`, or the newest of all.

    `target`: a directory, `iceberg:///directory` or `iceberg+s3://bucket/prefix`. Raises InvalidInput when
    there is none.
    """
    return snapshot_in(store_at(target), at)


def snapshot_in(store: Store, at: int | None = None) -> Snapshot:
    """The same, below a root."""
    with _catalog(store) as catalog:
        table = _index_of(catalog)
        ts = None if table is None else index.newest(table, at)
        if table is None or ts is None:
            raise _none(store, at)
        found = catalog.locations().items()
        by_path = {path_in(store, location): (name, location) for name, location in found}
        tables = {}
        for row in index.rows_at(table, ts):
            name, location = by_path.get(row.path, (("", ""), ""))
            tables[f"{row.schema}.{row.table}"] = TableSnapshot(
                *(row.schema, row.table, row.table_id, name, row.version, row.path, location, store)
            )
    return Snapshot(ts, MappingProxyType(tables))


def newest_position(store: Store) -> str | None:
    """The position of the newest snapshot; None: there is none."""
    found = catalog_of(store)
    if found is None:
        return None
    with closing(found) as catalog:
        table = _index_of(catalog)
        return None if table is None else index.position_of(table, index.newest(table))


def open_catalog(target: str | Path) -> AnyCatalog:
    """The target's catalog as pyiceberg's, for reading; InvalidInput when there is none."""
    store = store_at(target)
    found = catalog_of(store)
    if found is None:
        raise _none(store, None)
    return found


def store_at(target: str | Path) -> Store:
    """Where a target is; InvalidInput if it is neither a directory nor `iceberg+s3://bucket/prefix`."""
    if str(target).startswith(f"{BUCKETS}://"):
        return ObjectStore(Bucket.from_uri(str(target), BUCKETS))
    return DiskStore(iceberg_directory(target))


def iceberg_directory(target: str | Path) -> Path:
    """The directory of `iceberg:///dir`, or of a plain path; InvalidInput for anything else."""
    scheme, found, path = str(target).partition("://")
    if not found:
        return Path(target).expanduser().absolute()
    if scheme != SCHEME or not path.startswith("/"):
        raise InvalidInput(
            "this is not a directory of Iceberg tables",
            where=shown(str(target)),
            why="an Iceberg target is an absolute directory",
            fix="write --target iceberg:///absolute/directory",
        )
    return Path(path)


@contextmanager
def _catalog(store: Store) -> Iterator[AnyCatalog]:
    catalog = catalog_of(store)
    if catalog is None:
        raise _none(store, None)
    try:
        yield catalog
    finally:
        catalog.close()


def _load(catalog: AnyCatalog, store: Store, path: str) -> Table:
    """The table with its files at a path, whatever its name is now; InvalidInput when it is gone."""
    for _ in range(LOADS_MAX):
        for name, location in catalog.locations().items():
            if path_in(store, location) == path:
                # It may be renamed, or get newer metadata, between the two steps.
                with suppress(NoSuchTableError, FileNotFoundError):
                    table = catalog.load_table(name)
                    if path_in(store, table.metadata_location) == path:
                        return table
    raise InvalidInput(
        "a table of this snapshot is gone",
        where=store.uri(path),
        why="the snapshot is older than the target's retention, or the table is written all the time",
        fix="open the snapshot again, or a later one",
    )


def _index_of(catalog: AnyCatalog) -> Table | None:
    return catalog.load_table(index.NAME) if index.NAME in catalog.locations() else None


def _none(store: Store, at: int | None) -> InvalidInput:
    return no_snapshot(store, f"{index.NAME[0]}.{index.NAME[1]} in the catalog of {store}", at)
