"""DDL texts cut into what another database needs: kinds, names whatever they hold, and nothing of TiDB's."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.consumer.ddl.sql_replay import (
    AlterTable,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTables,
    ExchangePartition,
    Ignored,
    RenameTables,
    Statement,
    Truncate,
    Unknown,
    offset,
    read,
    tables,
    text_of,
)

T = ("s", "t")
BIN = "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

CASES: dict[str, Statement] = {
    "create database x": CreateSchema("x", BIN),
    "create schema if not exists x charset utf8mb4": CreateSchema(
        "x", "CHARACTER SET = utf8mb4 COLLATE utf8mb4_bin"
    ),
    "drop database if exists `x y`": DropSchema("x y"),
    "create table t (a bigint primary key auto_random) ttl=`a`+interval 1 day": CreateTable(
        T, "(`a` BIGINT PRIMARY KEY)"
    ),
    "create table if not exists x.t (a int, primary key (a) nonclustered) pre_split_regions=2": CreateTable(
        ("x", "t"), "(`a` INT, PRIMARY KEY(`a`))"
    ),
    "create table t (a int check (a > (1)) not null, constraint k check (a<>')'), b int, foreign key (b) "
    "references q(x))": CreateTable(T, "(`a` INT NOT NULL, `b` INT)"),
    "create table t (a varchar(3) charset latin1, b char collate utf8mb4_general_ci) engine=myisam, "
    "charset=utf8mb4 partition by hash(a) partitions 3": CreateTable(
        T,
        "(`a` VARCHAR(3) CHARACTER SET LATIN1 COLLATE latin1_bin, `b` CHAR COLLATE utf8mb4_general_ci) "
        "DEFAULT CHARACTER SET = UTF8MB4 COLLATE utf8mb4_bin PARTITION BY HASH (`a`) PARTITIONS 3",
    ),
    "create table t like x.u": CreateTable(T, "", ("x", "u")),
    "drop table if exists a, `b.c`.`d``e`": DropTables((("s", "a"), ("b.c", "d`e"))),
    "truncate table x.t": Truncate(("x", "t")),
    "rename table a to t, b to a, x.t to y.b": RenameTables(
        ((("s", "a"), T), (("s", "b"), ("s", "a")), (("x", "t"), ("y", "b")))
    ),
    "alter table t rename x.u": AlterTable(T, "", ("x", "u")),
    "alter table t rename to u, add column c int": AlterTable(T, "ADD COLUMN `c` INT", ("s", "u")),
    "alter table t rename column a to b, rename index i to j": AlterTable(
        T, "RENAME COLUMN `a` TO `b`, RENAME INDEX `i` TO `j`"
    ),
    "alter table t add column c int, algorithm=instant, lock=none, drop check k": AlterTable(
        T, "ADD COLUMN `c` INT"
    ),
    "alter table t drop partition p": AlterTable(T, "DROP PARTITION `p`"),
    "create unique index i on x.t (a, b desc) invisible lock=none": AlterTable(
        ("x", "t"), "ADD UNIQUE INDEX `i` (`a`, `b` DESC)"
    ),
    "drop index i on t": AlterTable(T, "DROP INDEX `i`"),
    "alter table t exchange partition p with table u": ExchangePartition(T, "p", ("s", "u")),
    "alter table t exchange partition p with table x.u, algorithm=inplace, lock=none": ExchangePartition(
        T, "p", ("x", "u")
    ),
    "alter table t exchange partition `p``0` with table x.`without` with validation": ExchangePartition(
        T, "p`0", ("x", "without")
    ),
    "alter table x.t exchange partition p with table u without validation": ExchangePartition(
        ("x", "t"), "p", ("s", "u"), validated=False
    ),
}
LEFT_OUT = [
    "alter table t placement policy=p",
    "alter table t set tiflash replica 1",
    "alter table t add constraint f foreign key (a) references u(b)",
    "alter table t add check (a > 1)",
    "alter table t engine=innodb",
    "alter database x charset utf8mb4",
    "create view v as select 1",
    "drop view v",
    "create sequence q",
]
REFUSED = {
    "alter table t exchange partition p with table u, add column c int": "exchanges a partition and changes",
    "alter table t exchange partition p with table u, exchange partition q with table w": "exchanges a",
    "recover table t": "brings rows back",
    "flashback database x": "brings rows back",
    "create table t as select 1": "no columns of its own",
    "grant all on *.* to u": "cannot be read",
    "create table t (a int": "cannot be read",
}


@pytest.mark.parametrize("query", CASES)
def test_a_statement_is_cut_into_kind_names_and_rest(query: str) -> None:
    assert read(query, "s") == CASES[query]


@pytest.mark.parametrize("query", CASES)
def test_a_statement_that_is_written_again_says_the_same(query: str) -> None:
    """Under its own names. TiDB's words for options may be others, once."""
    found = CASES[query]
    again = read(text_of(found), "another") if not isinstance(found, Ignored | Unknown) else found
    assert type(again) is type(found)
    if not isinstance(again, Ignored | Unknown) and not isinstance(found, Ignored | Unknown):
        assert tables(again) == tables(found)
        assert read(text_of(again), "another") == again


