"""Compiled sorting, merging and gathering of blocks; `order` is the plain twin.

Rows are not moved while they are ordered. Blocks are described by a *table*: one line of `LINE` int64 per
block with its row count and buffer addresses (`describe`). A row is a reference, see BLOCK_SHIFT. `sort`
makes sorted references to the rows of a timestamp range, `merge` to the rows of several sorted blocks, and
`gather` copies the referenced rows into new columns. All reads stay inside the buffers that `describe` has
checked.

Sorting is a radix sort over the bits of commit_ts that differ (three passes for a second of traffic,
none when the input is already ascending), then each transaction's few rows are compared in full.

`directory_kernels` reads and makes the directory entries of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.kernel import (
    address,
    compare_bytes,
    copy_exact,
    inline,
    kernel,
    load_bounds,
    load_u8,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.kernel_layout import Layout, pointer, signed
from tidegate.model.block import ENTRY_SCHEMA, MAX_BLOCK_BYTES, MAX_BLOCK_ROWS, OP_DELETE

BLOCK: Final = Layout(
    "block line", "", "A block of ENTRY_SCHEMA: one line of a block table, see `describe`.",
    rows=signed("rows"),
    commit=pointer("commit_ts, uint64"),
    start=pointer("start_ts, uint64"),
    op=pointer("operation, uint8"),
    key_at=pointer("offsets of keys, int32, one more than rows"),
    key=pointer("keys"),
    value_at=pointer("offsets of values"),
    value=pointer("values"),
    old_at=pointer("offsets of old values"),
    old=pointer("old values"),
)  # fmt: skip
LINE: Final = len(BLOCK.fields)
ROWS, COMMIT, START, OP, KEY_AT, KEY, VALUE_AT, VALUE, OLD_AT, OLD = BLOCK.words()

BLOCK_SHIFT: Final = 32
ROW_MASK: Final = 0xFFFFFFFF
"""A reference to a row: `block << BLOCK_SHIFT | row`."""

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class TimedRows(NamedTuple):
    """Rows that are being sorted: their references, and the commit_ts of each."""

    ts: U64
    refs: I64


_DELETES: Final = 0
_UPDATES: Final = 1
_INSERTS: Final = 2
"""The classes of operations, in the order that they have within a transaction. An update is a put over an old
value.
"""

_DIGIT: Final = 11
_BUCKETS: Final = 1 << _DIGIT
_INSERTION: Final = 24
SHARED_ROWS: Final = 2048
"""The fewest rows in order that are not copied (`take_or_share`). For fewer a copy is cheap, and readers
would get more blocks with few rows."""


@inline
def _size(table: I64, ref: int, at: int) -> int:
    """The bytes in a row's key, value or old value; `at` is the word of its offsets in a block line."""
    begin, end = load_bounds(table[ref >> BLOCK_SHIFT, at], ref & ROW_MASK)
    return end - begin


@inline
def _class(table: I64, ref: int) -> int:
    """The class of a row's operation, see _DELETES."""
    if load_u8(table[ref >> BLOCK_SHIFT, OP] + (ref & ROW_MASK)) == OP_DELETE:
        return _DELETES
    return _UPDATES if _size(table, ref, OLD_AT) > 0 else _INSERTS


@inline
def _compare_in_ts(table: I64, left: int, right: int) -> int:
    """Compare two rows with the same commit_ts by start_ts, class of operation and key."""
    x = load_u64(table[left >> BLOCK_SHIFT, START] + 8 * (left & ROW_MASK))
    y = load_u64(table[right >> BLOCK_SHIFT, START] + 8 * (right & ROW_MASK))
    if x != y:
        return -1 if x < y else 1
    # Before the key: a row that frees a unique key must come before the row that takes it.
    p, q = _class(table, left), _class(table, right)
    if p != q:
        return p - q
    i, i_end = load_bounds(table[left >> BLOCK_SHIFT, KEY_AT], left & ROW_MASK)
    j, j_end = load_bounds(table[right >> BLOCK_SHIFT, KEY_AT], right & ROW_MASK)
    keys, other_keys = table[left >> BLOCK_SHIFT, KEY], table[right >> BLOCK_SHIFT, KEY]
    return compare_bytes(keys + i, i_end - i, other_keys + j, j_end - j)


