"""Rows of tables that hypothesis makes: columns of every kind, with values at their limits."""

from __future__ import annotations

from json import dumps
from typing import Any

from hypothesis import strategies as st

from tidegate.model.row import RowChange, RowChecksum, Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb.table_info import table_schema
from tidegate.tidb.types import json

NOT_NULL, UNSIGNED, BINARY = 1, 32, 128
INTEGER_BYTES = {1: 1, 2: 2, 9: 3, 3: 4, 8: 8}
ELEMS = ["a", "b,c", "it''s", "ä", "", "\\'x", "long" * 20]
TEXTS = st.text(max_size=30).map(str.encode)
SUMS = st.integers(1, 2**32 - 1)
LENGTHS = st.sampled_from([0, 1, 9, 27, 59, 60, 127, 128, 255])


@st.composite
def _type(draw: st.DrawFn) -> dict[str, Any]:
    """A column's type as TiDB's catalogue has it."""
    code = draw(st.sampled_from([*INTEGER_BYTES, 4, 5, 7, 10, 11, 12, 13, 15, 16, 225, 245, 246, 247, 248,
                                 249, 252, 254]))  # fmt: skip
    found = {"Tp": code, "Flag": 0, "Flen": 20, "Decimal": 0, "Charset": "binary", "Elems": None}
    if code in INTEGER_BYTES:
        found["Flag"] = draw(st.sampled_from([0, UNSIGNED]))
    elif code in (7, 11, 12):
        found["Decimal"] = draw(st.integers(0, 6))
    elif code == 16:
        found["Flen"] = draw(st.integers(1, 64))
    elif code == 246:
        digits = draw(st.integers(1, 65))
        found |= {"Flen": digits, "Decimal": draw(st.integers(0, min(digits, 30)))}
    elif code in (247, 248):
        found |= {"Elems": draw(st.lists(st.sampled_from(ELEMS), min_size=1, max_size=5, unique=True))}
        found["Charset"] = "utf8mb4"
    elif code in (15, 249, 252, 254) and draw(st.booleans()):
        found["Charset"] = "utf8mb4"
    return found


@st.composite
def any_table(draw: st.DrawFn) -> TableSchema:
    """A table of a bigint that may be its key, and some columns of any type, one of them maybe virtual."""
    types = draw(st.lists(_type(), min_size=1, max_size=8))
    has_key = draw(st.booleans())
    cols: list[dict[str, Any]] = [{"name": {"O": "id"}, "type": _bigint(3 if has_key else NOT_NULL)}]
    for i, of_type in enumerate(types):
        column: dict[str, Any] = {"name": {"O": f"c{i}"}, "type": of_type}
        if draw(st.booleans()):
            of_type["Flag"] |= NOT_NULL
        elif of_type["Tp"] in (3, 15, 246) and draw(st.booleans()):
            column["default"] = "1"
        elif draw(st.integers(0, 7)) == 0:
            column |= {"generated_expr_string": "`id` + 1", "generated_stored": False}
        cols.append(column)
    ids = draw(st.permutations(range(1, len(cols) + 1)))
    for i, column in enumerate(cols):
        column |= {"id": ids[i], "offset": i, "state": 5}
    info = {"id": 7, "name": {"O": "t"}, "pk_is_handle": has_key, "cols": cols, "update_timestamp": 9}
    return table_schema("s", info, 9)


def _bigint(flag: int) -> dict[str, Any]:
    return {"Tp": 8, "Flag": flag, "Flen": 20, "Decimal": 0, "Charset": "binary", "Elems": None}


def _fraction(draw: st.DrawFn, digits: int) -> str:
    return f".{draw(st.integers(0, 10**digits - 1)):0{digits}d}" if digits else ""


def _moment(draw: st.DrawFn, digits: int) -> str:
    clock = f"{draw(st.integers(0, 23)):02d}:{draw(st.integers(0, 59)):02d}:{draw(st.integers(0, 59)):02d}"
    return f"{clock}{_fraction(draw, digits)}"


def _cell(draw: st.DrawFn, column: Column) -> Value:
    if column.nullable and draw(st.integers(0, 4)) == 0:
        return None
    digits = max(column.decimal, 0)
    match column.kind:
        case Kind.INT | Kind.UINT:
            bits = 8 * INTEGER_BYTES[column.mysql_type]
            low, high = (0, (1 << bits) - 1) if column.unsigned else (-1 << bits - 1, (1 << bits - 1) - 1)
            return draw(st.integers(low, high) | st.sampled_from([low, high]))
        case Kind.FLOAT | Kind.DOUBLE:
            return draw(st.floats(allow_nan=False, allow_infinity=False, width=32))
        case Kind.DECIMAL:
            number = draw(st.integers(0, 10 ** draw(st.integers(0, column.flen)) - 1))
            text = str(number).rjust(digits + 1, "0")
            text = f"{text[: len(text) - digits]}.{text[len(text) - digits :]}" if digits else text
            return "-" + text if number and draw(st.booleans()) else text
        case Kind.DATE | Kind.DATETIME:
            date = f"{draw(st.integers(0, 9999)):04d}-{draw(st.integers(0, 12)):02d}-"
            date += f"{draw(st.integers(0, 28)):02d}"
            return date if column.kind is Kind.DATE else f"{date} {_moment(draw, digits)}"
        case Kind.TIMESTAMP:
            day = f"{draw(st.integers(1971, 2037)):04d}-{draw(st.integers(1, 12)):02d}-"
            return f"{day}{draw(st.integers(1, 28)):02d} {_moment(draw, digits)}"
        case Kind.TIME:
            hours = draw(st.integers(0, 837))
            text = f"{hours:02d}:{draw(st.integers(0, 59)):02d}:{draw(st.integers(0, 59)):02d}"
            text += _fraction(draw, digits)
            return "-" + text if text.strip("0:.") and draw(st.booleans()) else text
        case Kind.YEAR:
            return draw(st.sampled_from([0, 1901, 2000, 2155]))
        case Kind.ENUM:
            return draw(st.integers(0, len(column.elems)))
        case Kind.SET:
            return draw(st.integers(0, (1 << len(column.elems)) - 1))
        case Kind.BIT:
            return draw(st.integers(0, (1 << column.flen) - 1) | st.just((1 << column.flen) - 1))
        case Kind.STRING:
            return draw(TEXTS)
        case Kind.BYTES:
            return draw(st.binary(max_size=30) | LENGTHS.map(bytes))
        case Kind.VECTOR:
            numbers = draw(st.lists(st.integers(-2000, 2000), max_size=4))
            return "[" + ",".join(f"{number / 2:g}" for number in numbers) + "]"
    value = draw(
        st.dictionaries(st.text(max_size=4), st.integers(-5, 2**40) | st.text(max_size=9), max_size=3)
    )
    return json.decode(json.encode(dumps(value)))


@st.composite
def any_rows(draw: st.DrawFn) -> list[RowChange]:
    """Inserts, updates and deletes of one table, some with checksums, all with a key."""
    table, rows = draw(any_table()), []
    for _ in range(draw(st.integers(1, 4))):
        images = [tuple(_cell(draw, column) for column in table.columns) for _ in range(2)]
        old, new = draw(st.sampled_from([(None, images[0]), (images[0], images[1]), (images[0], None)]))
        start = draw(st.integers(1, 2**62))
        sums = draw(st.none() | st.builds(RowChecksum, SUMS, SUMS, st.integers(0, 2), st.booleans()))
        row_key = draw(st.binary(min_size=19, max_size=40))
        rows.append(RowChange(table, start + 1, start, 7, 1, old, new, sums, row_key))
    return rows
