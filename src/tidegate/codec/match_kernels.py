"""Match kernels: JSON messages of a known shape, walked along a template of their table.

Rows of one table differ only in their values. `match_items` walks a *template* (pieces: a constant that
must stand there, then a value) over each message and notes where each value stands; `decode_kernels` turns
the spans into Arrow buffers. Where a producer writes an object's members in an order of its own each time
(Go's maps), or leaves some out, the piece is a set of members, found by a hash of their names.

Which templates are tried is told by the names of schema and table at the head of a message (`route`), so
that a thousand tables in turns cost what one costs. Whatever does not match is left to the plain decoders,
which alone decide what is a bad message.

All reads stay inside the message; addresses are int64.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tidegate.codec.layout_kernels import (
    MESSAGE_BYTES,
    MESSAGE_KEY,
    MESSAGE_KEY_SIZE,
    MESSAGE_VALUE,
    MESSAGE_VALUE_SIZE,
    RUN_AT,
    RUN_BYTES,
    RUN_SIZE,
)
from tidegate.kernel import (
    address,
    bswap64,
    cttz64,
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    same_bytes,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.kernel_ascii import (
    BACKSLASH,
    CLOSE_BRACE,
    COMMA,
    FALS_TEXT,
    LOWER_E,
    LOWER_F,
    LOWER_N,
    LOWER_T,
    MINUS,
    NINE,
    NOT_ASCII,
    NULL_TEXT,
    PLUS,
    POINT,
    QUOTE,
    SPACE,
    TRUE_TEXT,
    UPPER_E,
    ZERO,
)
from tidegate.kernel_layout import Layout, pointer, signed, word
from tidegate.tidb.kernels.json import utf8_size
from tidegate.tidb.kernels.text import I64, U64

# Forms of a template's piece: what follows its constant.
CELL: Final = 0  # any scalar, booleans too; its span goes to a cell
NUMBER: Final = 1  # an integer that nobody needs
TIMESTAMP: Final = 2  # an unsigned integer: the commit ts
MILLISECONDS: Final = 3  # an unsigned integer: milliseconds, the commit ts where there is none
OPTIONAL: Final = 4  # constant and integer together may be missing
END: Final = 5  # the item may end here, as operation `cell`
WRAPPED: Final = 6  # null, or the constant of the WRAPPER behind it, a string and `}`; the string is the cell
WRAPPER: Final = 7  # no piece of its own: what stands before the string of the WRAPPED before it
MEMBERS: Final = 8  # the members of an object in any order, with its `}`; the cell is a set's address
TEXT_ALONE: Final = 9  # nothing follows the constant, of a member or of a piece
STRING: Final = 10  # of a route: a string that tells where the message belongs
OPTIONAL_TEXT: Final = 11  # the constant alone, and it may be missing
OPTIONAL_STRING: Final = 12  # constant and a string without escapes, which nobody needs, may be missing
SEEN: Final = 13  # a cell that is repeated later, with the same number; a string has no escapes
PIECE: Final = Layout(
    "template piece", "PIECE_", "A part of a template, or a member of a set: a constant, then a value.",
    const=pointer("the constant; of a member it begins with the name in quotes"),
    length=signed("of the constant", "bytes"),
    form=signed("what follows the constant, see CELL and the others"),
    cell=signed("the value's cell; of MEMBERS the address of their set, of END the operation"),
)  # fmt: skip
PIECE_CONST, PIECE_LENGTH, PIECE_FORM, PIECE_CELL = PIECE.offsets()
PIECE_BYTES: Final = PIECE.size

SET: Final = Layout(
    "member set", "S_", "The members of an object that come in any order.",
    count=signed("members"),
    partial=signed("1: some may be missing"),
    shift=signed("a missing member has the span of the cell so much lower"),
    mask=signed("places of the hash table, less one"),
    hashes=pointer("i32: an entry's number + 1, by the hash of its name; 0: none"),
    stamps=pointer("i64: the generation in which an entry was last met"),
    entries=pointer("a PIECE for each member"),
    generation=signed("counts objects"),
    tail=pointer("what stands behind each value"),
    tail_length=signed("of that", "bytes"),
)  # fmt: skip
SET_WORDS: Final = len(SET.fields)
(
    S_COUNT, S_PARTIAL, S_SHIFT, S_MASK, S_HASHES, S_STAMPS, S_ENTRIES, S_GENERATION, S_TAIL, S_TAIL_LENGTH,
) = SET.offsets()  # fmt: skip
ENTRY_BYTES: Final = PIECE.size

RESULT: Final = Layout(
    "match result", "RESULT_", "What an item is.",
    op=signed("its operation"),
    ts=word("its commit_ts", "ts"),
    template=signed("the template it matched; -1: none"),
    span=signed("the number of its first span"),
)  # fmt: skip
RESULT_OP, RESULT_TS, RESULT_TEMPLATE, RESULT_SPAN = RESULT.offsets()
RESULT_BYTES: Final = RESULT.size

ROUTE: Final = Layout(
    "route", "ROUTE_", "A place of the hash table that leads from the head of an item to its templates.",
    hash=word("the hash of the head"),
    template=signed("the number + 1 of the template to be tried first; 0: the place is empty"),
)  # fmt: skip
ROUTE_HASH, ROUTE_TEMPLATE = ROUTE.offsets()
_ROUTE: Final = ROUTE.size
_LISTS: Final = 4
"""Lists of pieces of a template, a RUN each: of its key, and three alternatives for its value."""
_LISTS_BYTES: Final = _LISTS * RUN_BYTES
_BATCH_VERSION: Final = U64(0x0100000000000000)
"""The number 1 as a batch's key begins with it, big-endian."""
_LENGTH: Final = 8
"""Bytes of a length in a batch, and of its version."""


