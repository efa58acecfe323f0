"""Match kernels: JSON messages of a known shape, walked along a template of their table.

Rows of one table differ only in their values. `match_items` walks a *template* (`template_kernels`: pieces,
each a constant that must be there and then a value) over each message and stores where each value is;
`decode_kernels` turns these spans into Arrow buffers. If a producer writes the members of an object in a
random order (as Go does for maps), or leaves some out, the piece is a set of members, found by a hash of
their names.

The names of schema and table at the head of a message (`route`) select the templates to try, so that messages
of a thousand tables in turns cost as much as those of one. A message that matches no template is left to the
plain decoders, which alone decide what is a bad message.

All reads stay inside the message; addresses are int64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidegate.codec.kernels.batch_kernels import split_batches
from tidegate.codec.kernels.json_scan_kernels import (
    MIX,
    NO_DIGITS,
    hash_name,
    hash_text,
    read_unsigned,
    scan_bool,
    scan_digits,
    scan_number,
    scan_string,
)
from tidegate.codec.kernels.layout_kernels import (
    MESSAGE_BYTES,
    MESSAGE_KEY,
    MESSAGE_KEY_SIZE,
    MESSAGE_VALUE,
    MESSAGE_VALUE_SIZE,
    RUN_AT,
    RUN_BYTES,
    RUN_SIZE,
)
from tidegate.codec.kernels.template_kernels import (
    CELL,
    END,
    ENTRY_BYTES,
    ESCAPED,
    IS_STRING,
    LISTS,
    LISTS_BYTES,
    MEMBERS,
    MILLISECONDS,
    NULL_SPAN,
    OPTIONAL,
    OPTIONAL_STRING,
    OPTIONAL_TEXT,
    PIECE_BYTES,
    PIECE_CELL,
    PIECE_CONST,
    PIECE_FORM,
    PIECE_LENGTH,
    RESULT_BYTES,
    RESULT_OP,
    RESULT_SPAN,
    RESULT_TEMPLATE,
    RESULT_TS,
    ROUTE_BYTES,
    ROUTE_HASH,
    ROUTE_TEMPLATE,
    S_COUNT,
    S_ENTRIES,
    S_GENERATION,
    S_HASHES,
    S_MASK,
    S_PARTIAL,
    S_SHIFT,
    S_STAMPS,
    S_TAIL,
    S_TAIL_LENGTH,
    SEEN,
    SPAN_AT,
    STRING,
    TEXT_ALONE,
    TIMESTAMP,
    WRAPPED,
    WRAPPER,
    Spans,
    Templates,
)
from tidegate.kernel import (
    address,
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
from tidegate.kernel_ascii import CLOSE_BRACE, COMMA, LOWER_F, LOWER_N, LOWER_T, NULL_TEXT, QUOTE
from tidegate.model.timestamp import LOGICAL_BITS
from tidegate.tidb.kernels.text import I64, U64


class Ranks(NamedTuple):
    """The order of tables, and what `order_items` counts for each."""

    ranks: int
    """i64 of each template."""
    rank_count: int
    counts: int
    """i64[rank_count + 1], where the items of each rank begin."""
    ops: int
    """u8[rank_count], bits 1 << operation."""


@inline
def route(at: int, end: int, pieces: int, count: int) -> Any:
    """The hash of the strings at the head of an item; 0 if the head does not match the pieces."""
    found = U64(1)
    for i in range(count):
        piece = pieces + PIECE_BYTES * i
        size = load_i64(piece + PIECE_LENGTH)
        # Not `>`: at least one byte must follow the constant, because the quote below is read unchecked.
        if size >= end - at or not same_bytes(at, load_i64(piece + PIECE_CONST), size):
            return U64(0)
        at += size
        if load_i64(piece + PIECE_FORM) == STRING:
            if load_u8(at) != QUOTE:
                return U64(0)
            close, _ = scan_string(at + 1, end)
            if close == 0:
                return U64(0)
            # The product makes the order count: schema `a` with table `b` is not schema `b` with table `a`.
            found = (found ^ hash_text(at + 1, close - at - 1, end)) * MIX
            at = close + 1
        else:
            # A number at the head, as the ts in the keys of open protocol, differs in each message. It is
            # not hashed, and so does not separate the messages of one table.
            stop = scan_digits(at, end)
            if stop == at:
                return U64(0)
            at = stop
    # Never 0, which means that the head does not match.
    return found | U64(1)


@kernel
def route_of(at: int, size: int, pieces: int, count: int) -> int:
    """`route` of a text, for Python, which fills the table of routes.

    Reads the text and the pieces. Writes nothing. Bound: `size` bytes. Twin: none, because a table must be
    filled with the same hash by which `match_items` searches it.
    """
    return I64(route(at, at + size, pieces, count))


@inline
def scalar(at: int, end: int, form: int, cell: int, starts: int, lengths: int, result: int) -> int:
    """Store the span of the scalar at `at`; returns its end, or 0 if the form does not allow the scalar."""
    if at >= end:
        return 0
    byte = I64(load_u8(at))
    if form == CELL and byte == QUOTE:
        close, flags = scan_string(at + 1, end)
        if close == 0:
            return 0
        # An address has far fewer than 62 bits, so both flags fit below it.
        store_u64(starts + 8 * cell, ((at + 1) << SPAN_AT) | flags | IS_STRING)
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
        store_u64(starts + 8 * cell, at << SPAN_AT)
        store_u32(lengths + 4 * cell, stop - at)
    elif byte == LOWER_T or byte == LOWER_F:
        return 0
    elif form in (TIMESTAMP, MILLISECONDS):
        ts = read_unsigned(at, stop)
        # Milliseconds are shifted up to make a ts. A number with a bit in the upper LOGICAL_BITS would lose
        # it.
        if ts == NO_DIGITS or (form == MILLISECONDS and ts >> U64(64 - LOGICAL_BITS) != U64(0)):
            return 0
        store_u64(result + RESULT_TS, ts << U64(LOGICAL_BITS) if form == MILLISECONDS else ts)
    return stop


@inline
def find_member(at: int, end: int, members: int) -> int:
    """The number of the entry whose constant is at `at`, found by its name; -1 if there is none."""
    if at + 1 >= end or load_u8(at) != QUOTE:
        return -1
    close, _ = scan_string(at + 1, end)
    if close == 0:
        return -1
    mask = load_i64(members + S_MASK)
    hashes = load_i64(members + S_HASHES)
    # The hash may be negative as a signed number, but the mask is not, so the place is inside the table. At
    # most half of the places are taken (`compiled._Set`), so the search ends.
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
    """Match the members of an object after its `{`, in any order; returns its end, or 0 if they differ."""
    count = load_i64(members + S_COUNT)
    generation = load_i64(members + S_GENERATION) + 1
    # A new generation instead of clearing the stamps: one write, however many members there are.
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
        # The member after the last one first: most producers keep one order.
        # After the last member this is the spare entry of the set (`compiled._Set`). It can be read, and
        # `number >= count` then refuses it.
        number = expected
        entry = entries + ENTRY_BYTES * number
        size = load_i64(entry + PIECE_LENGTH)
        if number >= count or size > end - at or not same_bytes(at, load_i64(entry + PIECE_CONST), size):
            number = find_member(at, end, members)
            if number < 0:
                return 0
            entry = entries + ENTRY_BYTES * number
            size = load_i64(entry + PIECE_LENGTH)
        # The plain decoders take the last of two members with one name; such a message is left to them.
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
    """Give each member that the object leaves out the span of the cell that it repeats."""
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
    """Match one list of pieces; stores spans in starts/lengths, operation and timestamp in `result`."""
    filled = 0
    for i in range(count):
        piece = pieces + PIECE_BYTES * i
        size = load_i64(piece + PIECE_LENGTH)
        form = load_i64(piece + PIECE_FORM)
        if form == WRAPPER:
            continue
        fits = size <= end - at and same_bytes(at, load_i64(piece + PIECE_CONST), size)
        # A template may have several ENDs, one for each way in which an item can end, so one that does not
        # fit is passed over.
        if form == END:
            if fits and at + size == end:
                store_u64(result + RESULT_OP, load_i64(piece + PIECE_CELL))
                # Only at the end: an image whose cells are repeated may come after the object that lacks
                # them.
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
            # Nobody decodes this string, so nobody would notice a bad escape in it: none is allowed.
            if form == SEEN:
                cell = load_i64(piece + PIECE_CELL)
                at = scalar(at, end, CELL, cell, starts, lengths, result)
                if at == 0 or load_u64(starts + 8 * cell) & U64(ESCAPED) != U64(0):
                    return False
            if form == OPTIONAL_STRING:
                # Scanned before the quote is checked. `at` is below `end`, so the scan stays inside the
                # message.
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
            # At least one byte follows the constant, so that the quote can be read.
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
            store_u64(starts + 8 * cell, (at << SPAN_AT) | flags | IS_STRING)
            store_u32(lengths + 4 * cell, close - at)
            at = close + 2
            continue
        at = scalar(at, end, form, cell, starts, lengths, result)
        if at == 0:
            return False
    return False


@inline
def fits_template(item: int, lists: int, starts: int, lengths: int, result: int) -> bool:
    """Whether an item matches a template, whatever its operation."""
    key = load_i64(item + MESSAGE_KEY)
    end = key + load_i64(item + MESSAGE_KEY_SIZE)
    pieces = load_i64(lists + RUN_SIZE)
    if pieces > 0 and not walk(key, end, load_i64(lists + RUN_AT), pieces, starts, lengths, result):
        return False
    value = load_i64(item + MESSAGE_VALUE)
    end = value + load_i64(item + MESSAGE_VALUE_SIZE)
    for alternative in range(1, LISTS):
        one = lists + RUN_BYTES * alternative
        pieces = load_i64(one + RUN_SIZE)
        if pieces > 0 and walk(value, end, load_i64(one + RUN_AT), pieces, starts, lengths, result):
            return True
    return False


@inline
def find_route(item: int, known: Templates) -> int:
    """The address of the ROUTE by which an item's templates are found; 0 if its head does not match."""
    side = load_i64(item + known.head_at)
    hashed = route(side, side + load_i64(item + known.head_at + RUN_SIZE), known.head, known.head_pieces)
    if hashed == U64(0):
        return 0
    place = I64(hashed) & known.mask
    found = known.routes + ROUTE_BYTES * place
    # Only hashes are compared. A collision costs the walk over a wrong template, which then does not fit.
    while load_i64(found + ROUTE_TEMPLATE) != 0 and load_u64(found + ROUTE_HASH) != hashed:
        place = (place + 1) & known.mask
        found = known.routes + ROUTE_BYTES * place
    return found


