"""How collations see a text: keys that are equal, or in order, when the texts are.

Exact: binary, the `_bin` collations (all but utf8mb4_0900_bin leave trailing spaces out of account) and those
whose weights are in `weights`: general_ci, unicode_ci, 0900_ai_ci and gbk_chinese_ci. Keys under
gb18030_chinese_ci tell equal texts only, by letter case: `is_ordered` says so. It says so of unicode_ci,
0900_ai_ci and gbk_chinese_ci too, because callers compare ASCII by its bytes, which is not their order.
Source: TiDB `pkg/util/collate`, MySQL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.tidb.types import string, weights

_EXACT: Final = frozenset({"binary", "utf8mb4_0900_bin"})
_NO_PAD: Final = frozenset({*_EXACT, "utf8mb4_0900_ai_ci"})
_GENERAL: Final = frozenset({"utf8mb4_general_ci", "utf8_general_ci"})
_ENCODED: Final = frozenset({"gbk_bin", "gb18030_bin"})
_PLAIN: Final = frozenset({"utf8mb4_bin", "utf8_bin", "latin1_bin", "ascii_bin"})
_BY_CASE: Final = frozenset({"gb18030_chinese_ci"})
KNOWN: Final = frozenset({*_EXACT, *_ENCODED, *_PLAIN, *weights.KNOWN, *_BY_CASE})


def is_ordered(collate: str) -> bool:
    """Whether keys are compared in the collation's order, and not only for being equal."""
    return not ignores_case(collate) or collate in _GENERAL


def ignores_case(collate: str) -> bool:
    """Whether A and a are equal."""
    return collate.endswith("_ci")


def pads(collate: str) -> bool:
    """Whether spaces at the end do not count."""
    return collate not in _NO_PAD


def is_bytewise(collate: str) -> bool:
    """Whether texts are compared by their bytes, but for spaces at the end if it `pads`."""
    return not collate or collate in _EXACT or collate in _PLAIN


def key(data: bytes, collate: str) -> bytes:
    """The key of a text of that collation; a text that is not UTF-8 is its own bytes."""
    if collate in _EXACT or not collate:
        return data
    if pads(collate):
        data = data.rstrip(b" ")
    if collate in _PLAIN:
        return data
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    if collate in _ENCODED:
        return string.encoded(text, collate)
    return b"".join(map(sign_key(collate), text))


def sign_key(collate: str) -> Callable[[str], bytes]:
    """The key of one sign; that of a text is its signs' one after the other."""
    if collate in weights.KNOWN:
        return weights.of(collate).of_sign
    return _gb18030 if collate in _BY_CASE else str.encode


def _gb18030(sign: str) -> bytes:
    upper = sign.upper()
    return (upper if len(upper) == 1 else sign).encode()
