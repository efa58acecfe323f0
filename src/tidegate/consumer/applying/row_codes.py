"""A number for each key, or for each whole row: equal rows get the same one in every process and release.

A write that was interrupted is completed by parts of these numbers (`parted`), so they are part of what is
kept.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)

Codes = npt.NDArray[np.uint64]


def parts_of(codes: Codes, parts: int) -> npt.NDArray[np.int64]:
    """The part of each row, 0 to parts - 1."""
    return (codes % np.uint64(parts)).astype(np.int64)


def codes_of(rows: pa.Table) -> Codes:
    """The number of each row, from all its columns in their order."""
    code: Codes = np.zeros(rows.num_rows, np.uint64)
    for column in rows.columns:
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        # Mixed after each column, so that rows with exchanged values, such as (1, 2) and (2, 1), get other
        # numbers.
        code = _mixed(code + _STEP + _numbers(array))
    return code


def _numbers(values: pa.Array) -> Codes:
    """A number for each value, equal for equal values: an integer itself, or a checksum of the text."""
    if pa.types.is_integer(values.type):
        filled = values.fill_null(0).to_numpy(zero_copy_only=False)
        wide: Codes = filled.astype(np.uint64)  # a negative number as its two's complement
        return wide
    if pa.types.is_list(values.type):
        # Arrow makes no text of a list.
        values = pa.array([None if one is None else repr(one) for one in values.to_pylist()], pa.string())
    if not pa.types.is_binary(values.type):
        values = values.cast(pa.string()).cast(pa.binary())
    # Only distinct values: a whole row has columns in which few values repeat.
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    distinct = encoded.dictionary.to_pylist()
    # A checksum and not `hash`, which gives another number in each process.
    sums = np.fromiter((zlib.crc32(value or b"") for value in distinct), np.uint64, len(distinct))
    found: Codes = sums[encoded.indices.to_numpy(zero_copy_only=False)]
    return found


def _mixed(code: Codes) -> Codes:
    """Mix the bits, with the finalizer of splitmix64.

    Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014.
    """
    code = (code ^ (code >> np.uint64(30))) * _MIX[0]
    code = (code ^ (code >> np.uint64(27))) * _MIX[1]
    mixed: Codes = code ^ (code >> np.uint64(31))
    return mixed