@kernel
def match_items(item_count: int, items: int, known: Templates, spans: Spans) -> int:
    """Match items, a MESSAGE each, with the templates of all tables; returns how many matched.

    Reads items and templates. Writes spans, and the order in which templates are tried. Bound: as many spans
    as the widest template has, for each item. Twin: the plain decoder of each protocol;
    `tests.contracts.test_codecs.test_damaged_messages_decode_alike` compares them. Trick: constants are
    compared 8 bytes at a time, and only the values between them are scanned. If two items in
    turn had one template, the next one tries it before its route is hashed.
    """
    matched = 0
    span = 0
    last = -1
    repeated = -1
    for i in range(item_count):
        item = items + MESSAGE_BYTES * i
        result = spans.results + RESULT_BYTES * i
        store_u64(result + RESULT_TEMPLATE, -1)
        found = 0
        number = repeated
        before = -1
        row_starts = spans.starts + 8 * span
        row_lengths = spans.lengths + 4 * span
        # A template that does not fit may have written spans. They are of no harm: `span` does not move, so
        # the next template or item overwrites them.
        while number < 0 or not fits_template(
            item, known.lists + LISTS_BYTES * number, row_starts, row_lengths, result
        ):
            # The chain of the item's route begins after the repeated template, which need not be in it.
            if found == 0:
                found = find_route(item, known)
                number = load_i64(found + ROUTE_TEMPLATE) - 1 if found != 0 else -1
            else:
                before = number
                number = load_i64(known.following + 8 * number)
            if number < 0:
                break
        repeated = number if number == last else -1
        last = number
        if number < 0:
            continue
        # The template that fitted moves to the front, because the next message is probably like this one.
        if before >= 0:
            store_u64(known.following + 8 * before, load_i64(known.following + 8 * number))
            store_u64(known.following + 8 * number, load_i64(found + ROUTE_TEMPLATE) - 1)
            store_u64(found + ROUTE_TEMPLATE, number + 1)
        store_u64(result + RESULT_TEMPLATE, number)
        store_u64(result + RESULT_SPAN, span)
        span += load_i64(known.strides + 8 * number)
        matched += 1
    return matched


@kernel
def order_items(item_count: int, results: int, owner: int, missed: int, by: Ranks, order: int) -> int:
    """Order the items of whole messages by the rank of their template, stably; returns how many there are.

    owner: i32, the message of an item; missed: u8, 1 for a message that is left out.

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
            # One place further than the rank, so that the sums below are starts and not ends.
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
    # The start of each rank has become its end, which is the start of the next rank.
    total = load_i64(counts + 8 * rank_count)
    for rank in range(rank_count, 0, -1):
        store_u64(counts + 8 * rank, load_i64(counts + 8 * (rank - 1)))
    store_u64(counts, 0)
    return total


def warm() -> None:
    """Compile the kernels that are not in numba's cache yet, by calling them with no rows."""
    spare = np.zeros(1, dtype=np.int64)  # even without ranks there is one start
    hash_name(0, 0)
    route_of(0, 0, 0, 0)
    match_items(0, 0, Templates(0, 0, 0, 0, 0, 0, 0, 0), Spans(0, 0, 0))
    order_items(0, 0, 0, 0, Ranks(0, 0, address(spare), 0), 0)
    split_batches(0, 0, 0, 0, 0)
