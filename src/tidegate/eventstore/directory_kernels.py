"""Compiled directories: which rows of a block belong to which table; `order` is the plain twin.

`tables_of` makes the directory entries of a block. For a block of a single table, which is usual if each
table has its own span, it only reads the front of each key. `rows_of` finds rows by a directory and verifies
them. Only `rows_of` works on bytes that no CRC has verified, so it checks every offset before it follows it.
Kernels take a block as a table line, which `kernels.describe` makes.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.eventstore.directory import NONE, OTHER, RECORD, BatchTables, Directory, encode
from tidegate.eventstore.kernels import (
    COMMIT,
    I64,
    KEY,
    KEY_AT,
    OLD,
    OLD_AT,
    OP,
    ROWS,
    START,
    U64,
    VALUE,
    VALUE_AT,
    describe,
)
from tidegate.kernel import inline, kernel, load_be64, load_bounds, load_u8, load_u16, load_u64
from tidegate.model.block import ENTRY_SCHEMA

I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
U8 = npt.NDArray[np.uint8]

_TABLE: Final = ord("t")
_RECORD_MARK: Final = int.from_bytes(b"_r", "little")
_TABLE_KEY, _RECORD_KEY = 9, 11
"""The sizes in bytes of `t{id}` and of `t{id}_r`: the least size of a table's key and of a row's key."""
_SIGN: Final = np.uint64(1 << 63)

SUM_START: Final = np.uint64(0x9E3779B97F4A7C15)
SUM_FACTOR: Final = np.uint64(0xD6E8FEB86659FD93)
_HALF: Final = np.uint64(32)
_HASH: Final = 0x5851F42D4C957F2D
_BYTE: Final = np.uint64(8)
_LANE: Final = 8
"""Bytes that a lane consumes in one step."""


@inline
def _kind_of(key: int, size: int) -> int:
    """The class of a key; reads no byte beyond the key."""
    if size < _TABLE_KEY or load_u8(key) != _TABLE:
        return NONE
    if size >= _RECORD_KEY and load_u16(key + _TABLE_KEY) == _RECORD_MARK:
        return RECORD
    return OTHER


@inline
def _table_of(key: int, kind: int) -> int:
    """The table id of a key of class `kind`; 0 for a key of no table."""
    if kind == NONE:
        return 0
    # TiDB writes signed ids with the sign bit inverted, so that keys sort as their ids do.
    return int(np.int64(np.uint64(load_be64(key + 1)) ^ _SIGN))


@kernel
def one_table(line: I64) -> bool:
    """Whether all rows of a block have the same table and class.

    Reads the front of each key. Writes nothing. Bound: the rows of the block, which must have at least one.
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
    """Assign each row of a block to the entry of its table and class; returns the number of entries.

    Entries are numbered in the order of their first rows, and described by `ids`, `kinds` and `counts`, which
    have as many elements as the block has rows (65,536 at most). The caller fills `buckets` with -1; it is a
    hash table whose size is a power of two, and at least twice the number of rows.

    Reads the front of each key. Writes `buckets`, `ids`, `kinds`, `counts` and `entry_of`. Bound: one entry
    for each row. Twin: `tidegate.eventstore.order.rows_by_table`. Trick: a row of the same table as the row
    before it needs no look-up in the hash table.
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
            # The product wraps around and may be negative. The mask makes an index of it all the same.
            bucket = (((table * 3 + kind) * _HASH) >> 32) & mask
            entry = buckets[bucket]
            # It ends: at most half of the buckets are used.
            while entry >= 0 and (ids[entry] != table or kinds[entry] != kind):
                bucket = (bucket + 1) & mask
                entry = buckets[bucket]
            if entry < 0:
                entry = found
                # At most 65,536 entries, so their numbers fit the 16 bits of `entry_of`.
                buckets[bucket] = found
                ids[found], kinds[found], counts[found] = table, kind, 0
                found += 1
        counts[entry] += 1
        entry_of[row] = entry
    return found


@inline
def _mixed(state: Any, word: Any) -> Any:
    """Mix a word into the state. For a fixed state the result is one to one in `word`, and for a fixed word
    one to one in `state`; therefore a single changed word always changes the sum.
    """
    state = (state ^ word) * SUM_FACTOR
    return state ^ (state >> _HALF)


@inline
def _sum_bytes(state: Any, at: int, size: int) -> Any:
    """The sum of some bytes, in two lanes of 8 bytes; reads no byte beyond them.

    Each step of a lane waits for the step before it, so two independent lanes keep the CPU busy.
    """
    # The lanes are joined by an XOR. With equal starts an exchange of their words would give the same sum.
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
            # Some of these bytes were summed already. That is cheaper than to read the rest byte by byte,
            # and no read leaves the row.
            last = load_u64(at + size - 8)
        else:
            while i < size:
                last = (last << _BYTE) | np.uint64(load_u8(at + i))
                i += 1
        right = _mixed(right, last)
    return _mixed(left, right)


@inline
def _sum_row(line: I64, row: int) -> Any:
    """The sum of one row. Each column starts from SUM_START and not from the sum of the column before it, so
    the CPU can work on all columns at once.
    """
    key, key_end = load_bounds(line[KEY_AT], row)
    value, value_end = load_bounds(line[VALUE_AT], row)
    old, old_end = load_bounds(line[OLD_AT], row)
    key_size, value_size, old_size = key_end - key, value_end - value, old_end - old
    state = _mixed(SUM_START, load_u64(line[COMMIT] + 8 * row))
    state = _mixed(state, load_u64(line[START] + 8 * row))
    # The sizes are part of the sum: a byte that moves from the value to the old value changes it.
    state = _mixed(state, np.uint64(key_size) << _HALF | np.uint64(load_u8(line[OP] + row)))
    state = _mixed(state, np.uint64(value_size) << _HALF | np.uint64(old_size))
    state = _mixed(state, _sum_bytes(SUM_START, line[KEY] + key, key_size))
    state = _mixed(state, _sum_bytes(SUM_START, line[VALUE] + value, value_size))
    return _mixed(state, _sum_bytes(SUM_START, line[OLD] + old, old_size))


@kernel
def enter(line: I64, entry_of: U16, cursors: I64, numbers: U16, sums: U64) -> None:
    """Write each row's number into its entry's part of `numbers`, and add the row to the entry's sum.

    `cursors` holds the index of each entry's first number and is advanced. `numbers` has an element for each
    row. The caller sets `sums` to 0.

    Reads the rows of the block in full. Writes `numbers`, `cursors` and `sums`. Bound: one number for each
    row. Twins: `tidegate.eventstore.order.rows_by_table` and `tidegate.eventstore.order.sum_of`. Trick: the
    sum of a row consists of six chains that do not wait for each other.
    """
    for row in range(line[ROWS]):
        entry = entry_of[row]
        numbers[cursors[entry]] = row
        cursors[entry] += 1
        # Mixed and not added, so that rows in another order have another sum.
        sums[entry] = _mixed(sums[entry], _sum_row(line, row))


@inline
def _held(offsets: int, row: int, limit: int) -> bool:
    """Whether a row's value is inside its column of `limit` bytes."""
    begin, end = load_bounds(offsets, row)
    return 0 <= begin <= end <= limit


