"""Turns rows into numbers: a fingerprint of 64 bits of a row's values, and the word that places it in a
range.

On both sides the values have the target's Arrow types. Equal rows have equal fingerprints: -0.0 counts as
0.0, and NULL differs from every value. Different rows have the same one with a probability of 2**-64.

    state := seed; each column: step(2 * position + 1), then its words; NULL: step(2 * position)

A value of fixed width is one word, a decimal two. Bytes are their length, then words of eight bytes,
little-endian, the last one padded with zeros. A vector is folded as its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.kernel import address
from tidegate.verify import kernels

U64s = npt.NDArray[np.uint64]

ROW: Final = 0x7469646567617465
"""Seed for a whole row."""
KEY: Final = 0x6B65790000000001
"""Seed for the columns that identify a row."""
_SIGN: Final = np.uint64(1 << 63)


def fingerprints(rows: pa.RecordBatch, seed: int = ROW) -> U64s:
    """uint64[n]: each row's fingerprint over all columns of the batch, in their order."""
    states = np.full(rows.num_rows, seed, np.uint64)
    for at, column in enumerate(rows.columns):
        _fold(column, at, states)
    return states


def _fold(column: pa.Array, at: int, states: U64s) -> None:
    """Fold a column into the states. The kernels read Arrow's buffers by address."""
    n, of_type = len(column), column.type
    if pa.types.is_floating(of_type):
        # 0 and -0 are equal for SQL, but have other bits.
        column = _without_negative_zero(column)
    valid, *buffers = column.buffers()[:3]
    validity = kernels.Validity(address(valid) if column.null_count else 0, column.offset)
    if pa.types.is_list(of_type):
        elements = _without_negative_zero(column.values)
        data = address(elements.buffers()[1]) + 4 * elements.offset
        ends = address(buffers[0]) + 4 * column.offset
        kernels.fold_bytes(n, ends, data, 4, validity, at, address(states))
    elif pa.types.is_string(of_type) or pa.types.is_binary(of_type):
        ends = address(buffers[0]) + 4 * column.offset
        kernels.fold_bytes(n, ends, address(buffers[1]), 1, validity, at, address(states))
    else:
        width = of_type.bit_width // 8
        data = address(buffers[0]) + width * column.offset
        kernels.fold_fixed(n, data, width, validity, at, address(states))


def _without_negative_zero(column: pa.Array) -> pa.Array:
    # -0.0 + 0 is 0.0.
    return pc.add(column, pa.scalar(0, column.type))


def order_words(handles: pa.Array) -> U64s:
    """The order words of rows by their integer key: they ascend like the record keys in TiKV.

    handles: any integer type of the target, also unsigned bigint (decimal).
    """
    if pa.types.is_decimal(handles.type):
        data = np.frombuffer(handles.buffers()[1], np.uint64)
        # Only the lower halves: an unsigned 64-bit key has nothing in the upper one.
        words = data[2 * handles.offset : 2 * (handles.offset + len(handles)) : 2]
    else:
        words = handles.cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)
    # TiKV's integer keys have the sign bit flipped, so that negative ones come first (tidb
    # `util/codec/number.go`).
    found: U64s = words ^ _SIGN
    return found


# --- the plain twin -------------------------------------------------------------------------------------

_MASK: Final = (1 << 64) - 1
_DIGITS: Final = Context(prec=80)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def plain(row: Sequence[Any], types: Sequence[pa.DataType], seed: int = ROW) -> int:
    """One row's fingerprint, from values as `pa.Array.to_pylist` returns them."""
    state = seed
    for at, (value, of_type) in enumerate(zip(row, types, strict=True)):
        state = _step(state, 2 * at + (value is not None))
        if value is not None:
            for word in _words(value, of_type):
                state = _step(state, word)
    return state


def _step(state: int, word: int) -> int:
    state = (state ^ word) * 0x9E3779B97F4A7C15 & _MASK
    state = (state ^ state >> 32) * 0xD6E8FEB86659FD93 & _MASK
    return state ^ state >> 29


def _words(value: Any, of_type: pa.DataType) -> Iterator[int]:
    data = _bytes(value, of_type)
    if isinstance(value, str | bytes | list):
        yield len(data)
    for at in range(0, len(data), 8):
        yield int.from_bytes(data[at : at + 8], "little")


def _bytes(value: Any, of_type: pa.DataType) -> bytes:
    match value:
        case str():
            return value.encode()
        case bytes():
            return value
        case list():
            return b"".join(struct.pack("<f", element + 0.0) for element in value)
        case float():
            return struct.pack("<f" if of_type.bit_width == 32 else "<d", value + 0.0)
        case Decimal():
            return int(value.scaleb(of_type.scale, _DIGITS)).to_bytes(16, "little", signed=True)
        # Before `date`, because every datetime is a date.
        case datetime():
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
            since = moment - _EPOCH
            number = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
            return number.to_bytes(8, "little", signed=True)
        case date():
            return (value - _EPOCH.date()).days.to_bytes(4, "little", signed=True)
    return int(value).to_bytes(of_type.bit_width // 8, "little", signed=True)