@pytest.mark.parametrize("query", LEFT_OUT)
def test_what_no_row_needs_is_left_out(query: str) -> None:
    assert isinstance(read(query, "s"), Ignored)


@pytest.mark.parametrize("query", REFUSED)
def test_what_cannot_be_run_elsewhere_is_said(query: str) -> None:
    found = read(query, "s")
    assert isinstance(found, Unknown)
    assert REFUSED[query] in found.why


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.sampled_from("`'\"./*#-; \\,()"),
    min_size=1,
    max_size=12,
)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@given(*[NAMES] * 4)
@example("/*T![x] a", "b */", "-- c", "`")
@example("'", "a'b", '"', "TO")
def test_names_may_hold_anything(one: str, other: str, schema: str, column: str) -> None:
    t, u, c = f"{quoted(schema)} . {quoted(one)}", quoted(other), quoted(column)
    first, second = (schema, one), ("s", other)
    assert read(f"drop /* {0} */ table {t}, {u} -- end", "s") == DropTables((first, second))
    assert read(f"rename table {t} to {u}", "s") == RenameTables(((first, second),))
    assert read(f"alter table {t} rename as {u}", "s") == AlterTable(first, "", second)
    made = read(f"create table {t} ({c} int /*T![auto_rand] auto_random */, {u} text)", "s")
    assert made == CreateTable(first, f"({c} INT, {u} TEXT)")
    assert read(f"alter table {t} drop column {c}", "s") == AlterTable(first, f"DROP COLUMN {c}")
    for found in (made, RenameTables(((first, second),)), AlterTable(first, "", second), Truncate(first)):
        assert read(text_of(found), "x") == found


@given(st.text(max_size=30))
@example("a */ b /*T! c")
@example("it's \\ ``")
def test_texts_stay_what_they_are(text: str) -> None:
    literal = "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0") + "'"
    found = read(f"create table t (a enum({literal}, 'b') comment {literal})", "s")
    assert isinstance(found, CreateTable)
    again = read(f"create table t {found.body}", "s")
    assert again == found  # nothing of it was taken for a comment or a word
    assert found.body.count("'b'") >= 1


def test_a_zone_is_an_offset_at_the_ddls_own_time() -> None:
    summer, winter = 1_720_000_000_000 << 18, 1_737_000_000_000 << 18
    assert [offset("Europe/Berlin", ts) for ts in (summer, winter)] == ["+02:00", "+01:00"]
    assert [offset(zone, summer) for zone in ("UTC", "+28800", "-12600")] == ["+00:00", "+08:00", "-03:30"]
