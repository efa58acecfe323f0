"""Order-preserving integers and bytes, and the variable-length forms that do not preserve order.

Bytes: groups of 8, the last one padded with zeros, each followed by `0xFF - padding`. So the encoded forms
compare like the plain ones, and their end can be recognized. Integers: big-endian, the sign bit flipped.
Varints: Go's, zig-zag LEB128. Source: TiDB `pkg/util/codec/{bytes,number}.go`.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import InvalidInput, Undecodable

_SIGN: Final = 1 << 63
_MASK: Final = (1 << 64) - 1
_PADDING: Final = bytes(8)


def encode_bytes(data: bytes) -> bytes:
    """The memcomparable form; always at least one group."""
    groups = len(data) // 8
    out = bytearray()
    for i in range(groups):
        out += data[8 * i : 8 * i + 8] + b"\xff"
    # There is a last group even if nothing is left: only a group that is not full marks the end.
    rest = data[8 * groups :]
    out += rest + _PADDING[len(rest) :]
    out.append(0xFF - (8 - len(rest)))
    return bytes(out)


def decode_bytes(data: bytes, start: int = 0) -> tuple[bytes, int]:
    """The bytes whose memcomparable form begins at `start`, and the end of that form."""
    out = bytearray()
    at = start
    while True:
        group = data[at : at + 9]
        if len(group) < 9:
            raise Undecodable("memcomparable bytes are cut", why=f"{len(group)} of 9 bytes at {at}")
        padding = 0xFF - group[8]
        at += 9
        if padding == 0:
            out += group[:8]
            continue
        # Padding that is not zero would give two keys one value.
        if padding > 8 or any(group[8 - padding : 8]):
            raise Undecodable(
                "memcomparable bytes are damaged",
                why=f"a group at {at - 9} is {group.hex()}",
            )
        out += group[: 8 - padding]
        return bytes(out), at


def encode_int(value: int) -> bytes:
    """8 comparable bytes of a signed 64-bit integer."""
    if not -_SIGN <= value < _SIGN:
        raise InvalidInput(f"{value} does not fit a signed 64-bit integer")
    return (value + _SIGN).to_bytes(8, "big")


def decode_int(data: bytes, start: int = 0) -> int:
    """The signed integer of the 8 bytes at `start`."""
    return int.from_bytes(_take8(data, start), "big") - _SIGN


def encode_uint(value: int) -> bytes:
    """8 comparable bytes of an unsigned 64-bit integer."""
    if not 0 <= value <= _MASK:
        raise InvalidInput(f"{value} does not fit an unsigned 64-bit integer")
    return value.to_bytes(8, "big")


def decode_uint(data: bytes, start: int = 0) -> int:
    """The unsigned integer of the 8 bytes at `start`."""
    return int.from_bytes(_take8(data, start), "big")


def _take8(data: bytes, start: int) -> bytes:
    word = data[start : start + 8]
    if len(word) != 8:
        raise Undecodable("a comparable number is cut", why=f"{len(word)} of 8 bytes at {start}")
    return word


def encode_uvarint(value: int) -> bytes:
    """LEB128 of an unsigned 64-bit integer."""
    if not 0 <= value <= _MASK:
        raise InvalidInput(f"{value} does not fit an unsigned 64-bit integer")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: bytes, start: int) -> tuple[int, int]:
    """The LEB128 number at `start`, and its end."""
    value = 0
    # Ten groups of 7 bits hold 64 bits; an eleventh would be more than the number has.
    for i, byte in enumerate(data[start : start + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if value > _MASK:
                break
            return value, start + i + 1
    raise Undecodable("a varint is cut or too long", why=f"at {start}")


def encode_varint(value: int) -> bytes:
    """Zig-zag LEB128 of a signed 64-bit integer."""
    if not -_SIGN <= value < _SIGN:
        raise InvalidInput(f"{value} does not fit a signed 64-bit integer")
    return encode_uvarint((value << 1 ^ value >> 63) & _MASK)


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """The zig-zag number at `start`, and its end."""
    value, end = read_uvarint(data, start)
    return value >> 1 ^ -(value & 1), end


def encode_compact(data: bytes) -> bytes:
    """Zig-zag varint length, then the bytes."""
    return encode_varint(len(data)) + data


def read_compact(data: bytes, start: int) -> tuple[bytes, int]:
    """The compact bytes at `start`, and their end."""
    size, at = read_varint(data, start)
    if size < 0 or at + size > len(data):
        raise Undecodable("compact bytes are cut", why=f"{size} bytes at {at} of {len(data)}")
    return data[at : at + size], at + size
