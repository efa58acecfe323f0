"""A stream's registrations in compiled code: finding them by ids, and checking keys against ranges.

These kernels also raise their resolved ts and write the notes for their owners. A registration is given by
its number, the index of its line in the table `registrations`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel import (
    address,
    compare_bytes,
    inline,
    kernel,
    load_u16,
    prefetch,
)
from tidegate.puller.match.bucket_kernels import bucket_of, hash_table, table_address
from tidegate.puller.match.open_kernels import with_registration
from tidegate.puller.match.scan_kernels import REGION_TAG, REGIONS_TAG, TAG_WIRE, read_varint, skip_field
from tidegate.puller.match.spill_kernels import log_tick
from tidegate.puller.match.table_kernels import (
    C_MOVED,
    C_NOTES,
    E_END,
    E_FIRST,
    E_KIND,
    E_REGION,
    E_REGISTRATION,
    E_REQUEST,
    E_SIZE,
    E_TS,
    HASH,
    LIVE,
    MIXER,
    MOVED_ROOM,
    MULTIPLIER,
    N_A,
    N_B,
    N_KIND,
    N_REGISTRATION,
    NOTE_VIOLATED,
    PLACE,
    REG_DUE,
    REG_FROM,
    REG_FROM_SIZE,
    REG_LEAST,
    REG_RECORDS,
    REG_REGION,
    REG_REQUEST,
    REG_RESOLVED,
    REG_SPILLED,
    REG_STATE,
    REG_TO,
    REG_TO_SIZE,
    RESOLVED_MANY,
    ROW_REGISTRATION,
    ROWS,
    STOPPED,
    Tables,
    event_word,
    get_int,
    i64,
    index_address,
    put_event_word,
    put_int,
    put_note_word,
    put_registration_word,
    put_row_word,
    registration_index,
    registration_word,
    row_word,
    table_mask,
)

_MARK_AT = 9
"""The offset in a table's key, behind `t` and the id, of the mark that says what the key is of."""
_RECORD_MARK = int.from_bytes(b"_r", "little")


@inline
def _id_hash(region: Any, request: Any) -> Any:
    """The hash of (region, request), for the index."""
    # Multiplied before the XOR: both ids are small numbers, so the XOR of the ids alone is often the same.
    h = (region ^ (request * MIXER)) * MULTIPLIER
    return h ^ (h >> np.uint64(32))


@inline
def find_registration(index: int, registrations: int, region: Any, request: Any) -> int:
    """The latest registration of (request, region), or -1."""
    mask = table_mask(index)
    at = i64(_id_hash(region, request) & np.uint64(mask))
    # The index has four places for each registration (`take_back`), so a free place ends the search.
    while get_int(index, at) >= 0:
        registration: int = get_int(index, at)
        if (
            registration_word(registrations, registration, REG_REGION) == region
            and registration_word(registrations, registration, REG_REQUEST) == request
        ):
            return registration
        at = (at + 1) & mask
    return -1


@kernel
def index_registration(index: int, registrations: int, registration: int) -> None:
    """Add a registration to the index; it replaces an older one with the same (request, region).

    Reads the registration's line. Writes one word of the index. Bound: the index is larger than the number of
    registrations (`Registrations.take_back` doubles it). Twin: none, the plain matcher has one registration.
    """
    mask = table_mask(index)
    region, request = (
        registration_word(registrations, registration, REG_REGION),
        registration_word(registrations, registration, REG_REQUEST),
    )
    at = i64(_id_hash(region, request) & np.uint64(mask))
    # Places are never freed one by one. `take_back` builds a new index, so a search never stops too early.
    while get_int(index, at) >= 0:
        other = get_int(index, at)
        if (
            registration_word(registrations, other, REG_REGION) == region
            and registration_word(registrations, other, REG_REQUEST) == request
        ):
            break
        at = (at + 1) & mask
    put_int(index, at, registration)


@inline
def note(notes: int, counts: int, kind: int, registration: int, first: Any, second: Any) -> None:
    """Note an event for the registration's owner; `kind` says what `first` and `second` mean."""
    i = get_int(counts, C_NOTES)
    put_note_word(notes, i, N_KIND, np.uint64(kind))
    put_note_word(notes, i, N_REGISTRATION, np.uint64(registration))
    put_note_word(notes, i, N_A, first)
    put_note_word(notes, i, N_B, second)
    put_int(counts, C_NOTES, i + 1)


@inline
def violate(registrations: int, registration: int, reason: int, commit: Any, notes: int, counts: int) -> None:
    """End a registration because the store broke the contract; its later rows are ignored.

    `reason`: a `Violation`.
    """
    put_registration_word(registrations, registration, REG_STATE, np.uint64(STOPPED))
    note(notes, counts, NOTE_VIOLATED, registration, np.uint64(reason), commit)


