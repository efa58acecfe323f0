"""Float kernels: the shortest digits that read back as the same float, and their texts.

`shortest64` and `shortest32` are Raffaele Giulietti's Schubfach (2021), in the form of Alexander Bolz's
Drachennest: one 128-bit power of ten from a table (made here with Python's integers), three multiplications,
and no division except by 4 and 10. The digits are those of Go's `FormatFloat(v, f, -1, bits)` and Python's
`repr`. Callers and conventions: see `tidegate.tidb.kernels`; no helper overwrites more than its `SLACK`.

    put_double_fixed, put_float_fixed   Go 'f': never an exponent (`ColumnValueString`); <= FIXED_TEXT
    put_double_json, put_float_json     Go `encoding/json`: 'e' below 1e-6, from 1e21; <= JSON_NUMBER_TEXT
    put_double_tidb                     binary JSON: 'e' below 1e-15, from 1e15; else a point; same bound

`bits` is the cell's word: that of the double, also for FLOAT columns (the f32 widened). NaN and infinities
are printed as 0, as in TiCDC; test `is_finite(bits)` first if that is not wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core.base import BaseContext as Compiler
from numba.core.typing import Signature
from numba.core.typing.context import BaseContext as Typing
from numba.extending import intrinsic

from tidegate.kernel import Intrinsic, Values, ctlz64, inline, store_u8
from tidegate.kernel_ascii import LOWER_E, MINUS, PLUS, POINT, ZERO
from tidegate.tidb.kernels.text import I64, POWERS_OF_TEN, U64, put_eight, put_i64, put_u64

FIXED_TEXT: Final = 352
JSON_NUMBER_TEXT: Final = 40

_K_MIN: Final = -292
_K_MAX: Final = 325


def _powers(bits: int, k_min: int, k_max: int) -> list[int]:
    """10**exponent scaled to `bits` bits, rounded up, for k_min <= exponent <= k_max."""
    out = []
    for exponent in range(k_min, k_max + 1):
        if exponent >= 0:
            power, shift = 10**exponent, (10**exponent).bit_length() - bits
            out.append(power << -shift if shift <= 0 else (power >> shift) + (power & (1 << shift) - 1 != 0))
        else:
            divisor = 10**-exponent
            out.append((1 << divisor.bit_length() - 1 + bits) // divisor + 1)
    return out


def _halves(words: list[int], shift: int) -> npt.NDArray[np.uint64]:
    return np.array([word >> shift & (1 << 64) - 1 for word in words], dtype=np.uint64)


_POWERS128: Final = _powers(128, _K_MIN, _K_MAX)
_HIGH: Final = _halves(_POWERS128, 64)
_LOW: Final = _halves(_POWERS128, 0)
_SINGLE_MIN: Final = -32
_SINGLE: Final = _halves(_powers(64, _SINGLE_MIN, 46), 0)

_ZERO: Final = U64(0)
_ONE: Final = U64(1)
_TWO: Final = U64(2)
_FOUR: Final = U64(4)
_TEN: Final = U64(10)
_FORTY: Final = U64(40)
_HUNDRED: Final = U64(100)
_FOUR_ZEROS: Final = U64(10**4)
_EIGHT_ZEROS: Final = U64(10**8)
_THIRTY_TWO: Final = U64(32)
_FRACTION64: Final = U64((1 << 52) - 1)
_HIDDEN64: Final = U64(1 << 52)
_FRACTION32: Final = U64((1 << 23) - 1)
_HIDDEN32: Final = U64(1 << 23)
_LOW32: Final = U64((1 << 32) - 1)
_MAGNITUDE: Final = (1 << 63) - 1
_INFINITE: Final = 0x7FF << 52


def _multiply_high(typingctx: Typing, left: types.Type, right: types.Type) -> Intrinsic:

    def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


def _single_bits(typingctx: Typing, bits: types.Type) -> Intrinsic:

    def codegen(context: Compiler, builder: ir.IRBuilder, signature: Signature, args: Values) -> ir.Value:
        single = builder.fptrunc(builder.bitcast(args[0], ir.DoubleType()), ir.FloatType())
        return builder.zext(builder.bitcast(single, ir.IntType(32)), ir.IntType(64))

    return types.uint64(types.int64), codegen


multiply_high: Final[Callable[[Any, Any], Any]] = intrinsic(_multiply_high)
"""The upper 64 bits of the product of two U64."""
single_bits: Final[Callable[[int], Any]] = intrinsic(_single_bits)
"""The bits of the f32 nearest to the double with these bits, as U64."""


@inline
def is_finite(bits: int) -> bool:
    """Whether the bits of a double are neither NaN nor infinite."""
    return bits & _INFINITE != _INFINITE


@inline
def round_to_odd(high: Any, low: Any, word: Any) -> Any:
    """The upper 64 bits of a 128-bit power times a word; the lowest bit is set if anything was cut off."""
    carry_word = multiply_high(low, word)
    middle = high * word
    top = multiply_high(high, word)
    total = middle + carry_word
    # The sum of two words is smaller than one of them only if it has wrapped around: that is the carry.
    if total < middle:
        top += _ONE
    # A rest of 1 counts as none: the powers in the table are rounded up. The odd bit lets later comparisons
    # come out as those of the exact product would.
    return top | (_ONE if total > _ONE else _ZERO)


@inline
def choose(vbl: Any, vb: Any, vbr: Any, even: bool, exponent: int) -> tuple[Any, int]:
    """Schubfach's choice: of the shortest decimals in the rounding interval, the closest one."""
    # A decimal exactly between two floats reads back as the even one, so the ends belong to the interval
    # only then.
    lower = vbl if even else vbl + _ONE
    upper = vbr if even else vbr - _ONE
    s = vb // _FOUR
    # One digit less is tried first. If both neighbours are inside the interval, or none is, the longer form
    # decides.
    if s >= _TEN:
        tens = s // _TEN
        below = lower <= _FORTY * tens
        above = _FORTY * tens + _FORTY <= upper
        if below != above:
            return (tens + _ONE if above else tens), exponent + 1
    below = lower <= _FOUR * s
    above = _FOUR * s + _FOUR <= upper
    if below != above:
        return (s + _ONE if above else s), exponent
    middle = _FOUR * s + _TWO
    if vb > middle or (vb == middle and s & _ONE != _ZERO):
        return s + _ONE, exponent
    return s, exponent


