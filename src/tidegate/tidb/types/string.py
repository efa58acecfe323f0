"""Strings: which ones their own key cannot give back, and the sort keys of collations.

TiDB keeps text of every charset as UTF-8 in its rows, binary strings as they are. A key holds the
collation's *sort key* instead of the text; where that loses something the row holds the text again
("restored data"). Source: TiDB `pkg/types/field_type.go:NeedRestoredData`, `pkg/util/collate`.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import InvalidInput
from tidegate.tidb.types import weights

VARCHAR: Final = 15
_EXACT: Final = frozenset({"binary", "utf8mb4_0900_bin"})
_PADDED: Final = frozenset({"ascii_bin", "latin1_bin", "utf8_bin", "utf8mb4_bin"})
_ENCODED: Final = {"gbk_bin": "gbk", "gb18030_bin": "gb18030"}


def needs_restored_data(mysql_type: int, charset: str, collate: str) -> bool:
    """Whether a string column in a key is stored in the row as well (facts 6.3, new collations on).

    Not for binary strings and utf8mb4_0900_bin; a `_bin` collation only drops trailing spaces, and those
    no `char` has.
    """
    if charset == "binary" or collate in _EXACT:
        return False
    return not collate.endswith("_bin") or mysql_type == VARCHAR


def sort_key(data: bytes, collate: str) -> bytes:
    """What a key holds for a string of UTF-8 (or binary) under a collation.

    InvalidInput for collations whose weights are not here (`weights`); decoding needs none.
    """
    if collate in _EXACT or collate == "":
        return data
    if collate in _PADDED:
        return data.rstrip(b" ")
    if collate in _ENCODED:
        text = data.rstrip(b" ").decode(errors="surrogateescape")
        return text.encode(_ENCODED[collate], "replace")
    if collate in weights.KNOWN:
        return weights.of(collate).key(data.rstrip(b" ").decode(errors="surrogateescape"))
    raise InvalidInput(
        f"keys under collation {collate} cannot be made",
        why="its weights are not known here",
        fix="use utf8mb4_bin or binary for columns of a clustered key",
    )
