"""A MySQL or MariaDB database as a target: rows are written by lanes, and the position moves with them.

    write    begin (durable: which rows, by their digests) -> each lane one transaction -> the position
    DDL      intend -> its statements, each once -> the position
    restart  take over, read; write the missing lanes of a write that was begun

A lane is a connection (`lanes`). All deletes come before all inserts, so that a unique value is free before
another row takes it.

After an error that may pass, the consumer takes the target over from itself, reads which lanes are committed,
and writes the others one after the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying.own_folder import mark_folder
from tidegate.consumer.applying.stats import Stats
from tidegate.consumer.applying.target import Name, NetChanges, Parted, TableFailed, TargetStatus, blaming
from tidegate.consumer.ddl import ddl_steps
from tidegate.consumer.ddl.ddl_steps import Dropped
from tidegate.consumer.engine.position import Position, SetAside
from tidegate.consumer.mysql import found, set_aside
from tidegate.consumer.mysql.by_hand import MySqlByHand
from tidegate.consumer.mysql.ddl import DdlRun, begun_in
from tidegate.consumer.mysql.digest import Digest, kind_of
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.lanes import LANES, Lanes
from tidegate.consumer.mysql.literals import MySqlValues
from tidegate.consumer.mysql.parts import PartedLane, check_size, order
from tidegate.consumer.mysql.progress import Progress, TargetRecord
from tidegate.consumer.mysql.rendering import Statements, add_deletes, add_inserts, whole
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.table import definition
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.table.partition_spec import Transform
from tidegate.dispatcher.consistency import Visibility
from tidegate.errors import Fatal, Retryable

CHANGE_READERS: Final = 2
"""Threads that read, convert and render rows."""
PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses between attempts to write after an error that may pass; after the last attempt the error is
raised."""


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
        transaction_bytes: int | None = None,
        by_offset: bool = False,
    ) -> None:
        """`adopting`, `skipped`: see `DdlRun`; `transaction_bytes`: see `parts.check_size`.

        `by_offset`: partitions may be at different moments, so a table with another unique index than its key
        is refused.
        """
        self.stats, self.values = Stats(), MySqlValues()
        self._adopting, self._skipped, self._asking = adopting, skipped, threading.Lock()
        self._server, self._transaction_bytes = server, transaction_bytes
        self._by_offset = by_offset
        self._only_keyed: dict[Name, Definition] = {}
        """Tables without another unique index than their key, with the definition for which that was
        checked."""
        self._hold = Hold(server, consumer)
        self._progress = Progress(self._hold)
        self._lanes = Lanes(server, self._hold, self._progress, lanes, self.stats)
        self._definitions: dict[Name, Definition] = {}
        self._held = TargetRecord(None, None, None, {})
        """The record that the last takeover found."""
        self._begun: Position | None = None
        self._digest: type[Digest] = Digest
        """The kind of digests of the write that is being made."""
        self._packet = 0
        """The server's max_allowed_packet, in bytes."""
        self._ddl: DdlRun | None = None
        self._change_readers = ThreadPoolExecutor(CHANGE_READERS, thread_name_prefix="changes")

    @property
    def definitions(self) -> Mapping[Name, Definition]:
        """The definition of every table, by name."""
        return self._definitions

    def definition(self, name: Name) -> Definition | None:
        """The definition of one table; None: it is not in the target."""
        return self._definitions.get(name)

    @property
    def replays_sql(self) -> bool:
        """True: a database can run SQL."""
        return True

    @property
    def every_change(self) -> bool:
        """False: the tables show the newest state of each row."""
        return False

    @property
    def begun(self) -> Position | None:
        """The position of the interrupted write that `recover` found."""
        return self._begun

    def recover(self) -> Position | None:
        """Take the target over, and read what it stores."""
        if self._ddl is None:
            held = self._progress.take_over()
        else:
            # After an error: what it has left in the lanes is rolled back, and a consumer that has taken the
            # target over meanwhile keeps it.
            self._lanes.disconnect()
            held = self._progress.take_again()
        self._held = held
        ((self._packet,),) = self._hold.rows("SELECT @@max_allowed_packet")
        self._definitions = {
            name: definition.from_json(text.encode()) for name, text in held.definitions.items()
        }
        self._begun = Position.from_json(held.begun) if held.begun is not None else None
        self._ddl = DdlRun(
            self._progress, self._definitions, held.ddl, adopting=self._adopting, skipped=self._skipped
        )
        return Position.from_json(held.position) if held.position is not None else None

    # --- rows

    def write(self, tables: Sequence[NetChanges], reached: Position, parted: Sequence[Parted] = ()) -> None:
        """Write by lanes, a transaction each, and move the position; `parted`: see `parts`."""
        # An earlier release may have begun the write: its digests are compared with those of this run.
        self._digest = kind_of(self._progress.begun_digests)
        # A table is rendered by the thread that reads it, so its rows are released once it has statements.
        work = [self._change_readers.submit(self._ready, net_changes) for net_changes in tables]
        wait(work)
        # Everything is rendered before the batch begins, because the digests of all lanes are stored before
        # the first row is written.
        lanes: dict[int, Statements] = {}
        for number, part in filter(None, (done.result() for done in work)):
            lanes.setdefault(number, Statements(self._digest())).add(part)
        position = reached.to_json()
        # Without rows nothing must be durable first. A write that was begun must be ended even so.
        if not lanes and not parted and self._begun is None:
            self._patiently(lambda attempt: self._progress.move(position))
            return
        # Before the first attempt: if the answer to its last COMMIT is lost, this number has ended.
        number = self._progress.number
        write = self._writing_parts(lanes, parted, position) if parted else self._writing(lanes, position)

        def attempt_of(attempt: int) -> None:
            # If the batch has ended, the last attempt succeeded and only its answer was lost.
            if not self._progress.has_ended(number):
                write(attempt)
                # After all lanes: a position that moved before a lane has committed would lose that lane's
                # rows.
                self._progress.end(position)

        self._patiently(attempt_of)
        self._begun = None
        self.stats.commits += 1

    def _writing(self, lanes: Mapping[int, Statements], position: str) -> Callable[[int], None]:
        digests = {number: str(lane.digest) for number, lane in lanes.items()}

        def write(attempt: int) -> None:
            # Durable before the first row: after a crash the digests prove that the rows are the same.
            missing = self._progress.begin(position, digests)
            work = {number: partial(self._lanes.write, number, lanes[number]) for number in missing}
            # Later attempts write one lane after the other, so that no lane waits for another one's locks.
            self._lanes.run(work, side_by_side=attempt == 0)

        return write

    def _writing_parts(
        self, lanes: Mapping[int, Statements], parted: Sequence[Parted], position: str
    ) -> Callable[[int], None]:
        split = check_size(parted, self._transaction_bytes, self._lanes.count, str(self._server))
        # Before the batch begins: rows may be wrong, and a table that is not known yet needs a query in the
        # control connection, which must not fail while lanes write.
        work = [self._change_readers.submit(table.prepare) for table in parted]
        wait(work)
        for done in work:
            done.result()
        for table in parted:
            if (known := self._definitions.get(table.name)) is not None:
                self._check_uniques(known)
        of_lanes: dict[int, list[Parted]] = {number: [] for number in lanes}
        for table in parted:
            of_lanes.setdefault(self._lanes.of(*table.name), []).append(table)
        made = {
            number: order(lanes.get(number) or Statements(self._digest()), tables, self._part)
            for number, tables in of_lanes.items()
        }

        def write(attempt: int) -> None:
            held = self._progress.begin_parts(position, list(made))
            work = [PartedLane(number, made[number], held[number], self._digest()) for number in made]
            for lane in work:
                lane.compare(self._progress)
            left = {
                lane.number: partial(self._lanes.write_parts, lane, self._change_readers, split=split)
                for lane in work
                if not lane.through
            }
            self._lanes.run(left, side_by_side=attempt == 0)

        return write

    def _patiently(self, attempt_of: Callable[[int], None]) -> None:
        """Retry something that may be done twice, until it succeeds or fails for good; see `PAUSES_S`.

        If the answer to a COMMIT was lost, a new connection reads whether it took effect.
        """
        for attempt in range(len(PAUSES_S) + 1):
            try:
                if attempt:
                    # First, because the takeover waits for the locks of the lanes, which these connections
                    # hold.
                    self._lanes.disconnect()
                    self._held = self._progress.take_again()
                attempt_of(attempt)
                return
            except Retryable:
                if attempt == len(PAUSES_S):
                    raise
                time.sleep(PAUSES_S[attempt])

    def _ready(self, net_changes: NetChanges) -> tuple[int, Statements] | None:
        """The statements of one table, and the number of its lane."""
        changes = net_changes()
        if changes is None:
            return None
        table = changes.definition
        with blaming((table.schema, table.table)):
            self._check_uniques(table)
            made = whole(changes, self._packet, self._digest())
        return self._lanes.of(table.schema, table.table), made

    def _part(self, table: Parted, part: int, inserting: bool) -> Statements:
        made = Statements(self._digest())
        changes = table.net_changes(part) if inserting or table.may_delete(part) else None
        if changes is not None:
            (add_inserts if inserting else add_deletes)(made, changes, self._packet)
        return made

    def _check_uniques(self, table: Definition) -> None:
        """By offset: Fatal for a table that has another unique index than its key."""
        name = (table.schema, table.table)
        # By identity: each DDL makes another object, whose indexes are checked again.
        if not self._by_offset or self._only_keyed.get(name) is table:
            return

        def ask(attempt: int) -> None:
            seen = found.look(self._hold.rows, name)
            others = [one.name for one in seen.uniques if set(one.columns) != set(table.keys)] if seen else []
            if others:
                raise Fatal(
                    "a table with a unique index in addition to its key cannot be written without watermarks",
                    where=f"table {table.name}, index {', '.join(others)}",
                    why="a row may take a unique value before the row of another partition releases it",
                    fix="drop the index at the target, or read a topic with watermarks without --mode row",
                )

        with self._asking:  # several threads read tables, but the control connection serves one at a time
            self._patiently(ask)
        self._only_keyed[name] = table

    # --- DDL

    def has_done(self, message: DdlMessage) -> bool:
        """Whether the DDL's last statement has run, before the last crash."""
        return self._run.has_done(message)

    def intend(self, message: DdlMessage, steps: Sequence[ddl_steps.Step]) -> None:
        """Render the whole DDL; each statement is noted before it runs."""

        def attempt_of(attempt: int) -> None:
            if attempt:
                # If the DDL needs no statement, the lost attempt may have noted it as done.
                self._run.resume(self._held.ddl)
            self._hold.check_lock()  # an idle connection may have been ended
            self._run.intend(message, steps)

        self._patiently(attempt_of)

    def execute(self, step: ddl_steps.Step) -> None:
        """Execute the next step of the intended DDL, which is this one.

        Rows of a table that no DDL announced bring a step of their own. The table is not created, but an
        existing one can be adopted.
        """
        if not self._run.intended:
            with self._asking:  # several threads read tables, but the control connection serves one at a time
                self._patiently(lambda attempt: self._run.asked(step))
            return

        def attempt_of(attempt: int) -> None:
            if attempt:
                # The takeover has read which statement was begun.
                self._run.resume(self._held.ddl)
            self._run.execute()

        self._patiently(attempt_of)

    def dropped(self) -> Mapping[int, Dropped]:
        """Empty: rows that a database drops cannot be restored."""
        return {}

    def advance(self, position: Position) -> None:
        """Move the position past the executed DDLs."""
        self._patiently(lambda attempt: self._run.over(position.to_json()))

    @property
    def _run(self) -> DdlRun:
        assert self._ddl is not None, "recover comes first"
        return self._ddl

    # --- the end of a step

    def commit(self, position: Position) -> Position:
        """Store the position again, now with the ts of a snapshot."""
        self._patiently(lambda attempt: self._progress.move(position.to_json()))
        return position

    # --- tables that are set aside

    def set_aside(self, failed: TableFailed, begin: Position) -> tuple[SetAside, ...]:
        """See `set_aside.note`."""
        entries: tuple[SetAside, ...] = ()

        def attempt_of(attempt: int) -> None:
            nonlocal entries
            if not attempt:
                # Waits for a transaction whose end is not known, and reads which lanes are committed.
                self._lanes.disconnect()
                self._held = self._progress.take_again()
            lanes = sorted({self._lanes.of(*name) for name in failed.names})
            entries = set_aside.note(self._progress, self._held, failed, begin, lanes, self._run.attempted)

        self._patiently(attempt_of)
        return entries

    def take_back(self, names: Sequence[Name]) -> None:
        """Forget their entries and definitions: their next row or DDL adopts them."""
        set_aside.take_back(self._progress, self._held, names)

    def tidy(self, position: Position) -> bool:
        """True, without doing anything: what is stored does not grow."""
        return True

    def close(self) -> None:
        """Close the connections."""
        self._change_readers.shutdown()
        self._lanes.close()
        self._hold.close()


