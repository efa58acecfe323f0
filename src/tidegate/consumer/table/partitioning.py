"""Finds the rows of a table's partitions, from the rows themselves. Pure.

DROP and TRUNCATE PARTITION remove rows without a change event for any row, so a target must find the rows by
the partitioning in the table's TableInfo. That is exact for

    RANGE, LIST, HASH over an integer column, or over YEAR(c), TO_DAYS(c), UNIX_TIMESTAMP(c)
    RANGE COLUMNS, LIST COLUMNS over integers, dates, times of day excluded, and binary-collated text

as TiDB does it (`pkg/table/tables/partition.go`): NULL is below every bound and in partition 0 of a hash, and
a hash is the absolute remainder. Everything else (KEY, other expressions, text whose collation folds letters)
raises NotComputable, because a wrong guess would remove other rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.table.convert import (
    DATE,
    DATETIME,
    STRINGS,
    TIMESTAMP,
    YEAR,
    Losses,
    TargetColumn,
    key_texts,
    moments,
    on_calendar,
    to_target,
)
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Undecodable

RANGE, HASH, LIST, KEY = 1, 2, 3, 4
DAYS_TO_1970: Final = 719_528
"""MySQL's TO_DAYS('1970-01-01')."""
INTEGERS: Final = frozenset({1, 2, 3, 8, 9, YEAR})

_COLUMN: Final = r"`((?:[^`]|``)+)`"
_PLAIN: Final = re.compile(rf"\s*{_COLUMN}\s*")
_CALL: Final = re.compile(rf"\s*(year|to_days|unix_timestamp)\s*\(\s*{_COLUMN}\s*\)\s*", re.IGNORECASE)
_QUOTED: Final = re.compile(r"(?:_[a-z0-9]+)?'((?:[^'\\]|'')*)'", re.IGNORECASE)
_LITERAL_CALL: Final = re.compile(r"\s*(year|to_days)\s*\(\s*'([^'\\]*)'\s*\)\s*", re.IGNORECASE)

Mask: TypeAlias = pa.Array
"""One boolean per row, never null."""