class Spans(NamedTuple):
    """What `match_items` finds: results, and where each span begins (i64) and how long it is (i32)."""

    results: int
    starts: int
    lengths: int


class Templates(NamedTuple):
    """The templates of all tables, and the way to them."""

    lists: int
    """_LISTS lists of pieces for each template."""
    strides: int
    """i64: the spans that an item of a template takes."""
    following: int
    """i64: the template to be tried after one, or -1. A chain's first is the one that matched last."""
    routes: int
    """A ROUTE in each of `mask` + 1 places, by open addressing."""
    mask: int
    head: int
    """The pieces of `route`."""
    head_pieces: int
    head_at: int
    """MESSAGE_KEY or MESSAGE_VALUE: where they are looked for."""


class Ranks(NamedTuple):
    """In which order tables come, and what `order_items` counts of each."""

    ranks: int
    """i64 of each template."""
    rank_count: int
    counts: int
    """i64[rank_count + 1], where the items of each rank begin."""
    ops: int
    """u8[rank_count], bits 1 << operation."""


NULL_SPAN: Final = -1
ESCAPED: Final = 1
IS_STRING: Final = 2

_QUOTES: Final = U64(0x2222222222222222)
_BACKSLASHES: Final = U64(0x5C5C5C5C5C5C5C5C)
_SPACES: Final = U64(0x2020202020202020)
_ONES: Final = U64(0x0101010101010101)
_HIGH_BITS: Final = U64(0x8080808080808080)
_MIX: Final = U64(0x9E3779B97F4A7C15)


@inline
def scan_digits(at: int, end: int) -> int:
    """The end of a run of decimal digits."""
    while at < end and ZERO <= I64(load_u8(at)) <= NINE:
        at += 1
    return at


