"""Compiled sorting, merging and gathering of blocks; `order` is the plain twin.

Rows are not moved while they are ordered. Blocks are described by a *table*: one line of `LINE` int64 per
block with its row count and buffer addresses (`describe`). A row is a reference, see BLOCK_SHIFT. `sort`
makes the references of a timestamp range in order, `merge` those of several sorted blocks, `gather` copies
the rows behind them into new columns. All reads stay inside the buffers that `describe` has checked.

Sorting is a radix sort over the bits of commit_ts that differ (three passes for a second of traffic,
none when the input is already ascending), then each transaction's few rows are compared in full.

`tables_of` makes what the directory of a segment says of a block; a block of one table, which is the rule
where a table has a folder of its own, costs it one look at each key. `pick` finds rows by a directory and
verifies them: it alone works on bytes that no CRC has proved, so it proves every offset before it follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.eventstore.directory import NONE, OTHER, RECORD, BatchTables, Directory, encode
from tidegate.kernel import (
    address,
    compare_bytes,
    copy_exact,
    inline,
    kernel,
    load_be64,
    load_bounds,
    load_u8,
    load_u16,
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
I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
U8 = npt.NDArray[np.uint8]

_DIGIT: Final = 11
_BUCKETS: Final = 1 << _DIGIT
_INSERTION: Final = 24


@inline
def _size(table: I64, ref: int, at: int) -> int:
    """The bytes of a row's key, value or old value; `at` is the word of its offsets in a block line."""
    begin, end = load_bounds(table[ref >> BLOCK_SHIFT, at], ref & ROW_MASK)
    return end - begin


@inline
def _class(table: I64, ref: int) -> int:
    """The class by which operations of one transaction are ordered: deletes, updates, inserts."""
    if load_u8(table[ref >> BLOCK_SHIFT, OP] + (ref & ROW_MASK)) == OP_DELETE:
        return 0
    return 1 if _size(table, ref, OLD_AT) > 0 else 2


@inline
def _compare_in_ts(table: I64, left: int, right: int) -> int:
    """Compare two rows of one commit_ts: start_ts, class of operation, key."""
    x = load_u64(table[left >> BLOCK_SHIFT, START] + 8 * (left & ROW_MASK))
    y = load_u64(table[right >> BLOCK_SHIFT, START] + 8 * (right & ROW_MASK))
    if x != y:
        return -1 if x < y else 1
    p, q = _class(table, left), _class(table, right)
    if p != q:
        return p - q
    i, i_end = load_bounds(table[left >> BLOCK_SHIFT, KEY_AT], left & ROW_MASK)
    j, j_end = load_bounds(table[right >> BLOCK_SHIFT, KEY_AT], right & ROW_MASK)
    keys, other_keys = table[left >> BLOCK_SHIFT, KEY], table[right >> BLOCK_SHIFT, KEY]
    return compare_bytes(keys + i, i_end - i, other_keys + j, j_end - j)


@inline
def _collect(table: I64, after: np.uint64, upto: np.uint64, ts: U64, refs: I64, taken: I64) -> int:
    """Write timestamps and references of the rows of a range to `ts` and `refs`; how many there are."""
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
def _radix(ts: U64, refs: I64, spare_ts: U64, spare_refs: I64, count: int) -> None:
    """Sort (ts, refs) by ts, stable; the result is in `ts` and `refs`."""
    low, high, ascending = ts[0], ts[0], True
    for i in range(1, count):
        ascending = ascending and ts[i] >= ts[i - 1]
        low, high = min(low, ts[i]), max(high, ts[i])
    if ascending:
        return
    histogram = np.empty(_BUCKETS, dtype=np.int64)
    shift = 0
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
            to = histogram[digit]
            histogram[digit] = to + 1
            spare_ts[to] = ts[i]
            spare_refs[to] = refs[i]
        ts[:count] = spare_ts[:count]
        refs[:count] = spare_refs[:count]
        shift += _DIGIT


