"""MariaDB, MySQL and TiDB: how each is recognized, and where their SQL differs."""

from __future__ import annotations

import re

import pytest

from tests.consumer.mysql.test_ddl import column_of
from tidegate.consumer.mysql.dialect import Dialect, dialect_of
from tidegate.consumer.mysql.exchange import in_file_name
from tidegate.consumer.mysql.replay import with_collations
from tidegate.consumer.mysql.tables import column_text

COMMENT = "TiDB Server (Apache License 2.0) Community Edition, MySQL 8.0 compatible"


@pytest.mark.parametrize(
    ("version", "comment", "found"),
    [
        ("10.11.14-MariaDB-0+deb12u2", "Debian 12", Dialect.MARIADB),
        ("9.7.4-2", "(Debian)", Dialect.MYSQL),
        ("8.0.11-TiDB-v8.5.0", COMMENT, Dialect.TIDB),
        ("8.0.36", COMMENT, Dialect.TIDB),  # `server-version` hides it
    ],
)
def test_a_server_is_recognized_by_its_version_or_its_comment(
    version: str, comment: str, found: Dialect
) -> None:
    assert dialect_of(version, comment) is found


@pytest.mark.parametrize(
    ("dialect", "name"),
    [
        (Dialect.MARIADB, "utf8mb4_uca1400_nopad_ai_ci"),
        (Dialect.MYSQL, "utf8mb4_0900_ai_ci"),
        (Dialect.TIDB, "utf8mb4_0900_ai_ci"),
    ],
)
def test_only_mariadb_gets_other_names_of_collations(dialect: Dialect, name: str) -> None:
    text = "a VARCHAR(3) COLLATE utf8mb4_0900_ai_ci DEFAULT 'utf8mb4_0900_bin'"
    assert with_collations(text, dialect) == f"a VARCHAR(3) COLLATE {name} DEFAULT 'utf8mb4_0900_bin'"


@pytest.mark.parametrize(
    ("name", "written"),
    [("t_1", "t_1"), ("a-b", "a@002db"), ("A.b c", "A@002eb@0020c"), ("$", "@0024"), ("p-é", "p@002d@1g")],
)
def test_a_name_is_found_as_innodb_writes_it(name: str, written: str) -> None:
    pattern = re.compile(in_file_name(name))
    assert pattern.fullmatch(written)
    assert not pattern.fullmatch(f"{written}x")


def test_only_mysql_gets_an_expression_as_the_default_of_a_text() -> None:
    text = column_of(252, 65535, flag=1, charset="utf8mb4")
    filled = {dialect: column_text(text, dialect, fill=True).rpartition(" ")[2] for dialect in Dialect}
    assert filled == {Dialect.MARIADB: "''", Dialect.MYSQL: "('')", Dialect.TIDB: "''"}
