"""The writer of a target: whole transactions in commit order, DDL between them, snapshots as commit points.

Between two snapshots tables may run ahead, one commit each; nobody is told. `publish` then names all tables'
versions in one append that also carries the position. After a crash `recover` takes every table back to the
newest snapshot, drops what was never named, and reading restarts at that snapshot's position: every change is
in the target exactly once, whichever step was interrupted.

DDL is rendered from the TableInfo of the event (`ddl_plan`); an intent with the fingerprint of the definition
before goes to `_tidegate/ddl.jsonl` first. When the same DDL comes again after a crash, the
table must be what the intent says it was, else the writer stops.

One thread per table at most `WRITERS`; one process per target (`target_lock`).
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.codec import ddl_header
from tidegate.codec.base import DdlMessage
from tidegate.consumer import ddl_plan, definition
from tidegate.consumer.assembler import Piece, Segment
from tidegate.consumer.changes import BadRow, Staged, staged_changes, staged_rows
from tidegate.consumer.convert import MOMENTS, Losses, to_target
from tidegate.consumer.ddl_plan import Dropped
from tidegate.consumer.definition import ROWID, Definition
from tidegate.consumer.journal import DdlJournal, Going, write_durably
from tidegate.consumer.modify import converted
from tidegate.consumer.net_effect import Changes, factorize, net_bag, net_effect
from tidegate.consumer.partitioning import Members
from tidegate.consumer.position import Position
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.path_part import shortened
from tidegate.sink import quarantine
from tidegate.sink.lakehouse import Lakehouse, SnapshotRow, slot_path
from tidegate.sink.quarantine import Quarantine

WRITERS: Final = 2
INTENTS: Final = "_tidegate/ddl.jsonl"
QUARANTINE: Final = "_tidegate/quarantine.jsonl"
STEM_MAX: Final = 255 - len(f"@{0:020d}.json")
"""Signs of a definition file's name before its number."""
DEFINITIONS: Final = "_tidegate/definitions"
Name = tuple[str, str]


