"""The text of a DDL in the form sent to targets."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.tidb.sql.cursor import Cursor
from tidegate.tidb.sql.grammar import statements_at
from tidegate.tidb.sql.lexer import ParseError, tokens

DEFAULT_CHARSET: Final = "utf8mb4"


class Restored(NamedTuple):
    """The text of a DDL for targets."""

    text: str
    problem: str = ""
    """Why the text is unchanged; empty if it was restored."""


def restore(text: str, *, charset: str = "", sql_mode: int = 0) -> str:
    """The statements of a text, byte for byte as TiDB's parser restores them for TiCDC.

    Raises ParseError, and no other error, if the text is not a data definition that TiDB knows.
    """
    return ";".join(_read(text, charset, sql_mode, exact=True).statements)


def split(text: str, *, charset: str = "", sql_mode: int = 0) -> list[str]:
    """The statements of a text, each restored."""
    return _read(text, charset, sql_mode, exact=True).statements


def outgoing(text: str, *, charset: str = "", sql_mode: int = 0) -> Restored:
    """The text for targets: restored if possible, otherwise unchanged.

    In some cases TiDB's restored text is another statement than the one that ran (a backslash in a comment,
    CHAR(), MOD() next to an operator). Then the original statement is written in a form that databases
    understand.
    """
    try:
        read = _read(text, charset, sql_mode, exact=True)
        if read.defects:
            read = _read(text, charset, sql_mode, exact=False)
    except ParseError as error:
        return Restored(text, error.why or error.what)
    restored = ";".join(read.statements)
    return Restored(restored) if restored else Restored(text, "nothing of it concerns a target")


class _Read(NamedTuple):
    statements: list[str]
    defects: list[str]


def _read(text: str, charset: str, sql_mode: int, *, exact: bool) -> _Read:
    cursor = Cursor(
        tokens(text, sql_mode), charset=charset or DEFAULT_CHARSET, sql_mode=sql_mode, exact=exact
    )
    try:
        statements = statements_at(cursor).statements()
    except RecursionError:
        raise ParseError("a statement cannot be read", why="it is nested too deep for the stack") from None
    if not statements:
        raise ParseError("there is no statement", why="the text is empty")
    return _Read(statements, cursor.defects)
