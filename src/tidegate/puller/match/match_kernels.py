"""The compiled matcher of a whole stream: prewrites and commits in, committed changes out.

`match` runs the rules of `matcher.Matcher` over the events of a batch, for every registration ("slot") of the
stream; completed changes come out as references in `out`.
"""

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
    store_u64,
)
from tidegate.model.block import DELETE, PUT
from tidegate.puller.match.bucket_kernels import (
    add_entry,
    bucket_of,
    first_match,
    hash_table,
    remove_entry,
    table_address,
)
from tidegate.puller.match.open_kernels import end_record, find_open, record_word, row_hash, with_slot
from tidegate.puller.match.slot_kernels import find_slot, inside, note, resolve, resolve_many, violate
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
    DONE,
    E_END,
    E_FIRST,
    E_KIND,
    E_REGION,
    E_REQUEST,
    E_SIZE,
    E_SLOT,
    E_TS,
    ERROR,
    FORCED,
    GENERATION,
    HASH,
    IN_MESSAGE,
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
    R_GENERATION,
    R_KEY_SIZE,
    R_OLD_SIZE,
    R_VALUE_SIZE,
    RECORD,
    RESOLVED,
    RESOLVED_MANY,
    ROWS,
    S_CHECKPOINT,
    S_HEAD,
    S_RESOLVED,
    S_SPAN,
    S_SPILLED,
    S_STATE,
    S_TAIL,
    S_WAITING,
    SCANNING,
    SLOT,
    START,
    STOPPED,
    TABLE_FULL,
    VALUE,
    VALUE_SIZE,
    WAIT_RECORD,
    event_word,
    get_int,
    get_word,
    i64,
    index_address,
    put_event_word,
    put_int,
    put_out_word,
    put_row_word,
    put_slot_word,
    row_word,
    slot_index,
    slot_word,
)

CACHED_ROWS = 1024
"""With more open rows than this their records are called for in advance."""

AHEAD = 8
"""So many rows in advance."""


@inline
def _forget(table: int, place: int, h: Any, rows: int, slots: int, arena: int, counts: int) -> None:
    """Remove an entry."""
    entry = get_word(table, place)
    if entry & IN_MESSAGE:
        put_row_word(rows, i64(entry & ~IN_MESSAGE), PLACE, np.uint64(0))
    else:
        end_record(arena, entry, slots, counts)
    put_int(counts, C_OPEN_ROWS, get_int(counts, C_OPEN_ROWS) - 1)
    remove_entry(table, place, h)


@inline
def _passes(slots: int, slot: int, commit: Any, notes: int, counts: int) -> bool:
    """Whether a completed change is to come out: above the checkpoint, and above the resolved ts."""
    if commit <= slot_word(slots, slot, S_CHECKPOINT):
        return False
    if commit <= slot_word(slots, slot, S_RESOLVED):
        violate(slots, slot, 1, commit, notes, counts)
        return False
    return True


@inline
def _emit(
    out: int,
    counts: int,
    span: Any,
    commit: Any,
    start: Any,
    op: Any,
    key: int,
    key_size: Any,
    value: int,
    value_size: Any,
    old: int,
    old_size: Any,
) -> None:
    i = get_int(counts, C_OUT)
    put_out_word(out, i, O_COMMIT, commit)
    put_out_word(out, i, O_START, start)
    put_out_word(out, i, O_OP, op)
    put_out_word(out, i, O_SPAN, span)
    put_out_word(out, i, O_KEY, np.uint64(key))
    put_out_word(out, i, O_KEY_SIZE, key_size)
    put_out_word(out, i, O_VALUE, np.uint64(value))
    put_out_word(out, i, O_VALUE_SIZE, value_size if op == np.uint64(PUT) else np.uint64(0))
    put_out_word(out, i, O_OLD, np.uint64(old))
    put_out_word(out, i, O_OLD_SIZE, old_size)
    put_int(counts, C_OUT, i + 1)


@inline
def _emit_open(
    out: int, counts: int, span: Any, commit: Any, start: Any, op: Any, ref: Any, rows: int, arena: int
) -> None:
    """Emit a commit with the values of its prewrite."""
    if ref & IN_MESSAGE:
        r = i64(ref & ~IN_MESSAGE)
        _emit(
            out,
            counts,
            span,
            commit,
            start,
            op,
            i64(row_word(rows, r, KEY)),
            row_word(rows, r, KEY_SIZE),
            i64(row_word(rows, r, VALUE)),
            row_word(rows, r, VALUE_SIZE),
            i64(row_word(rows, r, OLD)),
            row_word(rows, r, OLD_SIZE),
        )
        return
    key = arena + i64(ref) + RECORD
    key_size, value_size = record_word(arena, ref, R_KEY_SIZE), record_word(arena, ref, R_VALUE_SIZE)
    prefetch(key + 64)
    prefetch(key + 128)
    value = key + i64(key_size)
    old, old_size = value + i64(value_size), record_word(arena, ref, R_OLD_SIZE)
    _emit(out, counts, span, commit, start, op, key, key_size, value, value_size, old, old_size)


