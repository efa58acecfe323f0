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
    first_match,
    hash_table,
    remove_entry,
    table_address,
)
from tidegate.puller.match.gather_kernels import emit
from tidegate.puller.match.matcher import Violation
from tidegate.puller.match.open_kernels import (
    OpenKey,
    end_record,
    find_open,
    record_word,
    row_hash,
    with_registration,
)
from tidegate.puller.match.registration_kernels import (
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
    E_REGISTRATION,
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
    KIND_SHIFT,
    LIVE,
    LOG_FULL,
    NOTE_ERROR,
    NOTE_INITIALIZED,
    OP,
    OPERATION_MASK,
    PLACE,
    PREWRITE_ROW,
    R_GENERATION,
    R_VALUE_SIZE,
    REG_CHECKPOINT,
    REG_HEAD,
    REG_RESOLVED,
    REG_SPILLED,
    REG_STATE,
    REG_TAIL,
    REG_WAITING,
    RESOLVED,
    RESOLVED_MANY,
    ROLLBACK_ROW,
    ROWS,
    SCANNING,
    START,
    STOPPED,
    TABLE_FULL,
    VALUE_SIZE,
    W_COMMIT,
    W_KEY_SIZE,
    W_KIND,
    W_NEXT,
    W_REGISTRATION,
    W_START,
    WAIT_RECORD,
    WORD,
    Tables,
    event_word,
    get_int,
    get_word,
    i64,
    index_address,
    put_int,
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

PASS_SHIFT = np.uint64(33)
"""The bits of a hash from here on choose its pass over a log. The lowest bits choose the bucket: if both used
the same bits, the rows of a pass would crowd into a few buckets."""


@inline
def _forget(tables: Tables, place: int, hashed: Any) -> None:
    """Remove an entry."""
    entry = get_word(tables.table, place)
    if entry & IN_MESSAGE:
        # `keep` copies a row only if it has a place. A row that met its commit in this portion is never
        # copied.
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
    wanted = OpenKey(registration, start, i64(key), i64(size))
    return find_open(tables.table, hashed, wanted, rows, tables.arena)


@inline
def _passes(tables: Tables, registration: int, commit: Any) -> bool:
    """Whether a completed change must be emitted: it is above the checkpoint, and above the resolved ts."""
    # The checkpoint comes first. The resolved ts begins at the checkpoint, so an old change that a scan
    # repeats would otherwise count as a violation.
    if commit <= registration_word(tables.registrations, registration, REG_CHECKPOINT):
        return False
    if commit <= registration_word(tables.registrations, registration, REG_RESOLVED):
        violate(
            tables.registrations, registration, COMMIT_BELOW_RESOLVED, commit, tables.notes, tables.counts
        )
        return False
    return True


@inline
def _wait(tables: Tables, registration: int, row: int) -> None:
    """Add a commit or rollback that came before INITIALIZED to the waiting ones."""
    registrations, rows, counts = tables.registrations, tables.rows, tables.counts
    # `OpenRows.make_room` reserves room for all rows of a portion while a registration scans, and only such
    # a registration's rows wait. So there is no check here.
    offset = get_int(counts, C_WAITING)
    at = tables.waiting + offset
    size = i64(row_word(rows, row, KEY_SIZE))
    kind, op = row_word(rows, row, KIND), row_word(rows, row, OP)
    put_word(at, W_NEXT, np.uint64(0))
    put_word(at, W_START, row_word(rows, row, START))
    put_word(at, W_COMMIT, row_word(rows, row, COMMIT))
    # The operation of a rollback was not checked. Without the mask its high bits would change the kind.
    put_word(at, W_KIND, (kind << KIND_SHIFT) | (op & OPERATION_MASK))
    put_word(at, W_KEY_SIZE, np.uint64(size))
    put_word(at, W_REGISTRATION, np.uint64(registration))
    copy_exact(at + WAIT_RECORD, i64(row_word(rows, row, KEY)), size)
    # Links are offsets + 1, because offset 0 is the first record and a link of 0 means none.
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
    put_int(counts, C_WAITING, offset + ((size + WAIT_RECORD + WORD - 1) & -WORD))


@inline
def _replay(tables: Tables, registration: int, wanted_kind: Any) -> None:
    """Apply the registration's waiting rows of one kind, in the order in which they came."""
    link = registration_word(tables.registrations, registration, REG_HEAD)
    # A violation stops the registration. Changes after it must not come out, because the next registration
    # scans again from its resolved ts.
    while link != np.uint64(0) and registration_word(
        tables.registrations, registration, REG_STATE
    ) != np.uint64(STOPPED):
        at = tables.waiting + i64(link) - 1
        link = get_word(at, W_NEXT)
        kind, op = get_word(at, W_KIND) >> KIND_SHIFT, get_word(at, W_KIND) & OPERATION_MASK
        if kind != wanted_kind:
            continue
        start, commit, size = get_word(at, W_START), get_word(at, W_COMMIT), i64(get_word(at, W_KEY_SIZE))
        key = at + WAIT_RECORD
        h = with_registration(row_hash(start, key, size), registration)
        wanted = OpenKey(registration, start, key, size)
        found = find_open(tables.table, h, wanted, tables.rows, tables.arena)
        # A commit that still has no prewrite is no violation: the scan has delivered its change as
        # COMMITTED (tiflow `cdc/kv/matcher.go`).
        if found == 0:
            continue
        # The commit's operation decides whether there is a value. A record in the arena holds no operation.
        if wanted_kind == COMMIT_ROW and _passes(tables, registration, commit):
            emit(tables, registration, commit, start, op, get_word(tables.table, found))
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
        # The row is not entered in `kept` and gets no place, so it disappears with its message.
        if empty or row_word(rows, row, GENERATION) < generation:
            return
        _forget(tables, found, h)
    # `match` has compared C_OPEN_ROWS with the table's room before this row, and a row adds at most one
    # entry.
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
    # The poor prewrite stays in the table. If the scan brings nothing better, the waiting commit finds it
    # at INITIALIZED.
    if found != 0 and scanning and _is_poor(tables, get_word(tables.table, found)):
        found = 0
    if found == 0:
        if scanning:
            _wait(tables, registration, row)
        else:
            violate(tables.registrations, registration, PREWRITE_MISSING, commit, tables.notes, tables.counts)
        return
    if _passes(tables, registration, commit):
        # The change may point into the record that `_forget` ends next. That is safe: `end_record` leaves
        # the record's key and values alone, and `release` runs after the changes were gathered.
        start, op = row_word(tables.rows, row, START), row_word(tables.rows, row, OP)
        emit(tables, registration, commit, start, op, get_word(tables.table, found))
    _forget(tables, found, h)


@inline
def _rollback(tables: Tables, registration: int, row: int) -> None:
    """Discard the open prewrite of a rollback; during a scan the rollback waits, as commits do."""
    # The rollback may overtake the scan's prewrite of the same transaction, which would then stay open
    # forever.
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
    # LIVE before the replay: a violation in it sets STOPPED, which must not be overwritten.
    put_registration_word(registrations, registration, REG_STATE, np.uint64(LIVE))
    note(tables.notes, tables.counts, NOTE_INITIALIZED, registration, np.uint64(0), np.uint64(0))
    # Only the chain is cut afterwards. `reclaim` reuses the records' space once no registration has waiting
    # rows.
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
    # Each pass has its own tables, so INITIALIZED belongs to every pass; a row belongs to exactly one.
    if passes > 0 and kind != INITIALIZED_ROW:
        if i64(row_word(rows, row, HASH) >> PASS_SHIFT) % passes != get_int(counts, C_PASS):
            return
        # It waited when its registration was spilled, so it waits again, even if the log has its prewrite.
        # Its key was found inside the range before it waited for the first time.
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
    # The operation is checked before the kind is applied: an unknown operation must not enter the table,
    # where a later commit would find it.
    if has_op and op != np.uint64(OP_PUT) and op != np.uint64(OP_DELETE):
        violate(registrations, registration, UNKNOWN_OPERATION, commit, notes, counts)
    elif kind == PREWRITE_ROW:
        _prewrite(tables, registration, row)
    elif kind == COMMIT_ROW:
        _commit(tables, registration, row)
    elif kind == COMMITTED_ROW:
        if _passes(tables, registration, commit):
            emit(tables, registration, commit, row_word(rows, row, START), op, IN_MESSAGE | np.uint64(row))
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
    # INITIALIZED has no key and concerns the whole range.
    if not initialized and not inside(registrations, registration, key, size):
        return True
    if not log_row(rows, row, registrations, registration, tables.log, tables.log_size, tables.counts):
        return False
    # `resolve` takes a resolved ts only while the registration is LIVE, and the log must get the ts that
    # follow.
    if initialized and registration_word(registrations, registration, REG_STATE) == np.uint64(SCANNING):
        put_registration_word(registrations, registration, REG_STATE, np.uint64(LIVE))
        note(tables.notes, tables.counts, NOTE_INITIALIZED, registration, np.uint64(0), np.uint64(0))
    return True


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
    # Read once: a wrong guess costs time and changes no result.
    large = get_int(counts, C_OPEN_ROWS) > CACHED_ROWS
    for e in range(get_int(counts, C_EVENT), event_count):
        kind = i64(event_word(events, e, E_KIND))
        if kind == RESOLVED_MANY:
            if not resolve_many(tables, e):
                put_int(counts, C_EVENT, e)
                return LOG_FULL
            continue
        # An event of a region that is not registered: a late one, after the caller has stopped the
        # registration and its number was freed.
        registration = i64(event_word(events, e, E_REGISTRATION))
        if registration < 0:
            continue
        if kind == RESOLVED:
            if not resolve(tables, registration, event_word(events, e, E_TS)):
                put_int(counts, C_EVENT, e)
                return LOG_FULL
        elif kind == ERROR:
            # One that is stopped has ended before, and its owner already has the reason.
            if registration_word(registrations, registration, REG_STATE) != np.uint64(STOPPED):
                put_registration_word(registrations, registration, REG_STATE, np.uint64(STOPPED))
                at, size = event_word(events, e, E_FIRST), event_word(events, e, E_SIZE)
                note(notes, counts, NOTE_ERROR, registration, at, size)
        elif kind == ROWS:
            for row in range(
                # Rows are numbered through the whole portion. So C_ROW counts only in the event that was
                # interrupted, and later events begin behind it.
                max(i64(event_word(events, e, E_FIRST)), get_int(counts, C_ROW)),
                i64(event_word(events, e, E_END)),
            ):
                # Checked for each row, because the row before it may have violated the contract.
                if registration_word(registrations, registration, REG_STATE) == np.uint64(STOPPED):
                    break
                if registration_word(registrations, registration, REG_SPILLED) != np.uint64(0):
                    if not _record_row(tables, registration, row):
                        put_int(counts, C_EVENT, e)
                        put_int(counts, C_ROW, row)
                        return LOG_FULL
                    continue
                # Checked before the row is applied: a row that was applied in part could not be repeated.
                if get_int(counts, C_OPEN_ROWS) >= room:
                    put_int(counts, C_EVENT, e)
                    put_int(counts, C_ROW, row)
                    return TABLE_FULL
                # `locate` has completed the hashes of all rows of the portion, so this row may belong to a
                # later event.
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
    match(Tables(at, at, at, *found, at, at, at, at, at, at, at, 0, at), 0, 0, 0)
