"""The definition of one table at the target: its columns and key. Pure.

The best source is TiDB's TableInfo (the DDL header `tidegate-ddl`). Without it, the definition is guessed
from the first rows, which carry type codes but neither precision nor the names of enum and set elements. What
was guessed is listed, and is corrected when a DDL with a header arrives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any, Final

import orjson
import pyarrow as pa

from tidegate.codec.base import WireColumn
from tidegate.consumer.table import partition_spec, soft_delete
from tidegate.consumer.table.convert import (
    DECIMAL,
    ENUM,
    MOMENTS,
    SET,
    Losses,
    TargetColumn,
    in_key,
    on_calendar,
    target_type,
    to_target,
)
from tidegate.consumer.table.modify import WIRE_TYPES
from tidegate.consumer.table.partition_spec import Spec
from tidegate.errors import Fatal, Undecodable
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind
from tidegate.tidb import table_info
from tidegate.tidb.value import missing, present

IGNORED: Final = "tidegate_ignored_changes"
"""Member of a TableInfo at the target: `left_out` and `gone`, names of columns (`schema_changes`)."""
ROWID: Final = "_tidegate_rowid"
"""Extra column of tables without a key: partition-offset-seq of the change that inserted the row."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One version of one target table."""

    schema: str
    table: str
    table_id: int
    """TiDB's logical table id; 0 when guessed."""
    version: int
    """FinishedTS of the DDL that made it, or the commit_ts of the first row from which it was guessed."""
    columns: tuple[TargetColumn, ...]
    keys: tuple[str, ...]
    """Names of the handle key's columns; empty: the table is a bag."""
    info: dict[str, Any] | None
    """TiDB's TableInfo; None when the definition was guessed, or read from the target."""
    guessed: tuple[str, ...] = ()
    """The parts that had to be guessed, in words."""
    uniques: tuple[tuple[str, ...], ...] = ()
    """For a table that was loaded before the consumer adopted it: the columns of each of its unique indexes.
    Its rows may be newer than the topic's."""
    generated: tuple[str, ...] = ()
    """Columns that the target computes itself; it gets no values for them."""
    soft_delete: str = ""
    """The column that says when a row was deleted (`soft_delete`); empty: deleted rows are removed."""
    ignored: frozenset[str] = frozenset()
    """Names of columns whose values are not taken from rows (`schema_changes`): the table does not have them,
    or has an older column of that name."""
    partition_by: Spec = ()
    """How the files of a lakehouse table are divided. The table's own metadata store it, not `to_json`."""

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns of the target table."""
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
        """16 hex digits of a hash over what matters at the target: names, types, order, key."""
        what = [self.schema, self.table, self.table_id, list(self.keys)]
        what += [[column.name, str(column.type), list(column.elems)] for column in self.columns]
        return hashlib.sha256(orjson.dumps(what)).hexdigest()[:16]

    def to_json(self) -> bytes:
        """The content of a file in `_tidegate/definitions`."""
        body: dict[str, Any] = {
            "format": 1,
            "schema": self.schema,
            "table": self.table,
            "version": self.version,
        }
        if self.uniques:
            body["uniques"] = self.uniques
        if self.generated:
            body["generated"] = self.generated
        if self.soft_delete:
            body["soft_delete"] = self.soft_delete
        if self.info is not None:
            return orjson.dumps(body | {"info": self.info})
        columns = [[c.name, c.mysql_type, str(c.type), c.name in self.keys] for c in self.columns]
        return orjson.dumps(body | {"info": None, "columns": columns, "guessed": list(self.guessed)})


def from_json(text: bytes) -> Definition:
    """Read back what `to_json` wrote."""
    body = orjson.loads(text)
    schema, version = body["schema"], body["version"]
    uniques = tuple(tuple(names) for names in body.get("uniques", ()))
    generated = tuple(body.get("generated", ()))
    if body["info"] is not None:
        made = from_info(schema, body["info"], version, table=body["table"])
        return replace(made, uniques=uniques, generated=generated)
    columns = tuple(
        TargetColumn(name, kind, _type_named(of_type)) for name, kind, of_type, _ in body["columns"]
    )
    keys = tuple(name for name, _, _, key in body["columns"] if key)
    guessed = tuple(body["guessed"])
    made = Definition(schema, body["table"], 0, version, columns, keys, None, guessed, uniques, generated)
    return replace(made, soft_delete=body.get("soft_delete", ""))


def from_info(schema: str, info: dict[str, Any], version: int, table: str = "") -> Definition:
    """The definition from TiDB's own TableInfo."""
    described = table_info.table_schema(schema, info, version)
    columns = tuple(
        in_key(target_column(column)) if at in described.handle_key else target_column(column)
        for at, column in enumerate(described.columns)
    )
    keys = tuple(described.columns[at].name for at in described.handle_key)
    made = Definition(schema, table or described.table, described.id, version, columns, keys, info)
    ignored = frozenset(name for names in info.get(IGNORED, {}).values() for name in names)
    spec = partition_spec.of_info(info, made.arrow_schema.names)
    return replace(made, soft_delete=info.get(soft_delete.MEMBER, ""), ignored=ignored, partition_by=spec)