class Entries(NamedTuple):
    """The columns of a directory that `pick` reads, with an element for each entry; see `Directory`."""

    ids: I64
    kinds: U8
    sums: U64
    starts: U32
    """The index of each entry's first number, and one element more for the end of the last entry."""
    numbers: U16


@kernel
def pick(line: I64, limits: I64, entries: I64, directory: Entries, proved: bool, refs: I64) -> int:
    """Write references of the rows of some entries, entry after entry; returns the number of references.

    Returns -1 if a row is not what was written: its number is not a row of the block or is out of order, its
    bytes are outside their column (`limits`: bytes of keys, values, old values), its key belongs to another
    table, or the entry's sum differs. `proved`: the block's CRC was verified, so the sums are not checked.

    Reads the rows of the entries. Writes `refs`. Bound: an element of `refs` for each number of the entries;
    each offset is compared with `limits` before it is followed. Twin: none, because the plain way is to
    filter all rows; `tests.eventstore.test_directory.test_reading_some_tables_is_filtering_all_rows` compares
    the two.
    """
    count = 0
    for entry in entries:
        state, before = np.uint64(0), -1
        for at in range(directory.starts[entry], directory.starts[entry + 1]):
            row: Any = np.int64(directory.numbers[at])
            # Ascending numbers: no row comes twice, and the order of the block is kept.
            if row <= before or row >= line[ROWS]:
                return -1
            # `describe` has checked the columns' lengths, but not the offsets in them: they come from bytes
            # that may be damaged.
            if not (
                _held(line[KEY_AT], row, limits[0])
                and _held(line[VALUE_AT], row, limits[1])
                and _held(line[OLD_AT], row, limits[2])
            ):
                return -1
            begin, end = load_bounds(line[KEY_AT], row)
            key = line[KEY] + begin
            # The key is compared although a sum covers it: with `proved` no sum is checked, and the
            # directory may name wrong rows of a good batch.
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
    """The directory entries of a block of 1 to MAX_BLOCK_ROWS rows."""
    line, rows = describe(batch), batch.num_rows
    alone = one_table(line)
    if alone:
        line[ROWS] = 1  # one row is enough to find the block's only entry
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
    """References of the rows of some entries of one block, in the block's order.

    Returns None if the rows are not what was written. `proved`: the block's CRC was verified.
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
    # A reference of block 0 is the row's number, so this is the order of the block.
    return refs if len(entries) == 1 else np.sort(refs)


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    columns: list[list[Any]] = [
        [2, 1],
        [1, 1],
        [1, 1],
        [b"t" + bytes(8) + b"_r", b"k"],
        [b"v", b"v"],
        [b"", b""],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
    block = pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)
    directory = Directory(memoryview(encode([tables_of(block)])), [2])
    rows_of(block, directory, np.array([0, 1], dtype=np.int64), proved=False)
