"""A MySQL or MariaDB database as a target: rows by lanes, and a position that moves with them.

    write    begin (durable: which rows, by their digests) -> each lane one transaction -> the position
    DDL      intend -> its statements, each once -> the position
    restart  take over, read; of a write that was begun, the lanes that are missing

A lane is a connection. Each table has one, by a hash of its name, so that its deletes and inserts are one
transaction; all deletes come before all inserts, so that a unique value is free before another row takes it.

Nothing is tried again in the connection in which it failed. After an error that may pass, the consumer takes
the target over from itself, reads which lanes are through, and writes the others one after the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pymysql

from tidegate.codec.base import DdlMessage
from tidegate.consumer import ddl_plan, definition
from tidegate.consumer.ddl_plan import Dropped
from tidegate.consumer.definition import Definition
from tidegate.consumer.mysql.ddl import DdlRun
from tidegate.consumer.mysql.literals import (
    Digest,
    MySqlValues,
    bag_deletes,
    check_length,
    deletes,
    inserts,
)
from tidegate.consumer.mysql.progress import Held, Progress
from tidegate.consumer.mysql.session import Connection, MySqlServer, translated
from tidegate.consumer.mysql.tables import qualified
from tidegate.consumer.net_effect import Effect
from tidegate.consumer.position import Position
from tidegate.consumer.stats import Stats
from tidegate.consumer.target import Name, Settle, TableChanges
from tidegate.errors import Fatal, InvalidInput, Retryable

LANES: Final = 4
SETTLERS: Final = 2
"""Threads that read, convert and render rows."""
PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Before each further attempt of a write that failed in a way that may pass; the last one ends the run."""


@dataclass(slots=True)
class Lane:
    """What one lane writes in one batch, or a part of it: nothing can fail any more but the target."""

    digest: Digest = field(default_factory=Digest)
    deletes: list[tuple[bytes, int | None]] = field(default_factory=list)
    """With how many rows each must find, where that is known."""
    inserts: list[bytes] = field(default_factory=list)

    def add(self, part: Lane) -> None:
        """Write these, too."""
        self.digest.join(part.digest)
        self.deletes += part.deletes
        self.inserts += part.inserts


