"""Rows on their way to disk and back: records of a log, written from the matcher's tables and read into them.

A record is LOG_WORDS words, then key, value and old value, padded to words. Kinds are those of cdcpb, and two
more: FORCED + kind for a commit or rollback that already waited for INITIALIZED, TICK for a resolved ts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel import address, copy_exact, inline, kernel, load_u64, store_u64
from tidegate.model.block import PUT
from tidegate.puller.match.open_kernels import record_bytes, record_word, row_hash
from tidegate.puller.match.table_kernels import (
    C_LOG,
    COMMIT,
    E_END,
    E_FIRST,
    E_KIND,
    E_REGION,
    E_REQUEST,
    E_TS,
    FORCED,
    GENERATION,
    HASH,
    KEY,
    KEY_SIZE,
    KIND,
    L_COMMIT,
    L_GENERATION,
    L_KEY_SIZE,
    L_KIND,
    L_OLD_SIZE,
    L_OP,
    L_SIZE,
    L_SLOT,
    L_START,
    L_VALUE_SIZE,
    LOG_RECORD,
    OP,
    R_GENERATION,
    R_KEY_SIZE,
    R_LIVE,
    R_OLD_SIZE,
    R_SLOT,
    R_START,
    R_VALUE_SIZE,
    RECORD,
    RESOLVED,
    ROWS,
    S_LEAST,
    S_SPILLED,
    START,
    TICK,
    VALUE_SIZE,
    WAIT_RECORD,
    get_int,
    i64,
    put_event_word,
    put_int,
    put_row_word,
    put_slot_word,
    row_word,
    slot_word,
)


@inline
def _head(
    at: int, slot: Any, kind: Any, op: Any, start: Any, commit: Any, generation: Any, k: Any, v: Any, o: Any
) -> int:
    """Write a record's words; its size."""
    size: int = (LOG_RECORD + i64(k) + i64(v) + i64(o) + 7) & ~7
    store_u64(at + 8 * L_SIZE, np.uint64(size))
    store_u64(at + 8 * L_SLOT, np.uint64(slot))
    store_u64(at + 8 * L_KIND, np.uint64(kind))
    store_u64(at + 8 * L_OP, np.uint64(op))
    store_u64(at + 8 * L_START, np.uint64(start))
    store_u64(at + 8 * L_COMMIT, np.uint64(commit))
    store_u64(at + 8 * L_GENERATION, np.uint64(generation))
    store_u64(at + 8 * L_KEY_SIZE, np.uint64(k))
    store_u64(at + 8 * L_VALUE_SIZE, np.uint64(v))
    store_u64(at + 8 * L_OLD_SIZE, np.uint64(o))
    return size


@inline
def log_row(rows: int, row: int, slots: int, slot: int, log: int, log_size: int, counts: int) -> bool:
    """Append a row to the log; False: no room, nothing was done."""
    kind = row_word(rows, row, KIND)
    k = row_word(rows, row, KEY_SIZE)
    v, o = row_word(rows, row, VALUE_SIZE), row_word(rows, row, KEY_SIZE + 2)
    if kind == np.uint64(2) or kind == np.uint64(3):
        v, o = np.uint64(0), np.uint64(0)
    used = get_int(counts, C_LOG)
    if used + LOG_RECORD + i64(k) + i64(v) + i64(o) + 8 > log_size:
        return False
    commit = row_word(rows, row, COMMIT)
    size = _head(
        log + used,
        slot,
        kind,
        row_word(rows, row, OP),
        row_word(rows, row, START),
        commit,
        row_word(rows, row, GENERATION),
        k,
        v,
        o,
    )
    at = log + used + LOG_RECORD
    copy_exact(at, i64(row_word(rows, row, KEY)), i64(k))
    copy_exact(at + i64(k), i64(row_word(rows, row, KEY + 1)), i64(v))
    copy_exact(at + i64(k) + i64(v), i64(row_word(rows, row, KEY + 2)), i64(o))
    put_int(counts, C_LOG, used + size)
    least = slot_word(slots, slot, S_LEAST)
    if kind == np.uint64(3):
        commit = row_word(rows, row, START)
    if kind == np.uint64(2) or kind == np.uint64(3) or kind == np.uint64(4):
        if least == np.uint64(0) or commit < least:
            put_slot_word(slots, slot, S_LEAST, max(commit, np.uint64(1)))
    elif kind != np.uint64(1) and kind != np.uint64(5):
        put_slot_word(slots, slot, S_LEAST, np.uint64(1))
    return True


