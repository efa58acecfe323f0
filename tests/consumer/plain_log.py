"""Reads a change log as a stranger would, from its files alone, and builds its tables from the changes.

It uses nothing of `consumer.parquet`: the commits are read from JSON, the rows with pyarrow, and a table's
rows are replaced, added and removed one by one. From Tidegate it takes only the Arrow types of a definition.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.consumer.table.definition import Definition, from_json

Row = dict[str, Any]
OWN = ("_tidegate_op", "_tidegate_commit_ts", "_tidegate_seq")


@dataclass
class Table:
    """The rows that a reader has of one table."""

    columns: pa.Schema
    keys: list[str]
    rows: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    """By values, in the order of the columns; a key has one row."""
    by_key: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)

    def change(self, row: Row) -> None:
        """Do to the rows what one row of the log says."""
        values = tuple(_hashable(row[name]) for name in self.columns.names)
        key = tuple(row[name] for name in self.keys)
        op = row["_tidegate_op"]
        if not self.keys:
            self.rows[values] += -1 if op == "delete" else 1
            assert self.rows[values] >= 0, "a row is deleted that is not there"
        elif op == "delete":
            assert key in self.by_key, "a row is deleted that is not there"
            del self.by_key[key]
        elif op == "before":
            assert self.by_key[key] == values, "the row before an update is the row that was there"
        else:
            assert (op == "update") == (key in self.by_key), f"{op} of a row: {key}"
            self.by_key[key] = values

    def all_rows(self) -> list[tuple[Any, ...]]:
        return list(self.by_key.values()) if self.keys else list(self.rows.elements())

    def to_arrow(self) -> pa.Table:
        rows = self.all_rows()
        columns = [[row[at] for row in rows] for at in range(len(self.columns))]
        return pa.table(columns, schema=self.columns)


@dataclass
class Replayed:
    """The tables at one ts."""

    ts: int
    tables: dict[str, Table]


def commits(root: Path) -> list[dict[str, Any]]:
    """Everything that the manifests say, in order."""
    found: dict[int, dict[str, Any]] = {}
    for file in sorted(root.glob("_tidegate/changes/*.json")):
        for commit in json.loads(file.read_bytes())["commits"]:
            assert found.setdefault(commit["number"], commit) == commit
    assert sorted(found) == list(range(1, len(found) + 1)), "no commit is missing"
    return [found[number] for number in sorted(found)]


def entries(root: Path) -> list[dict[str, Any]]:
    return [entry for commit in commits(root) for entry in commit["entries"]]


def replays(root: Path, *moments: int) -> Iterator[Replayed]:
    """The tables at each of some ts, ascending."""
    tables: dict[str, Table] = {}
    waiting = list(_changes(root))
    for ts in moments:
        while waiting and waiting[0][0] <= ts:
            _, table, change = waiting.pop(0)
            if "ddl" in change:
                for step in change["steps"]:
                    _follow(root, tables, step)
            else:
                tables[table].change(change)
        yield Replayed(ts, tables)


def newest(root: Path) -> dict[str, list[tuple[Any, ...]]]:
    """By table, its rows after all that the log has."""
    (found,) = replays(root, 1 << 63)
    return {name: table.all_rows() for name, table in found.tables.items()}


def rows(root: Path) -> list[Row]:
    """Each row of each file."""
    files = [entry["file"] for entry in entries(root) if "file" in entry]
    return [row for file in files for row in pq.read_table(root / file).to_pylist()]


def ops(root: Path) -> set[str]:
    """The operations that occur."""
    return {row["_tidegate_op"] for row in rows(root)}


def _changes(root: Path) -> Iterator[tuple[int, str, Row]]:
    """Each row and each DDL in order: ts, table, what it says."""
    waiting: list[tuple[int, str, Row]] = []
    for entry in entries(root):
        if "ddl" in entry:
            yield from sorted(waiting, key=_seq)
            waiting = []
            yield entry["ts"], "", entry
            continue
        read = pq.read_table(root / entry["file"])
        own, columns = read.select(OWN), read.drop_columns(list(OWN))
        known = _definition(root, entry["version"])
        assert columns.schema.equals(_own_columns(known)), "a file has one schema"
        assert entry["keys"] == list(known.keys)
        assert entry["rows"] == read.num_rows
        ts = own["_tidegate_commit_ts"].to_pylist()
        assert (entry["min_ts"], entry["max_ts"]) == (min(ts), max(ts))
        name = f"{entry['schema']}.{entry['table']}"
        waiting += [(row["_tidegate_commit_ts"], name, row) for row in read.to_pylist()]
    yield from sorted(waiting, key=_seq)


def _seq(change: tuple[int, str, Row]) -> tuple[int, bool]:
    # At one seq a row before an update comes with other tables' deletes: the order among them is free.
    return change[2]["_tidegate_seq"], change[2]["_tidegate_op"] == "before"


def _definition(root: Path, version: int) -> Definition:
    (file,) = (root / "_tidegate" / "definitions").glob(f"*@{version:020d}.json")
    return from_json(file.read_bytes())


def _empty(root: Path, step: dict[str, Any]) -> Table:
    known = _definition(root, step["version"])
    assert (known.schema, known.table) == (step["schema"], step["table"])
    return Table(_own_columns(known), list(known.keys))


def _own_columns(known: Definition) -> pa.Schema:
    return pa.schema([(column.name, column.type) for column in known.columns])


def _follow(root: Path, tables: dict[str, Table], step: dict[str, Any]) -> None:
    name = f"{step.get('schema')}.{step.get('table')}"
    if step["do"] == "create":
        tables[name] = _empty(root, step)
    elif step["do"] == "drop":
        del tables[name]
    elif step["do"] == "rename":
        tables[f"{step['to_schema']}.{step['to_table']}"] = tables.pop(name)
    elif step["do"] == "columns":
        old, new = tables[name], _empty(root, step)
        for row in old.all_rows():
            named = dict(zip(old.columns.names, row, strict=True))
            values = tuple(_value(new.columns, column, named) for column in step["columns"])
            new.rows[values] += 1
            whole = dict(zip(new.columns.names, values, strict=True))
            new.by_key[tuple(whole[key] for key in new.keys)] = values
        tables[name] = new
    else:
        assert step["do"] in ("redefine", "nothing"), step


def _value(columns: pa.Schema, column: dict[str, Any], row: Row) -> Any:
    if column["from"] is not None:
        return row[column["from"]]
    text = pa.array([column["fill"]], pa.string())
    return _hashable(text.cast(columns.field(column["name"]).type)[0].as_py())


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
