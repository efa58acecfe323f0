"""MariaDB, MySQL and TiDB: how each is recognized, and where their SQL differs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.consumer.mysql.test_ddl import column_of
from tests.consumer.one_table import OneTable
from tidegate.consumer.ddl.ddl_steps import Source
from tidegate.consumer.mysql import prune
from tidegate.consumer.mysql.dialect import Dialect, default_of_text, dialect_of
from tidegate.consumer.mysql.exchange import in_file_name, partition_name
from tidegate.consumer.mysql.found import Found, Unique, adopted
from tidegate.consumer.mysql.parts import check_size
from tidegate.consumer.mysql.prune import DELETED_ROWS
from tidegate.consumer.mysql.rendering import has_native_json
from tidegate.consumer.mysql.replay import with_collations
from tidegate.consumer.mysql.tables import alterations, column_text, create_table
from tidegate.consumer.table import definition
from tidegate.errors import Fatal
from tidegate.workload.definitions import NOT_NULL, ColumnSpec

BAG = OneTable.of([ColumnSpec("a", 3, 11, flag=NOT_NULL)])
WIDER = OneTable.of([ColumnSpec(name, 3, 11, flag=NOT_NULL) for name in "abc"])
JSON_BAG = OneTable.of([ColumnSpec("j", 245, -1)])
PRIMARY_KEY = {
    "id": 1, "idx_name": {"O": "PRIMARY", "L": "primary"}, "state": 5, "is_unique": True, "is_primary": True,
    "idx_cols": [{"name": {"O": "a", "L": "a"}, "offset": 0, "length": -1}],
}  # fmt: skip
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
    assert filled == {Dialect.MARIADB: "''", Dialect.MYSQL: "('')", Dialect.TIDB: "NULL"}  # NOT NULL


def test_a_text_of_earlier_rows_that_tidb_takes_as_no_default_is_refused() -> None:
    added = column_of(245, -1, flag=1)
    assert "'null'" in column_text(added, Dialect.MARIADB, fill=True)
    assert column_text(added, Dialect.TIDB, fill=True) == "JSON NOT NULL", "TiDB fills it with null"
    assert "DEFAULT" not in column_text(added, Dialect.TIDB)
    assert default_of_text(Dialect.TIDB, "''", "c") == ""
    with pytest.raises(Fatal, match="earlier rows hold 'x'") as refused:
        default_of_text(Dialect.TIDB, "'x'", "c")
    assert "--skip-ddl" in refused.value.fix


@pytest.mark.parametrize(
    ("code", "default", "text", "first"),
    [
        (252, "", "TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", None),
        (245, "null", "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "JSON NOT NULL"),
    ],
)
def test_a_column_that_tidb_gives_no_default_becomes_nullable_later(
    code: int, default: str, text: str, first: str | None
) -> None:
    """Such a default comes from an upstream that is not strict. Older rows would hold NULL, and not it."""
    with_text = [ColumnSpec("a", 3, 11, flag=NOT_NULL), ColumnSpec("c", code, -1, text=code == 252)]
    info = OneTable.of(with_text).info
    info["cols"][1] |= {"default": default, "origin_default": default}
    held, made = (definition.from_info("shop", one, 1) for one in (BAG.info, info))
    sources = tuple(Source(column, column if column.name == "a" else None, None) for column in made.columns)
    assert alterations(held, made, sources, dialect=Dialect.TIDB) == [
        f"ADD COLUMN `c` {first or f'{text} NOT NULL'} AFTER `a`",
        f"MODIFY COLUMN `c` {text} NULL",
    ]
    assert f"`c` {text} NULL," in create_table(made, Dialect.TIDB), "the topic's rows have all values"


@pytest.mark.parametrize("clustered", [True, False])
def test_tidb_stores_rows_by_their_key_where_upstream_does(clustered: bool) -> None:
    info = BAG.info | {"pk_is_handle": False, "is_common_handle": clustered}
    info["index_info"] = [PRIMARY_KEY]
    made = definition.from_info("shop", info, 1)
    expected = f"PRIMARY KEY (`a`) {'' if clustered else 'NON'}CLUSTERED"
    assert expected in create_table(made, Dialect.TIDB)
    assert "CLUSTERED" not in create_table(made, Dialect.MYSQL)


def test_a_table_whose_old_rows_tidb_deletes_is_not_adopted() -> None:
    seen = Found("InnoDB", "BASE TABLE", (), (), (Unique("PRIMARY", ("a",), True, False),), (), expires=True)
    with pytest.raises(Fatal, match="TTL_ENABLE='OFF'"):
        adopted(seen, ("shop", "t"), 1)


def test_tidb_gets_each_change_of_a_table_as_a_statement() -> None:
    held, made = (definition.from_info("shop", one.info, 1) for one in (BAG, WIDER))
    sources = tuple(Source(column, column if column.name == "a" else None, None) for column in made.columns)
    together = alterations(held, made, sources, dialect=Dialect.MYSQL)
    single = alterations(held, made, sources, dialect=Dialect.TIDB)
    assert (len(together), len(single)) == (2, 4), "two columns are added, with a default that new rows lack"
    assert ", ".join(single) == ", ".join(together)


@pytest.mark.parametrize(
    ("dialect", "found", "limit"),
    [(Dialect.TIDB, [DELETED_ROWS, DELETED_ROWS, 3], True), (Dialect.MARIADB, [DELETED_ROWS], False)],
)
def test_rows_of_a_partition_go_in_transactions_that_tidb_can_hold(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect, found: list[int], limit: bool
) -> None:
    monkeypatch.setattr(prune, "conditions", lambda *_: [b"`a`=1"])
    ran, left = list[bytes](), iter(found)

    class Deleting:
        def run_ddl(self, statement: bytes) -> int:
            ran.append(statement)
            return next(left)

    hold = Deleting()
    hold.dialect = dialect
    prune.prune(hold, ("shop", "t"), None)
    assert len(ran) == len(found)
    assert {text.endswith(f" LIMIT {DELETED_ROWS}".encode()) for text in ran} == {limit}


class Part:
    """As much of a `Parted` as its size."""

    name, size = ("shop", "items"), 1000


@pytest.mark.parametrize("most", [None, 10_000])
def test_a_step_in_parts_is_never_one_transaction_at_tidb(most: int | None) -> None:
    assert not check_size([Part()], most, 4, "here", Dialect.MARIADB)
    assert check_size([Part()], most, 4, "here", Dialect.TIDB)
    with pytest.raises(Fatal, match="larger than TiDB should hold") as refused:
        check_size([Part()], most, 1, "here", Dialect.TIDB)
    assert "--atomicity table" in refused.value.fix
    assert "--transaction-max-bytes" not in str(refused.value)


def test_a_partition_by_key_is_another_one_only_outside_of_tidb() -> None:
    def ask(*_: object) -> list[tuple[object, ...]]:
        return [("p0", "KEY")]

    assert partition_name(ask, Dialect.TIDB, ("shop", "t"), "P0") == "p0"
    with pytest.raises(Fatal, match="spread by KEY"):
        partition_name(ask, Dialect.MYSQL, ("shop", "t"), "P0")


@pytest.mark.parametrize("dialect", Dialect)
def test_json_of_a_table_without_a_key_is_compared_in_the_servers_own_form(dialect: Dialect) -> None:
    """A table that SQL has made has it; one that the consumer renders has LONGTEXT."""
    rendered = definition.from_info("shop", JSON_BAG.info, 1)
    made = replace(rendered, info=None)
    forms = [has_native_json(one, dialect) for one in (rendered, made)]
    assert forms == [False, dialect is not Dialect.MARIADB]


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("clustered", [True, False])
def test_a_clustered_key_is_not_changed_at_tidb(clustered: bool, dialect: Dialect) -> None:
    """TiDB refuses it at the first statement, after a column may have been added and filled."""
    info = WIDER.info | {"pk_is_handle": False, "is_common_handle": clustered, "index_info": [PRIMARY_KEY]}
    other = PRIMARY_KEY | {"idx_cols": [{"name": {"O": "b", "L": "b"}, "offset": 1, "length": -1}]}
    held, made = (definition.from_info("shop", one, 1) for one in (info, info | {"index_info": [other]}))
    if clustered and dialect is Dialect.TIDB:
        with pytest.raises(Fatal, match="it is clustered") as refused:
            alterations(held, made, None, dialect=dialect)
        assert f"table {held.name}, primary key a" in refused.value.where
        assert "--skip-ddl" in refused.value.fix
    else:
        text = ", ".join(alterations(held, made, None, dialect=dialect))
        assert text.startswith("DROP PRIMARY KEY, ADD PRIMARY KEY (`b`)")
