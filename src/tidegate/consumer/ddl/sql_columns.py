"""Removes columns from DDL texts, for columns that are not applied. Pure.

Works on statements that `sql_replay.read` returns: they hold the names of tables separately, and the rest as
a text of TiDB's grammar with every name in backquotes. A column is removed with its definition, its changes
and the indexes over it. A statement that needs the column is `Refused`: for a key, a partitioning, a
generated column.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tidegate.consumer.ddl.sql_parts import closing, parts
from tidegate.consumer.ddl.sql_replay import AlterTable, CreateTable
from tidegate.tidb.sql.lexer import SqlToken, TokenKind, tokens

Hidden = Callable[[str], bool]
"""Whether a column is left out."""
_INDEXES: Final = frozenset({"PRIMARY", "UNIQUE", "INDEX", "KEY", "FULLTEXT", "SPATIAL", "CONSTRAINT"})
"""First words of a table's elements that are not columns."""


class Refused(Exception):
    """The text cannot be written with these names and columns; the message says why."""


def check_unqualified(text: str) -> None:
    """Refused when a text names a table, or a column with its table: the name would be the source's."""
    if any(token.key == "." for token in tokens(text)):
        raise Refused("it names a column with its table, whose name is another at the target")


def without_columns(statement: CreateTable | AlterTable, hidden: Hidden) -> CreateTable | AlterTable:
    """The statement without the columns that are left out; Refused when it needs one of them."""
    if isinstance(statement, CreateTable):
        return replace(statement, body=_created(statement.body, hidden)) if statement.body else statement
    text = _Text(statement.changes)
    kept = [changed for one in parts(text.tokens) if (changed := _changed(one, text, hidden))]
    return replace(statement, changes=", ".join(kept))


class _Text:
    """A text with its tokens."""

    def __init__(self, text: str) -> None:
        found = tokens(text)
        self.tokens = found[:-1]
        self._text = text
        self._ends = {one.at: after.at for one, after in itertools.pairwise(found)}

    def of(self, part: Sequence[SqlToken]) -> str:
        """The text of some tokens, which need not be adjacent."""
        return "".join(self._text[token.at : self._ends[token.at]] for token in part).strip()


def _created(body: str, hidden: Hidden) -> str:
    text = _Text(body)
    found = text.tokens
    end = closing(found, 0)
    kept = [part for part in parts(found[1:end]) if _stays(part, hidden)]
    _check_unused(found[end + 1 :], hidden)
    if not any(part[0].kind is TokenKind.QUOTED for part in kept):
        raise Refused("no column of the table is left")
    return f"({', '.join(map(text.of, kept))}) {text.of(found[end + 1 :])}".strip()


def _stays(element: Sequence[SqlToken], hidden: Hidden) -> bool:
    """Whether a column or an index of a table is kept."""
    if element[0].key in _INDEXES and element[0].kind is not TokenKind.QUOTED:
        return _index_stays(element, hidden)
    if not hidden(element[0].text):
        _check_unused(element, hidden)
        return True
    keys = [token.key for token in element]
    # Without it the table would have no key, and rows could not be found again.
    if "PRIMARY" in keys:
        raise Refused(f"column {element[0].text} is the primary key")
    return False


def _index_stays(element: Sequence[SqlToken], hidden: Hidden) -> bool:
    over = _named(element, hidden)
    if over and any(token.key == "PRIMARY" and token.kind is not TokenKind.QUOTED for token in element):
        raise Refused(f"column {over} is part of the primary key")
    return not over


def _changed(change: Sequence[SqlToken], text: _Text, hidden: Hidden) -> str:
    """One change of ALTER TABLE as text; empty when nothing of it remains."""
    change = _without_place(change, hidden)
    named = [token for token in change if token.key not in ("IF", "NOT", "EXISTS") or _is_name(token)]
    match [token.key if not _is_name(token) else "" for token in named[:2]]:
        case ["ADD", "COLUMN"] if named[2].key == "(" and not _is_name(named[2]):
            return _added(change, text, hidden)
        case ["ADD", "COLUMN"]:
            stays = _stays(named[2:], hidden)
        case ["ADD", word] if word in _INDEXES:
            stays = _index_stays(named[1:], hidden)
        case ["DROP" | "MODIFY" | "ALTER", "COLUMN"]:
            stays = _stays(named[2:], hidden)
        case ["CHANGE", "COLUMN"]:
            return _renamed(named[2].text, named[3].text, change, text, hidden)
        case ["RENAME", "COLUMN"]:
            return _renamed(named[2].text, named[4].text, change, text, hidden)
        case _:
            _check_unused(change, hidden)
            stays = True
    return text.of(change) if stays else ""


def _added(change: Sequence[SqlToken], text: _Text, hidden: Hidden) -> str:
    """An ADD COLUMN with several columns in parentheses."""
    first = next(at for at, token in enumerate(change) if token.key == "(" and not _is_name(token))
    kept = [part for part in parts(change[first + 1 : closing(change, first)]) if _stays(part, hidden)]
    return f"{text.of(change[:first])} ({', '.join(map(text.of, kept))})" if kept else ""


def _renamed(old: str, new: str, change: Sequence[SqlToken], text: _Text, hidden: Hidden) -> str:
    if hidden(old) and not hidden(new):
        raise Refused(f"column {new} was {old}, which is left out, so that its values are not at the target")
    if hidden(old):
        return ""
    # Under its new name the column gets no more values, so the old ones must not stay.
    if hidden(new):
        return f"DROP COLUMN `{old.replace('`', '``')}`"
    _check_unused(change, hidden)
    return text.of(change)


def _without_place(change: Sequence[SqlToken], hidden: Hidden) -> Sequence[SqlToken]:
    """The change without AFTER, if that names a column that is left out."""
    if len(change) < 2 or change[-2].key != "AFTER" or _is_name(change[-2]):
        return change
    return change[:-2] if _is_name(change[-1]) and hidden(change[-1].text) else change


def _check_unused(part: Sequence[SqlToken], hidden: Hidden) -> None:
    if used := _named(part, hidden):
        raise Refused(f"something else is computed or partitioned by column {used}, which is left out")


def _named(part: Sequence[SqlToken], hidden: Hidden) -> str:
    """A left-out column named in parentheses, as in expressions and column lists; empty if none is."""
    depth = 0
    for token in part:
        # Only inside parentheses: outside of them, names are those of the column itself, of an index or of a
        # partition.
        depth += {"(": 1, ")": -1}.get("" if _is_name(token) else token.key, 0)
        if depth and _is_name(token) and hidden(token.text):
            return token.text
    return ""


def _is_name(token: SqlToken) -> bool:
    return token.kind is TokenKind.QUOTED
