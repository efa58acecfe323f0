"""The rows of a MariaDB, as TiDB's text protocol would show them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from tidegate.consumer.mysql.session import Connection, MySqlServer
from tidegate.consumer.mysql.tables import qualified
from tidegate.consumer.sql_text import sql_rows
from tidegate.workload.changelog import SnapshotLine, SnapshotTable, snapshot_diff


def forget(server: MySqlServer, consumer: str, *schemas: str) -> None:
    """Make room for a consumer that writes these schemas."""
    connection = server.connect()
    with connection.cursor() as cursor:
        for schema in schemas:
            cursor.execute(f"DROP DATABASE IF EXISTS `{schema}`")
        cursor.execute(
            "SELECT table_name FROM information_schema.columns"
            " WHERE table_schema='tidegate' AND column_name='consumer'"
        )
        for (table,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM tidegate.{table} WHERE consumer=%s", (consumer,))
            if table == "definitions" and schemas:
                cursor.execute("DELETE FROM tidegate.definitions WHERE table_schema IN %s", (schemas,))
    connection.close()


def differences(
    server: MySqlServer, line: SnapshotLine, but: Mapping[str, str] = MappingProxyType({})
) -> dict[str, list[str]]:
    """How the schemas of a snapshot line differ at the server; empty: equal.

    `but`: by table, a column that is not compared.
    """
    connection = server.connect()
    schemas = {name.partition(".")[0] for name in line.tables}
    with connection.cursor() as cursor:
        cursor.execute("SELECT table_schema, table_name FROM information_schema.tables")
        found = {f"{schema}.{table}" for schema, table in cursor.fetchall() if schema in schemas}
    wrong = {name: ["missing"] for name in line.tables.keys() - found}
    wrong |= {name: ["not in SQL"] for name in found - line.tables.keys()}
    for name in line.tables.keys() & found:
        rows = table_of(connection, *name.split(".", 1))
        if but.get(name) in rows.column_names:
            rows = rows.drop_columns(but[name])
        expected = _without_virtual(line.tables[name], rows.column_names)
        if tuple(rows.column_names) != expected.columns:
            wrong[name] = [f"columns are {rows.column_names}, not {expected.columns}"]
        elif diff := snapshot_diff(expected, sql_rows(rows, expected.types), columns=rows.column_names):
            wrong[name] = diff
    connection.close()
    return wrong


def _without_virtual(expected: SnapshotTable, columns: Sequence[str]) -> SnapshotTable:
    """Return the rows that SQL saw, without the virtual columns, which no message carries."""
    kept = [at for at, name in enumerate(expected.columns) if name in columns]
    if len(kept) == len(expected.columns) or expected.rows is None:
        return expected

    def of(cells: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(cells[at] for at in kept)

    rows = tuple(map(of, expected.rows))
    return replace(expected, columns=of(expected.columns), types=of(expected.types), rows=rows)


def table_of(connection: Connection, schema: str, table: str) -> pa.Table:
    """All rows; numbers of floats exact, bits as numbers, everything else as text or bytes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema=%s AND table_name=%s ORDER BY ordinal_position",
            (schema, table),
        )
        columns = list(cursor.fetchall())
        shown = ", ".join(_shown(*column) for column in columns)
        cursor.execute(f"SELECT {shown} FROM {qualified(schema, table)}")
        rows = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(columns)
    return pa.table({name: _array(kind, values) for (name, kind), values in zip(columns, rows, strict=True)})


def _shown(name: str, kind: str) -> str:
    quoted = f"`{name}`"
    if kind in ("float", "double"):
        return f"CAST({quoted} AS DOUBLE)"
    if kind == "bit":
        return f"CAST({quoted} AS UNSIGNED)"
    if "blob" in kind or "binary" in kind:
        return quoted
    return f"CAST({quoted} AS CHAR CHARACTER SET utf8mb4)"


def _array(kind: str, values: Sequence[Any]) -> pa.Array:
    if kind in ("float", "double"):
        return pa.array(values, pa.float64())
    if kind == "bit":
        return pa.array(values, pa.uint64())
    if "blob" in kind or "binary" in kind:
        return pa.array(values, pa.binary())
    if kind == "json":  # MySQL's own, which orders members by their names' lengths
        values = [
            text and json.dumps(json.loads(text), ensure_ascii=False, sort_keys=True) for text in values
        ]
    return pa.array(values, pa.string())
