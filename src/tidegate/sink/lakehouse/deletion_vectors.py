"""Deletion vectors of Delta tables: which rows of a data file are deleted, although the file still has them.

A vector is a set of row numbers, counted from 0 in their order in the data file. One file has the vectors of
one commit. The log names a data file together with its vector, so the next commit gives it another one.

    file     version u8 (1), then vectors, one after another
    vector   size u32 (of the bitmap), bitmap, CRC-32 of the bitmap u32; both numbers are big-endian
    bitmap   magic u32, count of 32-bit bitmaps u64, for each: its high 32 bits u32, Roaring's portable form;
             all numbers are little-endian. Row numbers here are below 2^32, so there is one bitmap, number 0

https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vector-format. delta-rs 1.6 reads them, and
has no code to write them.
"""

from __future__ import annotations

import array
import base64
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from tidegate.errors import Fatal

Positions = npt.NDArray[np.uint32]
"""Rows of one data file, ascending. A data file has far fewer than 2^32 rows."""

MAGIC: Final = 1_681_511_377
_VERSION: Final = b"\x01"
_SIZE: Final = struct.Struct(">I")
_CHECKSUM: Final = struct.Struct(">I")
_BITMAP_HEAD: Final = struct.Struct("<IQI")
_RELATIVE: Final = "u"
"""A vector in a file of the table's folder, whose name has a UUID."""
_UUID_CHARACTERS: Final = 20
_PYTHON_DIGITS: Final = (
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
)
_Z85_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85: Final = bytes.maketrans(_PYTHON_DIGITS, _Z85_DIGITS)
"""Both are base 85, with other characters for the digits. Python has Z85 itself from 3.13 on."""
_FROM_Z85: Final = bytes.maketrans(_Z85_DIGITS, _PYTHON_DIGITS)


@dataclass(frozen=True, slots=True)
class Vector:
    """Where the vector of a data file is, as the log has it."""

    id: uuid.UUID
    """The one in the file's name."""
    offset: int
    """Where the size that precedes the bitmap is in the file."""
    size: int
    """Bytes of the bitmap."""
    count: int
    """How many rows are deleted."""

    @property
    def file(self) -> str:
        """The file's path below the table."""
        return f"deletion_vector_{self.id}.bin"

    def to_json(self) -> dict[str, Any]:
        """The descriptor in an action of the log."""
        text = base64.b85encode(self.id.bytes).translate(_TO_Z85).decode()
        return {
            "storageType": _RELATIVE,
            "pathOrInlineDv": text,
            "offset": self.offset,
            "sizeInBytes": self.size,
            "cardinality": self.count,
        }

    @staticmethod
    def from_json(held: Mapping[str, Any]) -> Vector:
        """Parse a descriptor; Fatal for one that this module does not write."""
        text = held["pathOrInlineDv"]
        if held["storageType"] != _RELATIVE or len(text) != _UUID_CHARACTERS:
            raise Fatal(
                "a deletion vector is stored in a way that the consumer does not use",
                where=f"{held['storageType']} {text}",
                why="another program has deleted rows in a table of the target",
                fix="end the other writer, and restart the consumer at its newest snapshot",
            )
        number = base64.b85decode(text.encode().translate(_FROM_Z85))
        return Vector(
            uuid.UUID(bytes=number), held.get("offset") or 0, held["sizeInBytes"], held["cardinality"]
        )


def bitmap_of(positions: Positions) -> BitMap:
    """A bitmap of these rows."""
    # From an array of machine words: for any other sequence pyroaring makes a Python integer of each row.
    return BitMap(array.array("I", positions.astype(np.uint32).tobytes()))


def positions_in(bitmap: BitMap) -> Positions:
    """The rows of a bitmap."""
    return np.frombuffer(bitmap.to_array(), np.uint32)


def without(rows: pa.RecordBatch, dead: Positions, begin: int) -> pa.RecordBatch:
    """The rows that are not deleted; `begin`: the number of the first one."""
    here = dead[np.searchsorted(dead, begin) : np.searchsorted(dead, begin + rows.num_rows)]
    if not len(here):
        return rows
    alive = np.ones(rows.num_rows, np.bool_)
    alive[here - np.uint32(begin)] = False
    return rows.filter(pa.array(alive))


def file_of(bitmaps: Sequence[BitMap]) -> tuple[bytes, list[Vector]]:
    """The bytes of a file with these vectors, and where they are in it. The file's name follows from them."""
    parts, vectors, at, name = [_VERSION], list[Vector](), len(_VERSION), uuid.uuid4()
    for bitmap in bitmaps:
        data = _BITMAP_HEAD.pack(MAGIC, 1, 0) + bitmap.serialize()
        vectors.append(Vector(name, at, len(data), len(bitmap)))
        parts += [_SIZE.pack(len(data)), data, _CHECKSUM.pack(zlib.crc32(data))]
        at += _SIZE.size + len(data) + _CHECKSUM.size
    return b"".join(parts), vectors


def vector_in(data: bytes, vector: Vector, where: str) -> BitMap:
    """A vector of a file with these bytes; Fatal if it is damaged. `where`: the file, for the error."""
    begin = vector.offset + _SIZE.size
    end = begin + vector.size
    held = data[begin:end]
    whole = len(data) >= end + _CHECKSUM.size and data[:1] == _VERSION
    if (
        not whole
        or _SIZE.unpack_from(data, vector.offset)[0] != vector.size
        or _CHECKSUM.unpack_from(data, end)[0] != zlib.crc32(held)
        or _BITMAP_HEAD.unpack_from(held) != (MAGIC, 1, 0)
    ):
        raise _damaged(where, "its size, its checksum or its beginning is wrong")
    bitmap = BitMap.deserialize(held[_BITMAP_HEAD.size :])
    if len(bitmap) != vector.count:
        raise _damaged(where, f"it has {len(bitmap)} rows, and the log says {vector.count}")
    return bitmap


def _damaged(where: str, why: str) -> Fatal:
    return Fatal(
        "a file with deleted rows of a table is damaged",
        where=where,
        why=why,
        fix="restore the file, or start a new target",
    )
