"""The interface of a target: the verbs by which the consumer writes.

    recover -> the position up to which all is applied; `begun`: a later write that was interrupted
    write   -> the changes of some tables, all above that position
    intend, execute, advance -> a DDL, after all rows before it
    commit  -> the position is a snapshot: all tables are at one ts

There are two kinds of targets. Delta, Iceberg and a change log can undo: they hold changes that no snapshot
names until `commit`, and `recover` restores the newest snapshot. A database cannot: there each `write` and
each `advance` moves the position, and an interrupted write is repeated with exactly the same rows.

A target knows nothing of topics, protocols and partitions: it gets net effects (`net_effect`), or rows of a
change log (`change_rows`), and planned steps (`ddl_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying.changes import Values
from tidegate.consumer.applying.net_effect import BagEffect, Effect
from tidegate.consumer.applying.stats import Stats
from tidegate.consumer.ddl.ddl_steps import Dropped, Step
from tidegate.consumer.engine.position import Position, SetAside
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.table.partition_spec import Transform
from tidegate.dispatcher.consistency import Visibility
from tidegate.errors import Fatal, TidegateError

REASON_MAX: Final = 500
"""Characters of the reason that is stored for a table that is set aside."""
QUERY_SHOWN: Final = 200
Name: TypeAlias = tuple[str, str]
"""Schema and table."""


class TableFailed(Fatal):
    """The changes of some tables cannot be applied, and those of the others can: these may be set aside.

    It says the same as its `cause`.
    """

    def __init__(self, cause: TidegateError, names: Iterable[Name], ddl: DdlMessage | None = None) -> None:
        """`names`: at the target. `ddl`: the DDL that cannot be executed; None: rows cannot be written."""
        super().__init__(cause.what, where=cause.where, why=cause.why, fix=cause.fix)
        self.cause, self.names, self.ddl = cause, tuple(dict.fromkeys(names)), ddl

    def entries(self, position: Position) -> tuple[SetAside, ...]:
        """The entries of these tables, if the target has everything up to `position` and nothing above it."""
        why = f"{self.what}: {self.why}" if self.why else self.what
        at = f" (DDL at ts {self.ddl.ts}: {self.ddl.query[:QUERY_SHOWN]})" if self.ddl is not None else ""
        return tuple(SetAside(*name, position.complete_ts, f"{why[:REASON_MAX]}{at}") for name in self.names)


class TargetFailed(Fatal):
    """The target refuses all writes, even if those of one table showed it: no table is set aside for it."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """How one table changes between two moments: the net effect of all its changes between them."""

    definition: Definition
    effect: Effect | BagEffect
    """A `BagEffect` for a table without a key. The values are in the types of the target's `values`.

    For a target that keeps every change it is a `BagEffect`, too, and all its inserts are rows of
    `change_rows`."""


NetChanges: TypeAlias = Callable[[], TableChanges | None]
"""Reads and converts the staged rows of one table and returns their net effect; None when it is empty.

It may `execute` a step for this table first, because rows can show a column that no DDL announced. Called
once, from any thread. The target must release the result as early as it can: until then it is in memory."""


@contextmanager
def blaming(*names: Name) -> Iterator[None]:
    """Raise `TableFailed` for a Fatal that these tables cause."""
    try:
        yield
    # The innermost one names the tables most exactly.
    except (TableFailed, TargetFailed):
        raise
    except Fatal as error:
        raise TableFailed(error, names) from error


class Parted(Protocol):
    """The changes of one table in a step that does not fit into memory: in parts by key, or by whole row."""

    @property
    def name(self) -> Name:
        """The table's name."""

    @property
    def parts(self) -> int:
        """The number of parts. When a step is repeated after a crash, it is the same, with the same rows."""

    @property
    def size(self) -> int:
        """About how many bytes all parts have."""

    def prepare(self) -> None:
        """Read and convert all rows, and split them into parts on disk. `net_changes` does so if needed."""

    def net_changes(self, part: int) -> TableChanges | None:
        """The net effect of one part; None when it changes nothing. May be called again, from any thread.

        No key has changes in two parts, and without a key no row has. But rows of different parts may have
        the same value of another unique key, one after the other: so the deletes of all parts must be written
        before any part inserts.
        """

    def may_delete(self, part: int) -> bool:
        """Whether the part may delete a row: otherwise `net_changes` need not be called for its deletes."""

    def sift(self, rows: Iterable[pa.RecordBatch]) -> Callable[[int], Iterator[pa.RecordBatch]]:
        """By part, the rows among `rows`, those of the target, that may equal a row to delete.

        For a table without a key, whose rows can be found only by reading all of them: once for all parts.
        `rows` are not read if nothing is deleted.
        """


