"""Encodes whole blocks: `RowBlock` in, `MessageBlock` out, through the compiled kernels.

The bytes equal those of the plain encoders (`registry.encoder(options).encode_rows`), which are the oracle.
Called by the pipeline's tasks. Memory: one output buffer, first sized by a guess of the block's text and
grown by half whenever it is too small; at most about 8 times the block's own variable-size bytes.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tidegate.codec.base import CodecOptions, too_large
from tidegate.codec.fitting import encode_fitting
from tidegate.codec.formats.json_text import PRINTABLE_SINCE_15
from tidegate.codec.kernels import encode_kernels as kernels
from tidegate.codec.kernels import job_kernels
from tidegate.codec.large import LargeOptions
from tidegate.codec.plan import Bound, EncodePlan
from tidegate.codec.registry import codec_of
from tidegate.kernel import PAD, address, buffer
from tidegate.model.cells import DELETE, INSERT, Image, RowBlock, Taken
from tidegate.model.message import MessageBlock
from tidegate.model.schema import TableSchema
from tidegate.tidb.kernels.json import STACK_WORDS
from tidegate.tidb.local_time import localised

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_SCRATCH_SLACK: Final = 8192
_SHARE: Final = 16
"""An extent counts only if its largest image is at most one part in so many of its total. A larger image may
be of a row that is in another part of the block, and memory for 40 times its bytes would be asked for."""
SCRATCH_BYTES: Final = 1 << 16
"""Scratch memory that is kept between calls: enough for values of up to 2,000 bytes."""


def encode_block(
    block: RowBlock,
    partition: npt.NDArray[np.int32],
    options: CodecOptions,
    build_ms: int = 0,
    taken: Taken = buffer,
) -> MessageBlock:
    """The messages of a block's rows; row i goes to partition[i].

    Message i is row i, unless the protocol batches: then each message has rows of one partition, partition
    after partition, in the order of the block. `build_ms` is the wall clock, for protocols that send it.
    `taken`: gives memory for that many bytes of messages and `PAD` more, which the result refers to.
    Raises InvalidInput if a row does not fit a message. If the options compress messages, or send rows that
    do not fit in a reduced form, `codec.fitting` does so with the messages that the kernels wrote.
    """
    if not isinstance(options, LargeOptions):
        return _Encoding(block, partition, options, build_ms, taken).run()
    large = codec_of(options).large
    assert large is not None, "a protocol with these options says how it sends such rows"
    return encode_fitting(
        block,
        partition,
        options,
        large,
        # Each reduced row is encoded by itself. With `taken`, the memory of all would be held at once.
        lambda rows, to, plain: _Encoding(
            rows, to, plain, build_ms, taken if rows is block else buffer
        ).run(),
    )


class _Encoding:
    """One call of `encode_block`. Small blocks pay its fixed cost, so nothing is looked up twice here."""

    def __init__(
        self,
        block: RowBlock,
        partition: npt.NDArray[np.int32],
        options: CodecOptions,
        build_ms: int,
        taken: Taken,
    ) -> None:
        assert len(partition) == len(block), "a partition per row"
        self._block, self._options, self._build_ms, self._taken = block, options, build_ms, taken
        self._plan = plan_of(block.table, options, build_ms)
        for op, why in self._plan.refused.items():
            if (block.op == op).any():
                # The plan keeps this error and raises it for every such block: its traceback would grow, and
                # keep blocks alive.
                raise why.with_traceback(None)
        self._partition = np.ascontiguousarray(partition, dtype=np.int32)

    def run(self) -> MessageBlock:
        """The messages."""
        bound, workspace = self._plan.bind(self._build_ms), _workspace()
        try:
            return self._encoded(bound, workspace)
        finally:
            WORKSPACES.append(workspace)
            self._plan.release(bound)

    def _encoded(self, bound: Bound, workspace: Workspace) -> MessageBlock:
        """Call the kernel until it has written all rows."""
        plan, job, results = self._plan, bound.job, _results(len(self._block))
        kept = self._describe_rows(job)
        self._describe_results(job, results)
        data, scratch = self._first_buffer(bound, workspace)
        while True:
            status = plan.encode(bound.job_at)
            if status == job_kernels.DONE:
                break
            if status == job_kernels.TOO_LARGE:
                raise too_large(self._block.table.name, int(job[job_kernels.J_NEED // 8]), self._options)
            data = _grown(job, data)
        del kept, scratch  # alive until here: the job pointed into them
        count = int(job[job_kernels.J_MESSAGES // 8])
        wide, narrow = results[0][:, :count], results[1][:, :count]
        return MessageBlock(data, wide[0], wide[1], wide[2], wide[3], narrow[0], narrow[1])

    def _describe_rows(self, job: Int64s) -> list[npt.NDArray[Any] | None]:
        """Fill in the job's words about the rows; returns the arrays that they point to."""
        block, partition = self._block, self._partition
        order = _order(partition) if self._plan.framed else None
        new, old = self._images()
        sums = None if block.checksums is None else np.ascontiguousarray(block.checksums)
        lines = [
            np.ascontiguousarray(line)
            for line in (block.op, block.commit_ts, block.physical_id, block.handle)
        ]
        job[_ROWS] = (
            *(len(block), address(order), *map(address, lines), address(partition)),
            *(address(new.words), address(new.sizes), new.words.shape[1]),
            *(address(old.words), address(old.sizes), old.words.shape[1]),
        )
        job[job_kernels.J_CHECKSUMS // 8] = address(sums)
        job[job_kernels.J_BUILD // 8] = self._build_ms
        # Only what the plan needs: in a small block each address costs as much time as some rows.
        starts = np.ascontiguousarray(block.start_ts) if self._plan.start_ts else None
        job[job_kernels.J_START_TS // 8] = address(starts)
        keys = self._row_keys() if self._plan.row_keys else None
        job[job_kernels.J_ROW_KEYS // 8] = address(keys)
        return [order, *lines, sums, starts, keys, new.words, new.sizes, old.words, old.sizes]

    def _row_keys(self) -> Int64s:
        keys = self._block.row_keys
        assert keys is not None, "who mounts rows for a protocol that sends their keys asks for them"
        return np.ascontiguousarray(keys)

    def _images(self) -> tuple[Image, Image]:
        """Both images, with TIMESTAMP columns converted to the feed's time zone."""
        block, zoned, zone = self._block, self._plan.zoned, self._options.time_zone
        for image in (block.new, block.old):
            assert image.words.flags.c_contiguous, "images are contiguous"
            assert image.sizes.flags.c_contiguous, "images are contiguous"
            assert len(image.words) == len(block), "an image has a row per change"
        if not zoned or zone == "UTC":
            return block.new, block.old
        return (
            # Only rows that have the image. The cells of others hold garbage, which need not be a time.
            localised(block.new, zoned, block.op != DELETE, zone),
            localised(block.old, zoned, block.op != INSERT, zone),
        )

    def _describe_results(self, job: Int64s, results: tuple[Int64s, npt.NDArray[np.int32]]) -> None:
        """Fill in the job's words with the addresses of the arrays for the messages."""
        wide, narrow = results
        # One address for all arrays of a kind, because taking an address costs as much time as a row.
        at, small_at = address(wide), address(narrow)
        job[_RESULTS] = (
            *(at + number * wide.strides[0] for number in range(len(_WIDE_RESULTS))),
            *(small_at + number * narrow.strides[0] for number in range(len(_NARROW_RESULTS))),
        )
        job[job_kernels.J_MAX_BYTES // 8] = self._options.max_message_bytes
        job[job_kernels.J_PRINTABLE // 8] = address(printable_bits()) if self._plan.quoted else 0

    def _first_buffer(self, bound: Bound, workspace: Workspace) -> tuple[Bytes, Bytes]:
        """A buffer for the expected text of this block, and scratch memory for its largest value."""
        plan, rows, job = self._plan, len(self._block), bound.job
        largest, variable = self._sizes(bound)
        needed, scratch = 24 * largest + _SCRATCH_SLACK, workspace.scratch
        if (plan.json_columns or len(plan.variables) > 1) and needed > SCRATCH_BYTES:
            scratch = buffer(needed)
        job[job_kernels.J_SCRATCH // 8] = (
            workspace.scratch_at if scratch is workspace.scratch else address(scratch)
        )
        job[job_kernels.J_STACK // 8] = workspace.stack_at
        keys = rows * plan.key_bound if plan.framed else 0
        # Only a guess: if it is too small the kernel stops with NEED_ROOM, and continues in a larger buffer.
        guess = int(np.bincount(self._block.op, minlength=4)[:4] @ plan.typical) + variable + variable // 2
        size = keys + guess + plan.most_fixed + 16 * largest
        data = self._taken(size)
        job[job_kernels.J_DATA // 8], job[job_kernels.J_OUT // 8] = address(data), keys
        job[job_kernels.J_ROOM // 8] = len(data) - PAD
        return data, scratch

    def _sizes(self, bound: Bound) -> tuple[int, int]:
        """At least the bytes of the block's largest value, and about those of all values of variable size.

        The job gets what the values of a row can become.
        """
        extent, job = self._block.extent, bound.job
        # A few rows, or rows of very different sizes, are measured: that takes little time, and saves memory.
        if extent is None or _SHARE * extent.largest > extent.total:
            variable = kernels.measure(bound.job_at)
            return int(job[job_kernels.J_NEED // 8]), variable
        # Whichever columns have the bytes of an image, none of them grows more than the one that grows most.
        job[job_kernels.J_MOST_VARIABLE // 8] = 2 * self._plan.most_growth * extent.largest
        return extent.largest, extent.total


def _grown(job: Int64s, data: Bytes) -> Bytes:
    """A larger buffer with a copy of what is written so far; the job then points to it."""
    used, need = int(job[job_kernels.J_OUT // 8]), int(job[job_kernels.J_NEED // 8])
    # By half at least: a block of many large values would otherwise be copied for each of them.
    larger = buffer(max(len(data) + len(data) // 2, used + need))
    larger[:used] = data[:used]
    job[job_kernels.J_DATA // 8], job[job_kernels.J_ROOM // 8] = address(larger), len(larger) - PAD
    return larger


class Workspace:
    """Memory that the kernels use while they write; independent of the table."""

    __slots__ = ("scratch", "scratch_at", "stack", "stack_at")

    def __init__(self) -> None:
        self.scratch = buffer(SCRATCH_BYTES)
        """For texts of usual size."""
        self.stack = np.empty(STACK_WORDS, dtype=np.int64)
        self.scratch_at, self.stack_at = address(self.scratch), address(self.stack)


WORKSPACES: Final[list[Workspace]] = []
"""The workspaces that are free: as many as encoders have worked at the same time in this process."""


def _workspace() -> Workspace:
    try:
        return WORKSPACES.pop()
    except IndexError:
        return Workspace()


_ROWS: Final = slice(job_kernels.J_ROWS // 8, job_kernels.J_PIECES // 8)
_RESULTS: Final = slice(job_kernels.J_KEY_START // 8, job_kernels.J_BUILD // 8)
"""Words of the job that are next to each other."""
_WIDE_RESULTS: Final = (
    job_kernels.J_KEY_START,
    job_kernels.J_KEY_LENGTH,
    job_kernels.J_VALUE_START,
    job_kernels.J_VALUE_LENGTH,
)
_NARROW_RESULTS: Final = (job_kernels.J_MESSAGE_PARTITION, job_kernels.J_MESSAGE_ROWS)


def _results(rows: int) -> tuple[Int64s, npt.NDArray[np.int32]]:
    """An array for each of the kernel's results."""
    wide = np.empty((len(_WIDE_RESULTS), rows), dtype=np.int64)
    return wide, np.empty((len(_NARROW_RESULTS), rows), dtype=np.int32)


def _order(partition: npt.NDArray[np.int32]) -> Int64s | None:
    """Row numbers sorted by partition, stable; None if there is only one partition."""
    if len(partition) == 0 or (partition == partition[0]).all():
        return None
    # numpy sorts numbers of 16 bits by radix when the sort is stable, which is faster.
    small = partition.astype(np.int16) if partition.max() < 1 << 15 else partition
    return np.argsort(small, kind="stable").astype(np.int64, copy=False)


@cache
def printable_bits() -> Bytes:
    """`go_printable`, one bit per code point; it is never called for surrogates."""
    # Each worker does this for its first block. To call `go_printable` a million times takes 1.6 s.
    shown = np.fromiter(map(str.isprintable, map(chr, range(sys.maxunicode + 1))), dtype=np.bool_)
    for low, high in PRINTABLE_SINCE_15:
        shown[low : high + 1] = True
    return np.packbits(shown, bitorder="little")


_plans: WeakKeyDictionary[TableSchema, dict[tuple[CodecOptions, int], EncodePlan]] = WeakKeyDictionary()
MAX_PLANS: Final = 16
"""Plans kept for one table version; options and the number of digits of the build time may differ."""


def plan_of(table: TableSchema, options: CodecOptions, build_ms: int) -> EncodePlan:
    """The plan of a table version, made once and kept as long as the table object exists."""
    # The build time has a place of fixed size in the plan's constants.
    digits = len(str(build_ms))
    plans = _plans.setdefault(table, {})
    plan = plans.get((options, digits))
    if plan is None:
        if len(plans) >= MAX_PLANS:
            plans.clear()
        plan = plans[options, digits] = codec_of(options).plan(table, options, digits)
    return plan
