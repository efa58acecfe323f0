"""Floating point: the 8 comparable bytes in rows, and Go's shortest texts.

A float (32 bit) is stored widened to 64 bit. Source: TiDB `pkg/util/codec/float.go`.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from tidegate.errors import Undecodable

_SIGN = 1 << 63


def decode(data: bytes) -> float:
    """The float of 8 comparable bytes."""
    if len(data) != 8:
        raise Undecodable("a float is cut", why=f"{len(data)} bytes of 8")
    bits = int.from_bytes(data, "big")
    # A set sign bit means a number from 0 on; otherwise all bits were inverted.
    bits = bits & ~_SIGN if bits & _SIGN else ~bits & (1 << 64) - 1
    value: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    return value


def encode(value: float) -> bytes:
    """The comparable 8 bytes: sign bit set from 0 on, every bit inverted below; -0 becomes 0."""
    bits: int = struct.unpack(">Q", struct.pack(">d", value))[0]
    # -0.0 is not below 0, and its sign bit is set already, so it gets the bytes of 0.0.
    bits = bits | _SIGN if value >= 0 else ~bits & (1 << 64) - 1
    return bits.to_bytes(8, "big")


def to_float32(value: float) -> float:
    """The nearest 32-bit float, as a Python float; infinity beyond its range."""
    # Infinity is the wanted result, and numpy would warn about it.
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def digits64(value: float) -> tuple[str, int]:
    """Shortest digits and decimal exponent of a finite double > 0: value = 0.DIGITS * 10**exponent."""
    return _digits(repr(value))


def digits32(value: float) -> tuple[str, int]:
    """As `digits64`, for a value that is a 32-bit float."""
    return _digits(np.format_float_scientific(np.float32(value), unique=True, trim="-"))


def _digits(text: str) -> tuple[str, int]:
    mantissa, _, exponent = text.partition("e")
    whole, _, frac = mantissa.partition(".")
    digits = (whole + frac).lstrip("0")
    dropped = len(whole + frac) - len(digits)
    return digits.rstrip("0") or "0", len(whole) - dropped + int(exponent or "0")


def fixed_text(value: float, *, single: bool) -> str:
    """Go's `FormatFloat(v, 'f', -1, bits)`: shortest digits, never an exponent; or `NaN`, `+Inf`, `-Inf`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return sign + "0"
    # A 32-bit float has fewer shortest digits: 0.1 widened to 64 bits would be 0.10000000149011612.
    digits, exponent = digits32(abs(value)) if single else digits64(abs(value))
    if exponent <= 0:
        return f"{sign}0.{'0' * -exponent}{digits}"
    whole = digits[:exponent].ljust(exponent, "0")
    return f"{sign}{whole}.{digits[exponent:]}" if len(digits) > exponent else sign + whole


def exponent_text(value: float, *, single: bool) -> str:
    """Go's 'e' format with shortest digits, but without `+` or padding of the exponent: `1.5e19`."""
    sign = "-" if value < 0 else ""
    digits, exponent = digits32(abs(value)) if single else digits64(abs(value))
    mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{sign}{mantissa}e{exponent - 1}"