class MySqlTarget:
    """One consumer's tables in one database server. Take it over by `recover`."""

    def __init__(
        self,
        server: MySqlServer,
        consumer: str,
        lanes: int = LANES,
        *,
        adopting: bool = False,
        skipped: Set[int] = frozenset(),
    ) -> None:
        """`adopting`, `skipped`: see `DdlRun`."""
        self.stats, self.values = Stats(), MySqlValues()
        self._adopting, self._skipped, self._asking = adopting, skipped, threading.Lock()
        self._server, self._lanes = server, lanes
        self._progress = Progress(server, consumer)
        self._definitions: dict[Name, Definition] = {}
        self._held = Held(None, None, None, {})
        """What the last taking over found."""
        self._begun: Position | None = None
        self._packet = 0
        """The server's max_allowed_packet, in bytes."""
        self._ddl: DdlRun | None = None
        self._connections: dict[int, Connection] = {}
        self._settlers = ThreadPoolExecutor(SETTLERS, thread_name_prefix="settle")
        self._writers = ThreadPoolExecutor(lanes, thread_name_prefix="lane")

    @property
    def definitions(self) -> Mapping[Name, Definition]:
        """Every table's, by its name."""
        return self._definitions

    def definition(self, name: Name) -> Definition | None:
        """That of one table."""
        return self._definitions.get(name)

    @property
    def replays_sql(self) -> bool:
        """It is a database."""
        return True

    @property
    def begun(self) -> Position | None:
        """Where the write leads to that `recover` found begun."""
        return self._begun

    def recover(self) -> Position | None:
        """Take the target over and read."""
        self._held = held = self._progress.take_over()
        ((self._packet,),) = self._progress.rows("SELECT @@max_allowed_packet")
        self._definitions = {
            name: definition.from_json(text.encode()) for name, text in held.definitions.items()
        }
        self._begun = Position.from_json(held.begun) if held.begun is not None else None
        self._ddl = DdlRun(
            self._progress, self._definitions, held.ddl, adopting=self._adopting, skipped=self._skipped
        )
        return Position.from_json(held.position) if held.position is not None else None

    # --- rows

    def write(self, tables: Sequence[Settle], reached: Position) -> None:
        """Write by lanes, a transaction each, and move the position."""
        # Each table is rendered where it is settled: its rows go when its statements are there.
        work = [self._settlers.submit(self._ready, settle) for settle in tables]
        wait(work)
        lanes: dict[int, Lane] = {}
        for number, part in filter(None, (done.result() for done in work)):
            lanes.setdefault(number, Lane()).add(part)
        position = reached.to_json()
        if not lanes and self._begun is None:
            self._patiently(lambda attempt: self._progress.move(position))
            return
        digests = {number: str(lane.digest) for number, lane in lanes.items()}

        number = self._progress.number

        def attempt_of(attempt: int) -> None:
            if self._progress.has_ended(number):
                return  # the last attempt did it, and its answer was lost
            missing = self._progress.begin(position, digests)
            self._write_lanes({number: lanes[number] for number in missing}, side_by_side=attempt == 0)
            self._progress.end(position)

        self._patiently(attempt_of)
        self._begun = None
        self.stats.commits += 1

    def _patiently(self, attempt_of: Callable[[int], None]) -> None:
        """Try something that may be done twice, until no error that may pass comes; see `PAUSES_S`.

        Whether a COMMIT whose answer was lost took effect is a plain question to a new connection.
        """
        for attempt in range(len(PAUSES_S) + 1):
            try:
                if attempt:
                    self._close_lanes()
                    self._held = self._progress.take_again()
                attempt_of(attempt)
                return
            except Retryable:
                if attempt == len(PAUSES_S):
                    raise
                time.sleep(PAUSES_S[attempt])

    def _lane_of(self, table: Definition) -> int:
        """The same in every process and release: a restart must deal the same rows to the same lanes."""
        hashed = hashlib.blake2b(f"{table.schema}\0{table.table}".encode(), digest_size=8).digest()
        return int.from_bytes(hashed) % self._lanes

    def _ready(self, settle: Settle) -> tuple[int, Lane] | None:
        """The statements of one table, and the number of its lane."""
        changes = settle()
        return (self._lane_of(changes.definition), self._render(changes)) if changes is not None else None

    def _render(self, changes: TableChanges) -> Lane:
        lane, table, effect = Lane(), changes.definition, changes.effect
        name = qualified(table.schema, table.table)
        columns = {column.name: column for column in table.columns}
        own = [column for column in table.columns if column.name not in table.generated]
        if isinstance(effect, Effect):
            keys = [columns[key] for key in table.keys]
            known = effect.upserts.filter(~effect.fresh).select(table.keys)
            for gone in (effect.deletes, known):
                lane.deletes += [(text, None) for text in deletes(keys, gone, name, lane.digest)]
            fresh = effect.upserts
            # An adopted table may be newer than these rows: another row may have one of their values there.
            # That row got it later, so its own change is still to come on the topic, with all its values.
            for unique in table.uniques:
                if set(unique) != set(table.keys):
                    taken = [columns[one] for one in unique]
                    lane.deletes += [
                        (text, None) for text in deletes(taken, fresh.select(list(unique)), name, lane.digest)
                    ]
        else:
            lane.deletes += bag_deletes(own, effect.deletes, name, lane.digest)
            fresh = effect.inserts
        lane.inserts += inserts(own, fresh, name, lane.digest)
        texts = [text for text, _ in lane.deletes] + lane.inserts
        check_length(max(texts, key=len, default=b""), table.name, self._packet)
        return lane

    def _write_lanes(self, lanes: Mapping[int, Lane], *, side_by_side: bool) -> None:
        """Raises the first failure, when no lane writes any more."""
        work = []
        for number, lane in lanes.items():
            work.append(self._writers.submit(self._write_lane, number, lane))
            if not side_by_side:
                wait(work)
        wait(work)
        failures = [error for done in work if (error := done.exception()) is not None]
        self.stats.missing_deletes += sum(done.result() for done in work if done.exception() is None)
        if failures:
            raise failures[0]

    def _write_lane(self, number: int, lane: Lane) -> int:
        """One transaction; how many rows were to be deleted and not found."""
        missing = 0
        try:
            connection = self._connections.get(number)
            if connection is None:
                connection = self._connections[number] = self._progress.lane_connection(number)
            connection.begin()
            self._progress.lane(number, connection)
            for text, wanted in lane.deletes:
                found = _written(connection, text)
                missing += 0 if wanted is None else wanted - found
            for text in lane.inserts:
                _written(connection, text)
            connection.commit()
        except BaseException as error:
            if (broken := self._connections.pop(number, None)) is not None:
                with contextlib.suppress(pymysql.err.MySQLError):
                    broken.close()
            if isinstance(error, pymysql.err.MySQLError):
                raise translated(error, self._server) from error
            raise
        return missing

    # --- DDL

    def has_done(self, message: DdlMessage) -> bool:
        """Whether its last statement has run, before the last crash."""
        return self._run.has_done(message)

    def intend(self, message: DdlMessage, steps: Sequence[ddl_plan.Step]) -> None:
        """Render all of the DDL; each statement is noted before it runs."""
        self._patiently(lambda attempt: self._progress.check_lock())  # an idle connection may have been ended
        self._run.intend(message, steps)

    def execute(self, step: ddl_plan.Step) -> None:
        """Do the next step of the DDL that was intended, which is this one.

        Rows ask by a step of their own for a table of which no DDL told. It is not made, but may be there.
        """
        if not self._run.intended:
            with self._asking:  # several tables are settled at once, and one connection asks
                self._patiently(lambda attempt: self._run.asked(step))
            return

        def attempt_of(attempt: int) -> None:
            if attempt:
                self._run.resume(self._held.ddl)
            self._run.execute()

        self._patiently(attempt_of)

    def dropped(self) -> Mapping[int, Dropped]:
        """None: rows that a database drops are gone."""
        return {}

    def advance(self, position: Position) -> None:
        """Move the position over the DDLs that were executed."""
        self._patiently(lambda attempt: self._run.over(position.to_json()))

    @property
    def _run(self) -> DdlRun:
        assert self._ddl is not None, "recover comes first"
        return self._ddl

    # --- the end of a step

    def commit(self, position: Position) -> Position:
        """Store the position again: now its ts is that of a snapshot."""
        self._patiently(lambda attempt: self._progress.move(position.to_json()))
        return position

    def tidy(self, position: Position) -> None:
        """Nothing: what is kept does not grow."""

    def close(self) -> None:
        """End the connections."""
        self._settlers.shutdown()
        self._writers.shutdown()
        self._close_lanes()
        self._progress.close()

    def _close_lanes(self) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(pymysql.err.MySQLError):
                connection.close()
        self._connections.clear()


