"""Evaluates expressions over whole blocks, with numpy and Arrow.

Each node gives values and a mask of NULLs. Numbers are computed in `vector_arithmetic`, and no exact value is
ever rounded. Texts are Arrow binaries. The plain path does what Arrow cannot do (collations beyond ASCII,
numbers in texts), once for each distinct text. If a value is out of range, or a comparison has no exact
vector form, `Beyond` is raised and the caller uses the plain path for the block. The results are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.filter.expression import plain, texts
from tidegate.filter.expression.cells import Cells
from tidegate.filter.expression.typed import EXACT, INT64, Beyond, Domain, Typed, Uncomputable
from tidegate.filter.expression.vector_arithmetic import (
    Bools,
    Numbers,
    Values,
    absolute,
    additive,
    bitwise,
    division,
    dtype_of,
    finished,
    multiply,
    negate,
    rounded,
    scaled,
    shift,
    words,
)


def evaluate(node: Typed, cells: Cells) -> Bools:
    """For which rows of the cells the expression means "drop": bool[n]. Raises Beyond."""
    if node.domain is not Domain.INT:
        return np.zeros(len(cells), np.bool_)
    # An overflow is found in the results (`finished`), and a division by zero before it is computed, so
    # numpy's warnings say nothing new.
    with np.errstate(all="ignore"):
        found = value_of(node, cells)
    drop: Bools = np.broadcast_to((found.data == 1) & ~found.null, len(cells))
    return drop.astype(np.bool_)


def value_of(node: Typed, cells: Cells) -> Values:
    """A node's values. Raises Beyond."""
    if node.op == "const":
        return _constant(node)
    if node.op == "column":
        return _column(node, cells)
    if node.op == "index":
        return Values(cells.integers(node.value, unsigned=True), cells.nulls(node.value))
    # For all rows, also for those that do not need the argument: the branch that IF does not take, or what
    # follows a deciding operand. If it fails there, `Beyond` leaves the block to the plain path, which
    # computes only what each row needs.
    args = [value_of(arg, cells) for arg in node.args]
    made = _MAKERS.get(node.op)
    if made is not None:
        return made(node, args)
    null = _any_null(args)
    return finished(node, _FUNCTIONS[node.op](node, [arg.data for arg in args]), null)


def _any_null(args: list[Values]) -> Bools:
    null = args[0].null
    for arg in args[1:]:
        null = null | arg.null
    return null


# --- leaves ---------------------------------------------------------------------------------------------


def _constant(node: Typed) -> Values:
    null = np.array([node.value is None])
    if node.domain is Domain.STRING:
        return Values(pa.array([node.value or b""], pa.binary()), null)
    if node.domain is Domain.REAL:
        return Values(np.array([node.value or 0.0], np.float64), null)
    if node.value is None:
        return Values(np.zeros(1, np.int64), null)
    units = node.low if node.domain is Domain.DECIMAL else node.value
    return Values(np.array([units], dtype_of(node)), null)


def _column(node: Typed, cells: Cells) -> Values:
    position, null = node.value, cells.nulls(node.value)
    match node.domain:
        case Domain.INT:
            return Values(cells.integers(position, unsigned=node.high > INT64[1]), null)
        case Domain.DECIMAL:
            return Values(cells.decimals(position, node.scale).astype(dtype_of(node)), null)
        case Domain.REAL:
            return Values(cells.floats(position), null)
        case Domain.STRING:
            return Values(cells.texts(position), null)
        case Domain.JSON:
            return Values(cells.json(position), null)
        case Domain.DATETIME:
            return Values(cells.moments(position), null)
        case _:
            return Values(cells.integers(position), null)


# --- truth ----------------------------------------------------------------------------------------------


def _connected(node: Typed, args: list[Values]) -> Values:
    """Three-valued AND and OR."""
    decisive = node.op == "or"
    decided, unknown = np.zeros(1, np.bool_), np.zeros(1, np.bool_)
    for arg in args:
        decided = decided | (~arg.null & ((arg.data != 0) == decisive))
        unknown = unknown | arg.null
    return Values((decided == decisive).astype(np.int64), unknown & ~decided)


def _is_null(node: Typed, args: list[Values]) -> Values:
    null = args[0].null
    return Values(null.astype(np.int64), np.zeros_like(null))


def _is_truth(node: Typed, args: list[Values]) -> Values:
    (arg,) = args
    holds = ~arg.null & ((arg.data != 0) == (node.op == "is_true"))
    return Values(holds.astype(np.int64), np.zeros_like(holds))


