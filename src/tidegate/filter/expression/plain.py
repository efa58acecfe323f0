"""Evaluates expressions row by row: the oracle of `vector`, and its fallback if `vector` raises Beyond."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Final

import orjson

from tidegate.errors import Undecodable
from tidegate.filter.expression.typed import Domain, Typed, Uncomputable
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind
from tidegate.tidb.table_filter import found
from tidegate.tidb.types import collation, enum, temporal
from tidegate.tidb.types import float as floats

Plain = Any
"""A value of one of the domains in `typed`, or None."""

_EXACT: Final = Context(prec=1200, Emax=999_999, Emin=-999_999)
_NUMBER: Final = re.compile(rb"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|)\s*")


def inner(column: Column, value: Value) -> Plain:
    """A row's value (`model.row`) in the form for expressions. An enum or a set stays a number."""
    if value is None:
        return None
    match column.kind:
        case Kind.DECIMAL:
            return Decimal(str(value))
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP:
            return temporal.pack(temporal.parse(str(value)))
        case Kind.TIME:
            return temporal.parse_duration(str(value))
        case _:
            return value


def is_true(value: Plain, node: Typed) -> bool:
    """Whether the value of a whole expression means "drop". As in TiCDC, it must be the integer 1."""
    return node.domain is Domain.INT and value == 1


def evaluate(node: Typed, row: Sequence[Plain], columns: Sequence[Column]) -> Plain:
    """The value for a row of `inner` values. Raises Uncomputable."""
    match node.op:
        case "const":
            return node.value
        case "column":
            return _named(columns[node.value], row[node.value])
        case "index":
            return row[node.value]
        # These do not need all arguments. One that is not needed must not fail the row, as in TiDB.
        case "or" | "and":
            return _connected(node, row, columns)
        case "if":
            chosen = node.args[1] if evaluate(node.args[0], row, columns) else node.args[2]
            return _as(node, evaluate(chosen, row, columns))
        case "coalesce":
            for arg in node.args:
                if (value := evaluate(arg, row, columns)) is not None:
                    return _as(node, value)
            return None
    values = [evaluate(arg, row, columns) for arg in node.args]
    if node.op in _ON_NULL:
        return _ON_NULL[node.op](*values)
    if any(value is None for value in values):
        return int(values == [None, None]) if node.op == "<=>" else None
    return _checked(node, _FUNCTIONS[node.op](node, *values))


def _named(column: Column, value: Plain) -> Plain:
    return value if value is None or column.kind not in (Kind.ENUM, Kind.SET) else names(column, value)


def names(column: Column, number: int) -> bytes:
    """The text of an enum's or set's number. Empty if the number has none."""
    name_of = enum.enum_name if column.kind is Kind.ENUM else enum.set_names
    try:
        return name_of(number, column.elems).encode()
    except Undecodable:
        return b""


def _connected(node: Typed, row: Sequence[Plain], columns: Sequence[Column]) -> int | None:
    """Three-valued AND and OR. As in TiDB, a deciding argument ends it, so that later ones cannot fail."""
    decisive = node.op == "or"
    seen_null = False
    for arg in node.args:
        value = evaluate(arg, row, columns)
        if value is None:
            seen_null = True
        elif bool(value) is decisive:
            return int(decisive)
    return None if seen_null else int(not decisive)


def _as(node: Typed, value: Plain) -> Plain:
    """A branch's value in the domain of the whole."""
    if value is None:
        return None
    return float(value) if node.domain is Domain.REAL else value


def _checked(node: Typed, value: Plain) -> Plain:
    """The value, if it is in the range of the result type. Otherwise raises Uncomputable, as TiDB fails."""
    if node.domain is Domain.INT and value is not None and not node.low <= value <= node.high:
        raise Uncomputable(f"the result of {node.op} is out of range")
    if node.domain is Domain.REAL and value is not None and not math.isfinite(value):
        raise Uncomputable(f"the result of {node.op} is out of range")
    return value


# --- comparison -----------------------------------------------------------------------------------------


def _order(node: Typed, left: Plain, right: Plain) -> int:
    """-1, 0 or 1 if `left` is below, equal to or above `right`."""
    domains = [arg.domain for arg in node.args]
    if domains[0] is Domain.JSON:
        return json_order(left, right)
    if domains[0] is Domain.STRING:
        left, right = collation.key(left, node.collate), collation.key(right, node.collate)
    elif Domain.DECIMAL in domains and Domain.REAL in domains:
        left, right = exact(left), exact(right)
    elif Domain.REAL in domains:
        left, right = float(left), float(right)
    return int(left > right) - int(left < right)


def exact(number: float | int | Decimal) -> Decimal:
    """A number as a decimal, as TiDB converts it: a floating number by its shortest text."""
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


_JSON_RANKS: Final = {"n": 0, '"': 2, "{": 3, "[": 4, "t": 5, "f": 5}
"""The rank of a JSON type, by the first character: null, text, object, array, boolean. Numbers have rank
1."""
_JSON_EPSILON: Final = 1e-8


