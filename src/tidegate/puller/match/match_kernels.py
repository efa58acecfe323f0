"""The compiled matcher of a whole stream: prewrites and commits in, committed changes out.

`match` applies the rules of `matcher.Matcher` to the events of a batch, for every registration of the stream;
completed changes are written as references to `out`. One function for each rule, in one file, so that they
can be compared with `matcher.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel import address, copy_exact, inline, kernel, prefetch
from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.puller.match.bucket_kernels import (
    add_entry,
    bucket_of,
    first_match,
    hash_table,
    remove_entry,
    table_address,
)
from tidegate.puller.match.matcher import Violation
from tidegate.puller.match.open_kernels import end_record, find_open, record_word, row_hash, with_registration
from tidegate.puller.match.registration_kernels import (
    find_registration,
    inside,
    note,
    resolve,
    resolve_many,
    violate,
)
from tidegate.puller.match.spill_kernels import log_row
from tidegate.puller.match.table_kernels import (
    C_EVENT,
    C_KEPT,
    C_OPEN_ROWS,
    C_OUT,
    C_PASS,
    C_PASSES,
    C_ROW,
    C_TRUST_EMPTY,
    C_WAITING,
    COMMIT,
    COMMIT_ROW,
    COMMITTED_ROW,
    DONE,
    E_END,
    E_FIRST,
    E_KIND,
    E_REGION,
    E_REGISTRATION,
    E_REQUEST,
    E_SIZE,
    E_TS,
    ERROR,
    FORCED,
    GENERATION,
    HASH,
    IN_MESSAGE,
    INITIALIZED_ROW,
    KEY,
    KEY_SIZE,
    KIND,
    LIVE,
    LOG_FULL,
    NOTE_ERROR,
    NOTE_INITIALIZED,
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
    OP,
    PLACE,
    PREWRITE_ROW,
    R_GENERATION,
    R_KEY_SIZE,
    R_OLD_SIZE,
    R_VALUE_SIZE,
    RECORD,
    REG_CHECKPOINT,
    REG_HEAD,
    REG_RESOLVED,
    REG_SPAN,
    REG_SPILLED,
    REG_STATE,
    REG_TAIL,
    REG_WAITING,
    RESOLVED,
    RESOLVED_MANY,
    ROLLBACK_ROW,
    ROW_REGISTRATION,
    ROWS,
    SCANNING,
    START,
    STOPPED,
    TABLE_FULL,
    VALUE,
    VALUE_SIZE,
    W_COMMIT,
    W_KEY_SIZE,
    W_KIND,
    W_NEXT,
    W_REGISTRATION,
    W_START,
    WAIT_RECORD,
    Tables,
    event_word,
    get_int,
    get_word,
    i64,
    index_address,
    put_event_word,
    put_int,
    put_out_word,
    put_registration_word,
    put_row_word,
    put_word,
    registration_index,
    registration_word,
    row_word,
)

COMMIT_BELOW_RESOLVED = int(Violation.COMMIT_BELOW_RESOLVED)
PREWRITE_MISSING = int(Violation.PREWRITE_MISSING)
UNKNOWN_KIND = int(Violation.UNKNOWN_KIND)
UNKNOWN_OPERATION = int(Violation.UNKNOWN_OPERATION)

CACHE_LINE = 64
"""Bytes."""

CACHED_ROWS = 1024
"""If more rows than this are open, their records are prefetched."""

AHEAD = 8
"""How many rows in advance."""


@inline
def _forget(tables: Tables, place: int, hashed: Any) -> None:
    """Remove an entry."""
    entry = get_word(tables.table, place)
    if entry & IN_MESSAGE:
        put_row_word(tables.rows, i64(entry & ~IN_MESSAGE), PLACE, np.uint64(0))
    else:
        end_record(tables.arena, entry, tables.registrations, tables.counts)
    put_int(tables.counts, C_OPEN_ROWS, get_int(tables.counts, C_OPEN_ROWS) - 1)
    remove_entry(tables.table, place, hashed)


@inline
def _find(tables: Tables, hashed: Any, registration: int, row: int) -> int:
    """The place of the open prewrite that a row belongs to, or 0."""
    rows = tables.rows
    start, key, size = row_word(rows, row, START), row_word(rows, row, KEY), row_word(rows, row, KEY_SIZE)
    return find_open(tables.table, hashed, registration, start, i64(key), i64(size), rows, tables.arena)


@inline
def _passes(tables: Tables, registration: int, commit: Any) -> bool:
    """Whether a completed change must be emitted: it is above the checkpoint, and above the resolved ts."""
    if commit <= registration_word(tables.registrations, registration, REG_CHECKPOINT):
        return False
    if commit <= registration_word(tables.registrations, registration, REG_RESOLVED):
        violate(
            tables.registrations, registration, COMMIT_BELOW_RESOLVED, commit, tables.notes, tables.counts
        )
        return False
    return True


@inline
def _emit(tables: Tables, registration: int, commit: Any, start: Any, op: Any, ref: Any) -> None:
    """Emit a commit with the values of its prewrite: of a row in a message, or of a record in the arena."""
    out, rows, arena = tables.out, tables.rows, tables.arena
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
        key = arena + i64(ref) + RECORD
        key_size, value_size = record_word(arena, ref, R_KEY_SIZE), record_word(arena, ref, R_VALUE_SIZE)
        prefetch(key + CACHE_LINE)
        prefetch(key + 2 * CACHE_LINE)
        put_out_word(out, i, O_KEY, np.uint64(key))
        put_out_word(out, i, O_KEY_SIZE, key_size)
        put_out_word(out, i, O_VALUE, np.uint64(key + i64(key_size)))
        put_out_word(out, i, O_OLD, np.uint64(key + i64(key_size) + i64(value_size)))
        put_out_word(out, i, O_OLD_SIZE, record_word(arena, ref, R_OLD_SIZE))
    put_out_word(out, i, O_VALUE_SIZE, value_size if op == np.uint64(OP_PUT) else np.uint64(0))
    put_int(tables.counts, C_OUT, i + 1)


@inline
def _wait(tables: Tables, registration: int, row: int) -> None:
    """Add a commit or rollback that came before INITIALIZED to the waiting ones."""
    registrations, rows, counts = tables.registrations, tables.rows, tables.counts
    offset = get_int(counts, C_WAITING)
    at = tables.waiting + offset
    size = i64(row_word(rows, row, KEY_SIZE))
    kind, op = row_word(rows, row, KIND), row_word(rows, row, OP)
    put_word(at, W_NEXT, np.uint64(0))
    put_word(at, W_START, row_word(rows, row, START))
    put_word(at, W_COMMIT, row_word(rows, row, COMMIT))
    put_word(at, W_KIND, (kind << np.uint64(8)) | (op & np.uint64(0xFF)))
    put_word(at, W_KEY_SIZE, np.uint64(size))
    put_word(at, W_REGISTRATION, np.uint64(registration))
    copy_exact(at + WAIT_RECORD, i64(row_word(rows, row, KEY)), size)
    if registration_word(registrations, registration, REG_HEAD) == np.uint64(0):
        put_registration_word(registrations, registration, REG_HEAD, np.uint64(offset + 1))
    else:
        last = tables.waiting + i64(registration_word(registrations, registration, REG_TAIL)) - 1
        put_word(last, W_NEXT, np.uint64(offset + 1))
    put_registration_word(registrations, registration, REG_TAIL, np.uint64(offset + 1))
    put_registration_word(
        registrations,
        registration,
        REG_WAITING,
        registration_word(registrations, registration, REG_WAITING) + np.uint64(1),
    )
    put_int(counts, C_WAITING, offset + ((size + WAIT_RECORD + 7) & ~7))


@inline
def _replay(tables: Tables, registration: int, wanted: Any) -> None:
    """Apply the registration's waiting rows of one kind, in the order in which they came."""
    link = registration_word(tables.registrations, registration, REG_HEAD)
    while link != np.uint64(0) and registration_word(
        tables.registrations, registration, REG_STATE
    ) != np.uint64(STOPPED):
        at = tables.waiting + i64(link) - 1
        link = get_word(at, W_NEXT)
        kind, op = get_word(at, W_KIND) >> np.uint64(8), get_word(at, W_KIND) & np.uint64(0xFF)
        if kind != wanted:
            continue
        start, commit, size = get_word(at, W_START), get_word(at, W_COMMIT), i64(get_word(at, W_KEY_SIZE))
        key = at + WAIT_RECORD
        h = with_registration(row_hash(start, key, size), registration)
        found = find_open(tables.table, h, registration, start, key, size, tables.rows, tables.arena)
        if found == 0:
            continue
        if wanted == COMMIT_ROW and _passes(tables, registration, commit):
            _emit(tables, registration, commit, start, op, get_word(tables.table, found))
        _forget(tables, found, h)