class NotComputable(Exception):
    """The rows of a partition cannot be found from the rows alone; the message says why."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """The value compared with the bounds: a column, or a function of one. `of` computes it for a batch."""

    column: TargetColumn
    type: pa.DataType
    of: Callable[[pa.RecordBatch], pa.Array]
    literal: Callable[[str], pa.Scalar]
    """Converts the text of a bound to the same type."""


@dataclass(frozen=True, slots=True)
class Members:
    """A test whether a row is in one of some partitions."""

    names: tuple[str, ...]
    columns: tuple[TargetColumn, ...]
    """The columns whose values the test reads."""
    _masks: tuple[Callable[[pa.RecordBatch], Mask], ...]

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """True for the rows of these partitions; never null."""
        found = self._masks[0](batch)
        for mask in self._masks[1:]:
            found = pc.or_(found, mask(batch))
        return found


def members(info: Mapping[str, Any], held: Definition, ids: Collection[int]) -> Members:
    """The partitions of `info` (TiDB's TableInfo) with these physical ids, as a test of rows of `held`.

    Raises NotComputable.
    """
    partition = info.get("partition") or {}
    definitions = partition.get("definitions") or []
    wanted = [at for at, one in enumerate(definitions) if one["id"] in ids]
    if not wanted:
        raise NotComputable("the table's definition does not name these partitions")
    kind = partition["type"]
    if kind not in (RANGE, HASH, LIST):
        raise NotComputable("rows are spread over partitions by KEY, whose hash is TiDB's own")
    operands = _operands(partition, held)
    make = {RANGE: _range, LIST: _list, HASH: _hash}[kind]
    masks = tuple(make(definitions, at, operands) for at in wanted)
    names = tuple(definitions[at]["name"]["O"] for at in wanted)
    return Members(names, tuple(operand.column for operand in operands), masks)


# --- operands


def _operands(partition: Mapping[str, Any], held: Definition) -> list[_Operand]:
    if partition.get("columns"):
        return [_column_operand(_column(held, one["O"])) for one in partition["columns"]]
    expression = str(partition.get("expr") or "")
    if (plain := _PLAIN.fullmatch(expression)) is not None:
        column = _column(held, plain.group(1).replace("``", "`"))
        if column.mysql_type in INTEGERS:
            return [_column_operand(column)]
    if (call := _CALL.fullmatch(expression)) is not None:
        return [_call_operand(call.group(1).lower(), _column(held, call.group(2).replace("``", "`")))]
    raise NotComputable(f"the partitioning expression {expression!r} is not one that is computed here")


def _column(held: Definition, name: str) -> TargetColumn:
    for column in held.columns:
        if column.name.lower() == name.lower():
            return column
    raise NotComputable(f"the partitioning column '{name}' is not at the target")


def _column_operand(column: TargetColumn) -> _Operand:
    if column.mysql_type in INTEGERS:
        wide = pa.decimal128(20, 0) if pa.types.is_decimal(column.type) else pa.int64()
        return _Operand(
            column, wide, lambda batch: batch.column(column.name).cast(wide), lambda text: _number(text, wide)
        )
    if column.mysql_type in (DATE, DATETIME, TIMESTAMP):
        return _Operand(
            column, column.type, lambda batch: batch.column(column.name), lambda text: _moment(text, column)
        )
    if column.mysql_type in STRINGS and pa.types.is_string(column.type):
        return _text_operand(column)
    raise NotComputable(
        f"partitions by column '{column.name}' are not computed here: its type is {column.type}"
    )


def _text_operand(column: TargetColumn) -> _Operand:
    collation = column.collation
    if not collation.endswith("_bin"):
        raise NotComputable(f"column '{column.name}' is compared by {collation or 'an unknown collation'}")
    if collation == "utf8mb4_0900_bin":
        return _Operand(
            column, pa.string(), lambda batch: batch.column(column.name), lambda text: pa.scalar(_text(text))
        )
    # Trailing spaces do not count in the older binary collations.
    return _Operand(
        column,
        pa.string(),
        lambda batch: pc.utf8_rtrim(batch.column(column.name), " "),
        lambda text: pa.scalar(_text(text).rstrip(" ")),
    )


def _call_operand(function: str, column: TargetColumn) -> _Operand:
    kinds = {"year": (DATE, DATETIME), "to_days": (DATE, DATETIME), "unix_timestamp": (TIMESTAMP,)}[function]
    if column.mysql_type not in kinds:
        raise NotComputable(f"{function.upper()} of column '{column.name}' is not computed here")

    def value(batch: pa.RecordBatch) -> pa.Array:
        held = batch.column(column.name)
        if pa.types.is_string(held.type):  # part of the key
            # The text has a year even if no calendar has the day, and TiDB's YEAR reads it.
            if function == "year":
                return pc.utf8_slice_codeunits(held, 0, 4).cast(pa.int64())
            held = moments(held, on_calendar(column).type)
        if function == "year":
            return pc.year(held)
        if function == "to_days":
            # A safe cast would refuse a time of day; the days before 1970 need no rounding of their own.
            days = held.cast(pa.date32(), safe=False).cast(pa.int32()).cast(pa.int64())
            return pc.add(days, DAYS_TO_1970)
        return pc.floor_temporal(held, unit="second").cast(pa.timestamp("s", tz="UTC")).cast(pa.int64())

    return _Operand(column, pa.int64(), value, lambda text: _number(text, pa.int64()))


# --- bounds, as TableInfo writes them


def _text(literal: str) -> str:
    quoted = _QUOTED.fullmatch(literal.strip())
    if quoted is None:
        raise NotComputable(f"the partition bound {literal!r} is not a plain text")
    return quoted.group(1).replace("''", "'")


def _integer(literal: str) -> int:
    call = _LITERAL_CALL.fullmatch(literal)
    if call is not None:
        # Tables made by older TiDB keep the expression, newer ones its value.
        day = pa.array([call.group(2)[:10]]).cast(pa.date32())[0]
        year, days = day.as_py().year, day.cast(pa.int32()).as_py() + DAYS_TO_1970
        return int(year if call.group(1).lower() == "year" else days)
    text = literal.strip().strip("'")
    if not re.fullmatch(r"[+-]?\d+", text):
        raise NotComputable(f"the partition bound {literal!r} is not an integer")
    return int(text)


def _number(literal: str, wide: pa.DataType) -> pa.Scalar:
    value = _integer(literal)
    try:
        return pa.scalar(Decimal(value) if pa.types.is_decimal(wide) else value, wide)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise NotComputable(f"the partition bound {literal!r} does not fit its column") from error


def _moment(literal: str, column: TargetColumn) -> pa.Scalar:
    if column.mysql_type == TIMESTAMP:
        raise NotComputable(f"bounds of TIMESTAMP column '{column.name}' depend on a session's time zone")
    try:
        text = _text(literal)[:10] if column.mysql_type == DATE else _text(literal)
        found = to_target(pa.array([text]), on_calendar(column), "UTC", Losses())
    except Undecodable as error:
        raise NotComputable(f"the partition bound {literal!r} is no date") from error
    if found.null_count:
        raise NotComputable(f"the partition bound {literal!r} is no day of the calendar")
    return (key_texts(found) if pa.types.is_string(column.type) else found)[0]


# --- the three kinds


def _range(definitions: Sequence[Any], at: int, operands: Sequence[_Operand]) -> Callable[..., Mask]:
    """A test whether a row is at or above the bound of the previous partition, and below its own."""
    upper = _below(definitions[at]["less_than"], operands)
    if at == 0:
        return upper
    lower = _below(definitions[at - 1]["less_than"], operands)
    return lambda batch: pc.and_not(upper(batch), lower(batch))


def _below(bound: Sequence[str], operands: Sequence[_Operand]) -> Callable[[pa.RecordBatch], Mask]:
    """A test whether a row's operands, compared as a tuple, are below the bound."""
    pairs = zip(bound, operands, strict=True)
    limits = [None if _is_max(text) else operand.literal(text) for text, operand in pairs]

    def mask(batch: pa.RecordBatch) -> Mask:
        found = _constant(batch, value=False)
        # From the last column to the first: a row is below the bound if it is less in one column and equal in
        # all before it.
        for operand, limit in reversed(list(zip(operands, limits, strict=True))):
            if limit is None:
                found = _constant(batch, value=True)
                continue
            value = operand.of(batch)
            # NULL is below every bound, as in MySQL.
            less = pc.fill_null(pc.less(value, limit), True)
            same = pc.fill_null(pc.equal(value, limit), False)
            found = pc.or_(less, pc.and_(same, found))
        return found

    return mask


def _list(definitions: Sequence[Any], at: int, operands: Sequence[_Operand]) -> Callable[..., Mask]:
    """A test for one of the partition's values; a DEFAULT partition also has what no other one names."""
    own = _named(definitions[at]["in_values"], operands)
    if not _has_default(definitions[at]):
        return own
    others = [_named(one["in_values"], operands) for i, one in enumerate(definitions) if i != at]

    def mask(batch: pa.RecordBatch) -> Mask:
        named = _constant(batch, value=False)
        for other in others:
            named = pc.or_(named, other(batch))
        return pc.invert(named)

    return mask


def _named(values: Sequence[Sequence[str]], operands: Sequence[_Operand]) -> Callable[..., Mask]:
    """A test whether a row's operands are one of the tuples."""
    tuples = [
        [None if _is_null(text) else by.literal(text) for text, by in zip(one, operands, strict=True)]
        for one in values
        if not _is_default(one)
    ]

    def mask(batch: pa.RecordBatch) -> Mask:
        columns = [operand.of(batch) for operand in operands]
        found = _constant(batch, value=False)
        for one in tuples:
            same = _constant(batch, value=True)
            for column, value in zip(columns, one, strict=True):
                equal = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
                same = pc.and_(same, equal)
            found = pc.or_(found, same)
        return found

    return mask


def _has_default(definition: Mapping[str, Any]) -> bool:
    return any(_is_default(one) for one in definition["in_values"])


def _hash(definitions: Sequence[Any], at: int, operands: Sequence[_Operand]) -> Callable[..., Mask]:
    """A test by the absolute value of the remainder, as Go computes it; NULL is in the first partition."""
    (operand,) = operands
    count = len(definitions)
    if not pa.types.is_integer(operand.type):
        raise NotComputable("a hash of unsigned 64-bit integers is not computed here")

    def mask(batch: pa.RecordBatch) -> Mask:
        value = operand.of(batch)
        # Arrow's division of integers cuts towards zero as Go's does; Python's would round down.
        rest = pc.subtract(value, pc.multiply(pc.divide(value, count), count))
        return pc.fill_null(pc.equal(pc.abs(rest), at), at == 0)

    return mask


def _is_max(text: str) -> bool:
    return text.strip().upper() == "MAXVALUE"


def _is_null(text: str) -> bool:
    return text.strip().upper() == "NULL"


def _is_default(value: Sequence[str]) -> bool:
    return [text.strip().upper() for text in value] == ["DEFAULT"]


def _constant(batch: pa.RecordBatch, *, value: bool) -> Mask:
    return pa.array([value]).take(pa.nulls(batch.num_rows, pa.int64()).fill_null(0))
