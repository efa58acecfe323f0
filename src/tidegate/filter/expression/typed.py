"""Expressions over the columns of one table version, with all types known. Both evaluators walk them.

Values by domain: in the plain evaluator, and in numpy or Arrow. NULL is None in the plain evaluator, and in
the other one it is marked in a separate mask.

    INT       int                 int64, uint64, or Python ints if neither can hold every value
    DECIMAL   decimal.Decimal     the same, as a number of units of 10**-scale
    REAL      float               float64
    STRING    bytes               binary; compared by `collate`
    DATETIME  int, packed time    int64; DATE, DATETIME, and TIMESTAMP in the feed's zone
    TIME      int, nanoseconds    int64
    JSON      str, its text       binary; compared only with constants
    OPAQUE    vectors             can only be tested for NULL
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

INT64: Final = (-(1 << 63), (1 << 63) - 1)
UINT64: Final = (0, (1 << 64) - 1)
BOOLEAN: Final = (0, 1)


class Domain(StrEnum):
    """The domain of a value: it decides how to compute with it."""

    INT = "integer"
    DECIMAL = "decimal"
    REAL = "floating number"
    STRING = "text"
    DATETIME = "date"
    TIME = "time"
    JSON = "JSON value"
    OPAQUE = "vector"


NUMBERS: Final = frozenset({Domain.INT, Domain.DECIMAL, Domain.REAL})
EXACT: Final = frozenset({Domain.INT, Domain.DECIMAL})


@dataclass(frozen=True, slots=True, eq=False)
class Typed:
    """An operation over typed arguments.

    op: const (`value`), column (`value`: position in the table's columns), index (the number of an enum or
    set column), or an operator or function of `syntax`. Some of these are replaced by others: in (`value`:
    constants without NULLs; `nulls`: whether there were NULLs), truth, real, and datetime parts.
    """

    op: str
    domain: Domain
    at: int
    args: tuple[Typed, ...] = ()
    value: Any = None
    low: int = INT64[0]
    high: int = INT64[1]
    """For INT and DECIMAL: every value is between `low` and `high`, in units of 10**-scale."""
    scale: int = 0
    """Digits after the point. For DATETIME and TIME columns, digits of the fraction of a second."""
    unsigned: bool = False
    collate: str = ""
    hybrid: int | None = None
    """The position of the column, if this is an enum or set column. With numbers, its number is used."""
    is_year: bool = False
    is_date: bool = False
    """A date without time of day."""
    is_float: bool = False
    """A floating number of 32 bits."""
    bits: int = 0
    """The width of a BIT column."""
    weak: bool = False
    """A text that is made of constants and numbers: with a text column, the column's collation is used."""
    nulls: bool = False
    checked: bool = False
    """Whether the result for a row may be outside `low` and `high`. Such a row fails, as in TiDB."""

    @property
    def is_const(self) -> bool:
        """Whether it is the same for every row."""
        return self.op == "const"

    @property
    def is_null(self) -> bool:
        """Whether it is the constant NULL."""
        return self.is_const and self.value is None


class Uncomputable(Exception):
    """TiDB would fail to compute the expression for a row. `why`: the reason, in words."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class Beyond(Exception):
    """The vector path has no exact result for this block. The caller must use the plain path."""
