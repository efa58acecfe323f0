"""Turns one cell of many messages, as a walk of Avro has left it, into the buffers of an Arrow column.

`codec.decoding.binary` calls one of these kernels per column. The cells are those of `avro_read_kernels`;
every address is an int64.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.codec.kernels.avro_read_kernels import (
    MAX_DECIMAL,
    read_bits,
)
from tidegate.kernel import (
    copy_bytes,
    inline,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    store_u8,
    store_u32,
    store_u64,
)
from tidegate.kernel_ascii import MINUS, POINT, ZERO
from tidegate.tidb.kernels.text import I64, U64, put_u64

LIMBS: Final = MAX_DECIMAL // 4


class Taken(NamedTuple):
    """One cell of each of the walked messages numbered in i64[row_count] `rows`."""

    row_count: int
    rows: int
    starts: int
    lengths: int
    stride: int
    cell: int


@kernel
def take_words(of: Taken, out: int, valid: int) -> int:
    """A column of numbers: i64[row_count] and u8[row_count] validity; returns the number of nulls.

    Reads one cell of each row. Writes `out` and `valid`. Bound: a word and a byte a row. Twin:
    `tidegate.codec.protocols.avro.plain.AvroDecoder.decode`, whose values
    `tests.contracts.test_codecs.test_golden_rows_decode_alike_and_to_what_was_encoded` compares.
    """
    nulls = 0
    for i in range(of.row_count):
        cell = load_i64(of.rows + 8 * i) * of.stride + of.cell
        # NULL is the only negative size, so one comparison serves numbers, whose size is 0, as well.
        present = I64(load_i32(of.lengths + 4 * cell)) >= 0
        store_u8(valid + i, 1 if present else 0)
        store_u64(out + 8 * i, load_i64(of.starts + 8 * cell) if present else 0)
        nulls += 0 if present else 1
    return nulls


@kernel
def measure_spans(of: Taken) -> int:
    """The number of bytes in a column of text or bytes.

    Reads the length of one cell of each row. Writes nothing. Bound: `row_count` cells. Twin: none, because it
    only adds up what `take_spans` copies from the same cells.
    """
    total = 0
    for i in range(of.row_count):
        size = I64(load_i32(of.lengths + 4 * (load_i64(of.rows + 8 * i) * of.stride + of.cell)))
        total += max(size, 0)
    return total


@kernel
def take_spans(of: Taken, out: int, ends: int, valid: int) -> int:
    """A column of text or bytes: bytes, i32[row_count] ends, u8[row_count] validity; returns the nulls.

    Reads one cell of each row, and the bytes it points to. Writes `out`, `ends` and `valid`. Bound: the size
    that `measure_spans` returns, in `out`. Twin: `tidegate.codec.protocols.avro.plain.AvroDecoder.decode`,
    whose values `tests.contracts.test_codecs.test_golden_rows_decode_alike_and_to_what_was_encoded` compares.
    """
    nulls = 0
    data = out
    for i in range(of.row_count):
        cell = load_i64(of.rows + 8 * i) * of.stride + of.cell
        size = I64(load_i32(of.lengths + 4 * cell))
        store_u8(valid + i, 1 if size >= 0 else 0)
        if size >= 0:
            copy_bytes(out, load_i64(of.starts + 8 * cell), size)
            out += size
        else:
            nulls += 1
        store_u32(ends + 4 * i, out - data)
    return nulls


@inline
def put_limbs_text(out: int, limbs: int) -> int:
    """Write a number of LIMBS words, lowest first, in decimal; no digit for zero. The words become zero."""
    chunks = limbs + 4 * LIMBS
    count = 0
    top = LIMBS
    while top > 0:
        if load_u32(limbs + 4 * (top - 1)) == 0:
            top -= 1
            continue
        rest = U64(0)
        for back in range(top):
            at = limbs + 4 * (top - 1 - back)
            # The rest is below 10**9, so the shifted number stays below 2**62.
            rest = (rest << U64(32)) | U64(load_u32(at))
            store_u32(at, I64(rest // U64(1_000_000_000)))
            rest = rest % U64(1_000_000_000)
        store_u32(chunks + 4 * count, I64(rest))
        count += 1
    for back in range(count):
        word = I64(load_u32(chunks + 4 * (count - 1 - back)))
        if back == 0:
            out = put_u64(out, U64(word))
        else:
            for digit in range(9):
                store_u8(out + 8 - digit, ZERO + word % 10)
                word //= 10
            out += 9
    return out


@inline
def put_unscaled(out: int, at: int, size: int, limbs: int) -> tuple[int, bool]:
    """(the end of the digits, whether it is negative) of a big-endian two's complement number."""
    negative = load_u8(at) >= 0x80
    if size <= 8:
        shift = U64(64 - 8 * size)
        # The size is 1 to 8 (`walk_sized`), so the shift is defined. The second one copies the sign.
        number = I64(U64(read_bits(at, size)) << shift) >> I64(shift)
        # -2**63 has no positive counterpart: its negation wraps around to the same bits, which read as
        # unsigned are 2**63.
        return put_u64(out, U64(-number if negative else number)), negative
    # All words, because the bytes below fill only a part of them.
    for i in range(LIMBS):
        store_u32(limbs + 4 * i, 0)
    carry = 1
    # `walk_sized` refuses more than MAX_DECIMAL bytes, which are just all words.
    for i in range(size):
        byte = I64(load_u8(at + size - 1 - i))
        if negative:
            byte = (byte ^ 0xFF) + carry
            # A negative number is its complement plus 1. The carry ends where a byte does not overflow.
            carry = byte >> 8
            byte &= 0xFF
        store_u8(limbs + i, byte)
    return put_limbs_text(out, limbs), negative


