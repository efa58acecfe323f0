"""Strings: which ones cannot be restored from their key, and the sort keys of collations.

TiDB stores text of every charset as UTF-8 in its rows, and binary strings unchanged. A key contains the
collation's *sort key* instead of the text. If the sort key loses something, the row contains the text again
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

    Binary strings and utf8mb4_0900_bin are not. The `_bin` collations of one-byte sets and UTF-8 lose only
    trailing spaces, which a `char` does not have.
    """
    if charset == "binary" or collate in _EXACT:
        return False
    return not only_pads(collate) or mysql_type in _VARCHARS


def only_pads(collate: str) -> bool:
    """Whether a key lacks only the spaces at the end of its text (TiDB `collate.IsBinCollation`)."""
    return collate in _PADDED


def sort_key(data: bytes, collate: str, where: str = "") -> bytes:
    """The form in keys of a UTF-8 (or binary) string under a collation.

    InvalidInput, with `where`, for a collation whose weights we lack (`weights`): gb18030_chinese_ci, or one
    that TiDB does not have. Reading keys needs no weights.
    """
    if collate in _EXACT or collate == "":
        return data
    if collate in _PADDED:
        return data.rstrip(b" ")
    if collate in _ENCODED:
        # A byte that is not UTF-8 becomes a character that the charset lacks, so `?` in the key.
        return encoded(data.rstrip(b" ").decode(errors="surrogateescape"), collate)
    if collate in weights.KNOWN:
        return weights.of(collate).key(data if collate in _NO_PAD else data.rstrip(b" "))
    raise InvalidInput(
        f"keys under collation {collate} cannot be made",
        where=where,
        why="its weights are not known here",
        fix="use another collation for columns of clustered keys and indexes, for example gb18030_bin",
    )


def encoded(text: str, collate: str) -> bytes:
    """A text in the charset whose bytes `gbk_bin` or `gb18030_bin` compares; `?` for characters it lacks.

    Python's GBK is CP936, which lacks 80 characters of TiDB's GBK (Go `simplifiedchinese.GBK`). These have
    two bytes in GB 18030, so they are encoded with that. The euro sign and the private use area have two
    bytes there, too, but are in neither GBK.
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
