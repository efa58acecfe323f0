"""The registrations ("slots") of a stream in compiled code: found by their ids, told apart by their ranges.

What their owners must hear of is noted here, and their resolved ts rises here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel import address, compare_bytes, inline, kernel, load_u16
from tidegate.puller.match.scan_kernels import REGION_TAG, REGIONS_TAG, read_varint, skip_field
from tidegate.puller.match.spill_kernels import log_tick
from tidegate.puller.match.table_kernels import (
    C_MOVED,
    C_NOTES,
    E_FIRST,
    E_REQUEST,
    E_SIZE,
    E_TS,
    LIVE,
    MIXER,
    MOVED_ROOM,
    MULTIPLIER,
    N_A,
    N_B,
    N_KIND,
    N_SLOT,
    NOTE_VIOLATED,
    S_DUE,
    S_FROM,
    S_FROM_SIZE,
    S_LEAST,
    S_RECORDS,
    S_REGION,
    S_REQUEST,
    S_RESOLVED,
    S_SPILLED,
    S_STATE,
    S_TO,
    S_TO_SIZE,
    STOPPED,
    event_word,
    get_int,
    i64,
    index_address,
    put_int,
    put_note_word,
    put_slot_word,
    slot_index,
    slot_word,
    table_mask,
)

_MARK_AT = 9
"""Where a key of a table says of what: behind `t` and the id."""
_RECORD_MARK = int.from_bytes(b"_r", "little")


@inline
def _slot_hash(region: Any, request: Any) -> Any:
    h = (region ^ (request * MIXER)) * MULTIPLIER
    return h ^ (h >> np.uint64(32))


@inline
def find_slot(index: int, slots: int, region: Any, request: Any) -> int:
    """The slot registered last for (request, region), or -1."""
    mask = table_mask(index)
    at = i64(_slot_hash(region, request) & np.uint64(mask))
    while get_int(index, at) >= 0:
        slot: int = get_int(index, at)
        if slot_word(slots, slot, S_REGION) == region and slot_word(slots, slot, S_REQUEST) == request:
            return slot
        at = (at + 1) & mask
    return -1


@kernel
def index_slot(index: int, slots: int, slot: int) -> None:
    """Let lookups of the slot's (request, region) find it, instead of an older slot of the same."""
    mask = table_mask(index)
    region, request = slot_word(slots, slot, S_REGION), slot_word(slots, slot, S_REQUEST)
    at = i64(_slot_hash(region, request) & np.uint64(mask))
    while get_int(index, at) >= 0:
        other = get_int(index, at)
        if slot_word(slots, other, S_REGION) == region and slot_word(slots, other, S_REQUEST) == request:
            break
        at = (at + 1) & mask
    put_int(index, at, slot)


@inline
def note(notes: int, counts: int, kind: int, slot: int, a: Any, b: Any) -> None:
    """Let the slot's owner hear of it; what `a` and `b` are follows from the kind."""
    i = get_int(counts, C_NOTES)
    put_note_word(notes, i, N_KIND, np.uint64(kind))
    put_note_word(notes, i, N_SLOT, np.uint64(slot))
    put_note_word(notes, i, N_A, a)
    put_note_word(notes, i, N_B, b)
    put_int(counts, C_NOTES, i + 1)


@inline
def violate(slots: int, slot: int, reason: int, commit: Any, notes: int, counts: int) -> None:
    """The store broke the contract: nothing of the slot counts from here on. `reason`: a `Violation`."""
    put_slot_word(slots, slot, S_STATE, np.uint64(STOPPED))
    note(notes, counts, NOTE_VIOLATED, slot, np.uint64(reason), commit)


@inline
def _is_record(key: int, size: int) -> bool:
    """As `keys.is_record`, of a key that lies between those of two tables."""
    return size > _MARK_AT + 2 and load_u16(key + _MARK_AT) == _RECORD_MARK


@inline
def inside(slots: int, slot: int, key: int, size: int) -> bool:
    """Whether a key lies in the slot's range, and is one that counts there."""
    if slot_word(slots, slot, S_RECORDS) != np.uint64(0) and not _is_record(key, size):
        return False
    low, low_size = (
        i64(slot_word(slots, slot, S_FROM)),
        i64(slot_word(slots, slot, S_FROM_SIZE)),
    )
    if compare_bytes(low, low_size, key, size) > 0:
        return False
    high, high_size = (
        i64(slot_word(slots, slot, S_TO)),
        i64(slot_word(slots, slot, S_TO_SIZE)),
    )
    return high_size == 0 or compare_bytes(key, size, high, high_size) < 0


@inline
def resolve(slots: int, slot: int, ts: Any, moved: int, log: int, log_size: int, counts: int) -> bool:
    """Raise a slot's resolved ts; False: the log is full, nothing was done."""
    if (
        slot < 0
        or slot_word(slots, slot, S_STATE) != np.uint64(LIVE)
        or ts <= slot_word(slots, slot, S_RESOLVED)
    ):
        return True
    if slot_word(slots, slot, S_SPILLED) != np.uint64(0):
        if ts <= slot_word(slots, slot, S_DUE):
            return True
        if not log_tick(slot, ts, log, log_size, counts):
            return False
        least = slot_word(slots, slot, S_LEAST)
        if least != np.uint64(0) and ts >= least:
            put_slot_word(slots, slot, S_DUE, ts)
            return True
    put_slot_word(slots, slot, S_RESOLVED, ts)
    put_int(moved, get_int(counts, C_MOVED) % MOVED_ROOM, slot)
    put_int(counts, C_MOVED, get_int(counts, C_MOVED) + 1)
    return True


@inline
def resolve_many(
    events: int, e: int, index: int, slots: int, moved: int, log: int, log_size: int, counts: int
) -> bool:
    """The same for each region of an event; what was done before it returned False changes nothing again."""
    at = i64(event_word(events, e, E_FIRST))
    end = at + i64(event_word(events, e, E_SIZE))
    ts, request = event_word(events, e, E_TS), event_word(events, e, E_REQUEST)
    while at < end:
        tag, at = read_varint(at, end)
        wire = i64(tag & np.uint64(7))
        if tag == REGIONS_TAG:
            size, at = read_varint(at, end)
            stop = at + i64(size)
            while at < stop:
                region, at = read_varint(at, stop)
                if not resolve(
                    slots, find_slot(index, slots, region, request), ts, moved, log, log_size, counts
                ):
                    return False
        elif tag == REGION_TAG:
            region, at = read_varint(at, end)
            if not resolve(slots, find_slot(index, slots, region, request), ts, moved, log, log_size, counts):
                return False
        else:
            at = skip_field(wire, at, end)
    return True


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    index_slot(index_address(slot_index(4)), address(np.zeros(1024, np.uint64)), 0)
