"""The records of a log of spilled rows: written from the matcher's tables, and loaded into them again.

A record has LOG_WORDS words, then key, value and old value, padded to words. Its kind is one of cdcpb's, or
FORCED + kind for a commit or rollback that already waited for INITIALIZED, or TICK for a resolved ts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidegate.kernel import address, copy_exact, inline, kernel
from tidegate.model.block import OP_PUT
from tidegate.puller.match.open_kernels import record_bytes, record_word, row_hash
from tidegate.puller.match.table_kernels import (
    C_LOG,
    COMMIT,
    COMMIT_ROW,
    COMMITTED_ROW,
    E_END,
    E_FIRST,
    E_KIND,
    E_REGION,
    E_REQUEST,
    E_TS,
    FORCED,
    GENERATION,
    HASH,
    INITIALIZED_ROW,
    KEY,
    KEY_SIZE,
    KIND,
    KIND_SHIFT,
    L_COMMIT,
    L_GENERATION,
    L_KEY_SIZE,
    L_KIND,
    L_OLD_SIZE,
    L_OP,
    L_REGISTRATION,
    L_SIZE,
    L_START,
    L_VALUE_SIZE,
    LOG_RECORD,
    OLD,
    OLD_SIZE,
    OP,
    OPERATION_MASK,
    PREWRITE_ROW,
    R_GENERATION,
    R_KEY_SIZE,
    R_LIVE,
    R_OLD_SIZE,
    R_REGISTRATION,
    R_START,
    R_VALUE_SIZE,
    RECORD,
    REG_LEAST,
    REG_SPILLED,
    RESOLVED,
    ROLLBACK_ROW,
    ROWS,
    START,
    TICK,
    VALUE,
    VALUE_SIZE,
    W_COMMIT,
    W_KEY_SIZE,
    W_KIND,
    W_REGISTRATION,
    W_START,
    WAIT_RECORD,
    WORD,
    get_int,
    get_word,
    i64,
    put_event_word,
    put_int,
    put_registration_word,
    put_row_word,
    put_word,
    registration_word,
    row_word,
)

_FORCED_COMMIT = np.uint64(FORCED) + COMMIT_ROW


class Head(NamedTuple):
    """The header of a record, see LOGGED, except for the size, which follows from the others."""

    registration: Any
    kind: Any
    op: Any
    start: Any
    commit: Any
    generation: Any
    key_size: Any
    value_size: Any
    old_size: Any


@inline
def _put_head(at: int, head: Head) -> int:
    """Write a record's header; returns the record's size in bytes."""
    data = i64(head.key_size) + i64(head.value_size) + i64(head.old_size)
    size: int = (LOG_RECORD + data + WORD - 1) & -WORD
    put_word(at, L_SIZE, np.uint64(size))
    put_word(at, L_REGISTRATION, np.uint64(head.registration))
    put_word(at, L_KIND, np.uint64(head.kind))
    put_word(at, L_OP, np.uint64(head.op))
    put_word(at, L_START, np.uint64(head.start))
    put_word(at, L_COMMIT, np.uint64(head.commit))
    put_word(at, L_GENERATION, np.uint64(head.generation))
    put_word(at, L_KEY_SIZE, np.uint64(head.key_size))
    put_word(at, L_VALUE_SIZE, np.uint64(head.value_size))
    put_word(at, L_OLD_SIZE, np.uint64(head.old_size))
    return size


@inline
def log_row(
    rows: int, row: int, registrations: int, registration: int, log: int, log_size: int, counts: int
) -> bool:
    """Append a row to the log. Returns False if there is no room; then nothing was changed."""
    kind = row_word(rows, row, KIND)
    k = row_word(rows, row, KEY_SIZE)
    v, o = row_word(rows, row, VALUE_SIZE), row_word(rows, row, OLD_SIZE)
    if kind == COMMIT_ROW or kind == ROLLBACK_ROW:
        # A commit takes its values from its prewrite, so they need no space in the log.
        v, o = np.uint64(0), np.uint64(0)
    used = get_int(counts, C_LOG)
    # The padding is less than a word, so one more word is enough. The check comes first: a record that is
    # written in part would end the walk over the log.
    if used + LOG_RECORD + i64(k) + i64(v) + i64(o) + 8 > log_size:
        return False
    commit = row_word(rows, row, COMMIT)
    op, start, generation = (
        row_word(rows, row, OP),
        row_word(rows, row, START),
        row_word(rows, row, GENERATION),
    )
    size = _put_head(log + used, Head(registration, kind, op, start, commit, generation, k, v, o))
    at = log + used + LOG_RECORD
    copy_exact(at, i64(row_word(rows, row, KEY)), i64(k))
    copy_exact(at + i64(k), i64(row_word(rows, row, VALUE)), i64(v))
    copy_exact(at + i64(k) + i64(v), i64(row_word(rows, row, OLD)), i64(o))
    put_int(counts, C_LOG, used + size)
    least = registration_word(registrations, registration, REG_LEAST)
    # A rolled back transaction has no commit_ts. Once a resolved ts passes its start_ts, the playback
    # removes its prewrites from the log.
    if kind == ROLLBACK_ROW:
        commit = row_word(rows, row, START)
    if kind == COMMIT_ROW or kind == ROLLBACK_ROW or kind == COMMITTED_ROW:
        # 0 means that there is none, so a ts of 0 counts as 1.
        if least == np.uint64(0) or commit < least:
            put_registration_word(registrations, registration, REG_LEAST, max(commit, np.uint64(1)))
    # An unknown kind is a violation, which the playback finds. With the least ts the next resolved ts makes
    # it due.
    elif kind != PREWRITE_ROW and kind != INITIALIZED_ROW:
        put_registration_word(registrations, registration, REG_LEAST, np.uint64(1))
    return True


@inline
def log_tick(registration: int, ts: Any, log: int, log_size: int, counts: int) -> bool:
    """Append a resolved ts to the log. Returns False if there is no room; then nothing was changed."""
    used = get_int(counts, C_LOG)
    # A tick has no key, so the header is all of it and needs no padding.
    if used + LOG_RECORD > log_size:
        return False
    zero = np.uint64(0)
    size = _put_head(log + used, Head(registration, TICK, zero, zero, ts, zero, zero, zero, zero))
    put_int(counts, C_LOG, used + size)
    return True


@kernel
def log_open(arena: int, at: int, end: int, registrations: int, log: int, log_size: int, counts: int) -> int:
    """Append the open prewrites of spilled registrations in arena[at:end] to the log, until it is full.

    Returns the offset to continue at; `end` if all are appended.

    Reads the arena's records. Writes the log and C_LOG. Bound: `log_size`; the caller empties the log to disk
    and calls again. Twin: none, the plain matcher never spills; what comes out is compared
    (tests/puller/match/test_spill.py).
    """
    while at < end:
        size = record_bytes(arena, np.uint64(at))
        registration = record_word(arena, np.uint64(at), R_REGISTRATION)
        # Dead records stay between the live ones until `compact`. They keep their sizes, so the walk steps
        # over them.
        live = record_word(arena, np.uint64(at), R_LIVE) != np.uint64(0)
        if live and registration_word(registrations, i64(registration), REG_SPILLED) != np.uint64(0):
            k = record_word(arena, np.uint64(at), R_KEY_SIZE)
            v = record_word(arena, np.uint64(at), R_VALUE_SIZE)
            o = record_word(arena, np.uint64(at), R_OLD_SIZE)
            used = get_int(counts, C_LOG)
            data = i64(k) + i64(v) + i64(o)
            if used + LOG_RECORD + data + 8 > log_size:
                return at
            start = record_word(arena, np.uint64(at), R_START)
            generation = record_word(arena, np.uint64(at), R_GENERATION)
            # A record does not hold its operation. Any known one will do, because the operation of the
            # commit decides.
            head = Head(
                registration, PREWRITE_ROW, np.uint64(OP_PUT), start, np.uint64(0), generation, k, v, o
            )
            done = _put_head(log + used, head)
            # Key, value and old value follow each other in both layouts, so they are one copy.
            copy_exact(log + used + LOG_RECORD, arena + at + RECORD, data)
            put_int(counts, C_LOG, used + done)
        at += size
    return end


@kernel
def log_waiting(
    waiting: int, at: int, end: int, registrations: int, log: int, log_size: int, counts: int
) -> int:
    """Append the commits and rollbacks of spilled registrations that wait for INITIALIZED to the log.

    Reads the waiting arena's records. Writes the log, C_LOG and REG_LEAST, the smallest waiting commit of a
    registration. Bound: `log_size`, as `log_open`. Twin: none, as for `log_open`.
    """
    while at < end:
        record = waiting + at
        k = get_word(record, W_KEY_SIZE)
        registration = get_word(record, W_REGISTRATION)
        if registration_word(registrations, i64(registration), REG_SPILLED) != np.uint64(0):
            used = get_int(counts, C_LOG)
            if used + LOG_RECORD + i64(k) + 8 > log_size:
                return at
            # FORCED keeps its place in the order: at playback it waits for INITIALIZED, as it does now,
            # even if its prewrite is before it in the log.
            kind = (get_word(record, W_KIND) >> KIND_SHIFT) + np.uint64(FORCED)
            op = get_word(record, W_KIND) & OPERATION_MASK
            zero = np.uint64(0)
            start, commit = get_word(record, W_START), get_word(record, W_COMMIT)
            done = _put_head(log + used, Head(registration, kind, op, start, commit, zero, k, zero, zero))
            copy_exact(log + used + LOG_RECORD, record + WAIT_RECORD, i64(k))
            put_int(counts, C_LOG, used + done)
            least = registration_word(registrations, i64(registration), REG_LEAST)
            # A rollback that waits completes no change, so no resolved ts has to wait for it.
            if kind == _FORCED_COMMIT and (least == np.uint64(0) or commit < least):
                put_registration_word(registrations, i64(registration), REG_LEAST, max(commit, np.uint64(1)))
        at += (i64(k) + WAIT_RECORD + WORD - 1) & -WORD
    return end


@kernel
def sizes_by_registration(log: int, size: int, sizes: int) -> None:
    """Add each record's size to the word of its registration.

    Reads the headers of the log's records. Writes `sizes`, a word for each registration. Bound: `size` bytes
    of log. Twin: none, a sum over records.
    """
    at = 0
    while at < size:
        registration = i64(get_word(log + at, L_REGISTRATION))
        # Sizes and numbers are trusted: `_put_head` wrote them, and this part of the log has not left
        # memory.
        put_int(sizes, registration, get_int(sizes, registration) + i64(get_word(log + at, L_SIZE)))
        at += i64(get_word(log + at, L_SIZE))


@kernel
def group_by_registration(log: int, size: int, places: int, out: int) -> None:
    """Copy records to `out`, grouped by registration; `places`: the offset of each group, which is advanced.

    Reads the log's records. Writes `out` and `places`. Bound: `out` is as large as the log, `places` come
    from `sizes_by_registration`. Twin: none, a stable sort of records by registration.
    """
    at = 0
    while at < size:
        registration, one = i64(get_word(log + at, L_REGISTRATION)), i64(get_word(log + at, L_SIZE))
        # Records of one registration keep their order. Playback depends on it: a tick must stay behind the
        # commits that came before it.
        copy_exact(out + get_int(places, registration), log + at, one)
        put_int(places, registration, get_int(places, registration) + one)
        at += one


@kernel
def cut(log: int, at: int, end: int, most: int) -> int:
    """The end of the shortest run of whole records from `at` on that has at least `most` bytes, or `end`.

    Reads the sizes of records. Writes nothing. Bound: `end`. Twin: none, a walk over sizes.
    """
    first = at
    # Each size is at least a header's, so the walk ends.
    while at < end and at - first < most:
        at += i64(get_word(log + at, L_SIZE))
    return at


class Played(NamedTuple):
    """The output tables of `load`."""

    region: int
    request: int
    """The region id and request id of the events."""
    events: int
    rows: int
    room: int
    """The room in each of these two tables, in records."""
    found: int
    """The address of int64[2], which becomes the numbers of events and of rows."""


@kernel
def load(log: int, at: int, end: int, to: Played) -> int:
    """Turn records of log[at:end] into events and rows, as many as fit; returns where to continue.

    Reads the log's records. Writes the events and rows of `to`, and their numbers. Bound: `to.room` of each.
    Twin: none, it undoes `log_open` and `log_waiting`; what `match` then emits is compared
    (tests/puller/match/test_spill.py). Trick: rows point into the log, so no key or value is copied.
    """
    events, rows, room = to.events, to.rows, to.room
    e, r, open_event = 0, 0, False
    while at < end and e < room and r < room:
        kind = get_word(log + at, L_KIND)
        # A tick ends the event of rows before it: `match` must apply it between the rows where it arrived.
        if kind == np.uint64(TICK):
            put_event_word(events, e, E_KIND, np.uint64(RESOLVED))
            put_event_word(events, e, E_TS, get_word(log + at, L_COMMIT))
            open_event = False
        else:
            # Consecutive rows share one event. `e` already counts that event, so it goes back to it.
            if open_event:
                e -= 1
            else:
                put_event_word(events, e, E_KIND, np.uint64(ROWS))
                put_event_word(events, e, E_FIRST, np.uint64(r))
                open_event = True
            k, v = get_word(log + at, L_KEY_SIZE), get_word(log + at, L_VALUE_SIZE)
            key = log + at + LOG_RECORD
            put_row_word(rows, r, START, get_word(log + at, L_START))
            put_row_word(rows, r, COMMIT, get_word(log + at, L_COMMIT))
            put_row_word(rows, r, KIND, kind)
            put_row_word(rows, r, OP, get_word(log + at, L_OP))
            put_row_word(rows, r, GENERATION, get_word(log + at, L_GENERATION))
            put_row_word(rows, r, KEY, np.uint64(key))
            put_row_word(rows, r, VALUE, np.uint64(key + i64(k)))
            put_row_word(rows, r, OLD, np.uint64(key + i64(k) + i64(v)))
            put_row_word(rows, r, KEY_SIZE, k)
            # The log does not hold the hash: `locate` adds the registration's number, which is another one
            # at playback.
            put_row_word(rows, r, HASH, row_hash(get_word(log + at, L_START), key, i64(k)))
            put_row_word(rows, r, VALUE_SIZE, v)
            put_row_word(rows, r, OLD_SIZE, get_word(log + at, L_OLD_SIZE))
            r += 1
            put_event_word(events, e, E_END, np.uint64(r))
        put_event_word(events, e, E_REGION, np.uint64(to.region))
        put_event_word(events, e, E_REQUEST, np.uint64(to.request))
        e += 1
        at += i64(get_word(log + at, L_SIZE))
    put_int(to.found, 0, e)
    put_int(to.found, 1, r)
    return at


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    spare = np.zeros(1024, np.uint64)
    at = address(spare)
    log_open(at, 0, 0, at, at, 0, at)
    log_waiting(at, 0, 0, at, at, 0, at)
    sizes_by_registration(at, 0, at)
    group_by_registration(at, 0, at, at)
    cut(at, 0, 0, 1)
    load(at, 0, 0, Played(0, 0, at, at, 0, at))
