"""Limits that a table definition must respect, so that all later code can rely on them. Pure.

Definitions come from another system's store, and compiled code uses column ids, lengths and numbers of
columns without further checks. The bounds are those of the stored forms, which are wider than TiDB's own
rules: a definition that TiDB can write passes. (TiDB: pkg/meta/model/column.go,
pkg/parser/types/field_type.go.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tidegate.model.schema import Column, Index, Kind

ID_MAX: Final = (1 << 32) - 1
"""The highest column id: the row format has 32 bits for it."""
TABLE_ID_MAX: Final = (1 << 63) - 1
COLUMNS_MAX: Final = 1 << 14
"""TiDB's own limit is 4096, not counting hidden columns."""
HANDLE_COLUMNS_MAX: Final = 64
"""Four times as many columns as TiDB allows in a key."""
WORD: Final = range(-(1 << 31), 1 << 32)
DECIMALS: Final = range(-1, 32)
"""Digits after the point, of any type: 31 and -1 mean that none were given."""
_LENGTHS: Final = {Kind.DECIMAL: range(-1, 82), Kind.BIT: range(-1, 65)}
_FRACTIONS: Final = dict.fromkeys((Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME), range(-1, 7))
_ELEMENTS: Final = {Kind.SET: 64, Kind.ENUM: 65_535}


def check_columns(columns: Sequence[Column]) -> None:
    """Raise ValueError for columns that TiDB cannot have written."""
    if len(columns) > COLUMNS_MAX:
        raise ValueError(f"{len(columns)} columns, {COLUMNS_MAX} are the most")
    for column in columns:
        _check(column)
    _unique("column id", (column.id for column in columns))
    _unique("column offset", (column.offset for column in columns))


def check_indexes(indexes: Iterable[Index], columns: int) -> None:
    """Raise ValueError for indexes over so many columns that TiDB cannot have written."""
    for index in indexes:
        _number("index id", index.id, range(-1, TABLE_ID_MAX))
        _text("index name", index.name)
        for offset in index.columns:
            _number(f"offset in index {index.name!r}", offset, range(columns))
        for length in index.lengths:
            _number(f"length in index {index.name!r}", length, WORD)


def check_key(handle_columns: Sequence[int]) -> None:
    """Raise ValueError for columns of a record key that TiDB cannot have written."""
    if len(handle_columns) > HANDLE_COLUMNS_MAX:
        raise ValueError(f"{len(handle_columns)} columns in the key, {HANDLE_COLUMNS_MAX} are the most")
    _unique("column in the key", handle_columns)


def check_table(name: str, ids: Iterable[int]) -> None:
    """Raise ValueError for a table's name, or ids of it and its partitions, that TiDB cannot have written."""
    _text("table name", name)
    for each in ids:
        _number("table id", each, range(1, TABLE_ID_MAX))


def _check(column: Column) -> None:
    _text("column name", column.name)
    where = f" of column {column.name!r}"
    _number("id" + where, column.id, range(1, ID_MAX + 1))
    _number("offset" + where, column.offset, range(COLUMNS_MAX))
    _number("flags" + where, column.flag, range(ID_MAX + 1))
    _number("length" + where, column.flen, _LENGTHS.get(column.kind, WORD))
    _number("decimals" + where, column.decimal, _FRACTIONS.get(column.kind, DECIMALS))
    _number("state" + where, column.state, range(256))
    _number("version" + where, column.version, range(256))
    for text in (column.charset, column.collate, column.generated, *column.elems):
        _text("text" + where, text)
    if len(column.elems) > _ELEMENTS.get(column.kind, ID_MAX):
        raise ValueError(f"{len(column.elems)} elements{where}, {_ELEMENTS[column.kind]} are the most")


def _number(what: str, value: Any, allowed: range) -> None:
    if type(value) is not int or value not in allowed:
        raise ValueError(f"{what} is {str(value)[:40]}, not {allowed.start} to {allowed.stop - 1}")


def _text(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{what} is {str(value)[:40]}, not a text")


def _unique(what: str, values: Iterable[Any]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value} is there twice")
        seen.add(value)
