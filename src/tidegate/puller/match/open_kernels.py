"""Open prewrites: the hash table that finds them, and the arena in which they wait between batches.

The key of the table (`bucket_kernels`) is (registration, start_ts, key). During a batch an entry refers to
the row in the message; afterwards `keep` copies the rows that are still open into the arena, so a transaction
that commits within the batch is never copied. The space of an ended record is reused by the next record of
its size class, the most recently freed first: while few records are open, they stay in the CPU's cache.
`compact` rewrites the arena with the open records and rebuilds the table. Commits and rollbacks that arrive
before INITIALIZED wait in a second arena.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidegate.kernel import (
    address,
    copy_exact,
    ctlz64,
    inline,
    kernel,
    load_u8,
    load_u64,
    prefetch,
    same_bytes,
)
from tidegate.puller.match.bucket_kernels import (
    BUCKET,
    ENTRIES,
    add_entry,
    first_lane,
    has_entry,
    has_overflow,
    hash_table,
    place_of,
    table_address,
    tag_matches,
    tag_of,
)
from tidegate.puller.match.table_kernels import (
    C_ARENA,
    C_ENDED,
    C_KEPT,
    C_LIVE,
    C_OPEN_ROWS,
    C_WAITING,
    FREE_LISTS,
    GENERATION,
    HASH,
    IN_MESSAGE,
    KEY,
    KEY_SIZE,
    LIVE,
    MIXER,
    MULTIPLIER,
    OLD,
    OLD_SIZE,
    PLACE,
    R_GENERATION,
    R_HASH,
    R_KEY_SIZE,
    R_LIVE,
    R_OLD_SIZE,
    R_REGISTRATION,
    R_START,
    R_VALUE_SIZE,
    RECORD,
    REG_CHECKPOINT,
    REG_HEAD,
    REG_OPEN,
    REG_RESOLVED,
    REG_SPILLED,
    REG_STATE,
    REG_TAIL,
    REG_WAITING,
    ROW_REGISTRATION,
    SCANNING,
    START,
    VALUE,
    VALUE_SIZE,
    W_KEY_SIZE,
    W_NEXT,
    W_REGISTRATION,
    WAIT_RECORD,
    WORD,
    get_int,
    get_word,
    i64,
    put_int,
    put_registration_word,
    put_row_word,
    put_word,
    registration_word,
    row_word,
    table_mask,
)

CALLED = 320
"""The bytes that are prefetched of the next free record of a size class."""


@inline
def row_hash(start: Any, key: int, size: int) -> Any:
    """A hash of start_ts and key; `with_registration` adds the registration."""
    h = (start ^ (np.uint64(size) * MIXER)) * MULTIPLIER
    if size >= 8:
        i = 0
        while i + 8 < size:
            h = (h ^ load_u64(key + i)) * MULTIPLIER
            # A product carries bits only upwards. The shift brings a word's high bits down, and the next
            # product spreads them.
            h ^= h >> np.uint64(29)
            i += 8
        # The last eight bytes may overlap the word before them. That is harmless, and no read leaves the
        # key.
        h = (h ^ load_u64(key + size - 8)) * MULTIPLIER
    else:
        for i in range(size):
            h = (h ^ np.uint64(load_u8(key + i))) * MULTIPLIER
    return h ^ (h >> np.uint64(32))


@inline
def with_registration(hashed: Any, registration: int) -> Any:
    """The hash of (registration, start_ts, key) in the table of open prewrites."""
    hashed = (hashed + np.uint64(registration)) * MULTIPLIER
    return hashed ^ (hashed >> np.uint64(32))


@inline
def record_word(arena: int, offset: Any, word: int) -> Any:
    """A word of a record's header."""
    return get_word(arena + i64(offset), word)


class OpenKey(NamedTuple):
    """The key of an open prewrite in the table."""

    registration: int
    start: Any
    """Its start_ts."""
    key: int
    """The address of the row's key."""
    size: int
    """The key's bytes."""


@inline
def _is(entry: Any, wanted: OpenKey, rows: int, arena: int) -> bool:
    """Whether an entry, in a message or in the arena, is the prewrite with the wanted key."""
    if entry & IN_MESSAGE:
        row = i64(entry & ~IN_MESSAGE)
        return (
            row_word(rows, row, START) == wanted.start
            and row_word(rows, row, KEY_SIZE) == np.uint64(wanted.size)
            and row_word(rows, row, ROW_REGISTRATION) == np.uint64(wanted.registration)
            and same_bytes(i64(row_word(rows, row, KEY)), wanted.key, wanted.size)
        )
    return (
        record_word(arena, entry, R_START) == wanted.start
        and record_word(arena, entry, R_KEY_SIZE) == np.uint64(wanted.size)
        and record_word(arena, entry, R_REGISTRATION) == np.uint64(wanted.registration)
        and same_bytes(arena + i64(entry) + RECORD, wanted.key, wanted.size)
    )


