"""The tables that are set aside: their rows and DDLs are not applied, and all other tables continue. Pure.

A table is set aside when a change of it cannot be applied and the user allows that (`--set-aside`). The job
then notes it at the target (`Target.set_aside`), recovers, and reads the topic again from the position, as
after a restart. So no position ever passes a change of a table that is not noted.

Nothing on the topic ends it, not even DROP TABLE or CREATE TABLE. A DDL that names such a table and others is
not executed for any of them, and the others are set aside too: after a rename, the rows of a table that is
set aside have another name. DROP DATABASE drops the other tables of its schema.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeVar

from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying.target import QUERY_SHOWN, Name, TableFailed, TargetFailed
from tidegate.consumer.ddl import sql_replay
from tidegate.consumer.ddl.ddl_plan import DROP_SCHEMA
from tidegate.consumer.engine.position import SetAside
from tidegate.consumer.selecting.selection import Chosen
from tidegate.errors import Fatal, InvalidInput, Undecodable
from tidegate.tidb.table_filter import lower

OPTION: Final = "--set-aside"
TABLES_MAX: Final = 100
"""Tables that may be set aside; then the consumer stops, because the cause is hardly one table's."""
TO_DO: Final = (
    "for a database: remove the cause, stop the consumer, load the table again and give it to `tidegate "
    "consumer take-back`; for files: begin a new target for the table"
)
T = TypeVar("T")


class SetAsideTables:
    """The tables that one consumer has set aside, by their names at the target."""

    def __init__(self, *, allowed: bool = False) -> None:
        """`allowed`: whether further tables may be set aside because their changes cannot be applied."""
        self._allowed = allowed
        self._entries: dict[Name, SetAside] = {}
        """By names in lower case: a DDL known only by its text may spell them in another way."""

    @property
    def entries(self) -> tuple[SetAside, ...]:
        """All of them, for the position."""
        return tuple(self._entries.values())

    def know(self, entries: Iterable[SetAside]) -> None:
        """Add entries; an entry that a table has already stays."""
        for one in entries:
            # The earlier entry counts: its ts is the one up to which the table is complete.
            self._entries.setdefault(_key(one.name), one)

    def has(self, name: Name) -> bool:
        """Whether a table is set aside."""
        return bool(self._entries) and _key(name) in self._entries

    def without(self, pieces: Mapping[Name, Sequence[T]]) -> Mapping[Name, Sequence[T]]:
        """The rows of the other tables."""
        if not self._entries:
            return pieces
        return {name: part for name, part in pieces.items() if not self.has(name)}

    def concerns(self, chosen: Chosen, *, by_text: bool) -> bool:
        """Whether a DDL names a table that is set aside. `by_text`: see `touched`."""
        if not self._entries:
            return False
        return any(map(self.has, (*touched(chosen, by_text=by_text), *_copied(chosen, by_text=by_text))))

    def left(self, chosen: Chosen, held: Collection[Name], *, by_text: bool) -> Chosen | None:
        """The part of a DDL that is executed; None if it names a table that is set aside.

        Then its other tables are set aside from now on. `held`: the tables at the target. `by_text`: see
        `touched`. Fatal above `TABLES_MAX`.
        """
        if not self._entries:
            return chosen
        # DROP DATABASE is not held up: the other tables must go, or rows of a new table of that name would
        # meet old ones.
        gone = chosen.drops if chosen.drops is not None else _dropped_with_schema(chosen, held)
        if gone is not None:
            kept = tuple(name for name in gone if not self.has(name))
            return replace(chosen, drops=kept) if len(kept) < len(gone) else chosen
        names = touched(chosen, by_text=by_text)
        first = next(filter(self.has, (*names, *_copied(chosen, by_text=by_text))), None)
        if first is None:
            return chosen
        message = chosen.message
        why = f"a DDL also names {'.'.join(first)}, which is set aside: {message.query[:QUERY_SHOWN]}"
        self._check_room(names)
        # All of them, and not only those that the DDL changes: after a rename or a swap it is not known under
        # which name the rows of the table that failed arrive.
        self.know(SetAside(*name, message.ts, why) for name in names)
        return None

    def check_room(self, failed: TableFailed) -> None:
        """Fatal if more than `TABLES_MAX` tables would be set aside with those of a failure.

        Raises its cause if they are set aside already: then it is another one than it seems.
        """
        # Rows and DDLs of such tables are left out, so they cannot have caused this. To set them aside again
        # would repeat the same failure without end.
        if all(map(self.has, failed.names)):
            raise failed.cause
        self._check_room(failed.names)

    def _check_room(self, names: Iterable[Name]) -> None:
        if len(self._entries.keys() | set(map(_key, names))) > TABLES_MAX:
            raise Fatal(
                f"more than {TABLES_MAX} tables would be set aside",
                where=OPTION,
                why="so many tables most likely fail for one common cause",
                fix=f"remove the cause and restart the consumer, without {OPTION}: then it stops at the "
                "first table",
            )

    @contextmanager
    def blaming(self, names: Iterable[Name], ddl: DdlMessage | None = None) -> Iterator[None]:
        """Raise `TableFailed` for an error of these tables, if further tables may be set aside.

        `ddl`: the DDL that names them; None: the error is about their rows. Without names, as for DDLs of a
        schema, errors stay as they are.
        """
        try:
            yield
        # An inner `blaming` knows better which table it was, and a target that refuses all writes is no fault
        # of these tables.
        except (TableFailed, TargetFailed):
            raise
        except (Fatal, Undecodable) as error:
            if not self._allowed or not (found := tuple(names)):
                raise
            raise TableFailed(error, found, ddl) from error


