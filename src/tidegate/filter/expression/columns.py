"""Columns of a table as typed values, and the values of virtual columns from their expressions."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidegate.filter.expression.fold import folded, number, real
from tidegate.filter.expression.syntax import Refusal
from tidegate.filter.expression.typed import EXACT, NUMBERS, UINT64, Domain, Typed
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb import table_info
from tidegate.tidb.value import fsp

_BITS: Final = {1: 8, 2: 16, 9: 24, 3: 32, 8: 64}
"""The width in bits of each MySQL type code."""
_YEARS: Final = (0, 2155)
_DECIMAL: Final = (10, 0)
"""Precision and scale of a DECIMAL without its own."""

_DOMAINS: Final = {
    Kind.FLOAT: Domain.REAL,
    Kind.DOUBLE: Domain.REAL,
    Kind.STRING: Domain.STRING,
    Kind.BYTES: Domain.STRING,
    Kind.ENUM: Domain.STRING,
    Kind.SET: Domain.STRING,
    Kind.DATE: Domain.DATETIME,
    Kind.DATETIME: Domain.DATETIME,
    Kind.TIMESTAMP: Domain.DATETIME,
    Kind.TIME: Domain.TIME,
    Kind.JSON: Domain.JSON,
    Kind.VECTOR: Domain.OPAQUE,
}
_WITH_CLOCK: Final = (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)


def column_of(column: Column, position: int, at: int) -> Typed:
    """A node for the value of a row's column."""
    match column.kind:
        case Kind.INT:
            half = 1 << _BITS[column.mysql_type] - 1
            return Typed("column", Domain.INT, at, (), position, -half, half - 1)
        case Kind.UINT:
            most = (1 << _BITS[column.mysql_type]) - 1
            return Typed("column", Domain.INT, at, (), position, 0, most, unsigned=True)
        case Kind.YEAR:
            return Typed("column", Domain.INT, at, (), position, *_YEARS, unsigned=True, is_year=True)
        case Kind.BIT:
            return Typed("column", Domain.INT, at, (), position, *UINT64, unsigned=True, bits=column.flen)
        case Kind.DECIMAL:
            precision, scale = (column.flen, max(column.decimal, 0)) if column.flen > 0 else _DECIMAL
            most = 10**precision - 1
            return Typed("column", Domain.DECIMAL, at, (), position, -most, most, scale)
        case kind:
            return Typed(
                "column",
                _DOMAINS[kind],
                at,
                value=position,
                collate="binary" if kind is Kind.BYTES else column.collate,
                hybrid=position if kind in (Kind.ENUM, Kind.SET) else None,
                scale=fsp(column) if kind in _WITH_CLOCK else 0,
                is_date=kind is Kind.DATE,
                is_float=kind is Kind.FLOAT,
            )


def virtual_columns(table: TableSchema) -> list[Column]:
    """The virtual generated columns. They are visible in queries, but rows do not contain them."""
    carried = {column.id for column in table.columns}
    # Marked as stored, they are parsed like all other columns.
    entries = [entry | {"generated_stored": True} for entry in table.info.get("cols") or []]
    everyone = table_info.table_schema(table.schema, table.info | {"cols": entries}, table.version)
    return [column for column in everyone.columns if column.id not in carried and not column.hidden]


def assigned(column: Column, value: Typed, at: int) -> Typed:
    """A value after assignment to a column. TiDB has checked that it fits. Raises Refusal."""
    shape = column_of(column, 0, at)
    if value.is_null:
        return value
    match column.kind:
        case Kind.INT | Kind.UINT if value.domain is Domain.INT:
            return value
        case Kind.DECIMAL if value.domain in EXACT:
            if value.scale <= shape.scale and value.domain is Domain.DECIMAL:
                return value
            rounded = Typed("round", Domain.DECIMAL, at, (value,), None, shape.low, shape.high, shape.scale)
            return folded(rounded)
        case Kind.DOUBLE if value.domain in NUMBERS:
            return replace(real(number(value, "there")), is_float=False)
        case Kind.STRING if value.domain is Domain.STRING:
            return replace(value, collate=column.collate, weak=False)
        case Kind.DATETIME if value.domain is Domain.DATETIME:
            return replace(value, scale=fsp(column), is_date=False)
        case Kind.DATE if value.domain is Domain.DATETIME:
            return folded(Typed("date", Domain.DATETIME, at, (value,), is_date=True))
    raise Refusal(f"a {value.domain} assigned to {column.kind.name} is not in the subset", at)
