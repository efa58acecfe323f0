"""Compiled wire scan of ChangeDataEvent messages, and the compiled matcher of a whole stream.

Three steps over a batch of messages, which stay where gRPC put them:

`scan` walks the protobuf wire format into `events` and `rows` (tables of u64 words that point into the
messages). It reads nothing outside a message; what is not well-formed, and groups, which cdcpb never has,
make the message bad.
`match` runs the rules of `matcher.Matcher` over the events, for every registration ("slot") of the stream. A
prewrite that waits for its commit is found through `table`, an open-addressing hash of (slot, start_ts,
key). During the batch an entry refers to the row in the message; `keep` afterwards copies what is still
open into an arena, so a transaction that commits within the batch is never copied. Commits and rollbacks
that come before INITIALIZED wait in a second arena. Completed changes come out as references in `out`.
`gather` copies the changes of one span into the columns of ENTRY_SCHEMA.

`compact` rewrites the arena with what is still open and rebuilds the table.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidegate.kernel import (
    address,
    compare_bytes,
    copy_exact,
    cttz64,
    inline,
    kernel,
    load_i64,
    load_u8,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.model.block import DELETE, PUT

i64: Any = np.int64
"""Untyped for mypy, whose numpy integers are no `int`; inside a kernel it is numba's int64."""

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

EVENT_WORDS: Final = 7
E_KIND, E_REGION, E_REQUEST, E_FIRST, E_END, E_TS, E_SIZE = range(EVENT_WORDS)
"""An event: FIRST and END are its rows; for an error the address and size of the Event message; for a batch
of resolved regions those of the ResolvedTs message."""

ROWS, ERROR, RESOLVED, RESOLVED_MANY, OTHER = range(5)
"""Kinds of events; OTHER is ignored (admin, long transactions)."""

ROW_WORDS: Final = 12
START, COMMIT, KEY, VALUE, OLD, KEY_SIZE, VALUE_SIZE, OLD_SIZE, KIND, OP, GENERATION, HASH = range(ROW_WORDS)
"""A row: KEY, VALUE, OLD are addresses. HASH is filled in by `match` for prewrites."""

MOVED_ROOM: Final = 1 << 16
"""Places in `moved`; the rest overwrites them, see `match`."""

SLOT_WORDS: Final = 15
(
    S_STATE,
    S_REGION,
    S_REQUEST,
    S_CHECKPOINT,
    S_RESOLVED,
    S_SPAN,
    S_FROM,
    S_FROM_SIZE,
    S_TO,
    S_TO_SIZE,
    S_HEAD,
    S_TAIL,
    S_OPEN,
    S_WAITING,
    S_MARK,
) = range(SLOT_WORDS)
"""A registration: FROM and TO are the addresses of its raw key bounds (TO_SIZE 0: no bound). HEAD and TAIL
chain its waiting rows (offset + 1 in the waiting arena; 0: none), WAITING counts them. OPEN: bytes of open
prewrites. SPAN and MARK are the caller's numbers: changes come out with SPAN, a risen resolved ts with
MARK."""

FREE, SCANNING, LIVE, STOPPED = range(4)
"""States of a slot: unused; until INITIALIZED; after it; ended, so that its rows are ignored."""

OUT_WORDS: Final = 10
O_COMMIT, O_START, O_OP, O_KEY, O_VALUE, O_OLD, O_KEY_SIZE, O_VALUE_SIZE, O_OLD_SIZE, O_SPAN = range(
    OUT_WORDS
)

NOTE_WORDS: Final = 4
N_KIND, N_SLOT, N_A, N_B = range(NOTE_WORDS)
NOTE_INITIALIZED, NOTE_ERROR, NOTE_VIOLATED = range(1, 4)
"""What the caller must act on: A, B are address and size of the Event, or violation and commit_ts."""

COUNT_WORDS: Final = 10
C_OUT, C_NOTES, C_MOVED, C_KEPT, C_ARENA, C_LIVE, C_OPEN_ROWS, C_WAITING, C_EVENT, C_ROW = range(COUNT_WORDS)
"""In and out of `match` and `keep`: lengths of out, notes, moved, kept; bytes used in the arena; bytes of
open prewrites in it; entries in the table; bytes used in the waiting arena; event and row to go on from."""

RECORD: Final = 64
"""Bytes of a record's header in the arena: START, slot, 1 while it lives, GENERATION, HASH, three sizes."""
R_START, R_SLOT, R_LIVE, R_GENERATION, R_HASH, R_KEY_SIZE, R_VALUE_SIZE, R_OLD_SIZE = range(8)

WAIT_RECORD: Final = 48
"""Bytes of a waiting record's header: next, START, COMMIT, kind << 8 | op, key size, slot."""

GOOD, BAD, FULL = range(3)
"""What `scan` says: all scanned; message `counts[2]` is bad; the tables are too small."""

_IN_MESSAGE: Final = np.uint64(1 << 63)
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXER: Final = np.uint64(0xD6E8FEB86659FD93)


# --- words of tables ---------------------------------------------------------------------------------
#
# Tables are passed by address: numba counts references of arrays at each call, inlined or not, which made
# the matcher four times slower.


@inline
def _word(base: int, at: int) -> Any:
    return load_u64(base + 8 * at)


@inline
def _put(base: int, at: int, value: Any) -> None:
    store_u64(base + 8 * at, value)


@inline
def _row(base: int, number: int, word: int) -> Any:
    return load_u64(base + 8 * (ROW_WORDS * number + word))


@inline
def _put_row(base: int, number: int, word: int, value: Any) -> None:
    store_u64(base + 8 * (ROW_WORDS * number + word), value)


