"""Vectors of 32-bit floats: u32 LE dimension, then f32 LE each. Text: `[1,2.5]`, no spaces."""

from __future__ import annotations

import math
import struct

from tidegate.errors import InvalidInput, Undecodable
from tidegate.tidb.types import float as floats


def elements(data: bytes) -> tuple[float, ...]:
    """The elements as Python floats."""
    # The first test matters: fewer bytes would be read as a small dimension.
    if len(data) < 4 or len(data) != 4 + 4 * int.from_bytes(data[:4], "little"):
        raise Undecodable("a vector is cut", why=f"{len(data)} bytes")
    return struct.unpack(f"<{(len(data) - 4) // 4}f", data[4:])


def decode(data: bytes) -> str:
    """The canonical text."""
    return "[" + ",".join(_text(value) for value in elements(data)) + "]"


def _text(value: float) -> str:
    if not math.isfinite(value):
        raise Undecodable("a vector holds no number", why=repr(value))
    return floats.fixed_text(value, single=True)


def encode(text: str) -> bytes:
    """The bytes of `[1,2.5]`."""
    inner = text.strip()
    if not (inner.startswith("[") and inner.endswith("]")):
        raise InvalidInput(f"{text!r} is not a vector")
    try:
        values = [float(part) for part in inner[1:-1].split(",")] if inner[1:-1].strip() else []
        if not all(map(math.isfinite, values)):
            raise ValueError("an element is not finite")
        return len(values).to_bytes(4, "little") + struct.pack(f"<{len(values)}f", *values)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{text!r} is not a vector", why=str(error)) from None
