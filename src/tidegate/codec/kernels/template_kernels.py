"""The layouts of templates: pieces, sets of members, routes, and what a matched item is.

`codec.decoding.compiled` fills them for a protocol's templates; `codec.kernels.match_kernels` walks them over
messages.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.codec.kernels.layout_kernels import RUN_BYTES
from tidegate.kernel_layout import Layout, pointer, signed, word

# The forms of a template's piece: what follows its constant.
CELL: Final = 0  # any scalar, also a boolean; its span is stored in a cell
NUMBER: Final = 1  # an integer that is not used
TIMESTAMP: Final = 2  # an unsigned integer: the commit ts
MILLISECONDS: Final = 3  # an unsigned integer: milliseconds, for messages without a commit ts
OPTIONAL: Final = 4  # constant and integer together may be missing
END: Final = 5  # the item may end here, as operation `cell`
WRAPPED: Final = 6  # null, or the constant of the WRAPPER after it, a string and `}`; the string is the cell
WRAPPER: Final = 7  # no piece of its own: what precedes the string of the WRAPPED before it
MEMBERS: Final = 8  # the members of an object in any order, with its `}`; the cell is the address of a set
TEXT_ALONE: Final = 9  # nothing follows the constant of a member or piece
STRING: Final = 10  # in a route: a string that says to which table the message belongs
OPTIONAL_TEXT: Final = 11  # the constant alone, which may be missing
OPTIONAL_STRING: Final = 12  # constant and an unused string without escapes, which may be missing
SEEN: Final = 13  # a cell that comes again later under the same number; a string has no escapes
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
    tail=pointer("the text after each value"),
    tail_length=signed("size of the text after each value", "bytes"),
)  # fmt: skip
SET_WORDS: Final = len(SET.fields)
(
    S_COUNT, S_PARTIAL, S_SHIFT, S_MASK, S_HASHES, S_STAMPS, S_ENTRIES, S_GENERATION, S_TAIL, S_TAIL_LENGTH,
) = SET.offsets()  # fmt: skip
ENTRY_BYTES: Final = PIECE.size

RESULT: Final = Layout(
    "match result", "RESULT_", "The result of matching an item.",
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
ROUTE_BYTES: Final = ROUTE.size
LISTS: Final = 4
"""The lists of pieces of a template, a RUN each: one for its key, and three alternatives for its value."""
LISTS_BYTES: Final = LISTS * RUN_BYTES


class Spans(NamedTuple):
    """The output of `match_items`: results, and the start (i64) and length (i32) of each span."""

    results: int
    starts: int
    lengths: int


class Templates(NamedTuple):
    """The templates of all tables, and the hash table of routes to them."""

    lists: int
    """LISTS lists of pieces for each template."""
    strides: int
    """i64 for each template: how many spans an item takes."""
    following: int
    """i64 for each template: the one to try after it, or -1. A chain begins with the one that matched last.
    """
    routes: int
    """A ROUTE in each of `mask` + 1 places, by open addressing."""
    mask: int
    head: int
    """The pieces of `match_kernels.route`."""
    head_pieces: int
    head_at: int
    """MESSAGE_KEY or MESSAGE_VALUE: in which of them the head is."""


NULL_SPAN: Final = -1
ESCAPED: Final = 1
IS_STRING: Final = 2
SPAN_FLAGS: Final = ESCAPED | IS_STRING
SPAN_AT: Final = 2
"""The start of a span has its address from the bit SPAN_AT on, and the flags below it."""
