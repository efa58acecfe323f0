"""Delta tables as a target: tables may run ahead of each other, and one append names a snapshot of all.

Between two snapshots each table has commits of its own; nobody is told. `commit` then names all tables'
versions in one append that also carries the position. After a crash `recover` takes every table back to the
newest snapshot, drops what was never named, and reading restarts at that snapshot's position: every change is
in the target exactly once, whichever step was interrupted.

A DDL's intent, with the fingerprint of the definition before, goes to `_tidegate/ddl.jsonl` first. When the
same DDL comes again after a crash, the table must be what the intent says it was, else the writer stops.

One thread per table, at most `WRITERS`; one process per target (`target_lock`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.codec.base import DdlMessage
from tidegate.consumer import ddl_plan
from tidegate.consumer.convert import Losses, TargetColumn, to_target
from tidegate.consumer.ddl_plan import REPEAT, Dropped
from tidegate.consumer.definition import ROWID, Definition
from tidegate.consumer.delta.definitions import DefinitionFiles
from tidegate.consumer.delta.journal import DdlJournal, Going
from tidegate.consumer.delta.lock import lock_holder, target_lock
from tidegate.consumer.delta.maintenance import Tidying, Upkeep
from tidegate.consumer.delta.rewrite import Rewriter
from tidegate.consumer.net_effect import BagEffect, Effect, factorize
from tidegate.consumer.partitioning import Members
from tidegate.consumer.position import Position
from tidegate.consumer.stats import Stats
from tidegate.consumer.target import Looked, Name, Parted, Settle, TableChanges
from tidegate.dispatcher.consistency import Seen
from tidegate.errors import Fatal
from tidegate.sink.lakehouse import Lakehouse, SnapshotRow, slot_path

WRITERS: Final = 2
FOLDER: Final = "_tidegate"
INTENTS: Final = "_tidegate/ddl.jsonl"
NO_UPKEEP: Final = Upkeep()


@dataclass(slots=True)
class Table:
    """One table of the target as the writer knows it."""

    definition: Definition
    path: str
    version: int
    number: int = 0
    """Of its definition, as it is kept beside the data; 0: not kept yet."""
    grown: bool = False
    """Whether rows were written since it was last compacted, or looked at for that."""


@dataclass(frozen=True, slots=True)
class DeltaAddress:
    """A directory for Delta tables."""

    root: Path
    upkeep: Upkeep = NO_UPKEEP

    @property
    def folder(self) -> Path:
        """Beside the tables."""
        return self.root / FOLDER

    @property
    def row_mode(self) -> bool:
        """Until a snapshot is named nobody reads it."""
        return True

    @property
    def seen(self) -> Seen:
        """All tables at one ts."""
        return Seen.SNAPSHOTS

    @contextmanager
    def opened(self) -> Iterator[DeltaTarget]:
        """Under the lock of the directory."""
        with target_lock(self.root):
            target = DeltaTarget(self.root, self.upkeep)
            try:
                yield target
            finally:
                target.close()

    def look(self) -> Looked:
        """What the newest snapshot says, and which process has the directory's lock."""
        lake = Lakehouse(self.root)
        lake.check()
        text, pid = lake.position(), lock_holder(self.root)
        holder = f"process {pid} on this machine" if pid is not None else ""
        return Looked(Position.from_json(text) if text is not None else None, holder)

    def definitions(self) -> Mapping[Name, Definition]:
        """Those of the newest snapshot."""
        lake, files = Lakehouse(self.root), DefinitionFiles(self.root)
        lake.check()
        text = lake.position()
        if text is None:
            return {}
        position = Position.from_json(text)
        return {
            (row.schema, row.table): files.find(
                row.path, lake.dataset(row.path, row.version).schema, position
            )[0]
            for row in lake.snapshot_rows(position.ts)
        }

    def by_hand(self) -> DeltaByHand:
        """A table of its own is no place for it: a snapshot names the versions that count."""
        return DeltaByHand()

    def __str__(self) -> str:
        return str(self.root)


class DeltaByHand:
    """Tables whose versions are named by snapshots: only `tidegate verify` may write beside a consumer."""

    advice: Final = (
        "stop the consumer and run `tidegate verify --pd PD --target TARGET --table SCHEMA.TABLE --repair "
        "apply`, which compares the table with the source and makes its rows equal"
    )

    @property
    def values(self) -> DeltaValues:
        """In Delta's types."""
        return DeltaValues(Losses())

    @property
    def head(self) -> bytes:
        """Nothing: it takes no SQL."""
        return b""

    def statements(self, changes: TableChanges) -> list[bytes]:
        """None: a commit that no snapshot names is taken back."""
        return []


