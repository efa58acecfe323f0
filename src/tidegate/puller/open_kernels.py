"""Open prewrites: the hash table that finds them, and the arena in which they wait between batches.

The table is open-addressing, of (slot, start_ts, key). During a batch an entry refers to the row in the
message; `keep` afterwards copies what is still open into the arena, so a transaction that commits within the
batch is never copied. Commits and rollbacks that come before INITIALIZED wait in a second arena. `compact`
rewrites the arena with what is still open and rebuilds the table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel import address, compare_bytes, copy_exact, inline, kernel, load_u8, load_u64, store_u64
from tidegate.puller.table_kernels import (
    C_ARENA,
    C_KEPT,
    C_LIVE,
    C_OPEN_ROWS,
    C_WAITING,
    GENERATION,
    HASH,
    IN_MESSAGE,
    KEY,
    KEY_SIZE,
    LIVE,
    MIXER,
    MULTIPLIER,
    R_GENERATION,
    R_HASH,
    R_KEY_SIZE,
    R_LIVE,
    R_OLD_SIZE,
    R_SLOT,
    R_START,
    R_VALUE_SIZE,
    RECORD,
    S_CHECKPOINT,
    S_HEAD,
    S_OPEN,
    S_RESOLVED,
    S_SPILLED,
    S_STATE,
    S_TAIL,
    S_WAITING,
    SCANNING,
    START,
    WAIT_RECORD,
    get_int,
    get_word,
    hash_table,
    i64,
    put_int,
    put_slot_word,
    put_word,
    row_word,
    slot_word,
    table_address,
    table_mask,
)


@inline
def row_hash(slot: int, start: Any, key: int, size: int) -> Any:
    """The hash of a prewrite; never 0, which marks an empty place."""
    h = (start ^ (np.uint64(slot) * MIXER)) * MULTIPLIER
    i = 0
    while i + 8 <= size:
        h = (h ^ load_u64(key + i)) * MULTIPLIER
        h ^= h >> np.uint64(29)
        i += 8
    while i < size:
        h = (h ^ np.uint64(load_u8(key + i))) * MULTIPLIER
        i += 1
    return (h ^ (h >> np.uint64(32))) | np.uint64(1)


@inline
def record_word(arena: int, offset: Any, word: int) -> Any:
    """A word of a record's header."""
    return load_u64(arena + i64(offset) + 8 * word)


@inline
def find_open(
    table: int, h: Any, slot: int, start: Any, key: int, size: int, rows: int, row_slots: int, arena: int
) -> int:
    """The table position of the open prewrite of (slot, start, key), or -1."""
    mask = table_mask(table)
    at: int = i64((h >> np.uint64(1)) & np.uint64(mask))
    while get_word(table, 2 * at + 1) != np.uint64(0):
        if get_word(table, 2 * at + 0) == h:
            ref = get_word(table, 2 * at + 1)
            if ref & IN_MESSAGE:
                row = i64(ref & ~IN_MESSAGE)
                if (
                    get_int(row_slots, row) == slot
                    and row_word(rows, row, START) == start
                    and row_word(rows, row, KEY_SIZE) == np.uint64(size)
                    and compare_bytes(i64(row_word(rows, row, KEY)), size, key, size) == 0
                ):
                    return at
            elif (
                record_word(arena, ref, R_SLOT) == np.uint64(slot)
                and record_word(arena, ref, R_START) == start
                and record_word(arena, ref, R_KEY_SIZE) == np.uint64(size)
                and compare_bytes(arena + i64(ref) + RECORD, size, key, size) == 0
            ):
                return at
        at = (at + 1) & mask
    return -1


@inline
def insert_open(table: int, h: Any, ref: Any) -> None:
    """Add an entry to the table, which has room."""
    mask = table_mask(table)
    at = i64((h >> np.uint64(1)) & np.uint64(mask))
    while get_word(table, 2 * at + 1) != np.uint64(0):
        at = (at + 1) & mask
    put_word(table, 2 * at + 0, h)
    put_word(table, 2 * at + 1, ref)


@inline
def remove_open(table: int, at: int) -> None:
    """Empty a position and move later entries of its run back (no tombstones)."""
    mask = table_mask(table)
    hole, i = at, (at + 1) & mask
    while get_word(table, 2 * i + 1) != np.uint64(0):
        home = i64((get_word(table, 2 * i + 0) >> np.uint64(1)) & np.uint64(mask))
        if ((i - home) & mask) >= ((i - hole) & mask):
            put_word(table, 2 * hole + 0, get_word(table, 2 * i + 0))
            put_word(table, 2 * hole + 1, get_word(table, 2 * i + 1))
            hole = i
        i = (i + 1) & mask
    put_word(table, 2 * hole + 1, np.uint64(0))


@inline
def record_bytes(arena: int, ref: Any) -> Any:
    """Bytes of a record with its header, rounded up to words."""
    sizes = (
        record_word(arena, ref, R_KEY_SIZE)
        + record_word(arena, ref, R_VALUE_SIZE)
        + record_word(arena, ref, R_OLD_SIZE)
    )
    return (i64(sizes) + RECORD + 7) & ~7


@kernel
def rehash(old: int, new: int) -> None:
    """Move all entries into a larger, empty table."""
    for at in range(table_mask(old) + 1):
        if get_word(old, 2 * at + 1) != np.uint64(0):
            insert_open(new, get_word(old, 2 * at + 0), get_word(old, 2 * at + 1))


