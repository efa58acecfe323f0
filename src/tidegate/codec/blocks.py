"""Encode whole blocks: `RowBlock` in, `MessageBlock` out, through the compiled kernels.

The bytes are those of the plain encoders (`registry.encoder(options).encode_rows`), which are the oracle.
Called by the pipeline's tasks. Memory: one output buffer, sized by a guess of the block's text and grown
by half when it does not suffice; at most about 8 times the block's own variable-size bytes.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tidegate.codec import kernels
from tidegate.codec.base import CodecOptions, too_large
from tidegate.codec.fitting import encode_fitting
from tidegate.codec.json_text import go_printable
from tidegate.codec.large import LargeOptions
from tidegate.codec.plan import Bound, Plan
from tidegate.codec.registry import codec_of
from tidegate.kernel import PAD, address, buffer
from tidegate.model.message import MessageBlock
from tidegate.model.schema import TableSchema
from tidegate.model.slots import DELETE, INSERT, Image, RowBlock
from tidegate.tidb.json_kernels import STACK_WORDS
from tidegate.tidb.local_time import localised

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_SCRATCH_SLACK: Final = 8192


def encode_block(
    block: RowBlock,
    partition: npt.NDArray[np.int32],
    options: CodecOptions,
    build_ms: int = 0,
    room: Bytes | None = None,
) -> MessageBlock:
    """The messages of a block's rows, row i going to partition[i].

    Message i is row i, unless the protocol batches: then rows of one partition a message, partition after
    partition, rows of a partition in their order. `build_ms` is the wall clock, for protocols that send it.
    `room`: a buffer to use again when it is large enough; the result's data is then a view of it.
    Raises InvalidInput when one row does not fit a message. Under options that compress messages, or send
    rows that do not fit in another form, `codec.fitting` does that to what the kernels wrote.
    """
    if not isinstance(options, LargeOptions):
        return _Encoding(block, partition, options, build_ms, room).run()
    large = codec_of(options).large
    assert large is not None, "a protocol with these options says how it sends such rows"
    return encode_fitting(
        block,
        partition,
        options,
        large,
        lambda rows, to, plain: _Encoding(rows, to, plain, build_ms, room).run(),
    )


class _Encoding:
    """One call of `encode_block`: its job words and everything their addresses point to."""

    def __init__(
        self,
        block: RowBlock,
        partition: npt.NDArray[np.int32],
        options: CodecOptions,
        build_ms: int,
        room: Bytes | None,
    ) -> None:
        assert len(partition) == len(block), "a partition per row"
        self._block, self._options = block, options
        self._plan = plan_of(block.table, options, build_ms)
        self._framed = self._plan.framed
        for op, why in self._plan.refused.items():
            if (block.op == op).any():
                raise why.with_traceback(None)
        self._bound = self._plan.bind(build_ms)
        self._partition = np.ascontiguousarray(partition, dtype=np.int32)
        self._order = _order(self._partition) if self._framed else None
        self._job = np.zeros(kernels.JOB_WORDS, dtype=np.int64)
        self._keep: list[npt.NDArray[np.generic]] = []
        self._results = _results(len(block))
        self._describe_rows()
        self._describe_plan(self._plan, self._bound)
        self._set(kernels.J_BUILD, build_ms)
        self._data = self._first_buffer(room)

    def _set(self, word: int, value: int | npt.NDArray[np.generic]) -> None:
        if isinstance(value, np.ndarray):
            self._keep.append(value)
            value = address(value)
        self._job[word // 8] = value

    def _describe_rows(self) -> None:
        block = self._block
        self._set(kernels.J_ROWS, len(block))
        if self._order is not None:
            self._set(kernels.J_ORDER, self._order)
        self._set(kernels.J_OP, np.ascontiguousarray(block.op))
        self._set(kernels.J_COMMIT_TS, np.ascontiguousarray(block.commit_ts))
        self._set(kernels.J_PHYSICAL, np.ascontiguousarray(block.physical_id))
        self._set(kernels.J_HANDLE, np.ascontiguousarray(block.handle))
        self._set(kernels.J_PARTITION, self._partition)
        if block.checksums is not None:
            self._set(kernels.J_CHECKSUMS, np.ascontiguousarray(block.checksums))
        new, old = self._image(block.new, block.op != DELETE), self._image(block.old, block.op != INSERT)
        self._set(kernels.J_NEW_A, new.a)
        self._set(kernels.J_NEW_L, new.l)
        self._set(kernels.J_NEW_STRIDE, new.a.shape[1])
        self._set(kernels.J_OLD_A, old.a)
        self._set(kernels.J_OLD_L, old.l)
        self._set(kernels.J_OLD_STRIDE, old.a.shape[1])

    def _image(self, image: Image, valid: npt.NDArray[np.bool_]) -> Image:
        """The image with TIMESTAMP columns in the feed's zone."""
        assert image.a.flags.c_contiguous, "images are contiguous"
        assert image.l.flags.c_contiguous, "images are contiguous"
        assert len(image.a) == len(valid), "an image has a row per change"
        return localised(image, self._plan.zoned, valid, self._options.time_zone)

    def _describe_plan(self, plan: Plan, bound: Bound) -> None:
        options = self._options
        self._set(kernels.J_PIECES, bound.pieces)
        self._set(kernels.J_VARIABLES, plan.variables)
        self._set(kernels.J_FIXED, plan.fixed)
        self._set(kernels.J_MAX_BYTES, options.max_message_bytes)
        self._set(kernels.J_MAX_ROWS, plan.max_rows)
        if plan.quoted:
            self._set(kernels.J_PRINTABLE, printable_bits())
        # One address for all of a kind: asking numpy for one costs as much as the kernel for ten rows.
        wide, narrow = self._results
        at, small_at = address(wide), address(narrow)
        for number, word in enumerate(_WIDE_RESULTS):
            self._set(word, at + number * wide.strides[0])
        for number, word in enumerate(_NARROW_RESULTS):
            self._set(word, small_at + number * narrow.strides[0])

    def _first_buffer(self, room: Bytes | None) -> Bytes:
        """A buffer for the typical text of this block; also scratch memory for its largest value."""
        plan, rows = self._plan, len(self._block)
        variable = kernels.measure(address(self._job))
        largest = int(self._job[kernels.J_NEED // 8])
        if plan.json_columns or len(plan.variables) > 1:
            self._set(kernels.J_SCRATCH, buffer(24 * largest + _SCRATCH_SLACK))
            self._set(kernels.J_STACK, np.empty(STACK_WORDS, dtype=np.int64))
        else:
            self._set(kernels.J_SCRATCH, buffer(_SCRATCH_SLACK))
        keys = rows * plan.key_bound if self._framed else 0
        per_op = np.bincount(self._block.op, minlength=4)[:4]
        guess = int((per_op * plan.typical).sum()) + variable + variable // 2
        size = keys + guess + int(plan.fixed.max()) + 16 * largest
        data = room if room is not None and len(room) >= size + PAD else buffer(size)
        self._set(kernels.J_DATA, address(data))
        self._set(kernels.J_OUT, keys)
        self._set(kernels.J_ROOM, len(data) - PAD)
        return data

    def _grow(self) -> None:
        used, need = int(self._job[kernels.J_OUT // 8]), int(self._job[kernels.J_NEED // 8])
        larger = buffer(max(len(self._data) + len(self._data) // 2, used + need))
        larger[:used] = self._data[:used]
        self._data = larger
        self._set(kernels.J_DATA, address(larger))
        self._set(kernels.J_ROOM, len(larger) - PAD)

    def run(self) -> MessageBlock:
        """Call the kernel until all rows are written."""
        while True:
            status = self._plan.encode(address(self._job))
            if status == kernels.DONE:
                break
            if status == kernels.TOO_LARGE:
                raise too_large(self._block.table.name, int(self._job[kernels.J_NEED // 8]), self._options)
            self._grow()
        count = int(self._job[kernels.J_MESSAGES // 8])
        wide, narrow = self._results[0][:, :count], self._results[1][:, :count]
        return MessageBlock(self._data, wide[0], wide[1], wide[2], wide[3], narrow[0], narrow[1])


_WIDE_RESULTS: Final = (
    kernels.J_KEY_START,
    kernels.J_KEY_LENGTH,
    kernels.J_VALUE_START,
    kernels.J_VALUE_LENGTH,
)
_NARROW_RESULTS: Final = (kernels.J_MESSAGE_PARTITION, kernels.J_MESSAGE_ROWS)


def _results(rows: int) -> tuple[Int64s, npt.NDArray[np.int32]]:
    """A row of memory for each of the kernel's results."""
    wide = np.empty((len(_WIDE_RESULTS), rows), dtype=np.int64)
    return wide, np.empty((len(_NARROW_RESULTS), rows), dtype=np.int32)


def _order(partition: npt.NDArray[np.int32]) -> Int64s | None:
    """Rows by partition, stable; None when there is one partition only."""
    if len(partition) == 0 or (partition == partition[0]).all():
        return None
    small = partition.astype(np.int16) if partition.max() < 1 << 15 else partition
    return np.argsort(small, kind="stable").astype(np.int64, copy=False)


@cache
def printable_bits() -> Bytes:
    """Go's strconv.IsPrint, a bit per code point; surrogates are never asked for."""
    shown = np.fromiter((go_printable(chr(code)) for code in range(sys.maxunicode + 1)), dtype=np.bool_)
    return np.packbits(shown, bitorder="little")


_plans: WeakKeyDictionary[TableSchema, dict[tuple[CodecOptions, int], Plan]] = WeakKeyDictionary()
MAX_PLANS: Final = 16
"""Plans kept for one table version (options and length of the build time differ)."""


def plan_of(table: TableSchema, options: CodecOptions, build_ms: int) -> Plan:
    """The plan of a table version, made once and kept while the table lives."""
    digits = len(str(build_ms))
    plans = _plans.setdefault(table, {})
    plan = plans.get((options, digits))
    if plan is None:
        if len(plans) >= MAX_PLANS:
            plans.clear()
        plan = plans[options, digits] = codec_of(options).plan(table, options, digits)
    return plan
