"""Layouts that the kernels of several codecs share: runs, messages, tables of names."""

from __future__ import annotations

from typing import Final

from tidegate.kernel_layout import Layout, half, pointer, signed

RUN: Final = Layout(
    "run", "RUN_", "Where something begins and how long it is: the bytes of a text, or the pieces of a list.",
    at=pointer("its first byte or piece"),
    size=signed("how many bytes or pieces"),
)  # fmt: skip
RUN_AT, RUN_SIZE = RUN.offsets()
RUN_BYTES: Final = RUN.size

MESSAGE: Final = Layout(
    "message", "MESSAGE_", "A message, or an item of one that is a batch.",
    key=pointer("its key"),
    key_size=signed("size of the key; -1: null", "bytes"),
    value=pointer("its value"),
    value_size=signed("size of the value; -1: null", "bytes"),
)  # fmt: skip
MESSAGE_KEY, MESSAGE_KEY_SIZE, MESSAGE_VALUE, MESSAGE_VALUE_SIZE = MESSAGE.offsets()
MESSAGE_BYTES: Final = MESSAGE.size

NAME: Final = Layout(
    "name", "NAME_", "A name in a table of names, which follow these entries.",
    at=half("where it begins, from the table's start", "bytes"),
    size=half("size of the name", "bytes"),
)  # fmt: skip
NAME_AT, NAME_SIZE = NAME.offsets()
NAME_BYTES: Final = NAME.size