@inline
def _collect(table: I64, after: np.uint64, upto: np.uint64, rows: TimedRows, taken: I64) -> int:
    """Write the timestamps and references of the rows in a range to `rows`; returns their number."""
    ts, refs = rows.ts, rows.refs
    count = 0
    for block in range(table.shape[0]):
        first = count
        commits = table[block, COMMIT]
        for row in range(table[block, ROWS]):
            commit = load_u64(commits + 8 * row)
            if commit > after and commit <= upto:
                ts[count] = commit
                refs[count] = (block << BLOCK_SHIFT) | row
                count += 1
        taken[block] = count - first
    return count


@inline
def _radix(rows: TimedRows, spare: TimedRows, count: int) -> None:
    """Sort rows[:count] by their ts, stable."""
    ts, refs, spare_ts, spare_refs = rows.ts, rows.refs, spare.ts, spare.refs
    # Traffic of a second has only some 28 bits that differ. Sorting the distance from the least ts skips
    # the others.
    low, high, ascending = ts[0], ts[0], True
    for i in range(1, count):
        ascending = ascending and ts[i] >= ts[i - 1]
        low, high = min(low, ts[i]), max(high, ts[i])
    if ascending:
        return
    histogram = np.empty(_BUCKETS, dtype=np.int64)
    shift = 0
    # Six passes cover 64 bits. After them the shift would be 66, which is undefined.
    while shift < 64 and (high - low) >> np.uint64(shift) > np.uint64(0):
        histogram[:] = 0
        for i in range(count):
            histogram[((ts[i] - low) >> np.uint64(shift)) & np.uint64(_BUCKETS - 1)] += 1
        total = 0
        for digit in range(_BUCKETS):
            here = histogram[digit]
            histogram[digit] = total
            total += here
        for i in range(count):
            digit = ((ts[i] - low) >> np.uint64(shift)) & np.uint64(_BUCKETS - 1)
            # Rows of the same digit keep their order, which is what makes the passes before this one count.
            to = histogram[digit]
            histogram[digit] = to + 1
            spare_ts[to] = ts[i]
            spare_refs[to] = refs[i]
        ts[:count] = spare_ts[:count]
        refs[:count] = spare_refs[:count]
        shift += _DIGIT


@inline
def _insertion(table: I64, refs: I64, first: int, end: int) -> None:
    """Sort refs[first:end] by insertion; the rows have the same commit_ts."""
    for i in range(first + 1, end):
        moving = refs[i]
        j = i
        while j > first and _compare_in_ts(table, refs[j - 1], moving) > 0:
            refs[j] = refs[j - 1]
            j -= 1
        refs[j] = moving


@inline
def _merge_runs(table: I64, source: I64, target: I64, first: int, middle: int, end: int) -> None:
    """Merge the sorted source[first:middle] and source[middle:end] into `target`."""
    i, j, k = first, middle, first
    while i < middle and j < end:
        if _compare_in_ts(table, source[i], source[j]) <= 0:
            target[k] = source[i]
            i += 1
        else:
            target[k] = source[j]
            j += 1
        k += 1
    target[k : k + middle - i] = source[i:middle]
    k += middle - i
    target[k : k + end - j] = source[j:end]


@inline
def _split_classes(table: I64, refs: I64, spare: I64, first: int, end: int) -> None:
    """Move the rows of refs[first:end] to the order of their classes; within a class they keep their order.

    A transaction's rows come in the order of their keys. If it has several classes, insertion alone would
    compare each row with many rows of other classes before it finds its place.
    """
    at = first
    for wanted in range(_DELETES, _INSERTS + 1):
        for i in range(first, end):
            if _class(table, refs[i]) == wanted:
                spare[at] = refs[i]
                at += 1
    refs[first:end] = spare[first:end]


