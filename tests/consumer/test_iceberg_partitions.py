"""Partition values of Iceberg files: what pyiceberg and a merge conclude from them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.consumer.memory_topic import consume_into
from tests.consumer.one_table import KEY_FLAGS, Mark, OneTable, topic
from tests.consumer.test_partitioned import ITEMS, OfIceberg
from tidegate.consumer.iceberg.data_files import Touched
from tidegate.consumer.selecting.rules import Rules
from tidegate.workload.definitions import ColumnSpec


@pytest.mark.parametrize(("by", "found"), [("bucket(3, id)", 1), ("region", 3)])
def test_iceberg_leaves_out_files_of_which_the_key_says_the_partition(
    tmp_path: Path, by: str, found: int
) -> None:
    """The bounds of the key alone exclude no file here. A column outside the key excludes none either."""
    rows = [(number, "abc"[number % 3], None, 0) for number in range(30)]
    kind, root = OfIceberg(), tmp_path / "target"
    applier = kind.applier(root, Rules(partition_by=(f"shop.*:{by}",)))
    events = [ITEMS.created(), *(ITEMS.change(110, None, row) for row in rows), Mark(120)]
    consume_into(topic(events), applier, tmp_path / "staging")
    applier.target.close()
    held = kind.table(root, "items")
    files = [task.file for task in held.scan().plan_files()]
    assert len(files) == 3
    touched = Touched(pa.table({"id": pa.array([15], pa.int64())}), held.metadata)
    assert sum(map(touched.may_be_in, files)) == found


def test_iceberg_finds_each_row_by_its_transformed_value(tmp_path: Path) -> None:
    """pyiceberg computes the value for the filter, and skips files of which the manifest has another."""
    columns = [
        ColumnSpec("id", 8, 20, flag=KEY_FLAGS), ColumnSpec("name", 15, 40, text=True),
        ColumnSpec("price", 246, 10, 2), ColumnSpec("at", 12, 26, 6), ColumnSpec("day", 10, 10),
    ]  # fmt: skip
    table = OneTable.of(columns)
    rows = [
        (-7, "Ünder", "-3.25", "1969-12-31 23:59:59.999999", "1969-12-31"),
        (0, "", "0.00", "1970-01-01 00:00:00.000000", "1970-01-01"),
        (12, "Ünd", "3.25", "2024-02-29 12:00:00.500000", "2024-02-29"),
        (13, None, None, None, None),
        (1 << 40, "z" * 40, "12345678.90", "9999-12-31 23:00:00.000000", "0001-01-01"),
    ]
    fields = "bucket(5, id),truncate(2, name),truncate(100, price),hour(at),month(day)"
    events = [table.created(), *(table.change(110, None, row) for row in rows), Mark(120)]
    kind, root = OfIceberg(), tmp_path / "target"
    applier = kind.applier(root, Rules(partition_by=(f"shop.items:{fields}",)))
    consume_into(topic(events), applier, tmp_path / "staging")
    applier.target.close()
    assert len(kind.files(root, "items")) == len(rows)
    held = kind.table(root, "items")
    for number, name, price, at, day in rows:
        found = held.scan(f"id = {number}")
        assert len(list(found.plan_files())) == 1
        assert found.to_arrow()["name"].to_pylist() == [name]
        if name is not None:
            for wanted in (f"name = '{name}'", f"price = {price}", f"day = '{day}'"):
                assert held.scan(wanted).to_arrow()["id"].to_pylist() == [number]
            assert held.scan(f"at = '{at.replace(' ', 'T')}'").to_arrow()["id"].to_pylist() == [number]
    assert held.scan("name is null").to_arrow()["id"].to_pylist() == [13]
