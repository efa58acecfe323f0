"""Values as in messages for Kafka Connect: numbers for dates and times, names for enums, floats for decimals.

Encoding: `put_connected`, which `codec.kernels.row_kernels` calls for a piece of one of these forms.
Decoding: `moment_texts` and `decimal_texts` turn a column of numbers into texts, `bits_numbers` bytes into
numbers. Plain twins: `codec.protocols.debezium`, in `plain`, `moments` and `fields`. Every address is an
int64; texts may write up to `SLACK` bytes past their end.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tidegate.codec.kernels.layout_kernels import NAME_AT, NAME_BYTES, NAME_SIZE
from tidegate.codec.kernels.text_kernels import put_base64, put_const, put_hex_rune
from tidegate.kernel import (
    cttz64,
    inline,
    kernel,
    load_bounds,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    shared,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from tidegate.kernel_ascii import (
    BACKSLASH,
    CARRIAGE_RETURN,
    COMMA,
    E_MINUS_TEXT,
    FALS_TEXT,
    LOWER_E,
    LOWER_N,
    LOWER_R,
    LOWER_T,
    MINUS,
    NEWLINE,
    NULL_TEXT,
    POINT,
    QUOTE,
    SPACE,
    TAB,
    TRUE_TEXT,
    UPPER_T,
    ZERO,
)
from tidegate.tidb.kernels.float import put_double_fixed, put_double_json, put_float_json
from tidegate.tidb.kernels.json import put_json
from tidegate.tidb.kernels.packed_time import DATE_AT, DATE_MASK, DATE_MONTHS_AT, DAY_MASK, MICRO_MASK
from tidegate.tidb.kernels.text import I64, U64, put_datetime, put_decimal, put_duration, put_i64
from tidegate.tidb.kernels.zone import clock_seconds, packed_clock
from tidegate.tidb.types import temporal

# Forms of a piece; their numbers follow those of `piece_kernels`.
RAW_TEXT: Final = 23
RAW_JSON: Final = 24
FLOAT_ITERATOR: Final = 25
DOUBLE_ITERATOR: Final = 26
DECIMAL_DOUBLE: Final = 27
DAYS: Final = 28
EPOCH: Final = 29
ZONED: Final = 30
MICROS: Final = 31
BITS: Final = 32
BOOL: Final = 33
NAME: Final = 34
NAMES: Final = 35
TABLED: Final = (NAME, NAMES)
"""The forms whose parameter is the address of a table among the constants."""
FACTORS: Final = {RAW_TEXT: 6, RAW_JSON: 8}
"""The most bytes of text for each byte of a value of variable size; 64 more are added."""
SIZES: Final = {
    FLOAT_ITERATOR: 48, DOUBLE_ITERATOR: 48, DECIMAL_DOUBLE: 48, DAYS: 24, EPOCH: 24, ZONED: 32, MICROS: 24,
    BITS: 24, BOOL: 8, NAME: 0, NAMES: 0,
}  # fmt: skip
"""The most bytes of text of the other forms; the bytes of names are counted with the piece."""

_HIGH: Final = U64(0x8080808080808080)
_ONES: Final = U64(0x0101010101010101)
_SPACES: Final = U64(0x2020202020202020)
_QUOTES: Final = U64(0x2222222222222222)
_BACKSLASHES: Final = U64(0x5C5C5C5C5C5C5C5C)
_ZERO: Final = U64(0)
_EXACT: Final = 1 << 53
"""Integers up to this one are exact doubles. Divided by an exact power of ten they are rounded only once."""
_EXACT_POWERS: Final = np.array([float(10**k) for k in range(23)], dtype=np.float64)
_EPOCH_PACKED: Final = temporal.pack(temporal.Parts(1970, 1, 1, 0, 0, 0, 0))
_DAY_SECONDS: Final = 86_400
_DATE_BYTES: Final = 10
"""Bytes of `YYYY-MM-DD`."""
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""The days of the years 1 to 9999, since 1970."""
_TIME_LIMIT: Final = 839 * 3600 * 1_000_000

NULLABLE: Final = 1
MICROSECONDS: Final = 2
"""Bits of the parameter of `put_days` and `put_epoch`: NULL replaces a date in no calendar; the unit."""

# The kinds of numbers that `moment_texts` reads.
DATES: Final = 0
EPOCH_MS: Final = 3
EPOCH_US: Final = 6
CLOCK: Final = 9

