"""Completed changes: first references to their bytes, then the columns of ENTRY_SCHEMA.

`match_kernels` writes a reference for each completed change with `emit`. After the call `by_class` puts the
changes of each transaction in order, and `measure` and `gather` copy the changes of one span at a time into
the columns of a block.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tidegate.kernel import (
    address,
    copy_exact,
    inline,
    kernel,
    prefetch,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.kernel_layout import Layout, pointer
from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.puller.match.open_kernels import record_word
from tidegate.puller.match.table_kernels import (
    C_OUT,
    IN_MESSAGE,
    KEY,
    KEY_SIZE,
    O_COMMIT,
    O_KEY,
    O_KEY_SIZE,
    O_OLD,
    O_OLD_SIZE,
    O_OP,
    O_SPAN,
    O_START,
    O_VALUE,
    O_VALUE_SIZE,
    OLD,
    OLD_SIZE,
    R_KEY_SIZE,
    R_OLD_SIZE,
    R_VALUE_SIZE,
    RECORD,
    REG_SPAN,
    VALUE,
    VALUE_SIZE,
    Tables,
    get_int,
    i64,
    out_word,
    put_int,
    put_out_word,
    registration_word,
    row_word,
)

AHEAD, CALLED = 4, 256
"""Prefetching: CALLED bytes of the change AHEAD changes later, from its key on; values follow it."""
CACHE_LINE = 64
"""Bytes."""

BLOCK: Final = Layout(
    "block", "G_", "The buffers of a new block of ENTRY_SCHEMA.",
    commit=pointer("commit_ts, uint64"),
    start=pointer("start_ts, uint64"),
    op=pointer("operation, uint8"),
    key_ends=pointer("offsets of keys, int32, one more than rows"),
    key=pointer("keys"),
    value_ends=pointer("offsets of values"),
    value=pointer("values"),
    old_ends=pointer("offsets of old values"),
    old=pointer("old values"),
)  # fmt: skip
(G_COMMIT, G_START, G_OP, G_KEY_ENDS, G_KEY, G_VALUE_ENDS, G_VALUE, G_OLD_ENDS, G_OLD) = BLOCK.words()


@inline
def emit(tables: Tables, registration: int, commit: Any, start: Any, op: Any, ref: Any) -> None:
    """Emit a commit with the values of its prewrite: of a row in a message, or of a record in the arena."""
    out, rows, arena = tables.out, tables.rows, tables.arena
    # `MatchOutcome.make_room` has made room for a change of each row and each waiting row, so `i` is inside
    # `out`.
    i = get_int(tables.counts, C_OUT)
    put_out_word(out, i, O_COMMIT, commit)
    put_out_word(out, i, O_START, start)
    put_out_word(out, i, O_OP, op)
    put_out_word(out, i, O_SPAN, registration_word(tables.registrations, registration, REG_SPAN))
    if ref & IN_MESSAGE:
        row = i64(ref & ~IN_MESSAGE)
        value_size = row_word(rows, row, VALUE_SIZE)
        put_out_word(out, i, O_KEY, row_word(rows, row, KEY))
        put_out_word(out, i, O_KEY_SIZE, row_word(rows, row, KEY_SIZE))
        put_out_word(out, i, O_VALUE, row_word(rows, row, VALUE))
        put_out_word(out, i, O_OLD, row_word(rows, row, OLD))
        put_out_word(out, i, O_OLD_SIZE, row_word(rows, row, OLD_SIZE))
    else:
        # Key and values follow the header. `gather` reads them soon.
        key = arena + i64(ref) + RECORD
        key_size, value_size = record_word(arena, ref, R_KEY_SIZE), record_word(arena, ref, R_VALUE_SIZE)
        prefetch(key + CACHE_LINE)
        prefetch(key + 2 * CACHE_LINE)
        put_out_word(out, i, O_KEY, np.uint64(key))
        put_out_word(out, i, O_KEY_SIZE, key_size)
        put_out_word(out, i, O_VALUE, np.uint64(key + i64(key_size)))
        put_out_word(out, i, O_OLD, np.uint64(key + i64(key_size) + i64(value_size)))
        put_out_word(out, i, O_OLD_SIZE, record_word(arena, ref, R_OLD_SIZE))
    # A delete has no value, whatever its prewrite carried.
    put_out_word(out, i, O_VALUE_SIZE, value_size if op == np.uint64(OP_PUT) else np.uint64(0))
    put_int(tables.counts, C_OUT, i + 1)


@kernel
def one_span(out: int, count: int) -> bool:
    """Whether all changes belong to one span.

    Reads the spans of out[:count], up to the first that differs. Writes nothing. Bound: `count` changes.
    Twin: `tidegate.puller.match.outcome.MatchOutcome.blocks`, which makes a block for each span if this is
    false.
    """
    i = 0
    while i < count and out_word(out, i, O_SPAN) == out_word(out, 0, O_SPAN):
        i += 1
    return i == count


_CLASSES: Final = 3
"""Deletes, updates and inserts: the order of a transaction's changes in the event store."""


@inline
def change_class(out: int, change: int) -> int:
    """The class of a change, as in `eventstore.kernels`."""
    if out_word(out, change, O_OP) == np.uint64(OP_DELETE):
        return 0
    return 1 if out_word(out, change, O_OLD_SIZE) != np.uint64(0) else 2


