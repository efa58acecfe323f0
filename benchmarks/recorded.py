"""The busiest table of a recorded change log, and its changes as blocks of entries.

It imports only names that older commits have as well, because `benchmarks.kernel_work` runs over their trees.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.model.block import ENTRY_SCHEMA
from tidegate.model.schema import TableSchema
from tidegate.mounter.mounter import Entry
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.tidb import checksum
from tidegate.tidb.table_info import table_schema


class OneTable:
    """A schema store with one version of one table."""

    def __init__(self, table: TableSchema) -> None:
        self.table = table

    def versions(
        self, physical_id: int, after: int, upto: int, follows: object = None
    ) -> list[tuple[int, TableSchema | None]]:
        return [(0, self.table)]


def read_log(path: Path, limit: int) -> tuple[TableSchema, list[Entry]]:
    """The busiest table of a log and its changes under its first public version."""
    infos: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    held: dict[str, str] = {}
    changes: dict[int, list[Entry]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            if record["type"] not in ("base", "txn"):
                continue
            for mutation in record["mutations"]:
                key, value = mutation["key"], mutation.get("value", "")
                if key.startswith("6d") and value.startswith("7b") and b'"cols"' in bytes.fromhex(value):
                    info = json.loads(bytes.fromhex(value))
                    infos.setdefault(info["id"], []).append((record["commit_ts"], info))
                if (
                    mutation["op"] in ("put", "insert", "delete")
                    and key.startswith("74")
                    and key[18:22] == "5f72"
                ):
                    _add(changes, held, record, mutation)
    table_id = Counter({key: len(rows) for key, rows in changes.items() if key in infos}).most_common(1)[0][0]
    (version, info), *later = [item for item in infos[table_id] if item[1]["state"] == 5]
    end = later[0][0] if later else 1 << 64
    entries = [entry for entry in changes[table_id] if version < entry.commit_ts <= end]
    return table_schema("bench", info, version), entries[:limit]


def _add(
    changes: dict[int, list[Entry]], held: dict[str, str], record: dict[str, Any], mutation: dict[str, Any]
) -> None:
    key, value = mutation["key"], mutation.get("value", "")
    old = held.get(key, "")
    held[key] = value
    if "start_ts" in record and (value or old):
        op = cdcpb.Event.Row.PUT if value else cdcpb.Event.Row.DELETE
        entry = Entry(record["commit_ts"], record["start_ts"], op, *map(bytes.fromhex, (key, value, old)))
        changes.setdefault(int(key[2:18], 16) - (1 << 63), []).append(entry)


def with_updates(entries: list[Entry]) -> list[Entry]:
    """Make every third row an update, with the value of another row as its old image."""
    values = [entry.value for entry in entries if entry.value]
    return [
        entry._replace(old_value=values[i % len(values)]) if i % 3 == 0 and entry.value else entry
        for i, entry in enumerate(entries)
    ]


def blocks_of(entries: list[Entry], batch: int) -> list[pa.RecordBatch]:
    """The entries, shuffled, in blocks of `batch` rows."""
    shuffled = random.sample(entries, len(entries))
    made = []
    for at in range(0, len(shuffled) - batch + 1, batch):
        columns = zip(*shuffled[at : at + batch], strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ENTRY_SCHEMA, strict=True)]
        made.append(pa.record_batch(arrays, schema=ENTRY_SCHEMA))
    return made


def sealed(entries: list[Entry]) -> list[Entry]:
    """The entries as TiDB writes them with row checksums on."""
    return [
        entry._replace(
            value=checksum.sealed(entry.value, entry.key) if entry.value else b"",
            old_value=checksum.sealed(entry.old_value, entry.key) if entry.old_value else b"",
        )
        for entry in entries
    ]
