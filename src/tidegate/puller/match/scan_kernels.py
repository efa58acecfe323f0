"""Compiled scan of ChangeDataEvent messages in protobuf's wire format; the messages are not copied.

`scan` fills `events` and `rows`, tables of u64 words that point into the messages. It reads no byte outside a
message. A message that is not well-formed, or that has groups, which cdcpb never uses, is bad.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tidegate.kernel import address, cttz64, inline, kernel, load_u8, load_u64, prefetch
from tidegate.proto.cdcpb_pb2 import ChangeDataEvent, Event, ResolvedTs
from tidegate.puller.match.open_kernels import row_hash
from tidegate.puller.match.table_kernels import (
    BAD,
    COMMIT,
    E_END,
    E_FIRST,
    E_KIND,
    E_REGION,
    E_REQUEST,
    E_SIZE,
    E_TS,
    ERROR,
    EVENT_WORDS,
    FULL,
    GENERATION,
    GOOD,
    HASH,
    I64,
    KEY,
    KEY_SIZE,
    KIND,
    OLD,
    OLD_SIZE,
    OP,
    OTHER,
    RESOLVED,
    RESOLVED_MANY,
    ROW_WORDS,
    ROWS,
    SCANNED_EVENTS,
    SCANNED_MESSAGE,
    SCANNED_ROWS,
    START,
    VALUE,
    VALUE_SIZE,
    event_word,
    i64,
    put_event_word,
    put_int,
    put_row_word,
    row_word,
)

SLACK = 32
"""The bytes that must be readable after a row's end for the fast scan of a row."""

CALLED = 2048
"""The message's bytes are prefetched this far ahead of a row, and at most so many of them for one row."""
CACHE_LINE = 64
"""Bytes."""


# Fields of cdcpb, as messages hold them: number and wire type.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""The wire types of protobuf, except groups, which cdcpb never uses."""
TAG_FIELD, TAG_WIRE = np.uint64(3), np.uint64(7)
"""A tag holds the field's number above its lowest three bits, which are the wire type."""


def _field(message: Any, name: str) -> int:
    """The number of a message's field."""
    return int(message.DESCRIPTOR.fields_by_name[name].number)


def _tag(message: Any, name: str, wire: int) -> Any:
    """The tag of a field: its number and wire type, as encoded before its value."""
    return np.uint64(_field(message, name) << int(TAG_FIELD) | wire)


_MALFORMED, _NO_ROOM = -1, -2
"""Results of the scans below, instead of a number of rows."""
LEAST_TAG = np.uint64(8)
MOST_TAG = np.uint64(0xFFFFFFFF)
"""The smallest tag (field 1, a varint) and the largest (32 bits); other tags are malformed."""
EVENTS_TAG = _tag(ChangeDataEvent, "events", BYTES)
RESOLVED_TAG = _tag(ChangeDataEvent, "resolved_ts", BYTES)
ENTRIES_TAG = _tag(Event.Entries, "entries", BYTES)
REGIONS_TAG, REGION_TAG = _tag(ResolvedTs, "regions", BYTES), _tag(ResolvedTs, "regions", VARINT)
"""The regions of a ResolvedTs: packed, or one by one."""
START_TAG, COMMIT_TAG = _tag(Event.Row, "start_ts", VARINT), _tag(Event.Row, "commit_ts", VARINT)
KIND_TAG, OP_TAG = _tag(Event.Row, "type", VARINT), _tag(Event.Row, "op_type", VARINT)
KEY_TAG, VALUE_TAG = _tag(Event.Row, "key", BYTES), _tag(Event.Row, "value", BYTES)
OLD_TAG = _tag(Event.Row, "old_value", BYTES)
_ROW_START, _ROW_COMMIT = _field(Event.Row, "start_ts"), _field(Event.Row, "commit_ts")
_ROW_KIND, _ROW_OP = _field(Event.Row, "type"), _field(Event.Row, "op_type")
_ROW_KEY, _ROW_OLD = _field(Event.Row, "key"), _field(Event.Row, "old_value")
_ROW_EXPIRY, _ROW_GENERATION = _field(Event.Row, "expire_ts_unix_secs"), _field(Event.Row, "generation")
_REGION, _REQUEST = _field(Event, "region_id"), _field(Event, "request_id")
_ENTRIES, _ERROR, _RESOLVED = _field(Event, "entries"), _field(Event, "error"), _field(Event, "resolved_ts")
_ADMIN, _LONG = _field(Event, "admin"), _field(Event, "long_txn")
_TS, _RESOLVED_REQUEST, _REGIONS = (_field(ResolvedTs, name) for name in ("ts", "request_id", "regions"))


