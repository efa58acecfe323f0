"""The tables that the compiled scan and matcher of a stream share: their words, by name.

Each is an array of u64 words: the `events` and `rows` of a batch of messages, the `registrations`, the
completed changes (`out`), the `notes` for the caller, the arenas of open and waiting rows, and the index of
registrations. The table of open prewrites is in `bucket_kernels`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.kernel import address, inline, load_i64, load_u64, store_u64
from tidegate.kernel_layout import Layout, pointer, signed, word
from tidegate.proto.cdcpb_pb2 import Event

i64: Any = np.int64
"""Untyped, because for mypy numpy's integers are not `int`; inside a kernel it is numba's int64."""

WORD: Final = 8
"""Bytes of a word. Records of changing size are padded to whole words."""

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

EVENT: Final = Layout(
    "event", "E_", "An event of a batch of messages, as `scan` found it.",
    kind=word("ROWS, ERROR, RESOLVED, RESOLVED_MANY or OTHER"),
    region=word("its region's id"),
    request=word("its request's id"),
    first=word("its first row; of an error and of resolved regions the address of their message"),
    end=word("the row after its last"),
    ts=word("the resolved ts", "ts"),
    size=word("of an error and of resolved regions, the size of their message", "bytes"),
    registration=signed("the registration, filled in by `locate`; -1: none"),
)  # fmt: skip
EVENT_WORDS: Final = len(EVENT.fields)
E_KIND, E_REGION, E_REQUEST, E_FIRST, E_END, E_TS, E_SIZE, E_REGISTRATION = EVENT.words()

ROWS, ERROR, RESOLVED, RESOLVED_MANY, OTHER = range(5)
"""Kinds of events; OTHER is ignored (admin, long transactions)."""

ROW: Final = Layout(
    "row", "", "A row of a batch of messages; key and values stay where they are.",
    start=word("its start_ts", "ts"),
    commit=word("its commit_ts; 0 in a prewrite", "ts"),
    key=pointer("its key"),
    value=pointer("its value"),
    old=pointer("its old value; of a raw row the varint of its expiry"),
    key_size=word("size of the key", "bytes"),
    value_size=word("size of the value", "bytes"),
    old_size=word("size of the old value", "bytes"),
    kind=word("PREWRITE_ROW, COMMIT_ROW, ROLLBACK_ROW, COMMITTED_ROW or INITIALIZED_ROW"),
    op=word("OP_PUT or OP_DELETE"),
    generation=word("the generation of a pipelined transaction; 0: it is not pipelined"),
    hash=word("of start_ts and key; `locate` adds the registration to it"),
    row_registration=signed("its registration; -1: none"),
    place=word("where the table of open prewrites refers to it; 0: nowhere"),
)  # fmt: skip
ROW_WORDS: Final = len(ROW.fields)
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
    ROW_REGISTRATION,
    PLACE,
) = ROW.words()

PREWRITE_ROW: Final = np.uint64(Event.LogType.PREWRITE)
COMMIT_ROW: Final = np.uint64(Event.LogType.COMMIT)
ROLLBACK_ROW: Final = np.uint64(Event.LogType.ROLLBACK)
COMMITTED_ROW: Final = np.uint64(Event.LogType.COMMITTED)
INITIALIZED_ROW: Final = np.uint64(Event.LogType.INITIALIZED)
"""Kinds of rows, as cdcpb numbers them."""

MOVED_ROOM: Final = 1 << 16
"""The length of `moved`; later entries overwrite earlier ones, see `match`."""

REGISTRATION: Final = Layout(
    "registration",
    "REG_",
    "A registration; changes come out with its span, a risen resolved ts with its mark.",
    state=word("FREE, SCANNING, LIVE or STOPPED"),
    region=word("its region's id"),
    request=word("its request's id"),
    checkpoint=word("changes up to it are not wanted", "ts"),
    resolved=word("no commit at or below it can come", "ts"),
    span=word("the owner's number of its span"),
    from_=pointer("the first key of its range"),
    from_size=word("size of the first key", "bytes"),
    to=pointer("the key after its range"),
    to_size=word("size of the key after the range; 0: the range has no end", "bytes"),
    head=word("its first waiting row: offset + 1 in the waiting arena; 0: none", "bytes"),
    tail=word("its last waiting row", "bytes"),
    open=word("what its open prewrites take in the arena", "bytes"),
    waiting=word("how many rows wait"),
    mark=word("the owner's number of its mark"),
    spilled=word("1: its rows go to the log instead of being matched"),
    due=word("of a spilled one, a resolved ts to be reported once its rows are matched; 0: none", "ts"),
    least=word("of a spilled one, the least ts of a commit or rollback in the log; 0: none", "ts"),
    records=word("1: keys that are no records of tables do not count"),
)  # fmt: skip
REGISTRATION_WORDS: Final = len(REGISTRATION.fields)
(
    REG_STATE,
    REG_REGION,
    REG_REQUEST,
    REG_CHECKPOINT,
    REG_RESOLVED,
    REG_SPAN,
    REG_FROM,
    REG_FROM_SIZE,
    REG_TO,
    REG_TO_SIZE,
    REG_HEAD,
    REG_TAIL,
    REG_OPEN,
    REG_WAITING,
    REG_MARK,
    REG_SPILLED,
    REG_DUE,
    REG_LEAST,
    REG_RECORDS,
) = REGISTRATION.words()

FREE, SCANNING, LIVE, STOPPED = range(4)
"""States of a registration: unused; until INITIALIZED; after it; ended: its rows are ignored."""

CHANGE: Final = Layout(
    "change", "O_", "A completed change that is passed on; key and values are in a message or an arena.",
    commit=word("its commit_ts", "ts"),
    start=word("its start_ts", "ts"),
    op=word("OP_PUT or OP_DELETE"),
    key=pointer("its key"),
    value=pointer("its value"),
    old=pointer("its old value"),
    key_size=word("size of the key", "bytes"),
    value_size=word("size of the value", "bytes"),
    old_size=word("size of the old value", "bytes"),
    span=word("the span of its registration"),
)  # fmt: skip
OUT_WORDS: Final = len(CHANGE.fields)
O_COMMIT, O_START, O_OP, O_KEY, O_VALUE, O_OLD, O_KEY_SIZE, O_VALUE_SIZE, O_OLD_SIZE, O_SPAN = CHANGE.words()

NOTE: Final = Layout(
    "note", "N_", "A note for the owner of a registration, which must act on it.",
    kind=word("NOTE_INITIALIZED, NOTE_ERROR or NOTE_VIOLATED"),
    registration=word("the registration"),
    a=word("of an error the address of its Event, of a violation which one it is"),
    b=word("of an error the size of its Event, of a violation the commit_ts"),
)  # fmt: skip
NOTE_WORDS: Final = len(NOTE.fields)
N_KIND, N_REGISTRATION, N_A, N_B = NOTE.words()
NOTE_INITIALIZED, NOTE_ERROR, NOTE_VIOLATED = range(1, 4)

COUNTS: Final = Layout(
    "counts", "C_", "In and out of `match`, `keep` and the kernels of the log.",
    out=signed("changes in `out`"),
    notes=signed("notes"),
    moved=signed("risen resolved ts; more than MOVED_ROOM: any may have risen"),
    kept=signed("rows in `kept`"),
    arena=signed("used of the arena", "bytes"),
    live=signed("open prewrites in the arena", "bytes"),
    open_rows=signed("entries in the table of open prewrites"),
    waiting=signed("used of the waiting arena", "bytes"),
    event=signed("the event to continue with"),
    row=signed("the row to continue with"),
    log=signed("used of the log", "bytes"),
    passes=signed("of rows that come back from a log: how many passes are made over it; 0: they do not"),
    pass_=signed("which pass this is: only rows whose hash falls to it are taken"),
    ended=signed("the last of the records that ended in this call, by offset; 0: none", "bytes"),
    trust_empty=signed("1: a repeated prewrite without a value counts, see `Matcher`"),
)  # fmt: skip
COUNT_WORDS: Final = len(COUNTS.fields)
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
) = COUNTS.words()

SCANNED: Final = Layout(
    "scanned", "SCANNED_", "The result of `scan`.",
    events=signed("events"),
    rows=signed("rows"),
    message=signed("the message it stopped at"),
)  # fmt: skip
SCANNED_EVENTS, SCANNED_ROWS, SCANNED_MESSAGE = SCANNED.words()

PREWRITE: Final = Layout(
    "record", "R_", "An open prewrite in the arena: this header, then its key, value and old value.",
    start=word("its start_ts; of a dead one the offset of the next dead one, 0: none", "ts"),
    registration=word("its registration"),
    live=word("the registration's resolved ts when it was made, at least 1; 0: it is dead", "ts"),
    generation=word("the generation of a pipelined transaction; 0: it is not pipelined"),
    hash=word("of its registration, start_ts and key"),
    key_size=word("size of the key", "bytes"),
    value_size=word("size of the value", "bytes"),
    old_size=word("size of the old value", "bytes"),
)  # fmt: skip
RECORD: Final = PREWRITE.size
"""Bytes of a record's header."""
R_START, R_REGISTRATION, R_LIVE, R_GENERATION, R_HASH, R_KEY_SIZE, R_VALUE_SIZE, R_OLD_SIZE = PREWRITE.words()