@inline
def _slot(base: int, number: int, word: int) -> Any:
    return load_u64(base + 8 * (SLOT_WORDS * number + word))


@inline
def _put_slot(base: int, number: int, word: int, value: Any) -> None:
    store_u64(base + 8 * (SLOT_WORDS * number + word), value)


@inline
def _event_word(base: int, number: int, word: int) -> Any:
    return load_u64(base + 8 * (EVENT_WORDS * number + word))


@inline
def _put_event(base: int, number: int, word: int, value: Any) -> None:
    store_u64(base + 8 * (EVENT_WORDS * number + word), value)


@inline
def _put_note(base: int, number: int, word: int, value: Any) -> None:
    store_u64(base + 8 * (NOTE_WORDS * number + word), value)


@inline
def _put_out(base: int, number: int, word: int, value: Any) -> None:
    store_u64(base + 8 * (OUT_WORDS * number + word), value)


@inline
def _int(base: int, at: int) -> Any:
    return load_i64(base + 8 * at)


@inline
def _put_int(base: int, at: int, value: Any) -> None:
    store_u64(base + 8 * at, np.uint64(value))


@inline
def _mask(base: int) -> Any:
    """A hash table's number of places, a power of two, less one: the word before its first."""
    return load_i64(base - 8)


# --- scan --------------------------------------------------------------------------------------------


@inline
def _varint(at: int, end: int) -> tuple[Any, Any]:
    """The varint at `at` and the address after it; address 0 when it is cut or longer than 10 bytes."""
    if at < end and load_u8(at) < 128:
        return np.uint64(load_u8(at)), at + 1
    if end - at >= 10:
        return _wide_varint(at)
    value, shift = np.uint64(0), 0
    while at < end and shift < 70:
        byte = np.uint64(load_u8(at))
        at += 1
        value |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < np.uint64(128):
            return value, at
        shift += 7
    return np.uint64(0), 0


