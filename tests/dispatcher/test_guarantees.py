"""A dispatcher reports the guarantees that it gives up, and the tables concerned."""

from __future__ import annotations

import pytest

from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.guarantees import weakness
from tidegate.errors import InvalidInput
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_info import table_schema


def table(*unique: str) -> TableSchema:
    """`id` is the primary key; each of `unique` is the column of a unique key."""
    cols = [
        {
            "id": i + 1,
            "name": {"O": name},
            "offset": i,
            "state": 5,
            "type": {"Tp": 8, "Flag": 3 if name == "id" else 1, "Flen": 20, "Decimal": 0, "Elems": None},
        }
        for i, name in enumerate(("id", "a", "b"))
    ]
    indexes = [
        {
            "id": i + 1,
            "idx_name": {"O": f"u_{name}"},
            "idx_cols": [{"name": {"O": name}, "offset": " ab".index(name), "length": -1}],
            "state": 5,
            "is_unique": True,
            "is_primary": False,
        }
        for i, name in enumerate(unique)
    ]
    info = {"id": 1, "name": {"O": "t"}, "pk_is_handle": True, "cols": cols, "index_info": indexes}
    return table_schema("s", info, 1)


def rule(partition: str, index: str = "", *columns: str) -> DispatchRule:
    return DispatchRule(matcher=("*.*",), partition=partition, index=index, columns=columns)


@pytest.mark.parametrize(
    ("unique", "given"),
    [
        ("a", rule("table")),
        ("a", rule("default")),
        ("", rule("index-value")),
        ("", rule("columns", "", "id")),
    ],
)
def test_nothing_is_said_where_nothing_is_given_up(unique: str, given: DispatchRule) -> None:
    assert weakness(table(*unique), given) == ""


@pytest.mark.parametrize(
    ("unique", "given", "words"),
    [
        ("", rule("ts"), "on several partitions"),
        ("a", rule("index-value"), "the unique key u_a: two rows that exchange"),
        ("ab", rule("rowid"), "the unique key u_a, u_b"),
        ("a", rule("index-value", "u_a"), "when a changes"),
        ("", rule("columns", "", "b", "id"), "when id, b changes"),
    ],
)
def test_what_is_given_up_is_said(unique: str, given: DispatchRule, words: str) -> None:
    assert words in weakness(table(*unique), given)


def test_a_rule_that_names_what_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no column 'c'"):
        weakness(table(), rule("columns", "", "c"))
