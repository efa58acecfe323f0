"""Comparisons: the type in which two values are compared (TiDB `GetAccurateCmpType`, `refineArgs`)."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Final

from tidegate.filter.expression import constants
from tidegate.filter.expression.fold import collation_of, folded, null, number, real, refuse
from tidegate.filter.expression.syntax import Refusal
from tidegate.filter.expression.typed import BOOLEAN, NUMBERS, Domain, Typed
from tidegate.tidb.types import collation

COMPARISONS: Final = frozenset({"=", "<=>", "<>", "<", "<=", ">", ">="})
_EQUALITIES: Final = frozenset({"=", "<=>", "<>"})
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compare(op: str, left: Typed, right: Typed, at: int, collate: str = "") -> Typed:
    """A comparison, with a constant on the right side. Raises Refusal if the two cannot be compared.

    `collate`: the collation of the comparison, if it is decided already.
    """
    # From here on a constant is on the right, so each rule below is needed for one side only.
    if left.is_const and not right.is_const:
        return compare(_MIRRORED.get(op, op), right, left, at, collate)
    for side in (left, right):
        if side.domain is Domain.OPAQUE:
            raise refuse(side, "but for IS NULL")
    # Before the types are compared: the constant NULL has a type, but fits every other.
    if left.is_null or right.is_null:
        if op != "<=>":
            return null(at)
        other = right if left.is_null else left
        return folded(Typed("is_null", Domain.INT, at, (other,), None, *BOOLEAN))
    domains = {left.domain, right.domain}
    if Domain.JSON in domains:
        return _json(op, left, right, at)
    if Domain.DATETIME in domains:
        return _made(op, _moment(left, right), _moment(right, left), at)
    if Domain.TIME in domains:
        return _made(op, _duration(left, right), _duration(right, left), at)
    if domains == {Domain.STRING}:
        return _texts(op, left, right, at, collate or collation_of([left, right]))
    return _numbers(op, left, right, at)


def _made(op: str, left: Typed, right: Typed, at: int, collate: str = "") -> Typed:
    return folded(Typed(op, Domain.INT, at, (left, right), None, *BOOLEAN, collate=collate))


def _json(op: str, left: Typed, right: Typed, at: int) -> Typed:
    """Compare a JSON value, in TiDB's order of JSON types, with a constant. A constant text is a
    JSON text.
    """
    if not right.is_const or right.domain not in (*NUMBERS, Domain.STRING):
        raise refuse(left, "next to anything but a constant number or text")
    return _made(op, left, right, at)


def _moment(side: Typed, other: Typed) -> Typed:
    if side.domain is Domain.DATETIME:
        return side
    if side.is_const and side.domain is Domain.STRING:
        return constants.moment(side.value.decode(errors="replace"), side.at)
    if side.is_const and side.domain is Domain.INT:
        return constants.moment_of_number(side.value, not other.is_date, side.at)
    raise refuse(side, "next to a date; constants are")


def _duration(side: Typed, other: Typed) -> Typed:
    if side.domain is Domain.TIME:
        return side
    if side.is_const and side.domain is Domain.STRING:
        return constants.duration(side.value.decode(errors="replace"), side.at)
    raise refuse(side, "next to a time; constant texts are")


def _texts(op: str, left: Typed, right: Typed, at: int, collate: str) -> Typed:
    if collate not in collation.KNOWN:
        raise Refusal(f"collation {collate} is not known here", at)
    if op not in _EQUALITIES and not collation.is_ordered(collate):
        raise Refusal(f"order by collation {collate} is not in the subset, equality is", at)
    return _made(op, left, right, at, collate)


def _numbers(op: str, left: Typed, right: Typed, at: int) -> Typed:
    """Compare numbers, or a number with a text or an enum."""
    where = "next to a number"
    # Before both become numbers: a text would become a floating number, which cannot hold all integers of 64
    # bits.
    if right.is_const and right.domain is Domain.STRING:
        right = _number_of_text(left, right)
    if left.is_year and right.is_const and right.domain is Domain.INT:
        right = constants.integer(constants.year(right.value), right.at)
    left, right = number(left, where), number(right, where)
    domains = {left.domain, right.domain}
    if domains == {Domain.INT, Domain.REAL}:
        if left.domain is Domain.INT and right.is_const:
            # TiDB replaces such a constant by the integer that gives the same result. A comparison with the
            # exact decimal gives that result as well.
            right = constants.decimal(Decimal(repr(right.value)), right.at)
        else:
            left, right = real(left), real(right)
    return _made(op, left, right, at)


def _number_of_text(column: Typed, text: Typed) -> Typed:
    """A constant text compared with a number: an integer or a decimal if the column is one, else floating."""
    if column.domain is Domain.INT and text.collate == "binary":
        return constants.integer(int.from_bytes(text.value, "big"), text.at)
    whole = constants.whole_number(text)
    if column.domain is Domain.INT and whole is not None:
        return constants.integer(whole, text.at)
    if column.domain is Domain.DECIMAL:
        exact = constants.whole_decimal(text)
        return real(text) if exact is None else constants.decimal(exact, text.at)
    return real(text)


def membership(value: Typed, items: list[Typed], at: int) -> list[Typed] | Typed:
    """IN: one lookup in a set if all items are constants that are compared in the same way. Otherwise the
    list of its comparisons.

    `items`: without NULLs, which the caller handles.
    """
    everyone = [value, *items]
    texts = all(one.domain is Domain.STRING for one in everyone)
    collate = collation_of(everyone) if texts else ""
    tests = [compare("=", value, item, item.at, collate) for item in items]
    pairs = [test.args for test in tests if test.op == "=" and test.args[1].is_const]
    # A single lookup needs a single form of the value. Next to a number and a text it is converted in two
    # ways.
    if len(pairs) < len(tests) or not pairs or len({_form(left) for left, _ in pairs}) > 1:
        return tests
    left = pairs[0][0]
    exact = NUMBERS - {Domain.REAL}
    for _, right in pairs:
        if right.domain is not left.domain and not {left.domain, right.domain} <= exact:
            return tests
    return Typed(
        "in",
        Domain.INT,
        at,
        (left,),
        tuple(right.value for _, right in pairs),
        *BOOLEAN,
        scale=max(left.scale, *(right.scale for _, right in pairs)),
        collate=tests[0].collate,
    )


def _form(left: Typed) -> tuple[object, ...]:
    """A key that is equal if the same value was compared. Each comparison may have made its own
    cast of it.
    """
    if left.op in ("real", "index"):
        return left.op, left.value, *(id(arg) for arg in left.args)
    return (id(left),)


def is_in(value: Typed, items: list[Typed], at: int) -> tuple[list[Typed], bool]:
    """The tests that IN combines by OR, and whether one of the items is NULL."""
    known = [item for item in items if not item.is_null]
    nulls = len(known) < len(items)
    found = membership(value, known, at) if known else []
    if isinstance(found, list):
        return found, nulls
    return [folded(replace(found, nulls=nulls))], False