@inline
def scan_number(at: int, end: int) -> int:
    """The end of the JSON number (RFC 8259, section 6) at `at`; `at` itself when none stands there.

    The grammar is checked, not only the characters: the plain decoders refuse `0613`, `1.` and `-`, so a
    message that holds one must not match a template. They also refuse what is infinite as a double, so a
    number that might be (more than two digits of exponent, or 300 before it) is left to them.
    """
    first = at + (at < end and load_u8(at) == MINUS)
    stop = scan_digits(first, end)
    if stop == first or stop - first > 300 or (stop - first > 1 and load_u8(first) == ZERO):
        return at
    if stop < end and load_u8(stop) == POINT:
        fraction = scan_digits(stop + 1, end)
        if fraction == stop + 1:
            return at
        stop = fraction
    if stop < end and (load_u8(stop) == LOWER_E or load_u8(stop) == UPPER_E):
        exponent = stop + 1
        exponent += exponent < end and (load_u8(exponent) == PLUS or load_u8(exponent) == MINUS)
        stop = scan_digits(exponent, end)
        if stop == exponent or stop - exponent > 2:
            return at
    return stop


@inline
def scan_bool(at: int, end: int) -> int:
    """The end of `true` or `false`; `at` itself when neither stands there."""
    if end - at >= 4 and load_u32(at) == TRUE_TEXT:
        return at + 4
    if end - at >= 5 and load_u32(at) == FALS_TEXT and load_u8(at + 4) == LOWER_E:
        return at + 5
    return at


@inline
def scan_string(at: int, end: int) -> tuple[int, int]:
    """(address of the closing quote or 0, ESCAPED if there is a backslash), from after the first quote."""
    flags = 0
    while at < end:
        if at + 8 <= end:
            # Of the marks below only the lowest is exact: a borrow may set others above it.
            bits = load_u64(at)
            quote = bits ^ _QUOTES
            slash = bits ^ _BACKSLASHES
            marks = (bits - _SPACES) | (quote - _ONES) | (slash - _ONES) | bits
            marks &= _HIGH_BITS
            if marks == U64(0):
                at += 8
                continue
            at += I64(cttz64(marks)) >> 3
        byte = I64(load_u8(at))
        if byte == QUOTE:
            return at, flags
        if byte < SPACE:
            return 0, 0
        if byte == BACKSLASH:
            flags = ESCAPED
            at += 2
        elif byte < NOT_ASCII:
            at += 1
        else:
            used = utf8_size(at, end - at)
            if used < 0:
                return 0, 0
            at += used
    return 0, 0


@inline
def read_unsigned(at: int, end: int) -> Any:
    """A U64 of plain digits; more than 64 bits or anything else is 2**64 - 1 (no such timestamp)."""
    value = U64(0)
    if at >= end or end - at > 19:
        return ~U64(0)
    while at < end:
        digit = I64(load_u8(at)) - ZERO
        if digit < 0 or digit > 9:
            return ~U64(0)
        value = value * U64(10) + U64(digit)
        at += 1
    return value


@inline
def hash_text(at: int, size: int, end: int) -> Any:
    """A hash of `size` bytes; words are read up to `end`."""
    found = U64(size) * _MIX
    while size >= 8:
        found = (found ^ load_u64(at)) * _MIX
        found ^= found >> U64(29)
        at += 8
        size -= 8
    if size > 0:
        word = U64(0)
        if end - at >= 8:
            word = load_u64(at) & ((U64(1) << U64(8 * size)) - U64(1))
        else:
            for i in range(size):
                word |= U64(load_u8(at + i)) << U64(8 * i)
        found = (found ^ word) * _MIX
        found ^= found >> U64(29)
    return found ^ (found >> U64(32))


@kernel
def hash_name(at: int, size: int) -> int:
    """`hash_text` of a name, as Python fills the hash table of a set with it.

    Reads the name. Writes nothing. Bound: `size` bytes. Twin: none, because a table must be filled with the
    very hash by which `find_member` searches it.
    """
    return I64(hash_text(at, size, at + size))


@inline
def route(at: int, end: int, pieces: int, count: int) -> Any:
    """The hash of the strings among the pieces at an item's head; 0 when it begins with something else."""
    found = U64(1)
    for i in range(count):
        piece = pieces + PIECE_BYTES * i
        size = load_i64(piece + PIECE_LENGTH)
        if size >= end - at or not same_bytes(at, load_i64(piece + PIECE_CONST), size):
            return U64(0)
        at += size
        if load_i64(piece + PIECE_FORM) == STRING:
            if load_u8(at) != QUOTE:
                return U64(0)
            close, _ = scan_string(at + 1, end)
            if close == 0:
                return U64(0)
            found = (found ^ hash_text(at + 1, close - at - 1, end)) * _MIX
            at = close + 1
        else:
            stop = scan_digits(at, end)
            if stop == at:
                return U64(0)
            at = stop
    return found | U64(1)


