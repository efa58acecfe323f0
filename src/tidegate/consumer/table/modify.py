"""Converts a column of the target to its new type, as TiDB's MODIFY COLUMN converts the rows. Pure.

The target's values become the plain values that TiDB held (`tidb.value`), `tidb.cast` converts them, and they
are written in the target's new type; each distinct value is converted once. Values that the target could not
hold before are not known here: a NULL that stands for a zero date stays NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.table.convert import Losses, TargetColumn, to_target
from tidegate.errors import InvalidInput
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind
from tidegate.tidb.cast import cast, refusal
from tidegate.tidb.types import enum, temporal
from tidegate.tidb.value import fsp

WIRE_TYPES: Final[Mapping[Kind, pa.DataType]] = {
    Kind.INT: pa.int64(),
    Kind.YEAR: pa.int64(),
    Kind.UINT: pa.uint64(),
    Kind.ENUM: pa.uint64(),
    Kind.SET: pa.uint64(),
    Kind.BIT: pa.uint64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.binary(),
    Kind.BYTES: pa.binary(),
}
"""The Arrow type of plain values; text for all other kinds."""
_CHAR: Final = 254
_SECONDS: Final = len("YYYY-MM-DD HH:MM:SS")


@dataclass(frozen=True, slots=True)
class Change:
    """A column that TiDB gave a new type, with new data."""

    before: Column
    after: Column
    time_zone: tzinfo | None
    """The time zone of the session that changed it; None when not known."""

    @property
    def refusal(self) -> str:
        """Why the rows cannot be converted; empty when they can."""
        return refusal(self.before, self.after, self.time_zone)

    @property
    def idle(self) -> bool:
        """Whether no value can change: the new type is a longer text of the same kind and charset."""
        before, after = self.before, self.after
        return (
            before.kind is after.kind is Kind.STRING
            and before.charset == after.charset
            # A CHAR loses the spaces at the end of its text.
            and (after.mysql_type != _CHAR or before.mysql_type == _CHAR)
            and 0 <= before.flen <= after.flen
        )


def change_of(before: Column, after: Column, time_zone: tzinfo | None) -> Change | None:
    """How the values of a column change with its definition; None if they stay as they are.

    A new column id means that TiDB wrote new data. It keeps id and data if the new values equal the old ones.
    Only a TIME must be converted even then: at the target it is text with as many digits as its type has.
    """
    respelled = before.kind is after.kind is Kind.TIME and fsp(before) != fsp(after)
    if before.id == after.id and not respelled:
        return None
    change = Change(before, after, time_zone)
    return None if change.idle else change


def known_zone(text: str) -> tzinfo | None:
    """The time zone of a DDL event; None when it names none, or one that this machine does not know."""
    if re.fullmatch(r"[+-]\d+", text):
        return timezone(timedelta(seconds=int(text)))
    try:
        return temporal.zone(text) if text else None
    except InvalidInput:
        return None


def converted(held: pa.Array, change: Change, column: TargetColumn, losses: Losses) -> pa.Array:
    """The target's values in the type of `column`, converted as TiDB does; Undecodable where that fails."""
    # NULL is a value here, because `cast` refuses one that becomes a NOT NULL TIMESTAMP.
    encoded = pc.dictionary_encode(held, null_encoding="encode")
    plain = _plain(change.before)
    # Only the distinct values, because TiDB's conversion is computed one value at a time.
    values = [
        cast(None if value is None else plain(value), change.before, change.after, change.time_zone or UTC)
        for value in encoded.dictionary.to_pylist()
    ]
    wire = pa.array(values, WIRE_TYPES.get(change.after.kind, pa.string()))
    # `cast` returns TIMESTAMPs in UTC, whatever the zone of the session was.
    return to_target(wire, column, "UTC", losses).take(encoded.indices)


def _plain(column: Column) -> Callable[[Any], Value]:
    """A function that turns a value of the target into TiDB's plain value."""
    digits = fsp(column)

    def moment(value: Any) -> str:
        if isinstance(value, str):
            return value[: _SECONDS + 1 + digits if digits else _SECONDS]  # in a key: with microseconds
        parts = temporal.Parts(
            *(value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
        )
        return temporal.datetime_text(parts, digits)

    def text(value: Any) -> bytes:
        return value.encode() if isinstance(value, str) else bytes(value)

    def named(number: Callable[[str, Any], int]) -> Callable[[Any], int]:
        def known(value: str) -> int:
            try:
                return number(value, column.elems) if value else _empty(column)
            except InvalidInput:
                return int(value)  # the elements were not known when the row was written: its number as text

        return known

    def decimal(value: Any) -> str:
        return value if isinstance(value, str) else f"{value:f}"

    plain: dict[Kind, Callable[[Any], Value]] = {
        Kind.ENUM: named(enum.enum_index),
        Kind.SET: named(enum.set_mask),
        Kind.DATE: lambda value: value if isinstance(value, str) else str(value.isoformat()),
        Kind.DATETIME: moment,
        Kind.TIMESTAMP: moment,
        Kind.STRING: text,
        Kind.BYTES: text,
        Kind.DECIMAL: decimal,
        Kind.FLOAT: float,
        Kind.DOUBLE: float,
        Kind.TIME: str,
        Kind.JSON: str,
        Kind.VECTOR: lambda value: value,
    }
    return plain.get(column.kind, int)


def _empty(column: Column) -> int:
    """The number of the empty text: that of an element with this name, otherwise 0, or the empty set."""
    return column.elems.index("") + 1 if column.kind is Kind.ENUM and "" in column.elems else 0