class Target(Protocol):
    """A target that this process has taken over: no earlier consumer can change anything in it any more."""

    @property
    def stats(self) -> Stats:
        """Counters of this run; the target adds what only it can count."""

    @property
    def values(self) -> Values:
        """Converts the topic's values to the target's."""

    @property
    def definitions(self) -> Mapping[Name, Definition]:
        """The definition of every table: as recovered, and as changed by later steps."""

    def definition(self, name: Name) -> Definition | None:
        """The definition of one table; None: it is not in the target."""

    @property
    def replays_sql(self) -> bool:
        """Whether a DDL that is known only by its SQL is executed as SQL (`ddl_steps.Replay`).

        The tables' definitions are then read from the target, and do not grow with the rows.
        """

    @property
    def every_change(self) -> bool:
        """Whether it keeps every change and not only the net effect of all changes of a row."""

    def recover(self) -> Position | None:
        """Restore the newest position, and return it; None: nothing was ever committed.

        Fatal when the target's state contradicts that position. May be called again, after an error; what was
        not durable before the error is discarded.
        """

    @property
    def begun(self) -> Position | None:
        """The position that an interrupted write, found by `recover`, would have reached; otherwise None.

        The next `write` must have exactly the rows up to there, in its `parts`, and no DDL may come before
        it.
        """

    def write(self, tables: Sequence[NetChanges], reached: Position, parted: Sequence[Parted] = ()) -> None:
        """Write the changes of these tables; `reached` is the position afterwards, and says how `parted` is
        split.

        Raises the first failure, but only when none of its writes runs any more: otherwise a late write could
        reach a target that has been recovered meanwhile. `TableFailed`: nothing of its tables is written.
        """

    def has_done(self, message: DdlMessage) -> bool:
        """Whether a DDL was executed completely before a crash, though the position has not passed it."""

    def intend(self, message: DdlMessage, steps: Sequence[Step]) -> None:
        """Note durably that a DDL begins; Fatal when it began before, and the table was another then."""

    def execute(self, step: Step) -> None:
        """Execute one step of a DDL. Never called with `Refuse`."""

    def dropped(self) -> Mapping[int, Dropped]:
        """By TiDB's table id, dropped and truncated tables whose rows can still be restored."""

    def advance(self, position: Position) -> None:
        """The intended DDLs are executed: everything up to `position` is applied. This names no snapshot."""

    def commit(self, position: Position) -> Position:
        """Make position.ts a snapshot, visible to readers and restarts. Returns the position as stored."""

    def set_aside(self, failed: TableFailed, begin: Position) -> tuple[SetAside, ...]:
        """Note durably that the tables of a failure lack all changes above the position, and get no later
        ones; `recover` must follow. Returns their entries.

        `begin`: the newest snapshot's position, or where the run began if there is none. A target that undoes
        notes nothing: the caller puts the entries into the next position that it commits. Raises the cause
        when a part of these changes is at the target already.
        """

    def take_back(self, names: Sequence[Name]) -> None:
        """Forget that tables are set aside, and all that is known about them, after the user has loaded them.

        InvalidInput when a table is not set aside, or when the target cannot get its missing rows. `recover`
        comes before it, and nothing after it.
        """

    def tidy(self, position: Position) -> bool:
        """Remove what neither readers nor restarts need; called between two commits, with all committed.

        Does a short piece of that work, so that commits do not wait. Returns whether all of it is done; if
        not, it must be called again, with other commits in between if there are any.
        """

    def close(self) -> None:
        """Release threads and connections; undoes nothing."""


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """The record of a consumer at its target, seen from outside."""

    position: Position | None
    """None: nothing was ever committed."""
    holder: str = ""
    """Who writes it, in words; empty: no one, as far as can be seen from here."""
    doing: str = ""
    """Work that has begun and not ended, in words; empty: there is none, or the target can undo it."""


class ByHand(Protocol):
    """Prepares quarantined rows for a person to write: a consumer never writes them itself."""

    @property
    def values(self) -> Values:
        """As `Target.values`."""

    @property
    def advice(self) -> str:
        """How to correct a row at the target, in words."""

    @property
    def head(self) -> bytes:
        """SQL that prepares a session for `statements`; empty: the target does not execute SQL."""

    def statements(self, changes: TableChanges) -> list[bytes]:
        """SQL after which the table holds these changes, even if it holds some of them already.

        It ends with neither a semicolon nor a new line, and may hold any byte within its literals.
        """


class Address(Protocol):
    """The place of a target, before it is taken over."""

    @property
    def folder(self) -> Path:
        """A directory of this consumer on this machine: staged rows, Spark's log, quarantined rows."""

    @property
    def row_mode(self) -> bool:
        """Whether partitions may be at different moments in it."""

    @property
    def transforms(self) -> Set[Transform]:
        """The transforms by which its tables can be partitioned; empty: it has no partition specs."""

    @property
    def seen(self) -> Visibility:
        """Which intermediate states its readers can see."""

    def opened(self) -> AbstractContextManager[Target]:
        """Take the target over until the end of the context; InvalidInput when that is not possible."""

    def look(self) -> TargetStatus:
        """The record there, without taking it over; InvalidInput or Retryable when it cannot be read."""

    def definitions(self) -> Mapping[Name, Definition]:
        """Its tables' definitions, without taking it over; raises like `look`, and Fatal like `recover`."""

    def by_hand(self) -> ByHand:
        """How a person can write single rows there."""

    def __str__(self) -> str:
        """The address for people, without a password."""