FREE_LISTS: Final = 256
"""The number of lists of dead records whose space can be reused, one for each size class."""

WAITING: Final = Layout(
    "waiting row", "W_", "A commit or rollback before INITIALIZED: this header, then its key, padded.",
    next=word("the registration's next one: offset + 1; 0: none", "bytes"),
    start=word("its start_ts", "ts"),
    commit=word("its commit_ts", "ts"),
    kind=word("kind << 8 | operation"),
    key_size=word("size of the key", "bytes"),
    registration=word("its registration"),
)  # fmt: skip
W_NEXT, W_START, W_COMMIT, W_KIND, W_KEY_SIZE, W_REGISTRATION = WAITING.words()
KIND_SHIFT: Final = np.uint64(8)
OPERATION_MASK: Final = np.uint64(0xFF)
"""How W_KIND holds a kind and an operation."""
WAIT_RECORD: Final = WAITING.size
"""Bytes of a waiting record's header."""

LOGGED: Final = Layout(
    "logged row", "L_", "A row on disk: this header, then its key, value and old value, padded.",
    size=word("size of the whole row", "bytes"),
    registration=word("its registration"),
    kind=word("its kind, or FORCED + kind, or TICK: see `spill_kernels`"),
    op=word("OP_PUT or OP_DELETE"),
    start=word("its start_ts", "ts"),
    commit=word("its commit_ts; of a TICK the resolved ts", "ts"),
    generation=word("the generation of a pipelined transaction; 0: it is not pipelined"),
    key_size=word("size of the key", "bytes"),
    value_size=word("size of the value", "bytes"),
    old_size=word("size of the old value", "bytes"),
)  # fmt: skip
LOG_WORDS: Final = len(LOGGED.fields)
(
    L_SIZE,
    L_REGISTRATION,
    L_KIND,
    L_OP,
    L_START,
    L_COMMIT,
    L_GENERATION,
    L_KEY_SIZE,
    L_VALUE_SIZE,
    L_OLD_SIZE,
) = LOGGED.words()
LOG_RECORD: Final = LOGGED.size
"""Bytes of a log record's header."""
FORCED: Final = 16
TICK: Final = 255
"""Additional kinds of log records: see `spill_kernels`."""