@inline
def find_open(table: int, hashed: Any, wanted: OpenKey, rows: int, arena: int) -> int:
    """The place of the open prewrite with the wanted key, or 0."""
    mask, tag = table_mask(table), tag_of(hashed)
    number = i64(hashed) & mask
    # Bounded by the number of buckets: if all have overflowed, nothing else ends a search for an entry that
    # is not there.
    for _ in range(mask + 1):
        tags = load_u64(table + BUCKET * number)
        matches = tag_matches(tags, tag)
        while matches != np.uint64(0):
            # Word 0 of a bucket holds its tags, so no entry has place 0, and 0 can mean none.
            place: int = place_of(number, first_lane(matches))
            if _is(get_word(table, place), wanted, rows, arena):
                return place
            matches &= matches - np.uint64(1)
        if not has_overflow(tags):
            return 0
        number = (number + 1) & mask
    return 0


@inline
def _class_of(size: int) -> tuple[Any, Any]:
    """The size class of a record of `size` bytes, and the bytes that records of this class use.

    Multiples of 64 up to 1024; above, eight steps for each power of two.
    """
    if size <= 1024:
        number = (size + 63) >> 6
        return number, number << 6
    power = 63 - i64(ctlz64(np.uint64(size - 1)))
    step = power - 3
    # `number` is 9 to 16 here, so the classes are 17 and more, in order of size. They stay below FREE_LISTS
    # for records of up to 2**39 bytes. Rounding wastes at most an eighth of a record.
    number = (size + (1 << step) - 1) >> step
    return 16 + 8 * (power - 10) + number - 8, number << step


@inline
def record_bytes(arena: int, ref: Any) -> Any:
    """The bytes that a record uses in the arena, including its header."""
    sizes = (
        record_word(arena, ref, R_KEY_SIZE)
        + record_word(arena, ref, R_VALUE_SIZE)
        + record_word(arena, ref, R_OLD_SIZE)
    )
    _, taken = _class_of(i64(sizes) + RECORD)
    return taken


@kernel
def rehash(old: int, new: int, rows: int, arena: int) -> None:
    """Move all entries into a larger, empty table.

    Reads the old table and the hashes of its entries. Writes the new table, and PLACE of rows in
    messages. Bound: the new table is larger. Twin: none, the dictionary of
    `tidegate.puller.match.matcher.Matcher` grows automatically.
    """
    for number in range(table_mask(old) + 1):
        tags = load_u64(old + BUCKET * number)
        for lane in range(ENTRIES):
            if has_entry(tags, lane):
                # `add_entry` counts the overflows of the new buckets; those of the old ones mean nothing
                # here.
                entry = get_word(old, place_of(number, lane))
                if entry & IN_MESSAGE:
                    row = i64(entry & ~IN_MESSAGE)
                    place = add_entry(new, row_word(rows, row, HASH), entry)
                    put_row_word(rows, row, PLACE, np.uint64(place))
                else:
                    add_entry(new, record_word(arena, entry, R_HASH), entry)


