"""The pieces of which an encode plan (`codec.plan`) consists: their forms, their layout, their largest size.

A piece copies a constant and then writes one value in one of the forms. The text for NULL, and quotes, are
parts of the piece, so no kernel knows a protocol.
"""

from __future__ import annotations

from typing import Final

from tidegate.codec.kernels import connect_kernels as connect
from tidegate.codec.kernels.text_kernels import short_text
from tidegate.kernel_layout import Layout, pointer, signed

# The forms of a piece: what follows its constant.
CONSTANT: Final = 0
INT: Final = 1
UINT: Final = 2
TEXT: Final = 3
DECIMAL: Final = 4
DATETIME: Final = 5
DATE: Final = 6
TIME: Final = 7
BASE64: Final = 8
QUOTED: Final = 9
LATIN1: Final = 10
JSON: Final = 11
FLOAT_JSON: Final = 12
DOUBLE_JSON: Final = 13
FLOAT_FIXED: Final = 14
DOUBLE_FIXED: Final = 15
VECTOR: Final = 16
PROMOTED: Final = 17
MILLISECONDS: Final = 18
COMMIT_TS: Final = 19
GROUP_END: Final = 20
ROW_ID: Final = 21
PHYSICAL_ID: Final = 22
CHECKSUM: Final = 36
"""Its number follows those of `connect_kernels`; its parameter is one of these:"""
SUM_VERSION, SUM_CORRUPTED, SUM_CURRENT, SUM_PREVIOUS, SUM_END = range(5)
START_TS: Final = 37
ROW_KEY: Final = 38
"""From CHECKSUM on: forms that few messages use."""

PIECE: Final = Layout(
    "piece", "P_", "A part of a key or value: a constant, then a value of one form.",
    const=pointer("its constant"),
    length=signed("size of the constant", "bytes"),
    form=signed("what follows the constant, see INT and the others"),
    cell=signed("the column's cell"),
    image=signed("0: the new image, 1: the old one"),
    param=signed("the form's parameter"),
    tail=signed("the short text behind the value"),
    null=signed("the short text that stands for NULL instead of both; LONG_NULL: it is at P_OPEN"),
    null_back=signed("how much of the constant's end the text for NULL replaces", "bytes"),
    only_changed=signed("1: the value is left out when it is equal to the new image"),
    open=pointer("the text before the first such piece; with LONG_NULL the text that stands for NULL"),
    open_length=signed("size of the text at P_OPEN", "bytes"),
)  # fmt: skip
PIECE_WORDS: Final = len(PIECE.fields)
PIECE_BYTES: Final = PIECE.size
(
    P_CONST, P_LENGTH, P_FORM, P_CELL, P_IMAGE, P_PARAM, P_TAIL, P_NULL, P_NULL_BACK, P_ONLY_CHANGED, P_OPEN,
    P_OPEN_LENGTH,
) = PIECE.offsets()  # fmt: skip
TRUE, FALSE = short_text(b"true"), short_text(b"false")
LONG_NULL: Final = -1
# The parameter of PROMOTED, see `promotion`: where its parts are, and their masks.
PROMOTED_TEXT: Final = 0xFFFF
FITTING_AT: Final = 16
LIMIT_BITS_AT, LIMIT_BITS = 32, 63


def promotion(limit: int, fitting: bytes, promoted: bytes) -> int:
    """The parameter of a PROMOTED piece: a text for values up to `limit`, and one for larger values.

    `limit` is a power of two minus one. A text has one character or two.
    """
    assert limit & (limit + 1) == 0, f"{limit} is not all bits"
    first, second = (int.from_bytes(text, "little") for text in (fitting, promoted))
    return limit.bit_length() << LIMIT_BITS_AT | first << FITTING_AT | second


VALUE_FACTOR: Final = {TEXT: 6, QUOTED: 6, LATIN1: 6, BASE64: 2, JSON: 8, VECTOR: 16} | connect.FACTORS
"""The most bytes of text for each byte of a value of variable size; 64 more are added."""
FIXED_SIZE: Final = {
    CONSTANT: 0, INT: 24, UINT: 24, DECIMAL: 88, DATETIME: 32, DATE: 16, TIME: 24,
    FLOAT_JSON: 48, DOUBLE_JSON: 48,
    FLOAT_FIXED: 360, DOUBLE_FIXED: 360, PROMOTED: 8, MILLISECONDS: 24, COMMIT_TS: 24, GROUP_END: 0,
    ROW_ID: 24, PHYSICAL_ID: 24, CHECKSUM: 24, START_TS: 24,
} | connect.SIZES  # fmt: skip
"""The most bytes of text of the other forms."""
