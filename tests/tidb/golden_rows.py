"""Golden row cases: the tables and recorded key-value changes of `tests/golden/rows`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.golden_folder import lines, names
from tidegate.model.row import Value
from tidegate.model.schema import Column, TableSchema
from tidegate.tidb.table_info import table_schema
from tidegate.tidb.text import value_text


class Change(NamedTuple):
    """One recorded row change and the table version TiCDC mounted it with."""

    table: TableSchema
    record: dict[str, Any]
    mounted: dict[str, Any]
    key: bytes
    value: bytes
    old_value: bytes


def case_names() -> list[str]:
    """All row cases."""
    return names("rows")


def tables(name: str, *, ours: bool = False) -> Iterator[tuple[TableSchema, dict[str, Any]]]:
    """Every table version of a case, with TiCDC's view of it. `ours`: from `tests/golden` in any case."""
    infos: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for record in lines(f"rows/{name}", ours=ours):
        if record["kind"] == "table_info":
            info = record["table_info"]
            infos.setdefault(info["id"], []).append((record["commit_ts"], info))
        elif record["kind"] == "cdc_table":
            known = [info for ts, info in infos[record["table_id"]] if ts <= record["version"]]
            yield table_schema(record["schema"], known[-1], record["version"]), record


def changes(name: str, *, ours: bool = False) -> Iterator[Change]:
    """Every row change of a case that TiCDC mounted."""
    schemas = {(table.id, table.version): table for table, _ in tables(name, ours=ours)}
    for record in lines(f"rows/{name}", ours=ours):
        if record["kind"] == "kv" and record["is"] == "row" and record.get("mounted"):
            mounted = record["mounted"]
            yield Change(
                schemas[mounted["table_id"], mounted["table_version"]],
                record,
                mounted,
                bytes.fromhex(record["key"]),
                bytes.fromhex(record["value"] or ""),
                bytes.fromhex(record["old_value"] or ""),
            )


def shown(column: Column, value: Value) -> bytes | None:
    """A decoded value as TiCDC prints it."""
    return None if value is None else value_text(column.kind, value)


def expected(text: Any) -> bytes | None:
    """A golden text value."""
    if text is None:
        return None
    return bytes.fromhex(text["hex"]) if isinstance(text, dict) else text.encode()