@kernel
def keep(rows: int, registrations: int, table: int, arena: int, free: int, kept: int, counts: int) -> None:
    """Copy the prewrites that are still open from the messages into the arena, which has room for them.

    They reuse the space of records that ended in earlier calls, see `release`, or use new space at the end.

    Reads the rows in `kept`. Writes the arena, the table's entries and `free`. Bound: the arena has room
    for all rows, by `OpenRows.make_room`. Twin: none, the plain matcher keeps its rows where they are. Trick:
    the space of the most recently freed record of a size class is used first, because it is still in the
    cache.
    """
    for i in range(get_int(counts, C_KEPT)):
        row = get_int(kept, i)
        place = i64(row_word(rows, row, PLACE))
        # `_forget` has cleared the place: the commit came in the same portion, or a later prewrite replaced
        # this one.
        if place == 0:
            continue
        k = i64(row_word(rows, row, KEY_SIZE))
        v = i64(row_word(rows, row, VALUE_SIZE))
        o = i64(row_word(rows, row, OLD_SIZE))
        number, taken = _class_of(RECORD + k + v + o)
        offset = get_int(free, number)
        # The arena begins at RECORD, so no record has offset 0, and 0 can end a list.
        if offset != 0:
            then = i64(record_word(arena, offset, R_START))
            put_int(free, number, then)
            for line in range(0, min(taken, CALLED), 64):
                prefetch(arena + then + line)
        else:
            offset = get_int(counts, C_ARENA)
            put_int(counts, C_ARENA, offset + taken)
        # A record from the list has the same class, so the same bytes. That keeps the arena a row of
        # records that `compact` and `log_open` can walk from end to end.
        to = arena + offset
        registration = i64(row_word(rows, row, ROW_REGISTRATION))
        put_word(to, R_START, row_word(rows, row, START))
        put_word(to, R_REGISTRATION, np.uint64(registration))
        # The resolved ts at the end of the portion, not at the row. It can only be larger, so
        # `compact` may keep the prewrite longer than necessary, but drops none too early.
        put_word(to, R_LIVE, max(registration_word(registrations, registration, REG_RESOLVED), np.uint64(1)))
        put_word(to, R_GENERATION, row_word(rows, row, GENERATION))
        put_word(to, R_HASH, row_word(rows, row, HASH))
        put_word(to, R_KEY_SIZE, np.uint64(k))
        put_word(to, R_VALUE_SIZE, np.uint64(v))
        put_word(to, R_OLD_SIZE, np.uint64(o))
        copy_exact(to + RECORD, i64(row_word(rows, row, KEY)), k)
        copy_exact(to + RECORD + k, i64(row_word(rows, row, VALUE)), v)
        copy_exact(to + RECORD + k + v, i64(row_word(rows, row, OLD)), o)
        # The entry keeps its place and its tag, because the hash is the same. From here on it refers to the
        # arena.
        put_word(table, place, np.uint64(offset))
        put_int(counts, C_LIVE, get_int(counts, C_LIVE) + taken)
        put_registration_word(
            registrations,
            registration,
            REG_OPEN,
            registration_word(registrations, registration, REG_OPEN) + np.uint64(taken),
        )


@inline
def end_record(arena: int, ref: Any, registrations: int, counts: int) -> None:
    """Mark a record as dead; its bytes stay valid until `release`."""
    taken = record_bytes(arena, ref)
    registration = i64(record_word(arena, ref, R_REGISTRATION))
    put_word(arena + i64(ref), R_LIVE, np.uint64(0))
    # A dead record needs no start_ts, so its word links the chain of ended records.
    put_word(arena + i64(ref), R_START, np.uint64(get_int(counts, C_ENDED)))
    put_int(counts, C_ENDED, i64(ref))
    put_int(counts, C_LIVE, get_int(counts, C_LIVE) - taken)
    put_registration_word(
        registrations,
        registration,
        REG_OPEN,
        registration_word(registrations, registration, REG_OPEN) - np.uint64(taken),
    )


@kernel
def release(arena: int, free: int, counts: int) -> None:
    """Free the space of ended records for reuse. Their changes must have been copied.

    Reads the chain of ended records. Writes `free`, the lists by size class, and links in the records. Bound:
    one step for each record that ended since the last call. Twin: none, Python frees the plain matcher's
    rows.
    """
    at = get_int(counts, C_ENDED)
    while at != 0:
        then = i64(record_word(arena, at, R_START))
        sizes = (
            record_word(arena, at, R_KEY_SIZE)
            + record_word(arena, at, R_VALUE_SIZE)
            + record_word(arena, at, R_OLD_SIZE)
        )
        number, _ = _class_of(i64(sizes) + RECORD)
        # The chain of ended records ends here, so the word can link the free list.
        put_word(arena + at, R_START, np.uint64(get_int(free, number)))
        put_int(free, number, at)
        at = then
    put_int(counts, C_ENDED, 0)


class Compaction(NamedTuple):
    """The arguments of `compact`: addresses of tables, and which records to drop."""

    old: int
    new: int
    """The arenas."""
    table: int
    """An empty table of open prewrites."""
    free: int
    """The lists of dead records, which become empty."""
    registrations: int
    registration_count: int
    drop_resolved: int
    victim: int
    counts: int