@inline
def _insertion(table: I64, refs: I64, first: int, end: int) -> None:
    """Order refs[first:end] by insertion; the rows have one commit_ts."""
    for i in range(first + 1, end):
        moving = refs[i]
        j = i
        while j > first and _compare_in_ts(table, refs[j - 1], moving) > 0:
            refs[j] = refs[j - 1]
            j -= 1
        refs[j] = moving


@inline
def _merge_runs(table: I64, source: I64, target: I64, first: int, middle: int, end: int) -> None:
    """Merge source[first:middle] and source[middle:end], which are in order, into `target`."""
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
def _sort_group(table: I64, refs: I64, spare: I64, first: int, end: int) -> None:
    """Order the rows of one commit_ts: insertion sort, above `_INSERTION` rows a merge of such runs."""
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
            if middle < stop and _compare_in_ts(table, refs[middle - 1], refs[middle]) > 0:
                _merge_runs(table, refs, spare, start, middle, stop)
                refs[start:stop] = spare[start:stop]
            start += 2 * width
        width *= 2


@kernel
def sort(
    table: I64,
    after: np.uint64,
    upto: np.uint64,
    ts: U64,
    refs: I64,
    spare_ts: U64,
    spare_refs: I64,
    taken: I64,
) -> int:
    """References of the rows with after < commit_ts <= upto, in order, each change once; how many there are.

    `ts`, `refs` and the spares hold as many elements as the blocks have rows; `taken[b]` becomes the number
    of rows of block b in the range, duplicates included.

    Reads the columns of the blocks. Writes `ts`, `refs`, the spares and `taken`. Bound: the rows of all
    blocks. Twin: `tidegate.eventstore.order.sort_entries`. Trick: a radix sort over the bits of commit_ts
    that differ, then each transaction in full.
    """
    count = _collect(table, after, upto, ts, refs, taken)
    if count == 0:
        return 0
    _radix(ts, refs, spare_ts, spare_refs, count)
    out, first = 0, 0
    while first < count:
        end = first + 1
        while end < count and ts[end] == ts[first]:
            end += 1
        if end - first > 1:
            _sort_group(table, refs, spare_refs, first, end)
        for i in range(first, end):
            if i > first and _compare_in_ts(table, refs[out - 1], refs[i]) == 0:
                continue
            ts[out] = ts[i]
            refs[out] = refs[i]
            out += 1
        first = end
    return out


@inline
def _before(table: I64, left: int, right: int) -> int:
    """Negative, zero or positive as row `left` sorts before, with or after row `right`."""
    x = load_u64(table[left >> BLOCK_SHIFT, COMMIT] + 8 * (left & ROW_MASK))
    y = load_u64(table[right >> BLOCK_SHIFT, COMMIT] + 8 * (right & ROW_MASK))
    if x != y:
        return -1 if x < y else 1
    return _compare_in_ts(table, left, right)


@kernel
def merge(table: I64, cursors: I64, ends: I64, refs: I64) -> int:
    """Merge sorted blocks until one is used up or `refs` is full; returns how many references were made.

    `cursors[b]` is the next row of block b and is advanced; rows from `ends[b]` on are not taken. A block
    whose cursor stands at its end must be refilled or removed by the caller before the next call. A change
    that several blocks hold comes out once.

    Reads the columns of the blocks. Writes `refs` and `cursors`. Bound: the places of `refs`; each costs a
    comparison with every block, which is meant for a few blocks. Twin:
    `tidegate.eventstore.order.sort_entries`.
    """
    count = 0
    while count < refs.shape[0]:
        best = -1
        best_ref = 0
        for block in range(table.shape[0]):
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
            if block != best and _before(table, (block << BLOCK_SHIFT) | cursors[block], best_ref) == 0:
                cursors[block] += 1
                spent = spent or cursors[block] >= ends[block]
        refs[count] = best_ref
        count += 1
        cursors[best] += 1
        if spent or cursors[best] >= ends[best]:
            return count
    return count


