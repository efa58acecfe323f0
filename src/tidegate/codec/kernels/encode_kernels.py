"""Encode kernels: from cells straight to the bytes of messages, whatever the protocol.

A table's *plan* (`codec.plan`) is a list of pieces (`piece_kernels`) for the key, and one for each
operation's value. `row_kernels` writes the pieces of one row; the kernels here write row after row into one
buffer and note where each message begins:

    write_single    data = [ key of row 0 | its value | key of row 1 | ... ]: a message a row, key or none
    write_framed    data = [ keys of all messages | values of all messages ]: rows in batches with lengths

Rows, plan, output and the state between calls are one record (`job_kernels`). Before a row is written, its
largest size is compared with the room left. If there is too little, the kernel returns and is called again
with a larger buffer, so it never writes past the end. Plain twins: `plain` in each protocol's folder.

Every address argument is an int64. Texts and constants are copied 32 bytes at a time, and what is too much is
replaced by the next write: buffers end with `kernel.PAD` spare bytes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tidegate.codec.kernels.job_kernels import (
    DONE,
    J_AT,
    J_DATA,
    J_FRAMED,
    J_HELD,
    J_HELD_BYTES,
    J_KEY_LENGTH,
    J_KEY_OUT,
    J_KEY_START,
    J_MAX_BYTES,
    J_MAX_ROWS,
    J_MESSAGE_PARTITION,
    J_MESSAGE_ROWS,
    J_MESSAGES,
    J_MOST_VARIABLE,
    J_NEED,
    J_NEW_SIZES,
    J_NEW_STRIDE,
    J_OLD_SIZES,
    J_OLD_STRIDE,
    J_OP,
    J_ORDER,
    J_OUT,
    J_PARTITION,
    J_PIECES,
    J_ROOM,
    J_ROWS,
    J_VALUE_LENGTH,
    J_VALUE_START,
    J_VARIABLES,
    JOB_WORDS,
    NEED_ROOM,
    RECORD_OVERHEAD,
    TOO_LARGE,
    VARIABLE_BYTES,
    VARIABLE_CELL,
    VARIABLE_FACTOR,
    VARIABLES_AT,
)
from tidegate.codec.kernels.layout_kernels import RUN_SIZE
from tidegate.codec.kernels.row_kernels import prefetch_row, put_key, put_row, row_bound
from tidegate.kernel import (
    bswap64,
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.model.cells import DELETE, INSERT
from tidegate.tidb.kernels.text import I64, U64

BATCH_VERSION: Final = 0x0100000000000000
"""The number 1, big-endian, with which the key of a batch begins."""
LENGTH_BYTES: Final = 8
"""The bytes of a length, which comes before each key and value, and of the version before the first key."""
_HELD_KEYS_AT: Final = 40
_HELD_VALUES: Final = (1 << _HELD_KEYS_AT) - 1
"""How J_HELD_BYTES has the bytes of keys above those of values."""


class Span(NamedTuple):
    """The bytes of a key or value in data: the addresses of the first and after the last one."""

    start: int
    end: int


@inline
def null_span(data: int) -> Span:
    """The span of a null in `data`: its start and length become -1."""
    return Span(data - 1, data - 2)


@inline
def end_message(job: int, number: int, key: Span, value: Span, row: int, rows: int) -> None:
    """Note one finished message of `rows` rows; `row` is one of them."""
    data = load_i64(job + J_DATA)
    store_u64(load_i64(job + J_KEY_START) + 8 * number, key.start - data)
    store_u64(load_i64(job + J_KEY_LENGTH) + 8 * number, key.end - key.start)
    store_u64(load_i64(job + J_VALUE_START) + 8 * number, value.start - data)
    store_u64(load_i64(job + J_VALUE_LENGTH) + 8 * number, value.end - value.start)
    store_u32(
        load_i64(job + J_MESSAGE_PARTITION) + 4 * number, load_u32(load_i64(job + J_PARTITION) + 4 * row)
    )
    store_u32(load_i64(job + J_MESSAGE_ROWS) + 4 * number, rows)


@inline
def write_single(job: int) -> int:
    """Write one message for each row, its key before its value; returns DONE, or why it stopped at row J_AT.

    A key without pieces is null.

    Reads cells, plan and job. Writes data, the messages' columns and the job's state. Bound: J_ROOM, compared
    with the worst case of each row before it is written. Twin: `encode_rows` of each protocol's `plain`;
    `tests.contracts.test_codecs.test_golden_rows_give_the_same_bytes_compiled_and_plain` compares them.
    Trick: constants are copied 32 bytes at a time, over what the next write replaces.
    """
    data = load_i64(job + J_DATA)
    end = data + load_i64(job + J_ROOM)
    out = data + load_i64(job + J_OUT)
    rows = load_i64(job + J_ROWS)
    ops = load_i64(job + J_OP)
    limit = load_i64(job + J_MAX_BYTES) - RECORD_OVERHEAD
    keyed = load_i64(load_i64(job + J_PIECES) + RUN_SIZE) > 0
    row = load_i64(job + J_AT)
    status = DONE
    while row < rows:
        op = I64(load_u8(ops + row))
        bound = row_bound(job, op, row, end - out)
        if out + bound > end:
            # Nothing of this row is written yet, so the caller enlarges the buffer and calls again.
            store_u64(job + J_NEED, bound)
            status = NEED_ROOM
            break
        if row + 1 < rows:
            prefetch_row(job, I64(load_u8(ops + row + 1)), row + 1)
        key = out
        start = put_key(key, job, op, row) if keyed else key
        out = put_row(start, job, op, row)
        if out - key > limit:
            store_u64(job + J_NEED, out - key + RECORD_OVERHEAD)
            status = TOO_LARGE
            break
        named = Span(key, start) if keyed else null_span(data)
        end_message(job, row, named, Span(start, out), row, 1)
        row += 1
    store_u64(job + J_OUT, out - data)
    store_u64(job + J_AT, row)
    store_u64(job + J_MESSAGES, row)
    return status


@inline
def shift_right(start: int, end: int, by: int) -> None:
    """Move the bytes [start, end) up by `by`."""
    at = end - 1
    # From the end, because source and target overlap.
    while at >= start:
        store_u8(at + by, load_u8(at))
        at -= 1


@inline
def write_framed(job: int) -> int:
    """Write batches of rows as lengths and bytes, partition after partition; returns DONE, or why it stopped.

    A batch's key begins with a version of 1 (u64, big-endian); each key and value has a length before it.
    A message is noted when the next one begins, the last one when all rows are done.

    Reads cells, plan and job. Writes data, the messages' columns and the job's state. Bound: J_ROOM, compared
    with the worst case of each row before it is written. Twin:
    `tidegate.codec.protocols.open_protocol.plain.OpenProtocolEncoder.encode_rows`. Trick: the keys of all
    messages come first in data, so that a row's key and value are written once.
    """
    data = load_i64(job + J_DATA)
    end = data + load_i64(job + J_ROOM)
    key_out = data + load_i64(job + J_KEY_OUT)
    out = data + load_i64(job + J_OUT)
    rows = load_i64(job + J_ROWS)
    order = load_i64(job + J_ORDER)
    ops = load_i64(job + J_OP)
    partitions = load_i64(job + J_PARTITION)
    max_bytes = load_i64(job + J_MAX_BYTES)
    max_rows = load_i64(job + J_MAX_ROWS)
    number = load_i64(job + J_MESSAGES)
    held = load_i64(job + J_HELD)
    held_bytes = load_i64(job + J_HELD_BYTES)
    key_start = key_out - (held_bytes >> _HELD_KEYS_AT)
    start = out - (held_bytes & _HELD_VALUES)
    at = load_i64(job + J_AT)
    row = -1
    status = DONE
    # The two sizes of the open message are stored, not its addresses, because the caller moves the data
    # when it enlarges the buffer.
    while at < rows:
        before = load_i64(order + 8 * (at - 1)) if order and at > 0 else at - 1
        row = load_i64(order + 8 * at) if order else at
        op = I64(load_u8(ops + row))
        bound = row_bound(job, op, row, end - out)
        if out + bound > end:
            store_u64(job + J_NEED, bound)
            status = NEED_ROOM
            break
        if at + 1 < rows:
            following = load_i64(order + 8 * (at + 1)) if order else at + 1
            prefetch_row(job, I64(load_u8(ops + following)), following)
        fresh = held == 0 or held >= max_rows
        if not fresh:
            fresh = load_u32(partitions + 4 * row) != load_u32(partitions + 4 * before)
        # The length before the key is written later, when it is known.
        item = key_out + (2 * LENGTH_BYTES if fresh else LENGTH_BYTES)
        item_end = put_key(item, job, op, row)
        value_end = put_row(out + LENGTH_BYTES, job, op, row)
        key_size = item_end - item
        value_size = value_end - out - LENGTH_BYTES
        # Alone in a message a row has three lengths: the version, and one before the key and before the
        # value.
        if key_size + value_size + RECORD_OVERHEAD + 3 * LENGTH_BYTES > max_bytes:
            store_u64(job + J_NEED, key_size + value_size + RECORD_OVERHEAD + 3 * LENGTH_BYTES)
            # `key_out` and `out` still stand before this row, so it leaves no trace in the message that is
            # open.
            status = TOO_LARGE
            break
        if not fresh:
            # The version is already in the bytes of the keys, so this row adds two lengths.
            batch = (
                (key_out - key_start)
                + (out - start)
                + RECORD_OVERHEAD
                + key_size
                + value_size
                + 2 * LENGTH_BYTES
            )
            # It turns out only now that the row needs a message of its own. Its key moves up to make room
            # for the version; the value needs none.
            if batch > max_bytes:
                shift_right(item, item_end, LENGTH_BYTES)
                item += LENGTH_BYTES
                item_end += LENGTH_BYTES
                fresh = True
        if fresh:
            if held > 0:
                end_message(job, number, Span(key_start, key_out), Span(start, out), before, held)
                number += 1
            held = 0
            key_start = key_out
            start = out
            store_u64(key_out, BATCH_VERSION)
        store_u64(item - LENGTH_BYTES, bswap64(U64(key_size)))
        store_u64(out, bswap64(U64(value_size)))
        key_out = item_end
        out = value_end
        held += 1
        at += 1
    if status == DONE and held > 0:
        row = load_i64(order + 8 * (rows - 1)) if order else rows - 1
        end_message(job, number, Span(key_start, key_out), Span(start, out), row, held)
        number += 1
        held = 0
    # The values of one message are far below 2**40 bytes, so they do not reach the bits of the keys.
    store_u64(job + J_HELD_BYTES, ((key_out - key_start) << _HELD_KEYS_AT) | (out - start))
    store_u64(job + J_KEY_OUT, key_out - data)
    store_u64(job + J_OUT, out - data)
    store_u64(job + J_AT, at)
    store_u64(job + J_MESSAGES, number)
    store_u64(job + J_HELD, held)
    return status


@kernel
def encode_rows(job: int) -> int:
    """Write the messages of rows; returns DONE, or why it stopped at row J_AT.

    Reads cells, plan and job. Writes data, the messages' columns and the job's state. Bound: J_ROOM, compared
    with the worst case of each row before it is written. Twin: `encode_rows` of each protocol's `plain`;
    `tests.contracts.test_codecs.test_golden_rows_give_the_same_bytes_compiled_and_plain` compares them.
    Trick: one kernel for both forms of messages, because the code for one row is most of it, and is compiled
    once here.
    """
    return write_framed(job) if load_i64(job + J_FRAMED) else write_single(job)


@kernel
def measure(job: int) -> int:
    """Add up the bytes of all values of variable size; J_NEED gets those of the largest one.

    Reads the sizes of cells. Writes J_NEED and J_MOST_VARIABLE. Bound: the columns of variable size of each
    row. Twin: none, because it adds up the sizes that the cells have, by which memory is allocated.
    """
    ops = load_i64(job + J_OP)
    entry = load_i64(job + J_VARIABLES)
    count = load_i64(entry)
    total = 0
    largest = 0
    for row in range(load_i64(job + J_ROWS)):
        op = I64(load_u8(ops + row))
        new_sizes = load_i64(job + J_NEW_SIZES) + 4 * row * load_i64(job + J_NEW_STRIDE)
        old_sizes = load_i64(job + J_OLD_SIZES) + 4 * row * load_i64(job + J_OLD_STRIDE)
        for i in range(count):
            cell = load_i64(entry + VARIABLES_AT + VARIABLE_BYTES * i + VARIABLE_CELL)
            new_size = I64(load_i32(new_sizes + 4 * cell)) if op != DELETE else 0
            old_size = I64(load_i32(old_sizes + 4 * cell)) if op != INSERT else 0
            total += max(new_size, 0) + max(old_size, 0)
            largest = max(largest, new_size, old_size)
    store_u64(job + J_NEED, largest)
    growth = 0
    for i in range(count):
        growth += load_i64(entry + VARIABLES_AT + VARIABLE_BYTES * i + VARIABLE_FACTOR)
    # Both images count.
    store_u64(job + J_MOST_VARIABLE, 2 * growth * largest)
    return total


def warm() -> None:
    """Compile the entry kernels that are not in numba's cache yet, by calling them with no rows."""
    job = np.zeros(JOB_WORDS, dtype=np.int64)
    none = np.zeros(2, dtype=np.int64)
    job[J_VARIABLES // 8] = job[J_PIECES // 8] = none.ctypes.data
    measure(job.ctypes.data)
    encode_rows(job.ctypes.data)
