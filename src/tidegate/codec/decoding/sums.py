"""Compares decoded rows with the checksums in their messages: row by row, and in bulk.

The sum is over all columns in the order of their ids; messages with checksums have their columns in this
order: docs/formats/checksums.md. A sum of 0, or no sum, means that the message has none. If a text could not
be sent as UTF-8, the message has U+FFFD in it and the sum differs, so such a row is accepted without a check.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.codec.base import DecodedTable, WireColumn
from tidegate.codec.decoding.assemble import DecodeError
from tidegate.errors import TidegateError
from tidegate.model.schema import Kind
from tidegate.tidb import arrow_checksum
from tidegate.tidb.checksum import column_bytes
from tidegate.tidb.types import temporal

_KINDS: Final = {
    4: Kind.FLOAT, 5: Kind.DOUBLE, 7: Kind.TIMESTAMP, 10: Kind.DATE, 11: Kind.TIME, 12: Kind.DATETIME,
    13: Kind.YEAR, 16: Kind.BIT, 225: Kind.VECTOR, 245: Kind.JSON, 246: Kind.DECIMAL, 247: Kind.ENUM,
    248: Kind.SET,
}  # fmt: skip
"""Kinds by MySQL type code; for integers and texts the Arrow type decides."""
MAX_CHOICES: Final = 256
"""A TIMESTAMP may have two meanings in an hour that its time zone has twice. So many combinations of one row
are tried, and one of them must give the sum."""
_FRACTION_AT: Final = 20
"""The length of `YYYY-MM-DD hh:mm:ss.`: the digits of the second follow."""


def kind_of(column: WireColumn) -> Kind:
    """The kind as which a column's values enter a checksum."""
    found = _KINDS.get(column.mysql_type)
    if found is not None:
        return found
    if pa.types.is_integer(column.type):
        return Kind.UINT if column.type == pa.uint64() else Kind.INT
    return Kind.BYTES if column.type == pa.binary() else Kind.STRING


def check(
    table: str, ts: int, columns: Sequence[WireColumn], cells: Sequence[Any], stated: int, zone: str
) -> None:
    """Raise DecodeError, which names the row, unless its cells give the sum in its message."""
    choices = [cell_bytes(kind_of(column), cell, zone) for column, cell in zip(columns, cells, strict=True)]
    found = [crc32(b"".join(one)) for one in islice(product(*choices), MAX_CHOICES)]
    # U+FFFD replaces bytes that the message's text could not hold. The sum is over those bytes, so it cannot
    # be computed here, and the row is not refused.
    if stated in found or any(isinstance(cell, str) and "\ufffd" in cell for cell in cells):
        return
    key = ", ".join(
        f"{column.name}={cell!r}"[:100] for column, cell in zip(columns, cells, strict=True) if column.key
    )
    raise DecodeError(
        f"the row of {table} with {key or 'no key'} at commit ts {ts} is not what its checksum says: the "
        f"message has {stated}, its columns give {found[0]}"
    )


def cell_bytes(kind: Kind, cell: Any, zone: str) -> tuple[bytes, ...]:
    """The bytes that a cell adds to the sum: two choices for a TIMESTAMP in an hour that occurs twice."""
    try:
        if kind is Kind.FLOAT and cell is not None:
            # The sum is over the number that 32 bits hold. The short text of a FLOAT names another number of
            # 64 bits.
            cell = float(np.float32(cell))
        if kind is not Kind.TIMESTAMP or cell is None or zone.upper() == "UTC":
            return (column_bytes(kind, cell),)
        parts, digits = temporal.parse(cell), max(len(cell) - _FRACTION_AT, 0)
        moments = [temporal.to_utc(parts, temporal.zone(zone), fold=fold) for fold in (0, 1)]
        return tuple(
            column_bytes(kind, temporal.datetime_text(moment, digits)) for moment in dict.fromkeys(moments)
        )
    except TidegateError as error:
        raise DecodeError(f"a value has no checksum: {error.what}") from None


def matching(
    table: DecodedTable, current: npt.NDArray[np.int64], previous: npt.NDArray[np.int64], zone: str
) -> npt.NDArray[np.bool_]:
    """For each row, whether its images match the stated sums, -1 for none; False: `check` must decide."""
    sound = np.ones(len(table), dtype=np.bool_)
    kinds = None
    for image, stated in ((table.new, current), (table.old, previous)):
        if image is None or not (stated >= 0).any():
            continue
        kinds = kinds or [kind_of(column) for column in table.columns]
        try:
            found = arrow_checksum.sums(image, kinds, zone)
        except (TidegateError, ValueError):
            # Some value has no sum. `check` looks at one row at a time and refuses only the rows with such
            # values.
            sound &= stated < 0
            continue
        sound &= (stated < 0) | (found == stated)
    return sound
