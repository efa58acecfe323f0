"""Tables that take each other's names, rows written between the steps: each row under its right name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.memory_topic import consume
from tests.consumer.one_table import KEY_FLAGS, Mark, OneTable, Row, topic
from tests.consumer.topics import Event
from tidegate.consumer.snapshots import open_snapshot
from tidegate.model.ddl import DdlEvent
from tidegate.model.row import RowChange
from tidegate.tidb.table_info import table_schema
from tidegate.workload.definitions import ColumnSpec

SHAPE = OneTable.of([ColumnSpec("id", 3, 11, flag=KEY_FLAGS), ColumnSpec("v", 15, 20, text=True)])
RENAME = 14


@dataclass
class Named:
    """A table that goes by other names in turn; `schema` too may change."""

    id: int
    schema: str
    name: str

    @property
    def info(self) -> dict[str, Any]:
        return SHAPE.info | {"id": self.id, "name": {"O": self.name, "L": self.name}}

    def created(self, ts: int) -> DdlEvent:
        return replace(
            SHAPE.created(), finished_ts=ts, schema=self.schema, old_schema=self.schema, table=self.name,
            old_table=self.name, after=self.info,
            added_ids=(self.id,), query=f"CREATE TABLE {self.name} (...)",
        )  # fmt: skip

    def change(self, ts: int, old: Row | None, new: Row | None) -> RowChange:
        return RowChange(table_schema(self.schema, self.info, ts - 1), ts, ts - 1, self.id, 0, old, new)

    def rename(self, ts: int, name: str, schema: str = "", seq: int = 0) -> DdlEvent:
        was, before = (self.schema, self.name), self.info
        self.name, self.schema = name, schema or self.schema
        query = f"RENAME TABLE `{was[0]}`.`{was[1]}` TO `{self.schema}`.`{self.name}`"
        return replace(
            SHAPE.created(), job_id=ts, seq=seq, finished_ts=ts, action=RENAME, query=query, before=before,
            after=self.info, schema=self.schema, table=self.name, old_schema=was[0], old_table=was[1],
            added_ids=(),
        )  # fmt: skip


def rotation() -> list[Event]:
    """a -> t, b -> a, t -> b in single statements, rows under every name that there is in between."""
    one, two = Named(71, "shop", "a"), Named(72, "shop", "b")
    return [
        one.created(100),
        two.created(101),
        one.change(110, None, (1, b"one")),
        two.change(111, None, (1, b"two")),
        one.rename(120, "t"),
        one.change(121, (1, b"one"), (1, b"one as t")),
        two.change(122, None, (2, b"two as b")),
        two.rename(130, "a"),
        two.change(131, (1, b"two"), (1, b"two as a")),
        one.change(132, None, (2, b"one as t")),
        one.rename(140, "b"),
        one.change(141, None, (3, b"one as b")),
        two.change(142, (2, b"two as b"), None),
        Mark(150),
    ]


def one_statement() -> list[Event]:
    """The same swap in one RENAME TABLES, through another schema: its steps share a ts."""
    one, two = Named(71, "shop", "a"), Named(72, "shop", "b")
    return [
        one.created(100),
        two.created(101),
        one.change(110, None, (1, b"one")),
        two.change(111, None, (1, b"two")),
        one.rename(120, "t", "other", 0),
        two.rename(120, "a", "shop", 1),
        one.rename(120, "b", "shop", 2),
        one.change(131, (1, b"one"), (1, b"one as b")),
        two.change(132, (1, b"two"), (1, b"two as a")),
        Mark(150),
    ]


@pytest.mark.parametrize("header", [True, False], ids=["header", "text"])
@pytest.mark.parametrize(("protocol", "size"), [("open-protocol", 1), ("canal-json", 100)])
def test_rows_between_the_steps_of_a_swap_of_names_find_their_table(
    tmp_path: Path, protocol: str, header: bool, size: int
) -> None:
    expected = {
        "rotation": {
            "shop.a": [(1, "two as a")],
            "shop.b": [(1, "one as t"), (2, "one as t"), (3, "one as b")],
        },
        "one_statement": {"shop.a": [(1, "two as a")], "shop.b": [(1, "one as b")]},
    }
    for events in (rotation, one_statement):
        target = tmp_path / events.__name__
        made = [e for e in events() if header or not (isinstance(e, DdlEvent) and e.action == 3)]
        consume(topic(made, protocol, header, partitions=3), target, size=size)
        tables = open_snapshot(target).tables
        held = {name: table.to_arrow().sort_by("id").to_pylist() for name, table in tables.items()}
        rows = {name: [(row["id"], row["v"]) for row in found] for name, found in held.items()}
        assert rows == expected[events.__name__], events.__name__
