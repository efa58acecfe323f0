"""TiDB's tables at one timestamp: definitions from the meta keys, and decoded rows.

Used by `upstream dump`, by comparisons of source and target, and by tests. The capture uses other code
(schema store, kernels), so a comparison does not check the capture against itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, tzinfo
from typing import Any, Final

import orjson

from tidegate.errors import Undecodable
from tidegate.kvclient.snapshot import Snapshot
from tidegate.model.row import Value
from tidegate.model.schema import Kind, TableSchema
from tidegate.tidb import keys, record, table_info
from tidegate.tidb.types import enum
from tidegate.tidb.types import float as floats

SYSTEM_SCHEMAS: Final = frozenset(
    {"mysql", "sys", "information_schema", "performance_schema", "metrics_schema"}
)
SCAN_PAGE_ROWS: Final = 4096

Cell = str | bytes | None
"""A value as MySQL's text protocol sends it; bytes for binary and bit columns; None for NULL."""


def read_tables(snapshot: Snapshot, *, system: bool = False) -> list[TableSchema]:
    """The base tables at the snapshot's ts, by schema and name; views and sequences have no rows."""
    return tables_from_meta(snapshot.scan(keys.catalogue_span()), snapshot.ts, system=system)


def tables_from_meta(
    pairs: Iterable[tuple[bytes, bytes]], ts: int, *, system: bool = False
) -> list[TableSchema]:
    """The base tables that the pairs under `m` describe. Undecodable names the unreadable key."""
    schemas: dict[int, str] = {}
    infos: list[tuple[int, dict[str, Any]]] = []
    for key, value in pairs:
        meta = keys.parse_meta(key)
        if meta.field is None:
            continue
        if meta.name == b"DBs" and meta.field.startswith(b"DB:"):
            schemas[int(meta.field[3:])] = _schema_name(value)
        elif meta.name.startswith(b"DB:") and meta.field.startswith(b"Table:"):
            infos.append((int(meta.name[3:]), table_info.parse(value, where=f"meta key {key.hex()}")))
    # After the loop: `DB:` sorts before `DBs`, so the tables came before the names of their schemas.
    tables = [
        table_info.table_schema(schemas[schema_id], info, ts)
        for schema_id, info in infos
        if schema_id in schemas and table_info.is_base_table(info)
    ]
    wanted = [t for t in tables if system or t.schema.lower() not in SYSTEM_SCHEMAS]
    return sorted(wanted, key=lambda t: (t.schema, t.table))


def read_rows(snapshot: Snapshot, table: TableSchema, time_zone: tzinfo = UTC) -> Iterator[tuple[Value, ...]]:
    """The table's rows in key order (partition by partition), aligned with `table.columns`."""
    for physical_id in table.physical_ids:
        for key, value in snapshot.scan(keys.record_span(physical_id), page_rows=SCAN_PAGE_ROWS):
            yield record.decode(table, keys.parse_record(key), value, time_zone)


def sql_row(table: TableSchema, values: tuple[Value, ...]) -> tuple[Cell, ...]:
    """A row as in the snapshot lines of change logs: TiDB's text protocol, with floats in Go's `%g`.

    Virtual columns are missing, because they are not stored.
    """
    return tuple(
        None if value is None else _sql_text(column.kind, column.flen, column.elems, value)
        for column, value in zip(table.columns, values, strict=True)
    )


def _sql_text(kind: Kind, flen: int, elems: tuple[str, ...], value: Value) -> str | bytes:
    match kind, value:
        case Kind.ENUM, int(index):
            return enum.enum_name(index, elems)
        case Kind.SET, int(mask):
            return enum.set_names(mask, elems)
        case Kind.BIT, int(bits):
            return bits.to_bytes((flen + 7) // 8, "big")
        case Kind.FLOAT | Kind.DOUBLE, float(number):
            return _float_text(number, single=kind is Kind.FLOAT)
        case Kind.BYTES, bytes(data):
            return data
        case _, bytes(data):
            return _text_or_bytes(data)
        case _:
            return str(value)


def _float_text(number: float, *, single: bool) -> str:
    """A float in the format of recorded snapshots: TiDB's text, parsed by the recording client, in Go's `%g`.

    TiDB sends a FLOAT beyond 1e15 (or below 1e-15) with six digits; `%g` has exponents outside [1e-4, 1e6).
    """
    if number and single and not 1e-15 < abs(number) < 1e15:
        number, single = float(f"{number:.5e}"), False
    if number and not 1e-4 <= abs(number) < 1e6:
        mantissa, _, exponent = floats.exponent_text(number, single=single).partition("e")
        return f"{mantissa}e{int(exponent):+03d}"
    return floats.fixed_text(number, single=single)


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _schema_name(value: bytes) -> str:
    try:
        return str(orjson.loads(value)["db_name"]["O"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise Undecodable(
            "a schema definition cannot be read", where=value[:64].hex(), why=str(error)
        ) from None