def units(number: int | Decimal, scale: int) -> int:
    """An exact number in units of 10**-scale. It must not have more digits after the point than `scale`."""
    return int(Fraction(number) * 10**scale)


def decimal_of(units: int, scale: int) -> Decimal:
    """The inverse of `units`."""
    return _EXACT.scaleb(Decimal(units), -scale)


def json_order(text: str, constant: int | float | Decimal | bytes) -> int:
    """Compare a JSON value with a constant number or text: -1, 0 or 1 (TiDB `json_binary_functions.go`)."""
    rank = _JSON_RANKS.get(text[0], 1)
    wanted = 2 if isinstance(constant, bytes) else 1
    if rank != wanted:
        return -1 if rank < wanted else 1
    value = orjson.loads(text)
    if isinstance(constant, bytes):
        data = value.encode()
        return int(data > constant) - int(data < constant)
    number = float(constant) if isinstance(constant, Decimal) else constant
    # TiDB compares an integer with a float less exactly (`compareFloat64PrecisionLoss`).
    if isinstance(value, float) != isinstance(number, float) and abs(value - number) < _JSON_EPSILON:
        return 0
    return int(value > number) - int(value < number)


def real(text: bytes) -> float:
    """The number in a text. As in TiCDC, it is strict: raises Uncomputable if the text has anything else."""
    found_number = _NUMBER.fullmatch(text)
    number = float(found_number[1] or 0) if found_number else math.inf
    if not math.isfinite(number):
        raise Uncomputable(f"{text[:40].decode(errors='replace')!r} is not a number")
    return number


def like(node: Typed, data: bytes) -> int:
    """Whether a text matches `node.value`, a tuple of character keys, None for _ and True for %."""
    if node.collate == "binary":
        signs: list[bytes] = [bytes([byte]) for byte in data]
    else:
        weigh = collation.sign_key(node.collate)
        signs = [weigh(sign) for sign in _text(data)]
    return int(_matches(signs, node.value))


def _matches(signs: Sequence[bytes], pattern: Sequence[bytes | bool | None]) -> bool:
    """A greedy match that only backtracks to the last %: at most len(signs) * len(pattern) steps."""
    at = p = 0
    star, back = -1, 0
    while at < len(signs):
        if p < len(pattern) and pattern[p] is True:
            star, back, p = p, at, p + 1
        elif p < len(pattern) and (pattern[p] is None or pattern[p] == signs[at]):
            at, p = at + 1, p + 1
        elif star >= 0:
            back += 1
            at, p = back, star + 1
        else:
            return False
    return all(part is True for part in pattern[p:])


# --- arithmetic -----------------------------------------------------------------------------------------


def _add(node: Typed, left: Plain, right: Plain) -> Plain:
    return _computed(node, left, right, lambda a, b: a + b, _EXACT.add)


def _subtract(node: Typed, left: Plain, right: Plain) -> Plain:
    return _computed(node, left, right, lambda a, b: a - b, _EXACT.subtract)


def _multiply(node: Typed, left: Plain, right: Plain) -> Plain:
    return _computed(node, left, right, lambda a, b: a * b, _EXACT.multiply)


def _computed(
    node: Typed,
    left: Plain,
    right: Plain,
    simple: Callable[[Any, Any], Any],
    exactly: Callable[[Decimal, Decimal], Decimal],
) -> Plain:
    if node.domain is Domain.DECIMAL:
        return exactly(Decimal(left), Decimal(right))
    if node.domain is Domain.REAL:
        return simple(float(left), float(right))
    return simple(left, right)


def _divide(node: Typed, left: Plain, right: Plain) -> Plain:
    if not right:
        return None
    if node.domain is Domain.REAL:
        return float(left) / float(right)
    # As a fraction: a decimal quotient would be rounded before it is truncated.
    units = _truncated(Fraction(left) / Fraction(right) * 10**node.scale)
    return _EXACT.scaleb(Decimal(units), -node.scale)


def _integer_divide(node: Typed, left: Plain, right: Plain) -> Plain:
    return _truncated(Fraction(left) / Fraction(right)) if right else None


def _truncated(number: Fraction) -> int:
    return int(number)


def _remainder(node: Typed, left: Plain, right: Plain) -> Plain:
    if not right:
        return None
    if node.domain is Domain.REAL:
        return math.fmod(float(left), float(right))
    whole = _truncated(Fraction(left) / Fraction(right))
    rest = Fraction(left) - whole * Fraction(right)
    if node.domain is Domain.INT:
        return int(rest)
    return _EXACT.scaleb(Decimal(int(rest * 10**node.scale)), -node.scale)


_WORD: Final = (1 << 64) - 1


def _shift_left(node: Typed, left: int, right: int) -> int:
    amount = right & _WORD
    return (left & _WORD) << amount & _WORD if amount < 64 else 0


def _shift_right(node: Typed, left: int, right: int) -> int:
    amount = right & _WORD
    return (left & _WORD) >> amount if amount < 64 else 0