@inline
def _is_record(key: int, size: int) -> bool:
    """As `keys.is_record`, for a key inside a range of tables."""
    # `>`: a record has at least one byte of handle behind the mark.
    return size > _MARK_AT + 2 and load_u16(key + _MARK_AT) == _RECORD_MARK


@inline
def inside(registrations: int, registration: int, key: int, size: int) -> bool:
    """Whether a key is in the registration's range and, if only records are wanted, a record's."""
    # The cheap test first: in a range of several tables most keys that are not wanted are index entries.
    if registration_word(registrations, registration, REG_RECORDS) != np.uint64(0) and not _is_record(
        key, size
    ):
        return False
    low, low_size = (
        i64(registration_word(registrations, registration, REG_FROM)),
        i64(registration_word(registrations, registration, REG_FROM_SIZE)),
    )
    if compare_bytes(low, low_size, key, size) > 0:
        return False
    high, high_size = (
        i64(registration_word(registrations, registration, REG_TO)),
        i64(registration_word(registrations, registration, REG_TO_SIZE)),
    )
    return high_size == 0 or compare_bytes(key, size, high, high_size) < 0


@inline
def resolve(tables: Tables, registration: int, ts: Any) -> bool:
    """Raise a registration's resolved ts. Returns False if the log is full; then nothing was changed.

    For a spilled registration the ts goes to its log. If it would pass a logged commit, the ts is not
    reported yet, and the registration becomes due: its log must be matched first.
    """
    registrations, counts = tables.registrations, tables.counts
    if (
        registration < 0
        # Before INITIALIZED a resolved ts says nothing: the scan still delivers changes below it.
        or registration_word(registrations, registration, REG_STATE) != np.uint64(LIVE)
        or ts <= registration_word(registrations, registration, REG_RESOLVED)
    ):
        return True
    if registration_word(registrations, registration, REG_SPILLED) != np.uint64(0):
        # While it is due, REG_RESOLVED does not rise, so the last ts in the log is REG_DUE.
        if ts <= registration_word(registrations, registration, REG_DUE):
            return True
        # The ts goes to the log even if it is reported at once: at playback a commit below it must still be
        # found to be a violation.
        if not log_tick(registration, ts, tables.log, tables.log_size, counts):
            return False
        least = registration_word(registrations, registration, REG_LEAST)
        if least != np.uint64(0) and ts >= least:
            put_registration_word(registrations, registration, REG_DUE, ts)
            return True
    put_registration_word(registrations, registration, REG_RESOLVED, ts)
    # The count may exceed the list's length. `read_moved` then reports all live registrations instead
    # of the list.
    put_int(tables.moved, get_int(counts, C_MOVED) % MOVED_ROOM, registration)
    put_int(counts, C_MOVED, get_int(counts, C_MOVED) + 1)
    return True


@inline
def resolve_many(tables: Tables, event: int) -> bool:
    """Call `resolve` for each region of an event. If this returns False it can be repeated: regions that were
    already raised ignore the same ts.
    """
    events, index = tables.events, tables.registration_index
    at = i64(event_word(events, event, E_FIRST))
    end = at + i64(event_word(events, event, E_SIZE))
    ts, request = event_word(events, event, E_TS), event_word(events, event, E_REQUEST)
    while at < end:
        # `scan` has read the same bytes without a fault, so no address is checked here.
        tag, at = read_varint(at, end)
        if tag == REGIONS_TAG:
            size, at = read_varint(at, end)
            stop = at + i64(size)
        elif tag == REGION_TAG:
            stop = at + 1  # a varint begins before it, and no other
        else:
            at = skip_field(i64(tag & TAG_WIRE), at, end)
            stop = at
        while at < stop:
            region, at = read_varint(at, end)
            registration = find_registration(index, tables.registrations, region, request)
            if not resolve(tables, registration, ts):
                return False
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
                # Also for a registration of -1: `match` skips the event, and a branch for each row would
                # cost more.
                h = with_registration(row_word(rows, row, HASH), registration)
                put_row_word(rows, row, HASH, h)
                put_row_word(rows, row, ROW_REGISTRATION, np.uint64(registration))
                put_row_word(rows, row, PLACE, np.uint64(0))
                prefetch(bucket_of(table, h))


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    spare, index, table = np.zeros(1024, np.uint64), registration_index(4), hash_table(4)
    at = address(spare)
    index_registration(index_address(index), at, 0)
    locate(at, 0, at, at, index_address(index), table_address(table))
