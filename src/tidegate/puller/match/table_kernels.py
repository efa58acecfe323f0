"""The tables that the compiled scan and matcher of a stream share: their words, by name.

Each is a block of u64 words: the `events` and `rows` of a batch of messages, the `slots` (registrations), the
changes that go `out`, `notes` for the caller, the arenas of rows that wait, and the index of slots. The table
of open prewrites is in `bucket_kernels`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidegate.kernel import address, inline, load_i64, load_u64, store_u64

i64: Any = np.int64
"""Untyped for mypy, whose numpy integers are no `int`; inside a kernel it is numba's int64."""

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

EVENT_WORDS: Final = 8
E_KIND, E_REGION, E_REQUEST, E_FIRST, E_END, E_TS, E_SIZE, E_SLOT = range(EVENT_WORDS)
"""An event: FIRST and END are its rows; for an error the address and size of the Event message; for a batch
of resolved regions those of the ResolvedTs message. SLOT (-1: none) is filled in by `locate`."""

ROWS, ERROR, RESOLVED, RESOLVED_MANY, OTHER = range(5)
"""Kinds of events; OTHER is ignored (admin, long transactions)."""

ROW_WORDS: Final = 14
(
    START,
    COMMIT,
    KEY,
    VALUE,
    OLD,
    KEY_SIZE,
    VALUE_SIZE,
    OLD_SIZE,
    KIND,
    OP,
    GENERATION,
    HASH,
    SLOT,
    PLACE,
) = range(ROW_WORDS)
"""A row: KEY, VALUE, OLD are addresses. HASH is of its start_ts and key; `locate` adds the SLOT to it.
PLACE is where the table of open prewrites refers to the row, 0 where it does not."""

MOVED_ROOM: Final = 1 << 16
"""Places in `moved`; the rest overwrites them, see `match`."""

SLOT_WORDS: Final = 19
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
    S_SPILLED,
    S_DUE,
    S_LEAST,
    S_RECORDS,
) = range(SLOT_WORDS)
"""A registration: FROM and TO are the addresses of its raw key bounds (TO_SIZE 0: no bound). HEAD and TAIL
chain its waiting rows (offset + 1 in the waiting arena; 0: none), WAITING counts them. OPEN: bytes of open
prewrites. SPAN and MARK are the caller's numbers: changes come out with SPAN, a risen resolved ts with
MARK. SPILLED (1): its rows go to the log instead of being matched; then LEAST is the least ts of an end among
them (0: none), and DUE a resolved ts that may only be told once they are matched. RECORDS (1): keys that are
no records of tables do not count."""

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

COUNT_WORDS: Final = 15
(
    C_OUT,
    C_NOTES,
    C_MOVED,
    C_KEPT,
    C_ARENA,
    C_LIVE,
    C_OPEN_ROWS,
    C_WAITING,
    C_EVENT,
    C_ROW,
    C_LOG,
    C_PASSES,
    C_PASS,
    C_ENDED,
    C_TRUST_EMPTY,
) = range(COUNT_WORDS)
"""In and out of `match` and `keep`: lengths of out, notes, moved, kept; bytes used in the arena; bytes of
open prewrites in it; entries in the table; bytes used in the waiting arena; event and row to go on from;
bytes used in the log. PASSES is 0 but for rows that come back from a log: then only those whose hash falls to
PASS of PASSES are taken. ENDED: the last of the records that ended in this call (offset; 0: none).
TRUST_EMPTY: whether a repeated prewrite without a value counts, see `Matcher`."""

RECORD: Final = 64
"""Bytes of a record's header."""
R_START, R_SLOT, R_LIVE, R_GENERATION, R_HASH, R_KEY_SIZE, R_VALUE_SIZE, R_OLD_SIZE = range(8)
"""A record's header in the arena: START, slot, LIVE, GENERATION, HASH, three sizes. LIVE is the slot's
resolved ts when the record was made (at least 1), 0 once it is dead: then START is the offset of the next
dead one (0: none)."""

