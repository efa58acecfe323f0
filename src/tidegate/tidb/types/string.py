"""Strings: which ones their own key cannot give back, and the sort keys of collations.

TiDB keeps text of every charset as UTF-8 in its rows, binary strings as they are. A key holds the
collation's *sort key* instead of the text; where that loses something the row holds the text again
("restored data"). Source: TiDB `pkg/types/field_type.go:NeedRestoredData`, `pkg/util/collate`.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import InvalidInput
from tidegate.tidb.types import weights

_VARCHARS: Final = frozenset({15, 253})
_EXACT: Final = frozenset({"binary", "utf8mb4_0900_bin"})
_PADDED: Final = frozenset({"ascii_bin", "latin1_bin", "utf8_bin", "utf8mb4_bin"})
_ENCODED: Final = {"gbk_bin": "gbk", "gb18030_bin": "gb18030"}
_EURO: Final = "€"
_PRIVATE_USE: Final = range(0xE000, 0xF900)
_NO_PAD: Final = frozenset({"utf8mb4_0900_ai_ci"})


def needs_restored_data(mysql_type: int, charset: str, collate: str) -> bool:
    """Whether a string column of a key is in the row as well (docs/formats/keys.md#rows, new collations on).

    Not for binary strings and utf8mb4_0900_bin; the `_bin` collations of one-byte sets and UTF-8 only drop
    trailing spaces, and those no `char` has.
    """
    if charset == "binary" or collate in _EXACT:
        return False
    return not only_pads(collate) or mysql_type in _VARCHARS


def only_pads(collate: str) -> bool:
    """Whether a key lacks nothing of its text but the spaces at the end (TiDB `collate.IsBinCollation`)."""
    return collate in _PADDED


def sort_key(data: bytes, collate: str, where: str = "") -> bytes:
    """What a key holds for a string of UTF-8 (or binary) under a collation.

    InvalidInput, with `where`, for a collation whose weights are not here (`weights`): gb18030_chinese_ci, or
    one that TiDB does not have. Reading keys needs none.
    """
    if collate in _EXACT or collate == "":
        return data
    if collate in _PADDED:
        return data.rstrip(b" ")
    if collate in _ENCODED:
        return encoded(data.rstrip(b" ").decode(errors="surrogateescape"), collate)
    if collate in weights.KNOWN:
        return weights.of(collate).key(data if collate in _NO_PAD else data.rstrip(b" "))
    raise InvalidInput(
        f"keys under collation {collate} cannot be made",
        where=where,
        why="its weights are not known here",
        fix="use another collation for columns of clustered keys and indexes: gb18030_bin, say",
    )


def encoded(text: str, collate: str) -> bytes:
    """A text in the charset whose bytes `gbk_bin` or `gb18030_bin` compares; `?` for what that lacks.

    Python's GBK is that of CP936 and lacks 80 characters which TiDB's has (Go `simplifiedchinese.GBK`): they
    have two bytes in GB 18030. The euro sign and the private use area, of two bytes there too, are in
    neither.
    """
    charset = _ENCODED[collate]
    try:
        return text.encode(charset)
    except UnicodeEncodeError:
        return b"".join(_sign(sign, charset) for sign in text)


def _sign(sign: str, charset: str) -> bytes:
    found = sign.encode(charset, "replace")
    if charset != "gbk" or found != b"?" or sign == _EURO or ord(sign) in _PRIVATE_USE:
        return found
    wide = sign.encode("gb18030", "replace")
    return wide if len(wide) == 2 else found
