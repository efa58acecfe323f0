"""Golden rows, messages and DDL events of the real TiDB and TiCDC, as our own nouns."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.golden_folder import lines
from tidegate.model.ddl import DdlEvent
from tidegate.model.row import RowChange, RowChecksum, Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb.table_info import table_schema

__all__ = ["Case", "case", "ddl_event", "lines"]


def _value(column: Column, text: Any) -> Value:
    if text is None:
        return None
    data = bytes.fromhex(text["hex"]) if isinstance(text, dict) else text.encode()
    match column.kind:
        case Kind.FLOAT | Kind.DOUBLE:
            return float(data)
        case Kind.STRING | Kind.BYTES:
            return data
        case Kind.DECIMAL | Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME | Kind.JSON | Kind.VECTOR:
            return data.decode()
    return int(data)


def _image(table: TableSchema, values: Any) -> tuple[Value, ...] | None:
    if values is None:
        return None
    return tuple(_value(column, text) for column, text in zip(table.columns, values, strict=True))


class Case:
    """One golden case: its tables by version, and its row changes by seq."""

    def __init__(self, name: str) -> None:
        self.tables: dict[tuple[int, int], TableSchema] = {}
        self.records: dict[int, dict[str, Any]] = {}
        infos: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for record in lines(f"rows/{name}"):
            if record["kind"] == "table_info":
                info = record["table_info"]
                infos.setdefault(info["id"], []).append((record["commit_ts"], info))
            elif record["kind"] == "cdc_table":
                table_id, version = record["table_id"], record["version"]
                info = max((ts, i) for i, (ts, _) in enumerate(infos[table_id]) if ts <= version)
                self.tables[table_id, version] = table_schema(
                    record["schema"], infos[table_id][info[1]][1], version
                )
            elif record["kind"] == "kv" and record.get("mounted"):
                self.records[record["seq"]] = record

    def row(self, seq: int, zone: str = "UTC", part: str | None = None) -> RowChange:
        """The row change of one recorded key-value change, whole or one half of a split update."""
        record = self.records[seq]
        mounted = record["mounted"]
        table = self.tables[mounted["table_id"], mounted["table_version"]]
        summed = mounted.get("checksum")
        shown = (mounted.get("zones") or {}).get(zone, mounted)
        return RowChange(
            table=table,
            commit_ts=record["commit_ts"],
            start_ts=record["start_ts"],
            physical_id=record["physical_table_id"],
            handle=mounted["row_id"] or 0,
            old=None if part == "insert" else _image(table, shown.get("pre_values")),
            new=None if part == "delete" else _image(table, shown.get("values")),
            checksum=RowChecksum(**summed) if summed else None,
            row_key=bytes.fromhex(record["key"]),
        )


@cache
def case(name: str) -> Case:
    """A case, read once."""
    return Case(name)


def ddl_event(record: dict[str, Any], schema: str, table: str) -> DdlEvent:
    """The DDL event that a golden `ddl` message record was encoded from."""
    return DdlEvent(
        job_id=record["job_id"],
        seq=record["event_index"],
        start_ts=record["commit_ts"] - 1,
        finished_ts=record["commit_ts"],
        action=record["type"],
        query=record["query"],
        schema=schema,
        table=table,
        old_schema=schema,
        old_table=table,
        schema_version=1,
        before=None,
        after=None,
        added_ids=(),
        removed_ids=(),
    )