@kernel
def take_decimals(of: Taken, scale: int, scratch: int, out: int, ends: int, valid: int) -> int:
    """A column of decimals stored as bytes, as text: `out`, ends and validity as in `take_spans`; the nulls.

    Reads one cell of each row, and the bytes it points to. Writes `out`, `ends` and `valid`, and 512 bytes of
    `scratch` on the way. Bound: three bytes for each of `measure_spans` and `scale` + 4 a row, in `out`.
    Twin: `tidegate.codec.protocols.avro.plain.AvroDecoder.decode`;
    `tests.codec.test_avro.test_decimals_of_any_size_come_back` compares the texts. Trick: up to 8 bytes are
    one number in a register.
    """
    nulls = 0
    data = out
    for i in range(of.row_count):
        cell = load_i64(of.rows + 8 * i) * of.stride + of.cell
        size = I64(load_i32(of.lengths + 4 * cell))
        store_u8(valid + i, 1 if size >= 0 else 0)
        if size >= 0:
            digits = scratch + 128
            end, negative = put_unscaled(digits, load_i64(of.starts + 8 * cell), size, scratch)
            count = end - digits
            if negative:
                store_u8(out, MINUS)
                out += 1
            whole = count - scale
            # Zero may come without a digit from `put_limbs_text`. Then `whole` is not positive, and the 0
            # is written here.
            if whole > 0:
                copy_bytes(out, digits, whole)
                out += whole
            else:
                store_u8(out, ZERO)
                out += 1
            if scale > 0:
                store_u8(out, POINT)
                out += 1
                for _ in range(max(-whole, 0)):
                    store_u8(out, ZERO)
                    out += 1
                tail = min(count, scale)
                copy_bytes(out, end - tail, tail)
                out += tail
        else:
            nulls += 1
        store_u32(ends + 4 * i, out - data)
    return nulls


def warm() -> None:
    """Compile kernels that are not in numba's cache yet, by calling them with no rows."""
    taken = Taken(0, 0, 0, 0, 1, 0)
    take_words(taken, 0, 0)
    measure_spans(taken)
    take_spans(taken, 0, 0, 0)
    take_decimals(taken, 0, 0, 0, 0, 0)
