"""One cell of a `RowBlock` as a stored value, for plain twins and for texts about a row."""

from __future__ import annotations

import ctypes
import struct

import numpy as np

from tidegate.model.cells import NULL, Image
from tidegate.model.schema import Kind
from tidegate.tidb.row import Stored

_POINTERS = frozenset({Kind.DECIMAL, Kind.STRING, Kind.BYTES, Kind.JSON, Kind.VECTOR})
_UNSIGNED = frozenset({Kind.UINT, Kind.ENUM, Kind.SET, Kind.BIT, Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})


def stored_of(image: Image, row: int, column: int, kind: Kind) -> Stored:
    """The stored value (`tidb.row`) in a cell; bytes are copied."""
    word, size = int(image.words[row, column]), int(image.sizes[row, column])
    if size == NULL:
        return None
    if kind in _POINTERS:
        return ctypes.string_at(word, size)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        number: float = struct.unpack("<d", struct.pack("<q", word))[0]
        return number
    return int(np.int64(word).view(np.uint64)) if kind in _UNSIGNED else word
