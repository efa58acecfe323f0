"""Arithmetic of expressions over whole blocks, with numpy.

Integers and decimals are exact: int64 if their bounds allow it, otherwise uint64 or Python ints in object
arrays. A decimal is a number of units of 10**-scale. `plain` computes the same for one row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidegate.filter.expression.typed import INT64, UINT64, Beyond, Domain, Typed

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


def finished(node: Typed, data: Any, null: Bools) -> Values:
    """The result, if it is in range. Otherwise raises Beyond."""
    if node.domain is Domain.INT and (node.checked or data.dtype == np.object_):
        nowhere = np.broadcast_to(null, data.shape)
        if not (nowhere | ((data >= node.low) & (data <= node.high))).all():
            raise Beyond
        # The data of a NULL is undefined. A Python int of more than 64 bits there would fail the conversion.
        data = np.where(nowhere, np.zeros(1, data.dtype), data).astype(dtype_of(node))
    if node.domain is Domain.REAL and not (np.isfinite(data) | null).all():
        raise Beyond
    return Values(data, null)


def dtype_of(node: Typed) -> Any:
    """The type that can hold every value of an exact node."""
    if INT64[0] <= node.low and node.high <= INT64[1]:
        return np.int64
    return np.uint64 if node.domain is Domain.INT and UINT64[0] <= node.low else np.object_


def scaled(node: Typed, data: Numbers, scale: int) -> Numbers:
    """Exact numbers in units of 10**-scale, in a type that can hold them all."""
    factor = 10 ** (scale - node.scale)
    low, high = node.low * factor, node.high * factor
    if INT64[0] <= low and high <= INT64[1] and data.dtype == np.int64:
        units: Numbers = data * np.int64(factor) if factor > 1 else data
        return units
    exact: Numbers = data.astype(np.object_) * factor
    return exact


def _exact(node: Typed, data: list[Numbers], scale: int, work: Callable[[Any, Any], Any]) -> Numbers:
    """An operation on exact numbers at one scale, in int64 if operands and result fit."""
    left, right = (scaled(arg, one, scale) for arg, one in zip(node.args, data, strict=True))
    # From int64 and uint64 numpy would make float64, which is not exact.
    if left.dtype != right.dtype or dtype_of(node) is not np.int64 or node.checked:
        left, right = left.astype(np.object_), right.astype(np.object_)
    found: Numbers = work(left, right)
    return found


def additive(work: Callable[[Any, Any], Any]) -> Callable[[Typed, list[Any]], Numbers]:
    """Addition or subtraction: `work`."""

    def add(node: Typed, data: list[Any]) -> Numbers:
        if node.domain is Domain.REAL:
            found: Numbers = work(data[0], data[1])
            return found
        return _exact(node, data, node.scale, work)

    return add


def multiply(node: Typed, data: list[Any]) -> Numbers:
    """The product of two numbers."""
    left, right = data
    if node.domain is Domain.REAL:
        product: Numbers = left * right
        return product
    if not (left.dtype == right.dtype == np.int64 and dtype_of(node) is np.int64) or node.checked:
        left, right = left.astype(np.object_), right.astype(np.object_)
    exact: Numbers = left * right
    return exact


def _quotient(left: Numbers, right: Numbers) -> Numbers:
    """Integer division that truncates towards zero. Divisors must not be 0."""
    if left.dtype == right.dtype == np.int64:
        # Floor division rounds down: one more if there is a rest and the signs differ.
        up: Numbers = (left % right != 0) & ((left < 0) != (right < 0))
        found: Numbers = left // right + up
        return found
    wide: Numbers = _truncate(left.astype(np.object_), right.astype(np.object_))
    return wide


def _truncated(left: int, right: int) -> int:
    found = abs(left) // abs(right)
    return found if (left < 0) == (right < 0) else -found


_truncate: Final[Callable[[Any, Any], Any]] = np.frompyfunc(_truncated, 2, 1)


def division(node: Typed, args: list[Values]) -> Values:
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
        return finished(node, data, null)
    over, under = node.args
    if node.op == "%":
        dividend, divisor = scaled(over, dividend, node.scale), scaled(under, divisor, node.scale)
        if dividend.dtype == divisor.dtype == np.int64:
            return finished(node, np.fmod(dividend, divisor), null)
        dividend, divisor = dividend.astype(np.object_), divisor.astype(np.object_)
        return finished(node, dividend - _quotient(dividend, divisor) * divisor, null)
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
        data = data.astype(dtype_of(node))
    return finished(node, data, null)


def negate(node: Typed, data: list[Any]) -> Numbers:
    """The negative of a number."""
    (values,) = data
    # The negative of -2**63 does not fit an int64.
    if node.domain is not Domain.REAL and (values.dtype != np.int64 or node.args[0].low == INT64[0]):
        values = values.astype(np.object_)
    found: Numbers = -values
    return found


def absolute(node: Typed, data: list[Any]) -> Numbers:
    """The absolute value of a number."""
    (values,) = data
    if node.domain is not Domain.REAL and values.dtype == np.int64 and node.args[0].low == INT64[0]:
        values = values.astype(np.object_)
    found: Numbers = np.abs(values)
    return found


def rounded(node: Typed, data: list[Any]) -> Numbers:
    """An exact number rounded to the node's scale, halves away from zero."""
    (arg,) = node.args
    # Python ints: twice the units may not fit an int64.
    units = data[0].astype(np.object_)
    down = 10 ** max(arg.scale - node.scale, 0)
    units = units * 10 ** max(node.scale - arg.scale, 0)
    half = _truncate(np.abs(units) * 2 + down, np.array([2 * down], np.object_))
    signed: Numbers = np.where(units < 0, -half, half)
    return signed.astype(dtype_of(node))


def words(data: Numbers) -> npt.NDArray[np.uint64]:
    """The 64 bits of integers."""
    return data.view(np.uint64) if data.dtype == np.int64 else data.astype(np.uint64)


def bitwise(work: Callable[[Any, Any], Any]) -> Callable[[Typed, list[Any]], Numbers]:
    """An operation on the bits of two integers: `work`."""

    def apply(node: Typed, data: list[Any]) -> Numbers:
        found: Numbers = work(words(data[0]), words(data[1]))
        return found

    return apply


def shift(work: Callable[[Any, Any], Any]) -> Callable[[Typed, list[Any]], Numbers]:
    """A shift of an integer's bits: `work`. All bits are gone after 64."""

    def apply(node: Typed, data: list[Any]) -> Numbers:
        word, amount = words(data[0]), words(data[1])
        most = np.uint64(63)
        moved: Numbers = np.where(amount > most, np.uint64(0), work(word, np.minimum(amount, most)))
        return moved

    return apply