@inline
def _prewrite(tables: Tables, registration: int, row: int) -> None:
    """Open a prewrite, or replace the one of the same transaction and key.

    A prewrite without a value, or of an earlier generation, replaces nothing: a scan repeats prewrites
    without their values, and the flushes of a pipelined transaction may arrive out of order.
    """
    rows, counts, h = tables.rows, tables.counts, row_word(tables.rows, row, HASH)
    found = _find(tables, h, registration, row)
    if found != 0:
        entry = get_word(tables.table, found)
        if entry & IN_MESSAGE:
            generation = row_word(rows, i64(entry & ~IN_MESSAGE), GENERATION)
        else:
            generation = record_word(tables.arena, entry, R_GENERATION)
        empty = row_word(rows, row, VALUE_SIZE) == np.uint64(0) and get_int(counts, C_TRUST_EMPTY) == 0
        if empty or row_word(rows, row, GENERATION) < generation:
            return
        _forget(tables, found, h)
    place = add_entry(tables.table, h, IN_MESSAGE | np.uint64(row))
    put_row_word(rows, row, PLACE, np.uint64(place))
    put_int(counts, C_OPEN_ROWS, get_int(counts, C_OPEN_ROWS) + 1)
    put_int(tables.kept, get_int(counts, C_KEPT), row)
    put_int(counts, C_KEPT, get_int(counts, C_KEPT) + 1)


