"""A directory of tables as a target: each table has its own commits, and one commit names a snapshot of all.

Between two snapshots tables advance independently, by commits that no snapshot names. `commit` then names all
tables' versions in one commit that also carries the position. After a crash `recover` restores every table to
the newest snapshot, removes tables that no snapshot names, and reading restarts at that snapshot's position.
So every change is in the target exactly once, whichever step was interrupted.

The intent of a DDL, with the fingerprint of the definition before it, is written to `_tidegate/ddl.jsonl`
first. When the same DDL is executed again after a crash, the table must still be what the intent says;
otherwise the writer stops.

Each table is written by one thread, and there are `WRITERS` threads. One process writes a target:
`directory_lock` ensures that, and in an object store the commit point itself (`Lakehouse.take_over`). `Lake`
is the interface to the tables' format; `delta` and `iceberg` implement it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying.net_effect import BagEffect, Effect, Ints, factorize
from tidegate.consumer.applying.part_file import ROW_BYTES, gathered
from tidegate.consumer.applying.stats import Stats
from tidegate.consumer.applying.target import Name, NetChanges, Parted, TableChanges, TableFailed
from tidegate.consumer.ddl import ddl_steps
from tidegate.consumer.ddl.ddl_steps import Dropped
from tidegate.consumer.engine.position import Position, SetAside
from tidegate.consumer.lakehouse.definition_files import DefinitionFiles
from tidegate.consumer.lakehouse.directory_lock import OWN
from tidegate.consumer.lakehouse.journal import DdlJournal, DroppedTable
from tidegate.consumer.lakehouse.lake import Lake
from tidegate.consumer.lakehouse.lake_steps import LakeSteps, Table
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.table.convert import Losses, TargetColumn, to_target
from tidegate.consumer.table.definition import ROWID, Definition
from tidegate.errors import InvalidInput
from tidegate.sink.lakehouse.snapshot_rows import SnapshotRow

WRITERS: Final = 2
INTENTS: Final = f"{OWN}/ddl.jsonl"
Held: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]


class LakeValues:
    """Values in the types of the tables; values that these cannot hold are counted."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses

    def type_of(self, column: TargetColumn) -> pa.DataType:
        """The type in the column's definition."""
        return column.type

    def convert(self, wire: pa.Array, column: TargetColumn, time_zone: str) -> pa.Array:
        """See `convert.to_target`."""
        return to_target(wire, column, time_zone, self._losses)


@dataclass(frozen=True, slots=True)
class LakeByHand:
    """For resolving bad rows by hand: versions that no snapshot names are undone. See `target.ByHand`."""

    advice: str

    @property
    def values(self) -> LakeValues:
        """Values in the types of the tables."""
        return LakeValues(Losses())

    @property
    def head(self) -> bytes:
        """Empty: the target executes no SQL."""
        return b""

    def statements(self, changes: TableChanges) -> list[bytes]:
        """Empty: the target executes no SQL."""
        return []


