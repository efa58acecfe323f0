"""The kinds of servers behind a `mysql://` address, and where their SQL differs. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from tidegate.errors import Fatal


class Dialect(StrEnum):
    """A kind of server. The values are its names for people."""

    MARIADB = "MariaDB"
    MYSQL = "MySQL"
    TIDB = "TiDB"


DIALECT: Final = "SELECT @@version, @@version_comment"
"""The query for `dialect_of`. Both, because TiDB's version can be set to any text."""
OLDEST_MYSQL: Final = (8, 0, 13)
"""The first MySQL that takes an expression as a default (`default_of_text`)."""
EXACT_ELEMENTS: Final = 53
"""The most elements of a SET whose values TiDB tells apart: it compares and computes with them as doubles."""
COLLATIONS: Final = {
    "utf8mb4_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci",
    "utf8mb4_0900_bin": "utf8mb4_nopad_bin",
}
"""MariaDB's names, by TiDB's, of the collations of Unicode 9 without padding."""


def dialect_of(version: str, comment: str) -> Dialect:
    """The kind of a server, by the answer to `DIALECT`."""
    said = f"{version} {comment}".lower()
    if "tidb" in said:
        return Dialect.TIDB
    return Dialect.MARIADB if "mariadb" in said else Dialect.MYSQL


def is_too_old(dialect: Dialect, version: str) -> bool:
    """Whether a server is a MySQL before `OLDEST_MYSQL`."""
    return dialect is Dialect.MYSQL and tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST_MYSQL


def collation_at(dialect: Dialect, collation: str) -> str:
    """The server's name for one of TiDB's collations."""
    return COLLATIONS.get(collation, collation) if dialect is Dialect.MARIADB else collation


def default_of_text(dialect: Dialect, literal: str, column: str) -> str:
    """The DEFAULT of a TEXT or BLOB column: MySQL takes no literal there, but an expression.

    TiDB takes neither. An empty text needs no default, because rows older than a column that is NOT NULL get
    it anyway; Fatal for another one.
    """
    if dialect is Dialect.TIDB:
        if literal in ("''", "X''"):
            return ""
        raise Fatal(
            "a column cannot be added at the target",
            where=f"column {column}",
            why=f"earlier rows hold {literal[:60]} in it upstream, and TiDB takes no default for TEXT",
            fix="add it at the target, fill it, and start again with --skip-ddl and the ts of the DDL",
        )
    return f"({literal})" if dialect is Dialect.MYSQL else literal
