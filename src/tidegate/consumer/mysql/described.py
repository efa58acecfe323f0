"""The server's description of a table: the evidence whether an ALTER TABLE has run.

A description is the server's own SHOW CREATE TABLE without parts that may differ although nothing was
altered. It covers columns, defaults, comments, indexes and their kinds, checks, partitions, engine and
charset. The expected description is not computed here: the same ALTER on an empty copy (CREATE TABLE .. LIKE)
shows it in the server's own words.

These parts are left out, so that a table and its altered copy have the same description:

- the table's name, and the AUTO_INCREMENT counter, which rises with each row;
- what LIKE does not copy: foreign keys, and some of the table's options. The consumer changes neither.
- the names of checks, and their order, which is that of the names: MySQL's LIKE gives them new names.

A server that was upgraded between a crash and the restart may describe an old table in other words. The
restart then finds neither description, and stops: `difference` shows that only words differ.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from tidegate.consumer.mysql.tables import qualified

_OPTIONS: Final = re.compile(r"\) ENGINE=(\w+).*? DEFAULT CHARSET=(\w+)(?: COLLATE=(\w+))?")
"""The line after the last column or index, and the parts of it that are kept."""
_FOREIGN_KEY: Final = re.compile(r"\s*CONSTRAINT `(?:[^`]|``)*` FOREIGN KEY ")
_CHECK: Final = re.compile(r"CONSTRAINT `(?:[^`]|``)*` (?=CHECK )")
_ABSENT: Final = frozenset({ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR})


def describe(cursor: Any, schema: str, table: str) -> str | None:
    """A table's description, a line for each column and index; None: there is no such table.

    Raises the driver's error when the server does not answer.
    """
    try:
        cursor.execute(f"SHOW CREATE TABLE {qualified(schema, table)}")
    except pymysql.err.MySQLError as error:
        if error.args[0] in _ABSENT:
            return None
        raise
    return normalized(cursor.fetchone()[1])


def normalized(created: str) -> str:
    """SHOW CREATE TABLE without names of the table and its checks, foreign keys, most options and commas."""
    head, *lines = created.split("\n")
    kind = head.partition("`")[0].strip()
    kept = [line.strip().removesuffix(",") for line in lines if not _FOREIGN_KEY.match(line)]
    checks = sorted(_CHECK.sub("", line, count=1) for line in kept if _CHECK.match(line))
    others = [_without_options(line) for line in kept if not _CHECK.match(line)]
    return "\n".join([kind, *others, *checks])


def _without_options(line: str) -> str:
    found = _OPTIONS.match(line)
    return " ".join(("table", *(part or "" for part in found.groups()))) if found else line


def difference(found: str | None, wanted: str) -> str:
    """How a table differs from a description, in words: at most ten lines."""
    if found is None:
        return "the table is not there"
    changed = [
        line
        for line in difflib.unified_diff(wanted.split("\n"), found.split("\n"), lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    words = [f"{'has' if line[0] == '+' else 'lacks'} {line[1:]}" for line in changed[:10]]
    return "; ".join([*words, f"and {len(changed) - 10} more"] if len(changed) > 10 else words)
