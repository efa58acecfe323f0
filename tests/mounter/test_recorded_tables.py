"""Recorded tables, replayed change by change: keys, chains of values, and what SELECT showed at the end.

The oracle is TiDB's own SQL: at each recorded `select` the rows that our decoder finds in the keys and values
written so far are the table's rows, in every recorded time zone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.golden_folder import count, lines, names, plain_name
from tests.tidb.golden_rows import expected
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb import datum, keys, memcomparable, record
from tidegate.tidb.table_info import PUBLIC, physical_ids, table_schema
from tidegate.tidb.text import value_text
from tidegate.tidb.types import enum, temporal

REORGANISATIONS = (64, 71, 72)
"""Reorganize partition, partition by, remove partitioning: TiDB copies rows to other partitions."""
Row = tuple[bytes | None, ...]


def by_sql(column: Column, value: Value) -> bytes | None:
    """A plain value as SQL's text protocol sends it."""
    if value is None:
        return None
    match column.kind, value:
        case Kind.BIT, int(bits):
            return bits.to_bytes((column.flen + 7) // 8, "big")
        case Kind.ENUM, int(index):
            return enum.enum_name(index, column.elems).encode()
        case Kind.SET, int(mask):
            return enum.set_names(mask, column.elems).encode()
        case _:
            return value_text(column.kind, value)


@dataclass
class Tables:
    """The tables that a case has written so far."""

    schema: str = ""
    infos: dict[int, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)
    unique: list[tuple[int, bytes]] = field(default_factory=list)
    """The values of unique index entries, by transaction."""
    rows: dict[bytes, bytes] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    seq: int = -1
    moved: bool = False
    """Partitions were reorganised: rows that TiDB copied have no change of their own."""
    commits: dict[int, int] = field(default_factory=dict)
    written: dict[int, set[bytes]] = field(default_factory=dict)
    """Handles of the rows that each transaction wrote."""

    def learn(self, line: dict[str, Any]) -> None:
        """A table definition, under its meta key."""
        info = line["table_info"]
        meta = keys.parse_meta(bytes.fromhex(line["meta_key"]))
        assert meta.field == b"Table:%d" % info["id"]
        assert meta.name.startswith(b"DB:")
        assert line["start_ts"] < line["commit_ts"]
        known = self.infos.setdefault(info["id"], [])
        assert not known or known[-1][0] <= line["commit_ts"]
        known.append((line["commit_ts"], info))

    def owner(self, physical_id: int) -> set[int]:
        """The tables that have had these rows."""
        return {
            table
            for table, versions in self.infos.items()
            if any(physical_id in physical_ids(info) for _, info in versions)
        }

    def take(self, line: dict[str, Any]) -> None:
        """One key-value change."""
        assert line["seq"] > self.seq
        assert line["start_ts"] < line["commit_ts"]
        self.seq = line["seq"]
        key, value = bytes.fromhex(line["key"]), bytes.fromhex(line["value"] or "")
        assert line["op"] == ("put" if value else "delete")
        assert self.commits.setdefault(line["start_ts"], line["commit_ts"]) == line["commit_ts"]
        assert line["commit_ts"] >= max(self.commits.values())
        self._follow(line, key)
        assert self.owner(line["physical_table_id"]) or line["is"] == "index"
        if value:
            self.rows[key] = value
        else:
            self.rows.pop(key, None)
        if line["is"] == "index":
            _check_index_key(line, key)
            if len(value) == 8:  # a unique index of an integer handle
                self.unique.append((line["start_ts"], value))
        elif line.get("mounted"):
            _check_mounted(line, key)
        else:
            count("rows", "row changes that TiCDC could not mount")
        if line["is"] == "row":
            self.written.setdefault(line["start_ts"], set()).add(key[11:])

    def _follow(self, line: dict[str, Any], key: bytes) -> None:
        """The value before is the one written last; of a copied row it is the first that is seen."""
        before = bytes.fromhex(line["old_value"] or "")
        if self.moved and key not in self.rows and before and keys.is_record(key):
            count("rows", "rows copied by a reorganisation, first seen as an old value")
            return
        assert self.rows.get(key, b"") == before, line["seq"]

    def table(self, name: str, ts: int) -> TableSchema:
        """The public version of a table at a timestamp."""
        found = [
            (start, info)
            for versions in self.infos.values()
            for start, info in versions
            if info["name"]["O"] in (name, plain_name(name)) and start <= ts
        ]
        newest = max(found, key=lambda pair: pair[0])[1]
        return table_schema(self.schema, newest, ts)

    def select(self, table: TableSchema, zone: str) -> list[tuple[Value, ...]]:
        """The rows of a table, as decoded."""
        wanted = set(table.physical_ids)
        return [
            record.decode(table, keys.parse_record(key), value, temporal.zone(zone))
            for key, value in self.rows.items()
            if keys.is_record(key) and keys.parse_record(key).table_id in wanted
        ]


def _check_index_key(line: dict[str, Any], key: bytes) -> None:
    """`t{id}_i{index}` and datums to the end of the key."""
    assert key[:11] == keys.table_prefix(line["physical_table_id"]) + b"_i"
    datums = datum.read_all(key[19:])
    assert b"".join(map(datum.encode, datums)) == key[19:]
    count("rows", "index keys")


def _check_mounted(line: dict[str, Any], key: bytes) -> None:
    mounted, parsed = line["mounted"], keys.parse_record(key)
    assert parsed.table_id == line["physical_table_id"]
    assert parsed.handle.hex() == mounted["handle"]
    assert mounted["row_id"] in (None, 0) or parsed.int_handle == mounted["row_id"]
    images = (mounted["values"] is not None, mounted["pre_values"] is not None)
    assert images == {"insert": (True, False), "update": (True, True), "delete": (False, True)}[mounted["op"]]
    count("rows", f"row changes, {mounted['op']}")


def _compare(tables: Tables, line: dict[str, Any]) -> None:
    table = tables.table(line["table"], line["ts"])
    visible = [c for c in table.info["cols"] if c["state"] == PUBLIC and not c.get("hidden")]
    line["columns"] = list(map(plain_name, line["columns"]))
    assert line["columns"] == [c["name"]["O"] for c in sorted(visible, key=lambda c: c["offset"])]
    position = {column.name: at for at, column in enumerate(table.columns)}
    # Virtual columns are computed by who reads a row: no store holds them, and no change carries them.
    shown = [(i, position[name]) for i, name in enumerate(line["columns"]) if name in position]
    assert len(shown) == sum(not column.hidden for column in table.columns)
    theirs: Counter[Row] = Counter(tuple(expected(row[i]) for i, _ in shown) for row in line["rows"] or [])
    ours: Counter[Row] = Counter(
        tuple(by_sql(table.columns[at], row[at]) for _, at in shown)
        for row in tables.select(table, line["time_zone"])
    )
    if tables.moved and ours != theirs:
        # Copied rows that did not change since are nowhere in the log; the others are SELECT's.
        assert not ours - theirs, (line["table"], line["stmt"], line["time_zone"])
        count("rows", "SELECT results that hold copied rows, compared in part")
        return
    assert ours == theirs, (line["table"], line["stmt"], line["time_zone"])
    count("rows", "SELECT results")
    count("rows", "rows in SELECT results", len(line["rows"] or []))


@pytest.mark.golden
@pytest.mark.parametrize("name", names("rows"))
def test_recorded_tables_hold_what_select_shows(name: str) -> None:
    tables = Tables()
    selects: list[dict[str, Any]] = []
    last_ts = 0
    for line in lines(f"rows/{name}"):
        match line["kind"]:
            case "case":
                tables.schema = line["database"]
            case "table_info":
                tables.learn(line)
            case "ddl":
                tables.finished.add(line["finished_ts"])
                tables.moved |= line["type"] in REORGANISATIONS
            case "cdc_table":
                assert line["version"] in tables.finished
                assert (line["schema"], line["table_id"] in tables.infos) == (tables.schema, True)
            case "kv":
                while selects and selects[0]["ts"] < line["commit_ts"]:
                    _compare(tables, selects.pop(0))
                tables.take(line)
                last_ts = line["commit_ts"]
            case "select":
                assert line["ts"] > last_ts or not selects
                selects.append(line)
    for line in selects:
        _compare(tables, line)
    for start_ts, value in tables.unique:
        backfilled = start_ts not in tables.written
        handle = memcomparable.encode_int(int.from_bytes(value, "big", signed=True))
        assert backfilled or handle in tables.written[start_ts]
        count("rows", "index entries that point at a row")
