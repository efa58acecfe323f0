"""Reads the SQL text of a DDL by regular expressions: comments, and old and new names. Pure.

`sql_replay` reads whole statements; these functions also work on statements that it does not know.
"""

from __future__ import annotations

import re
from typing import Final

from tidegate.mounter.ddl_renames import Name, names_in

NAME: Final = r"(?:`((?:[^`]|``)+)`|([\w$]+))"
QUALIFIED: Final = rf"(?:{NAME}\s*\.\s*)?{NAME}"
_CHANGE: Final = re.compile(rf"\bchange\s+(?:column\s+)?(?:if\s+exists\s+)?{NAME}\s+{NAME}", re.IGNORECASE)
_RENAME: Final = re.compile(
    rf"\s*alter\s+table\s+{QUALIFIED}\s+rename(?!\s+(?:index|key|column))\s*(?:to|as)?\s+{QUALIFIED}\s*;?\s*$",
    re.IGNORECASE,
)
_COMMENTS: Final = re.compile(
    r"""('(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`)"""
    r"|/\*(?:!\d*|T!(?:\[[^\]]*\])?)(.*?)\*/|/\*.*?\*/|(?:--(?=\s|$)|\#)[^\n]*",
    re.DOTALL,
)
"""Quoted text (group 1), comments whose content TiDB executes (group 2), and plain comments."""


def without_comments(query: str) -> str:
    """A statement with a space for each comment, and without the marks of comments that TiDB executes."""
    return _COMMENTS.sub(lambda found: found.group(1) or f" {found.group(2) or ''} ", query).strip()


def unquoted(quoted: str | None, plain: str | None) -> str:
    """The name that `NAME` has matched, from its two groups: between backticks, or plain."""
    return _plain(quoted) if quoted else plain or ""


def _plain(quoted: str) -> str:
    return quoted.replace("``", "`")


def renamed(query: str) -> list[tuple[Name, Name]]:
    """The old and the new name of each table that a statement renames."""
    text = without_comments(query)
    return names_in(text) or _altered_name(text)


def _altered_name(query: str) -> list[tuple[Name, Name]]:
    """The names in ALTER TABLE .. RENAME; `names_in` reads those of RENAME TABLE."""
    found = _RENAME.match(query)
    if found is None:
        return []
    parts = found.groups()
    old_schema, old, schema, new = (unquoted(*parts[at : at + 2]) for at in range(0, len(parts), 2))
    return [((old_schema, old), (schema, new))]


def renamed_columns(query: str) -> dict[str, str]:
    """The old name by the new of each CHANGE COLUMN in a statement, in lower case."""
    return {unquoted(*found[2:]).lower(): unquoted(*found[:2]).lower() for found in _CHANGE.findall(query)}