@kernel
def route_of(at: int, size: int, pieces: int, count: int) -> int:
    """`route` of a text, as Python fills the table of routes with it.

    Reads the text and the pieces. Writes nothing. Bound: `size` bytes. Twin: none, because a table must be
    filled with the very hash by which `match_items` searches it.
    """
    return I64(route(at, at + size, pieces, count))


@inline
def scalar(at: int, end: int, form: int, cell: int, starts: int, lengths: int, result: int) -> int:
    """The end of the scalar at `at`, its span noted; 0 where none stands that the form allows."""
    if at >= end:
        return 0
    byte = I64(load_u8(at))
    if form == CELL and byte == QUOTE:
        close, flags = scan_string(at + 1, end)
        if close == 0:
            return 0
        store_u64(starts + 8 * cell, ((at + 1) << 2) | flags | IS_STRING)
        store_u32(lengths + 4 * cell, close - at - 1)
        return close + 1
    if form in (CELL, WRAPPED) and byte == LOWER_N:
        if end - at < 4 or load_u32(at) != NULL_TEXT:
            return 0
        store_u64(starts + 8 * cell, 0)
        store_u32(lengths + 4 * cell, NULL_SPAN)
        return at + 4
    stop = scan_bool(at, end) if (byte == LOWER_T or byte == LOWER_F) else scan_number(at, end)
    if stop == at:
        return 0
    if form == CELL:
        store_u64(starts + 8 * cell, at << 2)
        store_u32(lengths + 4 * cell, stop - at)
    elif byte == LOWER_T or byte == LOWER_F:
        return 0
    elif form in (TIMESTAMP, MILLISECONDS):
        ts = read_unsigned(at, stop)
        if ts == ~U64(0) or (form == MILLISECONDS and ts >> U64(46) != U64(0)):
            return 0
        store_u64(result + RESULT_TS, ts << U64(18) if form == MILLISECONDS else ts)
    return stop


@inline
def find_member(at: int, end: int, members: int) -> int:
    """The number of the entry whose constant stands at `at`, by its name; -1 when there is none."""
    if at + 1 >= end or load_u8(at) != QUOTE:
        return -1
    close, _ = scan_string(at + 1, end)
    if close == 0:
        return -1
    mask = load_i64(members + S_MASK)
    hashes = load_i64(members + S_HASHES)
    place = I64(hash_text(at + 1, close - at - 1, end)) & mask
    while True:
        number = I64(load_i32(hashes + 4 * place)) - 1
        if number < 0:
            return -1
        entry = load_i64(members + S_ENTRIES) + ENTRY_BYTES * number
        size = load_i64(entry + PIECE_LENGTH)
        if size <= end - at and same_bytes(at, load_i64(entry + PIECE_CONST), size):
            return number
        place = (place + 1) & mask


