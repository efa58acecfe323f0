"""Why the rules of a run cannot be followed for a table or a DDL: the errors, with what the user can do.

They are used by `selection` and `selected_sql`.
"""

from __future__ import annotations

from typing import Final

from tidegate.codec.base import DdlMessage
from tidegate.consumer.selecting.rules import Name
from tidegate.errors import Fatal
from tidegate.model.ddl import DdlEvent

_NEW_TARGET: Final = "start a new target with rules that say otherwise"


def dotted(name: Name) -> str:
    """A name as people write it: SCHEMA.TABLE."""
    return ".".join(name)


def moved_in(old: Name, new: Name, message: DdlMessage) -> Fatal:
    """A rename makes a table followed that was not: its rows are missing."""
    return Fatal(
        "a table moves into what is followed",
        where=f"{dotted(old)} to {dotted(new)} at ts {message.ts}: {message.query[:200]}",
        why=f"the rules leave {dotted(old)} out, so that its earlier rows are not at the target",
        fix=f"start a new target with rules that follow {dotted(old)} too, or that leave {dotted(new)} out",
    )


def half_exchange(old: Name, new: Name, message: DdlMessage) -> Fatal:
    """The error if only one of the two tables of an EXCHANGE PARTITION is followed."""
    return Fatal(
        "rows move between a table that is followed and one that is not",
        where=f"{dotted(old)} and {dotted(new)} at ts {message.ts}: {message.query[:200]}",
        why="EXCHANGE PARTITION moves them without row events",
        fix="start a new target with rules that follow both tables, or neither",
    )


def mark_taken(source: Name, column: str) -> Fatal:
    """The source has a column with the name of the one for deleted rows."""
    return Fatal(
        "the column for deleted rows is there upstream",
        where=f"table {dotted(source)}, column {column}",
        why="the moment of a deletion would be written over its values",
        fix=f"{_NEW_TARGET}: another name in --soft-delete, or rename the column upstream before",
    )


def keyless(source: Name) -> Fatal:
    """Deleted rows of a table without a key are to be kept."""
    return Fatal(
        "a table without a key cannot keep its deleted rows",
        where=f"table {dotted(source)}",
        why="a row that comes back and a deleted one could not be distinguished",
        fix=f"{_NEW_TARGET}: a --soft-delete that does not name the table, or --exclude it",
    )


def marked_otherwise(old: Name, new: Name, where: str) -> Fatal:
    """A rename changes which column --soft-delete names for a table."""
    return Fatal(
        "a table would keep its deleted rows in another way",
        where=f"{dotted(old)} to {dotted(new)}: {where}",
        why="--soft-delete names another column for it, or none, and deleted rows would appear again",
        fix=f"{_NEW_TARGET}: a --soft-delete with the same column for both tables",
    )


def key_lost(source: Name, column: str) -> Fatal:
    """--drop-column names a column of the handle key."""
    return Fatal(
        "a column of a key cannot be left out",
        where=f"table {dotted(source)}, column {column}",
        why="a row is found at the target by its key",
        fix=f"{_NEW_TARGET}: leave the column out of --drop-column, or --exclude the table",
    )


def nothing_left(source: Name) -> Fatal:
    """--drop-column names all columns of a table."""
    return Fatal(
        "no column of a table is left",
        where=f"table {dotted(source)}",
        why="--drop-column names all of them",
        fix=f"{_NEW_TARGET}: --exclude the table",
    )


def column_back(event: DdlEvent, old: str, new: str) -> Fatal:
    """A DDL renames a column that is left out so that it is not left out any more."""
    return Fatal(
        "a DDL renames a column that is left out to a name that is not left out",
        where=f"{old} to {new} at ts {event.finished_ts}: {event.query[:200]}",
        why="its earlier values are not at the target",
        fix=f"{_NEW_TARGET}: keep the column under its old name, or leave it out under its new one, too",
    )


def refused(message: DdlMessage, why: str) -> Fatal:
    """The text of a DDL cannot be rewritten."""
    return Fatal(
        "a DDL cannot be rewritten under the rules for names and columns",
        where=f"ts {message.ts}: {message.query[:1000]}",
        why=why,
        fix="start a new target with other rules for the table: --exclude it, for example",
    )