@inline
def cut_zeros(digits: Any, exponent: int, power: Any, zeros: int) -> tuple[Any, int]:
    """Digits without `zeros` zeros at their end if they have so many; `power` is 10**zeros."""
    rest = digits // power
    cut = rest * power == digits
    return (rest if cut else digits), (exponent + zeros if cut else exponent)


@inline
def trimmed(digits: Any, exponent: int) -> tuple[Any, int]:
    """Digits < 10**18 without trailing zeros, with the exponent increased instead."""
    if digits == _ZERO or digits // _TEN * _TEN != digits:
        return digits, exponent
    # Most numbers with a few digits have many zeros here, and a step for each would be slow. After two cuts
    # of 8 fewer than 8 are left of 17.
    digits, exponent = cut_zeros(digits, exponent, _EIGHT_ZEROS, 8)
    digits, exponent = cut_zeros(digits, exponent, _EIGHT_ZEROS, 8)
    digits, exponent = cut_zeros(digits, exponent, _FOUR_ZEROS, 4)
    digits, exponent = cut_zeros(digits, exponent, _HUNDRED, 2)
    return cut_zeros(digits, exponent, _TEN, 1)


@inline
def shortest64(bits: int) -> tuple[Any, int]:
    """(digits U64, exponent) of the finite double > 0 with these bits: digits * 10**exponent.

    The digits have no trailing zero.
    """
    fraction = U64(bits) & _FRACTION64
    biased = (bits >> 52) & 0x7FF
    # An integer below 2**53 has neighbours less than 1 away, so its own digits are the shortest.
    if biased != 0:
        # A subnormal number has no hidden bit, and the exponent of the smallest normal one.
        c = fraction | _HIDDEN64
        q = biased - 1075
        if -53 < q <= 0 and (c >> U64(-q)) << U64(-q) == c:
            return trimmed(c >> U64(-q), 0)
    else:
        c = fraction
        q = -1074
    # Below a power of two floats are twice as dense, so the interval is smaller on that side.
    closer = fraction == _ZERO and biased > 1
    # The floor of log10(2**q), or of log10(2**q * 3/4): exact for each q that a double or f32 can have.
    exponent = (q * 1262611 - (524031 if closer else 0)) >> 22
    # 1741647 / 2**19 is log2(10): shifted so far, the word times the power has its integer part in the upper
    # half.
    h = U64(q + ((-exponent * 1741647) >> 19) + 1)
    high = _HIGH[-exponent - _K_MIN]
    low = _LOW[-exponent - _K_MIN]
    middle = _FOUR * c
    vbl = round_to_odd(high, low, (middle - (_ONE if closer else _TWO)) << h)
    vb = round_to_odd(high, low, middle << h)
    vbr = round_to_odd(high, low, (middle + _TWO) << h)
    digits, exponent = choose(vbl, vb, vbr, c & _ONE == _ZERO, exponent)
    return trimmed(digits, exponent)


