"""DDL without the header: what text alone tells. (With the header: the bank log in test_apply.)"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tidegate.codec.base import DdlMessage, WireColumn
from tidegate.consumer.ddl.ddl_steps import Create, Drop, Nothing, Redefine, Refuse, Rename
from tidegate.consumer.ddl.ddl_text import without_comments
from tidegate.consumer.ddl.ddl_text_plan import KEPT, plan_without_header
from tidegate.consumer.table.definition import from_json, guess

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
        ("alter table t modify column price decimal(10,2)", Redefine),
        ("ALTER TABLE `s`.`t` ADD COLUMN `x` INT, CHANGE `v` `v` BIGINT", Redefine),
        ("alter table t /* change it */ add index (v)", Nothing),
        ("create database q", Nothing),
        ("/* nightly */ truncate table t", Create),
        ("-- nightly\nTRUNCATE /* all */ TABLE t", Create),
        ("# nightly\n/*!40101 truncate table t */", Create),
        ("/*T![auto_rand] */ drop table `s`.`t`", Drop),
        ("/* x */ rename table s.t to u -- and more", Rename),
        ("create table `/* truncate */` (a int comment '-- drop table t')", Nothing),
        ("-- x\nalter table t /* y */ truncate partition p", Refuse),
    ],
)
def test_recognised_by_text(query: str, step: type) -> None:
    assert [type(found) for found in plan_without_header(message(query), [HELD])] == [step]


@pytest.mark.parametrize(
    ("action", "step"),
    [(11, Create), (4, Drop), (12, Redefine), (20, Refuse), (23, Refuse), (42, Refuse), (25, Refuse)],
)
def test_the_action_counts_where_the_protocol_sends_it(action: int, step: type) -> None:
    reported = replace(message("something that no pattern knows"), action=action)
    assert [type(found) for found in plan_without_header(reported, [HELD])] == [step]


def test_comments_are_taken_out_of_statements_and_not_of_texts() -> None:
    text = "'/* e */' `#f` \"-- g\""
    assert without_comments(f"a/* b */c -- d\n{text} # h").split() == ["a", "c", *text.split()]
    assert without_comments("x /*!50100 y */ /*T![z] w */ /*+ hint */ v").split() == ["x", "y", "w", "v"]


def test_a_rename_goes_where_the_text_says() -> None:
    (step,) = plan_without_header(message("rename table s.t to x.`y z`"), [HELD])
    assert isinstance(step, Rename)
    assert (step.definition.schema, step.definition.table) == ("x", "y z")


def test_a_chain_of_renames_in_one_text_frees_names_for_later_steps() -> None:
    tables = [replace(HELD, table=name) for name in "ab"]
    steps = plan_without_header(message("RENAME TABLE s.a TO s.t, s.b TO s.a, s.t TO x.b"), tables)
    assert [(step.table, step.definition.name) for step in steps if isinstance(step, Rename)] == [
        ("a", "s.t"),
        ("b", "s.a"),
        ("t", "x.b"),
    ]
    (refused,) = plan_without_header(message("RENAME TABLE s.a TO s.b, s.b TO s.a"), tables)
    assert isinstance(refused, Refuse)


def test_a_guessed_table_says_once_that_older_rows_are_not_converted() -> None:
    (step,) = plan_without_header(message("alter table t modify c decimal(10,2)"), [HELD])
    assert isinstance(step, Redefine)
    assert step.definition.guessed == (*HELD.guessed, KEPT)
    (again,) = plan_without_header(message("alter table t modify c int"), [step.definition])
    assert isinstance(again, Redefine)
    assert again.definition.guessed == step.definition.guessed
    assert again.definition.columns == HELD.columns


def test_a_guess_says_what_it_does_not_know_and_survives_storage() -> None:
    assert HELD.keys == ("id",)
    assert "decimal" in HELD.guessed[0]
    assert from_json(HELD.to_json()) == HELD