@inline
def log_tick(slot: int, ts: Any, log: int, log_size: int, counts: int) -> bool:
    """Append a resolved ts to the log; False: no room, nothing was done."""
    used = get_int(counts, C_LOG)
    if used + LOG_RECORD > log_size:
        return False
    zero = np.uint64(0)
    put_int(counts, C_LOG, used + _head(log + used, slot, TICK, zero, zero, ts, zero, zero, zero, zero))
    return True


@kernel
def log_open(arena: int, at: int, end: int, slots: int, log: int, log_size: int, counts: int) -> int:
    """Append the open prewrites of spilled slots in arena[at:end] to the log, as far as it has room.

    Returns where to go on; `end` when it is done.
    """
    while at < end:
        size = record_bytes(arena, np.uint64(at))
        slot = record_word(arena, np.uint64(at), R_SLOT)
        live = record_word(arena, np.uint64(at), R_LIVE) != np.uint64(0)
        if live and slot_word(slots, i64(slot), S_SPILLED) != np.uint64(0):
            k = record_word(arena, np.uint64(at), R_KEY_SIZE)
            v = record_word(arena, np.uint64(at), R_VALUE_SIZE)
            o = record_word(arena, np.uint64(at), R_OLD_SIZE)
            used = get_int(counts, C_LOG)
            data = i64(k) + i64(v) + i64(o)
            if used + LOG_RECORD + data + 8 > log_size:
                return at
            start = record_word(arena, np.uint64(at), R_START)
            generation = record_word(arena, np.uint64(at), R_GENERATION)
            done = _head(
                log + used, slot, np.uint64(1), np.uint64(PUT), start, np.uint64(0), generation, k, v, o
            )
            copy_exact(log + used + LOG_RECORD, arena + at + RECORD, data)
            put_int(counts, C_LOG, used + done)
        at += size
    return end


@kernel
def log_waiting(waiting: int, at: int, end: int, slots: int, log: int, log_size: int, counts: int) -> int:
    """The same for commits and rollbacks that wait for INITIALIZED."""
    while at < end:
        record = waiting + at
        k = load_u64(record + 32)
        slot = load_u64(record + 40)
        if slot_word(slots, i64(slot), S_SPILLED) != np.uint64(0):
            used = get_int(counts, C_LOG)
            if used + LOG_RECORD + i64(k) + 8 > log_size:
                return at
            kind = (load_u64(record + 24) >> np.uint64(8)) + np.uint64(FORCED)
            op = load_u64(record + 24) & np.uint64(0xFF)
            zero = np.uint64(0)
            done = _head(
                log + used, slot, kind, op, load_u64(record + 8), load_u64(record + 16), zero, k, zero, zero
            )
            copy_exact(log + used + LOG_RECORD, record + WAIT_RECORD, i64(k))
            put_int(counts, C_LOG, used + done)
            commit, least = load_u64(record + 16), slot_word(slots, i64(slot), S_LEAST)
            if kind == np.uint64(FORCED + 2) and (least == np.uint64(0) or commit < least):
                put_slot_word(slots, i64(slot), S_LEAST, max(commit, np.uint64(1)))
        at += (i64(k) + WAIT_RECORD + 7) & ~7
    return end