def touched(chosen: Chosen, *, by_text: bool) -> tuple[Name, ...]:
    """The tables that a DDL changes, by old and new names; none if it is about a schema.

    `by_text`: its SQL may be run as it is.
    """
    event, message = chosen.event, chosen.message
    names = [(message.schema, message.table)]
    if event is not None and event.table:
        names += [(event.old_schema, event.old_table), (event.schema, event.table)]
    for one in _statements(chosen, by_text=by_text):
        if not isinstance(one, sql_replay.Unknown):
            names += sql_replay.tables(one)
    return tuple(dict.fromkeys(name for name in names if name[1]))


def may_name_others(chosen: Chosen) -> bool:
    """Whether a DDL may change more tables than `touched` finds, because its text cannot be understood."""
    if chosen.event is not None:
        return False
    return any(isinstance(one, sql_replay.Unknown) for one in _statements(chosen, by_text=True))


def _copied(chosen: Chosen, *, by_text: bool) -> list[Name]:
    """The tables of which a DDL makes empty copies: those of a table that is set aside have old columns."""
    found = _statements(chosen, by_text=by_text)
    return [one.like for one in found if isinstance(one, sql_replay.CreateTable) and one.like is not None]


def _statements(chosen: Chosen, *, by_text: bool) -> list[sql_replay.Replayed | sql_replay.Unknown]:
    """The statements of a DDL, if its tables are known only from them, or if they may be run."""
    message = chosen.message
    # With a header the text is not asked: it may name tables that TiDB's job does not touch.
    queries = (chosen.queries or (message.query,)) if by_text or chosen.event is None else ()
    found = [sql_replay.read(query, message.schema) for query in queries]
    return [one for one in found if not isinstance(one, sql_replay.Ignored)]


def name_of(text: str) -> Name:
    """The table that a user names as `schema.table`; InvalidInput if it is something else."""
    schema, dot, table = text.partition(".")
    if not (schema and dot and table):
        raise InvalidInput(
            "the name of a table cannot be read",
            where=text,
            why="it is not a schema and a table with a '.' between them",
            fix="name the table as `tidegate consumer status` shows it",
        )
    return schema, table


def reported(entry: SetAside, failed: TableFailed) -> Fatal:
    """The warning about a table that was just set aside."""
    return Fatal(
        f"table {entry.schema}.{entry.table} is set aside after ts {entry.ts}; the others continue",
        where=failed.where,
        why=f"{failed.what}: {failed.why}" if failed.why else failed.what,
        fix=TO_DO,
    )


def in_words(entries: Iterable[SetAside]) -> tuple[str, ...]:
    """Each table with the moment from which it lacks changes, and the reason."""
    return tuple(
        f"{one.schema}.{one.table}, which lacks all changes after ts {one.ts}: {one.why}" for one in entries
    )


def _dropped_with_schema(chosen: Chosen, held: Collection[Name]) -> tuple[Name, ...] | None:
    """The tables at the target that DROP DATABASE removes; None: another DDL."""
    event, message = chosen.event, chosen.message
    if event is not None:
        schema = event.schema if event.action == DROP_SCHEMA and not event.table else None
    else:
        found = sql_replay.read(message.query, message.schema)
        schema = found.schema if isinstance(found, sql_replay.DropSchema) else None
    # Sorted, so that a repetition after a crash takes the same steps in the same order.
    return None if schema is None else tuple(sorted(name for name in held if name[0] == schema))


def _key(name: Name) -> Name:
    return lower(name[0]), lower(name[1])