@inline
def same_transaction(out: int, one: int, other: int) -> bool:
    """Whether two changes belong to one transaction and span."""
    return bool(
        (out_word(out, one, O_COMMIT) == out_word(out, other, O_COMMIT))
        & (out_word(out, one, O_START) == out_word(out, other, O_START))
        & (out_word(out, one, O_SPAN) == out_word(out, other, O_SPAN))
    )


@kernel
def by_class(out: int, count: int, order: int) -> None:
    """The numbers of the changes, those of each transaction that follow one another by class, else as before.

    A transaction's changes come in the order of their keys. The event store wants the class before the key,
    and need not copy a block that has this order.

    Reads out[:count]. Writes `count` words at `order`. Bound: `count` changes. Twin: none, the store sorts in
    any case; `tests.puller.match.test_matcher` compares the emitted rows.
    """
    first = 0
    while first < count:
        end = first + 1
        seen = 1 << change_class(out, first)
        while end < count and same_transaction(out, first, end):
            seen |= 1 << change_class(out, end)
            end += 1
        at = first
        for wanted in range(_CLASSES):
            # Most transactions have one class, and need one pass.
            if seen >> wanted & 1:
                for i in range(first, end):
                    if seen == 1 << wanted or change_class(out, i) == wanted:
                        put_int(order, at, i)
                        at += 1
        first = end


@kernel
def measure(out: int, order: int, first: int, count: int, max_rows: int, max_bytes: int, sizes: int) -> int:
    """The end of the run of changes from order[first] on that belong to one span and fit in one block.

    Returns the index after the last; at least one change fits. `sizes` becomes the three sums of bytes.

    Reads the sizes of changes from `first` on. Writes three words at `sizes`: bytes of keys, values and old
    values. Bound: `max_rows` changes, `max_bytes` bytes unless the first alone has more. Twin: none, the sums
    are those of the columns that `gather` fills.
    """
    span = out_word(out, get_int(order, first), O_SPAN)
    keys, values, olds = 0, 0, 0
    i = first
    while i < count and i - first < max_rows and out_word(out, get_int(order, i), O_SPAN) == span:
        change = get_int(order, i)
        k = i64(out_word(out, change, O_KEY_SIZE))
        v = i64(out_word(out, change, O_VALUE_SIZE))
        o = i64(out_word(out, change, O_OLD_SIZE))
        # Without `i > first` a change larger than a block would never go out.
        if i > first and keys + values + olds + k + v + o > max_bytes:
            break
        keys, values, olds = keys + k, values + v, olds + o
        i += 1
    put_int(sizes, 0, keys)
    put_int(sizes, 1, values)
    put_int(sizes, 2, olds)
    return i


@kernel
def gather(out: int, order: int, first: int, end: int, columns: int) -> None:
    """Copy the changes order[first:end] into the buffers that `columns` names, see BLOCK.

    Reads changes and the bytes they point to. Writes the block's buffers. Bound: the sizes that `measure` has
    counted. Twin: none, a copy; `tests.puller.match.test_matcher` compares the emitted rows. Trick: the
    bytes of later changes are prefetched into the cache.
    """
    commits, starts, ops = get_int(columns, G_COMMIT), get_int(columns, G_START), get_int(columns, G_OP)
    key_ends, keys = get_int(columns, G_KEY_ENDS), get_int(columns, G_KEY)
    value_ends, values = get_int(columns, G_VALUE_ENDS), get_int(columns, G_VALUE)
    old_ends, olds = get_int(columns, G_OLD_ENDS), get_int(columns, G_OLD)
    store_u32(key_ends, np.uint32(0))
    store_u32(value_ends, np.uint32(0))
    store_u32(old_ends, np.uint32(0))
    key_end, value_end, old_end = 0, 0, 0
    for i in range(first, end):
        n, change = i - first, get_int(order, i)
        store_u64(commits + 8 * n, out_word(out, change, O_COMMIT))
        store_u64(starts + 8 * n, out_word(out, change, O_START))
        store_u8(ops + n, np.uint8(out_word(out, change, O_OP)))
        if i + AHEAD < end:
            # A prefetch never faults, so lines behind a short change do no harm.
            later = i64(out_word(out, get_int(order, i + AHEAD), O_KEY))
            for line in range(0, CALLED, CACHE_LINE):
                prefetch(later + line)
        k = i64(out_word(out, change, O_KEY_SIZE))
        v = i64(out_word(out, change, O_VALUE_SIZE))
        o = i64(out_word(out, change, O_OLD_SIZE))
        copy_exact(keys + key_end, i64(out_word(out, change, O_KEY)), k)
        copy_exact(values + value_end, i64(out_word(out, change, O_VALUE)), v)
        copy_exact(olds + old_end, i64(out_word(out, change, O_OLD)), o)
        key_end, value_end, old_end = key_end + k, value_end + v, old_end + o
        # The ends fit 32 bits: `measure` limits a run to a few megabytes, and a single larger change comes
        # from one message.
        store_u32(key_ends + 4 * (n + 1), np.uint32(key_end))
        store_u32(value_ends + 4 * (n + 1), np.uint32(value_end))
        store_u32(old_ends + 4 * (n + 1), np.uint32(old_end))


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    spare = np.zeros(1024, np.uint64)
    at = address(spare)
    one_span(at, 0)
    by_class(at, 0, at)
    measure(at, at, 0, 0, 1, 1, at)
    gather(at, at, 0, 0, address(np.full(len(BLOCK.fields), at, np.int64)))
