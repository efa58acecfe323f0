"""A change log as a target: Parquet files that only grow in number, and a chain of manifests.

    SCHEMA/TABLE/0…0042-1a2b3c4d5e6f-1.parquet   rows of one table in one definition's columns (`change_rows`)
    _tidegate/changes/0…0042-0…0042.json         names the files of commit 42 (`manifests`)
    _tidegate/definitions/                       the columns and the key of each table, by version

`write` creates files that nothing names, DDLs are noted in memory, and `commit` puts the manifest that names
both, together with the position. So after a crash nothing has to be undone: readers do not see files that no
manifest names, and upkeep removes them. An interrupted DDL has changed nothing that a restart could see, and
runs again.

The process that puts a manifest under the next number is the writer. `recover` does so at once, and from then
on every earlier process is Fenced. That needs a conditional put: a bucket without one is refused. On a disk
the lock of the directory keeps others out in addition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying.net_effect import BagEffect
from tidegate.consumer.applying.stats import Stats
from tidegate.consumer.applying.target import Name, NetChanges, Parted, TableFailed
from tidegate.consumer.ddl.ddl_steps import Create, Dropped, Rewrite, Step
from tidegate.consumer.engine.position import Position, SetAside
from tidegate.consumer.lakehouse.definition_files import DefinitionFiles
from tidegate.consumer.lakehouse.directory_lock import OWN
from tidegate.consumer.lakehouse.lake_target import LakeValues
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.parquet.manifests import (
    ChangeFile,
    Commit,
    Entry,
    LoggedDdl,
    Manifest,
    ManifestChain,
    State,
)
from tidegate.consumer.parquet.steps import LogSteps, LogTable, in_log
from tidegate.consumer.parquet.upkeep import DATA_FILE, LogUpkeep, data_file
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal, InvalidInput
from tidegate.sink.lakehouse.own_tables import entries_of, listed
from tidegate.sink.lakehouse.store import SNAPSHOTS, Store, create_own
from tidegate.sink.lakehouse.takeover import Writer
from tidegate.sink.reader.changes import COMMIT_TS

WRITERS: Final = 2
"""Threads; each writes the file of one table at a time."""
NO_UPKEEP: Final = Upkeep()


def check_root(store: Store) -> None:
    """InvalidInput if the root of a new log holds anything."""
    if ManifestChain(store).find() is not None:
        return
    others = [name for name in entries_of(store, "") if name not in (OWN, "lost+found")]
    others += [SNAPSHOTS] if store.has_folder(SNAPSHOTS) else []
    if others:
        kind = "prefix" if store.shared else "directory"
        raise InvalidInput(
            f"the target {kind} holds something else",
            where=f"{store}: {listed(others)}",
            why=f"it is no change log, and a target owns its {kind}",
            fix=f"choose a new or empty {kind}",
        )


def tables_of(state: State, position: Position, files: DefinitionFiles) -> dict[Name, LogTable]:
    """The tables of a state, with their definitions."""
    found = {}
    for schema, table, path in state.tables:
        known, number = files.find(path, lambda columns: True, [f"of {schema}.{table}"], position)
        found[schema, table] = LogTable(known, path, number)
    return found


class LogTarget:
    """One change log."""

    def __init__(self, store: Store, upkeep: Upkeep = NO_UPKEEP, consumer: str = "") -> None:
        """`consumer`: its name, for a log in an object store."""
        self.stats = Stats()
        self.values = LakeValues(self.stats.losses)
        self.store, self._upkeep, self._consumer = store, upkeep, consumer
        self._tables: dict[Name, LogTable] = {}
        self._files = DefinitionFiles(store)
        self._steps = LogSteps(self._files, self.stats, self._tables, self._check_folder)
        self._chain = ManifestChain(store)
        self._log_upkeep = LogUpkeep(store, self._chain, upkeep)
        self._round: Iterator[int] | None = None
        """The upkeep round that is under way."""
        self._entries: list[Entry] = []
        """The entries of the next manifest."""
        self._ddl: tuple[DdlMessage, list[dict[str, Any]]] | None = None
        """The DDL that is being executed, and what the log says of its steps."""
        self._written = 0
        """Files written since the last commit."""
        self._counting = threading.Lock()
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="log")

    @property
    def definitions(self) -> Mapping[Name, Definition]:
        """The definition of every table, by name."""
        return {name: table.definition for name, table in self._tables.items()}

    @property
    def replays_sql(self) -> bool:
        """False: columns that no header describes are derived from the rows."""
        return False

    @property
    def every_change(self) -> bool:
        """True: the rows of the tables are the changes."""
        return True

    @property
    def begun(self) -> None:
        """None: nothing of an interrupted write can be seen."""

    def definition(self, name: Name) -> Definition | None:
        """The definition of one table; None when the target does not have it."""
        table = self._tables.get(name)
        return table.definition if table is not None else None

    def close(self) -> None:
        """Wait for running writes."""
        self._pool.shutdown()

    # --- start

    def recover(self) -> Position | None:
        """Take the log over. Returns the newest position, or None if nothing was ever committed."""
        # Before the takeover, because its manifest makes any folder look like a log.
        check_root(self.store)
        self.store.make_folder(OWN)
        state = self._chain.begin(Writer.of_this_process(self._consumer)).state
        self._log_upkeep.begin()
        # Only now: an earlier writer cannot name a definition any more.
        self._files.read()
        self._round, self._written = None, 0
        self._ddl = None
        self._entries.clear()
        self._tables.clear()
        self._steps.dropped[:] = state.dropped
        if state.position is None:
            return None
        position = Position.from_json(state.position)
        self._tables.update(tables_of(state, position, self._files))
        return position

    def _check_folder(self, path: str) -> None:
        """Fatal if a table's folder has something that is not a log's."""
        others = [name for name in entries_of(self.store, path) if not DATA_FILE.fullmatch(name)]
        if others:
            raise Fatal(
                "a folder that is not the target's is where a table belongs",
                where=f"{self.store.uri(path)}: {listed(others)}",
                why="a change log did not make these files",
                fix="move it away and restart the consumer; it continues at its newest snapshot",
            )

    # --- rows

    def write(self, tables: Sequence[NetChanges], reached: Position, parted: Sequence[Parted] = ()) -> None:
        """Write a file for each table, or for each part of a table. No manifest names them yet.

        Raises the first failure, but only when no writer runs any more.
        """
        work = [self._pool.submit(self._write_table, net_changes) for net_changes in tables]
        work += [self._pool.submit(self._write_parts, table) for table in parted]
        wait(work)
        made = [entry for done in work for entry in done.result()]
        self._entries += made

    def _write_parts(self, table: Parted) -> list[ChangeFile]:
        parts = (self._write_table(partial(table.net_changes, part)) for part in range(table.parts))
        return [file for made in parts for file in made]

    def _write_table(self, net_changes: NetChanges) -> list[ChangeFile]:
        # Before the rows are computed, which is the costly part.
        self._chain.check_writer()
        changes = net_changes()
        if changes is None:
            return []
        assert isinstance(changes.effect, BagEffect), "a log gets rows of `change_rows`"
        known, rows = changes.definition, changes.effect.inserts
        if rows.num_rows == 0:
            return []
        table = self._tables[known.schema, known.table]
        key = f"{table.path}/{self._next_name()}"
        if not create_own(self.store, key, _parquet(rows)):
            raise Fatal(
                "somebody else has written a file of the change log",
                where=self.store.uri(key),
                why="its name has the random word of this process",
                fix="end the other writer, and restart the consumer",
            )
        with self._counting:
            self.stats.commits += 1
        ends = pc.min_max(rows[COMMIT_TS]).as_py()
        return [
            ChangeFile(
                *(key, known.schema, known.table, known.table_id, table.number, known.keys),
                *(ends["min"], ends["max"], rows.num_rows),
            )
        ]

    def _next_name(self) -> str:
        newest = self._chain.newest
        assert newest is not None, "`recover` comes first"
        with self._counting:
            self._written += 1
            return data_file(newest.number + 1, newest.state.writer.word, self._written)

    # --- DDL

    def has_done(self, message: DdlMessage) -> bool:
        """False: a DDL that no manifest names was not executed."""
        return False

    def intend(self, message: DdlMessage, steps: Sequence[Step]) -> None:
        """Note the DDL for the next manifest. Nothing durable: an interrupted DDL leaves nothing behind."""
        self._chain.check_writer()
        self._end_ddl()
        self._ddl = message, []

    def _end_ddl(self) -> None:
        if self._ddl is not None:
            message, said = self._ddl
            named = message.ts, message.schema, message.table, message.query
            self._entries.append(LoggedDdl(*named, tuple(said)))
            self._ddl = None

    def dropped(self) -> dict[int, Dropped]:
        """By table id, the tables that a RECOVER TABLE can name: the log has their changes, unless it was
        shortened since.
        """
        return {table_id: Dropped("", 0) for table_id in self._steps.dropped}

    def execute(self, step: Step) -> None:
        """Execute one step of a DDL, or one by which rows change a table that no DDL describes."""
        self._chain.check_writer()
        self._steps.execute(step)
        said = in_log(step, self._tables)
        if self._ddl is not None:
            self._ddl[1].append(said)
            return
        assert isinstance(step, Create | Rewrite), "rows can only make a table, or give it columns"
        made = step.definition
        with self._counting:
            self._entries.append(LoggedDdl(made.version, made.schema, made.table, "", (said,)))

    # --- commit point

    def advance(self, position: Position) -> None:
        """Ends the DDL. The manifest of the next commit has it, and the position."""
        self._end_ddl()

    def commit(self, position: Position) -> Position:
        """Put the manifest that names everything since the last one. Fenced if another process has put it.

        Returns the position with the numbers of the definitions.
        """
        newest = self._chain.newest
        assert newest is not None, "`recover` comes first"
        tables = [(*name, table) for name, table in sorted(self._tables.items())]
        position = replace(position, definitions={table.path: table.number for _, _, table in tables})
        state = State(
            newest.state.writer,
            position.to_json(),
            tuple((schema, name, table.path) for schema, name, table in tables),
            tuple(self._steps.dropped),
            self._log_upkeep.clean,
            self._log_upkeep.removed,
        )
        number = newest.number + 1
        commit = Commit(number, position.ts, newest.state.writer.word, tuple(self._entries))
        self._chain.append(Manifest(commit, state))
        # Only after the manifest is put: until then nothing names these rows.
        self._entries.clear()
        self._written = 0
        return position

    def set_aside(self, failed: TableFailed, begin: Position) -> tuple[SetAside, ...]:
        """Notes nothing: `recover` forgets what no manifest names, of all tables."""
        return failed.entries(begin)

    def take_back(self, names: Sequence[Name]) -> None:
        """InvalidInput: nobody can add the missing changes."""
        raise InvalidInput(
            "a table of a change log cannot be taken back",
            where=", ".join(".".join(name) for name in names),
            why="the log would lack changes of it, and no other program can add them",
            fix="begin a new log, for example with --include for these tables",
        )

    def tidy(self, position: Position) -> bool:
        """Do upkeep for about `Upkeep.piece_s`. Returns whether the round is finished."""
        until = time.monotonic() + self._upkeep.piece_s
        if self._round is None:
            self._round = self._log_upkeep.round(self._folders)
        for _ in self._round:
            if time.monotonic() >= until:
                return False
        self._round = None
        return True

    def _folders(self) -> list[str]:
        schemas = [name for name in self.store.folders("") if not name.startswith((".", "_"))]
        return [f"{schema}/{table}" for schema in schemas for table in self.store.folders(schema)]


def _parquet(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    return bytes(sink.getvalue())
