"""JSON text byte for byte as Go's three JSON writers produce it, and Go's strconv.Quote.

The three: docs/formats/protocols.md#json-text.

Plain twins: `codec.kernels.text_kernels` and `codec.kernels.row_kernels` do the same over raw memory.
"""

from __future__ import annotations

import math
import re
from typing import Final

from tidegate.tidb.types import float as floats

_SPECIAL: Final = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029\udc80-\udcff]')
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_SHORT_STD: Final = _SHORT | {"\b": "\\b", "\f": "\\f"}
_QUOTE_SHORT: Final = _SHORT_STD | {"\a": "\\a", "\v": "\\v"}

PRINTABLE_SINCE_15: Final = (
    (0x0CF3, 0x0CF3), (0x0ECE, 0x0ECE), (0x10EFD, 0x10EFF), (0x1123F, 0x11241), (0x11B00, 0x11B09),
    (0x11F00, 0x11F10), (0x11F12, 0x11F3A), (0x11F3E, 0x11F59), (0x13440, 0x13455), (0x1B132, 0x1B132),
    (0x1B155, 0x1B155), (0x1D2C0, 0x1D2D3), (0x1DF25, 0x1DF2A), (0x1E030, 0x1E06D), (0x1E08F, 0x1E08F),
    (0x1E4D0, 0x1E4F9), (0x1F6DC, 0x1F6DC), (0x1F774, 0x1F776), (0x1F77B, 0x1F77F), (0x1F7D9, 0x1F7D9),
    (0x1FA75, 0x1FA77), (0x1FA87, 0x1FA88), (0x1FAAD, 0x1FAAF), (0x1FABB, 0x1FABD), (0x1FABF, 0x1FABF),
    (0x1FACE, 0x1FACF), (0x1FADA, 0x1FADB), (0x1FAE8, 0x1FAE8), (0x1FAF7, 0x1FAF8), (0x31350, 0x323AF),
)  # fmt: skip
"""Printable in Unicode 15.0 (Go's tables) and unassigned in 14.0 (Python 3.11's)."""


def _escape(text: str, short: dict[str, str]) -> bytes:
    def replace(match: re.Match[str]) -> str:
        char = match.group()
        if char in short:
            return short[char]
        # The decoding has made a lone surrogate of each byte that is no UTF-8.
        return "\\ufffd" if char >= "\udc80" else f"\\u{ord(char):04x}"

    return b'"' + _SPECIAL.sub(replace, text).encode() + b'"'


def std_string(data: bytes) -> bytes:
    """A quoted string as Go's encoding/json writes it (1.22 on); invalid UTF-8 becomes U+FFFD."""
    return _escape(data.decode("utf-8", "surrogateescape"), _SHORT_STD)


def easy_string(data: bytes) -> bytes:
    """A quoted string as easyjson and goccy/go-json write it: no short escapes of backspace and form feed."""
    return _escape(data.decode("utf-8", "surrogateescape"), _SHORT)


_SPECIAL_RAW: Final = re.compile(rb'[\x00-\x1f"\\]')
_SHORT_RAW: Final = {b"\n": rb"\n", b"\r": rb"\r", b"\t": rb"\t", b'"': rb"\"", b"\\": rb"\\"}


def raw_string(data: bytes) -> bytes:
    """A quoted string as json-iterator writes it without EscapeHTML; bytes that are not UTF-8 are copied."""

    def replace(match: re.Match[bytes]) -> bytes:
        char = match.group()
        return _SHORT_RAW.get(char) or rb"\u%04x" % char[0]

    return b'"' + _SPECIAL_RAW.sub(replace, data) + b'"'


def go_printable(char: str) -> bool:
    """Go's strconv.IsPrint."""
    if char.isprintable():
        return True
    code = ord(char)
    return code > 0xCF0 and any(low <= code <= high for low, high in PRINTABLE_SINCE_15)


def _quote_char(char: str) -> str:
    code = ord(char)
    if char in _QUOTE_SHORT:
        return _QUOTE_SHORT[char]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if go_printable(char):
        return char
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def go_quote(data: bytes) -> bytes:
    """Go's strconv.Quote of the bytes, without the outer quotes."""
    return "".join(map(_quote_char, data.decode("utf-8", "surrogateescape"))).encode()


_UNQUOTE: Final = re.compile(
    rb"\\(?:([abfnrtv\\\"'])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3}))?"
)
_UNQUOTE_SHORT: Final = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\", b'"': b'"', b"'": b"'",
}  # fmt: skip


def go_unquote(text: bytes) -> bytes:
    """The inverse of `go_quote`; raises ValueError for a malformed escape."""
    if b"\\" not in text:
        return text

    def replace(match: re.Match[bytes]) -> bytes:
        short, byte, four, eight, octal = match.groups()
        if short is not None:
            return _UNQUOTE_SHORT[short]
        if byte is not None:
            return bytes([int(byte, 16)])
        # Go's Quote writes no octal escapes, but its Unquote reads them.
        if octal is not None and int(octal, 8) < 256:
            return bytes([int(octal, 8)])
        rune = four or eight
        if rune is None:
            raise ValueError(f"bad escape at byte {match.start()} of a quoted binary value")
        return chr(int(rune, 16)).encode()

    return _UNQUOTE.sub(replace, text)


def json_float(value: float, single: bool) -> bytes:
    """A number as encoding/json writes a float32 or float64; NaN and infinities are 0."""
    if not math.isfinite(value):
        return b"0"
    if value == 0:
        return floats.fixed_text(value, single=single).encode()
    digits, point = floats.digits32(abs(value)) if single else floats.digits64(abs(value))
    if -6 < point <= 21:
        return floats.fixed_text(value, single=single).encode()
    mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{'-' if value < 0 else ''}{mantissa}e{point - 1:+d}".encode()


def iterator_float(value: float, single: bool) -> bytes:
    """A number as json-iterator writes it: as encoding/json does, but exponents have two digits (`1e-07`)."""
    text = json_float(value, single)
    # A positive exponent has two digits in any case: it is 21 or more.
    return text[:-1] + b"0" + text[-1:] if text[-3:-1] == b"e-" else text
