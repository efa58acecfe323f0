"""Decimals as avro writes them: the two's complement of the digits, big-endian, preceded by its length.

    a cell of kind DECIMAL --> its digits, in one 64-bit number or in LIMBS words --> bytes

A part of `codec.kernels.avro_kernels`. Plain twin: `codec.protocols.avro.plain.AvroEncoder`.
"""

from __future__ import annotations

from typing import Final

from tidegate.kernel import bswap64, inline, load_u8, load_u32, store_u8, store_u32, store_u64
from tidegate.tidb.kernels.text import (
    BYTES_OF_DIGITS,
    DECIMAL_FRAC_AT,
    DECIMAL_HEAD,
    DECIMAL_PLUS,
    I64,
    POWERS_OF_TEN,
    U64,
    decimal_word,
)

LIMBS: Final = 12
"""u32 words of a decimal during conversion: 12 * 32 bits hold any 81 digits times 10**30."""


@inline
def put_small_decimal(out: int, number: int) -> int:
    """A 64-bit number as the shortest two's complement."""
    # After this shift 0 or -1 is left if the bytes above only repeat the sign.
    size = 1
    while size < 8 and (number >> (8 * size - 1)) != 0 and (number >> (8 * size - 1)) != -1:
        size += 1
    store_u8(out, 2 * size)
    store_u64(out + 1, bswap64(U64(number) << U64(64 - 8 * size)))
    return out + 1 + size


@inline
def scale_limbs(limbs: int, factor: int, add: int) -> None:
    """Multiply the number in the words by `factor` and add `add`; both are below 2**31."""
    carry = U64(add)
    for i in range(LIMBS):
        # At most 2**63 + 2**32, so the word does not overflow.
        carry += U64(load_u32(limbs + 4 * i)) * U64(factor)
        store_u32(limbs + 4 * i, I64(carry & U64(0xFFFFFFFF)))
        carry >>= U64(32)


@inline
def cut_limbs(limbs: int, divisor: int) -> None:
    """Divide the number in the words by a divisor below 2**31; the remainder is dropped."""
    rest = U64(0)
    for back in range(LIMBS):
        at = limbs + 4 * (LIMBS - 1 - back)
        rest = (rest << U64(32)) | U64(load_u32(at))
        store_u32(at, I64(rest // U64(divisor)))
        rest = rest % U64(divisor)


@inline
def put_limbs(out: int, limbs: int, negative: bool) -> int:
    """A number of many words as the shortest two's complement, big-endian: at most 2 + 4 * LIMBS bytes."""
    if negative:
        carry = U64(1)
        for i in range(LIMBS):
            carry += U64(0xFFFFFFFF) ^ U64(load_u32(limbs + 4 * i))
            store_u32(limbs + 4 * i, I64(carry & U64(0xFFFFFFFF)))
            carry >>= U64(32)
    size = 4 * LIMBS
    sign = 0xFF if I64(load_u8(limbs + size - 1)) >= 0x80 else 0
    while size > 1 and I64(load_u8(limbs + size - 1)) == sign:
        # The next byte would show the other sign.
        if (I64(load_u8(limbs + size - 2)) ^ sign) & 0x80 != 0:
            break
        size -= 1
    store_u8(out, 2 * size)
    for i in range(size):
        store_u8(out + 1 + i, load_u8(limbs + size - 1 - i))
    return out + 1 + size


@inline
def put_decimal_bytes(out: int, addr: int, scale: int, scratch: int) -> int:
    """A cell of kind DECIMAL as the two's complement of its digits, `scale` of them after the point.

    Digits that fit one 64-bit number stay in a register: that covers DECIMAL(18) and below.
    """
    frac = I64(load_u8(addr + DECIMAL_FRAC_AT))
    whole = I64(load_u8(addr)) - frac
    digits = addr + DECIMAL_HEAD
    negative = load_u8(digits) & DECIMAL_PLUS == 0
    flip = -1 if negative else 0
    # 10**18 is below 2**63, so no product or sum of these digits overflows.
    small = whole + max(frac, scale) <= 18
    number = 0
    if not small:
        for i in range(LIMBS):
            store_u32(scratch + 4 * i, 0)
    at = 0
    left = whole % 9
    words = 2 + whole // 9 + frac // 9
    for i in range(words):
        width = 9
        if i == 0:
            width = left
        elif i == words - 1:
            width = frac % 9
        size = BYTES_OF_DIGITS[width]
        if size > 0:
            word = decimal_word(digits, at, size, flip)
            at += size
            if small:
                number = number * POWERS_OF_TEN[width] + word
            else:
                scale_limbs(scratch, POWERS_OF_TEN[width], word)
    more = scale - frac
    if small:
        number = number * POWERS_OF_TEN[more] if more > 0 else number // POWERS_OF_TEN[min(-more, 18)]
        return put_small_decimal(out, -number if negative else number)
    while more > 0:
        scale_limbs(scratch, POWERS_OF_TEN[min(more, 9)], 0)
        more -= 9
    while more < 0:
        cut_limbs(scratch, POWERS_OF_TEN[min(-more, 9)])
        more += 9
    return put_limbs(out, scratch, negative)
