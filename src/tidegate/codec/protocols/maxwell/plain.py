"""Maxwell as TiCDC's classic encoder writes it (tiflow pkg/sink/codec/maxwell), message by message.

    key     00 00 00 00 00 00 00 01                                  rows
            {"ts":TSO,"scm":"SCHEMA","tbl":"TABLE","t":2}            a DDL
    value   {"database":..,"table":..,"type":"insert","ts":SECONDS,"data":{..}}{..}{..}
            {"type":"table-alter","database":..,"table":..,"old":{..},"def":{..},"ts":TSO,"sql":".."}

The rows of a message follow each other directly. `old` of an update has only the columns that changed; if it
is missing, nothing changed. A delete has its row in `old`. No member contains a type: the type of a column is
derived from its values in a single row, so it may differ from row to row. There are no watermarks. All
messages are decoded here, because there is no compiled decoder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from tidegate.codec.base import Batch, CodecOptions, DdlMessage, Decoded, WireColumn
from tidegate.codec.decoding.assemble import (
    DecodeError,
    RowKey,
    Rows,
    decode_plainly,
    integer,
    json_object,
    member,
)
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.timestamp import compose


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxwellOptions(CodecOptions):
    """Maxwell has no options of its own."""

    protocol: ClassVar[str] = "maxwell"


ROWS: Final = (1).to_bytes(8, "big")
"""The key of a message with rows: the version of the batch."""
DDL_TYPE: Final = 2
_ACTIONS: Final = {"table-create": 3, "table-drop": 4, "database-create": 1, "database-drop": 2}
"""TiDB's action codes of the words that mean exactly one kind of DDL."""
_OPERATIONS: Final = {"insert": INSERT, "update": UPDATE, "delete": DELETE}
_NULL, _DOUBLE, _BIGINT, _VARCHAR = 6, 5, 8, 15
_MAX_SECONDS: Final = (1 << 46) // 1000
_SEAMS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\Z)|(\}\{)', re.DOTALL)
"""Matches strings, which are skipped, and the boundaries between objects. A string without an end matches up
to the end of the value, so that no byte is scanned twice."""


class MaxwellDecoder:
    """Decodes messages one by one."""

    def decode(self, batch: Batch) -> Decoded:
        """Rows and DDL; a message that is not valid becomes one BadMessage, with all its rows."""
        return decode_plainly(batch, _message)


def _message(
    key: bytes | None, value: bytes | None, header: bytes | None, offset: int, decoded: Decoded
) -> Rows:
    if value is None:
        raise DecodeError("maxwell messages have a value")
    if key == ROWS:
        return [_row(json_object(text, "row"), offset, seq) for seq, text in enumerate(objects(value))]
    if key is None or key[:1] != b"{":
        raise DecodeError("the key is neither a batch of version 1 nor a JSON object")
    if integer(json_object(key, "key"), "t") != DDL_TYPE:
        raise DecodeError("the key is that of no DDL")
    decoded.ddls.append(_ddl(json_object(value, "value"), header, offset))
    return []


def objects(value: bytes) -> Iterator[bytes]:
    """The JSON objects that follow each other without a separator."""
    start = 0
    for seam in _SEAMS.finditer(value):
        if seam.group(1):
            yield value[start : seam.start() + 1]
            start = seam.start() + 1
    yield value[start:]


def _ddl(body: dict[str, Any], header: bytes | None, offset: int) -> DdlMessage:
    kind, schema, table = (member(body, name, str, "") for name in ("type", "database", "table"))
    query, ts = member(body, "sql", str), integer(body, "ts")
    return DdlMessage(ts, query, _ACTIONS.get(kind), schema, table, header, offset)


def _row(body: dict[str, Any], offset: int, seq: int) -> tuple[RowKey, tuple[Any, ...]]:
    kind, seconds = member(body, "type", str), integer(body, "ts")
    if kind not in _OPERATIONS:
        raise DecodeError(f"unknown type {kind[:100]!r}")
    if seconds >= _MAX_SECONDS:
        raise DecodeError("member 'ts' is out of range")
    op, data, old = _OPERATIONS[kind], member(body, "data", dict, {}), member(body, "old", dict, {})
    image = old if op == DELETE else data
    if not image:
        raise DecodeError(f"{kind} without its image")
    if op != UPDATE and data and old:
        raise DecodeError(f"{kind} with two images")
    if not old.keys() <= image.keys():
        raise DecodeError("the before image has columns that the after image has not")
    columns = tuple(_wire_column(name, image, old) for name in image)
    cells = [_cell(column, image) for column in columns]
    # Columns that the before image leaves out did not change.
    former = [_cell(column, old) if column.name in old else cells[i] for i, column in enumerate(columns)]
    images = (None, cells) if op == DELETE else (cells, former if op == UPDATE else None)
    row_key = RowKey(member(body, "database", str), member(body, "table", str), None, columns)
    # A row has whole seconds only. Changes within one second are ordered by their offsets alone.
    return row_key, (op, compose(1000 * seconds), offset, seq, *images)


def _wire_column(name: str, *images: Mapping[str, Any]) -> WireColumn:
    """The type of a column, derived from its values in one row."""
    values = [image[name] for image in images if image.get(name) is not None]
    # `type` and not `isinstance`: a JSON boolean is an int in Python, and no column holds one.
    kinds = {type(value) for value in values}
    if not values:
        return WireColumn(name, pa.string(), _NULL, False)
    if kinds == {str}:
        return WireColumn(name, pa.string(), _VARCHAR, False)
    if not kinds <= {int, float}:
        found = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise DecodeError(f"column {name[:100]!r} holds {found}")
    low, high = min(values), max(values)
    # No 64-bit integer type contains both a negative number and one from 2**63 on.
    if float in kinds or (low < 0 and high >= 1 << 63):
        return WireColumn(name, pa.float64(), _DOUBLE, False)
    return WireColumn(name, pa.uint64() if high >= 1 << 63 else pa.int64(), _BIGINT, False)


def _cell(column: WireColumn, image: Mapping[str, Any]) -> Any:
    value = image[column.name]
    return float(value) if value is not None and column.mysql_type == _DOUBLE else value
