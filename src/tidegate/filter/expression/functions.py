"""The functions of the subset: their numbers of arguments, and their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidegate.filter.expression.arithmetic import REMAINDER, Make, absolute
from tidegate.filter.expression.compare import compare
from tidegate.filter.expression.fold import (
    cast,
    collation_of,
    common,
    folded,
    gives_way,
    null,
    real,
    refuse,
    spread,
    truth,
)
from tidegate.filter.expression.fold import text as as_text
from tidegate.filter.expression.syntax import Refusal
from tidegate.filter.expression.typed import Domain, Typed

MANY: Final = 64
_LONGEST: Final = 1 << 32
"""An upper bound for the bytes of any text in TiDB."""
_UNICODE_CHARSETS: Final = ("utf8", "ascii", "latin1", "binary")


def _branches(op: str, tests: list[Typed], values: list[Typed], at: int) -> Typed:
    """A node whose value is one of several, chosen for each row."""
    domain, collate = common(values, "as results of one expression")
    scale = max(value.scale for value in values)
    low, high = spread(values, scale)
    # A NULL among the results takes the type of the others, so that all branches have one form.
    nothing = Typed("const", domain, at, low=0, high=0, collate=collate)
    values = [nothing if v.is_null else real(v) if domain is Domain.REAL else v for v in values]
    unsigned = all(value.unsigned for value in values if not value.is_null)
    args = (*tests, *values)
    node = Typed(op, domain, at, args, None, low, high, scale, unsigned=unsigned and high > 0)
    weak = domain is Domain.STRING and all(gives_way(value) for value in values)
    return folded(replace(node, collate=collate, weak=weak))


def choose(name: str, args: list[Typed], at: int) -> Typed:
    """IF."""
    return _branches("if", [truth(args[0])], args[1:], at)


def _coalesce(name: str, args: list[Typed], at: int) -> Typed:
    return _branches("coalesce", [], args, at)


def _nullif(name: str, args: list[Typed], at: int) -> Typed:
    left, right = args
    return choose("if", [compare("=", left, right, at), null(at), left], at)


def _modulo(name: str, args: list[Typed], at: int) -> Typed:
    return REMAINDER("%", args, at)


def _text(node: Typed, name: str) -> Typed:
    node = as_text(node, f"{name}()")
    if not node.collate.startswith(_UNICODE_CHARSETS) and not node.is_null:
        raise Refusal(f"{name}() of a text in {node.collate} is not in the subset", node.at)
    return node


def _length(name: str, args: list[Typed], at: int) -> Typed:
    of_bytes = name in ("length", "octet_length")
    arg = cast(args[0]) if args[0].bits and of_bytes else _text(args[0], name)
    op = "length" if of_bytes or arg.collate == "binary" else "char_length"
    return folded(Typed(op, Domain.INT, at, (arg,), None, 0, _LONGEST))


def _cased(name: str, args: list[Typed], at: int) -> Typed:
    text = _text(args[0], name)
    if text.collate == "binary":
        return text
    op = "lower" if name in ("lower", "lcase") else "upper"
    return folded(Typed(op, Domain.STRING, at, (text,), collate=text.collate, weak=text.weak))


def _concat(name: str, args: list[Typed], at: int) -> Typed:
    texts = [_text(arg, name) for arg in args]
    if any(text.is_null for text in texts):
        return null(at)
    weak = all(gives_way(text) for text in texts)
    collate = collation_of(texts)
    return folded(Typed("concat", Domain.STRING, at, tuple(texts), collate=collate, weak=weak))


_DATE_PARTS: Final = {"year": 9999, "month": 12, "day": 31, "dayofmonth": 31}
_CLOCK_PARTS: Final = {"hour": 838, "minute": 59, "second": 59}


def _part(name: str, args: list[Typed], at: int) -> Typed:
    (arg,) = args
    fits = (Domain.DATETIME,) if name in _DATE_PARTS else (Domain.DATETIME, Domain.TIME)
    if arg.domain not in fits:
        raise refuse(arg, f"as the argument of {name}()")
    op = "day" if name == "dayofmonth" else name
    most = (_DATE_PARTS | _CLOCK_PARTS)[name]
    return folded(Typed(op, Domain.INT, at, (arg,), None, 0, most))


def _date(name: str, args: list[Typed], at: int) -> Typed:
    if args[0].domain is not Domain.DATETIME:
        raise refuse(args[0], "as the argument of date()")
    return folded(Typed("date", Domain.DATETIME, at, (args[0],), is_date=True))


FUNCTIONS: Final[dict[str, tuple[int, int, Make]]] = {
    "if": (3, 3, choose),
    "ifnull": (2, 2, _coalesce),
    "coalesce": (1, MANY, _coalesce),
    "nullif": (2, 2, _nullif),
    "abs": (1, 1, absolute),
    "mod": (2, 2, _modulo),
    "length": (1, 1, _length),
    "octet_length": (1, 1, _length),
    "char_length": (1, 1, _length),
    "character_length": (1, 1, _length),
    "lower": (1, 1, _cased),
    "lcase": (1, 1, _cased),
    "upper": (1, 1, _cased),
    "ucase": (1, 1, _cased),
    "concat": (1, MANY, _concat),
    "year": (1, 1, _part),
    "month": (1, 1, _part),
    "day": (1, 1, _part),
    "dayofmonth": (1, 1, _part),
    "hour": (1, 1, _part),
    "minute": (1, 1, _part),
    "second": (1, 1, _part),
    "date": (1, 1, _date),
}
"""For each name: the least and the greatest number of arguments, and the function that makes its node."""