@contextmanager
def target_lock(root: Path) -> Iterator[None]:
    """Hold the target for this process; InvalidInput when another one has it. Ends with the process.

    A directory that cannot be a target is refused before anything is put into it: see `Lakehouse.check`.
    """
    try:
        Lakehouse(root).check()
        (root / "_tidegate").mkdir(parents=True, exist_ok=True)
        handle = os.open(root / "_tidegate" / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InvalidInput(
            "the target directory cannot be used",
            where=str(root),
            why=error.strerror or str(error),
            fix="choose a --target directory that can be made and written",
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise InvalidInput(
                "another consumer writes this target",
                where=str(root),
                why=f"process {holder} holds its lock",
                fix="stop that process, or choose another directory",
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


@dataclass(slots=True)
class Table:
    """One table of the target as the writer knows it."""

    definition: Definition
    path: str
    version: int
    number: int = 0
    """Of its definition, as it is kept beside the data; 0: not kept yet."""


@dataclass(slots=True)
class Stats:
    """What was done since the start."""

    rows: int = 0
    """Row changes taken, before the net effect."""
    commits: int = 0
    snapshots: int = 0
    ddls: int = 0
    missing_deletes: int = 0
    """Rows of tables without a key that were to be deleted and not found."""
    bad_rows: int = 0
    """Rows put into quarantine: they hold what their table's definition does not know."""
    losses: Losses = field(default_factory=Losses)
    guessed: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Applier:
    """Writes one target directory."""

    def __init__(
        self,
        root: Path,
        time_zone: str = "UTC",
        trust_inserts: bool = True,
        place: Callable[[int], tuple[str, int]] = lambda number: ("", number),
    ) -> None:
        """`trust_inserts`: an insert on the wire is one; False when updates carry no old values.

        `place`: the topic and partition that a number means; by default there is one topic.
        """
        self.lake = Lakehouse(root)
        self.stats = Stats()
        self.tables: dict[Name, Table] = {}
        self._time_zone, self._trust, self._place = time_zone, trust_inserts, place
        self._journal = DdlJournal(root / INTENTS)
        self._quarantine = Quarantine(root / QUARANTINE)
        self._known_bad = {row_place(entry) for entry in quarantine.read(root / QUARANTINE)}
        self._aside_lock = threading.Lock()
        self._numbering = threading.Lock()
        kept = (root / DEFINITIONS).glob("*@*.json")
        self._number = max(map(_number_of, kept), default=0)
        """Of the newest definition; those of a crashed run count too, so that none is ever overwritten."""
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="delta")

    def close(self) -> None:
        """Wait for writers."""
        self._pool.shutdown()

    # --- start

    def recover(self) -> Position | None:
        """Take the target back to its newest snapshot; its position, or None for a fresh target.

        Only tables that carry the target's mark are touched; what else lies there is left alone.
        """
        self.lake.check()
        (self.lake.root / "_tidegate").mkdir(parents=True, exist_ok=True)
        self.lake.empty_trash()
        text = self.lake.position()
        if text is None:  # what is marked and was never named is of a first run that was killed
            for path in self.lake.slots():
                self.lake.discard(path)
            return None
        position = Position.from_json(text)
        named = self.lake.named_versions()
        for row in self.lake.snapshot_rows(position.ts):
            self.lake.restore(row.path, row.version)
            known, number = self._stored_definition(row.path, position)
            version = self.lake.version(row.path)
            self.tables[row.schema, row.table] = Table(known, row.path, version, number)
        needed = (
            {table.path for table in self.tables.values()} | named.keys() | self.dropped_versions().keys()
        )
        for path in self.lake.slots():
            if path not in needed:
                self.lake.discard(path)
        return position

    # --- rows

    def rows(self, pieces: Mapping[Name, Sequence[Piece]]) -> None:
        """Apply the net effect of each table's pieces, tables side by side.

        Raises the first failure, but only when no writer runs any more: who then recovers the target must
        not meet a commit of ours.
        """
        work = [self._pool.submit(self._apply_table, name, part) for name, part in pieces.items()]
        wait(work)
        for done in work:
            done.result()

    def _apply_table(self, name: Name, pieces: Sequence[Piece]) -> None:
        staged = staged_rows(pieces)
        if not staged:
            return
        table = self._table_for(name, staged)
        aside = partial(self._set_aside, name)
        changes = staged_changes(staged, table.definition, self._time_zone, self.stats.losses, aside)
        if len(changes) == 0:
            return
        if table.definition.keys:
            self._apply_keyed(table, changes)
        else:
            self._apply_bag(table, changes)
        table.version = self.lake.version(table.path)
        self.stats.rows += len(changes)
        self.stats.commits += 1

    def _set_aside(self, name: Name, rows: Sequence[BadRow]) -> None:
        """Put rows into quarantine, each once however often it is read."""
        with self._aside_lock:
            placed = [(*self._place(row.partition), row) for row in rows]
            known = self._known_bad
            fresh = [one for one in placed if (*one[:2], one[2].offset, one[2].seq) not in known]
            self._quarantine.append(
                {
                    "where": ({"topic": topic} if topic else {})
                    | {
                        "table": f"{name[0]}.{name[1]}",
                        "partition": partition,
                        "offset": row.offset,
                        "seq": row.seq,
                        "commit_ts": row.commit_ts,
                    },
                    "why": row.why,
                    "row": row.values,
                }
                for topic, partition, row in fresh
            )
            self._known_bad |= {(topic, partition, row.offset, row.seq) for topic, partition, row in fresh}
            self.stats.bad_rows += len(fresh)

    def _apply_keyed(self, table: Table, changes: Changes) -> None:
        effect = net_effect(changes, table.definition.keys, self._trust)
        if effect.upserts.num_rows + effect.deletes.num_rows == 0:
            return
        if effect.only_inserts:
            self.lake.append(table.path, effect.upserts)
        else:
            self.lake.merge(table.path, effect.upserts, effect.deletes, table.definition.keys)

    def _apply_bag(self, table: Table, changes: Changes) -> None:
        effect = net_bag(changes)
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
        self.stats.missing_deletes += int(wanted.sum())
        ids = held[ROWID].take(chosen)
        return pa.concat_arrays(ids.chunks) if ids.num_chunks else pa.array([], pa.string())

    def _table_for(self, name: Name, staged: Sequence[Staged]) -> Table:
        """The table these rows belong to; made or changed by guess when no DDL header told of it."""
        table = self.tables.get(name)
        for segment in (one.segment for one in staged):
            if table is None:
                table = self._create(definition.guess(*name, segment.columns, segment.min_ts))
                continue
            if table.definition.info is not None:
                _check_columns(table.definition, segment)
                continue
            grown = definition.grown(table.definition, segment.columns, segment.min_ts)
            if grown is not None:
                self._step(ddl_plan.regrown(table.definition, grown))
                table = self.tables[name]
        assert table is not None
        return table

    # --- DDL

    def ddl(self, messages: Sequence[DdlMessage]) -> list[str]:
        """Execute the DDLs of one FinishedTS, in order; what was done, in words."""
        events = [(ddl_header.decode(m.header), m) if m.header is not None else (None, m) for m in messages]
        events.sort(key=lambda pair: pair[0].seq if pair[0] is not None else 0)
        done = []
        for event, message in events:
            held = [table.definition for table in self.tables.values()]
            if event is not None:
                steps = ddl_plan.plan(event, held, self._dropped())
            else:
                steps = ddl_plan.plan_without_header(message, held)
            _refuse_if_needed(message, steps)
            self._intend(message, steps)
            done += [self._step(step) for step in steps]
            self.stats.ddls += 1
        return done

    def _dropped(self) -> dict[int, Dropped]:
        """By table id, where tables were when they were last dropped or truncated."""
        gone = self._journal.gone()
        return {one.table_id: Dropped(one.path, one.version) for one in gone if self.lake.exists(one.path)}

    def dropped_versions(self, since: int = 0) -> dict[str, list[int]]:
        """Versions that a RECOVER TABLE may ask for: of tables dropped at or after ts `since`, by path."""
        found: dict[str, list[int]] = {}
        for one in self._journal.gone(since):
            found.setdefault(one.path, []).append(one.version)
        return found

    def _step(self, step: ddl_plan.Step) -> str:
        match step:
            case ddl_plan.Create(made):
                self._create(made)
                return f"create {made.name}"
            case ddl_plan.Drop(schema, table):
                self.tables.pop((schema, table), None)
                return f"drop {schema}.{table}"
            case ddl_plan.Rename(schema, table, made):
                self._rename((schema, table), made)
                return f"rename {schema}.{table} to {made.name}"
            case ddl_plan.Rewrite(made, sources, in_place):
                self._rewrite(made, sources, in_place)
                return f"alter {made.name}"
            case ddl_plan.Redefine(made, why):
                self._know(self.tables[made.schema, made.table], made)
                return f"{made.name}: {why}"
            case ddl_plan.Prune(schema, table, members):
                self._prune(self.tables[schema, table], members)
                return f"remove the rows of partition {', '.join(members.names)} of {schema}.{table}"
            case ddl_plan.Exchange(schema, table, members, other, validated):
                self._exchange(self.tables[schema, table], members, other, validated=validated)
                return f"exchange partition {', '.join(members.names)} of {schema}.{table} with {other.name}"
            case ddl_plan.Restore(made, dropped):
                self._restore(made, dropped)
                return f"restore {made.name}"
            case ddl_plan.Nothing(why):
                return f"nothing: {why}"
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
            rewriter = _Rewriter(made, sources, self.stats.losses)
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
        """Keep the definition beside the data: durable before any snapshot that needs it.

        Definitions are numbered as they come to be known. Their ts would not do: what is guessed from rows
        has the ts of a row, and a DDL that TiCDC sends after Resolved of its ts is in the next snapshot.
        """
        table.definition = made
        if made.guessed:
            self.stats.guessed[made.name] = made.guessed
        with self._numbering:
            self._number += 1
            table.number = self._number
        file = self.lake.root / DEFINITIONS / f"{_file_stem(table.path)}{table.number:020d}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, made.to_json())

    def _stored_definition(self, path: str, position: Position) -> tuple[Definition, int]:
        """The definition that a table has in the snapshot of `position`, and its number."""
        folder, stem = self.lake.root / DEFINITIONS, _file_stem(path)
        files = {_number_of(file): file for file in folder.glob("*.json") if file.name.startswith(stem)}
        if position.definitions is not None:
            numbers = [position.definitions.get(path, 0)]
        else:  # an earlier release numbered them by the ts of their DDL
            numbers = sorted((number for number in files if number <= position.ts), reverse=True)
        held = self.lake.dataset(path).schema
        for number in numbers:
            known = definition.from_json(files[number].read_bytes()) if number in files else None
            if known is not None and held.equals(known.arrow_schema):
                return known, number
        raise Fatal(
            "a table's definition is gone, or is not that of its rows",
            where=f"{folder}, table {path}",
            why=f"the table has the columns {', '.join(held.names)}; definitions kept: {len(files)}",
            fix="restore the directory, or start a new target",
        )

    def _intend(self, message: DdlMessage, steps: Sequence[ddl_plan.Step]) -> None:
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

    # --- commit point

    def publish(self, position: Position) -> Position:
        """Name the snapshot at position.ts: from here on it is what readers and a restart see.

        The position as it is kept: with the numbers of the tables' definitions.
        """
        for table in self.tables.values():
            if self.lake.compact(table.path):
                table.version = self.lake.version(table.path)
        rows = [
            SnapshotRow(position.ts, schema, name, table.definition.table_id, table.path, table.version)
            for (schema, name), table in sorted(self.tables.items())
        ]
        numbers = {table.path: table.number for table in self.tables.values()}
        position = replace(position, definitions=numbers)
        self.lake.publish(position.ts, rows, position.to_json())
        self.stats.snapshots += 1
        return position


def _file_stem(path: str) -> str:
    """How the names of a table's definition files begin; two long folder names do not fit into one."""
    return shortened(path.replace("/", "+"), path, STEM_MAX) + "@"


def _number_of(file: Path) -> int:
    return int(file.stem.rpartition("@")[2])


def _check_columns(known: Definition, segment: Segment) -> None:
    """Fatal when rows have a column that the DDLs do not tell of."""
    unknown = [c.name for c in segment.columns if known.column(c.name) is None]
    if unknown:
        raise Fatal(
            "rows carry a column that the table does not have",
            where=f"table {known.name}, column {', '.join(unknown)}",
            why="a DDL message is missing on the topic, or was written without its header",
            fix="start a new target from a new changefeed, and report this",
        )


BadPlace: TypeAlias = tuple[str, int, int, int]
"""Topic, partition, offset and number within the message; the number -1: all of it."""


def row_place(entry: Mapping[str, Any]) -> BadPlace:
    """Where what a quarantine entry holds stood."""
    where = entry["where"]
    return where.get("topic", ""), where["partition"], where["offset"], where.get("seq", -1)


REPEAT: Final = (
    "leave the table out with a [filter] rule of a new changefeed, "
    "and read that one into a new target directory"
)


def _refuse_if_needed(message: DdlMessage, steps: Sequence[ddl_plan.Step]) -> None:
    """Fatal when a step is refused: nothing of the DDL has been done then."""
    for step in steps:
        if isinstance(step, ddl_plan.Refuse):
            name = f"{message.schema}.{message.table}".strip(".")
            raise Fatal(
                "a DDL cannot be replayed at the target",
                where=f"{name} at ts {message.ts}: {message.query[:200]}",
                why=step.why,
                fix=REPEAT,
            )


class _Rewriter:
    """Turns batches of a table's rows into its new columns."""

    def __init__(self, made: Definition, sources: Sequence[ddl_plan.Source], losses: Losses) -> None:
        self._made, self._sources, self._losses = made, sources, losses
        self._rows = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._made.arrow_schema
        arrays = [self._column(batch, source) for source in self._sources]
        if not self._made.keys:
            arrays.append(self._row_ids(batch))
        self._rows += batch.num_rows
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, batch: pa.RecordBatch, source: ddl_plan.Source) -> pa.Array:
        if source.taken is None:
            return (
                pa.nulls(batch.num_rows, source.column.type)
                if source.fill is None
                else pa.array([source.fill.as_py()], source.column.type).take(
                    pa.array(np.zeros(batch.num_rows, np.int64))
                )
            )
        held = batch.column(source.taken.name)
        if source.column.mysql_type in MOMENTS and pa.types.is_string(source.column.type) and held.null_count:
            raise Fatal(
                "a column with lost values becomes part of a key",
                where=f"table {self._made.name}, column {source.column.name}",
                why=f"{held.null_count} rows or more hold NULL there, for a date that no calendar knows",
                fix=REPEAT,
            )
        if source.change is not None:
            return converted(held, source.change, source.column, self._losses)
        if not source.taken.elems and source.column.elems:
            held = held.cast(pa.uint64())  # a guessed enum or set: its number as text
        return to_target(held, source.column, "UTC", self._losses)

    def _row_ids(self, batch: pa.RecordBatch) -> pa.Array:
        if ROWID in batch.schema.names:
            return batch.column(ROWID).cast(pa.string())
        return pa.array(
            [f"ddl{self._made.version}-{self._rows + at}" for at in range(batch.num_rows)], pa.string()
        )