class DeltaValues:
    """Values in Delta's types; what they cannot hold is counted."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses

    def type_of(self, column: TargetColumn) -> pa.DataType:
        """As the column's definition says."""
        return column.type

    def convert(self, wire: pa.Array, column: TargetColumn, time_zone: str) -> pa.Array:
        """See `convert.to_target`."""
        return to_target(wire, column, time_zone, self._losses)


class DeltaTarget:
    """One target directory."""

    def __init__(self, root: Path, upkeep: Upkeep = NO_UPKEEP) -> None:
        self.lake = Lakehouse(root)
        self.stats = Stats()
        self.values = DeltaValues(self.stats.losses)
        self.tables: dict[Name, Table] = {}
        self._journal = DdlJournal(root / INTENTS)
        self._files = DefinitionFiles(root)
        self._counting = threading.Lock()
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="delta")
        self._tidying = Tidying(self.lake, upkeep, self.dropped_versions)

    @property
    def definitions(self) -> Mapping[Name, Definition]:
        """Every table's, by its name."""
        return {name: table.definition for name, table in self.tables.items()}

    @property
    def replays_sql(self) -> bool:
        """Tables are files; what no header tells is learnt from the rows."""
        return False

    @property
    def begun(self) -> None:
        """Nothing: `recover` undoes what was begun."""

    def definition(self, name: Name) -> Definition | None:
        """That of one table."""
        table = self.tables.get(name)
        return table.definition if table is not None else None

    def close(self) -> None:
        """Wait for writers."""
        self._pool.shutdown()

    # --- start

    def recover(self) -> Position | None:
        """Take the target back to its newest snapshot; its position, or None for a fresh target.

        Only tables that carry the target's mark are touched; what else lies there is left alone.
        """
        self.lake.check()
        (self.lake.root / FOLDER).mkdir(parents=True, exist_ok=True)
        self.lake.empty_trash()
        text = self.lake.position()
        if text is None:  # what is marked and was never named is of a first run that was killed
            for path in self.lake.slots():
                self.lake.discard(path)
            return None
        position = Position.from_json(text)
        for row in self.lake.snapshot_rows(position.ts):
            self.lake.restore(row.path, row.version)
            held = self.lake.dataset(row.path).schema
            known, number = self._files.find(row.path, held, position)
            version = self.lake.version(row.path)
            self.tables[row.schema, row.table] = Table(known, row.path, version, number)
        self._discard_unnamed()
        return position

    def _discard_unnamed(self) -> None:
        """Remove tables that no snapshot has ever named, and that no DDL has dropped."""
        unknown = set(self.lake.slots()) - {table.path for table in self.tables.values()}
        if unknown:
            unknown -= self.lake.named_versions().keys() | self.dropped_versions().keys()
        for path in sorted(unknown):
            self.lake.discard(path)

    # --- rows

    def write(self, tables: Sequence[Settle], reached: Position, parted: Sequence[Parted] = ()) -> None:
        """Settle and write tables side by side, a commit each; nothing is told of `reached` yet.

        A table that comes in parts has a commit for each: readers see them when a snapshot names the last.
        Raises the first failure, but only when no writer runs any more.
        """
        work = [self._pool.submit(self._write_table, settle) for settle in tables]
        work += [self._pool.submit(self._write_parts, table) for table in parted]
        wait(work)
        for done in work:
            done.result()

    def _write_parts(self, table: Parted) -> None:
        for part in range(table.parts):
            self._write_table(partial(table.settle, part))

    def _write_table(self, settle: Settle) -> None:
        changes = settle()
        if changes is None:
            return
        table = self.tables[changes.definition.schema, changes.definition.table]
        if isinstance(changes.effect, Effect):
            self._write_keyed(table, changes.effect)
        else:
            self._write_bag(table, changes.effect)
        table.version, table.grown = self.lake.version(table.path), True
        with self._counting:
            self.stats.commits += 1

    def _write_keyed(self, table: Table, effect: Effect) -> None:
        if effect.upserts.num_rows + effect.deletes.num_rows == 0:
            return
        if effect.only_inserts:
            self.lake.append(table.path, effect.upserts)
        else:
            self.lake.merge(table.path, effect.upserts, effect.deletes, table.definition.keys)

    def _write_bag(self, table: Table, effect: BagEffect) -> None:
        inserts = effect.inserts.append_column(ROWID, pa.array(effect.identities, pa.string()))
        gone = self._find_in_bag(table, effect.deletes)
        if len(gone):
            deletes = pa.table({ROWID: gone})
            self.lake.merge(table.path, inserts, deletes, [ROWID])
        elif inserts.num_rows:
            self.lake.append(table.path, inserts)

    def _find_in_bag(self, table: Table, deletes: pa.Table) -> pa.Array:
        """Row ids of rows equal to `deletes`, one for each. Reads the whole table: bags have no key."""
        if deletes.num_rows == 0:
            return pa.array([], pa.string())
        held = self.lake.read(table.path)
        codes = factorize(pa.concat_tables([held.select(deletes.column_names), deletes]))
        wanted = np.bincount(codes[held.num_rows :], minlength=int(codes.max()) + 1)
        chosen = []
        for at, code in enumerate(codes[: held.num_rows].tolist()):
            if wanted[code] > 0:
                wanted[code] -= 1
                chosen.append(at)
        with self._counting:
            self.stats.missing_deletes += int(wanted.sum())
        ids = held[ROWID].take(chosen)
        return pa.concat_arrays(ids.chunks) if ids.num_chunks else pa.array([], pa.string())

    # --- DDL

    def has_done(self, message: DdlMessage) -> bool:
        """Never: what no snapshot names is undone by `recover`."""
        return False

    def intend(self, message: DdlMessage, steps: Sequence[ddl_plan.Step]) -> None:
        """Note the DDL in the journal, with the definition before and the rows that it takes away."""
        held = self.tables.get((message.schema, message.table))
        before = held.definition.fingerprint() if held is not None else None
        self._journal.intend(
            message, [type(step).__name__.lower() for step in steps], before, self._going(steps)
        )

    def _going(self, steps: Sequence[ddl_plan.Step]) -> list[Going]:
        """The tables whose rows these steps take out of sight."""
        names: list[Name] = []
        for step in steps:
            match step:
                case ddl_plan.Drop(schema, table):
                    names.append((schema, table))
                case ddl_plan.Create(made):
                    names.append((made.schema, made.table))
        held = [self.tables[name] for name in names if name in self.tables]
        return [Going(table.definition.table_id, table.path, table.version) for table in held]

    def dropped(self) -> dict[int, Dropped]:
        """By table id, where tables were when they were last dropped or truncated."""
        gone = self._journal.gone()
        return {one.table_id: Dropped(one.path, one.version) for one in gone if self.lake.exists(one.path)}

    def dropped_versions(self, since: int = 0) -> dict[str, list[int]]:
        """Versions that a RECOVER TABLE may ask for: of tables dropped at or after ts `since`, by path."""
        found: dict[str, list[int]] = {}
        for one in self._journal.gone(since):
            found.setdefault(one.path, []).append(one.version)
        return found

    def execute(self, step: ddl_plan.Step) -> None:
        """Do one step of a DDL."""
        match step:
            case ddl_plan.Create(made):
                self._create(made)
            case ddl_plan.Drop(schema, table):
                self.tables.pop((schema, table), None)
            case ddl_plan.Rename(schema, table, made):
                self._rename((schema, table), made)
            case ddl_plan.Rewrite(made, sources, in_place):
                self._rewrite(made, sources, in_place)
            case ddl_plan.Redefine(made, _):
                self._know(self.tables[made.schema, made.table], made)
            case ddl_plan.Prune(schema, table, members):
                self._prune(self.tables[schema, table], members)
            case ddl_plan.Exchange(schema, table, members, other, validated):
                self._exchange(self.tables[schema, table], members, other, validated=validated)
            case ddl_plan.Restore(made, dropped):
                self._restore(made, dropped)
            case ddl_plan.Nothing(_):
                pass
            case ddl_plan.Replay():
                raise AssertionError("Delta runs no SQL")
            case ddl_plan.Refuse(why):
                raise AssertionError(f"refused before any step: {why}")

    def _create(self, made: Definition) -> Table:
        path = slot_path(made.schema, made.table)
        self.lake.create(path, made.arrow_schema)
        table = Table(made, path, self.lake.version(path))
        self.tables[made.schema, made.table] = table
        self._know(table, made)
        return table

    def _rename(self, old: Name, made: Definition) -> None:
        held = self.tables.pop(old)
        path = slot_path(made.schema, made.table)
        self.lake.rename(held.path, path)
        self.tables[made.schema, made.table] = Table(held.definition, path, self.lake.version(path))
        if held.definition.arrow_schema == made.arrow_schema:
            self._know(self.tables[made.schema, made.table], made)

    def _rewrite(self, made: Definition, sources: Sequence[ddl_plan.Source], in_place: bool) -> None:
        table = self.tables[made.schema, made.table]
        if in_place:
            self.lake.add_null_columns(table.path, made.arrow_schema)
        else:
            rewriter = Rewriter(made, sources, self.stats.losses)
            self.lake.rewrite(table.path, made.arrow_schema, rewriter)
        table.version = self.lake.version(table.path)
        self._know(table, made)

    def _prune(self, table: Table, members: Members) -> None:
        schema = table.definition.arrow_schema
        batches = self.lake.dataset(table.path).to_batches()
        self.lake.replace(table.path, schema, (b.filter(pc.invert(members.mask(b))) for b in batches))
        table.version = self.lake.version(table.path)

    def _exchange(self, table: Table, members: Members, made: Definition, *, validated: bool) -> None:
        """Both tables are read as they were before, whichever is written first."""
        other = self.tables[made.schema, made.table]
        if not validated and not self._all_in(other.path, members):
            self._know(table, ddl_plan.misplaced(table.definition))
        schema, old = table.definition.arrow_schema, self.lake.dataset(table.path)
        stay = (b.filter(pc.invert(members.mask(b))) for b in old.to_batches())
        come = self.lake.dataset(other.path).to_batches()
        leave = (b.filter(members.mask(b)) for b in old.to_batches())
        self.lake.replace(table.path, schema, chain(stay, (b.select(schema.names) for b in come)))
        self.lake.replace(other.path, made.arrow_schema, (b.select(made.arrow_schema.names) for b in leave))
        for written in (table, other):
            written.version = self.lake.version(written.path)
        self._know(other, made)

    def _all_in(self, path: str, members: Members) -> bool:
        """Whether each row of a table belongs into some partitions of another."""
        batches = self.lake.dataset(path).to_batches()
        return all(pc.all(members.mask(batch), min_count=0).as_py() for batch in batches)

    def _restore(self, made: Definition, dropped: Dropped) -> None:
        path = slot_path(made.schema, made.table)
        if dropped.path == path:
            self.lake.restore(path, dropped.version)
        else:
            self.lake.rename(dropped.path, path, dropped.version)
        table = Table(made, path, self.lake.version(path))
        held = self.lake.dataset(path).schema
        if not held.equals(made.arrow_schema):
            raise Fatal(
                "a table that comes back has other columns than it had at the target",
                where=f"table {made.name}",
                why=f"kept: {', '.join(held.names)}; now: {', '.join(made.arrow_schema.names)}",
                fix=REPEAT,
            )
        self.tables[made.schema, made.table] = table
        self._know(table, made)

    def _know(self, table: Table, made: Definition) -> None:
        """Keep the definition beside the data: durable before any snapshot that needs it."""
        table.definition = made
        if made.guessed:
            self.stats.guessed[made.name] = made.guessed
        table.number = self._files.keep(table.path, made)

    # --- commit point

    def advance(self, position: Position) -> None:
        """Nothing: what no snapshot names is undone by `recover`."""

    def commit(self, position: Position) -> Position:
        """Name the snapshot at position.ts; the position with the numbers of the tables' definitions."""
        for table in self.tables.values():
            if table.grown and self.lake.compact(table.path):
                table.version = self.lake.version(table.path)
            table.grown = False
        rows = [
            SnapshotRow(position.ts, schema, name, table.definition.table_id, table.path, table.version)
            for (schema, name), table in sorted(self.tables.items())
        ]
        numbers = {table.path: table.number for table in self.tables.values()}
        position = replace(position, definitions=numbers)
        self.lake.publish(position.ts, rows, position.to_json())
        return position

    def tidy(self, position: Position) -> bool:
        """See `maintenance.Tidying.work`."""
        return self._tidying.work(position)
