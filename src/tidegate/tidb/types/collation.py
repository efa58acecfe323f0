"""How collations compare texts: keys that are equal, or in order, if the texts are.

Exact: binary, the `_bin` collations (all except utf8mb4_0900_bin ignore trailing spaces) and those with
`weights`: general_ci, unicode_ci, 0900_ai_ci and gbk_chinese_ci. Keys under gb18030_chinese_ci only show
which texts are equal, by letter case: then `is_ordered` is False. It is also False for unicode_ci, 0900_ai_ci
and gbk_chinese_ci, because callers compare ASCII by its bytes, which is not the order of these collations.
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
    """Whether keys have the collation's order, and do not only show which texts are equal."""
    return not ignores_case(collate) or collate in _GENERAL


def ignores_case(collate: str) -> bool:
    """Whether A and a are equal."""
    return collate.endswith("_ci")


def pads(collate: str) -> bool:
    """Whether spaces at the end are ignored."""
    return collate not in _NO_PAD


def is_bytewise(collate: str) -> bool:
    """Whether texts are compared by their bytes, apart from spaces at the end if it `pads`."""
    return not collate or collate in _EXACT or collate in _PLAIN


def key(data: bytes, collate: str) -> bytes:
    """The key of a text in that collation; a text that is not UTF-8 is its own key."""
    if collate in _EXACT or not collate:
        return data
    if pads(collate):
        # In UTF-8 no byte of a longer character is 0x20, so this removes only whole spaces.
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
    """The key of one character; the key of a text joins those of its characters."""
    if collate in weights.KNOWN:
        return weights.of(collate).of_sign
    return _gb18030 if collate in _BY_CASE else str.encode


def _gb18030(sign: str) -> bytes:
    upper = sign.upper()
    # Some characters have several capital letters (ß: SS), which would make them equal to another text.
    return (upper if len(upper) == 1 else sign).encode()