@inline
def _wait(slots: int, slot: int, row: int, rows: int, waiting: int, counts: int) -> None:
    """Chain a commit or rollback that came before INITIALIZED."""
    offset = get_int(counts, C_WAITING)
    at = waiting + offset
    size = i64(row_word(rows, row, KEY_SIZE))
    store_u64(at, np.uint64(0))
    store_u64(at + 8, row_word(rows, row, START))
    store_u64(at + 16, row_word(rows, row, COMMIT))
    store_u64(
        at + 24,
        (row_word(rows, row, KIND) << np.uint64(8)) | (row_word(rows, row, OP) & np.uint64(0xFF)),
    )
    store_u64(at + 32, np.uint64(size))
    store_u64(at + 40, np.uint64(slot))
    copy_exact(at + WAIT_RECORD, i64(row_word(rows, row, KEY)), size)
    if slot_word(slots, slot, S_HEAD) == np.uint64(0):
        put_slot_word(slots, slot, S_HEAD, np.uint64(offset + 1))
    else:
        store_u64(waiting + i64(slot_word(slots, slot, S_TAIL)) - 1, np.uint64(offset + 1))
    put_slot_word(slots, slot, S_TAIL, np.uint64(offset + 1))
    put_slot_word(slots, slot, S_WAITING, slot_word(slots, slot, S_WAITING) + np.uint64(1))
    put_int(counts, C_WAITING, offset + ((size + WAIT_RECORD + 7) & ~7))


@inline
def _replay(
    slots: int,
    slot: int,
    wanted: int,
    rows: int,
    table: int,
    arena: int,
    waiting: int,
    out: int,
    notes: int,
    counts: int,
) -> None:
    """Apply the slot's waiting rows of one kind, in the order of arrival."""
    link = slot_word(slots, slot, S_HEAD)
    while link != np.uint64(0) and slot_word(slots, slot, S_STATE) != np.uint64(STOPPED):
        at = waiting + i64(link) - 1
        link = load_u64(at)
        kind, op = load_u64(at + 24) >> np.uint64(8), load_u64(at + 24) & np.uint64(0xFF)
        if kind != np.uint64(wanted):
            continue
        start, commit, size = load_u64(at + 8), load_u64(at + 16), i64(load_u64(at + 32))
        h = with_slot(row_hash(start, at + WAIT_RECORD, size), slot)
        found = find_open(table, h, slot, start, at + WAIT_RECORD, size, rows, arena)
        if found == 0:
            continue
        if wanted == 2 and _passes(slots, slot, commit, notes, counts):
            ref = get_word(table, found)
            _emit_open(out, counts, slot_word(slots, slot, S_SPAN), commit, start, op, ref, rows, arena)
        _forget(table, found, h, rows, slots, arena, counts)


@inline
def _prewrite(
    slot: int, row: int, rows: int, slots: int, table: int, arena: int, kept: int, counts: int
) -> None:
    start, h = row_word(rows, row, START), row_word(rows, row, HASH)
    key, size = i64(row_word(rows, row, KEY)), i64(row_word(rows, row, KEY_SIZE))
    found = find_open(table, h, slot, start, key, size, rows, arena)
    if found != 0:
        entry = get_word(table, found)
        if entry & IN_MESSAGE:
            generation = row_word(rows, i64(entry & ~IN_MESSAGE), GENERATION)
        else:
            generation = record_word(arena, entry, R_GENERATION)
        empty = row_word(rows, row, VALUE_SIZE) == np.uint64(0) and get_int(counts, C_TRUST_EMPTY) == 0
        if empty or row_word(rows, row, GENERATION) < generation:
            return
        _forget(table, found, h, rows, slots, arena, counts)
    put_row_word(rows, row, PLACE, np.uint64(add_entry(table, h, IN_MESSAGE | np.uint64(row))))
    put_int(counts, C_OPEN_ROWS, get_int(counts, C_OPEN_ROWS) + 1)
    put_int(kept, get_int(counts, C_KEPT), row)
    put_int(counts, C_KEPT, get_int(counts, C_KEPT) + 1)


