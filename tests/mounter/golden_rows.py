"""The recorded row changes of the real TiDB as blocks, with the schemas they were written under."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from tests.golden_folder import lines, names
from tidegate.model.block import ENTRY_SCHEMA, OP_DELETE, OP_PUT
from tidegate.model.schema import TableSchema
from tidegate.mounter.mounter import Entry
from tidegate.tidb.table_info import table_schema

CASES = names("rows")


class GoldenRow(NamedTuple):
    table: TableSchema
    entry: Entry
    mounted: dict[str, Any]


class OneTable:
    """A schema store's answers for tables given by physical id, each with (valid from, schema) in order."""

    def __init__(self, versions: dict[int, list[tuple[int, TableSchema | None]]]) -> None:
        self._versions = versions

    def versions(
        self, physical_id: int, after: int, upto: int, follows: object = None
    ) -> list[tuple[int, TableSchema | None]]:
        known = self._versions.get(physical_id, [])
        first = max([i for i, (start, _) in enumerate(known) if start <= after], default=0)
        return [version for version in known[first:] if version[0] <= upto]


@cache
def golden_rows(case: str) -> list[GoldenRow]:
    """The mounted row changes of one case, in commit order."""
    infos: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    tables: dict[tuple[int, int], TableSchema] = {}
    rows = []
    for record in lines(f"rows/{case}"):
        match record["kind"]:
            case "table_info":
                infos.setdefault(record["table_info"]["id"], []).append(
                    (record["commit_ts"], record["table_info"])
                )
            case "cdc_table":
                table_id, version = record["table_id"], record["version"]
                info = [info for ts, info in infos[table_id] if ts <= version][-1]
                tables[table_id, version] = table_schema(record["schema"], info, version)
            case "kv" if record.get("mounted"):
                mounted = record["mounted"]
                entry = Entry(
                    record["commit_ts"],
                    record["start_ts"],
                    OP_PUT if record["op"] == "put" else OP_DELETE,
                    *(bytes.fromhex(record[name] or "") for name in ("key", "value", "old_value")),
                )
                rows.append(GoldenRow(tables[mounted["table_id"], mounted["table_version"]], entry, mounted))
    return rows


def store_of(rows: list[GoldenRow]) -> OneTable:
    """The schemas of these rows by physical id, each valid from its version on."""
    versions: dict[int, dict[int, TableSchema]] = {}
    for row in rows:
        physical_id = int.from_bytes(row.entry.key[1:9], "big") - (1 << 63)
        versions.setdefault(physical_id, {})[row.table.version] = row.table
    return OneTable({key: sorted(value.items()) for key, value in versions.items()})


def block_of(entries: list[Entry]) -> pa.RecordBatch:
    """Entries as a block."""
    columns = list(zip(*entries, strict=True)) if entries else [()] * len(ENTRY_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ENTRY_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=ENTRY_SCHEMA)
