"""Helpers to make typed nodes: constant folding, and conversion of operands to truth values and numbers."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Final

from tidegate.filter.expression import constants, plain
from tidegate.filter.expression.syntax import Refusal
from tidegate.filter.expression.typed import (
    BOOLEAN,
    EXACT,
    INT64,
    NUMBERS,
    UINT64,
    Domain,
    Typed,
    Uncomputable,
)

_CHOICES: Final = ("if", "coalesce")


def folded(node: Typed) -> Typed:
    """The node, or a constant if all its arguments are constants."""
    if not all(arg.is_const for arg in node.args):
        return node
    # A constant that cannot be computed is refused when the filter is made, and not for each row.
    try:
        value = plain.evaluate(node, (), ())
    except Uncomputable as error:
        raise Refusal(error.why, node.at) from None
    if isinstance(value, Decimal):
        return constants.decimal(value, node.at)
    if node.domain is Domain.INT and value is not None:
        return constants.integer(int(value), node.at)
    return replace(node, op="const", args=(), value=value)


def null(at: int) -> Typed:
    """The constant NULL."""
    return constants.boolean(None, at)


def refuse(node: Typed, where: str) -> Refusal:
    """The refusal of an operand that is not allowed in this place."""
    return Refusal(f"a {node.domain} is not in the subset {where}", node.at)


def number(node: Typed, where: str) -> Typed:
    """An operand as a number: the number of an enum or set, and a text converted by `real`."""
    if node.domain in NUMBERS:
        return node
    if node.hybrid is not None:
        return Typed("index", Domain.INT, node.at, value=node.hybrid, low=0, high=UINT64[1], unsigned=True)
    if node.domain is Domain.STRING:
        return real(node)
    raise refuse(node, where)


_WRITTEN_DECIMALS: Final = frozenset({"column", "+", "-", "*", "%", "neg", "abs", "round"})
_MOST_DIGITS: Final = 30
"""The most digits after the point that a decimal of TiDB has."""


def text(node: Typed, where: str) -> Typed:
    """An operand as a text: numbers, dates and times as TiDB casts them. Raises Refusal.

    Values are refused if the number of digits in TiDB's text is not known beforehand: TiDB shows fewer digits
    of a quotient than it computes, and branches of IF keep their own numbers of digits.
    """
    if node.domain is Domain.STRING or node.is_null:
        return node
    if node.bits:
        raise Refusal(f"{where} of a BIT column is not in the subset: as a text it is bytes", node.at)
    if not _is_written(node):
        hint = "" if node.domain in (Domain.JSON, Domain.OPAQUE) else " unless it is a column"
        raise Refusal(f"{where} of a {node.domain} is not in the subset{hint}", node.at)
    return cast(node)


def cast(node: Typed) -> Typed:
    """A node for the text that `plain.written` gives."""
    collate = "binary" if node.bits else constants.CONNECTION_COLLATE
    return folded(Typed("text", Domain.STRING, node.at, (node,), collate=collate, weak=not node.bits))


def _is_written(node: Typed) -> bool:
    """Whether we know how TiDB writes every value as a text."""
    match node.domain:
        case Domain.INT:
            return node.op not in _CHOICES or not any(arg.is_year or arg.bits for arg in node.args)
        case Domain.REAL:
            return node.op not in _CHOICES and not node.is_const
        case Domain.DECIMAL:
            exact = [arg for arg in node.args if arg.domain is Domain.DECIMAL]
            known = node.op in _WRITTEN_DECIMALS and node.scale <= _MOST_DIGITS
            return known and all(_is_written(arg) for arg in exact)
        case Domain.DATETIME | Domain.TIME:
            return node.op in ("column", "date")
    return False


def real(node: Typed) -> Typed:
    """A number or a text as a floating number."""
    return node if node.domain is Domain.REAL else folded(Typed("real", Domain.REAL, node.at, (node,)))


def truth(node: Typed) -> Typed:
    """A node as a truth value, for an operand of AND, OR, NOT or IF."""
    value = node if node.is_null else number(node, "where true or false is wanted")
    if value.domain is Domain.INT:
        return value
    return folded(Typed("truth", Domain.INT, node.at, (value,), None, *BOOLEAN))


def connect(op: str, args: list[Typed], at: int) -> Typed:
    """AND, OR."""
    if len(args) == 1:
        return args[0]
    return folded(Typed(op, Domain.INT, at, tuple(truth(arg) for arg in args), None, *BOOLEAN))


def integer_result(op: str, args: tuple[Typed, ...], low: int, high: int, at: int) -> Typed:
    """An integer operation. As in TiDB it is unsigned if an operand is, and a row beyond its 64
    bits fails.
    """
    unsigned = any(arg.unsigned for arg in args)
    least, most = UINT64 if unsigned else INT64
    # The bounds of a checked node are those of its type, because every row that passes the check is within
    # them.
    checked = low < least or high > most
    low, high = max(low, least), min(high, most)
    return folded(Typed(op, Domain.INT, at, args, None, low, high, unsigned=unsigned, checked=checked))


def common(args: list[Typed], where: str) -> tuple[Domain, str]:
    """The domain and the collation of a value that may be any of `args`."""
    known = [arg for arg in args if not arg.is_null]
    if not known:
        return Domain.INT, ""
    domains = {arg.domain for arg in known}
    if domains <= NUMBERS:
        order = (Domain.REAL, Domain.DECIMAL, Domain.INT)
        return next(domain for domain in order if domain in domains), ""
    if len(domains) > 1 or domains & {Domain.OPAQUE, Domain.JSON}:
        raise Refusal(f"values of different kinds {where} are not in the subset", known[0].at)
    domain = domains.pop()
    return domain, collation_of(known) if domain is Domain.STRING else ""


def collation_of(args: list[Typed]) -> str:
    """The collation by which texts are compared: a column's is preferred to a constant's, binary to all
    others, `_bin` to `_ci`.
    """
    named = {arg.collate for arg in args if not gives_way(arg)} or {arg.collate for arg in args}
    if len(named) == 1:
        return named.pop()
    if "binary" in named:
        return "binary"
    plain_ones = {name for name in named if name.endswith("_bin")}
    charsets = {name.partition("_")[0].replace("utf8mb4", "utf8") for name in named}
    if len(charsets) == 1 and len(plain_ones) == 1:
        return plain_ones.pop()
    raise Refusal("texts of different collations meet: " + ", ".join(sorted(named)), args[0].at)


def gives_way(node: Typed) -> bool:
    """Whether a text's collation is used only if no column's collation applies."""
    return node.is_const or node.weak


def spread(args: list[Typed], scale: int) -> tuple[int, int]:
    """The least and the greatest value of `args`, in units of 10**-scale. Only exact numbers count."""
    exact = [arg for arg in args if arg.domain in EXACT and not arg.is_null]
    if not exact:
        return INT64
    low = min(arg.low * 10 ** (scale - arg.scale) for arg in exact)
    return low, max(arg.high * 10 ** (scale - arg.scale) for arg in exact)