strtod: Any = types.ExternalFunction("strtod", types.float64(types.int64, types.int64))
"""The function of C. Its input has no decimal point, because a locale could change that."""


def _bits_of(typingctx: Any, value: Any) -> Any:

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


bits_of: Any = intrinsic(_bits_of)
"""The bits of a double."""


# --- encoding


@inline
def put_raw_text(out: int, addr: int, size: int) -> int:
    """The characters of a JSON string as json-iterator writes them: at most 6 * size bytes.

    Reads exactly `size` bytes. Controls, quotes and backslashes are escaped; bytes above 0x7F are copied,
    UTF-8 or not.
    """
    end = addr + size
    while addr < end:
        if addr + 8 <= end:
            word = load_u64(addr)
            quote = word ^ _QUOTES
            slash = word ^ _BACKSLASHES
            # `& ~word` takes bytes above 0x7F out, because json-iterator copies them.
            marks = (
                ((word - _SPACES) & ~word) | ((quote - _ONES) & ~quote) | ((slash - _ONES) & ~slash)
            ) & _HIGH
            store_u64(out, word)
            if marks == _ZERO:
                addr += 8
                out += 8
                continue
            clean = I64(cttz64(marks) >> U64(3))
            addr += clean
            out += clean
        byte = I64(load_u8(addr))
        addr += 1
        if byte >= SPACE and byte != QUOTE and byte != BACKSLASH:
            store_u8(out, byte)
            out += 1
            continue
        short = byte
        if byte == NEWLINE:
            short = LOWER_N
        elif byte == CARRIAGE_RETURN:
            short = LOWER_R
        elif byte == TAB:
            short = LOWER_T
        # Letters, quote and backslash are above SPACE; other controls have no short escape.
        if short >= SPACE:
            store_u16(out, BACKSLASH | (short << 8))
            out += 2
        else:
            out = put_hex_rune(out, byte)
    return out


@inline
def with_two_digits(out: int, end: int) -> int:
    """A number's text with a zero before an exponent of one digit below zero: `1e-7` is `1e-07`."""
    if end - out < 4 or load_u8(end - 3) != LOWER_E or load_u8(end - 2) != MINUS:
        return end
    store_u8(end, load_u8(end - 1))
    store_u8(end - 1, ZERO)
    return end + 1


@inline
def put_decimal_double(out: int, addr: int, length: int, scratch: int) -> int:
    """The double nearest to a decimal, as json-iterator prints it.

    `scratch` takes the decimal's digits: 256 bytes.
    """
    end = put_decimal(scratch, addr, length)
    text = scratch + 128
    last = text
    value = 0
    count = 0
    frac = 0
    at = scratch
    negative = load_u8(at) == MINUS
    at += negative
    while at < end:
        byte = I64(load_u8(at))
        at += 1
        if byte == POINT:
            frac = end - at
            continue
        if count > 0 or byte != ZERO:
            store_u8(last, byte)
            last += 1
            count += 1
            if count <= 18:
                value = value * 10 + byte - ZERO
    # Both operands are exact doubles, so one division gives the nearest one. `strtod` decides all others.
    if count <= 18 and value <= _EXACT and frac <= 22:
        number = value / _EXACT_POWERS[frac]
    else:
        store_u16(last, E_MINUS_TEXT)
        last = put_i64(last + 2, frac)
        store_u8(last, 0)
        number = strtod(text, 0)
    bits = bits_of(number)
    if negative:
        bits |= I64(-9223372036854775808)
    return with_two_digits(out, put_double_json(out, bits))


@inline
def days_of(packed: int) -> int:
    """The day of a packed time since 1970, with Debezium's correction of years; below -2**40: none."""
    ymd = (packed >> DATE_AT) & DATE_MASK
    day = ymd & DAY_MASK
    year = (ymd >> DATE_MONTHS_AT) // 13
    month = (ymd >> DATE_MONTHS_AT) - year * 13
    if year < 70:
        year += 2000
    elif year < 100:
        year += 1900
    if month == 0 or day == 0:
        return -(1 << 41)
    longest = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        longest = 30
    elif month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        longest = 29 if leap else 28
    if day > longest:
        return -(1 << 41)
    # Years from March on, so that the leap day is the last one (Howard Hinnant's days_from_civil).
    moved = year - 1 if month <= 2 else year
    era = moved // 400
    of_era = moved - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@inline