class LakeTarget:
    """One target directory."""

    def __init__(self, lake: Lake, upkeep: Upkeep, begin_round: Callable[[Position], Iterator[int]]) -> None:
        """`begin_round`: begins a round of upkeep, and does one short step of it with each `next`."""
        self.stats = Stats()
        self.values = LakeValues(self.stats.losses)
        self.tables: dict[Name, Table] = {}
        self.lake, self._upkeep, self._begin_round = lake, upkeep, begin_round
        self._round: Iterator[int] | None = None
        """The upkeep round that is under way."""
        self._journal = DdlJournal(lake.store, INTENTS)
        self._files = DefinitionFiles(lake.store)
        self._steps = LakeSteps(lake, self.tables, self._files, self.stats)
        self._counting = threading.Lock()
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="lake")

    @property
    def definitions(self) -> Mapping[Name, Definition]:
        """The definition of every table, by name."""
        return {name: table.definition for name, table in self.tables.items()}

    @property
    def replays_sql(self) -> bool:
        """False: tables are files, and columns that no header describes are derived from the rows."""
        return False

    @property
    def every_change(self) -> bool:
        """False: the tables show the rows as they are at a snapshot."""
        return False

    @property
    def begun(self) -> None:
        """None: `recover` undoes interrupted writes."""

    def definition(self, name: Name) -> Definition | None:
        """The definition of one table; None when the target does not have it."""
        table = self.tables.get(name)
        return table.definition if table is not None else None

    def close(self) -> None:
        """Wait for running writes."""
        self._pool.shutdown()

    # --- start

    def recover(self) -> Position | None:
        """Restore the target to its newest snapshot. Returns its position, or None for a fresh target.

        Only tables with the target's mark are changed; other files in the directory are left alone.
        """
        self.lake.check()
        self.lake.store.make_folder(OWN)
        self.lake.begin()
        # After `begin`, which fences earlier writers: from here on no snapshot can name a definition that is
        # not in this list.
        self._files.read()
        self.tables.clear()
        self._round = None
        text = self.lake.snapshots.position()
        if text is None:  # marked tables that no snapshot names were left by a first run that was killed
            for path in self.lake.table_paths():
                self.lake.discard(path)
            return None
        position = Position.from_json(text)
        rows = self.lake.snapshots.rows(position.ts)
        # docs/guarantees.md#each-change-is-in-a-target-once: what no snapshot names is undone, and its rows
        # are read again.
        # Before any definition is looked up, because columns are read from the restored versions.
        self.lake.restore_all(rows)
        for row in rows:
            known, number = self._files.find(
                row.path, partial(self.lake.holds, row.path), self.lake.columns(row.path), position
            )
            # The table's own metadata are the truth: they say how its files are divided.
            known = replace(known, partition_by=self.lake.partition_spec(row.path))
            version = self.lake.version(row.path)
            self.tables[row.schema, row.table] = Table(known, row.path, version, number)
        # Last, because until all tables are restored and known, one that the snapshot names would look
        # unnamed.
        self._discard_unnamed()
        return position

    def _discard_unnamed(self) -> None:
        """Remove tables that no snapshot has ever named and that no DDL has dropped."""
        unknown = set(self.lake.table_paths()) - {table.path for table in self.tables.values()}
        if unknown:
            # A table that an older snapshot names is still needed to read that snapshot; a dropped one for
            # RECOVER TABLE.
            unknown -= self.lake.snapshots.named_versions().keys() | self.dropped_versions().keys()
        for path in sorted(unknown):
            self.lake.discard(path)

    # --- rows

    def write(self, tables: Sequence[NetChanges], reached: Position, parted: Sequence[Parted] = ()) -> None:
        """Compute and write the changes of tables in parallel, with one commit for each table.

        `reached` is not stored: only `commit` stores a position. A table in parts has a commit for each part;
        readers see them when a snapshot names the last one. Raises the first failure, but only when no writer
        runs any more.
        """
        work = [self._pool.submit(self._write_table, net_changes) for net_changes in tables]
        work += [self._pool.submit(self._write_parts, table) for table in parted]
        # All of them, also after a failure: `recover` must not run while a writer still commits.
        wait(work)
        for done in work:
            done.result()

    def _write_parts(self, table: Parted) -> None:
        # First, because rows may show a table that the target does not have yet.
        table.prepare()
        held = self.tables.get(table.name)
        # Before the first part is written: it adds only rows that differ from those of all other parts.
        found = table.sift(self._rows_of(held) if held is not None else ())
        # A part is visible to readers only by the snapshot that names its commit, so a run that dies between
        # parts needs no record of them: `recover` undoes them all.
        for part in range(table.parts):
            self._write_table(partial(table.net_changes, part), partial(found, part))

    def _write_table(self, net_changes: NetChanges, held: Held | None = None) -> None:
        """Write one table's changes in one commit, unless another process has taken the target over.

        `held`: the rows of a table without a key among which those to delete are; None: all of the table's.
        """
        # Before the net effect is computed, which is the costly part.
        self.lake.check_writer()
        changes = net_changes()
        if changes is None:
            return
        table = self.tables[changes.definition.schema, changes.definition.table]
        if isinstance(changes.effect, Effect):
            self._write_keyed(table, changes.effect)
        else:
            self._write_bag(table, changes.effect, held or partial(self._rows_of, table))
        table.version, table.grown = self.lake.version(table.path), True
        with self._counting:
            self.stats.commits += 1

    def _write_keyed(self, table: Table, effect: Effect) -> None:
        if effect.upserts.num_rows + effect.deletes.num_rows == 0:
            return
        # An append reads no file, a merge has to find the rows that it replaces.
        if effect.only_inserts:
            self.lake.append(table.path, effect.upserts)
        else:
            self.lake.merge(table.path, effect.upserts, effect.deletes, table.definition.keys)

    def _write_bag(self, table: Table, effect: BagEffect, held: Held) -> None:
        inserts = effect.inserts.append_column(ROWID, pa.array(effect.identities, pa.string()))
        gone = self._find_in_bag(held(), effect.deletes)
        if len(gone):
            deletes = pa.table({ROWID: gone})
            self.lake.merge(table.path, inserts, deletes, [ROWID])
        elif inserts.num_rows:
            self.lake.append(table.path, inserts)

    def _rows_of(self, table: Table) -> Iterator[pa.RecordBatch]:
        # A generator, so that nothing is opened for a step without deletes.
        yield from self.lake.batches(table.path, table.definition.arrow_schema)

    def _find_in_bag(self, rows: Iterator[pa.RecordBatch], deletes: pa.Table) -> pa.Array:
        """Row ids of rows equal to `deletes`, one for each. All of `rows` are searched: a bag has no key."""
        found, left = list[pa.Array](), deletes
        # Each search numbers all deletes that are left, so it must not be done for a few rows.
        some = gathered(rows, lambda batch: batch.nbytes + ROW_BYTES * batch.num_rows)
        # The table is read only as far as rows are still missing.
        while left.num_rows and (batches := next(some, None)) is not None:
            held = pa.Table.from_batches(batches)
            at, left = _matched(held.select(left.column_names), left)
            found.append(held[ROWID].combine_chunks().take(at))
        with self._counting:
            self.stats.missing_deletes += left.num_rows
        return pa.chunked_array(found, pa.string()).combine_chunks()

    # --- DDL

    def has_done(self, message: DdlMessage) -> bool:
        """False: `recover` undoes DDLs that no snapshot names."""
        # docs/guarantees.md#a-ddl-takes-effect-at-a-target-once
        return False

    def intend(self, message: DdlMessage, steps: Sequence[ddl_steps.Step]) -> None:
        """Note the DDL in the journal, with the definition before it and the rows that it drops."""
        # Before the journal is written: a line of a replaced consumer would be compared with the tables of
        # its successor.
        self.lake.check_writer()
        held = self.tables.get((message.schema, message.table))
        before = held.definition.fingerprint() if held is not None else None
        self._journal.intend(
            message, [type(step).__name__.lower() for step in steps], before, self._going(steps)
        )

    def _going(self, steps: Sequence[ddl_steps.Step]) -> list[DroppedTable]:
        """The tables whose rows these steps drop."""
        names: list[Name] = []
        for step in steps:
            match step:
                case ddl_steps.Drop(schema, table):
                    names.append((schema, table))
                case ddl_steps.Create(made):
                    names.append((made.schema, made.table))
        held = [self.tables[name] for name in names if name in self.tables]
        return [DroppedTable(table.definition.table_id, table.path, table.version) for table in held]

    def dropped(self) -> dict[int, Dropped]:
        """By table id, where the rows are of tables that were dropped or truncated."""
        gone = self._journal.gone()
        return {one.table_id: Dropped(one.path, one.version) for one in gone if self.lake.exists(one.path)}

    def dropped_versions(self, since: int = 0) -> dict[str, list[int]]:
        """By path, versions that a RECOVER TABLE may need: those of tables dropped at or after ts `since`."""
        found: dict[str, list[int]] = {}
        for one in self._journal.gone(since):
            found.setdefault(one.path, []).append(one.version)
        return found

    def execute(self, step: ddl_steps.Step) -> None:
        """Execute one step of a DDL."""
        self.lake.check_writer()
        self._steps.execute(step)

    # --- commit point

    def advance(self, position: Position) -> None:
        """Does nothing: what no snapshot names is undone by `recover`."""

    def commit(self, position: Position) -> Position:
        """Name the snapshot at position.ts. Returns the position with the numbers of the definitions."""
        # Compacted before the snapshot names the versions: a version that is compacted afterwards would not
        # be in it.
        for table in self.tables.values():
            if table.grown and self.lake.compact(table.path, table.definition.keys):
                table.version = self.lake.version(table.path)
            table.grown = False
        rows = [
            SnapshotRow(position.ts, schema, name, table.definition.table_id, table.path, table.version)
            for (schema, name), table in sorted(self.tables.items())
        ]
        numbers = {table.path: table.number for table in self.tables.values()}
        # In the same commit as the versions, so a restart finds the definition that belongs to each table's
        # rows.
        position = replace(position, definitions=numbers)
        # docs/guarantees.md#snapshots-are-whole: all tables are named in one commit.
        self.lake.snapshots.publish(position.ts, rows, position.to_json())
        return position

    def set_aside(self, failed: TableFailed, begin: Position) -> tuple[SetAside, ...]:
        """Notes nothing: `recover` undoes what the newest snapshot does not name, in all tables."""
        return failed.entries(begin)

    def take_back(self, names: Sequence[Name]) -> None:
        """InvalidInput: nobody but the consumer can bring the missing rows into its files."""
        raise InvalidInput(
            "a table of files cannot be taken back",
            where=", ".join(".".join(name) for name in names),
            why="the target of files makes its own tables, and no other program can load the missing rows",
            fix="begin a new target, for example with --include for these tables, from a changefeed with an "
            "initial load",
        )

    def tidy(self, position: Position) -> bool:
        """Do upkeep for about `Upkeep.piece_s`. Returns whether the round is finished."""
        until = time.monotonic() + self._upkeep.piece_s
        if self._round is None:
            self._round = self._begin_round(position)
        for _ in self._round:
            if time.monotonic() >= until:
                return False
        self._round = None
        return True


def _matched(held: pa.Table, wanted: pa.Table) -> tuple[pa.Array, pa.Table]:
    """Positions of rows in `held` that equal rows of `wanted`, one for each; and the unmatched `wanted`."""
    codes = factorize(pa.concat_tables([held, wanted]))
    here, there = codes[: held.num_rows], codes[held.num_rows :]
    size = int(codes.max(initial=-1)) + 1
    common = np.minimum(np.bincount(here, minlength=size), np.bincount(there, minlength=size))
    return pa.array(_first(here, common)), wanted.filter(pa.array(~_among_first(there, common)))


def _first(codes: Ints, counts: Ints) -> Ints:
    """Positions of the first `counts[code]` entries of each code."""
    return np.flatnonzero(_among_first(codes, counts))


def _among_first(codes: Ints, counts: Ints) -> npt.NDArray[np.bool_]:
    """For each position, whether it is among the first `counts[code]` of its code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    # The place within its group: a stable sort keeps the order of equal codes.
    rank = np.arange(len(codes)) - np.searchsorted(ordered, ordered)
    among = np.zeros(len(codes), np.bool_)
    among[order] = rank < counts[ordered]
    return among