@inline
def walk_members(at: int, end: int, members: int, starts: int, lengths: int, result: int) -> int:
    """The end of an object whose members come in any order, from after its `{`; 0 when it is another one."""
    count = load_i64(members + S_COUNT)
    generation = load_i64(members + S_GENERATION) + 1
    store_u64(members + S_GENERATION, generation)
    partial = load_i64(members + S_PARTIAL)
    if at < end and load_u8(at) == CLOSE_BRACE:
        return at + 1 if partial or count == 0 else 0
    entries = load_i64(members + S_ENTRIES)
    stamps = load_i64(members + S_STAMPS)
    tail = load_i64(members + S_TAIL)
    tail_length = load_i64(members + S_TAIL_LENGTH)
    expected = 0
    met = 0
    while True:
        number = expected
        entry = entries + ENTRY_BYTES * number
        size = load_i64(entry + PIECE_LENGTH)
        if number >= count or size > end - at or not same_bytes(at, load_i64(entry + PIECE_CONST), size):
            number = find_member(at, end, members)
            if number < 0:
                return 0
            entry = entries + ENTRY_BYTES * number
            size = load_i64(entry + PIECE_LENGTH)
        # The plain decoders take the last of two members of one name; that is left to them.
        if load_i64(stamps + 8 * number) == generation:
            return 0
        store_u64(stamps + 8 * number, generation)
        at += size
        form = load_i64(entry + PIECE_FORM)
        if form != TEXT_ALONE:
            at = scalar(at, end, form, load_i64(entry + PIECE_CELL), starts, lengths, result)
            if at == 0 or tail_length > end - at or not same_bytes(at, tail, tail_length):
                return 0
            at += tail_length
        met += 1
        expected = number + 1
        if at >= end:
            return 0
        byte = load_u8(at)
        at += 1
        if byte == CLOSE_BRACE:
            return at if partial or met == count else 0
        if byte != COMMA:
            return 0


@inline
def fill_missing(members: int, starts: int, lengths: int) -> None:
    """Give the members that the last object left out the spans of the cells they stand for."""
    generation = load_i64(members + S_GENERATION)
    stamps = load_i64(members + S_STAMPS)
    entries = load_i64(members + S_ENTRIES)
    shift = load_i64(members + S_SHIFT)
    for i in range(load_i64(members + S_COUNT)):
        if load_i64(stamps + 8 * i) != generation:
            cell = load_i64(entries + ENTRY_BYTES * i + PIECE_CELL)
            store_u64(starts + 8 * cell, load_u64(starts + 8 * (cell - shift)))
            store_u32(lengths + 4 * cell, load_u32(lengths + 4 * (cell - shift)))


@inline
def walk(at: int, end: int, pieces: int, count: int, starts: int, lengths: int, result: int) -> bool:
    """Match one list of pieces; spans go to starts/lengths, operation and timestamp to `result`."""
    filled = 0
    for i in range(count):
        piece = pieces + PIECE_BYTES * i
        size = load_i64(piece + PIECE_LENGTH)
        form = load_i64(piece + PIECE_FORM)
        if form == WRAPPER:
            continue
        fits = size <= end - at and same_bytes(at, load_i64(piece + PIECE_CONST), size)
        if form == END:
            if fits and at + size == end:
                store_u64(result + RESULT_OP, load_i64(piece + PIECE_CELL))
                if filled != 0:
                    fill_missing(filled, starts, lengths)
                return True
            continue
        if not fits:
            if form in (OPTIONAL, OPTIONAL_TEXT, OPTIONAL_STRING):
                continue
            return False
        at += size
        if at >= end:
            return False
        if form >= TEXT_ALONE:
            # What an escape of a string stands for that nobody reads is not looked at, so none is let pass.
            if form == SEEN:
                cell = load_i64(piece + PIECE_CELL)
                at = scalar(at, end, CELL, cell, starts, lengths, result)
                if at == 0 or load_u64(starts + 8 * cell) & U64(ESCAPED) != U64(0):
                    return False
            if form == OPTIONAL_STRING:
                close, flags = scan_string(at + 1, end)
                if load_u8(at) != QUOTE or close == 0 or flags != 0:
                    return False
                at = close + 1
            continue
        cell = load_i64(piece + PIECE_CELL)
        if form == MEMBERS:
            at = walk_members(at, end, cell, starts, lengths, result)
            if at == 0:
                return False
            if load_i64(cell + S_PARTIAL):
                filled = cell
            continue
        if form == WRAPPED and load_u8(at) != LOWER_N:
            opening = piece + PIECE_BYTES
            size = load_i64(opening + PIECE_LENGTH)
            # A byte is left behind the constant, so that the quote may be looked at.
            if (
                size >= end - at
                or not same_bytes(at, load_i64(opening + PIECE_CONST), size)
                or load_u8(at + size) != QUOTE
            ):
                return False
            at += size + 1
            close, flags = scan_string(at, end)
            if close == 0 or close + 1 >= end or load_u8(close + 1) != CLOSE_BRACE:
                return False
            store_u64(starts + 8 * cell, (at << 2) | flags | IS_STRING)
            store_u32(lengths + 4 * cell, close - at)
            at = close + 2
            continue
        at = scalar(at, end, form, cell, starts, lengths, result)
        if at == 0:
            return False
    return False


