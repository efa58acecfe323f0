"""Makes a `TableSchema` from TableInfo, the schema JSON that TiDB stores under the meta prefix.

Chooses the handle key as TiCDC does and computes TiCDC's column flags: docs/formats/columns.md. Source:
TiDB `pkg/meta/model/table.go`, TiCDC `cdc/model/schema_storage.go`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import orjson

from tidegate.errors import Undecodable
from tidegate.model.schema import Column, Index, Kind, TableSchema
from tidegate.model.timestamp import readable
from tidegate.tidb import definition_limits as limits

PUBLIC: Final = 5

NOT_NULL, PRI_KEY, UNIQUE_KEY, MULTIPLE_KEY, UNSIGNED = 1, 2, 4, 8, 32

BINARY_FLAG, HANDLE_FLAG, GENERATED_FLAG, PRIMARY_FLAG = 1, 2, 4, 8
UNIQUE_FLAG, MULTIPLE_FLAG, NULLABLE_FLAG, UNSIGNED_FLAG = 16, 32, 64, 128

_KINDS: Final = {
    4: Kind.FLOAT,
    5: Kind.DOUBLE,
    7: Kind.TIMESTAMP,
    10: Kind.DATE,
    11: Kind.TIME,
    12: Kind.DATETIME,
    13: Kind.YEAR,
    14: Kind.DATE,
    16: Kind.BIT,
    225: Kind.VECTOR,
    245: Kind.JSON,
    246: Kind.DECIMAL,
    247: Kind.ENUM,
    248: Kind.SET,
}
_INTEGERS: Final = frozenset({1, 2, 3, 8, 9})
_STRINGS: Final = frozenset({15, 249, 250, 251, 252, 253, 254})


def parse(data: bytes, where: str = "") -> dict[str, Any]:
    """Parse a TableInfo from its JSON. Undecodable if it is not valid."""
    try:
        info = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Undecodable("a table definition is not JSON", where=where, why=str(error)) from None
    if not isinstance(info, dict) or not isinstance(info.get("id"), int):
        raise Undecodable("a table definition lacks its id", where=where)
    return info


def is_base_table(info: dict[str, Any]) -> bool:
    """Whether the table has rows, because it is neither a view nor a sequence."""
    return not info.get("view") and not info.get("sequence")


def physical_ids(info: dict[str, Any]) -> tuple[int, ...]:
    """The table ids in its record keys: those of its partitions, or its own."""
    return _partitions(info) or (int(info["id"]),)


def has_handle_key(info: dict[str, Any]) -> bool:
    """Whether `table_schema(...)` would have a handle key, at a twentieth of the cost."""
    columns = {column["offset"]: column for column in info.get("cols") or []}
    if info.get("pk_is_handle"):
        return any(c["type"]["Flag"] & PRI_KEY and _emitted(c) for c in columns.values())
    indexes = [i for i in info.get("index_info") or [] if i["state"] == PUBLIC and i["is_unique"]]
    for index in indexes:
        if index["is_primary"]:
            return any(_emitted(columns[part["offset"]]) for part in index["idx_cols"])
    return any(all(_key_part(columns[part["offset"]]) for part in index["idx_cols"]) for index in indexes)


def _emitted(column: dict[str, Any]) -> bool:
    virtual = column.get("generated_expr_string") and not column.get("generated_stored")
    return column["state"] == PUBLIC and not virtual


def _key_part(column: dict[str, Any]) -> bool:
    return bool(column["type"]["Flag"] & NOT_NULL) and _emitted(column)


def name_of(info: dict[str, Any]) -> str:
    """The table's name in its original case."""
    return str(info["name"]["O"])


def every_column(info: dict[str, Any], version: int) -> tuple[Column, ...]:
    """All columns, including virtual ones and those that a DDL is still adding or dropping."""
    return tuple(_column(entry, version) for entry in info.get("cols") or [])