def target_column(column: Column) -> TargetColumn:
    """One column from TiDB's description of it."""
    of_type = target_type(
        column.mysql_type,
        unsigned=column.unsigned,
        binary=column.kind is Kind.BYTES,
        flen=column.flen,
        decimal=column.decimal,
    )
    return TargetColumn(column.name, column.mysql_type, of_type, column.elems, column.id, column.collate)


def guess(schema: str, table: str, columns: Sequence[WireColumn], version: int) -> Definition:
    """The definition as far as messages alone show it; `guessed` lists what is not known."""
    made, unknown = [], []
    for wire in columns:
        column = TargetColumn(wire.name, wire.mysql_type, _guessed_type(wire))
        # docs/guarantees.md#a-row-of-the-source-is-one-row-at-the-target: text from the first row on, because
        # rows that are already written keep their form.
        made.append(in_key(column) if wire.key else column)
        if wire.mysql_type == DECIMAL:
            unknown.append(f"{wire.name}: precision of a decimal unknown, kept as text")
        if wire.mysql_type in (ENUM, SET):
            unknown.append(f"{wire.name}: names of the elements unknown, numbers kept as text")
    keys = tuple(wire.name for wire in columns if wire.key)
    if not keys:
        unknown.append("no key is known: rows are compared by their whole content")
    return Definition(schema, table, 0, version, tuple(made), keys, None, tuple(unknown))


def check_keys(known: Definition, names: Collection[str]) -> None:
    """Fatal when rows with these columns lack a column of the key that was read from the target.

    All their keys would be NULL, so that of several rows only the last one would be written.
    """
    lacking = [key for key in known.keys if key not in names]
    if known.info is None and lacking:
        raise Fatal(
            "a table at the target has a key that rows of the topic do not carry",
            where=f"table {known.name}, column {', '.join(lacking)}",
            why="the target or its loader has added the key, and without its values it is not known "
            "which rows are the same",
            fix="give a new target the table with the source's keys only (MySQL adds one if "
            "sql_generate_invisible_primary_key is ON), or leave the table out with a [filter] rule of a new "
            "changefeed",
        )


def grown(held: Definition, seen: Sequence[WireColumn], version: int) -> Definition | None:
    """A guessed definition extended by what further messages show; None when they show nothing new.

    A message may show fewer columns (a delete with the key alone), so no column is ever removed. A column
    whose type has changed gets a type that holds old and new values; Fatal when there is none.
    """
    columns = {column.name: column for column in held.columns}
    notes = list(held.guessed)
    # A known key stays: the rows at the target are found by it.
    keys = held.keys or tuple(wire.name for wire in seen if wire.key)
    seen = [replace(wire, key=wire.name in keys) for wire in seen]
    for column, wire in zip(guess(held.schema, held.table, seen, version).columns, seen, strict=True):
        known = columns.get(column.name)
        wider = column if known is None else _joined(held, known, column)
        if known is not None and wider != known:
            notes.append(f"{wire.name}: its type changed to {wider.type}, older rows keep their values")
        columns[column.name] = wider
    if tuple(columns.values()) == held.columns and keys == held.keys:
        return None
    made = tuple(columns.values())
    return replace(held, columns=made, keys=keys, version=version, guessed=tuple(dict.fromkeys(notes)))


