"""Evaluates expressions over whole blocks, with numpy and Arrow.

Each node gives values and a mask of NULLs. Integers and decimals are int64 if their bounds allow it,
otherwise uint64 or Python ints in object arrays, so that no value is ever rounded. Texts are Arrow binaries.
The plain path does what Arrow cannot do (collations beyond ASCII, numbers in texts), once for each distinct
text. If a value is out of range, or a comparison has no exact vector form, `Beyond` is raised and the caller
uses the plain path for the block. The results are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.filter.expression import plain, texts
from tidegate.filter.expression.cells import Cells
from tidegate.filter.expression.typed import EXACT, INT64, UINT64, Beyond, Domain, Typed, Uncomputable

Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one node for n rows. A constant has one row, which stands for all rows.

    data: a numpy array, or an Arrow binary array in the domain STRING. If `null` is true for a row, its data
    is undefined.
    """

    data: Any
    null: Bools


def evaluate(node: Typed, cells: Cells) -> Bools:
    """For which rows of the cells the expression means "drop": bool[n]. Raises Beyond."""
    if node.domain is not Domain.INT:
        return np.zeros(len(cells), np.bool_)
    # An overflow is found in the results (`_finished`), and a division by zero before it is computed, so
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
    return _finished(node, _FUNCTIONS[node.op](node, [arg.data for arg in args]), null)


def _any_null(args: list[Values]) -> Bools:
    null = args[0].null
    for arg in args[1:]:
        null = null | arg.null
    return null


def _finished(node: Typed, data: Any, null: Bools) -> Values:
    """The result, if it is in range. Otherwise raises Beyond."""
    if node.domain is Domain.INT and (node.checked or data.dtype == np.object_):
        nowhere = np.broadcast_to(null, data.shape)
        if not (nowhere | ((data >= node.low) & (data <= node.high))).all():
            raise Beyond
        # The data of a NULL is undefined. A Python int of more than 64 bits there would fail the conversion.
        data = np.where(nowhere, np.zeros(1, data.dtype), data).astype(_dtype(node))
    if node.domain is Domain.REAL and not (np.isfinite(data) | null).all():
        raise Beyond
    return Values(data, null)


def _dtype(node: Typed) -> Any:
    """The type that can hold every value of an exact node."""
    if INT64[0] <= node.low and node.high <= INT64[1]:
        return np.int64
    return np.uint64 if node.domain is Domain.INT and UINT64[0] <= node.low else np.object_


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
    return Values(np.array([units], _dtype(node)), null)


def _column(node: Typed, cells: Cells) -> Values:
    position, null = node.value, cells.nulls(node.value)
    match node.domain:
        case Domain.INT:
            return Values(cells.integers(position, unsigned=node.high > INT64[1]), null)
        case Domain.DECIMAL:
            return Values(cells.decimals(position, node.scale).astype(_dtype(node)), null)
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


# --- exact numbers --------------------------------------------------------------------------------------


def _scaled(node: Typed, data: Numbers, scale: int) -> Numbers:
    """Exact numbers in units of 10**-scale, in a type that can hold them all."""
    factor = 10 ** (scale - node.scale)
    low, high = node.low * factor, node.high * factor
    if INT64[0] <= low and high <= INT64[1] and data.dtype == np.int64:
        scaled: Numbers = data * np.int64(factor) if factor > 1 else data
        return scaled
    exact: Numbers = data.astype(np.object_) * factor
    return exact


def _exact(node: Typed, data: list[Numbers], scale: int, work: Callable[[Any, Any], Any]) -> Numbers:
    """An operation on exact numbers at one scale, in int64 if operands and result fit."""
    left, right = (_scaled(arg, one, scale) for arg, one in zip(node.args, data, strict=True))
    # From int64 and uint64 numpy would make float64, which is not exact.
    if left.dtype != right.dtype or _dtype(node) is not np.int64 or node.checked:
        left, right = left.astype(np.object_), right.astype(np.object_)
    found: Numbers = work(left, right)
    return found


def _additive(work: Callable[[Any, Any], Any]) -> Callable[[Typed, list[Any]], Numbers]:
    def add(node: Typed, data: list[Any]) -> Numbers:
        if node.domain is Domain.REAL:
            found: Numbers = work(data[0], data[1])
            return found
        return _exact(node, data, node.scale, work)

    return add


def _multiply(node: Typed, data: list[Any]) -> Numbers:
    left, right = data
    if node.domain is Domain.REAL:
        product: Numbers = left * right
        return product
    if not (left.dtype == right.dtype == np.int64 and _dtype(node) is np.int64) or node.checked:
        left, right = left.astype(np.object_), right.astype(np.object_)
    exact: Numbers = left * right
    return exact


def _quotient(left: Numbers, right: Numbers) -> Numbers:
    """Integer division that truncates towards zero. Divisors must not be 0."""
    if left.dtype == right.dtype == np.int64:
        # Floor division rounds down: one more if there is a rest and the signs differ.
        rounded: Numbers = (left % right != 0) & ((left < 0) != (right < 0))
        found: Numbers = left // right + rounded
        return found
    wide: Numbers = _truncate(left.astype(np.object_), right.astype(np.object_))
    return wide