@inline
def _commit(
    slots: int,
    slot: int,
    row: int,
    rows: int,
    table: int,
    arena: int,
    waiting: int,
    out: int,
    notes: int,
    counts: int,
) -> None:
    start, h = row_word(rows, row, START), row_word(rows, row, HASH)
    key, size = i64(row_word(rows, row, KEY)), i64(row_word(rows, row, KEY_SIZE))
    found = find_open(table, h, slot, start, key, size, rows, arena)
    scanning = slot_word(slots, slot, S_STATE) == np.uint64(SCANNING)
    if found != 0 and scanning:
        ref = get_word(table, found)
        if ref & IN_MESSAGE:
            r = i64(ref & ~IN_MESSAGE)
            poor = row_word(rows, r, VALUE_SIZE) == np.uint64(0) or row_word(rows, r, GENERATION) > np.uint64(
                0
            )
        else:
            poor = record_word(arena, ref, R_VALUE_SIZE) == np.uint64(0) or record_word(
                arena, ref, R_GENERATION
            ) > np.uint64(0)
        if poor:
            found = 0
    if found == 0:
        if scanning:
            _wait(slots, slot, row, rows, waiting, counts)
        else:
            violate(slots, slot, 2, row_word(rows, row, COMMIT), notes, counts)
        return
    if _passes(slots, slot, row_word(rows, row, COMMIT), notes, counts):
        _emit_open(
            out,
            counts,
            slot_word(slots, slot, S_SPAN),
            row_word(rows, row, COMMIT),
            start,
            row_word(rows, row, OP),
            get_word(table, found),
            rows,
            arena,
        )
    _forget(table, found, h, rows, slots, arena, counts)


@inline
def _match_row(
    slots: int,
    slot: int,
    row: int,
    rows: int,
    table: int,
    arena: int,
    waiting: int,
    out: int,
    notes: int,
    kept: int,
    counts: int,
) -> None:
    kind = row_word(rows, row, KIND)
    passes = get_int(counts, C_PASSES)
    if passes > 0 and kind != np.uint64(5):
        if i64(row_word(rows, row, HASH) >> np.uint64(33)) % passes != get_int(counts, C_PASS):
            return
        if kind >= np.uint64(FORCED):
            put_row_word(rows, row, KIND, kind - np.uint64(FORCED))
            _wait(slots, slot, row, rows, waiting, counts)
            return
    if kind == np.uint64(5):
        if slot_word(slots, slot, S_STATE) == np.uint64(SCANNING):
            put_slot_word(slots, slot, S_STATE, np.uint64(LIVE))
            note(notes, counts, NOTE_INITIALIZED, slot, np.uint64(0), np.uint64(0))
            _replay(slots, slot, 2, rows, table, arena, waiting, out, notes, counts)
            _replay(slots, slot, 3, rows, table, arena, waiting, out, notes, counts)
            put_slot_word(slots, slot, S_HEAD, np.uint64(0))
            put_slot_word(slots, slot, S_TAIL, np.uint64(0))
            put_slot_word(slots, slot, S_WAITING, np.uint64(0))
        return
    if not inside(slots, slot, i64(row_word(rows, row, KEY)), i64(row_word(rows, row, KEY_SIZE))):
        return
    data = kind == np.uint64(1) or kind == np.uint64(2) or kind == np.uint64(4)
    if data and row_word(rows, row, OP) != np.uint64(PUT) and row_word(rows, row, OP) != np.uint64(DELETE):
        violate(slots, slot, 4, row_word(rows, row, COMMIT), notes, counts)
    elif kind == np.uint64(1):
        _prewrite(slot, row, rows, slots, table, arena, kept, counts)
    elif kind == np.uint64(2):
        _commit(slots, slot, row, rows, table, arena, waiting, out, notes, counts)
    elif kind == np.uint64(4):
        if _passes(slots, slot, row_word(rows, row, COMMIT), notes, counts):
            _emit_open(
                out,
                counts,
                slot_word(slots, slot, S_SPAN),
                row_word(rows, row, COMMIT),
                row_word(rows, row, START),
                row_word(rows, row, OP),
                IN_MESSAGE | np.uint64(row),
                rows,
                arena,
            )
    elif kind == np.uint64(3):
        if slot_word(slots, slot, S_STATE) == np.uint64(SCANNING):
            _wait(slots, slot, row, rows, waiting, counts)
            return
        start, h = row_word(rows, row, START), row_word(rows, row, HASH)
        key, size = i64(row_word(rows, row, KEY)), i64(row_word(rows, row, KEY_SIZE))
        found = find_open(table, h, slot, start, key, size, rows, arena)
        if found != 0:
            _forget(table, found, h, rows, slots, arena, counts)
    else:
        violate(slots, slot, 3, row_word(rows, row, COMMIT), notes, counts)