def _chosen(node: Typed, args: list[Values]) -> Values:
    test, yes, no = args
    takes = (test.data != 0) & ~test.null
    return _either(node, takes, (node.args[1], yes), (node.args[2], no))


def _coalesce(node: Typed, args: list[Values]) -> Values:
    found, shape = args[-1], node.args[-1]
    # From the last argument to the first, so that each one that is not NULL replaces those after it.
    for arg, of in zip(reversed(args[:-1]), reversed(node.args[:-1]), strict=True):
        found, shape = _either(node, ~arg.null, (of, arg), (shape, found)), node
    return found


def _either(node: Typed, takes: Bools, yes: tuple[Typed, Values], no: tuple[Typed, Values]) -> Values:
    null = np.where(takes, yes[1].null, no[1].null)
    if node.domain is Domain.STRING:
        n = max(len(takes), len(yes[1].data), len(no[1].data))
        data = pc.if_else(
            pa.array(np.broadcast_to(takes, n)), *(texts.spread(v.data, n) for _, v in (yes, no))
        )
        return Values(data, np.broadcast_to(null, n))
    left, right = (_branch(node, of, values.data) for of, values in (yes, no))
    return Values(np.where(takes, left, right).astype(left.dtype), null)


def _branch(node: Typed, of: Typed, data: Numbers) -> Numbers:
    if node.domain not in EXACT or of.is_null:
        return data.astype(dtype_of(node)) if node.domain in EXACT else data
    return scaled(of, data, node.scale).astype(dtype_of(node))


# --- comparison -----------------------------------------------------------------------------------------

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": np.equal,
    "<=>": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def _compared(node: Typed, args: list[Values]) -> Values:
    left, right = args
    data = _comparison(node, left.data, right.data)
    if node.op != "<=>":
        return Values(data.astype(np.int64), left.null | right.null)
    holds = np.where(left.null | right.null, left.null & right.null, data)
    return Values(holds.astype(np.int64), np.zeros_like(holds))


def _comparison(node: Typed, left: Any, right: Any) -> Bools:
    one, other = node.args
    work = _COMPARE[node.op]
    found: Bools
    if one.domain is Domain.STRING:
        return texts.compare(node.op, left, right, node.collate)
    if one.domain is Domain.JSON:
        order = texts.distinct(left, lambda text: _json_order(text, other.value), np.int64)
        found = work(order, 0)
        return found
    if {one.domain, other.domain} == {Domain.DECIMAL, Domain.REAL}:
        return _mixed(node, left, right)
    if one.domain in EXACT and other.domain in EXACT:
        scale = max(one.scale, other.scale)
        if one.domain is other.domain is Domain.INT and np.object_ not in (left.dtype, right.dtype):
            found = work(left, right)  # numpy compares int64 with uint64 exactly
            return found
        left, right = scaled(one, left, scale), scaled(other, right, scale)
        if left.dtype != right.dtype:
            left, right = left.astype(np.object_), right.astype(np.object_)
    found = work(left, right)
    return found.astype(np.bool_)


def _json_order(text: bytes, constant: Any) -> int:
    return plain.json_order(text.decode(), constant) if text else 0


def _mixed(node: Typed, left: Any, right: Any) -> Bools:
    """Compare floating numbers with a decimal constant, by the floating number's shortest text.

    Let `nearest` be the floating number nearest to the constant. Any other floating number is on the same
    side of the constant as of `nearest`. Only a number equal to `nearest` needs an exact comparison, whose
    result is the same for all rows.
    """
    floats, constant = node.args
    if floats.domain is not Domain.REAL or not constant.is_const:
        raise Beyond
    nearest = float(constant.value)
    shortest = Decimal(repr(nearest)) if np.isfinite(nearest) else Decimal(nearest)
    tie = (shortest > constant.value) - (shortest < constant.value)
    order = np.where(left == nearest, tie, np.sign(left - nearest))
    found: Bools = _COMPARE[node.op](order, 0)
    return found