@dataclass(frozen=True, slots=True)
class MySqlAddress:
    """A database server, and this consumer's name there."""

    server: MySqlServer
    consumer: str
    folder: Path
    lanes: int = LANES
    adopting: bool = False
    """Whether existing tables become this consumer's."""
    skipped: Set[int] = frozenset()
    """The ts of DDLs that a person has executed there in another form."""
    transaction_bytes: int | None = None
    """See `parts.check_size`."""
    by_offset: bool = False
    """Whether the topic is read by offset, without watermarks."""

    @property
    def row_mode(self) -> bool:
        """Only without watermarks: otherwise a unique value may be taken in one partition before it is free
        in another.

        Without watermarks, tables with such a unique key are refused one by one.
        """
        return self.by_offset

    @property
    def transforms(self) -> Set[Transform]:
        """None: tables are partitioned only as they are upstream."""
        return frozenset()

    @property
    def seen(self) -> Visibility:
        """With one lane, whole steps; with several, each table's part of a step, as a table has one lane."""
        return Visibility.TRANSACTIONS if self.lanes == 1 else Visibility.TABLES

    @contextmanager
    def opened(self) -> Iterator[MySqlTarget]:
        """Open the target. `recover` takes it over, and ends an earlier consumer of the same name."""
        mark_folder(self.folder, str(self))
        target = MySqlTarget(
            *(self.server, self.consumer, self.lanes),
            adopting=self.adopting,
            skipped=self.skipped,
            transaction_bytes=self.transaction_bytes,
            by_offset=self.by_offset,
        )
        try:
            yield target
        finally:
            target.close()

    def look(self) -> TargetStatus:
        """The content of this consumer's row, and which connection has its lock."""
        held, holder = Progress(Hold(self.server, self.consumer)).look_on()
        doing = ""
        if held.begun is not None:
            upto = max(part.applied for part in Position.from_json(held.begun).partitions.values())
            doing = f"a write up to ts {upto}"
        elif (query := begun_in(held.ddl)) is not None:
            doing = f"a DDL, {' '.join(query.split())[:80]}"
        return TargetStatus(Position.from_json(held.position) if held.position else None, holder, doing)

    def definitions(self) -> Mapping[Name, Definition]:
        """The definitions in the consumer's own tables."""
        kept = Progress(Hold(self.server, self.consumer)).definitions_kept()
        return {name: definition.from_json(text.encode()) for name, text in kept.items()}

    def by_hand(self) -> MySqlByHand:
        """SQL, as the consumer itself would write it."""
        return MySqlByHand()

    def __str__(self) -> str:
        return f"{self.server} as {self.consumer}"
