"""Weights of signs under collations that do not compare a text's own bytes.

    general_ci         one weight of 2 bytes a sign: capital letters without accents
    unicode_ci         0 to 8 weights of 2 bytes: the Unicode collation algorithm's table 4.0.0
    gbk_chinese_ci     1 or 2 bytes: GBK by pronunciation; a sign GBK does not have is '?'

The tables are in `collation_weights.bin` beside this file, made by `tools/collation_weights.py` and read once
when they are first needed. Signs beyond U+FFFF have one weight for all. Not here: utf8mb4_0900_ai_ci and
gb18030_chinese_ci, whose tables we do not have.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

PLANE: Final = 0x10000
_REPLACEMENT: Final = b"\xff\xfd"
_IMPLICIT: Final = 0xFF
"""In place of a length: the weights follow from the code point."""
_TABLES: Final = {
    "utf8mb4_general_ci": "general",
    "utf8_general_ci": "general",
    "utf8mb4_unicode_ci": "unicode",
    "utf8_unicode_ci": "unicode",
    "gbk_chinese_ci": "gbk",
}
KNOWN: Final = frozenset(_TABLES)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of every sign of a collation; `beyond` those of signs it has none for."""

    signs: Mapping[str, bytes]
    beyond: bytes

    def key(self, text: str) -> bytes:
        """The sort key; a damaged byte (surrogateescape) counts as U+FFFD, as in Go."""
        return b"".join(self.signs.get(sign, self.beyond) for sign in text)


@cache
def of(collate: str) -> Weights:
    """The weights of a collation in KNOWN."""
    return _tables()[_TABLES[collate]]


@cache
def _tables() -> dict[str, Weights]:
    data = zlib.decompress(files(__package__).joinpath("collation_weights.bin").read_bytes())
    return unpacked(data)


def implicit(code: int) -> bytes:
    """UCA's weights of a sign that its table does not list."""
    base = 0xFBC0
    if 0x3400 <= code <= 0x4DB5:
        base = 0xFB80
    elif 0x4E00 <= code <= 0x9FA5:
        base = 0xFB40
    return (base + (code >> 15)).to_bytes(2, "big") + (code & 0x7FFF | 0x8000).to_bytes(2, "big")


def packed(general: Mapping[int, bytes], unicode: Mapping[int, bytes], gbk: Mapping[int, bytes]) -> bytes:
    """The file's content.

    65,536 differences to the code point, u16; 65,536 lengths in weights, and the weights; 65,536 lengths in
    bytes of GBK's weights (0: no such sign), and these.
    """
    out = bytearray()
    for code in range(PLANE):
        weight = int.from_bytes(general.get(code, code.to_bytes(2, "big")), "big")
        out += (weight - code & 0xFFFF).to_bytes(2, "little")
    implied = {code for code in range(PLANE) if unicode.get(code, implicit(code)) == implicit(code)}
    out += bytes(_IMPLICIT if code in implied else len(unicode[code]) // 2 for code in range(PLANE))
    for code in range(PLANE):
        if code not in implied:
            out += unicode[code]
    out += bytes(len(gbk.get(code, b"")) for code in range(PLANE))
    for code in sorted(gbk):
        out += gbk[code]
    return zlib.compress(bytes(out), 9)


def unpacked(data: bytes) -> dict[str, Weights]:
    """The inverse of `packed`, decompressed."""
    general, unicode, gbk = {}, {}, {}
    for code in range(PLANE):
        delta = int.from_bytes(data[2 * code : 2 * code + 2], "little")
        general[chr(code)] = (code + delta & 0xFFFF).to_bytes(2, "big")
    at = 2 * PLANE
    lengths, at = data[at : at + PLANE], at + PLANE
    for code, length in enumerate(lengths):
        if length == _IMPLICIT:
            unicode[chr(code)] = implicit(code)
        else:
            unicode[chr(code)] = data[at : at + 2 * length]
            at += 2 * length
    lengths, at = data[at : at + PLANE], at + PLANE
    for code, length in enumerate(lengths):
        if length:
            gbk[chr(code)] = data[at : at + length]
            at += length
    for code in range(0xDC80, 0xDD00):
        general[chr(code)], unicode[chr(code)] = general["\ufffd"], unicode["\ufffd"]
    return {
        "general": Weights(general, _REPLACEMENT),
        "unicode": Weights(unicode, _REPLACEMENT),
        "gbk": Weights(gbk, b"?"),
    }
