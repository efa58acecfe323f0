"""Rows for the contract of codecs: those a real TiDB wrote, and such as no table would have."""

from __future__ import annotations

import base64
import functools
from datetime import date
from json import dumps
from typing import Any

import numpy as np
import orjson
from hypothesis import strategies as st

from tests.codec import golden
from tidegate.codec.entry import Loss
from tidegate.codec.formats.json_text import json_float
from tidegate.codec.protocols.avro.schema import sanitized
from tidegate.model.message import Message, MessageBlock
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.model.timestamp import compose, physical_ms
from tidegate.tidb.table_info import PUBLIC, every_column, table_schema
from tidegate.tidb.types import json
from tidegate.tidb.types.float import fixed_text


def messages_of(block: MessageBlock) -> list[tuple[int, Message]]:
    """(partition, message) of a block."""
    data = block.data.tobytes()
    found = []
    for i in range(len(block)):
        start, length = int(block.key_start[i]), int(block.key_length[i])
        key = None if length < 0 else data[start : start + length]
        start, length = int(block.value_start[i]), int(block.value_length[i])
        value = None if length < 0 else data[start : start + length]
        found.append((int(block.partition[i]), Message(key, value, block.headers)))
    return found


@functools.cache
def golden_rows() -> list[list[RowChange]]:
    """All golden rows that messages were recorded for, by table version."""
    groups: dict[int, list[RowChange]] = {}
    for record in golden.lines("messages/open_default"):
        if record["kind"] == "row":
            row = golden.case(record["case"]).row(record["seq"], part=record.get("part"))
            groups.setdefault(id(row.table), []).append(row)
    return list(groups.values())


TEXTS = st.one_of(
    st.text(max_size=40).map(str.encode),
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"plain text ", b"\x00", b"\x08\x0c", b'"', b"\\", b"<&>", b"\xe2\x80\xa8",
                              b"\xe2\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\x7f", b"\xc2\x85",
                              b"\xf4\x90\x80\x80"]),
             max_size=12).map(b"".join),
)  # fmt: skip


def _cell(draw: st.DrawFn, column: Column) -> Value:
    if column.nullable and draw(st.integers(0, 5)) == 0:
        return None
    match column.kind:
        case Kind.STRING | Kind.BYTES:
            return draw(TEXTS)
        case Kind.INT:
            return draw(st.integers(-(2**63), 2**63 - 1))
        case Kind.UINT:
            return draw(
                st.integers(0, 2**64 - 1) | st.sampled_from([127, 128, 32767, 32768, 2**31 - 1, 2**31, 2**63])
            )
        case Kind.DOUBLE:
            return draw(
                st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1e-6, 1e-7, 1e21, -0.0])
            )
        case Kind.FLOAT:
            return draw(st.floats(width=32, allow_nan=False, allow_infinity=False))
        case Kind.JSON:
            value = draw(st.recursive(
                st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
                lambda inner: (
                    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
                ),
                max_leaves=6,
            ))  # fmt: skip
            return json.decode(json.encode(dumps(value)))
    raise AssertionError(column.kind)


@functools.cache
def strange_table() -> TableSchema:
    """One column of every kind whose text is not simply digits, with names that need escapes."""
    kinds = [
        ("id", 8, 3, "binary"), ('q"<', 15, 0, "utf8mb4"), ("Ä", 252, 0, "utf8mb4"),
        ("bin", 15, 128, "binary"),
        ("blob", 252, 128, "binary"), ("j", 245, 128, "binary"), ("f", 4, 0, "binary"), ("d", 5, 0, "binary"),
        ("ut", 1, 32, "binary"), ("us", 2, 32, "binary"), ("ui", 3, 32, "binary"), ("ub", 8, 32, "binary"),
    ]  # fmt: skip
    cols = [
        {"id": i + 1, "name": {"O": name}, "offset": i, "state": 5,
         "type": {"Tp": code, "Flag": flag, "Flen": 20, "Decimal": 0, "Charset": charset, "Elems": None}}
        for i, (name, code, flag, charset) in enumerate(kinds)
    ]  # fmt: skip
    return table_schema("s&", {"id": 1, "name": {"O": "t\u2028"}, "pk_is_handle": True, "cols": cols}, 1)