@kernel
def measure(table: I64, refs: I64, first: int, end: int, limit_bytes: int, sizes: I64) -> int:
    """The end of the run of references from `first` on that fit in `limit_bytes`; it has at least one.

    `sizes` becomes the bytes of its keys, values and old values.

    Reads the offsets of the rows. Writes `sizes`. Bound: refs[first:end]. Twin: none, because it adds up the
    sizes of what `gather` copies.
    """
    keys, values, olds = 0, 0, 0
    i = first
    while i < end:
        k, v, o = (
            _size(table, refs[i], KEY_AT),
            _size(table, refs[i], VALUE_AT),
            _size(table, refs[i], OLD_AT),
        )
        if i > first and keys + values + olds + k + v + o > limit_bytes:
            break
        keys, values, olds = keys + k, values + v, olds + o
        i += 1
    sizes[0], sizes[1], sizes[2] = keys, values, olds
    return i


@inline
def _gather_bytes(
    table: I64, ref: int, at: int, data: int, out_at: int, out: int, used: int, row: int
) -> int:
    """Copy one value behind the `used` bytes of a column, and the offset of its end; the bytes used then."""
    begin, end = load_bounds(table[ref >> BLOCK_SHIFT, at], ref & ROW_MASK)
    length = end - begin
    copy_exact(out + used, table[ref >> BLOCK_SHIFT, data] + begin, length)
    store_u32(out_at + 4 * (row + 1), np.uint32(used + length))
    return used + length