@inline
def _is_poor(tables: Tables, ref: Any) -> bool:
    """Whether a prewrite may not be the last of its transaction: it has no value, or a generation."""
    if ref & IN_MESSAGE:
        row = i64(ref & ~IN_MESSAGE)
        size, generation = row_word(tables.rows, row, VALUE_SIZE), row_word(tables.rows, row, GENERATION)
    else:
        size = record_word(tables.arena, ref, R_VALUE_SIZE)
        generation = record_word(tables.arena, ref, R_GENERATION)
    return bool(size == np.uint64(0) or generation > np.uint64(0))


@inline
def _commit(tables: Tables, registration: int, row: int) -> None:
    """Emit the change of a commit with its open prewrite; without one it waits, or is a violation.

    During a scan the prewrite may follow the commit, so the commit waits for INITIALIZED. After that a commit
    without a prewrite means that the store left something out; if we continued, the change would be lost.
    """
    h, commit = row_word(tables.rows, row, HASH), row_word(tables.rows, row, COMMIT)
    found = _find(tables, h, registration, row)
    scanning = registration_word(tables.registrations, registration, REG_STATE) == np.uint64(SCANNING)
    if found != 0 and scanning and _is_poor(tables, get_word(tables.table, found)):
        found = 0
    if found == 0:
        if scanning:
            _wait(tables, registration, row)
        else:
            violate(tables.registrations, registration, PREWRITE_MISSING, commit, tables.notes, tables.counts)
        return
    if _passes(tables, registration, commit):
        start, op = row_word(tables.rows, row, START), row_word(tables.rows, row, OP)
        _emit(tables, registration, commit, start, op, get_word(tables.table, found))
    _forget(tables, found, h)


@inline
def _rollback(tables: Tables, registration: int, row: int) -> None:
    """Discard the open prewrite of a rollback; during a scan the rollback waits, as commits do."""
    if registration_word(tables.registrations, registration, REG_STATE) == np.uint64(SCANNING):
        _wait(tables, registration, row)
        return
    h = row_word(tables.rows, row, HASH)
    found = _find(tables, h, registration, row)
    if found != 0:
        _forget(tables, found, h)