def every_index(info: dict[str, Any]) -> tuple[Index, ...]:
    """All indexes, including those that a DDL is still adding or dropping."""
    return tuple(_index(entry) for entry in info.get("index_info") or [])


def table_schema(schema_name: str, info: dict[str, Any], version: int) -> TableSchema:
    """The schema of a table version that is valid from `version` (a commit ts) on."""
    try:
        return _table_schema(schema_name, info, version)
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        binascii.Error,
    ) as error:
        raise Undecodable(
            "a table definition is not as TiDB writes it",
            where=f"{schema_name}, table id {info.get('id')}",
            why=f"{type(error).__name__}: {error}",
        ) from None


def _table_schema(schema_name: str, info: dict[str, Any], version: int) -> TableSchema:
    stored = [_column(entry, version) for entry in info.get("cols") or []]
    limits.check_table(name_of(info), (info["id"], *_partitions(info)))
    limits.check_columns(stored)
    columns = tuple(column for column in stored if column.visible)
    # Indexes name offsets among all columns, also those that a DDL is still adding; rows have the visible
    # ones only.
    position = {column.offset: at for at, column in enumerate(columns)}
    indexes = tuple(_index(entry) for entry in info.get("index_info") or [] if entry["state"] == PUBLIC)
    limits.check_indexes(indexes, len(stored))
    primary = _primary_offsets(info, stored, indexes)
    handle = _handle_offsets(primary, stored, indexes)
    in_key = _key_offsets(info, stored, indexes)
    limits.check_key(in_key)
    return TableSchema(
        schema=schema_name,
        table=name_of(info),
        id=info["id"],
        version=version,
        columns=columns,
        ticdc_flags=tuple(_flags(column, handle, indexes) for column in columns),
        handle_key=tuple(position[offset] for offset in handle if offset in position),
        primary_key=tuple(position[offset] for offset in primary if offset in position),
        indexes=indexes,
        pk_is_handle=bool(info.get("pk_is_handle")),
        is_common_handle=bool(info.get("is_common_handle")),
        handle_columns=tuple(position[offset] for offset in in_key),
        partitions=_partitions(info),
        charset=info.get("charset") or "",
        collate=info.get("collate") or "",
        info=info,
    )


def _column(entry: dict[str, Any], version: int) -> Column:
    field = entry["type"]
    return Column(
        id=entry["id"],
        name=entry["name"]["O"],
        offset=entry["offset"],
        kind=_kind(field),
        mysql_type=field["Tp"],
        flag=field["Flag"],
        flen=field["Flen"],
        decimal=field["Decimal"],
        charset=field.get("Charset") or "",
        collate=field.get("Collate") or "",
        elems=elements(field),
        default=default_of(entry, "default"),
        default_is_expr=bool(entry.get("default_is_expr")),
        origin_default=_origin_default(entry, version),
        generated=entry.get("generated_expr_string") or "",
        stored=bool(entry.get("generated_stored")),
        hidden=bool(entry.get("hidden")),
        state=entry["state"],
        version=entry.get("version") or 0,
    )


def _kind(field: dict[str, Any]) -> Kind:
    code = field["Tp"]
    if code in _INTEGERS:
        return Kind.UINT if field["Flag"] & UNSIGNED else Kind.INT
    # TEXT and BLOB share their type codes, as CHAR and BINARY do. Only the charset tells them apart.
    if code in _STRINGS:
        return Kind.BYTES if field.get("Charset") == "binary" else Kind.STRING
    if code not in _KINDS:
        raise ValueError(f"column type {code} is not one that TiDB stores")
    return _KINDS[code]


def elements(field: dict[str, Any]) -> tuple[str, ...]:
    """The elements of an enum or set; elements written as binary literals are stored in base64."""
    names = field.get("Elems") or []
    binary = field.get("ElemsIsBinaryLit") or []
    flags = [*binary, *[False] * (len(names) - len(binary))]
    return tuple(
        base64.b64decode(name).decode(errors="replace") if is_binary else name
        for name, is_binary in zip(names, flags, strict=False)
    )