@st.composite
def strange_rows(draw: st.DrawFn) -> list[RowChange]:
    """A few rows of `strange_table`: inserts, updates that leave some columns as they were, deletes."""
    table, rows = strange_table(), []
    for _ in range(draw(st.integers(1, 5))):
        images = [tuple(_cell(draw, column) for column in table.columns) for _ in range(2)]
        if draw(st.booleans()):
            images[1] = tuple(a if draw(st.booleans()) else b for a, b in zip(*images, strict=True))
        old, new = draw(st.sampled_from([(None, images[0]), (images[0], images[1]), (images[0], None)]))
        numbers = draw(st.integers(1, 2**63)), draw(st.integers(1, 2**63)), 1, draw(st.integers(-5, 2**62))
        rows.append(RowChange(table, *numbers, old, new, row_key=draw(st.binary(max_size=90))))
    return rows


def expected_of(losses: frozenset[Loss], row: RowChange) -> dict[str, Any]:
    """Return a row after its protocol's losses, as `describe` shows it."""
    table, old = row.table, row.old
    kind = "delete" if row.is_delete else "insert" if row.is_insert else "update"
    if kind == "update" and (Loss.OLD_IMAGE in losses or (Loss.IDLE_UPDATE in losses and row.old == row.new)):
        kind, old = "insert", None
    partition = row.physical_id if table.partitions and Loss.PARTITION not in losses else None
    named = sanitized if Loss.NAMES in losses else str
    shown: dict[str, Any] = {"kind": kind, "schema": named(table.schema), "table": named(table.table)}
    shown |= {"physical_id": partition, "commit_ts": row.commit_ts}
    if Loss.LOGICAL_TS in losses:
        shown["commit_ts"] = compose(physical_ms(row.commit_ts))
    if Loss.SECONDS in losses:
        shown["commit_ts"] = compose(physical_ms(row.commit_ts) // 1000 * 1000)
    if Loss.COMMIT_TS in losses or (Loss.DELETED_TS in losses and kind == "delete"):
        shown["commit_ts"] = 0
    only_key = kind == "delete" and Loss.DELETED_CELLS in losses and table.handle_key
    columns = [i for i in range(len(table.columns)) if not only_key or i in table.handle_key]
    for side, image in (("new", row.new), ("old", old)):
        found = None if image is None else _image(losses, table, image, columns)
        shown[side] = None if found is None else {named(name): cell for name, cell in found.items()}
    if Loss.VIRTUAL in losses:
        absent = {named(column.name): None for column in virtual_columns(table)}
        for side in ("new", "old") if kind != "delete" or Loss.DELETED_CELLS not in losses else ():
            if shown[side] is not None:
                shown[side] |= absent
    if Loss.UNTYPED in losses:
        _take_types(shown, [column for i, column in enumerate(table.columns) if i in columns])
    return shown


def virtual_columns(table: TableSchema) -> list[Column]:
    """Those that messages of some may have, and rows have not."""
    every = [one for one in every_column(table.info, table.version) if one.state == PUBLIC]
    return [one for one in every if one.generated and not one.stored and one.nullable]


def _take_types(shown: dict[str, Any], columns: list[Column]) -> None:
    """A column of floats is what its numbers in the row look like: whole ones are integers."""
    for column in columns:
        images = [image for side in ("new", "old") if (image := shown[side]) is not None]
        if column.kind in (Kind.FLOAT, Kind.DOUBLE):
            found = [image[column.name] for image in images if image[column.name] is not None]
            mixed = min(found, default=0) < 0 and max(found, default=0) >= 1 << 63
            if mixed or any(isinstance(cell, float) for cell in found):
                for image in images:
                    cell = image[column.name]
                    image[column.name] = None if cell is None else float(cell)


def _image(
    losses: frozenset[Loss], table: TableSchema, image: tuple[Value, ...], columns: list[int]
) -> dict[str, Any]:
    return {table.columns[i].name: _as_decoded(losses, table.columns[i], image[i]) for i in columns}


def _as_decoded(losses: frozenset[Loss], column: Column, cell: Value) -> Any:
    if Loss.DEFAULT in losses and cell is None:
        cell = _default(column)
    if cell is None:
        return None
    if Loss.CALENDAR in losses and column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        cell = _on_calendar(column, str(cell))
    if Loss.FRACTION in losses and column.kind in (Kind.DATETIME, Kind.TIME) and cell is not None:
        cell = _with_fraction(column, str(cell))
    if Loss.DECIMAL in losses and column.kind is Kind.DECIMAL:
        double = float(str(cell)) + 0.0
        return double if Loss.TYPES in losses else fixed_text(double, single=False)
    if Loss.ELEMENT in losses and column.kind in (Kind.ENUM, Kind.SET):
        cell = _element(column, int(cell or 0))
    if Loss.UNTYPED in losses:
        if isinstance(cell, float):
            return orjson.loads(json_float(cell, column.kind is Kind.FLOAT))
        if isinstance(cell, bytes) and column.kind is Kind.BYTES:
            return base64.b64encode(cell).decode()
    if Loss.TYPES in losses:
        if column.kind is Kind.UINT and int(cell or 0) >= 1 << 63:
            return int(cell or 0) - (1 << 64)
        if isinstance(cell, bytes) and column.kind is Kind.BYTES:
            return base64.b64encode(cell).decode()
        if column.kind is Kind.FLOAT and column.decimal != -1 and isinstance(cell, float):
            return float(str(np.float32(cell)))
    if isinstance(cell, bytes) and column.kind is Kind.STRING:
        return cell.decode(errors="replace")
    if isinstance(cell, float) and column.kind is Kind.FLOAT:
        return float(np.float32(cell))
    return cell


def _default(column: Column) -> Value:
    """The value that represents NULL."""
    default = column.default
    if default is None:
        return None
    if column.kind is Kind.BIT:
        return int.from_bytes(default, "big")
    if column.kind is Kind.STRING or column.kind is Kind.BYTES:
        return default if isinstance(default, bytes) else str(default).encode()
    text = str(default)
    match column.kind:
        case Kind.INT | Kind.UINT | Kind.YEAR:
            return int(text)
        case Kind.FLOAT | Kind.DOUBLE:
            return float(text)
        case Kind.ENUM:
            return column.elems.index(text) + 1
        case Kind.SET:
            return sum(1 << column.elems.index(name) for name in text.split(",")) if text else 0
    if text.upper() == "CURRENT_TIMESTAMP":
        return None if column.kind is Kind.TIMESTAMP else "1970-01-01 00:00:00"
    return text


def _on_calendar(column: Column, text: str) -> str | None:
    """A moment as a calendar has it."""
    year = int(text[:4])
    try:
        date.fromisoformat(f"{year or 4:04d}{text[4:10]}")
    except ValueError:
        if column.kind is Kind.TIMESTAMP:
            return "1970-01-01 00:00:00"
        none = "1970-01-01" if column.kind is Kind.DATE else "1970-01-01 00:00:00"
        return None if column.nullable else none
    if column.kind is not Kind.TIMESTAMP and year < 100:
        return f"{year + (2000 if year < 70 else 1900):04d}{text[4:]}"
    return text


def _with_fraction(column: Column, text: str) -> str:
    """A fraction of all the unit's digits, or none."""
    whole, _, fraction = text.partition(".")
    digits = 3 if column.kind is Kind.DATETIME and column.decimal <= 3 else 6
    return f"{whole}.{fraction.ljust(digits, '0')}" if fraction.strip("0") else whole


def _element(column: Column, number: int) -> int:
    """An enum's or set's number by its elements' names."""
    if column.kind is Kind.ENUM:
        name = column.elems[number - 1] if 1 <= number <= len(column.elems) else ""
        return column.elems.index(name) + 1 if name in column.elems else 0
    if number >> len(column.elems):
        return 0
    return number if number == 0 or any(number >> i & 1 and n for i, n in enumerate(column.elems)) else 0