@inline
def _initialize(tables: Tables, registration: int) -> None:
    """The scan of the registration's range is done: apply the rows that waited for it."""
    registrations = tables.registrations
    if registration_word(registrations, registration, REG_STATE) != np.uint64(SCANNING):
        return
    put_registration_word(registrations, registration, REG_STATE, np.uint64(LIVE))
    note(tables.notes, tables.counts, NOTE_INITIALIZED, registration, np.uint64(0), np.uint64(0))
    _replay(tables, registration, COMMIT_ROW)
    _replay(tables, registration, ROLLBACK_ROW)
    put_registration_word(registrations, registration, REG_HEAD, np.uint64(0))
    put_registration_word(registrations, registration, REG_TAIL, np.uint64(0))
    put_registration_word(registrations, registration, REG_WAITING, np.uint64(0))


@inline
def _match_row(tables: Tables, registration: int, row: int) -> None:
    """Apply one row by its kind. With C_PASSES only rows whose hash falls to C_PASS are applied."""
    registrations, rows, notes, counts = tables.registrations, tables.rows, tables.notes, tables.counts
    kind = row_word(rows, row, KIND)
    passes = get_int(counts, C_PASSES)
    if passes > 0 and kind != INITIALIZED_ROW:
        if i64(row_word(rows, row, HASH) >> np.uint64(33)) % passes != get_int(counts, C_PASS):
            return
        if kind >= np.uint64(FORCED):
            put_row_word(rows, row, KIND, kind - np.uint64(FORCED))
            _wait(tables, registration, row)
            return
    if kind == INITIALIZED_ROW:
        _initialize(tables, registration)
        return
    if not inside(
        registrations, registration, i64(row_word(rows, row, KEY)), i64(row_word(rows, row, KEY_SIZE))
    ):
        return
    commit, op = row_word(rows, row, COMMIT), row_word(rows, row, OP)
    has_op = kind == PREWRITE_ROW or kind == COMMIT_ROW or kind == COMMITTED_ROW
    if has_op and op != np.uint64(OP_PUT) and op != np.uint64(OP_DELETE):
        violate(registrations, registration, UNKNOWN_OPERATION, commit, notes, counts)
    elif kind == PREWRITE_ROW:
        _prewrite(tables, registration, row)
    elif kind == COMMIT_ROW:
        _commit(tables, registration, row)
    elif kind == COMMITTED_ROW:
        if _passes(tables, registration, commit):
            _emit(tables, registration, commit, row_word(rows, row, START), op, IN_MESSAGE | np.uint64(row))
    elif kind == ROLLBACK_ROW:
        _rollback(tables, registration, row)
    else:
        violate(registrations, registration, UNKNOWN_KIND, commit, notes, counts)


@inline
def _record_row(tables: Tables, registration: int, row: int) -> bool:
    """Log a row of a spilled registration; False: the log is full, nothing was done."""
    registrations, rows = tables.registrations, tables.rows
    initialized = row_word(rows, row, KIND) == INITIALIZED_ROW
    key, size = i64(row_word(rows, row, KEY)), i64(row_word(rows, row, KEY_SIZE))
    if not initialized and not inside(registrations, registration, key, size):
        return True
    if not log_row(rows, row, registrations, registration, tables.log, tables.log_size, tables.counts):
        return False
    if initialized and registration_word(registrations, registration, REG_STATE) == np.uint64(SCANNING):
        put_registration_word(registrations, registration, REG_STATE, np.uint64(LIVE))
        note(tables.notes, tables.counts, NOTE_INITIALIZED, registration, np.uint64(0), np.uint64(0))
    return True


@kernel
def locate(events: int, event_count: int, rows: int, registrations: int, index: int, table: int) -> None:
    """Fill in the registrations of scanned events and rows, complete the rows' hashes, prefetch their
    buckets.

    Reads events and rows. Writes E_REGISTRATION, HASH, ROW_REGISTRATION and PLACE. Bound: one lookup an
    event. Twin: `tidegate.puller.match.matcher.Matcher`, which has one registration and needs no lookup.
    Trick: the buckets are fetched into the cache for all rows, before the first is needed.
    """
    for e in range(event_count):
        kind = i64(event_word(events, e, E_KIND))
        if kind == RESOLVED_MANY:
            continue
        registration = find_registration(
            index, registrations, event_word(events, e, E_REGION), event_word(events, e, E_REQUEST)
        )
        put_event_word(events, e, E_REGISTRATION, np.uint64(registration))
        if kind == ROWS:
            for row in range(i64(event_word(events, e, E_FIRST)), i64(event_word(events, e, E_END))):
                h = with_registration(row_word(rows, row, HASH), registration)
                put_row_word(rows, row, HASH, h)
                put_row_word(rows, row, ROW_REGISTRATION, np.uint64(registration))
                put_row_word(rows, row, PLACE, np.uint64(0))
                prefetch(bucket_of(table, h))