@kernel
def sizes_by_slot(log: int, size: int, sizes: int) -> None:
    """Add each record's size to the word of its slot."""
    at = 0
    while at < size:
        slot = i64(load_u64(log + at + 8 * L_SLOT))
        put_int(sizes, slot, get_int(sizes, slot) + i64(load_u64(log + at + 8 * L_SIZE)))
        at += i64(load_u64(log + at + 8 * L_SIZE))


@kernel
def group_by_slot(log: int, size: int, places: int, out: int) -> None:
    """Copy records to out, those of a slot together; `places`: where each slot's begin, moved on."""
    at = 0
    while at < size:
        slot, one = i64(load_u64(log + at + 8 * L_SLOT)), i64(load_u64(log + at + 8 * L_SIZE))
        copy_exact(out + get_int(places, slot), log + at, one)
        put_int(places, slot, get_int(places, slot) + one)
        at += one


@kernel
def cut(log: int, at: int, end: int, most: int) -> int:
    """The end of the whole records from `at` on that make up at least `most` bytes, or `end`."""
    first = at
    while at < end and at - first < most:
        at += i64(load_u64(log + at + 8 * L_SIZE))
    return at


@kernel
def load(
    log: int, at: int, end: int, region: int, request: int, events: int, rows: int, room: int, found: int
) -> int:
    """Make events and rows (at most `room` of each) of the records in log[at:end]; where to go on.

    `found` becomes the numbers of events and of rows.
    """
    e, r, open_event = 0, 0, False
    while at < end and e < room and r < room:
        kind = load_u64(log + at + 8 * L_KIND)
        if kind == np.uint64(TICK):
            put_event_word(events, e, E_KIND, np.uint64(RESOLVED))
            put_event_word(events, e, E_TS, load_u64(log + at + 8 * L_COMMIT))
            open_event = False
        else:
            if open_event:
                e -= 1
            else:
                put_event_word(events, e, E_KIND, np.uint64(ROWS))
                put_event_word(events, e, E_FIRST, np.uint64(r))
                open_event = True
            k, v = load_u64(log + at + 8 * L_KEY_SIZE), load_u64(log + at + 8 * L_VALUE_SIZE)
            key = log + at + LOG_RECORD
            put_row_word(rows, r, START, load_u64(log + at + 8 * L_START))
            put_row_word(rows, r, COMMIT, load_u64(log + at + 8 * L_COMMIT))
            put_row_word(rows, r, KIND, kind)
            put_row_word(rows, r, OP, load_u64(log + at + 8 * L_OP))
            put_row_word(rows, r, GENERATION, load_u64(log + at + 8 * L_GENERATION))
            put_row_word(rows, r, KEY, np.uint64(key))
            put_row_word(rows, r, KEY + 1, np.uint64(key + i64(k)))
            put_row_word(rows, r, KEY + 2, np.uint64(key + i64(k) + i64(v)))
            put_row_word(rows, r, KEY_SIZE, k)
            put_row_word(rows, r, HASH, row_hash(load_u64(log + at + 8 * L_START), key, i64(k)))
            put_row_word(rows, r, VALUE_SIZE, v)
            put_row_word(rows, r, KEY_SIZE + 2, load_u64(log + at + 8 * L_OLD_SIZE))
            r += 1
            put_event_word(events, e, E_END, np.uint64(r))
        put_event_word(events, e, E_REGION, np.uint64(region))
        put_event_word(events, e, E_REQUEST, np.uint64(request))
        e += 1
        at += i64(load_u64(log + at + 8 * L_SIZE))
    put_int(found, 0, e)
    put_int(found, 1, r)
    return at


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    spare = np.zeros(1024, np.uint64)
    at = address(spare)
    log_open(at, 0, 0, at, at, 0, at)
    log_waiting(at, 0, 0, at, at, 0, at)
    sizes_by_slot(at, 0, at)
    group_by_slot(at, 0, at, at)
    cut(at, 0, 0, 1)
    load(at, 0, 0, 0, 0, at, at, 0, at)
