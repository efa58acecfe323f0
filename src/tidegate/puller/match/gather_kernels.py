"""From references to columns: completed changes of one span, copied into the columns of ENTRY_SCHEMA."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel import (
    address,
    copy_exact,
    inline,
    kernel,
    load_u64,
    prefetch,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.puller.match.table_kernels import (
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
    OUT_WORDS,
    get_int,
    i64,
    put_int,
)

AHEAD, CALLED = 4, 256
"""So many changes in advance so many bytes are called for, from the key on: the values follow it."""


@inline
def _out_word(out: int, number: int, word: int) -> Any:
    return load_u64(out + 8 * (OUT_WORDS * number + word))


@kernel
def one_span(out: int, count: int) -> bool:
    """Whether all changes are of the first one's span."""
    i = 0
    while i < count and _out_word(out, i, O_SPAN) == _out_word(out, 0, O_SPAN):
        i += 1
    return i == count


@kernel
def measure(out: int, first: int, count: int, max_rows: int, max_bytes: int, sizes: int) -> int:
    """Changes from out[first] on that fit one block, all of one span: `sizes` becomes three byte sums.

    Returns the index after the last; at least one change fits.
    """
    span = _out_word(out, first, O_SPAN)
    keys, values, olds = 0, 0, 0
    i = first
    while i < count and i - first < max_rows and _out_word(out, i, O_SPAN) == span:
        k = i64(_out_word(out, i, O_KEY_SIZE))
        v = i64(_out_word(out, i, O_VALUE_SIZE))
        o = i64(_out_word(out, i, O_OLD_SIZE))
        if i > first and keys + values + olds + k + v + o > max_bytes:
            break
        keys, values, olds = keys + k, values + v, olds + o
        i += 1
    put_int(sizes, 0, keys)
    put_int(sizes, 1, values)
    put_int(sizes, 2, olds)
    return i


@kernel
def gather(out: int, first: int, end: int, columns: int) -> None:
    """Copy the changes out[first:end] into columns.

    `columns`: addresses of commit_ts, start_ts, op, then offsets and data of key, value, old value.
    """
    commits, starts, ops = get_int(columns, 0), get_int(columns, 1), get_int(columns, 2)
    key_ends, keys = get_int(columns, 3), get_int(columns, 4)
    value_ends, values = get_int(columns, 5), get_int(columns, 6)
    old_ends, olds = get_int(columns, 7), get_int(columns, 8)
    store_u32(key_ends, np.uint32(0))
    store_u32(value_ends, np.uint32(0))
    store_u32(old_ends, np.uint32(0))
    key_end, value_end, old_end = 0, 0, 0
    for i in range(first, end):
        n = i - first
        store_u64(commits + 8 * n, _out_word(out, i, O_COMMIT))
        store_u64(starts + 8 * n, _out_word(out, i, O_START))
        store_u8(ops + n, np.uint8(_out_word(out, i, O_OP)))
        if i + AHEAD < end:
            later = i64(_out_word(out, i + AHEAD, O_KEY))
            for line in range(0, CALLED, 64):
                prefetch(later + line)
        k = i64(_out_word(out, i, O_KEY_SIZE))
        v = i64(_out_word(out, i, O_VALUE_SIZE))
        o = i64(_out_word(out, i, O_OLD_SIZE))
        copy_exact(keys + key_end, i64(_out_word(out, i, O_KEY)), k)
        copy_exact(values + value_end, i64(_out_word(out, i, O_VALUE)), v)
        copy_exact(olds + old_end, i64(_out_word(out, i, O_OLD)), o)
        key_end, value_end, old_end = key_end + k, value_end + v, old_end + o
        store_u32(key_ends + 4 * (n + 1), np.uint32(key_end))
        store_u32(value_ends + 4 * (n + 1), np.uint32(value_end))
        store_u32(old_ends + 4 * (n + 1), np.uint32(old_end))


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    spare = np.zeros(1024, np.uint64)
    at = address(spare)
    one_span(at, 0)
    measure(at, 0, 0, 1, 1, at)
    gather(at, 0, 0, address(np.full(9, at, np.int64)))
