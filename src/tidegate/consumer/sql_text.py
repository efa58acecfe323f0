"""Shows Arrow rows as SQL does: the texts that a MySQL client gets from `SELECT *`. Pure.

Used to compare a target with what the source database itself returned (recorded change logs, dumps for
people). Types are given as in the Type column of SHOW COLUMNS, because Arrow types do not have the digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

Cell = str | bytes | None
_DIGITS: Final = re.compile(r"\((\d+)(?:,(\d+))?\)")
_PLAIN_FLOATS: Final = (1e-15, 1e15)


def sql_rows(rows: pa.Table, types: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    """The rows' cells, one text per column; bytes for binary and bit columns; None for NULL."""
    columns = [
        [None if value is None else show(value) for value in column.to_pylist()]
        for column, show in zip(rows.columns, map(_shower, types), strict=True)
    ]
    return zip(*columns, strict=True)


def _shower(sql_type: str) -> Callable[[Any], Cell]:
    name = sql_type.split("(")[0].split(" ")[0].lower()
    found = _DIGITS.search(sql_type)
    digits = int(found.group(1)) if found else 0
    if name in ("datetime", "timestamp"):
        return lambda moment: _moment(moment, digits)
    if name == "bit":
        return lambda bits: int(bits).to_bytes((digits + 7) // 8, "big")
    return _SHOWERS.get(name, str)


def _moment(moment: datetime | str, digits: int) -> str:
    if isinstance(moment, str):  # part of a key: always with microseconds
        return moment[: len("YYYY-MM-DD HH:MM:SS") + (1 + digits if digits else 0)]
    whole = f"{moment.year:04d}-{moment:%m-%d %H:%M:%S}"
    return f"{whole}.{moment.microsecond:06d}"[: len(whole) + 1 + digits] if digits else whole


def _float(value: float, single: bool) -> str:
    """A float as Go's strconv 'g' with shortest digits: TiDB's text protocol sends floats and doubles so.

    For a very large or small FLOAT it sends only six digits (`pkg/server/internal/dump`, appendFormatFloat).
    """
    number = np.float32(value) if single else np.float64(value)
    if single and number != 0 and not _PLAIN_FLOATS[0] <= abs(value) < _PLAIN_FLOATS[1]:
        number = np.float32(f"{number:.5e}")
    mantissa, _, exponent = np.format_float_scientific(number, trim="-").partition("e")
    if number == 0 or -5 < int(exponent) < 6:
        return np.format_float_positional(number, trim="-")
    return f"{mantissa}e{int(exponent):+03d}"


def _vector(values: Sequence[float]) -> str:
    return "[" + ",".join(np.format_float_positional(np.float32(v), trim="-") for v in values) + "]"


def _day(value: date | str) -> str:
    return value if isinstance(value, str) else value.isoformat()


def _decimal(value: Decimal | str) -> str:
    return value if isinstance(value, str) else f"{value:f}"


def _bytes(value: bytes) -> bytes:
    return value


_SHOWERS: Final[dict[str, Callable[[Any], Cell]]] = {
    "decimal": _decimal,
    "date": _day,
    "float": lambda value: _float(value, single=True),
    "double": lambda value: _float(value, single=False),
    "vector": _vector,
    "binary": _bytes,
    "varbinary": _bytes,
    "tinyblob": _bytes,
    "blob": _bytes,
    "mediumblob": _bytes,
    "longblob": _bytes,
}