def _written(connection: Connection, text: bytes) -> int:
    """Run a statement that writes; how many rows it found. A warning is an error: a value is another."""
    found = int(connection.query(text))
    if connection._result is not None and connection._result.warning_count:
        warnings = connection.show_warnings()
        raise Fatal(
            "the target would store other values than these",
            where=text[:120].decode(errors="replace"),
            why="; ".join(str(one[-1]) for one in warnings[:3]),
            fix="compare the table's columns at the target with those at the source",
        )
    return found


@dataclass(frozen=True, slots=True)
class MySqlAddress:
    """A database server, and this consumer's name there."""

    server: MySqlServer
    consumer: str
    folder: Path
    lanes: int = LANES
    adopting: bool = False
    """Whether tables that are there already become this consumer's."""
    skipped: Set[int] = frozenset()
    """The ts of DDLs that somebody has run there in other words."""

    @property
    def row_mode(self) -> bool:
        """A value of a unique key may be taken in one partition before it is free in another."""
        return False

    @contextmanager
    def opened(self) -> Iterator[MySqlTarget]:
        """`recover` takes it over: whoever held the name is ended."""
        self._mark_folder()
        target = MySqlTarget(
            self.server, self.consumer, self.lanes, adopting=self.adopting, skipped=self.skipped
        )
        try:
            yield target
        finally:
            target.close()

    def _mark_folder(self) -> None:
        """Make the folder this consumer's own: another would remove rows on their way to this."""
        mark = self.folder / "consumer"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not mark.exists():
                mark.write_text(str(self))
            whose = mark.read_text()
        except OSError as error:
            raise InvalidInput(
                "the consumer's folder cannot be used",
                where=str(self.folder),
                why=error.strerror or str(error),
                fix="choose a --folder that can be made and written",
            ) from error
        if whose != str(self):
            raise InvalidInput(
                "the folder is another consumer's",
                where=str(self.folder),
                why=f"it is of {whose}, and this is {self}",
                fix="choose another --folder",
            )

    def __str__(self) -> str:
        return f"{self.server} as {self.consumer}"
