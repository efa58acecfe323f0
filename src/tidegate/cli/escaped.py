"""Escapes bytes and texts of unknown origin, so that a terminal does not execute them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

WIDTH: Final = 16
"""Bytes in one line of a dump."""


def escaped(text: str) -> str:
    """The text with each character escaped that does not print as itself, such as controls and new lines."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text
    )


def as_text(data: bytes) -> str:
    """Bytes as escaped text; bytes that are not UTF-8 are in hex."""
    return escaped(data.decode(errors="backslashreplace"))


def hex_dump(data: bytes, most: int) -> Iterator[str]:
    """Lines with offset, hex and ASCII of the first `most` bytes; the last one counts the other bytes."""
    for at in range(0, min(len(data), most), WIDTH):
        part = data[at : min(at + WIDTH, most)]
        ascii_text = "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in part)
        yield f"{at:08x}  {part.hex(' '):<{3 * WIDTH - 1}}  |{ascii_text}|"
    if len(data) > most:
        yield f"and {len(data) - most:,} bytes more; --bytes says how many are shown"
