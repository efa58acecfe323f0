"""Record keys: `t`, the table's id, `_r`, the handle. Many keys a call; docs/formats/keys.md#rows."""

from __future__ import annotations

from typing import Final

from tidegate.kernel import bswap64, kernel, load_bounds, load_u8, load_u16, load_u64, store_u32, store_u64
from tidegate.tidb.kernels.text import I64
from tidegate.tidb.kernels.value import SIGN

_RECORD_LE: Final = int.from_bytes(b"_r", "little")
_INDEX_LE: Final = int.from_bytes(b"_i", "little")
_TABLE: Final = ord("t")
_ID_AT: Final = 1
_MARK_AT: Final = 9
HANDLE_AT: Final = 11
"""Where the handle begins."""
INT_HANDLE_BYTES: Final = 8
_RECORD_KEY: Final = HANDLE_AT + INT_HANDLE_BYTES
"""The size of a key with an integer handle, the shortest of all."""
NO_ROW: Final = -1
NO_RECORD: Final = -2


@kernel
def parse_keys(key_count: int, ends: int, keys: int, tables: int, handles: int, lengths: int) -> int:
    """Split record keys; returns how many are not record keys.

    ends: int32[key_count + 1], Arrow's offsets; keys: the bytes. For each key, `tables` gets the table id,
    `handles` the integer handle (0 for a common handle), and `lengths` (int32) the length of the handle in
    bytes (8: it may be an integer; NO_ROW: an index entry; NO_RECORD: neither).

    Reads the front of each key, and 8 bytes of a handle. Writes `tables`, `handles` and `lengths`. Bound:
    three words a key; a key is measured before it is read. Twin: `tidegate.tidb.keys.parse_record`.
    """
    other_keys = 0
    for i in range(key_count):
        start, end = load_bounds(ends, i)
        size = end - start
        key = keys + start
        table = 0
        handle = 0
        length = NO_RECORD
        if size >= HANDLE_AT and load_u8(key) == _TABLE and load_u16(key + _MARK_AT) == _INDEX_LE:
            length = NO_ROW
        elif size >= _RECORD_KEY and load_u8(key) == _TABLE and load_u16(key + _MARK_AT) == _RECORD_LE:
            # Signed numbers in keys have an inverted sign, so that the bytes sort as the numbers do.
            table = I64(bswap64(load_u64(key + _ID_AT)) ^ SIGN)
            length = size - HANDLE_AT
            if length == INT_HANDLE_BYTES:
                handle = I64(bswap64(load_u64(key + HANDLE_AT)) ^ SIGN)
        if length < 0:
            other_keys += 1
        store_u64(tables + 8 * i, table)
        store_u64(handles + 8 * i, handle)
        store_u32(lengths + 4 * i, length)
    return other_keys
