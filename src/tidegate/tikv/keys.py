"""Key encodings of the store: memcomparable bytes, and the timestamp that follows them.

A user key is split into groups of 8 bytes, the last one padded with zeros; each group is followed by 0xFF
minus the pad count, and there is always a last group with at least one pad byte. Encoded keys therefore sort
like the keys themselves, and none is a prefix of another. A versioned key is the encoded key followed by the
big-endian complement of a timestamp, so the newest version comes first. (TiKV: components/codec,
txn_types/src/types.rs.)
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from tidegate.errors import Undecodable

TS_MAX: Final = (1 << 64) - 1
TS_BYTES: Final = 8
_GROUP: Final = 8
_STORED: Final = _GROUP + 1
_ZEROS: Final = tuple(bytes(pad) for pad in range(_GROUP + 1))
_MARKERS: Final = tuple(bytes([0xFF - pad]) for pad in range(_GROUP + 1))
_QUICK: Final = 32
"""Keys of fewer groups than this are split by prepared structs; longer keys are split in a loop."""
_GROUPS: Final = tuple(Struct("8s" * (n + 1)).unpack for n in range(_QUICK))
_SHAPES: Final = {
    b"\xff" * (n - 1) + bytes([0xFF - pad]): (Struct("8sx" * n).unpack, _STORED * n, _ZEROS[pad], -pad)
    for n in range(1, _QUICK)
    for pad in range(1, _GROUP + 1)
}
"""Marker bytes -> how to decode keys with these markers: unpack, length, padding, end."""
_U64: Final = Struct(">Q")
_pack = _U64.pack
_unpack = _U64.unpack


def encode(key: bytes) -> bytes:
    """The memcomparable form of a user key: 9 * (len // 8 + 1) bytes."""
    length = len(key)
    pad = _GROUP - length % _GROUP
    padded = key + _ZEROS[pad]
    whole = length // _GROUP
    if whole < _QUICK:
        return b"\xff".join(_GROUPS[whole](padded)) + _MARKERS[pad]
    groups = [padded[at : at + _GROUP] for at in range(0, length + 1, _GROUP)]
    return b"\xff".join(groups) + _MARKERS[pad]


def decode(encoded: bytes) -> bytes:
    """The user key of an encoded key without timestamp. Raises `Undecodable` if the bytes are not one."""
    shape = _SHAPES.get(encoded[_GROUP::_STORED])
    if shape is not None:
        groups, length, zeros, end = shape
        if len(encoded) == length:
            padded = b"".join(groups(encoded))
            if padded.endswith(zeros):
                return padded[:end]
    return _decode(encoded)


def _decode(encoded: bytes) -> bytes:
    """`decode` for long keys and for bytes that are not a key."""
    markers = encoded[_GROUP::_STORED]
    pad = 0xFF - markers[-1] if markers else 0
    if len(encoded) % _STORED or not 1 <= pad <= _GROUP or markers[:-1].strip(b"\xff"):
        raise Undecodable("a key is not memcomparable", where=encoded.hex())
    padded = b"".join([encoded[at : at + _GROUP] for at in range(0, len(encoded), _STORED)])
    if not padded.endswith(_ZEROS[pad]):
        raise Undecodable("a memcomparable key has a padding that is not zero", where=encoded.hex())
    return padded[:-pad]


def versioned(encoded: bytes, ts: int) -> bytes:
    """The key of the version at `ts`."""
    return encoded + _pack(ts ^ TS_MAX)


def version_of(key: bytes) -> int:
    """The timestamp of a versioned key."""
    (inverted,) = _unpack(key[-TS_BYTES:])
    return int(inverted) ^ TS_MAX