@inline
def _sort_group(table: I64, refs: I64, spare: I64, first: int, end: int) -> None:
    """Sort the rows of one commit_ts by insertion; above `_INSERTION` rows, merge runs sorted in this way."""
    _split_classes(table, refs, spare, first, end)
    if end - first <= _INSERTION:
        _insertion(table, refs, first, end)
        return
    start = first
    while start < end:
        _insertion(table, refs, start, min(start + _INSERTION, end))
        start += _INSERTION
    width = _INSERTION
    while width < end - first:
        start = first
        while start < end:
            middle, stop = min(start + width, end), min(start + 2 * width, end)
            # A transaction whose rows arrived in order costs one comparison for each pair of runs.
            if middle < stop and _compare_in_ts(table, refs[middle - 1], refs[middle]) > 0:
                _merge_runs(table, refs, spare, start, middle, stop)
                refs[start:stop] = spare[start:stop]
            start += 2 * width
        width *= 2


@kernel
def sort(table: I64, after: np.uint64, upto: np.uint64, rows: TimedRows, spare: TimedRows, taken: I64) -> int:
    """Write the rows with after < commit_ts <= upto to `rows`, sorted, each change once; returns how many.

    `rows` and `spare` hold as many elements as the blocks have rows; `taken[b]` becomes the number of rows of
    block b in the range, duplicates included.

    Reads the columns of the blocks. Writes `rows`, `spare` and `taken`. Bound: the rows of all blocks. Twin:
    `tidegate.eventstore.order.sort_entries`. Trick: a radix sort over the bits of commit_ts that differ, then
    each transaction in full.
    """
    count = _collect(table, after, upto, rows, taken)
    if count == 0:
        return 0
    _radix(rows, spare, count)
    ts, refs = rows.ts, rows.refs
    out, first = 0, 0
    while first < count:
        end = first + 1
        while end < count and ts[end] == ts[first]:
            end += 1
        if end - first > 1:
            _sort_group(table, refs, spare.refs, first, end)
        for i in range(first, end):
            # The first row of a group is always written, so refs[out - 1] is of the same group. `out` is at
            # most `i`, so nothing that is still needed is overwritten.
            if i > first and _compare_in_ts(table, refs[out - 1], refs[i]) == 0:
                continue
            ts[out] = ts[i]
            refs[out] = refs[i]
            out += 1
        first = end
    return out


@inline
def _before(table: I64, left: int, right: int) -> int:
    """Negative, zero or positive if row `left` sorts before, equal to or after row `right`."""
    x = load_u64(table[left >> BLOCK_SHIFT, COMMIT] + 8 * (left & ROW_MASK))
    y = load_u64(table[right >> BLOCK_SHIFT, COMMIT] + 8 * (right & ROW_MASK))
    if x != y:
        return -1 if x < y else 1
    return _compare_in_ts(table, left, right)


@kernel
def merge(table: I64, cursors: I64, ends: I64, refs: I64) -> int:
    """Merge sorted blocks until one is used up or `refs` is full; returns how many references were made.

    `cursors[b]` is the next row of block b and is advanced; rows from `ends[b]` on are not taken. If the
    cursor of a block has reached its end, the caller refills or removes the block before the next call. If
    several blocks hold the same change, it is emitted once.

    Reads the columns of the blocks. Writes `refs` and `cursors`. Bound: the length of `refs`; each reference
    costs a comparison with every block, so this suits a few blocks. Twin:
    `tidegate.eventstore.order.sort_entries`.
    """
    count = 0
    while count < refs.shape[0]:
        best = -1
        best_ref = 0
        for block in range(table.shape[0]):
            # Its next row is unknown and may be the least, so nothing more can be chosen.
            if cursors[block] >= ends[block]:
                return count
            ref = (block << BLOCK_SHIFT) | cursors[block]
            if best < 0:
                best, best_ref = block, ref
                continue
            order = _before(table, ref, best_ref)
            if order < 0:
                best, best_ref = block, ref
        spent = False
        for block in range(table.shape[0]):
            # A sorted block has each change once, so comparing its next row is enough.
            if block != best and _before(table, (block << BLOCK_SHIFT) | cursors[block], best_ref) == 0:
                cursors[block] += 1
                spent = spent or cursors[block] >= ends[block]
        refs[count] = best_ref
        count += 1
        cursors[best] += 1
        if spent or cursors[best] >= ends[best]:
            return count
    return count


