"""Integers as row format v2 stores them: the shortest of 1, 2, 4 or 8 bytes, little-endian.

Signed form: tinyint..bigint, year, time (nanoseconds). Unsigned form: unsigned integers, enum, set, bit
and packed times. Source: TiDB `pkg/util/rowcodec/common.go`.
"""

from __future__ import annotations

from tidegate.errors import InvalidInput, Undecodable

_WIDTHS = (1, 2, 4, 8)


def decode_signed(data: bytes) -> int:
    """The signed integer of 1, 2, 4 or 8 bytes."""
    _check_width(data)
    return int.from_bytes(data, "little", signed=True)


def decode_unsigned(data: bytes) -> int:
    """The unsigned integer of 1, 2, 4 or 8 bytes."""
    _check_width(data)
    return int.from_bytes(data, "little")


def encode_signed(value: int) -> bytes:
    """The shortest form of an integer in [-2**63, 2**63)."""
    for width in _WIDTHS:
        if -(1 << 8 * width - 1) <= value < 1 << 8 * width - 1:
            return value.to_bytes(width, "little", signed=True)
    raise InvalidInput(f"{value} does not fit a signed 64-bit integer")


def encode_unsigned(value: int) -> bytes:
    """The shortest form of an integer in [0, 2**64)."""
    for width in _WIDTHS:
        if 0 <= value < 1 << 8 * width:
            return value.to_bytes(width, "little")
    raise InvalidInput(f"{value} does not fit an unsigned 64-bit integer")


def _check_width(data: bytes) -> None:
    if len(data) not in _WIDTHS:
        raise Undecodable("an integer is cut", why=f"{len(data)} bytes, an integer has 1, 2, 4 or 8")
