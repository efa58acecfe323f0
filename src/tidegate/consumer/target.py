"""What a consumer writes, as everything above it sees it: the verbs of a target.

    recover -> the position up to which all is in; `begun`: a write beyond it that was interrupted
    write   -> the changes of some tables, all above that position
    intend, execute, advance -> a DDL, after all rows before it
    commit  -> the position is a snapshot: all tables stand at one ts

A target is of one of two kinds. Delta can undo: it holds a part of what is to come until `commit`, and
`recover` takes it back to its newest snapshot. A database cannot: there each `write` and each `advance` moves
the position, and a write that was interrupted is given again with the very same rows.

A target is one folder and knows nothing of topics, protocols and partitions: what it is given is settled
(`net_effect`) and planned (`ddl_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from tidegate.codec.base import DdlMessage
from tidegate.consumer.changes import Values
from tidegate.consumer.ddl_plan import Dropped, Step
from tidegate.consumer.definition import Definition
from tidegate.consumer.net_effect import BagEffect, Effect
from tidegate.consumer.position import Position
from tidegate.consumer.stats import Stats
from tidegate.dispatcher.consistency import Seen

Name: TypeAlias = tuple[str, str]
"""Schema and table."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What one table must become between two moments: the net effect of all its changes between them."""

    definition: Definition
    effect: Effect | BagEffect
    """A `BagEffect` for a table without a key. The values are in the types of the target's `values`."""


Settle: TypeAlias = Callable[[], TableChanges | None]
"""Reads, converts and settles the staged rows of one table; None when they change nothing.

It may `execute` a step for this table first: rows can show a column that no DDL told of. To be called once,
from any thread; the settled rows are in memory until the target lets go of them.
"""


class Parted(Protocol):
    """The changes of one table with a key, in a step that does not fit into memory: in parts by key."""

    @property
    def name(self) -> Name:
        """The table's."""

    @property
    def parts(self) -> int:
        """How many; the same when the step comes again after a crash, each with the same rows."""

    @property
    def size(self) -> int:
        """Of all of it, about, in bytes."""

    def prepare(self) -> None:
        """Read and convert all rows, and cut them into parts on disk. `settle` does it if nobody has."""

    def settle(self, part: int) -> TableChanges | None:
        """The net effect of one part; None when it changes nothing. May be asked again, and from any thread.

        No key has changes in two parts. Rows of different parts may have one value of another unique key,
        one after the other: what all parts delete must go before any part inserts.
        """

    def may_delete(self, part: int) -> bool:
        """Whether the part can take a row away: where not, `settle` need not be asked for its deletes."""


class Target(Protocol):
    """A target that this process has taken over: no earlier consumer can change anything in it any more."""

    @property
    def stats(self) -> Stats:
        """What was done in this run; the target counts what only it can see."""

    @property
    def values(self) -> Values:
        """How the topic's values become the target's."""

    @property
    def definitions(self) -> Mapping[Name, Definition]:
        """Every table in it, as recovered and as changed by the steps since."""

    def definition(self, name: Name) -> Definition | None:
        """That of one table; None: it is not in the target."""

    @property
    def replays_sql(self) -> bool:
        """Whether a DDL of which only its SQL is known is run as SQL (`ddl_plan.Replay`).

        The target's tables then look as the target says, and do not grow with the rows.
        """

    def recover(self) -> Position | None:
        """Take it back to its newest position; None: nothing was ever committed.

        Fatal when it is not what that position says.
        """

    @property
    def begun(self) -> Position | None:
        """What would be in, had the write not been interrupted that `recover` found; else None.

        The next `write` must have exactly the rows up to there, in its `parts`, and no DDL comes before it.
        """

    def write(self, tables: Sequence[Settle], reached: Position, parted: Sequence[Parted] = ()) -> None:
        """Write the changes of these tables; `reached`: what is in then, and how `parted` is cut.

        Raises the first failure, but only when nothing of ours is being written any more: who then recovers
        the target must not meet a write of ours.
        """

    def has_done(self, message: DdlMessage) -> bool:
        """Whether all of a DDL was done before a crash that came before the position moved past it."""

    def intend(self, message: DdlMessage, steps: Sequence[Step]) -> None:
        """Note durably that a DDL begins; Fatal when it began before, on a table that was another then."""

    def execute(self, step: Step) -> None:
        """Do one step of a DDL. A step that refuses never comes here."""

    def dropped(self) -> Mapping[int, Dropped]:
        """By TiDB's table id, the dropped and truncated tables whose rows can still be brought back."""

    def advance(self, position: Position) -> None:
        """The DDLs that were intended are executed: everything up to `position` is in. No snapshot yet."""

    def commit(self, position: Position) -> Position:
        """All tables stand at position.ts: readers and a restart may see it. It comes back as it is kept."""

    def tidy(self, position: Position) -> bool:
        """Remove what no reader and no restart needs; between two commits, with everything committed.

        A short piece of that work, so that commits do not wait; whether all of it is done. If not, it is to
        be called again, after other commits if there are any.
        """

    def close(self) -> None:
        """Let go of threads and connections; undoes nothing."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a target keeps of its consumer, seen from outside."""

    position: Position | None
    """None: nothing was ever committed."""
    holder: str = ""
    """Who writes it, in words; empty: nobody, as far as can be seen from here."""
    doing: str = ""
    """What was begun and has not ended, in words; empty: nothing, or the target can undo it."""


class ByHand(Protocol):
    """Rows for a person who writes them: a consumer writes none of what it has once set aside."""

    @property
    def values(self) -> Values:
        """As `Target.values`."""

    @property
    def advice(self) -> str:
        """How to bring a row right there, in words."""

    @property
    def head(self) -> bytes:
        """SQL that puts a session into the state that `statements` need; empty: the target takes no SQL."""

    def statements(self, changes: TableChanges) -> list[bytes]:
        """SQL that makes the table hold these changes, whatever of them is there already.

        It ends with neither a semicolon nor a new line, and may hold any byte within its literals.
        """


class Address(Protocol):
    """Where a target is, before it is taken over."""

    @property
    def folder(self) -> Path:
        """A directory of this consumer's own, here: staged rows, Spark's log, rows set aside."""

    @property
    def row_mode(self) -> bool:
        """Whether partitions may stand at different moments in it."""

    @property
    def seen(self) -> Seen:
        """What its readers see of a step."""

    def opened(self) -> AbstractContextManager[Target]:
        """Take the target over until the end of the context; InvalidInput when it cannot be had."""

    def look(self) -> Looked:
        """What is kept there, without taking it over; InvalidInput or Retryable when it cannot be read."""

    def definitions(self) -> Mapping[Name, Definition]:
        """What its tables look like now, without taking it over; raises as `look`, and Fatal as `recover`."""

    def by_hand(self) -> ByHand:
        """How a person would write single rows there."""

    def __str__(self) -> str:
        """For people; without a password."""
