"""Keys as users write them on a command line, in the three formats of TiKV-CDC. Pure."""

from __future__ import annotations

import re
from typing import Final

from tidegate.errors import InvalidInput

FORMATS: Final = ("hex", "raw", "escaped")
"""hex: two digits per byte; raw: the text itself, in UTF-8; escaped: raw, with Go's escapes for bytes."""

_ESCAPES: Final = "a backslash wants x and two hex digits, three octal ones, or one of abfnrtv\\'\""
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([0-3][0-7]{2})|([abfnrtv\\'\"])|)")
_NAMED: Final = dict(zip(b"abfnrtv\\'\"", b"\a\b\f\n\r\t\v\\'\"", strict=True))


def parse_key(text: str, written: str) -> bytes:
    """The bytes of a key. Raises InvalidInput if the text does not have this format."""
    try:
        match written:
            case "hex":
                return bytes.fromhex(text)
            case "raw":
                return text.encode()
            case "escaped":
                return _ESCAPE.sub(_byte, text.encode())
    except ValueError as error:
        raise InvalidInput(
            f"'{text[:40]}' is not a key written as {written}",
            why=str(error),
            fix=f"choose another --format ({', '.join(FORMATS)}), or correct the key",
        ) from error
    raise InvalidInput(f"keys cannot be written as '{written}'", fix=f"use --format {', '.join(FORMATS)}")


def _byte(found: re.Match[bytes]) -> bytes:
    digits, octal, name = found.groups()
    if digits:
        return bytes.fromhex(digits.decode())
    if octal:
        return bytes([int(octal, 8)])
    if name:
        return bytes([_NAMED[name[0]]])
    raise ValueError(_ESCAPES)