def _in(node: Typed, args: list[Values]) -> Values:
    (arg,), (of,) = args, node.args
    if of.domain is Domain.STRING:
        found = texts.is_in(arg.data, node.value, node.collate)
    elif of.domain in EXACT:
        units = [plain.units(item, node.scale) for item in node.value]
        data = scaled(of, arg.data, node.scale)
        if data.dtype == np.int64:
            # An item of more than 64 bits equals no value here, and an int64 array cannot hold it.
            units = [unit for unit in units if INT64[0] <= unit <= INT64[1]]
            found = np.isin(data, np.array(units, np.int64))
        else:
            wanted = frozenset(units)
            found = np.fromiter((unit in wanted for unit in data.tolist()), np.bool_, len(data))
    else:
        found = np.isin(arg.data, np.array(node.value))
    return Values(found.astype(np.int64), arg.null | (~found & node.nulls))


# --- texts and times ------------------------------------------------------------------------------------


def _real(node: Typed, data: list[Any]) -> Numbers:
    (arg,) = node.args
    if arg.domain is Domain.STRING:
        try:
            return texts.distinct(data[0], plain.real, np.float64)
        except Uncomputable:
            raise Beyond from None
    units, scale = data[0], arg.scale
    found: Numbers = units.astype(np.float64)
    if scale == 0:
        return found
    if scale <= _TEN_EXACT and max(abs(arg.low), abs(arg.high)) <= _FLOAT_EXACT:
        return found / 10.0**scale  # both operands are exact, so only the quotient is rounded
    return np.array([unit / 10**scale for unit in units.tolist()], np.float64)


def _text(node: Typed, args: list[Values]) -> Values:
    (arg,), (of,) = args, node.args
    return Values(texts.written(of, arg.data, arg.null), arg.null)


def _clock(of_time: Callable[[Any], Any], of_moment: Callable[[Any], Any]) -> Callable[..., Numbers]:
    def part(node: Typed, data: list[Any]) -> Numbers:
        in_time = node.args[0].domain is Domain.TIME
        found: Numbers = of_time(np.abs(data[0])) if in_time else of_moment(data[0])
        return found

    return part


_FLOAT_EXACT: Final = 1 << 53
_TEN_EXACT: Final = 22
"""Floating numbers represent all integers up to `_FLOAT_EXACT` and 10**n up to n = `_TEN_EXACT` exactly."""
_SECOND: Final = 1_000_000_000

_FUNCTIONS: Final[dict[str, Callable[[Typed, list[Any]], Any]]] = {
    "not": lambda node, data: (data[0] == 0).astype(np.int64),
    "xor": lambda node, data: ((data[0] != 0) != (data[1] != 0)).astype(np.int64),
    "truth": lambda node, data: (data[0] != 0).astype(np.int64),
    "real": _real,
    "+": additive(lambda a, b: a + b),
    "-": additive(lambda a, b: a - b),
    "*": multiply,
    "neg": negate,
    "abs": absolute,
    "round": rounded,
    "&": bitwise(np.bitwise_and),
    "|": bitwise(np.bitwise_or),
    "^": bitwise(np.bitwise_xor),
    "~": lambda node, data: ~words(data[0]),
    "<<": shift(np.left_shift),
    ">>": shift(np.right_shift),
    "like": lambda node, data: texts.like(node, data[0]).astype(np.int64),
    "regexp": lambda node, data: texts.regexp(node.value, data[0]).astype(np.int64),
    "length": lambda node, data: texts.lengths(data[0]),
    "char_length": lambda node, data: texts.signs(data[0]),
    "lower": lambda node, data: texts.cased(data[0], upper=False),
    "upper": lambda node, data: texts.cased(data[0], upper=True),
    "concat": lambda node, data: texts.concat(data),
    "year": lambda node, data: (data[0] >> 46) // 13,
    "month": lambda node, data: (data[0] >> 46) % 13,
    "day": lambda node, data: data[0] >> 41 & 31,
    "date": lambda node, data: data[0] >> 41 << 41,
    "hour": _clock(lambda t: t // (3600 * _SECOND), lambda m: m >> 36 & 31),
    "minute": _clock(lambda t: t // (60 * _SECOND) % 60, lambda m: m >> 30 & 63),
    "second": _clock(lambda t: t // _SECOND % 60, lambda m: m >> 24 & 63),
}
"""Operators whose result is NULL if any argument is NULL."""

_MAKERS: Final[dict[str, Callable[[Typed, list[Values]], Values]]] = {
    **dict.fromkeys(_COMPARE, _compared),
    "or": _connected,
    "and": _connected,
    "is_null": _is_null,
    "is_true": _is_truth,
    "is_false": _is_truth,
    "if": _chosen,
    "coalesce": _coalesce,
    "in": _in,
    "text": _text,
    "/": division,
    "div": division,
    "%": division,
}
"""Operators that handle NULL themselves."""