@inline
def round_single(power: Any, word: Any) -> Any:
    """As `round_to_odd`, with a 64-bit power and a 32-bit result."""
    top = multiply_high(power, word)
    rest = (power * word) >> _THIRTY_TWO
    return (top & _LOW32) | (_ONE if rest > _ONE else _ZERO)


@inline
def shortest32(bits: int) -> tuple[Any, int]:
    """(digits U64, exponent) of the finite f32 > 0 whose widened double has these bits.

    The digits are the shortest ones *as an f32*.
    """
    single = single_bits(bits)
    fraction = single & _FRACTION32
    biased = I64((single >> U64(23)) & U64(0xFF))
    if biased != 0:
        c = fraction | _HIDDEN32
        q = biased - 150
        if -24 < q <= 0 and (c >> U64(-q)) << U64(-q) == c:
            return trimmed(c >> U64(-q), 0)
    else:
        c = fraction
        q = -149
    # Not for the smallest normal number: the subnormal ones below it are as far apart as those above.
    closer = fraction == _ZERO and biased > 1
    exponent = (q * 1262611 - (524031 if closer else 0)) >> 22
    h = U64(q + ((-exponent * 1741647) >> 19) + 1)
    power = _SINGLE[-exponent - _SINGLE_MIN]
    middle = _FOUR * c
    vbl = round_single(power, (middle - (_ONE if closer else _TWO)) << h)
    vb = round_single(power, middle << h)
    vbr = round_single(power, (middle + _TWO) << h)
    digits, exponent = choose(vbl, vb, vbr, c & _ONE == _ZERO, exponent)
    return trimmed(digits, exponent)


@inline
def put_padded(out: int, value: int, width: int) -> int:
    """0 <= value < 10**width with leading zeros; width 1..16."""
    if width > 8:
        high = value // 100000000
        put_eight(out, high * POWERS_OF_TEN[16 - width])
        out += width - 8
        value -= high * 100000000
        width = 8
    put_eight(out, value * POWERS_OF_TEN[8 - width])
    return out + width


@inline
def put_zeros(out: int, count: int) -> int:
    """Write `count` zeros; returns the end."""
    for i in range(count):
        store_u8(out + i, ZERO)
    return out + max(count, 0)


@inline
def count_digits(digits: Any) -> int:
    """The number of decimal digits of 0 < digits < 10**18."""
    # 1233 / 2**12 is just below log10(2), so this is the number of digits of the smallest number with as many
    # bits, or one less.
    n = ((64 - I64(ctlz64(digits))) * 1233) >> 12
    return n + (1 if U64(POWERS_OF_TEN[n]) <= digits else 0)


@inline
def put_fixed(out: int, digits: Any, exponent: int) -> int:
    """Digits * 10**exponent without an exponent; a point only if there is a fraction."""
    if exponent >= 0:
        return put_zeros(put_u64(out, digits), exponent)
    n = count_digits(digits)
    if -exponent >= n:
        store_u8(out, ZERO)
        store_u8(out + 1, POINT)
        return put_u64(put_zeros(out + 2, -exponent - n), digits)
    power = POWERS_OF_TEN[-exponent]
    # Unsigned, because the division of signed numbers has more steps.
    whole = digits // U64(power)
    out = put_u64(out, whole)
    store_u8(out, POINT)
    return put_padded(out + 1, I64(digits - whole * U64(power)), -exponent)


