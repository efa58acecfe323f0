"""Datum kernels: values preceded by a flag, as in old rows and common handles.

Formats: docs/formats/keys.md#rows, docs/formats/rows.md#format-v1.
Nothing is read outside the given bytes. Plain twin: `datum`.
"""

from __future__ import annotations

from typing import Final

from tidegate.kernel import bswap64, inline, load_i64, load_u8, load_u32, load_u64, store_u64
from tidegate.tidb.datum import Flag
from tidegate.tidb.kernels.json import CONTAINER_HEAD, SIZE_AT
from tidegate.tidb.kernels.text import I64, U64
from tidegate.tidb.kernels.value import (
    BYTES,
    DECIMAL,
    FLOAT,
    JSON,
    NANOSECONDS,
    PLAN_FORM,
    SIGN,
    RowCells,
    bytes_ok,
    decimal_extent,
    float_bits,
    integer_ok,
    put_cell,
)
from tidegate.tidb.types.json import (
    ARRAY,
    DATE,
    DATETIME,
    DOUBLE,
    DURATION,
    INT64,
    LITERAL,
    OBJECT,
    OPAQUE,
    STRING,
    TIMESTAMP,
    UINT64,
)

FLAG_NULL: Final = int(Flag.NULL)
FLAG_BYTES: Final = int(Flag.BYTES)
FLAG_COMPACT_BYTES: Final = int(Flag.COMPACT_BYTES)
FLAG_INT: Final = int(Flag.INT)
FLAG_UINT: Final = int(Flag.UINT)
FLAG_FLOAT: Final = int(Flag.FLOAT)
FLAG_DECIMAL: Final = int(Flag.DECIMAL)
FLAG_DURATION: Final = int(Flag.DURATION)
FLAG_VARINT: Final = int(Flag.VARINT)
FLAG_UVARINT: Final = int(Flag.UVARINT)
FLAG_JSON: Final = int(Flag.JSON)
FLAG_VECTOR: Final = int(Flag.VECTOR)
_GROUP: Final = 8
"""Data bytes of a group of memcomparable bytes; one more byte counts its padding."""


@inline
def read_uvarint(addr: int, room: int, out: int) -> int:
    """Read a LEB128 number of at most 64 bits from `room` bytes into `out`; returns its size or -1."""
    value = U64(0)
    for i in range(min(room, 10)):
        byte = I64(load_u8(addr + i))
        value |= U64(byte & 0x7F) << U64(7 * i)
        if byte < 0x80:
            # Nine bytes have 63 bits, so the tenth has room for one.
            if i == 9 and byte > 1:
                return -1
            store_u64(out, value)
            return i + 1
    return -1


@inline
def unzigzag(value: int) -> int:
    """The signed number of a zig-zag encoded one."""
    return I64((U64(value) >> U64(1)) ^ (U64(0) - (U64(value) & U64(1))))


@inline
def json_size(addr: int, room: int, scratch: int) -> int:
    """The bytes of a JSON value's type code and value, from the lengths in them; -1 if they are not valid."""
    if room < 1:
        return -1
    code = I64(load_u8(addr))
    if code == OBJECT or code == ARRAY:
        # The type code, then the number of members, then the size of the container from there on.
        return 1 + I64(load_u32(addr + 1 + SIZE_AT)) if room >= 1 + CONTAINER_HEAD else -1
    if code == LITERAL:
        return 2
    if (
        code == INT64
        or code == UINT64
        or code == DOUBLE
        or code == DATE
        or code == DATETIME
        or code == TIMESTAMP
    ):
        return 9
    if code == DURATION:
        return 13
    if code != STRING and code != OPAQUE:
        return -1
    head = 1 if code == STRING else 2
    used = read_uvarint(addr + head, room - head, scratch)
    size = load_i64(scratch)
    # The size alone is compared, so that the sum below cannot wrap around. The caller compares the sum.
    if used < 0 or size < 0 or size > room:
        return -1
    return head + used + size


@inline
def ungroup(addr: int, room: int, out: int, result: int) -> int:
    """Decode memcomparable bytes into `out`, their number into `result`; returns the bytes read, or -1."""
    at = 0
    size = 0
    while at + _GROUP + 1 <= room:
        padding = 255 - I64(load_u8(addr + at + _GROUP))
        group = load_u64(addr + at)
        # Padding must be zeros. Otherwise two keys that differ would decode to the same bytes.
        if padding > _GROUP or (0 < padding < _GROUP and group >> U64(64 - 8 * padding) != U64(0)):
            return -1
        if padding == _GROUP and group != U64(0):
            return -1
        # All eight bytes, also those of the padding; the next group overwrites them, or the pad takes them.
        store_u64(out + size, group)
        size += _GROUP - padding
        at += _GROUP + 1
        if padding > 0:
            store_u64(result, size)
            return at
    return -1