@inline
def _wide_varint(at: int) -> tuple[Any, Any]:
    """As `_varint`, where ten bytes may be read: eight groups of seven bits are joined at once."""
    word: Any = load_u64(at)
    stops = ~word & np.uint64(0x8080808080808080)
    size = 8
    if stops != np.uint64(0):
        size = i64(cttz64(stops) >> np.uint64(3)) + 1
        word &= np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - 8 * size)
    word &= np.uint64(0x7F7F7F7F7F7F7F7F)
    word = (word & np.uint64(0x007F007F007F007F)) | (word & np.uint64(0x7F007F007F007F00)) >> np.uint64(1)
    word = (word & np.uint64(0x00003FFF00003FFF)) | (word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
    word = (word & np.uint64(0x000000000FFFFFFF)) | (word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
    if stops != np.uint64(0):
        return word, at + size
    ninth, tenth = np.uint64(load_u8(at + 8)), np.uint64(load_u8(at + 9))
    word |= (ninth & np.uint64(0x7F)) << np.uint64(56)
    if ninth < np.uint64(128):
        return word, at + 9
    if tenth < np.uint64(128):
        return word | (tenth << np.uint64(63)), at + 10
    return np.uint64(0), 0


@inline
def _skip(wire: int, at: int, end: int) -> Any:
    """The address after an unknown field's value; 0 when it is malformed or a group."""
    if wire == 0:
        _, after = _varint(at, end)
        return after
    if wire == 2:
        size, after = _varint(at, end)
        if after == 0 or size > np.uint64(end - after):
            return 0
        return after + i64(size)
    width = 8 if wire == 1 else 4
    if (wire != 1 and wire != 5) or end - at < width:
        return 0
    return at + width


@inline
def _scan_row(at: int, end: int, rows: int, n: int) -> bool:
    """Event.Row: scalars at their fields' numbers, bytes as address and size."""
    for word in range(ROW_WORDS):
        _put_row(rows, n, word, np.uint64(0))
    while at < end:
        tag, at = _varint(at, end)
        if at == 0 or tag < np.uint64(8) or tag > np.uint64(0xFFFFFFFF):
            return False
        field, wire = i64(tag >> np.uint64(3)), i64(tag & np.uint64(7))
        if wire == 0:
            value, at = _varint(at, end)
            if at == 0:
                return False
            if field == 1:
                _put_row(rows, n, START, value)
            elif field == 2:
                _put_row(rows, n, COMMIT, value)
            elif field == 3:
                _put_row(rows, n, KIND, value & np.uint64(0xFFFFFFFF))
            elif field == 4:
                _put_row(rows, n, OP, value & np.uint64(0xFFFFFFFF))
            elif field == 10:
                _put_row(rows, n, GENERATION, value)
        elif wire == 2:
            size, at = _varint(at, end)
            if at == 0 or size > np.uint64(end - at):
                return False
            if 5 <= field <= 7:
                _put_row(rows, n, KEY + field - 5, np.uint64(at))
                _put_row(rows, n, KEY_SIZE + field - 5, size)
            at += i64(size)
        else:
            at = _skip(wire, at, end)
            if at == 0:
                return False
    return True


@inline
def _scan_entries(at: int, end: int, rows: int, row_room: int, n: int) -> int:
    """Event.Entries into rows from `n` on. Returns the next n; -1 bad, -2 no room."""
    while at < end:
        tag, at = _varint(at, end)
        if at == 0 or tag < np.uint64(8) or tag > np.uint64(0xFFFFFFFF):
            return -1
        if tag != np.uint64(10):
            at = _skip(i64(tag & np.uint64(7)), at, end)
            if at == 0:
                return -1
            continue
        size, at = _varint(at, end)
        if at == 0 or size > np.uint64(end - at):
            return -1
        if n >= row_room:
            return -2
        if not _scan_row(at, at + i64(size), rows, n):
            return -1
        n += 1
        at += i64(size)
    return n


@inline
def _scan_event(at: int, end: int, events: int, e: int, rows: int, row_room: int, n: int) -> int:
    """One Event into events[e] and its rows. The last member of the oneof wins. Returns as above."""
    first, start = n, at
    for word in range(EVENT_WORDS):
        _put_event(events, e, word, np.uint64(0))
    _put_event(events, e, E_KIND, np.uint64(OTHER))
    while at < end:
        tag, at = _varint(at, end)
        if at == 0 or tag < np.uint64(8) or tag > np.uint64(0xFFFFFFFF):
            return -1
        field, wire = i64(tag >> np.uint64(3)), i64(tag & np.uint64(7))
        if wire == 0:
            value, at = _varint(at, end)
            if at == 0:
                return -1
            if field == 1:
                _put_event(events, e, E_REGION, value)
            elif field == 7:
                _put_event(events, e, E_REQUEST, value)
            elif field == 6:
                _put_event(events, e, E_KIND, np.uint64(RESOLVED))
                _put_event(events, e, E_TS, value)
        elif wire == 2:
            size, at = _varint(at, end)
            if at == 0 or size > np.uint64(end - at):
                return -1
            if field == 3:
                if _event_word(events, e, E_KIND) != np.uint64(ROWS):
                    n = first
                _put_event(events, e, E_KIND, np.uint64(ROWS))
                n = _scan_entries(at, at + i64(size), rows, row_room, n)
                if n < 0:
                    return n
            elif field == 5:
                _put_event(events, e, E_KIND, np.uint64(ERROR))
            elif field == 4 or field == 8:
                _put_event(events, e, E_KIND, np.uint64(OTHER))
            at += i64(size)
        else:
            at = _skip(wire, at, end)
            if at == 0:
                return -1
    if _event_word(events, e, E_KIND) == np.uint64(ROWS):
        _put_event(events, e, E_FIRST, np.uint64(first))
        _put_event(events, e, E_END, np.uint64(n))
    else:
        n = first
        if _event_word(events, e, E_KIND) == np.uint64(ERROR):
            _put_event(events, e, E_FIRST, np.uint64(start))
            _put_event(events, e, E_SIZE, np.uint64(end - start))
    return n


@inline
def _scan_resolved(at: int, end: int, events: int, e: int) -> bool:
    """A ResolvedTs message; its region list is walked again by `match`."""
    for word in range(EVENT_WORDS):
        _put_event(events, e, word, np.uint64(0))
    _put_event(events, e, E_KIND, np.uint64(RESOLVED_MANY))
    _put_event(events, e, E_FIRST, np.uint64(at))
    _put_event(events, e, E_SIZE, np.uint64(end - at))
    while at < end:
        tag, at = _varint(at, end)
        if at == 0 or tag < np.uint64(8) or tag > np.uint64(0xFFFFFFFF):
            return False
        field, wire = i64(tag >> np.uint64(3)), i64(tag & np.uint64(7))
        if wire == 0:
            value, at = _varint(at, end)
            if at == 0:
                return False
            if field == 2:
                _put_event(events, e, E_TS, value)
            elif field == 3:
                _put_event(events, e, E_REQUEST, value)
        elif wire == 2 and field == 1:
            size, at = _varint(at, end)
            if at == 0 or size > np.uint64(end - at):
                return False
            stop = at + i64(size)
            while at < stop:
                _, at = _varint(at, stop)
                if at == 0:
                    return False
        else:
            at = _skip(wire, at, end)
            if at == 0:
                return False
    return True


@kernel
def scan(messages: I64, events: int, event_room: int, rows: int, row_room: int, counts: int) -> int:
    """Scan ChangeDataEvent messages; `messages` holds an address and a size for each.

    `counts` becomes (events, rows, index of the message it stopped at). Returns GOOD, BAD or FULL; after
    BAD or FULL the tables mean nothing.
    """
    e, n = 0, 0
    for m in range(messages.shape[0]):
        at, end = messages[m, 0], messages[m, 0] + messages[m, 1]
        _put_int(counts, 2, m)
        while at < end:
            tag, at = _varint(at, end)
            if at == 0 or tag < np.uint64(8) or tag > np.uint64(0xFFFFFFFF):
                return BAD
            if tag != np.uint64(10) and tag != np.uint64(18):
                at = _skip(i64(tag & np.uint64(7)), at, end)
                if at == 0:
                    return BAD
                continue
            size, at = _varint(at, end)
            if at == 0 or size > np.uint64(end - at):
                return BAD
            if e >= event_room:
                return FULL
            if tag == np.uint64(10):
                n = _scan_event(at, at + i64(size), events, e, rows, row_room, n)
                if n < 0:
                    return FULL if n == -2 else BAD
            elif not _scan_resolved(at, at + i64(size), events, e):
                return BAD
            e += 1
            at += i64(size)
    _put_int(counts, 0, e)
    _put_int(counts, 1, n)
    return GOOD


# --- slots -------------------------------------------------------------------------------------------


@inline
def _slot_hash(region: Any, request: Any) -> Any:
    h = (region ^ (request * _MIXER)) * _MULTIPLIER
    return h ^ (h >> np.uint64(32))


@inline
def _find_slot(index: int, slots: int, region: Any, request: Any) -> int:
    """The slot registered last for (request, region), or -1."""
    mask = _mask(index)
    at = i64(_slot_hash(region, request) & np.uint64(mask))
    while _int(index, at) >= 0:
        slot: int = _int(index, at)
        if _slot(slots, slot, S_REGION) == region and _slot(slots, slot, S_REQUEST) == request:
            return slot
        at = (at + 1) & mask
    return -1


@kernel
def index_slot(index: int, slots: int, slot: int) -> None:
    """Let lookups of the slot's (request, region) find it, instead of an older slot of the same."""
    mask = _mask(index)
    region, request = _slot(slots, slot, S_REGION), _slot(slots, slot, S_REQUEST)
    at = i64(_slot_hash(region, request) & np.uint64(mask))
    while _int(index, at) >= 0:
        other = _int(index, at)
        if _slot(slots, other, S_REGION) == region and _slot(slots, other, S_REQUEST) == request:
            break
        at = (at + 1) & mask
    _put_int(index, at, slot)


# --- open prewrites ----------------------------------------------------------------------------------


@inline
def _row_hash(slot: int, start: Any, key: int, size: int) -> Any:
    h = (start ^ (np.uint64(slot) * _MIXER)) * _MULTIPLIER
    i = 0
    while i + 8 <= size:
        h = (h ^ load_u64(key + i)) * _MULTIPLIER
        h ^= h >> np.uint64(29)
        i += 8
    while i < size:
        h = (h ^ np.uint64(load_u8(key + i))) * _MULTIPLIER
        i += 1
    return (h ^ (h >> np.uint64(32))) | np.uint64(1)


@inline
def _record(arena: int, offset: Any, word: int) -> Any:
    return load_u64(arena + i64(offset) + 8 * word)


@inline
def _find_open(
    table: int, h: Any, slot: int, start: Any, key: int, size: int, rows: int, row_slots: int, arena: int
) -> int:
    """The table position of the open prewrite of (slot, start, key), or -1."""
    mask = _mask(table)
    at: int = i64((h >> np.uint64(1)) & np.uint64(mask))
    while _word(table, 2 * at + 1) != np.uint64(0):
        if _word(table, 2 * at + 0) == h:
            ref = _word(table, 2 * at + 1)
            if ref & _IN_MESSAGE:
                row = i64(ref & ~_IN_MESSAGE)
                if (
                    _int(row_slots, row) == slot
                    and _row(rows, row, START) == start
                    and _row(rows, row, KEY_SIZE) == np.uint64(size)
                    and compare_bytes(i64(_row(rows, row, KEY)), size, key, size) == 0
                ):
                    return at
            elif (
                _record(arena, ref, R_SLOT) == np.uint64(slot)
                and _record(arena, ref, R_START) == start
                and _record(arena, ref, R_KEY_SIZE) == np.uint64(size)
                and compare_bytes(arena + i64(ref) + RECORD, size, key, size) == 0
            ):
                return at
        at = (at + 1) & mask
    return -1


@inline
def _insert(table: int, h: Any, ref: Any) -> None:
    mask = _mask(table)
    at = i64((h >> np.uint64(1)) & np.uint64(mask))
    while _word(table, 2 * at + 1) != np.uint64(0):
        at = (at + 1) & mask
    _put(table, 2 * at + 0, h)
    _put(table, 2 * at + 1, ref)


@inline
def _remove(table: int, at: int) -> None:
    """Empty a position and move later entries of its run back (no tombstones)."""
    mask = _mask(table)
    hole, i = at, (at + 1) & mask
    while _word(table, 2 * i + 1) != np.uint64(0):
        home = i64((_word(table, 2 * i + 0) >> np.uint64(1)) & np.uint64(mask))
        if ((i - home) & mask) >= ((i - hole) & mask):
            _put(table, 2 * hole + 0, _word(table, 2 * i + 0))
            _put(table, 2 * hole + 1, _word(table, 2 * i + 1))
            hole = i
        i = (i + 1) & mask
    _put(table, 2 * hole + 1, np.uint64(0))


@inline
def _record_bytes(arena: int, ref: Any) -> Any:
    sizes = (
        _record(arena, ref, R_KEY_SIZE) + _record(arena, ref, R_VALUE_SIZE) + _record(arena, ref, R_OLD_SIZE)
    )
    return (i64(sizes) + RECORD + 7) & ~7


@inline
def _forget(table: int, at: int, rows: int, slots: int, arena: int, counts: int) -> None:
    """Remove an entry; a row is marked by HASH 0, an arena record becomes dead."""
    ref = _word(table, 2 * at + 1)
    if ref & _IN_MESSAGE:
        _put_row(rows, i64(ref & ~_IN_MESSAGE), HASH, np.uint64(0))
    else:
        size = _record_bytes(arena, ref)
        store_u64(arena + i64(ref) + 8 * R_LIVE, np.uint64(0))
        _put_int(counts, C_LIVE, _int(counts, C_LIVE) - size)
        _put(
            slots,
            SLOT_WORDS * (i64(_record(arena, ref, R_SLOT))) + S_OPEN,
            _word(slots, SLOT_WORDS * (i64(_record(arena, ref, R_SLOT))) + S_OPEN) - np.uint64(size),
        )
    _put_int(counts, C_OPEN_ROWS, _int(counts, C_OPEN_ROWS) - 1)
    _remove(table, at)


# --- match -------------------------------------------------------------------------------------------


@inline
def _violate(slots: int, slot: int, reason: int, commit: Any, notes: int, counts: int) -> None:
    _put_slot(slots, slot, S_STATE, np.uint64(STOPPED))
    _note(notes, counts, NOTE_VIOLATED, slot, np.uint64(reason), commit)


@inline
def _note(notes: int, counts: int, kind: int, slot: int, a: Any, b: Any) -> None:
    i = _int(counts, C_NOTES)
    _put_note(notes, i, N_KIND, np.uint64(kind))
    _put_note(notes, i, N_SLOT, np.uint64(slot))
    _put_note(notes, i, N_A, a)
    _put_note(notes, i, N_B, b)
    _put_int(counts, C_NOTES, i + 1)


@inline
def _passes(slots: int, slot: int, commit: Any, notes: int, counts: int) -> bool:
    """Whether a completed change is to come out: above the checkpoint, and above the resolved ts."""
    if commit <= _slot(slots, slot, S_CHECKPOINT):
        return False
    if commit <= _slot(slots, slot, S_RESOLVED):
        _violate(slots, slot, 1, commit, notes, counts)
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
    i = _int(counts, C_OUT)
    _put_out(out, i, O_COMMIT, commit)
    _put_out(out, i, O_START, start)
    _put_out(out, i, O_OP, op)
    _put_out(out, i, O_SPAN, span)
    _put_out(out, i, O_KEY, np.uint64(key))
    _put_out(out, i, O_KEY_SIZE, key_size)
    _put_out(out, i, O_VALUE, np.uint64(value))
    _put_out(out, i, O_VALUE_SIZE, value_size if op == np.uint64(PUT) else np.uint64(0))
    _put_out(out, i, O_OLD, np.uint64(old))
    _put_out(out, i, O_OLD_SIZE, old_size)
    _put_int(counts, C_OUT, i + 1)


@inline
def _emit_open(
    out: int, counts: int, span: Any, commit: Any, start: Any, op: Any, ref: Any, rows: int, arena: int
) -> None:
    """Emit a commit with the values of its prewrite."""
    if ref & _IN_MESSAGE:
        r = i64(ref & ~_IN_MESSAGE)
        _emit(
            out,
            counts,
            span,
            commit,
            start,
            op,
            i64(_row(rows, r, KEY)),
            _row(rows, r, KEY_SIZE),
            i64(_row(rows, r, VALUE)),
            _row(rows, r, VALUE_SIZE),
            i64(_row(rows, r, OLD)),
            _row(rows, r, OLD_SIZE),
        )
        return
    key = arena + i64(ref) + RECORD
    key_size, value_size = _record(arena, ref, R_KEY_SIZE), _record(arena, ref, R_VALUE_SIZE)
    value = key + i64(key_size)
    old, old_size = value + i64(value_size), _record(arena, ref, R_OLD_SIZE)
    _emit(out, counts, span, commit, start, op, key, key_size, value, value_size, old, old_size)


@inline
def _wait(slots: int, slot: int, row: int, rows: int, waiting: int, counts: int) -> None:
    """Chain a commit or rollback that came before INITIALIZED."""
    offset = _int(counts, C_WAITING)
    at = waiting + offset
    size = i64(_row(rows, row, KEY_SIZE))
    store_u64(at, np.uint64(0))
    store_u64(at + 8, _row(rows, row, START))
    store_u64(at + 16, _row(rows, row, COMMIT))
    store_u64(
        at + 24,
        (_row(rows, row, KIND) << np.uint64(8)) | (_row(rows, row, OP) & np.uint64(0xFF)),
    )
    store_u64(at + 32, np.uint64(size))
    store_u64(at + 40, np.uint64(slot))
    copy_exact(at + WAIT_RECORD, i64(_row(rows, row, KEY)), size)
    if _slot(slots, slot, S_HEAD) == np.uint64(0):
        _put_slot(slots, slot, S_HEAD, np.uint64(offset + 1))
    else:
        store_u64(waiting + i64(_slot(slots, slot, S_TAIL)) - 1, np.uint64(offset + 1))
    _put_slot(slots, slot, S_TAIL, np.uint64(offset + 1))
    _put_slot(slots, slot, S_WAITING, _slot(slots, slot, S_WAITING) + np.uint64(1))
    _put_int(counts, C_WAITING, offset + ((size + WAIT_RECORD + 7) & ~7))


@inline
def _replay(
    slots: int,
    slot: int,
    wanted: int,
    rows: int,
    row_slots: int,
    table: int,
    arena: int,
    waiting: int,
    out: int,
    notes: int,
    counts: int,
) -> None:
    """Apply the slot's waiting rows of one kind, in the order of arrival."""
    link = _slot(slots, slot, S_HEAD)
    while link != np.uint64(0) and _slot(slots, slot, S_STATE) != np.uint64(STOPPED):
        at = waiting + i64(link) - 1
        link = load_u64(at)
        kind, op = load_u64(at + 24) >> np.uint64(8), load_u64(at + 24) & np.uint64(0xFF)
        if kind != np.uint64(wanted):
            continue
        start, commit, size = load_u64(at + 8), load_u64(at + 16), i64(load_u64(at + 32))
        h = _row_hash(slot, start, at + WAIT_RECORD, size)
        found = _find_open(table, h, slot, start, at + WAIT_RECORD, size, rows, row_slots, arena)
        if found < 0:
            continue
        if wanted == 2 and _passes(slots, slot, commit, notes, counts):
            ref = _word(table, 2 * found + 1)
            _emit_open(out, counts, _slot(slots, slot, S_SPAN), commit, start, op, ref, rows, arena)
        _forget(table, found, rows, slots, arena, counts)


@inline
def _inside(slots: int, slot: int, key: int, size: int) -> bool:
    low, low_size = (
        i64(_slot(slots, slot, S_FROM)),
        i64(_slot(slots, slot, S_FROM_SIZE)),
    )
    if compare_bytes(low, low_size, key, size) > 0:
        return False
    high, high_size = (
        i64(_slot(slots, slot, S_TO)),
        i64(_slot(slots, slot, S_TO_SIZE)),
    )
    return high_size == 0 or compare_bytes(key, size, high, high_size) < 0


@inline
def _prewrite(
    slots: int,
    slot: int,
    row: int,
    rows: int,
    row_slots: int,
    table: int,
    arena: int,
    kept: int,
    counts: int,
) -> None:
    start, key, size = (
        _row(rows, row, START),
        i64(_row(rows, row, KEY)),
        i64(_row(rows, row, KEY_SIZE)),
    )
    h = _row_hash(slot, start, key, size)
    found = _find_open(table, h, slot, start, key, size, rows, row_slots, arena)
    if found >= 0:
        ref = _word(table, 2 * found + 1)
        if ref & _IN_MESSAGE:
            generation = _row(rows, i64(ref & ~_IN_MESSAGE), GENERATION)
        else:
            generation = _record(arena, ref, R_GENERATION)
        if _row(rows, row, VALUE_SIZE) == np.uint64(0) or _row(rows, row, GENERATION) < generation:
            return
        _forget(table, found, rows, slots, arena, counts)
    _put_row(rows, row, HASH, h)
    _put_int(row_slots, row, slot)
    _insert(table, h, _IN_MESSAGE | np.uint64(row))
    _put_int(counts, C_OPEN_ROWS, _int(counts, C_OPEN_ROWS) + 1)
    _put_int(kept, _int(counts, C_KEPT), row)
    _put_int(counts, C_KEPT, _int(counts, C_KEPT) + 1)


@inline
def _commit(
    slots: int,
    slot: int,
    row: int,
    rows: int,
    row_slots: int,
    table: int,
    arena: int,
    waiting: int,
    out: int,
    notes: int,
    counts: int,
) -> None:
    start, key, size = (
        _row(rows, row, START),
        i64(_row(rows, row, KEY)),
        i64(_row(rows, row, KEY_SIZE)),
    )
    h = _row_hash(slot, start, key, size)
    found = _find_open(table, h, slot, start, key, size, rows, row_slots, arena)
    scanning = _slot(slots, slot, S_STATE) == np.uint64(SCANNING)
    if found >= 0 and scanning:
        ref = _word(table, 2 * found + 1)
        if ref & _IN_MESSAGE:
            r = i64(ref & ~_IN_MESSAGE)
            poor = _row(rows, r, VALUE_SIZE) == np.uint64(0) or _row(rows, r, GENERATION) > np.uint64(0)
        else:
            poor = _record(arena, ref, R_VALUE_SIZE) == np.uint64(0) or _record(
                arena, ref, R_GENERATION
            ) > np.uint64(0)
        if poor:
            found = -1
    if found < 0:
        if scanning:
            _wait(slots, slot, row, rows, waiting, counts)
        else:
            _violate(slots, slot, 2, _row(rows, row, COMMIT), notes, counts)
        return
    if _passes(slots, slot, _row(rows, row, COMMIT), notes, counts):
        _emit_open(
            out,
            counts,
            _slot(slots, slot, S_SPAN),
            _row(rows, row, COMMIT),
            start,
            _row(rows, row, OP),
            _word(table, 2 * found + 1),
            rows,
            arena,
        )
    _forget(table, found, rows, slots, arena, counts)


@inline
def _match_row(
    slots: int,
    slot: int,
    row: int,
    rows: int,
    row_slots: int,
    table: int,
    arena: int,
    waiting: int,
    out: int,
    notes: int,
    kept: int,
    counts: int,
) -> None:
    kind = _row(rows, row, KIND)
    if kind == np.uint64(5):
        if _slot(slots, slot, S_STATE) == np.uint64(SCANNING):
            _put_slot(slots, slot, S_STATE, np.uint64(LIVE))
            _note(notes, counts, NOTE_INITIALIZED, slot, np.uint64(0), np.uint64(0))
            _replay(slots, slot, 2, rows, row_slots, table, arena, waiting, out, notes, counts)
            _replay(slots, slot, 3, rows, row_slots, table, arena, waiting, out, notes, counts)
            _put_slot(slots, slot, S_HEAD, np.uint64(0))
            _put_slot(slots, slot, S_TAIL, np.uint64(0))
            _put_slot(slots, slot, S_WAITING, np.uint64(0))
        return
    if not _inside(slots, slot, i64(_row(rows, row, KEY)), i64(_row(rows, row, KEY_SIZE))):
        return
    data = kind == np.uint64(1) or kind == np.uint64(2) or kind == np.uint64(4)
    if data and _row(rows, row, OP) != np.uint64(PUT) and _row(rows, row, OP) != np.uint64(DELETE):
        _violate(slots, slot, 4, _row(rows, row, COMMIT), notes, counts)
    elif kind == np.uint64(1):
        _prewrite(slots, slot, row, rows, row_slots, table, arena, kept, counts)
    elif kind == np.uint64(2):
        _commit(slots, slot, row, rows, row_slots, table, arena, waiting, out, notes, counts)
    elif kind == np.uint64(4):
        if _passes(slots, slot, _row(rows, row, COMMIT), notes, counts):
            _emit_open(
                out,
                counts,
                _slot(slots, slot, S_SPAN),
                _row(rows, row, COMMIT),
                _row(rows, row, START),
                _row(rows, row, OP),
                _IN_MESSAGE | np.uint64(row),
                rows,
                arena,
            )
    elif kind == np.uint64(3):
        if _slot(slots, slot, S_STATE) == np.uint64(SCANNING):
            _wait(slots, slot, row, rows, waiting, counts)
            return
        start, key, size = (
            _row(rows, row, START),
            i64(_row(rows, row, KEY)),
            i64(_row(rows, row, KEY_SIZE)),
        )
        h = _row_hash(slot, start, key, size)
        found = _find_open(table, h, slot, start, key, size, rows, row_slots, arena)
        if found >= 0:
            _forget(table, found, rows, slots, arena, counts)
    else:
        _violate(slots, slot, 3, _row(rows, row, COMMIT), notes, counts)


@inline
def _resolve(slots: int, slot: int, ts: Any, moved: int, counts: int) -> None:
    if slot < 0 or _slot(slots, slot, S_STATE) != np.uint64(LIVE) or ts <= _slot(slots, slot, S_RESOLVED):
        return
    _put_slot(slots, slot, S_RESOLVED, ts)
    _put_int(moved, _int(counts, C_MOVED) % MOVED_ROOM, slot)
    _put_int(counts, C_MOVED, _int(counts, C_MOVED) + 1)


@inline
def _resolve_many(events: int, e: int, index: int, slots: int, moved: int, counts: int) -> None:
    at = i64(_event_word(events, e, E_FIRST))
    end = at + i64(_event_word(events, e, E_SIZE))
    ts, request = _event_word(events, e, E_TS), _event_word(events, e, E_REQUEST)
    while at < end:
        tag, at = _varint(at, end)
        wire = i64(tag & np.uint64(7))
        if tag == np.uint64(10):
            size, at = _varint(at, end)
            stop = at + i64(size)
            while at < stop:
                region, at = _varint(at, stop)
                _resolve(slots, _find_slot(index, slots, region, request), ts, moved, counts)
        elif tag == np.uint64(8):
            region, at = _varint(at, end)
            _resolve(slots, _find_slot(index, slots, region, request), ts, moved, counts)
        else:
            at = _skip(wire, at, end)


@kernel
def match(
    events: int,
    event_count: int,
    rows: int,
    row_slots: int,
    slots: int,
    index: int,
    table: int,
    arena: int,
    waiting: int,
    out: int,
    notes: int,
    moved: int,
    kept: int,
    counts: int,
) -> bool:
    """Apply scanned events in order. See COUNT_WORDS for `counts`. False: the table is half full.

    It stays small as long as few prewrites are open, which keeps it in the cache; the caller doubles it with
    `rehash` and calls again, and the work goes on where it stopped.

    Room that the caller provides: `out` rows + waiting rows, `notes` events + slots, `kept` rows; the
    waiting arena for all rows' keys and headers; the table at least twice its entries and the rows. When
    `moved` overflows (counts[C_MOVED] > its length) every slot may have moved.
    """
    room = (_mask(table) + 1) // 2
    for e in range(_int(counts, C_EVENT), event_count):
        kind = i64(_event_word(events, e, E_KIND))
        if kind == RESOLVED_MANY:
            _resolve_many(events, e, index, slots, moved, counts)
            continue
        slot = _find_slot(
            index,
            slots,
            _event_word(events, e, E_REGION),
            _event_word(events, e, E_REQUEST),
        )
        if slot < 0:
            continue
        if kind == RESOLVED:
            _resolve(slots, slot, _event_word(events, e, E_TS), moved, counts)
        elif kind == ERROR:
            if _slot(slots, slot, S_STATE) != np.uint64(STOPPED):
                _put_slot(slots, slot, S_STATE, np.uint64(STOPPED))
                _note(
                    notes,
                    counts,
                    NOTE_ERROR,
                    slot,
                    _event_word(events, e, E_FIRST),
                    _event_word(events, e, E_SIZE),
                )
        elif kind == ROWS:
            for row in range(
                max(i64(_event_word(events, e, E_FIRST)), _int(counts, C_ROW)),
                i64(_event_word(events, e, E_END)),
            ):
                if _slot(slots, slot, S_STATE) == np.uint64(STOPPED):
                    break
                if _int(counts, C_OPEN_ROWS) >= room:
                    _put_int(counts, C_EVENT, e)
                    _put_int(counts, C_ROW, row)
                    return False
                _match_row(slots, slot, row, rows, row_slots, table, arena, waiting, out, notes, kept, counts)
    return True


@kernel
def rehash(old: int, new: int) -> None:
    """Move all entries into a larger, empty table."""
    for at in range(_mask(old) + 1):
        if _word(old, 2 * at + 1) != np.uint64(0):
            _insert(new, _word(old, 2 * at + 0), _word(old, 2 * at + 1))


@kernel
def keep(rows: int, row_slots: int, slots: int, table: int, arena: int, kept: int, counts: int) -> None:
    """Copy prewrites that are still open from the messages into the arena, which has room for them."""
    mask = _mask(table)
    for i in range(_int(counts, C_KEPT)):
        row = _int(kept, i)
        h, ref = _row(rows, row, HASH), _IN_MESSAGE | np.uint64(row)
        if h == np.uint64(0):
            continue
        at = i64((h >> np.uint64(1)) & np.uint64(mask))
        while _word(table, 2 * at + 0) != h or _word(table, 2 * at + 1) != ref:
            at = (at + 1) & mask
        offset = _int(counts, C_ARENA)
        to = arena + offset
        store_u64(to + 8 * R_START, _row(rows, row, START))
        store_u64(to + 8 * R_SLOT, np.uint64(_int(row_slots, row)))
        store_u64(to + 8 * R_LIVE, np.uint64(1))
        store_u64(to + 8 * R_GENERATION, _row(rows, row, GENERATION))
        store_u64(to + 8 * R_HASH, h)
        end = to + RECORD
        for part in range(3):
            size = i64(_row(rows, row, KEY_SIZE + part))
            store_u64(to + 8 * (R_KEY_SIZE + part), np.uint64(size))
            copy_exact(end, i64(_row(rows, row, KEY + part)), size)
            end += size
        _put(table, 2 * at + 1, np.uint64(offset))
        total = (end - to + 7) & ~7
        _put_int(counts, C_ARENA, offset + total)
        _put_int(counts, C_LIVE, _int(counts, C_LIVE) + total)
        _put_slot(
            slots,
            _int(row_slots, row),
            S_OPEN,
            _slot(slots, _int(row_slots, row), S_OPEN) + np.uint64(total),
        )


@kernel
def compact(
    old: int,
    new: int,
    table: int,
    slots: int,
    slot_count: int,
    drop_resolved: int,
    victim: int,
    counts: int,
) -> None:
    """Rewrite the arena with the records of running slots; rebuild `table`, which is empty.

    With `drop_resolved` records that started below their slot's resolved ts go (nothing pins them any
    more), and those of slot `victim` (-1: none). Should such a commit come after all, the registration is
    made anew.
    """
    for slot in range(slot_count):
        _put_slot(slots, slot, S_OPEN, np.uint64(0))
    at, end, to = RECORD, _int(counts, C_ARENA), RECORD
    entries = 0
    while at < end:
        size = _record_bytes(old, np.uint64(at))
        slot = i64(_record(old, np.uint64(at), R_SLOT))
        state = _slot(slots, slot, S_STATE)
        stays = _record(old, np.uint64(at), R_LIVE) != np.uint64(0) and slot != victim
        stays = stays and (state == np.uint64(SCANNING) or state == np.uint64(LIVE))
        if drop_resolved != 0:
            stays = stays and _record(old, np.uint64(at), R_START) >= _slot(slots, slot, S_RESOLVED)
        if stays:
            copy_exact(new + to, old + at, size)
            _insert(table, _record(old, np.uint64(at), R_HASH), np.uint64(to))
            _put_slot(slots, slot, S_OPEN, _slot(slots, slot, S_OPEN) + np.uint64(size))
            entries += 1
            to += size
        at += size
    _put_int(counts, C_ARENA, to)
    _put_int(counts, C_LIVE, to - RECORD)
    _put_int(counts, C_OPEN_ROWS, entries)


@kernel
def compact_waiting(old: int, new: int, slots: int, slot_count: int, counts: int) -> None:
    """Rewrite the waiting arena with the rows of slots that still scan, in their order."""
    for slot in range(slot_count):
        _put_slot(slots, slot, S_HEAD, np.uint64(0))
        _put_slot(slots, slot, S_TAIL, np.uint64(0))
        _put_slot(slots, slot, S_WAITING, np.uint64(0))
    at, end, to = 0, _int(counts, C_WAITING), 0
    while at < end:
        size = (i64(load_u64(old + at + 32)) + WAIT_RECORD + 7) & ~7
        slot = i64(load_u64(old + at + 40))
        if _slot(slots, slot, S_STATE) == np.uint64(SCANNING):
            copy_exact(new + to, old + at, size)
            store_u64(new + to, np.uint64(0))
            if _slot(slots, slot, S_HEAD) == np.uint64(0):
                _put_slot(slots, slot, S_HEAD, np.uint64(to + 1))
            else:
                store_u64(new + i64(_slot(slots, slot, S_TAIL)) - 1, np.uint64(to + 1))
            _put_slot(slots, slot, S_TAIL, np.uint64(to + 1))
            _put_slot(
                slots,
                slot,
                S_WAITING,
                _slot(slots, slot, S_WAITING) + np.uint64(1),
            )
            to += size
        at += size
    _put_int(counts, C_WAITING, to)


# --- gather ------------------------------------------------------------------------------------------


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


def hash_table(places: int) -> U64:
    """An empty table of open prewrites; `places` is a power of two. The kernels take `table_address`."""
    table = np.zeros((places + 1, 2), dtype=np.uint64)
    table[0, 1] = places - 1
    return table


def table_address(table: U64) -> int:
    """Where a table's first place is; the word before it holds the mask."""
    return address(table) + 16


def slot_index(places: int) -> I64:
    """An empty index of slots; `places` is a power of two. The kernels take `index_address`."""
    index = np.full(places + 1, -1, dtype=np.int64)
    index[0] = places - 1
    return index


def index_address(index: I64) -> int:
    """Where an index's first place is; the word before it holds the mask."""
    return address(index) + 8


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    messages, sizes, spare = np.zeros((0, 2), np.int64), np.zeros(4, np.int64), np.zeros(1024, np.uint64)
    out, at = np.zeros((1, OUT_WORDS), np.uint64), address(spare)
    index, table, other = slot_index(4), hash_table(4), hash_table(4)
    scan(messages, at, 1, at, 1, at)
    index_slot(index_address(index), at, 0)
    match(at, 0, at, at, at, index_address(index), table_address(table), at, at, at, at, at, at, at)
    keep(at, at, at, table_address(table), at, at, at)
    rehash(table_address(table), table_address(other))
    compact(at, at, table_address(table), at, 0, 0, -1, at)
    compact_waiting(at, at, at, 0, at)
    measure(out, 0, 0, 0, 1, 1, sizes)
    gather(out, 0, 0, 0, np.full(9, at, np.int64))