@inline
def _record_row(
    slots: int, slot: int, row: int, rows: int, log: int, log_size: int, notes: int, counts: int
) -> bool:
    """Log a row of a spilled slot; False: the log is full, nothing was done."""
    initialized = row_word(rows, row, KIND) == np.uint64(5)
    key, size = i64(row_word(rows, row, KEY)), i64(row_word(rows, row, KEY_SIZE))
    if not initialized and not inside(slots, slot, key, size):
        return True
    if not log_row(rows, row, slots, slot, log, log_size, counts):
        return False
    if initialized and slot_word(slots, slot, S_STATE) == np.uint64(SCANNING):
        put_slot_word(slots, slot, S_STATE, np.uint64(LIVE))
        note(notes, counts, NOTE_INITIALIZED, slot, np.uint64(0), np.uint64(0))
    return True


@kernel
def locate(events: int, event_count: int, rows: int, slots: int, index: int, table: int) -> None:
    """Fill in the slots of scanned events and rows, complete the rows' hashes, and call for their buckets."""
    for e in range(event_count):
        kind = i64(event_word(events, e, E_KIND))
        if kind == RESOLVED_MANY:
            continue
        slot = find_slot(index, slots, event_word(events, e, E_REGION), event_word(events, e, E_REQUEST))
        put_event_word(events, e, E_SLOT, np.uint64(slot))
        if kind == ROWS:
            for row in range(i64(event_word(events, e, E_FIRST)), i64(event_word(events, e, E_END))):
                h = with_slot(row_word(rows, row, HASH), slot)
                put_row_word(rows, row, HASH, h)
                put_row_word(rows, row, SLOT, np.uint64(slot))
                put_row_word(rows, row, PLACE, np.uint64(0))
                prefetch(bucket_of(table, h))


@kernel
def match(
    events: int,
    event_count: int,
    rows: int,
    row_count: int,
    slots: int,
    index: int,
    table: int,
    room: int,
    arena: int,
    waiting: int,
    out: int,
    notes: int,
    moved: int,
    kept: int,
    log: int,
    log_size: int,
    counts: int,
) -> int:
    """Apply scanned and located events in order. See COUNT_WORDS for `counts`.

    TABLE_FULL: the table holds `room` entries. It stays small as long as few prewrites are open, which keeps
    it in the cache; the caller doubles it with `rehash` and calls again, and the work goes on where it
    stopped. LOG_FULL: the same when the log (for rows of spilled slots) is full and the caller has made room.

    Room that the caller provides: `out` rows + waiting rows, `notes` events + slots, `kept` rows; the
    waiting arena for all rows' keys and headers. When `moved` overflows (counts[C_MOVED] > its length) every
    slot may have moved.
    """
    large = get_int(counts, C_OPEN_ROWS) > CACHED_ROWS
    for e in range(get_int(counts, C_EVENT), event_count):
        kind = i64(event_word(events, e, E_KIND))
        if kind == RESOLVED_MANY:
            if not resolve_many(events, e, index, slots, moved, log, log_size, counts):
                put_int(counts, C_EVENT, e)
                return LOG_FULL
            continue
        slot = i64(event_word(events, e, E_SLOT))
        if slot < 0:
            continue
        if kind == RESOLVED:
            if not resolve(slots, slot, event_word(events, e, E_TS), moved, log, log_size, counts):
                put_int(counts, C_EVENT, e)
                return LOG_FULL
        elif kind == ERROR:
            if slot_word(slots, slot, S_STATE) != np.uint64(STOPPED):
                put_slot_word(slots, slot, S_STATE, np.uint64(STOPPED))
                at, size = event_word(events, e, E_FIRST), event_word(events, e, E_SIZE)
                note(notes, counts, NOTE_ERROR, slot, at, size)
        elif kind == ROWS:
            for row in range(
                max(i64(event_word(events, e, E_FIRST)), get_int(counts, C_ROW)),
                i64(event_word(events, e, E_END)),
            ):
                if slot_word(slots, slot, S_STATE) == np.uint64(STOPPED):
                    break
                if slot_word(slots, slot, S_SPILLED) != np.uint64(0):
                    if not _record_row(slots, slot, row, rows, log, log_size, notes, counts):
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
                        prefetch(arena + i64(entry) + 64)
                _match_row(slots, slot, row, rows, table, arena, waiting, out, notes, kept, counts)
    return DONE


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    spare, index, table = np.zeros(1024, np.uint64), slot_index(4), hash_table(4)
    at = address(spare)
    tables = index_address(index), table_address(table)
    locate(at, 0, at, at, *tables)
    match(at, 0, at, 0, at, *tables, 0, at, at, at, at, at, at, at, 0, at)
