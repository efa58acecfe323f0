"""Expressions over the columns of one table version, every type known: what both evaluators walk.

Values by domain, plain and in numpy or Arrow. NULL is None, or a mark in the mask beside the values.

    INT       int                 int64, uint64, or Python ints where neither holds every value
    DECIMAL   decimal.Decimal     the same, as a number of units of 10**-scale
    REAL      float               float64
    STRING    bytes               binary; compared by `collate`
    DATETIME  int, packed time    int64; DATE, DATETIME, and TIMESTAMP in the feed's zone
    TIME      int, nanoseconds    int64
    JSON      str, its text       binary; compared with constants
    OPAQUE    whether it is NULL is all one may ask: vectors
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

INT64: Final = (-(1 << 63), (1 << 63) - 1)
UINT64: Final = (0, (1 << 64) - 1)
BOOLEAN: Final = (0, 1)


class Domain(StrEnum):
    """How a value is computed with."""

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
    set column), or an operator or function of `syntax`, some of which become others: in (`value`: constants,
    NULLs left out; `nulls` says whether there were any), truth, real, and datetime parts.
    """

    op: str
    domain: Domain
    at: int
    args: tuple[Typed, ...] = ()
    value: Any = None
    low: int = INT64[0]
    high: int = INT64[1]
    """INT and DECIMAL: between which numbers (of units of 10**-scale) every value lies."""
    scale: int = 0
    """Digits after the point; of DATETIME and TIME columns digits of the second."""
    unsigned: bool = False
    collate: str = ""
    hybrid: int | None = None
    """Position of the enum or set column this is, which counts as its number beside numbers."""
    is_year: bool = False
    is_date: bool = False
    """A date without time of day."""
    is_float: bool = False
    """A floating number of 32 bits."""
    bits: int = 0
    """How wide a BIT column is."""
    weak: bool = False
    """A text whose collation gives way to that of a text column: it is made of constants and numbers."""
    nulls: bool = False
    checked: bool = False
    """Whether a row may give a number beyond `low` and `high`: the row then fails, as in TiDB."""

    @property
    def is_const(self) -> bool:
        """Whether it is the same for every row."""
        return self.op == "const"

    @property
    def is_null(self) -> bool:
        """Whether it is the constant NULL."""
        return self.is_const and self.value is None


class Uncomputable(Exception):
    """A row for which TiDB refuses to compute the expression, and why, in words."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class Beyond(Exception):
    """The vector path has no exact answer for this block: it is for the plain path."""
