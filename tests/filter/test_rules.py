from __future__ import annotations

from typing import Any

import pytest

from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.errors import InvalidInput
from tidegate.filter.event_filter import EventFilter
from tidegate.filter.feed import FeedFilter

URI = parse_sink_uri("kafka://127.0.0.1/topic?protocol=open-protocol")


def made(**event_filter: Any) -> EventFilter:
    given = {
        "event-filters": [{"matcher": ["test.*"]} | {k.replace("_", "-"): v for k, v in event_filter.items()}]
    }
    return FeedFilter.of(merge_config({"filter": given}, URI)).events


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"matcher": []}, ["an event filter matches no table", 'add matcher = ["schema.table"]']),
        ({"matcher": ["test"]}, ["filter.event-filters[0].matcher", "no dot after the schema"]),
        ({"ignore_event": ["inserts"]}, ["invalid ignore event type: 'inserts'", "did you mean 'insert'?"]),
        ({"ignore_sql": ["^drop", "a(b"]}, ["'a(b'", "filter.event-filters[0].ignore-sql[1]", "missing )"]),
        ({"ignore_sql": ["(?=x)"]}, ["'(?=x)' is not a regular expression", "invalid perl operator"]),
        (
            {"ignore_update_new_value_expr": "a > 1 and"},
            ["filter.event-filters[0].ignore-update-new-value-expr, character 10", "a value is expected"],
        ),
        ({"ignore_everything": True}, ["there is no option 'filter.event-filters.ignore-everything'"]),
    ],
)
def test_a_wrong_rule_is_reported_with_its_place(option: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidInput) as error:
        made(**option)
    for word in words:
        assert word in error.value.render()


def test_sql_is_matched_without_case_anywhere_in_the_statement() -> None:
    rules = made(ignore_sql=["^drop", "add\\s+column"])
    assert rules.ignores_statement(4, "DROP TABLE t", "test", "t")
    assert rules.ignores_statement(5, "alter table t ADD  COLUMN c int", "test", "t")
    assert not rules.ignores_statement(4, "/* */ drop table t", "test", "t")
    assert not rules.ignores_statement(4, "drop table t", "other", "t")


def test_a_schemas_own_ddl_goes_by_the_schema() -> None:
    assert made(ignore_event=["create schema"]).ignores_statement(1, "create database test", "test", "")
    assert not made(ignore_event=["create schema"]).ignores_statement(1, "create database x", "x", "")


def test_alter_table_means_every_alter_but_not_create_drop_or_truncate() -> None:
    rules = made(ignore_event=["alter table"])
    ignored = [action for action in range(80) if rules.ignores_statement(action, "", "test", "t")]
    assert {5, 6, 7, 8, 12, 14, 19, 47, 61, 65} <= set(ignored)
    assert not {1, 2, 3, 4, 11, 16, 21, 24, 25, 26, 60} & set(ignored)
