"""Header blocks of HTTP/2 (HPACK, RFC 7541), as far as a gRPC client needs them.

Requests are written as literals, without tables. The decoder of responses supports everything except the
dynamic table, which `http2` forbids the peer by SETTINGS_HEADER_TABLE_SIZE 0, and the static table beyond
`:status` and `content-type`, because it does not contain gRPC's own headers. A field whose name is another
entry of the static table is skipped.

A literal: `0000 0000`, then name and value, each a length (prefix of 7 bits) and its bytes. An integer that
does not fit its prefix of n bits continues in groups of 7 bits, least significant first (RFC 7541, 5.1).
"""

from __future__ import annotations

from typing import Final

Headers = list[tuple[str, str]]


class MalformedError(Exception):
    """The block is not valid HPACK, or needs the dynamic table."""


_STATUS: Final = range(8, 15)
"""Indexes of `:status` in the static table."""
_CONTENT_TYPE: Final = 31
_STATUS_VALUES: Final = ("200", "204", "206", "304", "400", "404", "500")
STATIC: Final = 61
"""The last index of the static table."""
INTEGER_MAX: Final = 1 << 24
"""Integers of this size or more are malformed."""

_CODE_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c"
    "060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "1416141416161617161717171717181718181617181717171715161716171718"
    "1615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)
"""The number of bits of each symbol's Huffman code: for bytes 0 to 255 and the end (RFC 7541, appendix B).

The code is canonical: shorter codes come first, and codes of one length are in the order of their symbols.
"""


def _codes() -> dict[tuple[int, int], int]:
    """The symbol of each code, by (length, bits)."""
    code = length = 0
    found = {}
    for bits, symbol in sorted((bits, symbol) for symbol, bits in enumerate(_CODE_LENGTHS)):
        # Canonical: the first code of a length follows the last shorter one, with zeros appended.
        code, length = code << (bits - length), bits
        found[length, code] = symbol
        code += 1
    return found


_SYMBOLS: Final = _codes()
_END_OF_STRING: Final = 256


def encode(headers: Headers) -> bytes:
    """The header block of some fields."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)


def _text(text: str) -> bytes:
    data = text.encode()
    # Below and not at: a prefix of seven ones means that the length continues in the next byte.
    if len(data) < 0x7F:
        return bytes([len(data)]) + data
    out, rest = bytearray(b"\x7f"), len(data) - 0x7F
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out) + data


def decode(block: bytes) -> Headers:
    """The fields of a header block. Raises MalformedError."""
    found: Headers = []
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:
            index, at = _integer(block, at, 7)
            if not 0 < index <= STATIC:
                raise MalformedError(f"index {index}")
            if index in _STATUS:
                found.append((":status", _STATUS_VALUES[index - _STATUS.start]))
        elif first & 0xE0 == 0x20:
            _, at = _integer(block, at, 5)  # the dynamic table's size, which can only be 0
        else:
            # 0x40 asks to add the field to the dynamic table. That table has size 0 here, so the field is
            # read and not kept.
            index, at = _integer(block, at, 6 if first & 0x40 else 4)
            name, at = _name(block, at, index)
            value, at = _string(block, at)
            if name:
                found.append((name, value))
    return found


def _name(block: bytes, at: int, index: int) -> tuple[str, int]:
    """A field's name: a string, or an index of the static table; empty if the field is not needed."""
    if index == 0:
        return _string(block, at)
    if index > STATIC:
        raise MalformedError(f"index {index}")
    if index == _CONTENT_TYPE:
        return "content-type", at
    return ":status" if index in _STATUS else "", at


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    limit = (1 << prefix) - 1
    value, at, shift = block[at] & limit, at + 1, 0
    if value < limit:
        return value, at
    # Both bounds matter: groups of zeros do not make the value larger, but the block ends.
    while at < len(block) and value < INTEGER_MAX:
        byte, at = block[at], at + 1
        value += (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    raise MalformedError("an integer without an end")


def _string(block: bytes, at: int) -> tuple[str, int]:
    if at >= len(block):
        raise MalformedError("a field without its value")
    is_huffman = block[at] & 0x80
    size, at = _integer(block, at, 7)
    data = block[at : at + size]
    if len(data) < size:
        raise MalformedError("a string without an end")
    # Replaced instead of refused: the peer's words for an error may have any bytes, and they are only shown.
    return (_huffman(data) if is_huffman else data).decode("utf-8", "replace"), at + size


def _huffman(data: bytes) -> bytes:
    """Decode a Huffman-coded string, padded with ones, which is a prefix of the end's code."""
    out = bytearray()
    code = length = 0
    for byte in data:
        for shift in range(7, -1, -1):
            code, length = code << 1 | (byte >> shift & 1), length + 1
            # No code is the beginning of another one, so the first match is the symbol.
            symbol = _SYMBOLS.get((length, code))
            if symbol is None:
                continue
            if symbol == _END_OF_STRING:
                raise MalformedError("the end's code inside a string")
            out.append(symbol)
            code = length = 0
    # Padding of more than 7 bits, or of other bits than ones, is an error (RFC 7541, 5.2).
    if length > 7 or code != (1 << length) - 1:
        raise MalformedError("a string that ends inside a code")
    return bytes(out)
