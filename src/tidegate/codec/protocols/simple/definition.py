"""A table version in the form of simple's `tableSchema`: from TiDB's TableInfo, and back to columns of rows.

    {"schema":"d","table":"t","tableID":120,"version":4706...,
     "columns":[{"name":"v","dataType":{"mysqlType":"varchar","charset":"utf8mb4","collate":"utf8mb4_bin",
                 "length":20},"nullable":true,"default":null}],
     "indexes":[{"name":"primary","unique":true,"primary":true,"nullable":false,"columns":["id"]}]}

Columns are in the order of their ids, including virtual and hidden ones. `version` is the TableInfo's
`update_timestamp`: the start of the last DDL job on the table, not the ts from which the version is valid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.codec.base import WireColumn
from tidegate.codec.decoding.assemble import DecodeError, integer, member, wire_type
from tidegate.codec.formats.mysql_type import base_name, code_of
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_info import NOT_NULL, PRI_KEY, PUBLIC, UNSIGNED, default_of, elements, name_of

_ZEROFILL: Final = 64
_BIT: Final = 16
_WITHOUT_DECIMAL: Final = frozenset({4, 5})
TIMESTAMP: Final = 7
_UNSPECIFIED: Final = "unspecified"
"""The type of a view's columns, which TiDB does not store."""


# --- writing


def version_of(info: dict[str, Any], otherwise: int) -> int:
    """The version that rows and definitions contain; `otherwise` for a TableInfo that was never updated."""
    return int(info.get("update_timestamp") or otherwise)


def has_columns(info: dict[str, Any] | None) -> bool:
    """Whether the TableInfo has everything that a definition needs."""
    return info is not None and "cols" in info and "name" in info


def table_schema(schema: str, info: dict[str, Any], otherwise: int) -> dict[str, Any]:
    """The `tableSchema` of a TableInfo, with its members in TiCDC's order."""
    cols = info.get("cols") or []
    return {
        "schema": schema,
        "table": name_of(info),
        "tableID": info["id"],
        "version": version_of(info, otherwise),
        "columns": [_column(entry) for entry in sorted(cols, key=lambda entry: int(entry["id"]))],
        "indexes": list(_indexes(info, cols)),
    }


def _column(entry: dict[str, Any]) -> dict[str, Any]:
    of_type = entry["type"]
    code, charset, flag = of_type["Tp"], of_type.get("Charset") or "", of_type["Flag"]
    described = {
        "mysqlType": _UNSPECIFIED if code == 0 else base_name(code, charset),
        "charset": charset,
        "collate": of_type.get("Collate") or "",
        "length": of_type["Flen"],
        "decimal": 0 if code in _WITHOUT_DECIMAL else of_type["Decimal"],
        "elements": list(elements(of_type)),
        "unsigned": bool(flag & UNSIGNED),
        "zerofill": bool(flag & _ZEROFILL),
    }
    needed = ("mysqlType", "charset", "collate")
    return {
        "name": entry["name"]["O"],
        "dataType": {name: value for name, value in described.items() if value or name in needed},
        "nullable": not flag & NOT_NULL,
        "default": _default(entry, code),
    }


def _default(entry: dict[str, Any], code: int) -> str | int | None:
    """Text, or the number of a bit column's default. Bytes that are not text: as Go's JSON writes them."""
    value = default_of(entry, "default")
    if isinstance(value, bytes):
        return int.from_bytes(value, "big") if code == _BIT else value.decode(errors="replace")
    if value is None or isinstance(value, str):
        if code == _BIT and value is not None:
            return int.from_bytes(value.encode("latin-1", "replace"), "big")
        return value
    return str(value)


