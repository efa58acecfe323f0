"""From references to columns: completed changes of one span, copied into the columns of ENTRY_SCHEMA."""

from __future__ import annotations

import numpy as np

from tidegate.kernel import address, copy_exact, kernel, store_u8, store_u32, store_u64
from tidegate.puller.table_kernels import (
    I64,
    O_COMMIT,
    O_KEY,
    O_KEY_SIZE,
    O_OLD_SIZE,
    O_OP,
    O_SPAN,
    O_START,
    O_VALUE_SIZE,
    OUT_WORDS,
    U64,
    i64,
)


@kernel
def measure(out: U64, first: int, count: int, span: int, max_rows: int, max_bytes: int, sizes: I64) -> int:
    """Changes of `span` from out[first] on that fit one block: `sizes` becomes rows and three byte sums.

    Returns the index after the last one looked at; at least one change fits.
    """
    rows, keys, values, olds = 0, 0, 0, 0
    i = first
    while i < count and rows < max_rows:
        if out[i, O_SPAN] == np.uint64(span):
            k, v, o = (
                i64(out[i, O_KEY_SIZE]),
                i64(out[i, O_VALUE_SIZE]),
                i64(out[i, O_OLD_SIZE]),
            )
            if rows > 0 and keys + values + olds + k + v + o > max_bytes:
                break
            rows, keys, values, olds = rows + 1, keys + k, values + v, olds + o
        i += 1
    sizes[0], sizes[1], sizes[2], sizes[3] = rows, keys, values, olds
    return i


@kernel
def gather(out: U64, first: int, end: int, span: int, columns: I64) -> None:
    """Copy the changes of `span` in out[first:end] into columns.

    `columns`: addresses of commit_ts, start_ts, op, then offsets and data of key, value, old value.
    """
    n = 0
    for part in range(3):
        store_u32(columns[3 + 2 * part], np.uint32(0))
    ends = np.zeros(3, dtype=np.int64)
    for i in range(first, end):
        if out[i, O_SPAN] != np.uint64(span):
            continue
        store_u64(columns[0] + 8 * n, out[i, O_COMMIT])
        store_u64(columns[1] + 8 * n, out[i, O_START])
        store_u8(columns[2] + n, np.uint8(out[i, O_OP]))
        for part in range(3):
            size = i64(out[i, O_KEY_SIZE + part])
            copy_exact(columns[4 + 2 * part] + ends[part], i64(out[i, O_KEY + part]), size)
            ends[part] += size
            store_u32(columns[3 + 2 * part] + 4 * (n + 1), np.uint32(ends[part]))
        n += 1


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    out, spare = np.zeros((1, OUT_WORDS), np.uint64), np.zeros(1024, np.uint64)
    at = address(spare)
    measure(out, 0, 0, 0, 1, 1, np.zeros(4, np.int64))
    gather(out, 0, 0, 0, np.full(9, at, np.int64))