@inline
def fits_template(item: int, lists: int, starts: int, lengths: int, result: int) -> bool:
    """Whether an item is one of a template, of whichever operation."""
    key = load_i64(item + MESSAGE_KEY)
    end = key + load_i64(item + MESSAGE_KEY_SIZE)
    pieces = load_i64(lists + RUN_SIZE)
    if pieces > 0 and not walk(key, end, load_i64(lists + RUN_AT), pieces, starts, lengths, result):
        return False
    value = load_i64(item + MESSAGE_VALUE)
    end = value + load_i64(item + MESSAGE_VALUE_SIZE)
    for alternative in range(1, _LISTS):
        one = lists + RUN_BYTES * alternative
        pieces = load_i64(one + RUN_SIZE)
        if pieces > 0 and walk(value, end, load_i64(one + RUN_AT), pieces, starts, lengths, result):
            return True
    return False


@kernel
def match_items(item_count: int, items: int, known: Templates, spans: Spans) -> int:
    """Match items, a MESSAGE each, with the templates of all tables; how many matched.

    Reads items and templates. Writes spans, and the order in which templates are tried. Bound: as many spans
    as the widest template has, for each item. Twin: the plain decoder of each protocol;
    `tests.contracts.test_codecs.test_damaged_messages_decode_alike` compares them. Trick: constants are
    compared 8 bytes at a time, and only what stands between them is scanned.
    """
    matched = 0
    span = 0
    for i in range(item_count):
        item = items + MESSAGE_BYTES * i
        result = spans.results + RESULT_BYTES * i
        store_u64(result + RESULT_TEMPLATE, -1)
        side = load_i64(item + known.head_at)
        hashed = route(side, side + load_i64(item + known.head_at + RUN_SIZE), known.head, known.head_pieces)
        if hashed == U64(0):
            continue
        place = I64(hashed) & known.mask
        found = known.routes + _ROUTE * place
        while load_i64(found + ROUTE_TEMPLATE) != 0 and load_u64(found + ROUTE_HASH) != hashed:
            place = (place + 1) & known.mask
            found = known.routes + _ROUTE * place
        first = load_i64(found + ROUTE_TEMPLATE) - 1
        number = first
        before = -1
        row_starts = spans.starts + 8 * span
        row_lengths = spans.lengths + 4 * span
        while number >= 0 and not fits_template(
            item, known.lists + _LISTS_BYTES * number, row_starts, row_lengths, result
        ):
            before = number
            number = load_i64(known.following + 8 * number)
        if number < 0:
            continue
        if before >= 0:
            store_u64(known.following + 8 * before, load_i64(known.following + 8 * number))
            store_u64(known.following + 8 * number, first)
            store_u64(found + ROUTE_TEMPLATE, number + 1)
        store_u64(result + RESULT_TEMPLATE, number)
        store_u64(result + RESULT_SPAN, span)
        span += load_i64(known.strides + 8 * number)
        matched += 1
    return matched


