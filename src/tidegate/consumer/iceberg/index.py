"""The table of snapshots: `_tidegate.snapshots`, an Iceberg table whose commits name consistent states.

One commit adds a row for each table (ts, schema_name, table_name, table_id, path, snapshot_id) and a row
without a path that carries the consumer's position. The position is a row, and no property of a snapshot, so
that it survives what other tools do to the table: rewriting its files, expiring its snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression, EqualTo, GreaterThanOrEqual
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import LongType
from sqlalchemy.exc import OperationalError

from tidegate.consumer.iceberg.catalogs import catalog_of
from tidegate.consumer.iceberg.data_files import read, written
from tidegate.consumer.iceberg.tables import MARK, Tables
from tidegate.consumer.lakehouse.directory_lock import OWN
from tidegate.errors import Fatal, InvalidInput
from tidegate.sink.lakehouse.snapshot_rows import SnapshotRow
from tidegate.sink.lakehouse.store import Store

COLUMNS: Final = pa.schema(
    [
        pa.field("ts", pa.int64()),
        pa.field("schema_name", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("table_id", pa.int64()),
        pa.field("path", pa.string()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("position", pa.string()),
    ]
)
NAME: Final = (OWN, "snapshots")
PATH: Final = f"{OWN}/snapshots"
FILES_MAX: Final = 24
"""If there are more small files than these, the next commit merges them into one."""
SMALL_BYTES: Final = 1 << 20
"""A file below this size is small."""


class Index:
    """The table of snapshots of one target, for its writer."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._published: int | None = None
        self.named_since: set[tuple[str, int]] = set()
        """Paths and snapshots that this process has named since upkeep last read all of them."""
        self._small: int | None = None
        """How many small files the table has; None when that is not known, or they are too many."""

    def begin(self) -> None:
        """Create the table."""
        self._tables.create(PATH, NAME, COLUMNS)

    def identity(self) -> str:
        """The target's identity, as the table carries it; InvalidInput when it carries none."""
        found = self._tables.mark_of(PATH)
        if not found:
            raise InvalidInput(
                "the target's table of snapshots was not made by a consumer",
                where=f"{NAME[0]}.{NAME[1]}",
                why=f"it lacks the table property {MARK}",
                fix="choose a new or empty directory",
            )
        return found

    def table(self) -> Table:
        """The table, to read from."""
        return self._tables.table(PATH)

    def position(self) -> str | None:
        """The position that `publish` committed with the newest snapshot; None: there is no snapshot."""
        with self._tables.translated(PATH):
            table = self.table()
            self._published = newest(table)
            found = position_of(table, self._published)
        if found is None and self._published is not None:
            raise Fatal(
                "the target's position is gone",
                where=f"the table {NAME[0]}.{NAME[1]}",
                why="it names snapshots, and has no row with a position: somebody has removed them",
                fix="roll the table back to an older snapshot, or start a new target directory",
            )
        return found

    def publish(self, ts: int, rows: Sequence[SnapshotRow], position: str) -> None:
        """Name a snapshot, in one commit, which must directly follow the last one that this process knows."""
        added = _rows_of(ts, rows, position)
        with self._tables.translated(PATH):
            small = self._small_files()
            if small:
                # Merged in the commit that names the snapshot, so that merging needs no commit of its own.
                table = self.table()
                added = pa.concat_tables([*(read(table, task, COLUMNS) for task in small), added])
        with self._tables.writing(PATH) as writing:
            made = list(written(writing.table_metadata, writing.io, added.to_batches()))
            self._tables.manifests.commit(writing, writing.io, [task.file for task in small], made)
        # docs/guarantees.md#snapshots-are-whole: in a bucket, this names the commits of all tables at once.
        self._tables.confirm()
        self._published = ts
        # For a round of upkeep that is under way: it must not remove what this commit names.
        self.named_since |= {(row.path, row.version) for row in rows}
        # After a merge the file just written is the only small one.
        self._small = 1 if small or self._small is None else self._small + 1

    def rows(self, at: int | None = None) -> list[SnapshotRow]:
        """The tables of the newest snapshot with ts <= `at` (None: the newest of all)."""
        with self._tables.translated(PATH):
            ts = newest(self.table(), at)
            return [] if ts is None else rows_at(self.table(), ts)

    def all_ts(self) -> list[int]:
        """The ts of all snapshots, ascending."""
        with self._tables.translated(PATH):
            return sorted(
                pc.unique(_scan(self.table(), GreaterThanOrEqual("ts", 0), ["ts"])["ts"]).to_pylist()
            )

    def named_versions(self) -> dict[str, list[int]]:
        """By path, the table's snapshots that some snapshot of the target names."""
        with self._tables.translated(PATH):
            rows = _scan(self.table(), GreaterThanOrEqual("ts", 0), ["path", "snapshot_id"])
        found: dict[str, list[int]] = {}
        distinct = rows.group_by(["path", "snapshot_id"]).aggregate([])
        for path, version in zip(
            distinct["path"].to_pylist(), distinct["snapshot_id"].to_pylist(), strict=True
        ):
            if path is not None:
                found.setdefault(path, []).append(version)
        return found

    def _small_files(self) -> list[FileScanTask]:
        """The small files, if there are so many that they must be merged; otherwise none."""
        if self._small is not None and self._small <= FILES_MAX:
            return []
        tasks = self._tables.manifests.tasks(self.table())
        small = [task for task in tasks if task.file.file_size_in_bytes < SMALL_BYTES]
        self._small = len(small)
        return small if len(small) > FILES_MAX else []

    def forget(self, snapshots: Collection[int]) -> Iterator[None]:
        """Remove the rows of these snapshots; each piece rewrites one file of the table."""
        gone = pa.array(sorted(snapshots), pa.int64())
        if not len(gone):
            return
        with self._tables.translated(PATH):
            tasks = list(self._tables.manifests.tasks(self.table()))
        for task in tasks:
            low, high = _bounds(task)
            within = pc.and_(pc.greater_equal(gone, low), pc.less_equal(gone, high))
            if pc.any(within, min_count=0).as_py():
                with self._tables.translated(PATH):
                    self._rewrite(task, gone)
                yield

    def _rewrite(self, task: FileScanTask, gone: pa.Array) -> None:
        if task.file.file_path not in {
            one.file.file_path for one in self._tables.manifests.tasks(self.table())
        }:
            return  # a later commit has merged it with others; the next round finds those rows
        rows = read(self.table(), task, COLUMNS)
        kept = rows.filter(pc.invert(pc.is_in(rows["ts"], value_set=gone)))
        with self._tables.writing(PATH) as writing:
            made = list(written(writing.table_metadata, writing.io, kept.to_batches()))
            self._tables.manifests.commit(writing, writing.io, [task.file], made)