@kernel
def match(tables: Tables, event_count: int, row_count: int, room: int) -> int:
    """Apply scanned and located events in order. See COUNT_WORDS for `counts`.

    TABLE_FULL: the table holds `room` entries. It stays small as long as few prewrites are open, which keeps
    it in the cache; the caller doubles it with `rehash` and calls again, and the work continues where it
    stopped. LOG_FULL: the same when the log (for rows of spilled registrations) is full and the caller has
    made room.

    Room that the caller provides: `out` rows + waiting rows, `notes` events + registrations, `kept` rows; the
    waiting arena for all rows' keys and headers. When `moved` overflows (counts[C_MOVED] > its length) every
    registration may have moved.

    Reads events, rows and arenas. Writes `out`, `notes`, `moved`, `kept`, the log and the states of
    registrations. Bound: the room that the caller provides, above. Twin:
    `tidegate.puller.match.matcher.Matcher.push`. Trick: a prewrite that meets its commit in the same batch
    is never copied, and the records of rows to come are fetched into the cache in advance.
    """
    events, rows, registrations, table, arena = (
        tables.events,
        tables.rows,
        tables.registrations,
        tables.table,
        tables.arena,
    )
    notes, counts = tables.notes, tables.counts
    moved, log, log_size = tables.moved, tables.log, tables.log_size
    large = get_int(counts, C_OPEN_ROWS) > CACHED_ROWS
    for e in range(get_int(counts, C_EVENT), event_count):
        kind = i64(event_word(events, e, E_KIND))
        if kind == RESOLVED_MANY:
            if not resolve_many(
                events, e, tables.registration_index, registrations, moved, log, log_size, counts
            ):
                put_int(counts, C_EVENT, e)
                return LOG_FULL
            continue
        registration = i64(event_word(events, e, E_REGISTRATION))
        if registration < 0:
            continue
        if kind == RESOLVED:
            if not resolve(
                registrations, registration, event_word(events, e, E_TS), moved, log, log_size, counts
            ):
                put_int(counts, C_EVENT, e)
                return LOG_FULL
        elif kind == ERROR:
            if registration_word(registrations, registration, REG_STATE) != np.uint64(STOPPED):
                put_registration_word(registrations, registration, REG_STATE, np.uint64(STOPPED))
                at, size = event_word(events, e, E_FIRST), event_word(events, e, E_SIZE)
                note(notes, counts, NOTE_ERROR, registration, at, size)
        elif kind == ROWS:
            for row in range(
                max(i64(event_word(events, e, E_FIRST)), get_int(counts, C_ROW)),
                i64(event_word(events, e, E_END)),
            ):
                if registration_word(registrations, registration, REG_STATE) == np.uint64(STOPPED):
                    break
                if registration_word(registrations, registration, REG_SPILLED) != np.uint64(0):
                    if not _record_row(tables, registration, row):
                        put_int(counts, C_EVENT, e)
                        put_int(counts, C_ROW, row)
                        return LOG_FULL
                    continue
                if get_int(counts, C_OPEN_ROWS) >= room:
                    put_int(counts, C_EVENT, e)
                    put_int(counts, C_ROW, row)
                    return TABLE_FULL
                if large and row + AHEAD < row_count:
                    entry = first_match(table, row_word(rows, row + AHEAD, HASH))
                    if entry != np.uint64(0) and entry & IN_MESSAGE == np.uint64(0):
                        prefetch(arena + i64(entry))
                        prefetch(arena + i64(entry) + CACHE_LINE)
                _match_row(tables, registration, row)
    return DONE


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    spare, index, table = np.zeros(1024, np.uint64), registration_index(4), hash_table(4)
    at = address(spare)
    found = index_address(index), table_address(table)
    locate(at, 0, at, at, *found)
    match(Tables(at, at, at, *found, at, at, at, at, at, at, at, 0, at), 0, 0, 0)