DONE, TABLE_FULL, LOG_FULL = range(3)
"""Results of `match`: all events were applied; the table of open prewrites is full; the log is full."""

GOOD, BAD, FULL = range(3)
"""Results of `scan`: all messages were scanned; message `counts[SCANNED_MESSAGE]` is malformed; the tables
are too small."""

IN_MESSAGE: Final = np.uint64(1 << 63)
"""Marks an entry of the table of open prewrites whose row is still in its message."""

MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
MIXER: Final = np.uint64(0xD6E8FEB86659FD93)
"""Odd constants of the hashes."""


class Tables(NamedTuple):
    """The arguments of `match`: addresses of tables, and the size of the log.

    numba unpacks a named tuple when it compiles, so the tuple costs no more than its parts.
    """

    events: int
    rows: int
    registrations: int
    registration_index: int
    """The index of registrations, see `index_address`."""
    table: int
    """The table of open prewrites, see `bucket_kernels.table_address`."""
    arena: int
    """Open prewrites of earlier batches, in the layout PREWRITE."""
    waiting: int
    """Commits and rollbacks that arrived before INITIALIZED, in the layout WAITING."""
    out: int
    notes: int
    moved: int
    """Registrations whose resolved ts rose."""
    kept: int
    """The portion's prewrites; `keep` copies those that are still open."""
    log: int
    log_size: int
    """The size of the log in bytes."""
    counts: int


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


row_word, put_row_word = ROW.accessors()
registration_word, put_registration_word = REGISTRATION.accessors()
event_word, put_event_word = EVENT.accessors()
out_word, put_out_word = CHANGE.accessors()
_, put_note_word = NOTE.accessors()
"""A word of record `number` of a table: `row_word(rows, number, KEY)`."""


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
    """The word before a table's first place: its number of places or buckets, a power of two, minus one."""
    return load_i64(base - 8)


def registration_index(places: int) -> I64:
    """An empty index of registrations; `places` is a power of two. The kernels take `index_address`."""
    index = np.full(places + 1, -1, dtype=np.int64)
    index[0] = places - 1
    return index


def index_address(index: I64) -> int:
    """The address of an index's first place; the word before it holds the mask."""
    return address(index) + 8
