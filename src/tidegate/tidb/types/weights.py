"""Weights of characters in collations that do not compare the bytes of a text.

    general_ci         one weight of 2 bytes per character: capital letters without accents
    unicode_ci         0 to 8 weights of 2 bytes: the Unicode collation algorithm's table 4.0.0
    0900_ai_ci         0 to 8 weights of 2 bytes: the primary ones of the same algorithm's table 9.0.0
    gbk_chinese_ci     1 or 2 bytes: GBK by pronunciation; a character that GBK lacks is '?'

The tables are in `collation_weights.bin` in this folder. `tools/collation_weights.py` makes it, and it is
read once, when first needed. Characters above U+FFFF all have the same weight, except in 0900_ai_ci. Weights
are those of single characters, because neither MySQL's nor TiDB's collators have contractions. Not included:
gb18030_chinese_ci, which orders Chinese characters by MySQL's own list of pronunciations, which is in no
public standard. Source: TiDB `pkg/util/collate`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

PLANE: Final = 0x10000
LISTED_900: Final = 0x2CEA1
"""The end of TiDB's table 9.0.0; all characters from there on have implicit weights."""
_REPLACEMENT: Final = b"\xff\xfd"
_IMPLICIT: Final = 0xFF
"""Used instead of a length: the weights are computed from the code point."""
_TABLES: Final = {
    "utf8mb4_general_ci": "general",
    "utf8_general_ci": "general",
    "utf8mb4_unicode_ci": "unicode",
    "utf8_unicode_ci": "unicode",
    "utf8mb4_0900_ai_ci": "unicode 9",
    "gbk_chinese_ci": "gbk",
}
KNOWN: Final = frozenset(_TABLES)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of all characters of a collation; `beyond` computes those of characters not in `signs`."""

    signs: Mapping[str, bytes]
    beyond: Callable[[str], bytes]

    def of_sign(self, sign: str) -> bytes:
        """The weights of one character."""
        found = self.signs.get(sign)
        return self.beyond(sign) if found is None else found

    def key(self, data: bytes) -> bytes:
        """The sort key of UTF-8; as in TiDB it ends at the first byte that is not valid."""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            text = data[: error.start].decode()
        return b"".join(map(self.of_sign, text))


@cache
def of(collate: str) -> Weights:
    """The weights of a collation in KNOWN."""
    return _tables()[_TABLES[collate]]


@cache
def _tables() -> dict[str, Weights]:
    data = zlib.decompress(files(__package__).joinpath("collation_weights.bin").read_bytes())
    return unpacked(data)


def implicit(code: int) -> bytes:
    """The weights of the Unicode collation algorithm for a character that its table does not list."""
    base = 0xFBC0
    if 0x3400 <= code <= 0x4DB5:
        base = 0xFB80
    elif 0x4E00 <= code <= 0x9FA5:
        base = 0xFB40
    return (base + (code >> 15)).to_bytes(2, "big") + (code & 0x7FFF | 0x8000).to_bytes(2, "big")


def implicit_900(code: int) -> bytes:
    """The same for the table 9.0.0 as TiDB reads it, except for Hangul syllables: see `hangul`."""
    if 0x17000 <= code <= 0x18AFF:
        return b"\xfb\x00" + (code - 0x17000 | 0x8000).to_bytes(2, "big")
    base = 0xFBC0
    if code < LISTED_900 and any(low <= code <= high for low, high in _EXTENSIONS_900):
        base = 0xFB80
    elif 0x4E00 <= code <= 0x9FD5 or 0xFA0E <= code <= 0xFA29:
        base = 0xFB40
    return (base + (code >> 15)).to_bytes(2, "big") + (code & 0x7FFF | 0x8000).to_bytes(2, "big")


_EXTENSIONS_900: Final = (
    (0x3400, 0x4DB5),
    (0x20000, 0x2A6D6),
    (0x2A700, 0x2B734),
    (0x2B740, 0x2B81D),
    (0x2B820, 0x2CEA1),
)
"""Han characters outside the first block, in Unicode 9."""


def hangul(code: int, jamo: Mapping[str, bytes]) -> bytes:
    """The weights of a Hangul syllable: those of its two or three letters."""
    letters, tail = divmod(code - 0xAC00, 28)
    found = jamo[chr(0x1100 + letters // 21)] + jamo[chr(0x1161 + letters % 21)]
    return found + jamo[chr(0x11A7 + tail)] if tail else found


def packed(
    general: Mapping[int, bytes],
    unicode: Mapping[int, bytes],
    gbk: Mapping[int, bytes],
    unicode_9: Mapping[int, bytes],
) -> bytes:
    """The content of the file.

    65,536 differences to the code point, u16; 65,536 lengths in weights, and the weights; 65,536 lengths in
    bytes of GBK's weights (0: no such character), and these weights; `LISTED_900` lengths in weights of the
    table 9.0.0, and the weights of the characters it lists.
    """
    out = bytearray()
    for code in range(PLANE):
        weight = int.from_bytes(general.get(code, code.to_bytes(2, "big")), "big")
        # As a difference it is 0 for each character that is its own weight, which compresses well.
        out += (weight - code & 0xFFFF).to_bytes(2, "little")
    implied = {code for code in range(PLANE) if unicode.get(code, implicit(code)) == implicit(code)}
    out += bytes(_IMPLICIT if code in implied else len(unicode[code]) // 2 for code in range(PLANE))
    for code in range(PLANE):
        if code not in implied:
            out += unicode[code]
    out += bytes(len(gbk.get(code, b"")) for code in range(PLANE))
    for code in sorted(gbk):
        out += gbk[code]
    listed = [unicode_9.get(code) for code in range(LISTED_900)]
    out += bytes(_IMPLICIT if weights is None else len(weights) // 2 for weights in listed)
    out += b"".join(weights for weights in listed if weights)
    return zlib.compress(bytes(out), 9)


def unpacked(data: bytes) -> dict[str, Weights]:
    """The inverse of `packed`, from the decompressed file."""
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
    return {
        "general": Weights(general, lambda _: _REPLACEMENT),
        "unicode": Weights(unicode, lambda _: _REPLACEMENT),
        "gbk": Weights(gbk, lambda _: b"?"),
        "unicode 9": _unpacked_900(data, at),
    }


def _unpacked_900(data: bytes, at: int) -> Weights:
    signs: dict[str, bytes] = {}
    lengths, at = data[at : at + LISTED_900], at + LISTED_900
    for code, length in enumerate(lengths):
        if length != _IMPLICIT:
            signs[chr(code)] = data[at : at + 2 * length]
            at += 2 * length

    def beyond(sign: str) -> bytes:
        code = ord(sign)
        return hangul(code, signs) if 0xAC00 <= code <= 0xD7AF else implicit_900(code)

    return Weights(signs, beyond)
