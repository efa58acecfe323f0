"""How collations see a text: keys that are equal, or in order, when the texts are.

Exact: binary, the `_bin` collations (all but utf8mb4_0900_bin leave trailing spaces out of account) and
`general_ci` for what is written today. The others (`unicode_ci`, `0900_ai_ci`, the Chinese ones) follow
weight tables of their own, which are not here: their keys tell equal texts only, `is_ordered` says so, and
are made from Unicode's decompositions and letter cases. Exact for ASCII and for Latin and Greek letters with
and without accents; rare letters of other scripts may differ. Source: TiDB `pkg/util/collate`, MySQL.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Final

_EXACT: Final = frozenset({"binary", "utf8mb4_0900_bin"})
_NO_PAD: Final = frozenset({*_EXACT, "utf8mb4_0900_ai_ci"})
_GENERAL: Final = frozenset({"utf8mb4_general_ci", "utf8_general_ci"})
_UNICODE: Final = frozenset({"utf8mb4_unicode_ci", "utf8_unicode_ci", "utf8mb4_0900_ai_ci"})
_ENCODED: Final = {"gbk_bin": "gbk", "gb18030_bin": "gb18030"}
_PLAIN: Final = frozenset({"utf8mb4_bin", "utf8_bin", "latin1_bin", "ascii_bin"})
_CHINESE: Final = frozenset({"gbk_chinese_ci", "gb18030_chinese_ci"})
KNOWN: Final = frozenset({*_EXACT, *_GENERAL, *_UNICODE, *_ENCODED, *_PLAIN, *_CHINESE})

_OLD: Final = unicodedata.ucd_3_2_0
"""The Unicode of the time at which MySQL made its tables."""
_CASED: Final = (
    (0, 0x500), (0x531, 0x587), (0x1E00, 0x2000), (0x2160, 0x2180), (0x24B6, 0x24EA), (0xFF21, 0xFF5B),
)  # fmt: skip
"""Where general_ci knows capital letters."""
_UNSTRIPPED: Final = frozenset("\u0340\u0341\u0343\u0344\u0374\u037e\u0385\u0387\u0419\u0439")
_IGNORABLE: Final = frozenset({"Mn", "Me", "Cf", "Cc"})
_REPLACEMENT: Final = 0xFFFD


def is_ordered(collate: str) -> bool:
    """Whether keys are in the collation's order, and not only equal when the texts are."""
    return collate not in _UNICODE and collate not in _CHINESE


def ignores_case(collate: str) -> bool:
    """Whether A and a are equal."""
    return collate.endswith("_ci")


def pads(collate: str) -> bool:
    """Whether spaces at the end do not count."""
    return collate not in _NO_PAD


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
        return text.encode(_ENCODED[collate], "replace")
    weigh = sign_key(collate)
    return b"".join(map(weigh, text))


def sign_key(collate: str) -> Callable[[str], bytes]:
    """The key of one sign; that of a text is its signs' one after the other."""
    if collate in _GENERAL:
        return _general
    if collate in _CHINESE:
        return _gbk if collate.startswith("gbk") else _gb18030
    if collate in _UNICODE:
        return _unicode_9 if collate in _NO_PAD else _unicode_4
    return str.encode


def _gbk(sign: str) -> bytes:
    return (sign.upper() if sign.isascii() else sign).encode("gbk", "replace")


def _gb18030(sign: str) -> bytes:
    upper = sign.upper()
    return (upper if len(upper) == 1 else sign).encode()


@lru_cache(4096)
def _general(sign: str) -> bytes:
    """Capital letters without accents, two bytes each; one weight for all signs beyond the first plane."""
    code = ord(sign)
    if code > 0xFFFF:
        code = _REPLACEMENT
    elif sign == "ß":
        code = ord("S")
    elif any(low <= code < high for low, high in _CASED):
        accented = code < 0x500 or 0x1E00 <= code < 0x2000
        code = ord(_capital(_bare(sign) if accented else sign))
    return code.to_bytes(2, "big")


def _bare(sign: str) -> str:
    return sign if sign in _UNSTRIPPED else _OLD.normalize("NFD", sign)[0]


def _capital(sign: str) -> str:
    upper = sign.upper()
    return upper if len(upper) == 1 and _OLD.category(upper) != "Cn" else sign


@lru_cache(4096)
def _unicode_4(sign: str) -> bytes:
    """One weight for all signs beyond the first plane."""
    return _letters(sign).encode() if ord(sign) <= 0xFFFF else b"\xff\xfd"


@lru_cache(4096)
def _unicode_9(sign: str) -> bytes:
    return _letters(sign).replace("Æ", "AE").replace("ẞ", "SS").encode()


def _letters(sign: str) -> str:
    """What is left of a sign without form, accent, case and kind of kana."""
    found = ""
    for part in unicodedata.normalize("NFKD", sign):
        if unicodedata.category(part) in _IGNORABLE and not part.isspace():
            continue
        digit = unicodedata.decimal(part, None)
        if digit is not None:
            found += str(digit)
        elif "ァ" <= part <= "ヶ":
            found += chr(ord(part) - 0x60)
        else:
            found += part if part == "ı" else _capital(part)
    return found.replace("ß", "SS")