def _truncated(left: int, right: int) -> int:
    found = abs(left) // abs(right)
    return found if (left < 0) == (right < 0) else -found


_truncate: Final[Callable[[Any, Any], Any]] = np.frompyfunc(_truncated, 2, 1)


def _division(node: Typed, args: list[Values]) -> Values:
    """`/`, DIV and %. The result is NULL if the divisor is 0."""
    left, right = args
    zero = right.data == 0
    null = left.null | right.null | zero
    # No divisor of 0, also where the result is NULL: Python ints raise ZeroDivisionError, whatever numpy's
    # error state is.
    divisor = np.where(zero | right.null, np.ones(1, right.data.dtype), right.data)
    dividend = np.where(left.null, np.zeros(1, left.data.dtype), left.data)
    if node.domain is Domain.REAL:
        data = np.fmod(dividend, divisor) if node.op == "%" else dividend / divisor
        return _finished(node, data, null)
    over, under = node.args
    if node.op == "%":
        dividend, divisor = _scaled(over, dividend, node.scale), _scaled(under, divisor, node.scale)
        if dividend.dtype == divisor.dtype == np.int64:
            return _finished(node, np.fmod(dividend, divisor), null)
        dividend, divisor = dividend.astype(np.object_), divisor.astype(np.object_)
        return _finished(node, dividend - _quotient(dividend, divisor) * divisor, null)
    # In units: (a / 10**s) / (b / 10**t), as a number of units of 10**-scale.
    up = node.scale + under.scale - over.scale
    # -2**63 divided by -1 does not fit an int64.
    least = over.low == INT64[0]
    factor = 10 ** max(up, 0)
    if factor > 1 or least or dividend.dtype != np.int64:
        dividend = dividend.astype(np.object_) * factor
    if up < 0:
        divisor = divisor.astype(np.object_) * 10**-up
    data = _quotient(dividend, divisor)
    if node.domain is Domain.DECIMAL:
        data = data.astype(_dtype(node))
    return _finished(node, data, null)


def _negate(node: Typed, data: list[Any]) -> Numbers:
    (values,) = data
    # The negative of -2**63 does not fit an int64.
    if node.domain is not Domain.REAL and (values.dtype != np.int64 or node.args[0].low == INT64[0]):
        values = values.astype(np.object_)
    found: Numbers = -values
    return found


def _absolute(node: Typed, data: list[Any]) -> Numbers:
    (values,) = data
    if node.domain is not Domain.REAL and values.dtype == np.int64 and node.args[0].low == INT64[0]:
        values = values.astype(np.object_)
    found: Numbers = np.abs(values)
    return found


def _round(node: Typed, data: list[Any]) -> Numbers:
    (arg,) = node.args
    # Python ints: twice the units may not fit an int64.
    units = data[0].astype(np.object_)
    down = 10 ** max(arg.scale - node.scale, 0)
    units = units * 10 ** max(node.scale - arg.scale, 0)
    half = _truncate(np.abs(units) * 2 + down, np.array([2 * down], np.object_))
    signed: Numbers = np.where(units < 0, -half, half)
    return signed.astype(_dtype(node))


def _words(data: Numbers) -> npt.NDArray[np.uint64]:
    return data.view(np.uint64) if data.dtype == np.int64 else data.astype(np.uint64)


def _bits(work: Callable[[Any, Any], Any]) -> Callable[[Typed, list[Any]], Numbers]:
    def bitwise(node: Typed, data: list[Any]) -> Numbers:
        found: Numbers = work(_words(data[0]), _words(data[1]))
        return found

    return bitwise


def _shift(work: Callable[[Any, Any], Any]) -> Callable[[Typed, list[Any]], Numbers]:
    def shift(node: Typed, data: list[Any]) -> Numbers:
        word, amount = _words(data[0]), _words(data[1])
        most = np.uint64(63)
        moved: Numbers = np.where(amount > most, np.uint64(0), work(word, np.minimum(amount, most)))
        return moved

    return shift


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
        return data.astype(_dtype(node)) if node.domain in EXACT else data
    return _scaled(of, data, node.scale).astype(_dtype(node))


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
        left, right = _scaled(one, left, scale), _scaled(other, right, scale)
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
        data = _scaled(of, arg.data, node.scale)
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
    "+": _additive(lambda a, b: a + b),
    "-": _additive(lambda a, b: a - b),
    "*": _multiply,
    "neg": _negate,
    "abs": _absolute,
    "round": _round,
    "&": _bits(np.bitwise_and),
    "|": _bits(np.bitwise_or),
    "^": _bits(np.bitwise_xor),
    "~": lambda node, data: ~_words(data[0]),
    "<<": _shift(np.left_shift),
    ">>": _shift(np.right_shift),
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
    "/": _division,
    "div": _division,
    "%": _division,
}
"""Operators that handle NULL themselves."""
