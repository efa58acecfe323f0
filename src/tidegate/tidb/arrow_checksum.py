"""The columns' checksum over Arrow columns, for readers of messages: computed and compared. Pure.

A message carries the CRC-32 of its row's columns in ascending order of column id
(docs/formats/checksums.md#what-messages-carry). Columns are in the form that decoders return
(`codec.base.DecodedTable`): integers, bit, enum and set as integers, floats, text and binary unchanged, all
others in canonical text. A delete carries nothing to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidInput
from tidegate.kernel import address
from tidegate.model.schema import Kind
from tidegate.tidb.kernels import checksum as checksum_kernels
from tidegate.tidb.kernels.checksum import FORMS, Form
from tidegate.tidb.kernels.crc import FULL
from tidegate.tidb.types import temporal, vector

Registers = npt.NDArray[np.uint32]
_TEXT_DIGITS: Final = 20
"""The length of `YYYY-MM-DD hh:mm:ss.`: the digits of the second follow."""


def sums(columns: pa.RecordBatch, kinds: Sequence[Kind], time_zone: str = "UTC") -> Registers:
    """uint32[n]: the columns' sum of each row.

    columns: those of a row image in ascending order of *column id*; kinds: the kind of each. time_zone: the
    IANA zone of TIMESTAMP texts. Raises InvalidInput for a column whose Arrow type does not fit its kind.
    """
    if len(kinds) != columns.num_columns:
        raise InvalidInput(f"{columns.num_columns} columns cannot have {len(kinds)} kinds")
    registers = np.full(columns.num_rows, FULL, dtype=np.uint32)
    for field, column, kind in zip(columns.schema, columns.columns, kinds, strict=True):
        try:
            _add(registers, column, kind, time_zone)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInput(
                f"a column of kind {kind.name} cannot be {column.type}",
                where=field.name,
                why=str(error)[:200],
            ) from None
    return registers ^ np.uint32(FULL)


def verify(
    columns: pa.RecordBatch, kinds: Sequence[Kind], expected: pa.Array, time_zone: str = "UTC"
) -> npt.NDArray[np.int64]:
    """The numbers of the rows whose columns do not give the `expected` sum (uint32; null: not compared)."""
    wanted = expected.cast(pa.uint32())
    compared = wanted.is_valid().to_numpy(zero_copy_only=False)
    found = sums(columns, kinds, time_zone)
    return np.flatnonzero(compared & (found != wanted.fill_null(0).to_numpy(zero_copy_only=False)))


def _add(registers: Registers, column: pa.Array, kind: Kind, time_zone: str) -> None:
    form = FORMS[kind]
    valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    if form in (Form.WORD, Form.FLOAT):
        words = _words(column, form)
        checksum_kernels.fold_words(len(words), address(words), address(valid), address(registers))
        return
    if kind is Kind.TIMESTAMP and time_zone.upper() != "UTC":
        column = _by_distinct(column, _to_utc(time_zone), pa.string())
    if form is Form.BARE:
        column = _by_distinct(column, vector.encode, pa.binary())
    # Large, so that the kernel reads offsets of 64 bits whatever type the column has.
    data = column.cast(pa.large_binary())
    _, ends, held = data.buffers()
    checksum_kernels.fold_bytes(
        *(len(data), address(ends) + 8 * data.offset, address(held), address(valid)),
        *(int(form is not Form.BARE), address(registers)),
    )


def _words(column: pa.Array, form: Form) -> npt.NDArray[np.int64]:
    """The 64 bits of each number, 0 for a null."""
    if form is Form.FLOAT:
        # A FLOAT as well: its sum is that of the double it is stored as.
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        return np.where(np.isfinite(numbers), numbers, 0.0).view(np.int64)
    if not pa.types.is_integer(column.type):
        raise pa.ArrowInvalid("not an integer")
    wide = pa.uint64() if pa.types.is_unsigned_integer(column.type) else pa.int64()
    filled = column.cast(wide).fill_null(0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(filled).view(np.int64)


def _by_distinct(column: pa.Array, convert: Callable[[str], str | bytes], to: pa.DataType) -> pa.Array:
    """Convert each distinct text only once."""
    encoded = pc.dictionary_encode(column.cast(pa.string()))
    return pa.array([convert(text) for text in encoded.dictionary.to_pylist()], to).take(encoded.indices)


def _to_utc(time_zone: str) -> Callable[[str], str]:
    zone = temporal.zone(time_zone)

    def convert(text: str) -> str:
        utc = temporal.to_utc(temporal.parse(text), zone)
        return temporal.datetime_text(utc, max(len(text) - _TEXT_DIGITS, 0))

    return convert