FREE_LISTS: Final = 256
"""Lists of dead records whose room may be used again, one for each size class."""

WAIT_RECORD: Final = 48
"""Bytes of a waiting record's header: next, START, COMMIT, kind << 8 | op, key size, slot."""

LOG_WORDS: Final = 10
(
    L_SIZE,
    L_SLOT,
    L_KIND,
    L_OP,
    L_START,
    L_COMMIT,
    L_GENERATION,
    L_KEY_SIZE,
    L_VALUE_SIZE,
    L_OLD_SIZE,
) = range(LOG_WORDS)
LOG_RECORD: Final = 8 * LOG_WORDS
"""Bytes of a log record's header: the size of all of it, slot, kind, operation, timestamps, three sizes."""
FORCED: Final = 16
TICK: Final = 255
"""Kinds of log records beside those of rows: see `spill_kernels`."""

DONE, TABLE_FULL, LOG_FULL = range(3)
"""What `match` says: all applied; the table is as full as it may be; the log is full."""

GOOD, BAD, FULL = range(3)
"""What `scan` says: all scanned; message `counts[2]` is bad; the tables are too small."""

IN_MESSAGE: Final = np.uint64(1 << 63)
"""Marks an entry of the table of open prewrites whose row is still in its message."""

MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
MIXER: Final = np.uint64(0xD6E8FEB86659FD93)
"""Odd constants of the hashes."""


# Tables are passed by address: numba counts references of arrays at each call, inlined or not, which made
# the matcher four times slower.


@inline
def get_word(base: int, at: int) -> Any:
    """Word `at` of a table."""
    return load_u64(base + 8 * at)


@inline
def put_word(base: int, at: int, value: Any) -> None:
    """Write word `at` of a table."""
    store_u64(base + 8 * at, value)


@inline
def row_word(base: int, number: int, word: int) -> Any:
    """A word of row `number`."""
    return load_u64(base + 8 * (ROW_WORDS * number + word))


@inline
def put_row_word(base: int, number: int, word: int, value: Any) -> None:
    """Write a word of row `number`."""
    store_u64(base + 8 * (ROW_WORDS * number + word), value)


@inline
def slot_word(base: int, number: int, word: int) -> Any:
    """A word of slot `number`."""
    return load_u64(base + 8 * (SLOT_WORDS * number + word))


@inline
def put_slot_word(base: int, number: int, word: int, value: Any) -> None:
    """Write a word of slot `number`."""
    store_u64(base + 8 * (SLOT_WORDS * number + word), value)


@inline
def event_word(base: int, number: int, word: int) -> Any:
    """A word of event `number`."""
    return load_u64(base + 8 * (EVENT_WORDS * number + word))


@inline
def put_event_word(base: int, number: int, word: int, value: Any) -> None:
    """Write a word of event `number`."""
    store_u64(base + 8 * (EVENT_WORDS * number + word), value)


@inline
def put_note_word(base: int, number: int, word: int, value: Any) -> None:
    """Write a word of note `number`."""
    store_u64(base + 8 * (NOTE_WORDS * number + word), value)


@inline
def put_out_word(base: int, number: int, word: int, value: Any) -> None:
    """Write a word of change `number`."""
    store_u64(base + 8 * (OUT_WORDS * number + word), value)


@inline
def get_int(base: int, at: int) -> Any:
    """Signed word `at` of a table."""
    return load_i64(base + 8 * at)


@inline
def put_int(base: int, at: int, value: Any) -> None:
    """Write a signed word."""
    store_u64(base + 8 * at, np.uint64(value))


@inline
def table_mask(base: int) -> Any:
    """A table's number of places or buckets, a power of two, less one: the word before its first."""
    return load_i64(base - 8)


def slot_index(places: int) -> I64:
    """An empty index of slots; `places` is a power of two. The kernels take `index_address`."""
    index = np.full(places + 1, -1, dtype=np.int64)
    index[0] = places - 1
    return index


def index_address(index: I64) -> int:
    """Where an index's first place is; the word before it holds the mask."""
    return address(index) + 8