def names_in(store: Store) -> set[tuple[str, str]]:
    """The tables in the catalog below a root; empty if there is none, or its file is not a catalog yet."""
    catalog = catalog_of(store)
    if catalog is None:
        return set()
    try:
        return set(catalog.locations())
    except OperationalError:
        return set()
    finally:
        catalog.close()


def _bounds(task: FileScanTask) -> tuple[int, int]:
    """The least and the largest ts in a file; the whole range if the manifest does not have them."""
    # Iceberg numbers the fields of a schema from 1.
    field = COLUMNS.names.index("ts") + 1
    low = (task.file.lower_bounds or {}).get(field)
    high = (task.file.upper_bounds or {}).get(field)
    return (
        0 if low is None else from_bytes(LongType(), low),
        (1 << 63) - 1 if high is None else from_bytes(LongType(), high),
    )


def newest(table: Table, at: int | None = None) -> int | None:
    """The ts of the newest snapshot with ts <= `at` (None: of all). Reads only files that may have it."""
    found: int | None = None
    tasks = [task for task in table.scan().plan_files() if at is None or _bounds(task)[0] <= at]
    for task in sorted(tasks, key=lambda task: _bounds(task)[1], reverse=True):
        # The upper bounds fall from here on, so no later file has a newer ts.
        if found is not None and _bounds(task)[1] <= found:
            break
        ts = read(table, task, pa.schema([COLUMNS.field("ts")]))["ts"]
        here = pc.max(ts if at is None else ts.filter(pc.less_equal(ts, at))).as_py()
        found = here if found is None else max(found, here or found)
    return found


def rows_at(table: Table, ts: int) -> list[SnapshotRow]:
    """The tables of the snapshot at exactly `ts`."""
    found = _scan(table, EqualTo("ts", ts), COLUMNS.names[:-1])
    return [SnapshotRow(*row.values()) for row in found.to_pylist() if row["path"] is not None]


def position_of(table: Table, ts: int | None) -> str | None:
    """The position that was published with the snapshot at `ts`; None: there is none."""
    if ts is None:
        return None
    held = _scan(table, EqualTo("ts", ts), ["ts", "position"])["position"].drop_null()
    return str(held[-1]) if len(held) else None


def _scan(table: Table, wanted: BooleanExpression, columns: Sequence[str]) -> pa.Table:
    return table.scan(wanted, tuple(columns)).to_arrow().select(list(columns))


def _rows_of(ts: int, rows: Sequence[SnapshotRow], position: str) -> pa.Table:
    columns: list[list[Any]] = [
        [*(row.ts for row in rows), ts],
        [*(row.schema for row in rows), None],
        [*(row.table for row in rows), None],
        [*(row.table_id for row in rows), None],
        [*(row.path for row in rows), None],
        [*(row.version for row in rows), None],
        [*(None for _ in rows), position],
    ]
    return pa.table(columns, schema=COLUMNS)