@kernel
def gather(table: I64, refs: I64, first: int, end: int, line: I64) -> None:
    """Copy the rows refs[first:end] into the columns that `line` (a table line) points to.

    Reads the rows behind the references. Writes the columns of `line`. Bound: what `measure` has counted.
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
        keys = _gather_bytes(table, ref, KEY_AT, KEY, line[KEY_AT], line[KEY], keys, n)
        values = _gather_bytes(table, ref, VALUE_AT, VALUE, line[VALUE_AT], line[VALUE], values, n)
        olds = _gather_bytes(table, ref, OLD_AT, OLD, line[OLD_AT], line[OLD], olds, n)


# --- the directory --------------------------------------------------------------------------------------

_TABLE: Final = ord("t")
_RECORD_MARK: Final = int.from_bytes(b"_r", "little")
_TABLE_KEY, _RECORD_KEY = 9, 11
"""Bytes of `t{id}`, and of `t{id}_r`; a key of a table has at least as many."""
_SIGN: Final = np.uint64(1 << 63)

SUM_START: Final = np.uint64(0x9E3779B97F4A7C15)
SUM_FACTOR: Final = np.uint64(0xD6E8FEB86659FD93)
_HALF: Final = np.uint64(32)
_HASH: Final = 0x5851F42D4C957F2D
_BYTE: Final = np.uint64(8)
_LANE: Final = 8
"""Bytes that a lane takes at a step."""


@inline
def _kind_of(key: int, size: int) -> int:
    """The class of a key; reads nothing beyond it."""
    if size < _TABLE_KEY or load_u8(key) != _TABLE:
        return NONE
    if size >= _RECORD_KEY and load_u16(key + _TABLE_KEY) == _RECORD_MARK:
        return RECORD
    return OTHER


@inline
def _table_of(key: int, kind: int) -> int:
    """The table id of a key of a class; 0 for one of no table."""
    if kind == NONE:
        return 0
    return int(np.int64(np.uint64(load_be64(key + 1)) ^ _SIGN))


@kernel
def one_table(line: I64) -> bool:
    """Whether all rows of a block are of one table and class.

    Reads the front of each key. Writes nothing. Bound: the rows of the block, the first of which exists.
    Twin: `tidegate.eventstore.order.rows_by_table`.
    """
    offsets, keys = line[KEY_AT], line[KEY]
    begin, end = load_bounds(offsets, 0)
    first_kind = _kind_of(keys + begin, end - begin)
    first_id = _table_of(keys + begin, first_kind)
    for row in range(line[ROWS]):
        begin, end = load_bounds(offsets, row)
        key = keys + begin
        kind = _kind_of(key, end - begin)
        if kind != first_kind or _table_of(key, kind) != first_id:
            return False
    return True


@kernel
def group(line: I64, buckets: I32, ids: I64, kinds: U8, counts: I64, entry_of: U16) -> int:
    """Give each row of a block the entry of its table and class; returns how many entries there are.

    Entries are numbered as their first rows stand, and described by `ids`, `kinds` and `counts`, which have
    as many places as the block has rows (65,536 at most). `buckets`, all -1, is a hash table whose size is a
    power of two, and twice the rows at least.

    Reads the front of each key. Writes `buckets`, `ids`, `kinds`, `counts` and `entry_of`. Bound: an entry a
    row. Twin: `tidegate.eventstore.order.rows_by_table`. Trick: a row of the same table as the one before it
    does not look into the hash table.
    """
    offsets, keys = line[KEY_AT], line[KEY]
    mask = buckets.shape[0] - 1
    found, entry = 0, -1
    for row in range(line[ROWS]):
        begin, end = load_bounds(offsets, row)
        key = keys + begin
        kind = _kind_of(key, end - begin)
        table = _table_of(key, kind)
        if entry < 0 or ids[entry] != table or kinds[entry] != kind:
            bucket = (((table * 3 + kind) * _HASH) >> 32) & mask
            entry = buckets[bucket]
            while entry >= 0 and (ids[entry] != table or kinds[entry] != kind):
                bucket = (bucket + 1) & mask
                entry = buckets[bucket]
            if entry < 0:
                entry = found
                buckets[bucket] = found
                ids[found], kinds[found], counts[found] = table, kind, 0
                found += 1
        counts[entry] += 1
        entry_of[row] = entry
    return found


@inline
def _mixed(state: Any, word: Any) -> Any:
    """One to one in each of both, so that one changed word is never missed."""
    state = (state ^ word) * SUM_FACTOR
    return state ^ (state >> _HALF)


@inline
def _sum_bytes(state: Any, at: int, size: int) -> Any:
    """Two lanes of 8 bytes, as a step waits for the one before it; reads nothing beyond the bytes."""
    left, right = state, ~state
    i = 0
    while i + 2 * _LANE <= size:
        left = _mixed(left, load_u64(at + i))
        right = _mixed(right, load_u64(at + i + _LANE))
        i += 2 * _LANE
    if i + _LANE <= size:
        left = _mixed(left, load_u64(at + i))
        i += 8
    if i < size:
        last: Any = np.uint64(0)
        if size >= 8:
            last = load_u64(at + size - 8)
        else:
            while i < size:
                last = (last << _BYTE) | np.uint64(load_u8(at + i))
                i += 1
        right = _mixed(right, last)
    return _mixed(left, right)


@inline
def _sum_row(line: I64, row: int) -> Any:
    """The sum of one row; each column begins by itself, so that the CPU works on all of them at once."""
    key, key_end = load_bounds(line[KEY_AT], row)
    value, value_end = load_bounds(line[VALUE_AT], row)
    old, old_end = load_bounds(line[OLD_AT], row)
    key_size, value_size, old_size = key_end - key, value_end - value, old_end - old
    state = _mixed(SUM_START, load_u64(line[COMMIT] + 8 * row))
    state = _mixed(state, load_u64(line[START] + 8 * row))
    state = _mixed(state, np.uint64(key_size) << _HALF | np.uint64(load_u8(line[OP] + row)))
    state = _mixed(state, np.uint64(value_size) << _HALF | np.uint64(old_size))
    state = _mixed(state, _sum_bytes(SUM_START, line[KEY] + key, key_size))
    state = _mixed(state, _sum_bytes(SUM_START, line[VALUE] + value, value_size))
    return _mixed(state, _sum_bytes(SUM_START, line[OLD] + old, old_size))


@kernel
def enter(line: I64, entry_of: U16, cursors: I64, numbers: U16, sums: U64) -> None:
    """Put each row's number where its entry's numbers are, and add the row to the entry's sum.

    `cursors` has the place of each entry's first number, and is advanced; `numbers` has a place for each row,
    `sums` starts as 0.

    Reads the rows of the block in full. Writes `numbers`, `cursors` and `sums`. Bound: a number a row. Twins:
    `tidegate.eventstore.order.rows_by_table` and `tidegate.eventstore.order.sum_of`. Trick: the sum of a row
    has six chains that do not wait for each other.
    """
    for row in range(line[ROWS]):
        entry = entry_of[row]
        numbers[cursors[entry]] = row
        cursors[entry] += 1
        sums[entry] = _mixed(sums[entry], _sum_row(line, row))


@inline
def _held(offsets: int, row: int, limit: int) -> bool:
    """Whether a row's bytes lie inside their column of `limit` bytes."""
    begin, end = load_bounds(offsets, row)
    return 0 <= begin <= end <= limit