@inline
def _same_transaction(table: I64, left: int, right: int) -> int:
    """1 if two references have the same commit ts and start ts, else 0."""
    same = 1
    for at in (COMMIT, START):
        x = load_u64(table[left >> BLOCK_SHIFT, at] + 8 * (left & ROW_MASK))
        y = load_u64(table[right >> BLOCK_SHIFT, at] + 8 * (right & ROW_MASK))
        if x != y:
            same = 0
    return same


@kernel
def measure(table: I64, refs: I64, first: int, end: int, limit_bytes: int, sizes: I64) -> int:
    """The end of the longest run of references from `first` that fits in `limit_bytes`, and is not empty.

    If the limit cuts a transaction that began in the second half of the run, the run ends before it: a
    reader would have to join its parts. `sizes` becomes the bytes of the run's keys, values and old values.

    Reads the offsets and timestamps of the rows. Writes `sizes`. Bound: refs[first:end]. Twin: none, because
    it adds up the sizes of what `gather` copies.
    """
    keys, values, olds = 0, 0, 0
    i, whole = first, first
    while i < end:
        k, v, o = (
            _size(table, refs[i], KEY_AT),
            _size(table, refs[i], VALUE_AT),
            _size(table, refs[i], OLD_AT),
        )
        if i > first and _same_transaction(table, refs[i - 1], refs[i]) == 0:
            whole = i
            sizes[0], sizes[1], sizes[2] = keys, values, olds
        # A row that is larger than the limit makes a block of its own; otherwise it would never be read.
        if i > first and keys + values + olds + k + v + o > limit_bytes:
            if 2 * (whole - first) >= i - first:
                return whole
            break
        keys, values, olds = keys + k, values + v, olds + o
        i += 1
    sizes[0], sizes[1], sizes[2] = keys, values, olds
    return i


@kernel
def run_end(refs: I64, first: int, end: int) -> int:
    """The end of the rows from refs[first] on that follow one another in their block, too.

    Reads references. Writes nothing. Bound: refs[first:end]. Twin: none, because a shorter
    run is as right.
    """
    i = first + 1
    # The last reference of a block and the first one of the next are far apart, so a run is in one block.
    while i < end and refs[i] == refs[i - 1] + 1:
        i += 1
    return i


@kernel
def next_run(refs: I64, first: int, least: int) -> int:
    """Where the next run of at least `least` rows begins (`run_end`), or the number of references.

    Reads references. Writes nothing. Bound: refs[first:]. Twin: none, whatever it gives, all rows are taken.
    """
    start = first
    for i in range(first + 1, len(refs)):
        if refs[i] != refs[i - 1] + 1:
            start = i
        elif i + 1 - start >= least:
            return start
    return len(refs)


@inline
def _gather_bytes(table: I64, ref: int, line: I64, at: int, data: int, used: int, row: int) -> int:
    """Append one value to the `used` bytes of a column and store its end offset, which is returned.

    `at`, `data`: the words of the column's offsets and bytes in a block line, of the row's block and in the
    new one, `line`.
    """
    begin, end = load_bounds(table[ref >> BLOCK_SHIFT, at], ref & ROW_MASK)
    length = end - begin
    copy_exact(line[data] + used, table[ref >> BLOCK_SHIFT, data] + begin, length)
    store_u32(line[at] + 4 * (row + 1), np.uint32(used + length))
    return used + length


