"""The table of snapshots, which ties many Delta tables together: an append to it is the only commit point.

The tables of a target are written first, each with commits of its own that readers do not have to see. Then
one append here names a version of each table, with the consumer's position in the same commit. In the other
order a snapshot could name versions that never come to exist. If the position were committed separately, a
crash in between would lose rows or apply them twice.

Promise: two consumers of one target never both name snapshots. A commit must be the next version, and the
newest snapshot must be the one that this process has read or named last. Other commits to the table, such as
those of OPTIMIZE, do not matter. In an object store, `takeover` fences a replaced consumer even earlier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidegate.errors import Fatal
from tidegate.sink.lakehouse import delta_commit
from tidegate.sink.lakehouse.delta_commit import HOOKS, ONCE
from tidegate.sink.lakehouse.own_tables import OwnTables
from tidegate.sink.lakehouse.snapshot_rows import SNAPSHOT_SCHEMA, SnapshotRow, bounds, slices, snapshot_table
from tidegate.sink.lakehouse.store import SNAPSHOTS, Store


class SnapshotTable:
    """The table of snapshots of one target. Not safe for several writing threads."""

    def __init__(self, store: Store, tables: OwnTables) -> None:
        self._store, self._tables = store, tables
        self._published: int | None = None
        """The ts of the newest snapshot that this process has read or named."""

    def publish(self, ts: int, rows: Sequence[SnapshotRow], position: str) -> None:
        """Name a snapshot: the commit point. `position` is in the same commit.

        Fatal if another process has named a snapshot since this process has read or named the newest one:
        then two consumers write the target.
        """
        self._tables.identity()
        held = self._tables.held(SNAPSHOTS)
        with self._tables.writing(SNAPSHOTS) as table:
            # A table that stayed open has this process's own newest commit. One that was opened again may
            # have others.
            if table is not held:
                self._refuse_others(table)
            delta_commit.append(table, snapshot_table(ts, rows, position))
        self._published = ts

    def _refuse_others(self, table: DeltaTable) -> None:
        newest = self._newest_ts(table)
        # docs/guarantees.md#two-consumers-of-one-delta-target-do-not-both-name-snapshots
        if self._published is not None and newest != self._published:
            raise Fatal(
                "another consumer has named a snapshot of this target",
                where=self._store.uri(SNAPSHOTS),
                why=f"the newest snapshot there is {newest}, and this consumer's is {self._published}",
                fix="end one of the two, and start the other again: it continues at the newest snapshot",
            )

    def republish(self, ts: int, rows: Sequence[SnapshotRow]) -> None:
        """Replace the rows that name the snapshot at `ts` with `rows`, in one commit."""
        position = self.position()
        with self._tables.writing(SNAPSHOTS) as table:
            delta_commit.overwrite_where(table, snapshot_table(ts, rows, position), f"ts = {ts}")

    def position(self) -> str | None:
        """The position that `publish` committed with the newest snapshot; None for a new target.

        Fatal if there was a position and its row was removed: then the target only looks new.
        """
        if not self._tables.exists(SNAPSHOTS):
            return None
        table = self._tables.open(SNAPSHOTS)
        newest = self._newest_ts(table)
        for low in (newest, None):  # the newest snapshot; all of them if its row with a position was removed
            held = self._rows(table, ["ts", "position"], low)
            held = held.filter(pc.is_valid(held["position"]))
            if held.num_rows:
                self._published = newest
                return str(held["position"][pc.index(held["ts"], pc.max(held["ts"])).as_py()])
        if _rows_were_written(table):
            raise Fatal(
                "the target's position is gone",
                where=self._store.uri(SNAPSHOTS),
                why="the table has had commits and holds no row with a position: somebody removed them",
                fix="restore an older version of that table, or start a new target directory",
            )
        return None

    def newest_ts(self, at: int | None = None) -> int | None:
        """The ts of the newest snapshot with ts <= `at` (None: the newest of all)."""
        return self._newest_ts(self._tables.open(SNAPSHOTS), at) if self._tables.exists(SNAPSHOTS) else None

    def rows(self, at: int | None = None) -> list[SnapshotRow]:
        """The tables of the newest snapshot with ts <= `at` (None: the newest of all)."""
        ts = self.newest_ts(at)
        if ts is None:
            return []
        found = self._rows(self._tables.open(SNAPSHOTS), SNAPSHOT_SCHEMA.names[:-1], ts, ts)
        return [SnapshotRow(*row.values()) for row in found.to_pylist() if row["path"] is not None]

    def all_ts(self) -> list[int]:
        """The ts of all snapshots, ascending."""
        if not self._tables.exists(SNAPSHOTS):
            return []
        return sorted(pc.unique(self._rows(self._tables.open(SNAPSHOTS), ["ts"])["ts"]).to_pylist())

    def named_versions(self) -> dict[str, list[int]]:
        """Every path and the versions of it that some snapshot names."""
        if not self._tables.exists(SNAPSHOTS):
            return {}
        rows = self._rows(self._tables.open(SNAPSHOTS), ["path", "version"])
        distinct = rows.group_by(["path", "version"]).aggregate([])
        found: dict[str, list[int]] = {}
        for path, version in zip(distinct["path"].to_pylist(), distinct["version"].to_pylist(), strict=True):
            if path is not None:
                found.setdefault(path, []).append(version)
        return found

    def forget(self, snapshots: Collection[int]) -> Iterator[None]:
        """Remove these snapshots, and put the others of each ten minutes into one file: one commit per piece.

        A round rewrites only recent slices and those that hold such snapshots. A piece holds at most the rows
        of ten minutes, unless an earlier release has left larger files.
        """
        if not self._tables.exists(SNAPSHOTS):
            return
        gone = pa.array(sorted(snapshots), pa.int64())
        for low, high, crowded in slices(bounds(self._tables.open(SNAPSHOTS))):
            within = pc.and_(pc.greater_equal(gone, low), pc.less(gone, high))
            if crowded or pc.any(within, min_count=0).as_py():
                self._rewrite_slice(low, high, gone)
                yield

    def _rewrite_slice(self, low: int, high: int, gone: pa.Array) -> None:
        where = f"ts >= {low} AND ts < {high}"
        with self._tables.writing(SNAPSHOTS) as table:
            rows = self._rows(table, SNAPSHOT_SCHEMA.names, low, high - 1)
            kept = rows.filter(pc.invert(pc.is_in(rows["ts"], gone)))
            if kept.num_rows == 0:
                table.delete(where, commit_properties=ONCE, post_commithook_properties=HOOKS)
            else:
                delta_commit.overwrite_where(table, kept, where)

    def _newest_ts(self, table: DeltaTable, at: int | None = None) -> int | None:
        """See `newest_ts`; reads only files that may hold it."""
        files = [one for one in bounds(table) if at is None or one.low is None or one.low <= at]
        # Each file has a row at its lower bound, so the newest ts is at least the highest of these.
        least = max((one.low for one in files if one.low is not None), default=None)
        if least is not None:
            files = [one for one in files if one.high is None or one.high >= least]
        wanted = None if at is None else pc.field("ts") <= at
        rows = self._tables.rows_of(SNAPSHOTS, table, [one.name for one in files])
        found: int | None = pc.max(rows.to_table(columns=["ts"], filter=wanted)["ts"]).as_py()
        return found

    def _rows(
        self, table: DeltaTable, columns: list[str], low: int | None = None, high: int | None = None
    ) -> pa.Table:
        """Rows with low <= ts <= high; reads only files that may hold such rows."""
        # A file without bounds may hold any ts, so it is read.
        names = [
            one.name
            for one in bounds(table)
            if not (low is not None and one.high is not None and one.high < low)
            and not (high is not None and one.low is not None and one.low > high)
        ]
        wanted = pc.scalar(True)
        if low is not None:
            wanted = wanted & (pc.field("ts") >= low)
        if high is not None:
            wanted = wanted & (pc.field("ts") <= high)
        return self._tables.rows_of(SNAPSHOTS, table, names).to_table(columns=columns, filter=wanted)


def _rows_were_written(table: DeltaTable) -> bool:
    """Whether a table has commits other than its creation and those of writers that took it over."""
    if not table.version():
        return False
    return any(one.get("operation") not in ("CREATE TABLE", "SET TBLPROPERTIES") for one in table.history())
