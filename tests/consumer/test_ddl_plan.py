"""DDL without the header: what text alone tells. (With the header: the bank log in test_apply.)"""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.codec.base import DdlMessage, WireColumn
from tidegate.consumer.ddl_plan import Create, Drop, Nothing, Rename, plan_without_header, regrown
from tidegate.consumer.definition import from_json, guess

COLUMNS = (
    WireColumn("id", pa.int64(), 8, key=True),
    WireColumn("d", pa.string(), 246, key=False),
)
HELD = guess("s", "t", COLUMNS, 5)


def message(query: str) -> DdlMessage:
    return DdlMessage(9, query, None, "s", "t", None, 0)


@pytest.mark.parametrize(
    ("query", "step"),
    [
        ("DROP TABLE `s`.`t`", Drop),
        ("drop database if exists `s`", Drop),
        ("truncate table t", Create),
        ("rename table s.t to x.`y z`", Rename),
        ("ALTER TABLE t RENAME TO u", Rename),
        ("alter table t rename column a to b", Nothing),
        ("alter table t add column c int", Nothing),
        ("create database q", Nothing),
    ],
)
def test_recognised_by_text(query: str, step: type) -> None:
    assert [type(found) for found in plan_without_header(message(query), [HELD])] == [step]


def test_a_rename_goes_where_the_text_says() -> None:
    (step,) = plan_without_header(message("rename table s.t to x.`y z`"), [HELD])
    assert isinstance(step, Rename)
    assert (step.definition.schema, step.definition.table) == ("x", "y z")


def test_a_guess_says_what_it_does_not_know_and_survives_storage() -> None:
    assert HELD.keys == ("id",)
    assert "decimal" in HELD.guessed[0]
    assert from_json(HELD.to_json()) == HELD


def test_a_guessed_table_takes_the_columns_its_rows_show() -> None:
    step = regrown(HELD, guess("s", "t", COLUMNS[:1], 7))
    assert [source.column.name for source in step.sources] == ["id"]
    assert step.sources[0].taken == HELD.columns[0]