def put_no_moment(out: int, param: int) -> int:
    """Write the replacement of a date that is in no calendar."""
    if param & NULLABLE:
        store_u32(out, NULL_TEXT)
        return out + 4
    store_u8(out, ZERO)
    return out + 1


@inline
def put_days(out: int, packed: int, param: int) -> int:
    """A date as days since 1970."""
    days = days_of(packed)
    return put_i64(out, days) if days > -(1 << 40) else put_no_moment(out, param)


@inline
def put_epoch(out: int, packed: int, param: int) -> int:
    """A datetime as milliseconds or microseconds since 1970."""
    days = days_of(packed)
    if days < -(1 << 40):
        return put_no_moment(out, param)
    seconds = days * _DAY_SECONDS + clock_seconds(packed)
    micro = packed & MICRO_MASK
    if param & MICROSECONDS:
        return put_i64(out, seconds * 1000000 + micro)
    return put_i64(out, seconds * 1000 + micro // 1000)


@inline
def put_zoned(out: int, packed: int, fsp: int) -> int:
    """A timestamp in UTC, `YYYY-MM-DDThh:mm:ss[.f..]`; zero is the epoch, without a fraction."""
    end = put_datetime(out, _EPOCH_PACKED, 0) if packed == 0 else put_datetime(out, packed, fsp)
    store_u8(out + _DATE_BYTES, UPPER_T)
    return end


@inline
def put_micros(out: int, nanoseconds: int) -> int:
    """A TIME in microseconds, cut towards zero."""
    return put_i64(out, -((-nanoseconds) // 1000) if nanoseconds < 0 else nanoseconds // 1000)


@inline
def put_bits(out: int, value: int, length: int, scratch: int) -> int:
    """A BIT(length) of more than one bit: Base64 of its bytes from the lowest on."""
    store_u64(scratch, U64(value))
    return put_base64(out, scratch, (length + 7) >> 3)


@inline
def put_bool(out: int, value: int) -> int:
    """`true` or `false`."""
    if value != 0:
        store_u32(out, TRUE_TEXT)
        return out + 4
    store_u32(out, FALS_TEXT)
    store_u8(out + 4, LOWER_E)
    return out + 5


@inline
def put_name(out: int, number: int, table: int) -> int:
    """The name of an enum's element; nothing for a number that has none.

    table: the number of elements as i64, then a NAME for each.
    """
    if number < 1 or number > load_i64(table):
        return out
    # The count before the names takes the room of the first.
    entry = table + NAME_BYTES * number
    return put_const(out, table + I64(load_u32(entry + NAME_AT)), I64(load_u32(entry + NAME_SIZE)))


@inline
def put_names(out: int, mask: int, table: int) -> int:
    """The names of a set's elements with commas between; nothing for a mask with a bit that has none."""
    count = load_i64(table)
    if count < 64 and U64(mask) >> U64(count) != _ZERO:
        return out
    rest = U64(mask)
    first = True
    while rest != _ZERO:
        bit = I64(cttz64(rest))
        rest &= rest - U64(1)
        if not first:
            store_u8(out, COMMA)
            out += 1
        first = False
        out = put_name(out, bit + 1, table)
    return out


@shared
def put_connected(out: int, form: int, param: int, word: int, size: int, scratch: int, stack: int) -> int:
    """Write the text of one value that is not NULL, in one of the forms above.

    It is called, not inlined: inlined it would double the code of the kernels of all other protocols.

    Reads the bytes of the value. Writes `out`, and `scratch` on the way. Bound: FACTORS and SIZES. Twin:
    `tidegate.codec.protocols.debezium.plain.value_json`.
    """
    if form == RAW_TEXT:
        return put_raw_text(out, word, size)
    if form == EPOCH:
        return put_epoch(out, word, param)
    if form == DECIMAL_DOUBLE:
        return put_decimal_double(out, word, size, scratch)
    if form == DOUBLE_ITERATOR:
        return with_two_digits(out, put_double_json(out, word))
    if form == FLOAT_ITERATOR:
        return with_two_digits(out, put_float_json(out, word))
    if form == RAW_JSON:
        # TiDB's text first, then escaped as any text.
        return put_raw_text(out, scratch, put_json(scratch, word, size, stack) - scratch)
    if form == ZONED:
        return put_zoned(out, word, param)
    if form == DAYS:
        return put_days(out, word, param)
    if form == MICROS:
        return put_micros(out, word)
    if form == NAME:
        return put_name(out, word, param)
    if form == NAMES:
        return put_names(out, word, param)
    if form == BOOL:
        return put_bool(out, word)
    return put_bits(out, word, param, scratch)


# --- decoding


@inline
def packed_day(days: int) -> int:
    """The packed time at the beginning of a day of the years 1 to 9999."""
    shifted = days + 719468
    era = shifted // 146097
    of_era = shifted - era * 146097
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    fifth = (5 * of_year + 2) // 153
    day = of_year - (153 * fifth + 2) // 5 + 1
    month = fifth + 3 if fifth < 10 else fifth - 9
    year += era * 400 + (1 if month <= 2 else 0)
    return (((year * 13 + month) << DATE_MONTHS_AT) | day) << DATE_AT


@inline
def put_moment(out: int, number: int, form: int) -> int:
    """One text; 0 for a number out of range. A fraction of zero is left out."""
    if form == CLOCK:
        if number <= -_TIME_LIMIT or number >= _TIME_LIMIT:
            return 0
        return put_duration(out, number * 1000, 6 if number % 1000000 != 0 else 0)
    unit = 1 if form == DATES else 1000 if form == EPOCH_MS else 1000000
    seconds = number // unit
    fraction = number - seconds * unit
    day = seconds if form == DATES else seconds // _DAY_SECONDS
    if day < _FIRST_DAY or day > _LAST_DAY:
        return 0
    if form == DATES:
        # Without the clock, ` 00:00:00`.
        return put_datetime(out, packed_day(day), 0) - 9
    clock = seconds - day * _DAY_SECONDS
    packed = packed_day(day) | packed_clock(clock)
    micro = fraction * 1000 if form == EPOCH_MS else fraction
    return put_datetime(out, packed | micro, form if fraction != 0 else 0)


@kernel
def moment_texts(count: int, numbers: int, valid: int, form: int, out: int, ends: int, bad: int) -> int:
    """Write the texts of `count` numbers (i64) of dates, datetimes or times; returns the bytes written.

    valid: u8[count]; ends: i32[count]; rows whose number is out of range are marked in `bad` (u8).

    Reads the numbers that are valid. Writes `out`, `ends` and `bad`. Bound: 32 bytes a text. Twins:
    `tidegate.codec.protocols.debezium.moments.date_of`,
    `tidegate.codec.protocols.debezium.moments.datetime_of` and
    `tidegate.codec.protocols.debezium.moments.time_of`.
    """
    base = out
    for i in range(count):
        if load_u8(valid + i):
            end = put_moment(out, load_i64(numbers + 8 * i), form)
            if end == 0:
                store_u8(bad + i, 1)
            else:
                out = end
        store_u32(ends + 4 * i, out - base)
    return out - base


@kernel
def decimal_texts(count: int, doubles: int, valid: int, out: int, ends: int) -> int:
    """Write the texts of `count` doubles without exponents; returns the bytes written.

    valid: u8[count]; ends: i32[count].

    Reads the doubles that are valid. Writes `out` and `ends`. Bound: 352 bytes a text. Twin:
    `tidegate.codec.protocols.debezium.fields.decimal_text`.
    """
    base = out
    for i in range(count):
        if load_u8(valid + i):
            out = put_double_fixed(out, load_i64(doubles + 8 * i))
        store_u32(ends + 4 * i, out - base)
    return out - base


@kernel
def bits_numbers(count: int, ends: int, data: int, size: int, out: int, bad: int) -> None:
    """Read `count` runs of `size` little-endian bytes as numbers (u64).

    ends: i32[count + 1]. bad: u8[count], 1 for a run of another length, and for a NULL that is not `size`
    bytes.

    Reads the runs. Writes `out`, and `bad` for those that are. Bound: a word a run. Twin:
    `tidegate.codec.protocols.debezium.fields.value_of`.
    """
    for i in range(count):
        start, end = load_bounds(ends, i)
        length = end - start
        value = 0
        if length == size:
            for k in range(size):
                value |= I64(load_u8(data + start + k)) << (8 * k)
        else:
            store_u8(bad + i, 1)
        store_u64(out + 8 * i, value)


def warm() -> None:
    """Compile the kernels that are not in numba's cache yet, by calling them with no rows."""
    moment_texts(0, 0, 0, 0, 0, 0, 0)
    decimal_texts(0, 0, 0, 0, 0)
    bits_numbers(0, 0, 0, 0, 0, 0)