class Entries(NamedTuple):
    """The columns of a directory that `pick` reads, a place for each entry, see `Directory`."""

    ids: I64
    kinds: U8
    sums: U64
    starts: U32
    """Where each entry's numbers begin; one more than entries."""
    numbers: U16


@kernel
def pick(line: I64, limits: I64, entries: I64, directory: Entries, proved: bool, refs: I64) -> int:
    """References of the rows of some entries of a directory, entry after entry; how many there are.

    -1: a row is not what was written: its number is no row of the block or out of order, its bytes lie
    outside their column (`limits`: bytes of keys, values, old values), its key is of another table, or the
    entry's sum differs. `proved`: the block's CRC was verified, so that sums need not be.

    Reads the rows of the entries. Writes `refs`. Bound: a place of `refs` for each number of the entries;
    each offset is compared with `limits` before it is followed. Twin: none, because the plain way is to
    filter all rows; `tests.eventstore.test_directory.test_reading_some_tables_is_filtering_all_rows` compares
    the two.
    """
    count = 0
    for entry in entries:
        state, before = np.uint64(0), -1
        for at in range(directory.starts[entry], directory.starts[entry + 1]):
            row: Any = np.int64(directory.numbers[at])
            if row <= before or row >= line[ROWS]:
                return -1
            if not (
                _held(line[KEY_AT], row, limits[0])
                and _held(line[VALUE_AT], row, limits[1])
                and _held(line[OLD_AT], row, limits[2])
            ):
                return -1
            begin, end = load_bounds(line[KEY_AT], row)
            key = line[KEY] + begin
            kind = _kind_of(key, end - begin)
            if kind != directory.kinds[entry] or _table_of(key, kind) != directory.ids[entry]:
                return -1
            if not proved:
                state = _mixed(state, _sum_row(line, row))
            refs[count] = row
            before = row
            count += 1
        if not proved and state != directory.sums[entry]:
            return -1
    return count


def tables_of(batch: pa.RecordBatch) -> BatchTables:
    """What the directory says of a block that is not empty, of at most MAX_BLOCK_ROWS rows."""
    line, rows = describe(batch), batch.num_rows
    alone = one_table(line)
    if alone:
        line[ROWS] = 1  # the first speaks for all
    places = int(line[ROWS])
    buckets = np.full(1 << (2 * places - 1).bit_length(), -1, dtype=np.int32)
    ids, counts = np.empty(places, dtype=np.int64), np.empty(places, dtype=np.int64)
    kinds, entry_of = np.empty(places, dtype=np.uint8), np.empty(places, dtype=np.uint16)
    found = group(line, buckets, ids, kinds, counts, entry_of)
    ids, kinds, counts = ids[:found], kinds[:found], counts[:found]
    sums = np.zeros(found, dtype=np.uint64)
    if alone:
        counts[0] = rows
        return BatchTables(ids, kinds, counts, sums, np.empty(0, dtype=np.uint16))
    numbers = np.empty(rows, dtype=np.uint16)
    enter(line, entry_of, np.cumsum(counts) - counts, numbers, sums)
    return BatchTables(ids, kinds, counts, sums, numbers)