@kernel
def gather(table: I64, refs: I64, first: int, end: int, line: I64) -> None:
    """Copy the rows refs[first:end] into the columns that `line` (a table line) points to.

    Reads the referenced rows. Writes the columns of `line`. Bound: the sizes that `measure` has counted.
    Twin: `tidegate.eventstore.order.entries_of`, by which
    `tests.eventstore.test_kernels.test_blocks_are_sorted_and_deduplicated_as_the_plain_order_says` compares
    the rows. Trick: values are copied by wide words that may overlap.
    """
    keys, values, olds = 0, 0, 0
    store_u32(line[KEY_AT], np.uint32(0))
    store_u32(line[VALUE_AT], np.uint32(0))
    store_u32(line[OLD_AT], np.uint32(0))
    for n in range(end - first):
        ref = refs[first + n]
        block, row = ref >> BLOCK_SHIFT, ref & ROW_MASK
        store_u64(line[COMMIT] + 8 * n, load_u64(table[block, COMMIT] + 8 * row))
        store_u64(line[START] + 8 * n, load_u64(table[block, START] + 8 * row))
        store_u8(line[OP] + n, load_u8(table[block, OP] + row))
        keys = _gather_bytes(table, ref, line, KEY_AT, KEY, keys, n)
        values = _gather_bytes(table, ref, line, VALUE_AT, VALUE, values, n)
        olds = _gather_bytes(table, ref, line, OLD_AT, OLD, olds, n)


# --- blocks ---------------------------------------------------------------------------------------------


def describe(batch: pa.RecordBatch) -> I64:
    """The table line of a block. The caller keeps the block alive as long as it uses the line."""
    rows, line = batch.num_rows, np.zeros(LINE, dtype=np.int64)
    line[ROWS] = rows
    for position, (index, width) in enumerate(((0, 8), (1, 8), (2, 1))):
        column = batch.column(index)
        values = column.buffers()[1]
        assert rows == 0 or values.size >= (column.offset + rows) * width, (
            "a column is shorter than its block"
        )
        # The offset of a slice goes into the address, so the kernels know nothing of slices.
        line[COMMIT + position] = address(values) + column.offset * width
    for position, index in enumerate((3, 4, 5)):
        column = batch.column(index)
        _, offsets, data = column.buffers()
        assert rows == 0 or offsets.size >= (column.offset + rows + 1) * 4, (
            "offsets are shorter than their block"
        )
        line[KEY_AT + 2 * position] = address(offsets) + column.offset * 4
        # 0 if the column has no bytes. Then no offset leads into it.
        line[KEY + 2 * position] = address(data)
    return line


def commit_range(batch: pa.RecordBatch) -> tuple[int, int]:
    """The smallest and largest commit_ts of a non-empty block."""
    commits = batch.column(0).to_numpy()
    return int(commits.min()), int(commits.max())


def order_rows(table: I64, after: int, upto: int, taken: I64) -> tuple[I64, int, int]:
    """Call `sort` with new scratch arrays. Returns (references, smallest commit_ts, largest commit_ts).

    Both ts are 0 if no row is in the range.
    """
    rows = int(table[:, ROWS].sum())
    found, spare = _timed_rows(rows), _timed_rows(rows)
    count = sort(table, np.uint64(after), np.uint64(upto), found, spare, taken)
    if count == 0:
        return found.refs[:0], 0, 0
    return found.refs[:count], int(found.ts[0]), int(found.ts[count - 1])


def _timed_rows(count: int) -> TimedRows:
    return TimedRows(np.empty(count, dtype=np.uint64), np.empty(count, dtype=np.int64))


Allocate = Callable[[list[int]], list[pa.Buffer]]
"""A function that makes buffers of the given sizes (bytes) for one block."""


def allocate(sizes: list[int]) -> list[pa.Buffer]:
    """Newly allocated buffers, which the block owns."""
    return [pa.allocate_buffer(size) for size in sizes]