def default_of(entry: dict[str, Any], name: str) -> Any:
    """A default: text, or bytes if JSON cannot hold it (`..._bit`, in base64)."""
    bits = entry.get(f"{name}_bit")
    return base64.b64decode(bits) if bits is not None else entry.get(name)


def _origin_default(entry: dict[str, Any], version: int) -> Any:
    """The value of an added column in rows that are older than it.

    TiDB stores `CURRENT_DATE` as it is, and for such rows shows the day on which they are read. Here it is
    the day on which the table version began, in UTC, so that all readers of the version get the same value.
    """
    default = default_of(entry, "origin_default")
    if isinstance(default, str) and default.upper() == "CURRENT_DATE" and _kind(entry["type"]) is Kind.DATE:
        return readable(version)[:10]
    return default


def _index(entry: dict[str, Any]) -> Index:
    return Index(
        id=entry["id"],
        name=entry["idx_name"]["O"],
        columns=tuple(column["offset"] for column in entry["idx_cols"]),
        lengths=tuple(column["length"] for column in entry["idx_cols"]),
        unique=bool(entry["is_unique"]),
        primary=bool(entry["is_primary"]),
    )


def _primary_offsets(
    info: dict[str, Any], columns: list[Column], indexes: tuple[Index, ...]
) -> tuple[int, ...]:
    if info.get("pk_is_handle"):
        return tuple(column.offset for column in columns if column.flag & PRI_KEY)
    for index in indexes:
        if index.primary:
            return index.columns
    return ()


def _handle_offsets(
    primary: tuple[int, ...], columns: list[Column], indexes: tuple[Index, ...]
) -> tuple[int, ...]:
    """The primary key; otherwise the not-null unique index with the fewest columns, then with the lowest id.

    See docs/formats/columns.md#handle-key.
    """
    if primary:
        return primary
    by_offset = {column.offset: column for column in columns}
    # NULL may occur any number of times in a unique key, so a key that allows it identifies no row.
    candidates = [
        index
        for index in indexes
        if index.unique
        and not index.primary
        and all(not by_offset[offset].nullable and by_offset[offset].visible for offset in index.columns)
    ]
    best = min(candidates, key=lambda index: (len(index.columns), index.id), default=None)
    return best.columns if best else ()


def _key_offsets(info: dict[str, Any], columns: list[Column], indexes: tuple[Index, ...]) -> tuple[int, ...]:
    """The columns whose values are in the record key, in key order; none if rows are keyed by _tidb_rowid."""
    if info.get("pk_is_handle") or info.get("is_common_handle"):
        return _primary_offsets(info, columns, indexes)
    return ()


def _flags(column: Column, handle: tuple[int, ...], indexes: tuple[Index, ...]) -> int:
    """TiCDC's flags (docs/formats/columns.md#flags). Each column of an index has them, not only the first."""
    mine = [index for index in indexes if column.offset in index.columns]
    bits = {
        BINARY_FLAG: column.charset == "binary",
        HANDLE_FLAG: column.offset in handle,
        GENERATED_FLAG: column.generated != "",
        PRIMARY_FLAG: column.flag & PRI_KEY or any(index.primary for index in mine),
        UNIQUE_FLAG: column.flag & UNIQUE_KEY or any(index.unique and not index.primary for index in mine),
        MULTIPLE_FLAG: column.flag & MULTIPLE_KEY or any(len(index.columns) > 1 for index in mine),
        NULLABLE_FLAG: column.nullable,
        UNSIGNED_FLAG: column.unsigned,
    }
    return sum(bit for bit, is_set in bits.items() if is_set)


def _partitions(info: dict[str, Any]) -> tuple[int, ...]:
    partition = info.get("partition")
    if not partition or not partition.get("enable"):
        return ()
    return tuple(definition["id"] for definition in partition.get("definitions") or [])