class ScanTables(NamedTuple):
    """The tables that `scan` fills: their addresses, and for how many records they have room."""

    events: int
    event_room: int
    rows: int
    row_room: int


_MORE: Final = 0x80
"""The bit of a varint's byte that is set if another byte follows. The last byte is below it."""
_MORE_WORD: Final = np.uint64(_MORE)


@inline
def read_varint(at: int, end: int) -> tuple[Any, Any]:
    """The varint at `at` and the address after it; address 0 if it is cut off or longer than 10 bytes."""
    if at < end and load_u8(at) < _MORE:
        return np.uint64(load_u8(at)), at + 1
    # A varint has at most ten bytes, so nothing behind `end` is read.
    if end - at >= 10:
        return _wide_varint(at)
    value, shift = np.uint64(0), 0
    # The tenth byte is shifted by 63: its higher bits are lost, as in protobuf.
    while at < end and shift < 70:
        byte = np.uint64(load_u8(at))
        at += 1
        value |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < _MORE_WORD:
            return value, at
        shift += 7
    return np.uint64(0), 0


@inline
def _wide_varint(at: int) -> tuple[Any, Any]:
    """As `read_varint`, if ten bytes are readable: eight groups of seven bits are joined at once."""
    word: Any = load_u64(at)
    # The first byte without a continuation bit is the last of the varint.
    stops = ~word & np.uint64(0x8080808080808080)
    size = 8
    if stops != np.uint64(0):
        size = i64(cttz64(stops) >> np.uint64(3)) + 1
        # The size is 1 to 8, so the shift is below 64 and defined.
        word &= np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - 8 * size)
    # Drop the continuation bits, then join neighbours: 8 groups of 7 bits to 4 of 14, 2 of 28, 1 of 56.
    word &= np.uint64(0x7F7F7F7F7F7F7F7F)
    word = (word & np.uint64(0x007F007F007F007F)) | (word & np.uint64(0x7F007F007F007F00)) >> np.uint64(1)
    word = (word & np.uint64(0x00003FFF00003FFF)) | (word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
    word = (word & np.uint64(0x000000000FFFFFFF)) | (word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
    if stops != np.uint64(0):
        return word, at + size
    ninth, tenth = np.uint64(load_u8(at + 8)), np.uint64(load_u8(at + 9))
    word |= (ninth & np.uint64(0x7F)) << np.uint64(56)
    if ninth < _MORE_WORD:
        return word, at + 9
    if tenth < _MORE_WORD:
        return word | (tenth << np.uint64(63)), at + 10
    return np.uint64(0), 0


@inline
def skip_field(wire: int, at: int, end: int) -> Any:
    """The address after an unknown field's value; 0 if it is malformed or a group."""
    if wire == VARINT:
        _, after = read_varint(at, end)
        return after
    if wire == BYTES:
        size, after = read_varint(at, end)
        # Compared before it is added: a size near 2**64 would wrap the address around.
        if after == 0 or size > np.uint64(end - after):
            return 0
        return after + i64(size)
    width = 8 if wire == FIXED64 else 4
    if (wire != FIXED64 and wire != FIXED32) or end - at < width:
        return 0
    return at + width


@inline
def _size(at: int) -> tuple[Any, Any]:
    """The length at `at` and the address after it; ten bytes must be readable."""
    if load_u8(at) < _MORE:
        return np.uint64(load_u8(at)), at + 1
    return _wide_varint(at)


@inline
def _scan_usual_row(at: int, end: int, rows: int, row: int) -> bool:
    """Scan an Event.Row whose fields are in protobuf's order, without unknown fields.

    SLACK bytes after its end must be readable. Returns False if the row has another form or is malformed;
    then the row's words are invalid.
    """
    zero = np.uint64(0)
    start, commit, kind, op = zero, zero, zero, zero
    key, value, old = at, at, at
    key_size, value_size, old_size = zero, zero, zero
    # Nothing is compared with `end` on the way here: two numbers with their tags have at most 22 bytes,
    # less than SLACK, and one comparison follows.
    if load_u8(at) == START_TAG:
        start, at = _wide_varint(at + 1)
    # 0 means that the varint was malformed; it is no address to read from.
    if at != 0 and load_u8(at) == COMMIT_TAG:
        commit, at = _wide_varint(at + 1)
    if at == 0 or at > end:
        return False
    if load_u8(at) == KIND_TAG:
        kind, at = np.uint64(load_u8(at + 1)), at + 2
    if load_u8(at) == OP_TAG:
        op, at = np.uint64(load_u8(at + 1)), at + 2
    # A kind or operation of more than one byte has another form; the general scan reads it.
    if at > end or kind >= _MORE_WORD or op >= _MORE_WORD:
        return False
    if load_u8(at) == KEY_TAG:
        key_size, key = _size(at + 1)
        if key == 0 or key > end or key_size > np.uint64(end - key):
            return False
        at = key + i64(key_size)
    if load_u8(at) == VALUE_TAG:
        value_size, value = _size(at + 1)
        if value == 0 or value > end or value_size > np.uint64(end - value):
            return False
        at = value + i64(value_size)
    if load_u8(at) == OLD_TAG:
        old_size, old = _size(at + 1)
        if old == 0 or old > end or old_size > np.uint64(end - old):
            return False
        at = old + i64(old_size)
    # Also false if a field was cut off, or comes in another order: then the row has bytes left.
    if at != end:
        return False
    put_row_word(rows, row, START, start)
    put_row_word(rows, row, COMMIT, commit)
    put_row_word(rows, row, KEY, np.uint64(key))
    put_row_word(rows, row, VALUE, np.uint64(value))
    put_row_word(rows, row, OLD, np.uint64(old))
    put_row_word(rows, row, KEY_SIZE, key_size)
    put_row_word(rows, row, VALUE_SIZE, value_size)
    put_row_word(rows, row, OLD_SIZE, old_size)
    put_row_word(rows, row, KIND, kind)
    put_row_word(rows, row, OP, op)
    # A generation has a higher number than these fields, so a row with one has bytes left and is not here.
    put_row_word(rows, row, GENERATION, zero)
    put_row_word(rows, row, HASH, row_hash(start, key, i64(key_size)))
    return True


@inline
def _scan_row(at: int, end: int, rows: int, row: int) -> bool:
    """Scan any Event.Row: scalars as values, bytes as address and size. Returns False if it is malformed.

    A raw row has no old value; the bytes of its expiry (a varint) take the place of the old value.
    """
    # The fields that are missing are 0, as in protobuf. The row may hold the words of an earlier portion.
    for word in range(ROW_WORDS):
        put_row_word(rows, row, word, np.uint64(0))
    while at < end:
        tag, at = read_varint(at, end)
        if at == 0 or tag < LEAST_TAG or tag > MOST_TAG:
            return False
        field, wire = i64(tag >> TAG_FIELD), i64(tag & TAG_WIRE)
        if wire == VARINT:
            first = at
            value, at = read_varint(at, end)
            if at == 0:
                return False
            if field == _ROW_START:
                put_row_word(rows, row, START, value)
            elif field == _ROW_COMMIT:
                put_row_word(rows, row, COMMIT, value)
            elif field == _ROW_KIND:
                # Enumerations have 32 bits in protobuf; a parser drops the others.
                put_row_word(rows, row, KIND, value & np.uint64(0xFFFFFFFF))
            elif field == _ROW_OP:
                put_row_word(rows, row, OP, value & np.uint64(0xFFFFFFFF))
            elif field == _ROW_GENERATION:
                put_row_word(rows, row, GENERATION, value)
            # An expiry of 0 is protobuf's default: the row does not expire.
            elif field == _ROW_EXPIRY and value != np.uint64(0):
                put_row_word(rows, row, OLD, np.uint64(first))
                put_row_word(rows, row, OLD_SIZE, np.uint64(at - first))
        elif wire == BYTES:
            size, at = read_varint(at, end)
            if at == 0 or size > np.uint64(end - at):
                return False
            if _ROW_KEY <= field <= _ROW_OLD:
                # Key, value and old value follow each other in cdcpb and in ROW.
                put_row_word(rows, row, KEY + field - _ROW_KEY, np.uint64(at))
                put_row_word(rows, row, KEY_SIZE + field - _ROW_KEY, size)
            at += i64(size)
        else:
            at = skip_field(wire, at, end)
            if at == 0:
                return False
    key, size = i64(row_word(rows, row, KEY)), i64(row_word(rows, row, KEY_SIZE))
    put_row_word(rows, row, HASH, row_hash(row_word(rows, row, START), key, size))
    return True


@inline
def _scan_entries(at: int, end: int, last: int, tables: ScanTables, row: int) -> int:
    """Scan Event.Entries into rows from `row` on. Returns the next row, _MALFORMED or _NO_ROOM.

    `last`: the end of the message.
    """
    rows = tables.rows
    while at < end:
        tag, at = read_varint(at, end)
        if at == 0 or tag < LEAST_TAG or tag > MOST_TAG:
            return _MALFORMED
        if tag != ENTRIES_TAG:
            at = skip_field(i64(tag & TAG_WIRE), at, end)
            if at == 0:
                return _MALFORMED
            continue
        size, at = read_varint(at, end)
        if at == 0 or size > np.uint64(end - at):
            return _MALFORMED
        if row >= tables.row_room:
            return _NO_ROOM
        stop = at + i64(size)
        # Each line once: rows follow each other, and where the next one begins is known only from the size of
        # this one, so the processor cannot guess it. Behind a large row only the last part is needed.
        for line in range(max(at, stop - CALLED), stop, CACHE_LINE):
            prefetch(line + CALLED)
        # The last rows of a message lack the SLACK, so they take the general scan.
        usual = last - stop >= SLACK and _scan_usual_row(at, stop, rows, row)
        if not usual and not _scan_row(at, stop, rows, row):
            return _MALFORMED
        row += 1
        at = stop
    return row


@inline
def _scan_event(at: int, end: int, last: int, tables: ScanTables, event: int, row: int) -> int:
    """Scan one Event into event number `event` and rows from `row` on. The last member of the oneof wins, as
    in protobuf.

    Returns the next row, _MALFORMED or _NO_ROOM.
    """
    events = tables.events
    first, start = row, at
    for word in range(EVENT_WORDS):
        put_event_word(events, event, word, np.uint64(0))
    put_event_word(events, event, E_KIND, np.uint64(OTHER))
    while at < end:
        tag, at = read_varint(at, end)
        if at == 0 or tag < LEAST_TAG or tag > MOST_TAG:
            return _MALFORMED
        field, wire = i64(tag >> TAG_FIELD), i64(tag & TAG_WIRE)
        if wire == VARINT:
            value, at = read_varint(at, end)
            if at == 0:
                return _MALFORMED
            if field == _REGION:
                put_event_word(events, event, E_REGION, value)
            elif field == _REQUEST:
                put_event_word(events, event, E_REQUEST, value)
            elif field == _RESOLVED:
                put_event_word(events, event, E_KIND, np.uint64(RESOLVED))
                put_event_word(events, event, E_TS, value)
        elif wire == BYTES:
            size, at = read_varint(at, end)
            if at == 0 or size > np.uint64(end - at):
                return _MALFORMED
            if field == _ENTRIES:
                # Another member of the oneof came in between, so the rows before it no longer count.
                # Without one, protobuf merges the two lists.
                if event_word(events, event, E_KIND) != np.uint64(ROWS):
                    row = first
                put_event_word(events, event, E_KIND, np.uint64(ROWS))
                row = _scan_entries(at, at + i64(size), last, tables, row)
                if row < 0:
                    return row
            elif field == _ERROR:
                put_event_word(events, event, E_KIND, np.uint64(ERROR))
            elif field == _ADMIN or field == _LONG:
                put_event_word(events, event, E_KIND, np.uint64(OTHER))
            at += i64(size)
        else:
            at = skip_field(wire, at, end)
            if at == 0:
                return _MALFORMED
    if event_word(events, event, E_KIND) == np.uint64(ROWS):
        put_event_word(events, event, E_FIRST, np.uint64(first))
        put_event_word(events, event, E_END, np.uint64(row))
    else:
        # If rows were scanned, another member of the oneof replaced them; the next event takes their places.
        row = first
        if event_word(events, event, E_KIND) == np.uint64(ERROR):
            put_event_word(events, event, E_FIRST, np.uint64(start))
            put_event_word(events, event, E_SIZE, np.uint64(end - start))
    return row


@inline
def _scan_resolved(at: int, end: int, events: int, event: int) -> bool:
    """Scan a ResolvedTs into events[event]; `match` reads its list of regions. False: it is malformed."""
    for word in range(EVENT_WORDS):
        put_event_word(events, event, word, np.uint64(0))
    put_event_word(events, event, E_KIND, np.uint64(RESOLVED_MANY))
    put_event_word(events, event, E_FIRST, np.uint64(at))
    put_event_word(events, event, E_SIZE, np.uint64(end - at))
    while at < end:
        tag, at = read_varint(at, end)
        if at == 0 or tag < LEAST_TAG or tag > MOST_TAG:
            return False
        field, wire = i64(tag >> TAG_FIELD), i64(tag & TAG_WIRE)
        if wire == VARINT:
            value, at = read_varint(at, end)
            if at == 0:
                return False
            if field == _TS:
                put_event_word(events, event, E_TS, value)
            elif field == _RESOLVED_REQUEST:
                put_event_word(events, event, E_REQUEST, value)
        elif wire == BYTES and field == _REGIONS:
            size, at = read_varint(at, end)
            if at == 0 or size > np.uint64(end - at):
                return False
            stop = at + i64(size)
            # `resolve_many` reads the same bytes unchecked, so they are checked here.
            while at < stop:
                _, at = read_varint(at, stop)
                if at == 0:
                    return False
        else:
            at = skip_field(wire, at, end)
            if at == 0:
                return False
    return True


@kernel
def scan(messages: I64, tables: ScanTables, counts: int) -> int:
    """Scan ChangeDataEvent messages; `messages` holds an address and a size for each.

    `counts` gets the layout SCANNED. Returns GOOD, BAD or FULL; after BAD or FULL the tables are invalid.

    Reads the messages, and never a byte outside them. Writes the two tables and `counts`. Bound: the room of
    the tables; after FULL the caller doubles them and calls again. Twin: none of ours, but protobuf's parser
    (tests/puller/match/test_scan.py). Trick: a row whose fields are in protobuf's order is scanned without a
    loop over its fields.
    """
    e, n = 0, 0
    for m in range(messages.shape[0]):
        at, end = messages[m, 0], messages[m, 0] + messages[m, 1]
        # Before the message is read, because every return below may be in the middle of it.
        put_int(counts, SCANNED_MESSAGE, m)
        while at < end:
            tag, at = read_varint(at, end)
            if at == 0 or tag < LEAST_TAG or tag > MOST_TAG:
                return BAD
            if tag != EVENTS_TAG and tag != RESOLVED_TAG:
                at = skip_field(i64(tag & TAG_WIRE), at, end)
                if at == 0:
                    return BAD
                continue
            size, at = read_varint(at, end)
            if at == 0 or size > np.uint64(end - at):
                return BAD
            if e >= tables.event_room:
                return FULL
            if tag == EVENTS_TAG:
                n = _scan_event(at, at + i64(size), end, tables, e, n)
                if n < 0:
                    return FULL if n == _NO_ROOM else BAD
            elif not _scan_resolved(at, at + i64(size), tables.events, e):
                return BAD
            e += 1
            at += i64(size)
    put_int(counts, SCANNED_EVENTS, e)
    put_int(counts, SCANNED_ROWS, n)
    return GOOD


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    spare = np.zeros(1024, np.uint64)
    at = address(spare)
    scan(np.zeros((0, 2), np.int64), ScanTables(at, 1, at, 1), at)