@kernel
def compact(work: Compaction) -> None:
    """Copy the live records of running, unspilled registrations to a new arena, and fill the empty `table`.
    Dead records disappear, so the `free` lists become empty.

    The records of registration `victim` (-1: none) are dropped. `drop_resolved` also drops a record if the
    registration received a resolved ts above its start_ts after it: an open transaction would hold the
    resolved ts down, so this one has ended (except pipelined transactions, which have a generation and are
    kept). A prewrite may also arrive after the resolved ts has passed its start_ts; it is kept. If the commit
    of a dropped record does arrive, the region is registered again, so no change is lost.

    Reads the old arena from end to end. Writes the new arena, the empty table and `free`. Bound: the new
    arena is as large as the live records. Twin: none, it changes no result;
    `tests.puller.match.match_script` compares both matchers across compactions.
    """
    old, new, registrations, victim, counts = work.old, work.new, work.registrations, work.victim, work.counts
    for registration in range(work.registration_count):
        # Added up again below from the records that stay, so dropped ones need no subtraction.
        put_registration_word(registrations, registration, REG_OPEN, np.uint64(0))
    # No entry refers to a message here: a portion compacts before its rows are matched, and `keep` has run
    # since then.
    at, end, to = RECORD, get_int(counts, C_ARENA), RECORD
    entries = 0
    while at < end:
        size = record_bytes(old, np.uint64(at))
        registration = i64(record_word(old, np.uint64(at), R_REGISTRATION))
        state = registration_word(registrations, registration, REG_STATE)
        stays = record_word(old, np.uint64(at), R_LIVE) != np.uint64(0) and registration != victim
        stays = stays and (state == np.uint64(SCANNING) or state == np.uint64(LIVE))
        stays = stays and registration_word(registrations, registration, REG_SPILLED) == np.uint64(0)
        if work.drop_resolved != 0:
            resolved = registration_word(registrations, registration, REG_RESOLVED)
            # Three reasons to keep it: its transaction may still commit; the resolved ts is only the
            # checkpoint, where it began; or no resolved ts has arrived since the prewrite.
            young = record_word(old, np.uint64(at), R_START) >= resolved
            young = young or resolved <= registration_word(registrations, registration, REG_CHECKPOINT)
            young = young or resolved <= record_word(old, np.uint64(at), R_LIVE)
            stays = stays and (young or record_word(old, np.uint64(at), R_GENERATION) != np.uint64(0))
        if stays:
            copy_exact(new + to, old + at, size)
            add_entry(work.table, record_word(old, np.uint64(at), R_HASH), np.uint64(to))
            put_registration_word(
                registrations,
                registration,
                REG_OPEN,
                registration_word(registrations, registration, REG_OPEN) + np.uint64(size),
            )
            entries += 1
            to += size
        at += size
    # The lists and the chain of ended records hold offsets in the old arena, so they must not survive it.
    for number in range(FREE_LISTS):
        put_int(work.free, number, 0)
    put_int(counts, C_ENDED, 0)
    put_int(counts, C_ARENA, to)
    put_int(counts, C_LIVE, to - RECORD)
    put_int(counts, C_OPEN_ROWS, entries)


@kernel
def compact_waiting(old: int, new: int, registrations: int, registration_count: int, counts: int) -> None:
    """Copy the waiting rows of registrations that still scan and are not spilled, in order, to a new arena.

    Reads the old arena from end to end. Writes the new arena and the chains of registrations. Bound: the new
    arena is as large as the old one. Twin: none, it changes no result.
    """
    for registration in range(registration_count):
        put_registration_word(registrations, registration, REG_HEAD, np.uint64(0))
        put_registration_word(registrations, registration, REG_TAIL, np.uint64(0))
        put_registration_word(registrations, registration, REG_WAITING, np.uint64(0))
    at, end, to = 0, get_int(counts, C_WAITING), 0
    while at < end:
        size = (i64(get_word(old + at, W_KEY_SIZE)) + WAIT_RECORD + WORD - 1) & -WORD
        registration = i64(get_word(old + at, W_REGISTRATION))
        spilled = registration_word(registrations, registration, REG_SPILLED) != np.uint64(0)
        # `_initialize` has applied the rows of a live registration, and the log has those of a spilled one.
        if registration_word(registrations, registration, REG_STATE) == np.uint64(SCANNING) and not spilled:
            copy_exact(new + to, old + at, size)
            # The copy has the old link, which is an offset in the old arena.
            put_word(new + to, W_NEXT, np.uint64(0))
            if registration_word(registrations, registration, REG_HEAD) == np.uint64(0):
                put_registration_word(registrations, registration, REG_HEAD, np.uint64(to + 1))
            else:
                put_word(
                    new + i64(registration_word(registrations, registration, REG_TAIL)) - 1,
                    W_NEXT,
                    np.uint64(to + 1),
                )
            put_registration_word(registrations, registration, REG_TAIL, np.uint64(to + 1))
            put_registration_word(
                registrations,
                registration,
                REG_WAITING,
                registration_word(registrations, registration, REG_WAITING) + np.uint64(1),
            )
            to += size
        at += size
    put_int(counts, C_WAITING, to)


def warm() -> None:
    """Compile every kernel with the types it is called with."""
    spare, table, other = np.zeros(1024, np.uint64), hash_table(4), hash_table(4)
    at = address(spare)
    keep(at, at, table_address(table), at, at, at, at)
    release(at, at, at)
    rehash(table_address(table), table_address(other), at, at)
    compact(Compaction(at, at, table_address(table), at, at, 0, 0, -1, at))
    compact_waiting(at, at, at, 0, at)