@inline
def read_datum(entry: int, at: int, room: int, cells: RowCells, cell: int, free: int, stack: int) -> int:
    """Read the flagged value at `at` into the cell for the column of a plan line; returns its bytes, or -1.

    free: where to write the bytes of memcomparable strings, at least `room` bytes and the pad; 0: such
    strings are not allowed.
    """
    if room < 1:
        return -1
    flag = I64(load_u8(at))
    addr = at + 1
    room -= 1
    form = load_i64(entry + PLAN_FORM)
    if flag == FLAG_NULL:
        put_cell(cells, cell, 0, -1)
        return 1
    used = -1
    if form < BYTES:
        word = 0
        if flag == FLAG_VARINT or flag == FLAG_UVARINT:
            used = read_uvarint(addr, room, stack)
            word = load_i64(stack)
            if flag == FLAG_VARINT:
                word = unzigzag(word)
        elif (flag == FLAG_INT or flag == FLAG_UINT or flag == FLAG_DURATION) and room >= 8:
            used = 8
            # The sign of a signed number is inverted in a key, so that the bytes sort as the numbers do.
            bits = bswap64(load_u64(addr))
            word = I64(bits) if flag == FLAG_UINT else I64(bits ^ SIGN)
        # Above 2**63 - 1, which does not fit a signed column.
        if form <= NANOSECONDS and word < 0 and (flag == FLAG_UINT or flag == FLAG_UVARINT):
            return -1
        if used < 0 or not integer_ok(form, word):
            return -1
        put_cell(cells, cell, word, 0)
        return used + 1
    if form == FLOAT:
        if flag != FLAG_FLOAT or room < 8:
            return -1
        put_cell(cells, cell, float_bits(addr), 0)
        return 9
    if form == BYTES and flag == FLAG_BYTES and free != 0:
        used = ungroup(addr, room, free, stack)
        if used < 0:
            return -1
        put_cell(cells, cell, free, load_i64(stack))
        return used + 1
    size = -1
    if form == BYTES and flag == FLAG_COMPACT_BYTES:
        used = read_uvarint(addr, room, stack)
        size = unzigzag(load_i64(stack))
        if used < 0 or size < 0 or size > room - used:
            return -1
        addr += used
        put_cell(cells, cell, addr, size)
        return used + size + 1
    if form == DECIMAL and flag == FLAG_DECIMAL:
        size = decimal_extent(addr, room)
    elif form == JSON and flag == FLAG_JSON:
        size = json_size(addr, room, stack)
    elif form > JSON and flag == FLAG_VECTOR and room >= 4:
        size = I64(load_u32(addr)) * 4 + 4
    if size < 0 or size > room or not bytes_ok(form, addr, size, stack):
        return -1
    put_cell(cells, cell, addr, size)
    return size + 1


@inline
def skip_datum(at: int, room: int, scratch: int) -> int:
    """The size of the flagged value at `at` in an old row, or -1."""
    if room < 1:
        return -1
    flag = I64(load_u8(at))
    addr = at + 1
    room -= 1
    size = -1
    if flag == FLAG_NULL:
        size = 0
    elif flag == FLAG_INT or flag == FLAG_UINT or flag == FLAG_FLOAT or flag == FLAG_DURATION:
        size = 8
    elif flag == FLAG_VARINT or flag == FLAG_UVARINT:
        size = read_uvarint(addr, room, scratch)
    # FLAG_BYTES is missing here: memcomparable strings are in keys only.
    elif flag == FLAG_COMPACT_BYTES:
        used = read_uvarint(addr, room, scratch)
        size = unzigzag(load_i64(scratch))
        size = used + size if used >= 0 and 0 <= size <= room else -1
    elif flag == FLAG_DECIMAL:
        size = decimal_extent(addr, room)
    elif flag == FLAG_JSON:
        size = json_size(addr, room, scratch)
    elif flag == FLAG_VECTOR and room >= 4:
        size = I64(load_u32(addr)) * 4 + 4
    if size < 0 or size > room:
        return -1
    return size + 1
