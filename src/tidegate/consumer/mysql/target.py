"""A MySQL, MariaDB or TiDB database as a target: rows are written by lanes, and the position moves with them.

    write    begin (durable: which rows, by their digests) -> each lane one transaction -> the position
    DDL      intend -> its statements, each once -> the position
    restart  take over, read; write the missing lanes of a write that was begun

A lane is a connection (`lanes`). All deletes come before all inserts, so that a unique value is free before
another row takes it.

After an error that may pass, the consumer takes the target over from itself, reads which lanes are committed,
and writes the others one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying.own_folder import mark_folder
from tidegate.consumer.applying.stats import Stats
from tidegate.consumer.applying.target import Name, NetChanges, Parted, TableFailed, TargetStatus
from tidegate.consumer.ddl import ddl_steps
from tidegate.consumer.ddl.ddl_steps import Dropped
from tidegate.consumer.engine.position import Position, SetAside
from tidegate.consumer.mysql import set_aside
from tidegate.consumer.mysql.atomicity import LANES
from tidegate.consumer.mysql.attempts import Attempts
from tidegate.consumer.mysql.by_hand import MySqlByHand
from tidegate.consumer.mysql.ddl import DdlRun
from tidegate.consumer.mysql.ddl_note import begun_in
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.lanes import Lanes
from tidegate.consumer.mysql.literals import MySqlValues
from tidegate.consumer.mysql.progress import Progress
from tidegate.consumer.mysql.row_writer import RowWriter
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.unique_checks import UniqueChecks
from tidegate.consumer.table import definition
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.table.partition_spec import Transform
from tidegate.dispatcher.consistency import Visibility


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
        spreads: bool = False,
    ) -> None:
        """`adopting`, `skipped`: see `DdlRun`; `transaction_bytes`: see `parts.check_size`; `spreads`: see
        `MySqlAddress`.

        `by_offset`: partitions may be at different moments, so a table with another unique index than its key
        is refused.
        """
        self.stats, self.values = Stats(), MySqlValues()
        self._adopting, self._skipped = adopting, skipped
        self._hold = Hold(server, consumer)
        self._progress = Progress(self._hold)
        batch = self._progress.batch
        self._lanes = Lanes(server, self._hold, batch, lanes, self.stats, spreads=spreads)
        self._definitions: dict[Name, Definition] = {}
        self._attempts = Attempts(self._progress, self._lanes)
        uniques = UniqueChecks(self._hold, self._attempts, by_offset=by_offset)
        self._rows = RowWriter(
            *(self._hold, self._progress, self._lanes, self._attempts, uniques),
            self.definition,
            transaction_bytes,
        )
        self._begun: Position | None = None
        self._ddl: DdlRun | None = None

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
            self._attempts.held = self._progress.take_over()
        else:
            # After an error: what it has left in the lanes is rolled back, and a consumer that has taken the
            # target over meanwhile keeps it.
            self._attempts.take_again()
        held = self._attempts.held
        ((self._rows.packet,),) = self._hold.rows("SELECT @@max_allowed_packet")
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
        if self._rows.write(tables, reached, parted, is_begun=self._begun is not None):
            self._begun = None
            self.stats.commits += 1

    # --- DDL

    def has_done(self, message: DdlMessage) -> bool:
        """Whether the DDL's last statement has run, before the last crash."""
        return self._run.has_done(message)

    def intend(self, message: DdlMessage, steps: Sequence[ddl_steps.Step]) -> None:
        """Render the whole DDL; each statement is noted before it runs."""

        def attempt_of(attempt: int) -> None:
            if attempt:
                # If the DDL needs no statement, the lost attempt may have noted it as done.
                self._run.resume(self._attempts.held.ddl)
            self._hold.check_lock()  # an idle connection may have been ended
            self._run.intend(message, steps)

        self._attempts.run(attempt_of)

    def execute(self, step: ddl_steps.Step) -> None:
        """Execute the next step of the intended DDL, which is this one.

        Rows of a table that no DDL announced bring a step of their own. The table is not created, but an
        existing one can be adopted.
        """
        if not self._run.intended:
            self._attempts.run_in_turn(lambda attempt: self._run.asked(step))
            return

        def attempt_of(attempt: int) -> None:
            if attempt:
                # The takeover has read which statement was begun.
                self._run.resume(self._attempts.held.ddl)
            self._run.execute()

        self._attempts.run(attempt_of)

    def dropped(self) -> Mapping[int, Dropped]:
        """Empty: rows that a database drops cannot be restored."""
        return {}

    def advance(self, position: Position) -> None:
        """Move the position past the executed DDLs."""
        self._attempts.run(lambda attempt: self._run.over(position.to_json()))

    @property
    def _run(self) -> DdlRun:
        assert self._ddl is not None, "recover comes first"
        return self._ddl

    # --- the end of a step

    def commit(self, position: Position) -> Position:
        """Store the position again, now with the ts of a snapshot."""
        self._attempts.run(lambda attempt: self._progress.move(position.to_json()))
        return position

    # --- tables that are set aside

    def set_aside(self, failed: TableFailed, begin: Position) -> tuple[SetAside, ...]:
        """See `set_aside.note`."""
        entries: tuple[SetAside, ...] = ()

        def attempt_of(attempt: int) -> None:
            nonlocal entries
            if not attempt:
                # Waits for a transaction whose end is not known, and reads which lanes are committed.
                self._attempts.take_again()
            lanes = sorted({lane for name in failed.names for lane in self._rows.lanes_of(name)})
            entries = set_aside.note(
                self._progress, self._attempts.held, failed, begin, lanes, self._run.attempted
            )

        self._attempts.run(attempt_of)
        return entries

    def take_back(self, names: Sequence[Name]) -> None:
        """Forget their entries and definitions: their next row or DDL adopts them."""
        set_aside.take_back(self._progress, self._attempts.held, names)

    def tidy(self, position: Position) -> bool:
        """True, without doing anything: what is stored does not grow."""
        return True

    def close(self) -> None:
        """Close the connections."""
        self._rows.close()
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
    spreads: bool = False
    """Whether the rows of a table may be in several lanes: atomicity `none`."""

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
        """With one lane, whole steps; with several, each table's part of a step, unless tables are spread."""
        if self.lanes == 1:
            return Visibility.TRANSACTIONS
        return Visibility.ROWS if self.spreads else Visibility.TABLES

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
            spreads=self.spreads,
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
        """SQL, as the consumer itself would write it. Asks the server which kind it is."""
        hold = Hold(self.server, self.consumer)
        with hold.looking():
            return MySqlByHand(hold.dialect)

    def __str__(self) -> str:
        return f"{self.server} as {self.consumer}"