def rows_of(batch: pa.RecordBatch, directory: Directory, entries: I64, *, proved: bool) -> I64 | None:
    """References of the rows of some entries of one block, in its order; None: they are not as written.

    `proved`: the block's CRC was verified.
    """
    try:
        line = describe(batch)
    except AssertionError:
        return None
    data = [batch.column(i).buffers()[2] for i in (3, 4, 5)]
    limits = np.array([0 if each is None else each.size for each in data], dtype=np.int64)
    starts = directory.starts
    refs = np.empty(int((starts[entries + 1] - starts[entries]).sum()), dtype=np.int64)
    columns = Entries(directory.ids, directory.kinds, directory.sums, starts, directory.numbers)
    count = pick(line, limits, entries, columns, proved, refs)
    if count < 0:
        return None
    return refs if len(entries) == 1 else np.sort(refs)


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
        line[COMMIT + position] = address(values) + column.offset * width
    for position, index in enumerate((3, 4, 5)):
        column = batch.column(index)
        _, offsets, data = column.buffers()
        assert rows == 0 or offsets.size >= (column.offset + rows + 1) * 4, (
            "offsets are shorter than their block"
        )
        line[KEY_AT + 2 * position] = address(offsets) + column.offset * 4
        line[KEY + 2 * position] = address(data)
    return line


def commit_range(batch: pa.RecordBatch) -> tuple[int, int]:
    """The smallest and largest commit_ts of a block that is not empty."""
    commits = batch.column(0).to_numpy()
    return int(commits.min()), int(commits.max())


def order_rows(table: I64, after: int, upto: int, taken: I64) -> tuple[I64, int, int]:
    """`sort` with its scratch space: (references, least commit_ts, greatest commit_ts); 0, 0 when empty."""
    rows = int(table[:, ROWS].sum())
    ts, spare_ts = np.empty(rows, dtype=np.uint64), np.empty(rows, dtype=np.uint64)
    refs, spare = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
    count = sort(table, np.uint64(after), np.uint64(upto), ts, refs, spare_ts, spare, taken)
    if count == 0:
        return refs[:0], 0, 0
    return refs[:count], int(ts[0]), int(ts[count - 1])


Allocate = Callable[[list[int]], list[pa.Buffer]]
"""Makes buffers of the given sizes for one block."""


def allocate(sizes: list[int]) -> list[pa.Buffer]:
    """Buffers of their own."""
    return [pa.allocate_buffer(size) for size in sizes]


class Scratch:
    """Memory for one block, used again and again: fresh pages cost more than the copy into them.

    A block made with it is valid until the next one is made.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=np.uint8)

    def __call__(self, sizes: list[int]) -> list[pa.Buffer]:
        """As `allocate`. Keeps as much memory as the largest block took."""
        starts = np.cumsum([0, *((size + 63) & ~63 for size in sizes)]).tolist()
        if starts[-1] > len(self._memory):
            self._memory = np.empty(starts[-1] + (starts[-1] >> 1), dtype=np.uint8)
        whole = pa.py_buffer(self._memory)
        return [whole.slice(start, size) for start, size in zip(starts, sizes, strict=False)]


def take(
    table: I64, refs: I64, first: int = 0, max_rows: int = MAX_BLOCK_ROWS, memory: Allocate = allocate
) -> tuple[pa.RecordBatch, int]:
    """A new block of the rows from refs[first] on, of at most `max_rows` and MAX_BLOCK_BYTES; its end."""
    sizes = np.zeros(3, dtype=np.int64)
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
    """All rows as blocks. With a `Scratch` each is valid until the next."""
    first = 0
    while first < len(refs):
        block, first = take(table, refs, first, memory=memory)
        yield block


def table_of(lines: list[Any]) -> I64:
    """Lines stacked into the table that the kernels take."""
    return np.stack(lines) if lines else np.empty((0, LINE), dtype=np.int64)


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    columns: list[list[Any]] = [[2, 1], [1, 1], [1, 1], [b"k", b"k"], [b"v", b"v"], [b"", b""]]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
    block = pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)
    table = table_of([describe(block)])
    refs, _, _ = order_rows(table, 0, 5, np.zeros(1, dtype=np.int64))
    sorted_block, _ = take(table, refs)
    table = table_of([describe(sorted_block)])
    merge(table, np.zeros(1, dtype=np.int64), np.full(1, 2, dtype=np.int64), refs)
    columns[3] = [b"t" + bytes(8) + b"_r", b"k"]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
    mixed = pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)
    directory = Directory(memoryview(encode([tables_of(mixed)])), [2])
    rows_of(mixed, directory, np.array([0, 1], dtype=np.int64), proved=False)