def _indexes(info: dict[str, Any], cols: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    by_offset = {entry["offset"]: entry for entry in cols}
    for index in info.get("index_info") or []:
        parts = [by_offset[part["offset"]] for part in index["idx_cols"]]
        yield {
            "name": index["idx_name"]["O"],
            "unique": bool(index["is_unique"]),
            "primary": bool(index["is_primary"]),
            "nullable": any(not part["type"]["Flag"] & NOT_NULL for part in parts),
            "columns": [part["name"]["O"] for part in parts],
        }
    names = _implicit_key(info, cols, by_offset)
    if names:
        yield {"name": "primary", "unique": True, "primary": True, "nullable": False, "columns": names}


def _implicit_key(
    info: dict[str, Any], cols: list[dict[str, Any]], by_offset: dict[int, dict[str, Any]]
) -> list[str]:
    """The columns of a primary key without an index of its own: an integer that is the handle.

    In a table without a primary key TiCDC uses the first unique index without NULL instead (TiDB
    `TableInfo.GetPrimaryKey`).
    """
    indexes = info.get("index_info") or []
    if any(index["is_primary"] for index in indexes):
        return []
    if info.get("pk_is_handle"):
        return [entry["name"]["O"] for entry in cols if entry["type"]["Flag"] & PRI_KEY]
    for index in indexes:
        parts = [by_offset[part["offset"]] for part in index["idx_cols"]]
        if index["is_unique"] and all(_never_null(part) for part in parts):
            return [part["name"]["O"] for part in parts]
    return []


def _never_null(entry: dict[str, Any]) -> bool:
    return bool(entry["type"]["Flag"] & NOT_NULL) and entry["state"] == PUBLIC and not entry.get("hidden")


def of_table(table: TableSchema) -> dict[str, Any]:
    """The `tableSchema` that readers need for the rows of a table version."""
    return table_schema(table.schema, table.info, table.version)


# --- reading


@dataclass(slots=True)
class Definition:
    """Everything that a decoder needs in order to read the rows of one table version."""

    schema: str
    table: str
    table_id: int
    """The logical table id. Rows of a partitioned table contain their partition's id."""
    version: int
    columns: dict[str, WireColumn]
    _subsets: dict[tuple[str, ...], tuple[WireColumn, ...]] = field(default_factory=dict, compare=False)

    def columns_of(self, image: dict[str, Any]) -> tuple[WireColumn, ...]:
        """The columns of a row image, in the definition's order. DecodeError if it lacks one of them."""
        names = tuple(sorted(image))
        found = self._subsets.get(names)
        if found is None:
            for name in names:
                if name not in self.columns:
                    raise DecodeError(f"{self.schema}.{self.table} has no column {name[:100]!r}")
            found = tuple(column for name, column in self.columns.items() if name in image)
            if len(self._subsets) >= _SUBSETS:
                self._subsets.clear()
            self._subsets[names] = found
        return found


_SUBSETS: Final = 64
"""The most sets of columns cached for one table version; its rows have one or two."""


def definition(body: dict[str, Any], zone: str) -> Definition:
    """Parse a message's `tableSchema`. DecodeError or ValueError if not valid. `zone`: of TIMESTAMP texts."""
    keys = _key_columns(member(body, "indexes", list, []))
    columns = {}
    for entry in member(body, "columns", list):
        if not isinstance(entry, dict):
            raise DecodeError("a column of a tableSchema is no object")
        column = _wire_column(entry, keys, zone)
        columns[column.name] = column
    names = member(body, "schema", str), member(body, "table", str)
    return Definition(*names, integer(body, "tableID"), integer(body, "version"), columns)


def _wire_column(entry: dict[str, Any], keys: frozenset[str], zone: str) -> WireColumn:
    name, described = member(entry, "name", str), member(entry, "dataType", dict)
    of_type = member(described, "mysqlType", str)
    if of_type == _UNSPECIFIED:
        return WireColumn(name, wire_type(0, False, False), 0, False, None, of_type)
    code, _, binary = code_of(of_type)
    unsigned = member(described, "unsigned", bool, False)
    binary = binary or member(described, "charset", str, "") == "binary"
    arrow = wire_type(code, unsigned, binary)
    return WireColumn(name, arrow, code, name in keys, None, of_type, zone if code == TIMESTAMP else "")


def _key_columns(indexes: list[Any]) -> frozenset[str]:
    """The primary key; otherwise, of the unique indexes without NULL, the first with the fewest columns."""
    best: tuple[bool, int] | None = None
    found: frozenset[str] = frozenset()
    for index in indexes:
        if not isinstance(index, dict):
            raise DecodeError("an index of a tableSchema is no object")
        names = member(index, "columns", list)
        if not all(isinstance(name, str) for name in names):
            raise DecodeError("the columns of an index are not names")
        primary = member(index, "primary", bool, False)
        sound = member(index, "unique", bool, False) and not member(index, "nullable", bool, True)
        rank = (not primary, len(names))
        if (primary or sound) and (best is None or rank < best):
            best, found = rank, frozenset(names)
    return found
