"""What one table looks like at the target. Pure.

Best known from TiDB's TableInfo (the DDL header `tidegate-ddl`); without it guessed from the first rows,
which carry type codes but neither precision nor the names of enum and set elements: what was guessed is
listed, and is put right when a header comes by.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

import orjson
import pyarrow as pa

from tidegate.codec.base import WireColumn
from tidegate.consumer.convert import (
    DECIMAL,
    ENUM,
    SET,
    Losses,
    TargetColumn,
    target_type,
    to_target,
)
from tidegate.errors import Undecodable
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind
from tidegate.tidb import table_info
from tidegate.tidb.value import missing, present

ROWID: Final = "_tidegate_rowid"
"""Further column of tables without a key: partition-offset-seq of the change that inserted the row."""
_WIRE_OF_KIND: Final = {
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


@dataclass(frozen=True, slots=True)
class Definition:
    """One version of one target table."""

    schema: str
    table: str
    table_id: int
    """TiDB's logical table id; 0 when guessed."""
    version: int
    """FinishedTS of the DDL that made it, or the commit_ts of the first row it was guessed from."""
    columns: tuple[TargetColumn, ...]
    keys: tuple[str, ...]
    """Names of the handle key's columns; empty: the table is a bag."""
    info: dict[str, Any] | None
    """TiDB's TableInfo; None: guessed."""
    guessed: tuple[str, ...] = ()
    """In words, what had to be guessed."""

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Delta table's columns."""
        fields = [pa.field(column.name, column.type) for column in self.columns]
        return pa.schema(fields if self.keys else [*fields, pa.field(ROWID, pa.string())])

    @property
    def name(self) -> str:
        """`schema.table`, for people."""
        return f"{self.schema}.{self.table}"

    def column(self, name: str) -> TargetColumn | None:
        """A column by name."""
        return next((column for column in self.columns if column.name == name), None)

    def fingerprint(self) -> str:
        """16 hex digits over what matters at the target: names, types, order, key."""
        what = [self.schema, self.table, self.table_id, list(self.keys)]
        what += [[column.name, str(column.type), list(column.elems)] for column in self.columns]
        return hashlib.sha256(orjson.dumps(what)).hexdigest()[:16]

    def to_json(self) -> bytes:
        """For `_tidegate/definitions`."""
        body: dict[str, Any] = {
            "format": 1,
            "schema": self.schema,
            "table": self.table,
            "version": self.version,
        }
        if self.info is not None:
            return orjson.dumps(body | {"info": self.info})
        columns = [[c.name, c.mysql_type, str(c.type), c.name in self.keys] for c in self.columns]
        return orjson.dumps(body | {"info": None, "columns": columns, "guessed": list(self.guessed)})


def from_json(text: bytes) -> Definition:
    """Read back what `to_json` wrote."""
    body = orjson.loads(text)
    schema, version = body["schema"], body["version"]
    if body["info"] is not None:
        return from_info(schema, body["info"], version, table=body["table"])
    columns = tuple(
        TargetColumn(name, kind, _type_named(of_type)) for name, kind, of_type, _ in body["columns"]
    )
    keys = tuple(name for name, _, _, key in body["columns"] if key)
    return Definition(schema, body["table"], 0, version, columns, keys, None, tuple(body["guessed"]))


def from_info(schema: str, info: dict[str, Any], version: int, table: str = "") -> Definition:
    """The definition by TiDB's own TableInfo."""
    described = table_info.table_schema(schema, info, version)
    columns = tuple(target_column(column) for column in described.columns)
    keys = tuple(described.columns[at].name for at in described.handle_key)
    return Definition(schema, table or described.table, described.id, version, columns, keys, info)


def target_column(column: Column) -> TargetColumn:
    """One column by TiDB's description."""
    of_type = target_type(
        column.mysql_type,
        unsigned=column.unsigned,
        binary=column.kind is Kind.BYTES,
        flen=column.flen,
        decimal=column.decimal,
    )
    return TargetColumn(column.name, column.mysql_type, of_type, column.elems, column.id, column.collate)


def guess(schema: str, table: str, columns: Sequence[WireColumn], version: int) -> Definition:
    """The best that messages alone tell; `guessed` says what was not known."""
    made, unknown = [], []
    for wire in columns:
        made.append(TargetColumn(wire.name, wire.mysql_type, _guessed_type(wire)))
        if wire.mysql_type == DECIMAL:
            unknown.append(f"{wire.name}: precision of a decimal unknown, kept as text")
        if wire.mysql_type in (ENUM, SET):
            unknown.append(f"{wire.name}: names of the elements unknown, numbers kept as text")
    keys = tuple(wire.name for wire in columns if wire.key)
    if not keys:
        unknown.append("no key is known: rows are compared by their whole content")
    return Definition(schema, table, 0, version, tuple(made), keys, None, tuple(unknown))


def _guessed_type(wire: WireColumn) -> pa.DataType:
    unsigned = pa.types.is_unsigned_integer(wire.type)
    binary = pa.types.is_binary(wire.type)
    if wire.mysql_type == 16:
        return pa.decimal128(20, 0)
    return target_type(wire.mysql_type, unsigned=unsigned, binary=binary, flen=-1, decimal=-1)


_GUESSABLE: Final = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()),
    *(
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
        pa.decimal128(20, 0),
        pa.list_(pa.float32()),
    ),
)


def _type_named(text: str) -> pa.DataType:
    for of_type in _GUESSABLE:
        if str(of_type) == text:
            return of_type
    raise Undecodable("a stored definition names a type this release does not know", where=text)


def fill_value(column: Column, losses: Losses) -> pa.Scalar:
    """What rows older than an added column hold in it, in the target's type.

    It is the column's origin default (TiDB resolved a `current_timestamp` to the job's start when it
    stored it), else NULL, else the type's zero (facts 0.4).
    """
    value: Value = present(column, missing(column), UTC)
    wire_type = _WIRE_OF_KIND.get(column.kind, pa.string())
    if column.kind in (Kind.STRING, Kind.BYTES) and isinstance(value, str):
        value = value.encode()
    wire = pa.array([value], wire_type)
    return to_target(wire, target_column(column), "UTC", losses)[0]