@kernel
def keep(rows: int, row_slots: int, slots: int, table: int, arena: int, kept: int, counts: int) -> None:
    """Copy prewrites that are still open from the messages into the arena, which has room for them."""
    mask = table_mask(table)
    for i in range(get_int(counts, C_KEPT)):
        row = get_int(kept, i)
        h, ref = row_word(rows, row, HASH), IN_MESSAGE | np.uint64(row)
        if h == np.uint64(0):
            continue
        at = i64((h >> np.uint64(1)) & np.uint64(mask))
        while get_word(table, 2 * at + 0) != h or get_word(table, 2 * at + 1) != ref:
            at = (at + 1) & mask
        offset = get_int(counts, C_ARENA)
        to = arena + offset
        store_u64(to + 8 * R_START, row_word(rows, row, START))
        store_u64(to + 8 * R_SLOT, np.uint64(get_int(row_slots, row)))
        store_u64(to + 8 * R_LIVE, np.uint64(1))
        store_u64(to + 8 * R_GENERATION, row_word(rows, row, GENERATION))
        store_u64(to + 8 * R_HASH, h)
        end = to + RECORD
        for part in range(3):
            size = i64(row_word(rows, row, KEY_SIZE + part))
            store_u64(to + 8 * (R_KEY_SIZE + part), np.uint64(size))
            copy_exact(end, i64(row_word(rows, row, KEY + part)), size)
            end += size
        put_word(table, 2 * at + 1, np.uint64(offset))
        total = (end - to + 7) & ~7
        put_int(counts, C_ARENA, offset + total)
        put_int(counts, C_LIVE, get_int(counts, C_LIVE) + total)
        put_slot_word(
            slots,
            get_int(row_slots, row),
            S_OPEN,
            slot_word(slots, get_int(row_slots, row), S_OPEN) + np.uint64(total),
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
    """Rewrite the arena with the records of running, not spilled slots; rebuild `table`, which is empty.

    With `drop_resolved` records that started below a resolved ts the slot was told go (nothing pins them any
    more, but for pipelined transactions, which have a generation), and those of slot `victim` (-1: none).
    Should such a commit come after all, the registration is made anew.
    """
    for slot in range(slot_count):
        put_slot_word(slots, slot, S_OPEN, np.uint64(0))
    at, end, to = RECORD, get_int(counts, C_ARENA), RECORD
    entries = 0
    while at < end:
        size = record_bytes(old, np.uint64(at))
        slot = i64(record_word(old, np.uint64(at), R_SLOT))
        state = slot_word(slots, slot, S_STATE)
        stays = record_word(old, np.uint64(at), R_LIVE) != np.uint64(0) and slot != victim
        stays = stays and (state == np.uint64(SCANNING) or state == np.uint64(LIVE))
        stays = stays and slot_word(slots, slot, S_SPILLED) == np.uint64(0)
        if drop_resolved != 0:
            resolved = slot_word(slots, slot, S_RESOLVED)
            young = record_word(old, np.uint64(at), R_START) >= resolved
            young = young or resolved <= slot_word(slots, slot, S_CHECKPOINT)
            stays = stays and (young or record_word(old, np.uint64(at), R_GENERATION) != np.uint64(0))
        if stays:
            copy_exact(new + to, old + at, size)
            insert_open(table, record_word(old, np.uint64(at), R_HASH), np.uint64(to))
            put_slot_word(slots, slot, S_OPEN, slot_word(slots, slot, S_OPEN) + np.uint64(size))
            entries += 1
            to += size
        at += size
    put_int(counts, C_ARENA, to)
    put_int(counts, C_LIVE, to - RECORD)
    put_int(counts, C_OPEN_ROWS, entries)


@kernel
def compact_waiting(old: int, new: int, slots: int, slot_count: int, counts: int) -> None:
    """Rewrite the waiting arena with the rows of slots that still scan and are not spilled, in order."""
    for slot in range(slot_count):
        put_slot_word(slots, slot, S_HEAD, np.uint64(0))
        put_slot_word(slots, slot, S_TAIL, np.uint64(0))
        put_slot_word(slots, slot, S_WAITING, np.uint64(0))
    at, end, to = 0, get_int(counts, C_WAITING), 0
    while at < end:
        size = (i64(load_u64(old + at + 32)) + WAIT_RECORD + 7) & ~7
        slot = i64(load_u64(old + at + 40))
        spilled = slot_word(slots, slot, S_SPILLED) != np.uint64(0)
        if slot_word(slots, slot, S_STATE) == np.uint64(SCANNING) and not spilled:
            copy_exact(new + to, old + at, size)
            store_u64(new + to, np.uint64(0))
            if slot_word(slots, slot, S_HEAD) == np.uint64(0):
                put_slot_word(slots, slot, S_HEAD, np.uint64(to + 1))
            else:
                store_u64(new + i64(slot_word(slots, slot, S_TAIL)) - 1, np.uint64(to + 1))
            put_slot_word(slots, slot, S_TAIL, np.uint64(to + 1))
            put_slot_word(
                slots,
                slot,
                S_WAITING,
                slot_word(slots, slot, S_WAITING) + np.uint64(1),
            )
            to += size
        at += size
    put_int(counts, C_WAITING, to)


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    spare, table, other = np.zeros(1024, np.uint64), hash_table(4), hash_table(4)
    at = address(spare)
    keep(at, at, at, table_address(table), at, at, at)
    rehash(table_address(table), table_address(other))
    compact(at, at, table_address(table), at, 0, 0, -1, at)
    compact_waiting(at, at, at, 0, at)
