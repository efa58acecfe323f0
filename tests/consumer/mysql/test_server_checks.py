"""Servers that are refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.consumer.mysql.dialect import DIALECT, Dialect
from tidegate.consumer.mysql.found import Ask
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


ALL = ["GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION"]


def tidb(grants: list[str], config: str | None = None) -> Ask:
    """A TiDB with names of sessions, these grants, and this configuration; None: it is not shown."""

    def ask(query: str, *_: Any) -> list[tuple[Any, ...]]:
        if query == "SHOW GRANTS":
            return [(grant,) for grant in grants]
        if "tidb_config" in query:
            return [("tidb_config", config)] if config is not None else []
        return [(1,)]

    return ask


@pytest.mark.parametrize(
    ("grants", "good"),
    [
        (ALL, True),
        (["GRANT PROCESS ON *.* TO 'a'@'%'", "GRANT CONNECTION_ADMIN ON *.* TO 'a'@'%'"], True),
        (["GRANT SELECT,PROCESS,SUPER ON *.* TO 'a'@'%'"], True),
        (["GRANT USAGE ON *.* TO 'a'@'%'", "GRANT ALL PRIVILEGES ON `shop`.* TO 'a'@'%'"], False),
        (["GRANT SELECT ON `PROCESS`.* TO 'a'@'%'", "GRANT SELECT ON *.* TO 'PROCESS'@'%'"], False),
        ([], False),
    ],
)
def test_a_user_of_tidb_must_see_all_sessions(grants: list[str], good: bool) -> None:
    ask = tidb(grants)
    if good:
        check_server(ask, Dialect.TIDB, "mysql://somewhere/")
        return
    with pytest.raises(InvalidInput, match="another user") as refused:
        check_server(ask, Dialect.TIDB, "mysql://somewhere/")
    assert "PROCESS" in refused.value.fix


@pytest.mark.parametrize("config", [None, '{"port": 4000}', '{"enable-global-kill": true}'])
def test_a_tidb_that_ends_sessions_of_other_servers_is_taken(config: str | None) -> None:
    """Where the configuration is hidden, or has no such word, KILL shows it."""
    check_server(tidb(ALL, config), Dialect.TIDB, "mysql://somewhere/")


def test_a_tidb_whose_connection_ids_are_per_server_is_refused() -> None:
    with pytest.raises(InvalidInput, match="enable-global-kill is false") as refused:
        check_server(tidb(ALL, '{"enable-global-kill": false}'), Dialect.TIDB, "mysql://somewhere/")
    assert "enable-global-kill to true" in refused.value.fix


def test_a_tidb_whose_sessions_have_no_names_is_refused() -> None:
    def ask(query: str, *_: Any) -> list[tuple[Any, ...]]:
        return [("8.0.11-TiDB-v6.5.0", "")] if query == DIALECT else []

    with pytest.raises(InvalidInput, match=r"use TiDB 7\.4 or later"):
        check_server(ask, Dialect.TIDB, "mysql://somewhere/")
