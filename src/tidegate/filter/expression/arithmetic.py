"""Arithmetic and truth operators: the types and the bounds of their results.

As in TiDB, the result is floating if an operand is floating or a text, otherwise decimal if one is decimal,
otherwise an integer. `/` of exact numbers is a decimal whose digits after the point fill whole words of nine
digits and are truncated there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.filter.expression.fold import folded, integer_result, number, real, spread, truth
from tidegate.filter.expression.syntax import Refusal
from tidegate.filter.expression.typed import BOOLEAN, INT64, UINT64, Domain, Typed

_WORD: Final = 9
_DIVISION_DIGITS: Final = 4
MAX_SCALE: Final = 90
"""The most digits after the point of any intermediate decimal."""

Make = Callable[[str, list[Typed], int], Typed]


def _domain(args: list[Typed]) -> Domain:
    domains = {arg.domain for arg in args}
    return next(d for d in (Domain.REAL, Domain.DECIMAL, Domain.INT) if d in domains)


def _decimal(op: str, args: list[Typed], low: int, high: int, scale: int, at: int) -> Typed:
    if scale > MAX_SCALE:
        raise Refusal(f"more than {MAX_SCALE} digits after the point", at)
    return folded(Typed(op, Domain.DECIMAL, at, tuple(args), None, low, high, scale))


def _floating(op: str, args: list[Typed], at: int) -> Typed:
    return folded(Typed(op, Domain.REAL, at, tuple(real(arg) for arg in args)))


def _numbers(args: list[Typed]) -> list[Typed]:
    return [number(arg, "in arithmetic") for arg in args]


def _additive(op: str, given: list[Typed], at: int) -> Typed:
    args = _numbers(given)
    domain = _domain(args)
    if domain is Domain.REAL:
        return _floating(op, args, at)
    scale = max(arg.scale for arg in args)
    (low, high), (least, most) = spread(args[:1], scale), spread(args[1:], scale)
    low, high = (low + least, high + most) if op == "+" else (low - most, high - least)
    if domain is Domain.DECIMAL:
        return _decimal(op, args, low, high, scale, at)
    return integer_result(op, tuple(args), low, high, at)


def _times(op: str, given: list[Typed], at: int) -> Typed:
    args = _numbers(given)
    domain = _domain(args)
    if domain is Domain.REAL:
        return _floating(op, args, at)
    left, right = args
    corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
    if domain is Domain.DECIMAL:
        return _decimal(op, args, min(corners), max(corners), left.scale + right.scale, at)
    return integer_result(op, tuple(args), min(corners), max(corners), at)


def _divide(op: str, given: list[Typed], at: int) -> Typed:
    args = _numbers(given)
    if _domain(args) is Domain.REAL:
        return _floating(op, args, at)
    left, right = args
    scale = quotient_scale(left.scale, right.scale)
    # The smallest divisor is one unit of its scale, so this bounds the quotient.
    most = max(abs(left.low), abs(left.high)) * 10 ** max(scale + right.scale - left.scale, 0)
    return _decimal(op, args, -most, most, scale, at)


def quotient_scale(left: int, right: int) -> int:
    """The number of digits after the point of a quotient (TiDB `mydecimal.go:doDivMod`)."""
    words = -(-left // _WORD) + -(-right // _WORD)
    spare = words * _WORD - left - right
    return -(-(words * _WORD + max(_DIVISION_DIGITS - spare, 0)) // _WORD) * _WORD


def _integer_divide(op: str, given: list[Typed], at: int) -> Typed:
    args = _numbers(given)
    if _domain(args) is Domain.REAL:
        raise Refusal("DIV of floating numbers is not in the subset", at)
    left, right = args
    most = max(abs(left.low), abs(left.high)) * 10 ** max(right.scale - left.scale, 0)
    return integer_result(op, (left, right), -most, most, at)


def _remainder(op: str, given: list[Typed], at: int) -> Typed:
    """The remainder has the sign of the dividend, and is not greater than either operand."""
    args = _numbers(given)
    domain = _domain(args)
    if domain is Domain.REAL:
        return _floating(op, args, at)
    left, right = args
    scale = max(left.scale, right.scale)
    low, high = spread([left], scale)
    least, most = spread([right], scale)
    bound = max(abs(least), abs(most))
    low, high = max(min(low, 0), -bound), min(max(high, 0), bound)
    if domain is Domain.DECIMAL:
        return _decimal(op, args, low, high, scale, at)
    return folded(Typed(op, Domain.INT, at, tuple(args), None, low, high, unsigned=left.unsigned))


def negate(op: str, given: list[Typed], at: int) -> Typed:
    """Unary minus. An integer becomes signed."""
    (arg,) = _numbers(given)
    if arg.domain is Domain.REAL:
        return _floating(op, [arg], at)
    if arg.domain is Domain.DECIMAL:
        return _decimal(op, [arg], -arg.high, -arg.low, arg.scale, at)
    low, high = max(-arg.high, INT64[0]), min(-arg.low, INT64[1])
    checked = -arg.high < INT64[0] or -arg.low > INT64[1]
    return folded(Typed(op, Domain.INT, at, (arg,), None, low, high, checked=checked))


def absolute(op: str, given: list[Typed], at: int) -> Typed:
    """ABS."""
    (arg,) = _numbers(given)
    if arg.domain is Domain.REAL:
        return _floating(op, [arg], at)
    most = max(abs(arg.low), abs(arg.high))
    if arg.domain is Domain.DECIMAL:
        return _decimal(op, [arg], 0, most, arg.scale, at)
    return integer_result(op, (arg,), 0, most, at)


def _bitwise(op: str, given: list[Typed], at: int) -> Typed:
    args = tuple(_numbers(given))
    for arg in args:
        if arg.domain is not Domain.INT:
            raise Refusal(f"{op} is for integers; this is a {arg.domain}", arg.at)
    return folded(Typed(op, Domain.INT, at, args, None, *UINT64, unsigned=True))


def _logical(op: str, given: list[Typed], at: int) -> Typed:
    return folded(Typed(op, Domain.INT, at, tuple(truth(arg) for arg in given), None, *BOOLEAN))


def _null_test(op: str, given: list[Typed], at: int) -> Typed:
    (arg,) = given
    tested = arg if op == "is_null" else truth(arg)
    return folded(Typed(op, Domain.INT, at, (tested,), None, *BOOLEAN))


OPERATORS: Final[dict[str, Make]] = {
    "+": _additive,
    "-": _additive,
    "*": _times,
    "/": _divide,
    "div": _integer_divide,
    "%": _remainder,
    "neg": negate,
    "&": _bitwise,
    "|": _bitwise,
    "^": _bitwise,
    "~": _bitwise,
    "<<": _bitwise,
    ">>": _bitwise,
    "not": _logical,
    "xor": _logical,
    "is_null": _null_test,
    "is_true": _null_test,
    "is_false": _null_test,
}
"""Operators by name. Comparisons, AND, OR, IN, BETWEEN, LIKE and REGEXP are made elsewhere."""

REMAINDER: Final = _remainder
