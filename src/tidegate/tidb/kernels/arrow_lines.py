"""The lines that the Arrow kernels (`arrow`) share: for each column how it is written, and what was found.

`mounter.columns` fills the first words of a line and reads the last ones.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tidegate.kernel_layout import Layout, pointer, signed


class Fill(IntEnum):
    """How the cells of a column are written."""

    WORD1 = 1
    WORD2 = 2
    WORD4 = 3
    WORD8 = 4
    WIDE = 5
    """An unsigned bigint as decimal128."""
    SINGLE = 6
    DECIMAL = 7
    DAYS = 8
    MICROS = 9
    BYTES = 10
    DECIMAL_TEXT = 11
    DURATION = 12
    JSON = 13
    ENUM = 14
    SET = 15
    VECTOR = 16


WORD1: Final = int(Fill.WORD1)
WORD2: Final = int(Fill.WORD2)
WORD4: Final = int(Fill.WORD4)
WORD8: Final = int(Fill.WORD8)
WIDE: Final = int(Fill.WIDE)
SINGLE: Final = int(Fill.SINGLE)
DECIMAL: Final = int(Fill.DECIMAL)
DAYS: Final = int(Fill.DAYS)
MICROS: Final = int(Fill.MICROS)
BYTES: Final = int(Fill.BYTES)
AS_TEXT: Final = int(Fill.DECIMAL_TEXT)
DURATION: Final = int(Fill.DURATION)
JSON: Final = int(Fill.JSON)
ENUM: Final = int(Fill.ENUM)
SET: Final = int(Fill.SET)
VECTOR: Final = int(Fill.VECTOR)


class Word(IntEnum):
    """The words of a line; there is one line for each column."""

    FILL = 0
    CELL = 1
    """The number of the column's cell in a row."""
    ARGUMENT = 2
    """The scale of a decimal, the fsp of a time, or the address of the elements of an enum or set."""
    ELEMENTS = 3
    """The number of elements; each is two int64, the address and length of its name."""
    WIDTH = 4
    """The bytes of a value of fixed width."""
    GROWTH = 5
    """The most bytes of text for each byte of a cell."""
    LONGEST = 6
    """The most bytes of text of a value whose length does not depend on its cell's."""
    VALID = 7
    """`measure` and `fill` write the words from here on. The offset in the body of the validity bits, in
    tiles;
    """
    DATA = 8
    """the values, or the offsets of text and vectors, int32[n + 1];"""
    TEXT = 9
    """the bytes of text, or the vectors' elements."""
    USED = 10
    """The bytes of text."""
    NULLS = 11
    LOST = 12
    """The number of values that the target's type cannot represent; they are NULL."""
    HIGH = 13
    """1 if the text has bytes above 127."""


LINE_WORDS: Final = len(Word)
LINE_BYTES: Final = 8 * LINE_WORDS
CELL_AT: Final = 8 * int(Word.CELL)
ARGUMENT_AT: Final = 8 * int(Word.ARGUMENT)
ELEMENTS_AT: Final = 8 * int(Word.ELEMENTS)
WIDTH_AT: Final = 8 * int(Word.WIDTH)
GROWTH_AT: Final = 8 * int(Word.GROWTH)
LONGEST_AT: Final = 8 * int(Word.LONGEST)
VALID_AT: Final = 8 * int(Word.VALID)
DATA_AT: Final = 8 * int(Word.DATA)
TEXT_AT: Final = 8 * int(Word.TEXT)
USED_AT: Final = 8 * int(Word.USED)
NULLS_AT: Final = 8 * int(Word.NULLS)
LOST_AT: Final = 8 * int(Word.LOST)
HIGH_AT: Final = 8 * int(Word.HIGH)
ELEMENT: Final = Layout(
    "element", "ELEMENT_", "An element of an enum or set.",
    name=pointer("its name"),
    size=signed("size of the name", "bytes"),
)  # fmt: skip
ELEMENT_NAME, ELEMENT_SIZE = ELEMENT.offsets()
ELEMENT_BYTES: Final = ELEMENT.size
PAIR: Final = Layout(
    "IPC pair", "PAIR_", "A node (length, NULLs) or buffer (offset, length) of an Arrow message's head.",
    first=signed("length, or offset"), second=signed("NULLs, or length"),
)  # fmt: skip
PAIR_FIRST, PAIR_SECOND = PAIR.offsets()
PAIR_BYTES: Final = PAIR.size
