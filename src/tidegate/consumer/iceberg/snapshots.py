"""Read a consistent snapshot of all tables of an Iceberg target, from plain Python.

    from tidegate.consumer.iceberg.snapshots import open_snapshot
    tables = open_snapshot("/path/to/target").tables
    tables["bank.accounts"].to_arrow()

All tables of one `open_snapshot` are at the same ts. `tidegate consumer snapshot` prints the same for other
engines: each table's name in the catalog, and the snapshot id at which to read it. With pyiceberg alone:

    catalog = SqlCatalog("tidegate", uri="sqlite:////path/to/target/catalog.db")
    catalog.load_table(("bank", "accounts")).scan(snapshot_id=5781947118336215154).to_arrow()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from tidegate.consumer.iceberg import index
from tidegate.consumer.iceberg.catalog import FILE, locations, open_catalog
from tidegate.consumer.iceberg.tables import path_in
from tidegate.errors import InvalidInput, shown

SCHEME: Final = "iceberg"
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
    """The path of its files below the target's directory: independent of its name."""
    _root: Path

    def columns(self) -> Schema:
        """Its columns in the snapshot."""
        with _catalog(self._root) as catalog:
            table = _load(catalog, self._root, self.path)
            found = table.snapshot_by_id(self.snapshot_id)
            kept = found.schema_id if found is not None else None
            return table.schema() if kept is None else table.schemas()[kept]

    def to_arrow(self, columns: list[str] | None = None) -> pa.Table:
        """The rows in memory. Also works if the table was renamed meanwhile."""
        with _catalog(self._root) as catalog:
            wanted = ("*",) if columns is None else tuple(columns)
            table = _load(catalog, self._root, self.path)
            return table.scan(selected_fields=wanted, snapshot_id=self.snapshot_id).to_arrow()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All tables at one ts."""

    ts: int
    tables: Mapping[str, TableSnapshot]
    """By `schema.table`."""


def open_snapshot(target: str | Path, at: int | None = None) -> Snapshot:
    """The newest snapshot with ts <= `at`, or the newest of all. `target`: a directory or `iceberg:///dir`.

    Raises InvalidInput when there is none.
    """
    root = iceberg_directory(target)
    with _catalog(root) as catalog:
        table = _index_of(catalog)
        ts = None if table is None else index.newest(table, at)
        if table is None or ts is None:
            raise _none(root, at)
        by_path = {path_in(root, location): name for name, location in locations(catalog).items()}
        tables = {
            f"{row.schema}.{row.table}": TableSnapshot(
                row.schema,
                row.table,
                row.table_id,
                by_path.get(row.path, ("", "")),
                row.version,
                row.path,
                root,
            )
            for row in index.rows_at(table, ts)
        }
    return Snapshot(ts, MappingProxyType(tables))


def newest_position(root: Path) -> str | None:
    """The position of the newest snapshot; None: there is none."""
    if not (root / FILE).exists():
        return None
    with _catalog(root) as catalog:
        table = _index_of(catalog)
        return None if table is None else index.position_of(table, index.newest(table))


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
def _catalog(root: Path) -> Iterator[SqlCatalog]:
    if not (root / FILE).exists():
        raise _none(root, None)
    catalog = open_catalog(root)
    try:
        yield catalog
    finally:
        catalog.close()


def _load(catalog: SqlCatalog, root: Path, path: str) -> Table:
    """The table with its files at a path, whatever its name is now; InvalidInput when it is gone."""
    for _ in range(LOADS_MAX):
        for name, location in locations(catalog).items():
            if path_in(root, location) == path:
                # It may be renamed, or get newer metadata, between the two steps.
                with suppress(NoSuchTableError, FileNotFoundError):
                    table = catalog.load_table(name)
                    if path_in(root, table.metadata_location) == path:
                        return table
    raise InvalidInput(
        "a table of this snapshot is gone",
        where=str(root / path),
        why="the snapshot is older than the target's retention, or the table is written all the time",
        fix="open the snapshot again, or a later one",
    )


def _index_of(catalog: SqlCatalog) -> Table | None:
    return catalog.load_table(index.NAME) if index.NAME in locations(catalog) else None


def _none(root: Path, at: int | None) -> InvalidInput:
    return InvalidInput(
        "there is no such snapshot",
        where=f"{index.NAME[0]}.{index.NAME[1]} in {root / FILE}",
        why="nothing was committed yet" if at is None else f"none at or below ts {at}",
        fix="wait until the consumer has committed, or ask for a later ts",
    )
