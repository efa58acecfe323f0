"""The CRC-64 of RawChecksum: one sum for each pair, over key and value; the sums are combined by XOR.

The polynomial is ECMA-182's in the form of xz (reflected, all bits set before and inverted after), as TiKV's
crc64fast computes it.
"""

from __future__ import annotations

from typing import Final

_POLYNOMIAL: Final = 0xC96C5795D7870F42
_ALL: Final = (1 << 64) - 1


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(_entry(byte) for byte in range(256))


def crc64(data: bytes) -> int:
    """The CRC-64 of some bytes."""
    found = _ALL
    for byte in data:
        found = _TABLE[(found ^ byte) & 0xFF] ^ found >> 8
    return found ^ _ALL
