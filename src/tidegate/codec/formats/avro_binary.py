"""Single values in Avro's binary form, shared by the protocols that write it."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """An int or long: zigzag, seven bits per byte, lowest first. 2**63 and above wrap to negative numbers."""
    value -= 1 << 64 if value >= 1 << 63 else 0
    rest = (value << 1 ^ value >> 63) & (1 << 64) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def sized(data: bytes) -> bytes:
    """A string or bytes."""
    return varint(len(data)) + data
