"""Parts of a DDL's text, as lists of tokens: where they end, and which of them another database must not get.

Pure. `sql_replay`, which reads the whole statement, has the table of what is removed and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.tidb.sql.lexer import ParseError, SqlToken, TokenKind

_COLLATIONS: Final = {
    "UTF8MB4": "utf8mb4_bin",
    "UTF8": "utf8_bin",
    "LATIN1": "latin1_bin",
    "ASCII": "ascii_bin",
    "GBK": "gbk_chinese_ci",
}
"""By charset, the collation that TiDB uses if a text names none; other databases use their own default."""
_OF_TIDB: Final = frozenset({"ATTRIBUTES", "CACHE", "NOCACHE", "STATS_OPTIONS", "ALGORITHM", "LOCK", "WITH"})
"""First words of changes of a table that other databases do not know, or that have no effect there."""
NO_INDEX: Final = ("VECTOR", "COLUMNAR")
"""Indexes that only TiFlash has."""


def closing(part: Sequence[SqlToken], opened: int) -> int:
    """The place of the parenthesis that closes the one at `opened`."""
    depth = 0
    for at in range(opened, len(part)):
        depth += {"(": 1, ")": -1}.get(part[at].key, 0)
        if depth == 0:
            return at
    raise ParseError("a parenthesis does not end", why="")


def parts(part: Sequence[SqlToken]) -> list[list[SqlToken]]:
    """Split at the commas outside of parentheses."""
    found: list[list[SqlToken]] = [[]]
    depth = 0
    for token in part:
        depth += {"(": 1, ")": -1}.get(token.key, 0)
        if token.key == "," and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    return [one for one in found if one]


def _constraint(part: Sequence[SqlToken], at: int = 0) -> int:
    """The place after CONSTRAINT and its name, if these come at `at`."""
    if at < len(part) and part[at].key == "CONSTRAINT":
        at += 1
        at += at < len(part) and part[at].kind is TokenKind.QUOTED
    return at


def is_foreign_key(part: Sequence[SqlToken]) -> bool:
    """Whether an element of a table's definition is a foreign key."""
    at = _constraint(part)
    return at < len(part) and part[at].key == "FOREIGN"


def is_exchange(change: Sequence[SqlToken]) -> bool:
    """Whether a change of a table is EXCHANGE PARTITION."""
    return [token.key for token in change[:2]] == ["EXCHANGE", "PARTITION"]


def is_left_out(change: Sequence[SqlToken]) -> bool:
    """Whether a change of a table leaves rows and columns as they are."""
    keys = [token.key for token in change[:3]]
    if keys[0] == "ADD":
        return is_foreign_key(change[1:]) or (len(keys) > 1 and keys[1] in (*NO_INDEX, "STATS_EXTENDED"))
    if keys[0] == "DROP":
        # Tables that the consumer makes have none of these (`without_checks`, `is_foreign_key`), so it could
        # not drop them.
        return keys[1:2] in (["CHECK"], ["FOREIGN"], ["STATS_EXTENDED"])
    if keys[0] == "ALTER":
        return keys[1:2] in (["CHECK"], ["INDEX"])
    return keys[0] in _OF_TIDB or keys[0] == "WITHOUT" or keys[:2] == ["SET", "TIFLASH"]


def without_engine(part: Sequence[SqlToken]) -> list[SqlToken]:
    """Remove ENGINE = ...: TiDB ignores it, but a MyISAM table at the target would have no transactions."""
    kept: list[SqlToken] = []
    at = 0
    while at < len(part):
        if part[at].key == "ENGINE" and part[at + 1 : at + 2] and part[at + 1].key == "=":
            at += 3
        else:
            kept.append(part[at])
            at += 1
    return kept


def without_checks(part: Sequence[SqlToken]) -> list[SqlToken]:
    """Remove CHECK constraints: TiDB does not enforce them by default, so the target would refuse rows."""
    kept: list[SqlToken] = []
    at = 0
    while at < len(part):
        check = _constraint(part, at)
        if check + 1 < len(part) and part[check].key == "CHECK" and part[check + 1].key == "(":
            at = closing(part, check + 1) + 1
            at += at < len(part) and part[at].key == "NOT" and part[at + 1 : at + 2] != []
            at += at < len(part) and part[at].key == "ENFORCED"
        else:
            kept.append(part[at])
            at += 1
    return kept


def collated(part: Sequence[SqlToken]) -> dict[int, str]:
    """By the place of a charset's name without COLLATE, the collation that TiDB uses."""
    found = {}
    for at, token in enumerate(part):
        if token.key != "SET" or at == 0 or part[at - 1].key != "CHARACTER":
            continue
        name = at + 2 if part[at + 1 : at + 2] and part[at + 1].key == "=" else at + 1
        if name < len(part) and part[name].text.upper() in _COLLATIONS and not _has_collation(part, at):
            found[name] = _COLLATIONS[part[name].text.upper()]
    return found


def _has_collation(part: Sequence[SqlToken], at: int) -> bool:
    """Whether there is a COLLATE near a place: in the same parentheses, between the same commas."""
    for step in (1, -1):
        depth, place = 0, at
        while 0 <= place < len(part):
            key = part[place].key
            depth += {"(": step, ")": -step}.get(key, 0)
            # Left of the element's own begin, or right of its end: a COLLATE there belongs to another column
            # or to the table.
            if depth < 0 or (depth == 0 and key == ","):
                break
            if depth == 0 and key == "COLLATE":
                return True
            place += step
    return False
