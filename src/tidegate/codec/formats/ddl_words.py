"""Canal's words for kinds of DDL, which TiCDC's canal-json and simple use as well."""

from __future__ import annotations

from typing import Final

QUERY: Final = "QUERY"

_WORDS: Final = (
    {3: "CREATE", 14: "RENAME", 47: "RENAME", 4: "ERASE", 11: "TRUNCATE"}
    | dict.fromkeys((7, 9, 32), "CINDEX")
    | dict.fromkeys((8, 10, 33), "DINDEX")
    | dict.fromkeys((5, 6, 12, 13, 15, 17, 18, 19, 20, 22, 23, 37, 38, 41, 61, 64, 71, 72), "ALTER")
)
WORDS: Final = frozenset({QUERY, *_WORDS.values()})
_ONLY: Final = {"ERASE": 4, "TRUNCATE": 11}
"""The words that mean exactly one action."""


def word_of(action: int) -> str:
    """The word for TiDB's action code."""
    return _WORDS.get(action, QUERY)


def action_of(word: str) -> int | None:
    """TiDB's action code, if the word means exactly one."""
    return _ONLY.get(word)
