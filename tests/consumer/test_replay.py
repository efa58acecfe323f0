"""A quarantined row is decoded with its table as it is now: zones, large numbers, tables without a key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.consumer.one_table import KEY_FLAGS, OneTable
from tidegate.consumer.lakehouse.lake_target import LakeValues
from tidegate.consumer.mysql.by_hand import MySqlByHand
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.literals import MySqlValues
from tidegate.consumer.replay import Tables, replay
from tidegate.consumer.table import definition
from tidegate.consumer.table.convert import Losses
from tidegate.workload.definitions import NOT_NULL, ColumnSpec

UNSIGNED = 32
"""The bit of a column's flag."""
KEYED = OneTable.of([ColumnSpec("id", 8, 20, flag=KEY_FLAGS | UNSIGNED), ColumnSpec("at", 7, 19)])
JSON_BAG = OneTable.of([ColumnSpec("j", 245, -1)])
BAG = OneTable.of([ColumnSpec("a", 3, 11, flag=NOT_NULL)])


def tables(one: OneTable, zone: str = "UTC", *, database: bool = False) -> Tables:
    values = MySqlValues() if database else LakeValues(Losses())
    return Tables({("shop", "items"): definition.from_info("shop", one.info, 1)}, values, zone)


def entry(op: int, **values: Any) -> dict[str, Any]:
    where = {"table": "shop.items", "partition": 0, "offset": 1, "seq": 0, "commit_ts": 7}
    return {"where": where, "why": "w", "op": op, "row": {k.replace("_", "."): v for k, v in values.items()}}


def test_a_timestamp_is_read_in_the_consumers_zone_and_not_without_one() -> None:
    row = entry(1, n_id=1, n_at="2024-01-01 08:00:00", o_id=None)
    unknown = replay(row, None, tables(KEYED, "")).outcome
    assert (unknown.good, "--time-zone" in unknown.what) == (False, True)
    found = replay(row, None, tables(KEYED, "Asia/Shanghai"))
    assert found.outcome.rows[0]["new"]["at"].isoformat() == "2024-01-01T00:00:00+00:00"


def test_unsigned_numbers_beyond_signed_ones_fit() -> None:
    found = replay(entry(1, n_id=(1 << 64) - 1, n_at=None, o_id=None), None, tables(KEYED))
    assert found.outcome.rows[0]["new"]["id"] == (1 << 64) - 1


def test_a_value_that_is_none_of_its_column_is_still_bad() -> None:
    found = replay(entry(1, n_id="x", n_at=None, o_id=None), None, tables(KEYED)).outcome
    assert (found.good, "column id" in found.what) == (False, True)


def test_a_table_that_is_gone_and_a_target_that_is_not_named_are_said() -> None:
    row = entry(1, n_id=1)
    assert "no table shop.items any more" in replay(row, None, Tables({}, MySqlValues(), "")).outcome.what
    assert "--target is needed" in replay(row, None, None).outcome.what


def test_statements_for_rows_of_a_table_without_a_key_and_for_deletes() -> None:
    bag = replay(entry(2, n_a=2, o_a=1), None, tables(BAG, database=True))
    statements = [text for change in bag.changes for text in MySqlByHand(Dialect.MARIADB).statements(change)]
    assert statements == [
        b"DELETE FROM `shop`.`items` WHERE `a`<=>1 LIMIT 1",
        b"INSERT INTO `shop`.`items` (`a`) VALUES (2)",
    ]
    gone = replay(entry(3, n_id=None, n_at=None, o_id=4), None, tables(KEYED, database=True))
    statements = [text for change in gone.changes for text in MySqlByHand(Dialect.MARIADB).statements(change)]
    assert statements == [b"DELETE FROM `shop`.`items` WHERE `id` IN (4)"]


@pytest.mark.parametrize("dialect", Dialect)
def test_json_of_a_row_without_a_key_is_found_in_the_servers_own_form(dialect: Dialect) -> None:
    """A table that SQL has made has MySQL's or TiDB's JSON, which is stored in another form than its text."""
    held = replace(definition.from_info("shop", JSON_BAG.info, 1), info=None)
    found = replay(entry(3, o_j='{"b": 1}'), None, Tables({("shop", "items"): held}, MySqlValues(), "UTC"))
    ((statement,),) = [MySqlByHand(dialect).statements(change) for change in found.changes]
    assert (b"AS JSON" in statement) is (dialect is not Dialect.MARIADB)
