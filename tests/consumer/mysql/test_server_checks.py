"""Servers that are refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.consumer.mysql.dialect import DIALECT, Dialect
from tidegate.consumer.mysql.server_checks import check_server
from tidegate.errors import InvalidInput


def checked(dialect: Dialect = Dialect.MYSQL, version: str = "9.7.4-2", **variables: str) -> None:
    """Check a server that has these variables."""

    def ask(query: str, *_: Any) -> list[tuple[Any, ...]]:
        if query == DIALECT:
            return [(version, "")]
        return [(name, value) for name, value in variables.items() if repr(name) in query]

    check_server(ask, dialect, "mysql://somewhere/")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("explicit_defaults_for_timestamp", "ON", "OFF"),
        ("binlog_format", "ROW", "STATEMENT"),
        ("sql_generate_invisible_primary_key", "OFF", "ON"),
    ],
)
def test_a_server_with_a_setting_that_changes_values_is_refused(name: str, good: str, bad: str) -> None:
    checked()
    checked(**{name: good})
    with pytest.raises(InvalidInput, match=f"@@{name} is {bad}"):
        checked(**{name: bad})


def test_mysql_is_refused_before_defaults_may_be_expressions() -> None:
    checked(version="8.0.13")
    checked(version="8.1.0-commercial")
    checked(Dialect.MARIADB, version="5.5.5-10.5.29-MariaDB")
    for old in ("8.0.12", "5.7.44-log", "8.0"):
        with pytest.raises(InvalidInput, match=r"use MySQL 8\.0\.13 or later"):
            checked(version=old)
