"""The SQL text of a DDL in the words of the target: names routed, columns and tables left out. Pure.

For targets that run SQL, and for topics whose DDL messages have no header. A text that cannot be rewritten
is refused (`sql_columns.Refused`, Fatal) and not run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from tidegate.codec.base import DdlMessage
from tidegate.consumer.ddl import sql_columns, sql_replay
from tidegate.consumer.selecting.rules import Name
from tidegate.consumer.selecting.selection_refusals import (
    dotted,
    half_exchange,
    marked_otherwise,
    moved_in,
    refused,
)
from tidegate.consumer.selecting.table_rules import TableRules
from tidegate.errors import Fatal

T = TypeVar("T")


class Skip(Exception):
    """A statement concerns no table that is followed."""


class SqlSelection:
    """Rewrites statements under the rules of a run."""

    def __init__(self, rules: TableRules) -> None:
        self._rules = rules

    def query(self, message: DdlMessage) -> tuple[str, Fatal | None]:
        """The text of a DDL in the words of the target, and why it cannot be run as SQL (None: it can).

        For a message with a header: most targets need only the header and never run the text.
        """
        statement = sql_replay.read(message.query, message.schema)
        if isinstance(statement, sql_replay.Ignored | sql_replay.Unknown):
            return message.query, None
        try:
            rewritten = self.statement(message, statement)
        except Skip:
            return "", None
        except sql_columns.Refused as error:
            # Returned and not raised: a target that executes the header alone never runs this text, and must
            # not stop for it.
            return message.query, refused(message, str(error))
        except Fatal as error:
            return message.query, error
        # The text that the user wrote, wherever the rules change nothing: printing a parsed statement could
        # lose something that the parser does not keep.
        return sql_replay.text_of(rewritten) if rewritten != statement else message.query, None

    def statement(self, message: DdlMessage, statement: sql_replay.Replayed) -> sql_replay.Replayed:
        """The statement in the words of the target. Raises Skip, `sql_columns.Refused` and Fatal."""
        match statement:
            case sql_replay.CreateTable(name, _, like):
                return self._created(statement, name, like)
            case sql_replay.DropTables(names):
                # DROP TABLE may name tables of which only some are followed. The others are not at the
                # target, so the statement would fail there.
                kept = [name for name in names if self._rules.follows(*name)]
                return sql_replay.DropTables(tuple(map(self._rules.target, _some(kept))))
            case sql_replay.Truncate(name):
                self._check_followed(name)
                return sql_replay.Truncate(self._rules.target(name))
            case sql_replay.RenameTables(pairs):
                within = [pair for pair in pairs if self._moves_within(*pair, message)]
                return sql_replay.RenameTables(tuple(self._rules.pair(*pair) for pair in _some(within)))
            case sql_replay.AlterTable(name, _, renamed):
                return self._altered(statement, name, renamed, message)
            case sql_replay.ExchangePartition(name, _, other):
                return self._exchanged(statement, name, other, message)
            case _:
                return statement

    def no_text(self, message: DdlMessage, statement: sql_replay.Replayed) -> Fatal | None:
        """Why a text alone cannot be run as SQL: it does not have the column for deleted rows."""
        if any(self._rules.column_for(name) for name in _names_in(statement)):
            return refused(message, "--soft-delete needs the DDL header, which the message does not have")
        return None

    def _check_followed(self, source: Name) -> None:
        if not self._rules.follows(*source):
            raise Skip

    def _moves_within(self, old: Name, new: Name, message: DdlMessage) -> bool:
        if self._rules.follows(*new) and not self._rules.follows(*old):
            raise moved_in(old, new, message)
        if self._rules.follows(*new) and self._rules.column_for(old) != self._rules.column_for(new):
            raise marked_otherwise(old, new, f"{message.query[:200]} at ts {message.ts}")
        return self._rules.follows(*new)

    def _created(self, made: sql_replay.CreateTable, name: Name, like: Name | None) -> sql_replay.Replayed:
        self._check_followed(name)
        if like is not None:
            if not self._rules.follows(*like):
                raise sql_columns.Refused(f"it is made like {dotted(like)}, which is not at the target")
            # LIKE copies the columns of the table at the target, from which other columns may have been left
            # out.
            if self._rules.columns.of_table(*like) != self._rules.columns.of_table(*name):
                raise sql_columns.Refused(
                    f"it is made like {dotted(like)}, of which other columns are left out"
                )
            return replace(made, name=self._rules.claim(name), like=self._rules.target(like))
        self._check_names(made.body, name)
        rewritten = sql_columns.without_columns(made, lambda column: self._rules.hides(name, column))
        return replace(rewritten, name=self._rules.claim(name))

    def _altered(
        self, made: sql_replay.AlterTable, name: Name, renamed: Name | None, message: DdlMessage
    ) -> sql_replay.Replayed:
        if not self._moves_within(name, renamed or name, message):
            raise Skip
        self._check_names(made.changes, name)
        columns = self._rules.columns
        # The rename would change which columns are left out, and the earlier values of a column that returns
        # are missing.
        if renamed is not None and columns.of_table(*name) != columns.of_table(*renamed):
            raise sql_columns.Refused(f"other columns are left out of {dotted(renamed)}")
        rewritten = sql_columns.without_columns(made, lambda column: self._rules.hides(name, column))
        assert isinstance(rewritten, sql_replay.AlterTable)
        # All changes concern columns that are left out. ALTER TABLE without a change would be an error at the
        # server.
        if not rewritten.changes and renamed is None:
            raise Skip
        if renamed is None:
            return replace(rewritten, name=self._rules.claim(name))
        before, after = self._rules.pair(name, renamed)
        # Two names upstream may be one at the target, and a server refuses to rename a table to its own name.
        return replace(rewritten, name=before, renamed=after if after != before else None)

    def _exchanged(
        self, made: sql_replay.ExchangePartition, name: Name, other: Name, message: DdlMessage
    ) -> sql_replay.Replayed:
        followed = self._rules.follows(*name)
        if followed != self._rules.follows(*other):
            raise half_exchange(other, name, message)
        if not followed:
            raise Skip
        if self._rules.columns.of_table(*name) != self._rules.columns.of_table(*other):
            raise sql_columns.Refused(f"other columns are left out of {dotted(other)}")
        return replace(made, name=self._rules.claim(name), other=self._rules.claim(other))

    def _check_names(self, text: str, name: Name) -> None:
        # Only a table that gets another name: a column written as `table.column` would then name a table that
        # does not exist.
        if self._rules.target(name) != name:
            sql_columns.check_unqualified(text)


def _some(found: list[T]) -> list[T]:
    if not found:
        raise Skip
    return found


def _names_in(statement: sql_replay.Replayed) -> list[Name]:
    """The tables that a statement changes."""
    match statement:
        case sql_replay.CreateTable(name) | sql_replay.Truncate(name) | sql_replay.AlterTable(name):
            return [name]
        case sql_replay.DropTables(names):
            return list(names)
        case sql_replay.RenameTables(pairs):
            return [name for pair in pairs for name in pair]
        case sql_replay.ExchangePartition(name, _, other):
            return [name, other]
        case _:
            return []