# --- texts and times ------------------------------------------------------------------------------------


def lower(data: bytes) -> bytes:
    """A text in lower case, character by character."""
    return "".join(sign.lower()[:1] for sign in _text(data)).encode()


def upper(data: bytes) -> bytes:
    """A text in upper case, character by character. A character that would become several stays."""
    return "".join(sign.upper() if len(sign.upper()) == 1 else sign for sign in _text(data)).encode()


def _text(data: bytes) -> str:
    """Decode a text. Bytes that are not UTF-8 become U+FFFD."""
    return data.decode(errors="replace")


def written(of: Typed, value: Plain) -> bytes:
    """A number, date or time as TiDB casts it to text (`builtin_cast.go`). ZEROFILL does not add zeros."""
    match of.domain:
        case Domain.DECIMAL:
            text = f"{value.copy_abs() if value.is_zero() else value:.{of.scale}f}"
        case Domain.REAL:
            text = floats.fixed_text(value, single=of.is_float)
        case Domain.DATETIME if of.is_date:
            text = temporal.date_text(temporal.unpack(value))
        case Domain.DATETIME:
            text = temporal.datetime_text(temporal.unpack(value), of.scale)
        case Domain.TIME:
            text = temporal.duration_text(value, of.scale)
        case _ if of.bits:
            return int(value).to_bytes((of.bits + 7) // 8, "big")
        case _:
            text = f"{value:04d}" if of.is_year else str(value)
    return text.encode()


def _hours(node: Typed, value: int) -> int:
    if node.args[0].domain is Domain.TIME:
        return abs(value) // 3_600_000_000_000
    return value >> 36 & 31


def _minutes(node: Typed, value: int) -> int:
    if node.args[0].domain is Domain.TIME:
        return abs(value) // 60_000_000_000 % 60
    return value >> 30 & 63


def _seconds(node: Typed, value: int) -> int:
    if node.args[0].domain is Domain.TIME:
        return abs(value) // 1_000_000_000 % 60
    return value >> 24 & 63


def _round(node: Typed, value: Plain) -> Decimal:
    """Round half away from zero, to the scale."""
    units = Fraction(value) * 10**node.scale
    rounded = math.floor(abs(units) + Fraction(1, 2))
    return _EXACT.scaleb(Decimal(rounded if units >= 0 else -rounded), -node.scale)


def _in(node: Typed, value: Plain) -> int | None:
    if any(_order(node, value, item) == 0 for item in node.value):
        return 1
    return None if node.nulls else 0


_ON_NULL: Final[dict[str, Callable[..., Plain]]] = {
    "is_null": lambda value: int(value is None),
    "is_true": lambda value: int(bool(value)),
    "is_false": lambda value: int(value is not None and not value),
}
"""Operators whose result for NULL is not NULL."""

_FUNCTIONS: Final[dict[str, Callable[..., Plain]]] = {
    "=": lambda node, a, b: int(_order(node, a, b) == 0),
    "<=>": lambda node, a, b: int(_order(node, a, b) == 0),
    "<>": lambda node, a, b: int(_order(node, a, b) != 0),
    "<": lambda node, a, b: int(_order(node, a, b) < 0),
    "<=": lambda node, a, b: int(_order(node, a, b) <= 0),
    ">": lambda node, a, b: int(_order(node, a, b) > 0),
    ">=": lambda node, a, b: int(_order(node, a, b) >= 0),
    "in": _in,
    "like": like,
    "regexp": lambda node, text: int(found(node.value, [_text(text)])[0]),
    "not": lambda node, value: int(not value),
    "xor": lambda node, a, b: int(bool(a) != bool(b)),
    "truth": lambda node, value: int(value != 0),
    "real": lambda node, value: real(value) if isinstance(value, bytes) else float(value),
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
    "div": _integer_divide,
    "%": _remainder,
    "neg": lambda node, value: value.copy_negate() if isinstance(value, Decimal) else -value,
    "abs": lambda node, value: value.copy_abs() if isinstance(value, Decimal) else abs(value),
    "round": _round,
    "&": lambda node, a, b: a & b & _WORD,
    "|": lambda node, a, b: (a | b) & _WORD,
    "^": lambda node, a, b: (a ^ b) & _WORD,
    "~": lambda node, value: ~value & _WORD,
    "<<": _shift_left,
    ">>": _shift_right,
    "text": lambda node, value: written(node.args[0], value),
    "length": lambda node, text: len(text),
    "char_length": lambda node, text: len(_text(text)),
    "lower": lambda node, text: lower(text),
    "upper": lambda node, text: upper(text),
    "concat": lambda node, *texts: b"".join(texts),
    "year": lambda node, value: (value >> 46) // 13,
    "month": lambda node, value: (value >> 46) % 13,
    "day": lambda node, value: value >> 41 & 31,
    "date": lambda node, value: value >> 41 << 41,
    "hour": _hours,
    "minute": _minutes,
    "second": _seconds,
}