class Scratch:
    """Memory for one block that is reused, because page faults in fresh memory cost more than the copy.

    A block made with it is valid until the next one is made.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=np.uint8)

    def __call__(self, sizes: list[int]) -> list[pa.Buffer]:
        """As `allocate`, but in the reused memory, which grows to at most 1.5 times the largest block."""
        starts = np.cumsum([0, *((size + 63) & ~63 for size in sizes)]).tolist()
        if starts[-1] > len(self._memory):
            self._memory = np.empty(starts[-1] + (starts[-1] >> 1), dtype=np.uint8)
        whole = pa.py_buffer(self._memory)
        return [whole.slice(start, size) for start, size in zip(starts, sizes, strict=False)]


def take(
    table: I64, refs: I64, first: int = 0, max_rows: int = MAX_BLOCK_ROWS, memory: Allocate = allocate
) -> tuple[pa.RecordBatch, int]:
    """A new block of the rows from refs[first] on, at most `max_rows` rows and MAX_BLOCK_BYTES.

    Returns the block and the index of the first reference that is not in it.
    """
    sizes = np.zeros(3, dtype=np.int64)
    # Measured first: the block ends where its bytes reach the limit, and each buffer is allocated once.
    end = measure(table, refs, first, min(first + max_rows, len(refs)), MAX_BLOCK_BYTES, sizes)
    rows = end - first
    widths = [8 * rows, 8 * rows, rows]
    for size in sizes.tolist():
        widths += [4 * (rows + 1), size]
    buffers = memory(widths)
    line = np.array([rows, *(address(b) for b in buffers)], dtype=np.int64)
    gather(table, refs, first, end, line)
    parts = [[None, buffers[i]] for i in range(3)]
    parts += [[None, buffers[i], buffers[i + 1]] for i in (3, 5, 7)]
    fields = zip(ENTRY_SCHEMA.types, parts, strict=True)
    arrays = [pa.Array.from_buffers(kind, rows, part, null_count=0) for kind, part in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA), end


def take_all(table: I64, refs: I64, memory: Allocate) -> Iterator[pa.RecordBatch]:
    """All rows as blocks. If `memory` is a `Scratch`, each block is valid until the next one is made."""
    first = 0
    while first < len(refs):
        block, first = take(table, refs, first, memory=memory)
        yield block


def take_or_share(
    batches: Sequence[pa.RecordBatch], table: I64, refs: I64, memory: Allocate, least: int = SHARED_ROWS
) -> Iterator[pa.RecordBatch]:
    """As `take_all`, but a run of rows that is in order in its block is not copied.

    `batches`: the blocks that `table` describes; a block of the result may share their memory. `least`: the
    fewest rows of such a run. Most rows of a stream arrive in order, a few thousand at once.
    """
    first = 0
    while first < len(refs):
        run = next_run(refs, first, least)
        while first < run:
            block, first = take(table, refs, first, min(run - first, MAX_BLOCK_ROWS), memory)
            yield block
        if first < len(refs):
            end = run_end(refs, first, len(refs))
            end = measure(
                table, refs, first, min(end, first + MAX_BLOCK_ROWS), MAX_BLOCK_BYTES, np.zeros(3, np.int64)
            )
            source = batches[int(refs[first]) >> BLOCK_SHIFT]
            yield _section(source, int(refs[first]) & ROW_MASK, end - first)
            first = end


def _section(batch: pa.RecordBatch, first: int, rows: int) -> pa.RecordBatch:
    """Rows of a block as a block without an offset. Only the offsets of its bytes are copied."""
    arrays = []
    for column, width in zip(batch.columns[:3], (8, 8, 1), strict=True):
        part = column.buffers()[1].slice((column.offset + first) * width, rows * width)
        arrays.append(pa.Array.from_buffers(column.type, rows, [None, part], null_count=0))
    for column in batch.columns[3:]:
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int32, rows + 1, 4 * (column.offset + first))
        begin, size = int(ends[0]), int(ends[-1] - ends[0])
        part = data.slice(begin, size) if size else data
        arrays.append(
            pa.Array.from_buffers(column.type, rows, [None, pa.py_buffer(ends - ends[0]), part], null_count=0)
        )
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)


def table_of(lines: list[Any]) -> I64:
    """Stack lines into the table that the kernels take."""
    return np.stack(lines) if lines else np.empty((0, LINE), dtype=np.int64)


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    columns: list[list[Any]] = [[2, 1], [1, 1], [1, 1], [b"k", b"k"], [b"v", b"v"], [b"", b""]]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
    block = pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)
    table = table_of([describe(block)])
    refs, _, _ = order_rows(table, 0, 5, np.zeros(1, dtype=np.int64))
    run_end(refs, 0, next_run(refs, 0, 1))
    sorted_block, _ = take(table, refs)
    table = table_of([describe(sorted_block)])
    merge(table, np.zeros(1, dtype=np.int64), np.full(1, 2, dtype=np.int64), refs)