@kernel
def order_items(item_count: int, results: int, owner: int, missed: int, by: Ranks, order: int) -> int:
    """Items of whole messages by their template's rank, in their order within one; how many.

    owner: i32, an item's message; missed: u8, messages to be left out.

    Reads results. Writes `order`, and the counts and operations of `by`. Bound: an entry of `order` an item.
    Twin: none, because the order of tables is its own; rows of one table must come as the plain decoder gives
    them, which `tests.codec.test_decode.test_a_thousand_tables_in_turns_are_taken_by_the_kernel` compares.
    Trick: a counting sort, in two passes over the items.
    """
    counts, rank_count = by.counts, by.rank_count
    for i in range(item_count):
        template = load_i64(results + RESULT_BYTES * i + RESULT_TEMPLATE)
        if template >= 0 and load_u8(missed + I64(load_i32(owner + 4 * i))) == 0:
            rank = load_i64(by.ranks + 8 * template)
            store_u64(counts + 8 * (rank + 1), load_i64(counts + 8 * (rank + 1)) + 1)
            op = load_i64(results + RESULT_BYTES * i + RESULT_OP)
            store_u8(by.ops + rank, I64(load_u8(by.ops + rank)) | (1 << op))
    for rank in range(rank_count):
        store_u64(counts + 8 * (rank + 1), load_i64(counts + 8 * (rank + 1)) + load_i64(counts + 8 * rank))
    for i in range(item_count):
        template = load_i64(results + RESULT_BYTES * i + RESULT_TEMPLATE)
        if template >= 0 and load_u8(missed + I64(load_i32(owner + 4 * i))) == 0:
            rank = load_i64(by.ranks + 8 * template)
            place = load_i64(counts + 8 * rank)
            store_u64(order + 8 * place, i)
            store_u64(counts + 8 * rank, place + 1)
    # Each rank's beginning has become its end, which is the beginning of the next.
    total = load_i64(counts + 8 * rank_count)
    for rank in range(rank_count, 0, -1):
        store_u64(counts + 8 * rank, load_i64(counts + 8 * (rank - 1)))
    store_u64(counts, 0)
    return total


@kernel
def split_batches(message_count: int, messages: int, items: int, owner: int, room: int) -> int:
    """Items of messages that are batches, a MESSAGE each; how many items in all.

    owner: i32 per item, its message; after `room` of them i32 per item, its number within the message. A
    message that is not whole gets no item.

    Reads the lengths in keys and values. Writes `items` and `owner`, unless `room` is 0: then it only counts.
    Bound: `room` items. Twin: `tidegate.codec.protocols.open_protocol.plain.split_items`.
    """
    total = 0
    for i in range(message_count):
        message = messages + MESSAGE_BYTES * i
        key = load_i64(message + MESSAGE_KEY)
        key_end = key + load_i64(message + MESSAGE_KEY_SIZE)
        value = load_i64(message + MESSAGE_VALUE)
        value_end = value + load_i64(message + MESSAGE_VALUE_SIZE)
        if key_end - key < 2 * _LENGTH or load_u64(key) != _BATCH_VERSION:
            continue
        key += _LENGTH
        first = total
        whole = True
        while key < key_end or value < value_end:
            if key_end - key < _LENGTH or value_end - value < _LENGTH:
                whole = False
                break
            key_size = bswap64(load_u64(key))
            value_size = bswap64(load_u64(value))
            if key_size > U64(key_end - key - _LENGTH) or value_size > U64(value_end - value - _LENGTH):
                whole = False
                break
            if room > total:
                item = items + MESSAGE_BYTES * total
                store_u64(item + MESSAGE_KEY, key + _LENGTH)
                store_u64(item + MESSAGE_KEY_SIZE, key_size)
                store_u64(item + MESSAGE_VALUE, value + _LENGTH)
                store_u64(item + MESSAGE_VALUE_SIZE, value_size)
                store_u32(owner + 4 * total, i)
                store_u32(owner + 4 * (room + total), total - first)
            total += 1
            key += _LENGTH + I64(key_size)
            value += _LENGTH + I64(value_size)
        if not whole:
            total = first
    return total


def warm() -> None:
    """Compile what is not in numba's cache yet, over no rows."""
    spare = np.zeros(1, dtype=np.int64)  # of no ranks there is a beginning, too
    hash_name(0, 0)
    route_of(0, 0, 0, 0)
    match_items(0, 0, Templates(0, 0, 0, 0, 0, 0, 0, 0), Spans(0, 0, 0))
    order_items(0, 0, 0, 0, Ranks(0, 0, address(spare), 0), 0)
    split_batches(0, 0, 0, 0, 0)
