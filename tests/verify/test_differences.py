"""Differences by key, and the statements that repair them."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.consumer.delta.lock import target_lock
from tidegate.errors import InvalidInput
from tidegate.verify.differences import differences
from tidegate.verify.repair import apply, check_repairable, literal, statements
from tidegate.verify.side import Shape

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHAPE = Shape(SCHEMA, ("id",), True)


def rows(*values: tuple[int, str | None]) -> pa.Table:
    return pa.table([[v[0] for v in values], [v[1] for v in values]], schema=SCHEMA)


def test_each_key_that_differs_is_named_once_with_all_its_rows() -> None:
    here = rows((4, "d"), (1, "a"), (2, "b"), (3, None))
    there = rows((1, "a"), (2, "x"), (3, None), (5, "e"), (4, "d"), (4, "d"))
    found = differences(here, there, ["id"])
    assert [(d.kind, d.key["id"], d.columns) for d in found] == [
        ("changed", 2, ["v"]),
        ("changed", 4, []),
        ("extra", 5, []),
    ]
    assert found[1].target == ({"id": 4, "v": "d"},) * 2
    assert differences(rows((1, "a")), rows(), ["id"])[0].kind == "missing"
    assert differences(rows((1, "a"), (2, None)), rows((2, None), (1, "a")), ["id"]) == []
    assert differences(rows(), rows(), ["id"]) == []


def test_of_a_bag_contents_are_counted() -> None:
    found = differences(rows((1, "a"), (1, "a"), (2, None)), rows((1, "a"), (3, "c")), [])
    assert [(d.kind, len(d.source), len(d.target)) for d in found] == [
        ("changed", 2, 1),
        ("missing", 1, 0),
        ("extra", 0, 1),
    ]


def test_statements_delete_differing_keys_and_insert_the_sources_rows() -> None:
    found = differences(rows((2, "it's"), (3, "c")), rows((2, "x"), (5, "e")), ["id"])
    table = "delta.`/lake/b/t`"
    assert list(statements(Path("/lake/b/t"), SHAPE, found)) == [
        f"DELETE FROM {table} WHERE `id` <=> 2;",
        f"INSERT INTO {table} (`id`, `v`) VALUES (2, 'it\\'s');",
        f"INSERT INTO {table} (`id`, `v`) VALUES (3, 'c');",
        f"DELETE FROM {table} WHERE `id` <=> 5;",
    ]


def test_a_table_without_a_key_is_not_repaired() -> None:
    with pytest.raises(InvalidInput, match=r"b\.t has no key, so its rows cannot be repaired one by one"):
        check_repairable("b.t", Shape(SCHEMA, (), False))


def test_a_target_that_a_consumer_writes_is_not_repaired(tmp_path: Path) -> None:
    table: Any = None  # the lock comes before anything is read
    refused = pytest.raises(InvalidInput, match="another consumer writes this target")
    with target_lock(tmp_path), refused as caught:
        apply(tmp_path, 1, table, SHAPE, [])
    assert f"process {os.getpid()} holds its lock" in caught.value.why
    with target_lock(tmp_path):
        pass


VALUES: list[tuple[Any, pa.DataType]] = [
    (None, pa.int64()),
    (-(1 << 63), pa.int64()),
    (Decimal("-12.50"), pa.decimal128(38, 2)),
    (Decimal(1 << 63), pa.decimal128(20, 0)),
    (1e300, pa.float64()),
    (0.5, pa.float32()),
    ("it's \\ a\nb\u4e2d", pa.string()),
    (b"\x00\xff", pa.binary()),
    (date(7, 1, 2), pa.date32()),
    (datetime(2020, 2, 29, 23, 59, 59, 999999), pa.timestamp("us")),
    (datetime(2020, 2, 29, 12, tzinfo=UTC), pa.timestamp("us", tz="UTC")),
    ([1.0, -0.5], pa.list_(pa.float32())),
]


@pytest.mark.integration
def test_spark_reads_every_literal_as_the_value_it_was_made_of(spark: Any) -> None:
    texts = ", ".join(f"{literal(value, of_type)} AS c{at}" for at, (value, of_type) in enumerate(VALUES))
    found = spark.sql(f"SELECT {texts}").toArrow().to_pylist()[0]
    for at, (value, of_type) in enumerate(VALUES):
        got = pa.array([found[f"c{at}"]]).cast(of_type)[0].as_py() if found[f"c{at}"] is not None else None
        assert got == value, (value, found[f"c{at}"])


def test_a_table_with_a_day_in_its_key_is_not_repaired() -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    check_repairable("b.t", Shape(schema, ("id",), False))
    with pytest.raises(InvalidInput, match=r"rows of b\.t cannot be repaired one by one"):
        check_repairable("b.t", Shape(schema, ("id", "day"), False))