def _joined(held: Definition, known: TargetColumn, seen: TargetColumn) -> TargetColumn:
    """One column that holds the values of both."""
    exact = any(one.mysql_type in MOMENTS and pa.types.is_string(one.type) for one in (known, seen))
    if exact and {known.mysql_type, seen.mysql_type} <= MOMENTS:
        return in_key(_joined(held, on_calendar(known), on_calendar(seen)))
    if (
        known.type == seen.type
        and not exact
        and (known.mysql_type == seen.mysql_type or not _numbered(known, seen))
    ):
        return known
    # A key's moment is stored in one form of text. Other texts differ from it, so a row would no longer be
    # found by its key.
    of_type = None if exact or _numbered(known, seen) else _wider(known.type, seen.type)
    if of_type is None:
        raise Fatal(
            "a column's type changed, and no type of the target holds the values of both",
            where=f"table {held.name}, column {known.name}: {known.type} before, {seen.type} now",
            why="the topic has no headers that describe the change",
            fix="read the topic of a changefeed of Tidegate, whose DDL messages have the header; or drop the "
            "table's rows at the target's start: a new target from a new changefeed",
        )
    # A string type holds any value, under a type code whose text is stored unchanged.
    code = _VARCHAR if pa.types.is_string(of_type) else seen.mysql_type
    return known if of_type == known.type else replace(seen, type=of_type, mysql_type=code)


def _numbered(known: TargetColumn, seen: TargetColumn) -> bool:
    """Whether exactly one side has numbers in place of unknown names (enum, set)."""
    return known.mysql_type != seen.mysql_type and bool({known.mysql_type, seen.mysql_type} & {ENUM, SET})


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest of the target's types that holds the values of both; None when there is none."""
    for order in _WIDENING:
        if one in order and other in order:
            return order[max(order.index(one), order.index(other))]
    both = {one, other}
    if pa.timestamp("us", tz="UTC") in both or any(pa.types.is_list(each) for each in both):
        return None
    if pa.binary() in both:
        return pa.binary() if pa.string() in both else None
    return pa.string()


def _guessed_type(wire: WireColumn) -> pa.DataType:
    unsigned = pa.types.is_unsigned_integer(wire.type)
    binary = pa.types.is_binary(wire.type)
    # A message does not say how many bits a BIT has; 64 need a decimal.
    if wire.mysql_type == 16:
        return pa.decimal128(20, 0)
    return target_type(wire.mysql_type, unsigned=unsigned, binary=binary, flen=-1, decimal=-1)


_VARCHAR: Final = 15
_WIDENING: Final = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.decimal128(20, 0)),
    (pa.float32(), pa.float64()),
    (pa.date32(), pa.timestamp("us")),
)
"""Each type holds all values of those before it."""
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


def fill_value(column: Column, target: TargetColumn, losses: Losses) -> pa.Scalar:
    """The value of an added column in rows that are older than it, in the target's type.

    It is the column's origin default (TiDB resolved a `current_timestamp` to the job's start when it stored
    it), otherwise NULL, otherwise the type's zero (docs/formats/columns.md#columns-that-a-row-lacks).
    """
    value: Value = present(column, missing(column), UTC)
    wire_type = WIRE_TYPES.get(column.kind, pa.string())
    if column.kind in (Kind.STRING, Kind.BYTES) and isinstance(value, str):
        value = value.encode()
    wire = pa.array([value], wire_type)
    return to_target(wire, target, "UTC", losses)[0]
