"""The parts that compiled decoders of binary messages share: messages' addresses, and cells to Arrow.

A protocol's kernels walk messages and write two words per cell (`Walked`); `table_of` makes the columns. The
protocol's decoder groups its messages, calls the walks, and passes messages that a walk left out to the plain
decoder, so that results never depend on the kernels. Memory: 12 bytes per cell, in addition to the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.codec.base import Batch, BinaryColumn, DecodedTable, WireColumn
from tidegate.codec.decoding.assemble import RowKey
from tidegate.codec.kernels import avro_column_kernels as kernels
from tidegate.codec.kernels.avro_read_kernels import R_OP, R_TS, RESULT_BYTES, MessageCells
from tidegate.kernel import address, buffer
from tidegate.model.cells import DELETE, INSERT

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
_SCRATCH_BYTES = 512


class Messages:
    """The messages of one call, with their addresses."""

    def __init__(self, batch: Batch) -> None:
        self.keys, self.values, self.headers = _large(batch.keys), _large(batch.values), batch.headers
        self.offsets = np.asarray(batch.offsets, dtype=np.int64)
        self.spans = np.empty((len(batch) + 1, 4), dtype=np.int64)
        """For each message: key address, key size, value address, value size; a size of -1 for null."""
        for at, column in ((0, self.keys), (2, self.values)):
            self.spans[:-1, at], self.spans[:-1, at + 1] = _spans(column)

    def __len__(self) -> int:
        return len(self.offsets)

    def subset(self, rows: Int64s) -> Batch:
        """The messages numbered in `rows`."""
        if len(rows) == len(self):
            return Batch(self.keys, self.values, self.offsets, self.headers)
        chosen = pa.array(rows)
        headers = None if self.headers is None else [self.headers[i] for i in rows.tolist()]
        return Batch(self.keys.take(chosen), self.values.take(chosen), self.offsets[rows], headers)


def _large(column: BinaryColumn) -> pa.Array:
    if isinstance(column, pa.Array):
        return column.cast(pa.large_binary())
    return pa.array(column, type=pa.large_binary())


def _spans(column: pa.Array) -> tuple[Int64s, Int64s]:
    _, offsets, data = column.buffers()
    # A slice of a column shares the offsets of the whole, so it has its part of them here.
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    sizes = np.diff(ends)
    if column.null_count:
        sizes = np.where(column.is_null().to_numpy(zero_copy_only=False), -1, sizes)
    return ends[:-1] + (data.address if data is not None else 0), sizes


@dataclass(frozen=True, slots=True)
class Walked:
    """Messages that a kernel has walked: one row of cells and one of results for each."""

    rows: Int64s
    """The numbers of these messages."""
    starts: Int64s
    lengths: Int32s
    results: Int64s

    @classmethod
    def of(cls, rows: Int64s, stride: int) -> Walked:
        """Arrays for messages with `stride` cells each."""
        n, words = len(rows), RESULT_BYTES // 8
        starts, lengths = np.empty((n, stride), dtype=np.int64), np.empty((n, stride), dtype=np.int32)
        return cls(rows, starts, lengths, np.empty((n, words), dtype=np.int64))

    @property
    def cells(self) -> MessageCells:
        """Cells and results, in the form that the kernels use."""
        parts = address(self.starts), address(self.lengths), address(self.results)
        return MessageCells(*parts, self.starts.shape[1])

    def result(self, word: int) -> Int64s:
        """One of the results, by its byte offset."""
        found: Int64s = self.results[:, word // 8]
        return found


def table_of(
    messages: Messages, key: RowKey, scales: Sequence[int], walked: Walked, old_at: int
) -> DecodedTable:
    """The rows of the messages that were walked to their end.

    scales: for a decimal in bytes its scale, otherwise -1. old_at: the first cell of the old image.
    """
    chosen = np.flatnonzero(walked.result(R_OP))
    op = walked.result(R_OP)[chosen].astype(np.uint8)
    images = [
        _image(key.columns, scales, walked, chosen, base) if has else None
        for base, has in ((0, bool((op != DELETE).any())), (old_at, bool((op != INSERT).any())))
    ]
    return DecodedTable(
        schema=key.schema,
        table=key.table,
        physical_id=key.physical_id,
        columns=key.columns,
        op=op,
        commit_ts=walked.result(R_TS)[chosen].view(np.uint64),
        offset=messages.offsets[walked.rows[chosen]],
        seq=np.zeros(len(chosen), dtype=np.int32),
        new=images[0],
        old=images[1],
        version=key.version,
    )


def _image(
    columns: Sequence[WireColumn], scales: Sequence[int], walked: Walked, chosen: Int64s, base: int
) -> pa.RecordBatch:
    arrays = [
        _column(column.type, scale, walked, chosen, base + i)
        for i, (column, scale) in enumerate(zip(columns, scales, strict=True))
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _column(to: pa.DataType, scale: int, walked: Walked, chosen: Int64s, cell: int) -> pa.Array:
    n, stride = len(chosen), walked.starts.shape[1]
    valid = np.empty(n, dtype=np.uint8)
    taken = kernels.Taken(n, address(chosen), address(walked.starts), address(walked.lengths), stride, cell)
    if not (pa.types.is_string(to) or pa.types.is_binary(to)):
        words = np.empty(n, dtype=np.int64)
        nulls = kernels.take_words(taken, address(words), address(valid))
        # The bits of a float are the lower half of its word.
        if to == pa.float32():
            words = words.astype(np.uint32)
        return pa.Array.from_buffers(to, n, [_mask(valid, nulls), pa.py_buffer(words)])
    size = kernels.measure_spans(taken)
    ends = np.zeros(n + 1, dtype=np.int32)
    if scale < 0:
        data = buffer(size)
        nulls = kernels.take_spans(taken, address(data), address(ends) + 4, address(valid))
    else:
        # At most three digits for each byte, and a sign, a first 0, a point and `scale` zeros.
        data, scratch = buffer(3 * size + n * (scale + 4)), buffer(_SCRATCH_BYTES)
        nulls = kernels.take_decimals(
            taken, scale, address(scratch), address(data), address(ends) + 4, address(valid)
        )
    return pa.Array.from_buffers(to, n, [_mask(valid, nulls), pa.py_buffer(ends), pa.py_buffer(data)])


def _mask(valid: npt.NDArray[np.uint8], nulls: int) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