@inline
def put_exponent(out: int, digits: Any, exponent: int) -> int:
    """Go's 'e' format as its JSON shortens negative exponents: `1.5e-7`; positive exponents have no sign."""
    n = count_digits(digits)
    power = POWERS_OF_TEN[n - 1]
    first = I64(digits) // power
    store_u8(out, ZERO + first)
    out += 1
    if n > 1:
        store_u8(out, POINT)
        out = put_padded(out + 1, I64(digits) - first * power, n - 1)
    store_u8(out, LOWER_E)
    return put_i64(out + 1, exponent + n - 1)


@inline
def put_sign(out: int, bits: int) -> int:
    """The minus sign of a negative number, and of -0."""
    if bits < 0:
        store_u8(out, MINUS)
        return out + 1
    return out


@inline
def put_zero(out: int) -> int:
    """The digit 0."""
    store_u8(out, ZERO)
    return out + 1


@inline
def put_double_fixed(out: int, bits: int) -> int:
    """Go's `FormatFloat(v, 'f', -1, 64)`; NaN and infinities as 0."""
    if not is_finite(bits):
        return put_zero(out)
    out = put_sign(out, bits)
    if bits & _MAGNITUDE == 0:
        return put_zero(out)
    digits, exponent = shortest64(bits & _MAGNITUDE)
    return put_fixed(out, digits, exponent)


@inline
def put_float_fixed(out: int, bits: int) -> int:
    """Go's `FormatFloat(v, 'f', -1, 32)` of the f32 in a double; NaN and infinities as 0."""
    # A finite double may be infinite as an f32.
    if not is_finite(bits) or single_bits(bits & _MAGNITUDE) >= U64(0x7F800000):
        return put_zero(out)
    out = put_sign(out, bits)
    # A double that is not 0 may be 0 as an f32.
    if single_bits(bits & _MAGNITUDE) == _ZERO:
        return put_zero(out)
    digits, exponent = shortest32(bits & _MAGNITUDE)
    return put_fixed(out, digits, exponent)


@inline
def put_go_json(out: int, digits: Any, exponent: int) -> int:
    """Go's `encoding/json`: fixed in [1e-6, 1e21), else with exponent (`1e+21`, `1e-7`)."""
    point = exponent + count_digits(digits)
    # The limits of JavaScript's numbers as text, which encoding/json follows.
    if -6 < point <= 21:
        return put_fixed(out, digits, exponent)
    n = count_digits(digits)
    power = POWERS_OF_TEN[n - 1]
    first = I64(digits) // power
    store_u8(out, ZERO + first)
    out += 1
    if n > 1:
        store_u8(out, POINT)
        out = put_padded(out + 1, I64(digits) - first * power, n - 1)
    store_u8(out, LOWER_E)
    out += 1
    if point > 0:
        store_u8(out, PLUS)
        out += 1
    return put_i64(out, point - 1)


@inline
def put_double_json(out: int, bits: int) -> int:
    """A double as Go's `encoding/json` prints it; NaN and infinities as 0."""
    if not is_finite(bits):
        return put_zero(out)
    out = put_sign(out, bits)
    if bits & _MAGNITUDE == 0:
        return put_zero(out)
    digits, exponent = shortest64(bits & _MAGNITUDE)
    return put_go_json(out, digits, exponent)


@inline
def put_float_json(out: int, bits: int) -> int:
    """The f32 in a double as Go's `encoding/json` prints a float32; NaN and infinities as 0."""
    if not is_finite(bits) or single_bits(bits & _MAGNITUDE) >= U64(0x7F800000):
        return put_zero(out)
    out = put_sign(out, bits)
    if single_bits(bits & _MAGNITUDE) == _ZERO:
        return put_zero(out)
    digits, exponent = shortest32(bits & _MAGNITUDE)
    return put_go_json(out, digits, exponent)


@inline
def put_double_tidb(out: int, bits: int) -> int:
    """A double inside TiDB's binary JSON: always a point or an exponent (below 1e-15, from 1e15)."""
    out = put_sign(out, bits)
    if bits & _MAGNITUDE == 0:
        out = put_zero(out)
        store_u8(out, POINT)
        return put_zero(out + 1)
    digits, exponent = shortest64(bits & _MAGNITUDE)
    point = exponent + count_digits(digits)
    if not -15 < point <= 15:
        return put_exponent(out, digits, exponent)
    out = put_fixed(out, digits, exponent)
    if exponent >= 0:
        store_u8(out, POINT)
        out = put_zero(out + 1)
    return out
