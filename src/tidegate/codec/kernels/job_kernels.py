"""The input of an encode kernel: rows, plan and output, and its state between two calls.

`codec.blocks` fills a job and reads the results; `codec.kernels.encode_kernels` and
`codec.kernels.avro_kernels` work on it.
"""

from __future__ import annotations

from typing import Final

from tidegate.kernel_layout import Layout, pointer, signed

JOB: Final = Layout(
    "encode job", "J_", "The input of an encode kernel; from J_AT on its state between calls.",
    rows=signed("rows"),
    order=pointer("i64[rows], the order of rows; 0: as they are"),
    op=pointer("u8[rows], operations"),
    commit_ts=pointer("u64[rows]"),
    physical=pointer("i64[rows], physical table ids"),
    handle=pointer("i64[rows], integer handles; 0: none"),
    partition=pointer("i32[rows]"),
    new_words=pointer("first words of the new image's cells"),
    new_sizes=pointer("second words of the new image's cells"),
    new_stride=signed("cells from row to row"),
    old_words=pointer("first words of the old image's cells"),
    old_sizes=pointer("second words of the old image's cells"),
    old_stride=signed("cells from row to row"),
    pieces=pointer("RUN of pieces for the key, then for each operation"),
    variables=pointer("i64 count, then a VARIABLE for each column of variable size"),
    fixed=pointer("i64 for each operation: most bytes of a row's value without its variables", "bytes"),
    max_bytes=signed("most bytes of a message", "bytes"),
    max_rows=signed("most rows of a message"),
    framed=signed("1: messages are batches of rows with lengths; 0: a message is a row"),
    scratch=pointer("working memory for one value"),
    stack=pointer("int64[STACK_WORDS], for JSON"),
    printable=pointer("a bit for each code point, Go's IsPrint"),
    data=pointer("where keys and values go"),
    room=signed("size of data", "bytes"),
    key_start=pointer("u64 a message: where its key begins in data"),
    key_length=pointer("u64 a message"),
    value_start=pointer("u64 a message"),
    value_length=pointer("u64 a message"),
    message_partition=pointer("u32 a message"),
    message_rows=pointer("u32 a message"),
    build=signed("when the message is made", "ms"),
    checksums=pointer("`cells.CHECKSUM` a row; 0: none"),
    start_ts=pointer("u64[rows]"),
    row_keys=pointer("RUN a row, its key in TiKV; 0: none"),
    most_variable=signed("at least what the values of variable size of any row become", "bytes"),
    at=signed("the next row"),
    key_out=signed("used of the part of data that holds keys", "bytes"),
    out=signed("used of data", "bytes"),
    messages=signed("finished messages"),
    held=signed("rows of the message that is open"),
    held_bytes=signed("its bytes so far: of keys << 40 | of values", "bytes"),
    need=signed("with NEED_ROOM and TOO_LARGE: how much it was", "bytes"),
)  # fmt: skip
JOB_WORDS: Final = len(JOB.fields)
(
    J_ROWS, J_ORDER, J_OP, J_COMMIT_TS, J_PHYSICAL, J_HANDLE, J_PARTITION,
    J_NEW_WORDS, J_NEW_SIZES, J_NEW_STRIDE, J_OLD_WORDS, J_OLD_SIZES, J_OLD_STRIDE,
    J_PIECES, J_VARIABLES, J_FIXED,
    J_MAX_BYTES, J_MAX_ROWS, J_FRAMED, J_SCRATCH, J_STACK, J_PRINTABLE, J_DATA, J_ROOM,
    J_KEY_START, J_KEY_LENGTH, J_VALUE_START, J_VALUE_LENGTH, J_MESSAGE_PARTITION, J_MESSAGE_ROWS,
    J_BUILD, J_CHECKSUMS, J_START_TS, J_ROW_KEYS, J_MOST_VARIABLE,
    J_AT, J_KEY_OUT, J_OUT, J_MESSAGES, J_HELD, J_HELD_BYTES, J_NEED,
) = JOB.offsets()  # fmt: skip

VARIABLE: Final = Layout(
    "variable", "VARIABLE_", "A column whose values differ in size.",
    cell=signed("its cell"),
    factor=signed("most bytes of text for each of a value's bytes"),
)  # fmt: skip
VARIABLE_CELL, VARIABLE_FACTOR = VARIABLE.offsets()
VARIABLE_BYTES: Final = VARIABLE.size
VARIABLES_AT: Final = 8
"""The offset of the first VARIABLE, after their count."""
RECORD_OVERHEAD: Final = 36
"""The bytes that a topic adds to a message, as TiCDC counts them."""

DONE: Final = 0
NEED_ROOM: Final = 1
TOO_LARGE: Final = 2

KEY_SLACK: Final = 64
"""The most bytes of a key besides its pieces: version and length of a batch, the overrun of a constant."""
