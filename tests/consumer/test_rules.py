"""Rules for tables, names and columns: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from tidegate.consumer.selecting.rules import NO_RULES, Route, Rules, routed, routed_schemas
from tidegate.errors import Fatal, InvalidInput
from tidegate.tidb.table_filter import ColumnsOfTables


@pytest.mark.parametrize(
    ("route", "name", "target"),
    [
        ("shop.*=copy.*", ("shop", "orders"), ("copy", "orders")),
        ("shop.*=copy.*", ("Shop", "Orders"), ("copy", "Orders")),
        ("shop.*=copy.*", ("shop2", "orders"), None),
        ("shop.orders=copy.o", ("shop", "orders"), ("copy", "o")),
        ("shop.orders=copy.o", ("shop", "orders2"), None),
        ("shop_*.*=all_*.*", ("shop_eu", "orders"), ("all_eu", "orders")),
        ("*.log_*=logs.*", ("shop", "log_2024"), ("logs", "2024")),
        ("*.a*a=x.b*b", ("shop", "a"), None),
        ("*.a*a=x.b*b", ("shop", "aa"), ("x", "bb")),
        ("*.*=*_copy.*", ("shop", "orders"), ("shop_copy", "orders")),
        ("`my.db`.`a``=b`=`x y`.`*`", ("my.db", "a`=b"), ("x y", "*")),
    ],
)
def test_a_route_says_where_a_table_goes(
    route: str, name: tuple[str, str], target: tuple[str, str] | None
) -> None:
    assert Route.of(route).target(name) == target


@pytest.mark.parametrize(
    ("route", "why"),
    [
        ("shop.orders", "not two names"),
        ("shop=copy", "not two names"),
        ("shop.a-b=copy.c", "not two names"),
        ("shop.a=copy.*", "needs one in the same name"),
        ("*.a=copy.*", "needs one in the same name"),
        ("shop.a*b*=copy.*", "more than one"),
        ("shop.*=tidegate.*", "keeps its own tables"),
        ("shop.*=_Tidegate.*", "keeps its own tables"),
        ("shop.*=mysql.*", "the server's own schema"),
    ],
)
def test_a_route_that_means_nothing_is_refused(route: str, why: str) -> None:
    with pytest.raises(InvalidInput, match="the route") as refused:
        Rules(route=(route,)).routes()
    assert why in refused.value.why


def test_the_first_route_counts_and_other_tables_keep_their_names() -> None:
    routes = Rules(route=("shop.a=x.b", "shop.*=y.*")).routes()
    assert [routed(("shop", name), routes) for name in "ab"] == [("x", "b"), ("y", "b")]
    assert routed(("mart", "a"), routes) == ("mart", "a")


@pytest.mark.parametrize("to", ["tide*.*", "mys*.*", "x.*" + "_" * 60])
def test_a_route_leads_to_no_name_that_a_target_may_not_have(to: str) -> None:
    routes = Rules(route=(f"s*.*={to}",)).routes()
    with pytest.raises(Fatal, match="no table at the target may have"):
        routed(("sgate" if to.startswith("tide") else "sql", "orders"), routes)


def test_a_schema_leads_to_all_that_its_tables_lead_to() -> None:
    routes = Rules(route=("shop.a=x.b", "sh*.b_*=y*.*", "shop.*=z.*", "*.*=never.*")).routes()
    assert routed_schemas("shop", routes) == ["x", "yop", "z"]
    assert routed_schemas("shelf", routes[:3]) == ["yelf", "shelf"]


def test_exclude_counts_whatever_include_says() -> None:
    def followed(rules: Rules) -> list[str]:
        tables = rules.tables()
        names = ["shop.a", "shop.tmp", "mart.a"]
        return [name for name in names if tables is None or tables.matches(*name.split("."))]

    assert followed(NO_RULES) == ["shop.a", "shop.tmp", "mart.a"]
    assert followed(Rules(include=("shop.*",))) == ["shop.a", "shop.tmp"]
    assert followed(Rules(include=("*.*", "!shop.*"))) == ["mart.a"]
    assert followed(Rules(exclude=("*.tmp",))) == ["shop.a", "mart.a"]
    assert followed(Rules(include=("shop.*", "shop.tmp"), exclude=(" SHOP.tmp",))) == ["shop.a"]
    with pytest.raises(InvalidInput, match="begins with '!'"):
        Rules(exclude=("!shop.*",)).tables()
    with pytest.raises(InvalidInput, match="cannot be read"):
        Rules(include=("shop",)).tables()


def test_rules_are_kept_word_for_word() -> None:
    rules = Rules(("a.*",), ("a.b",), ("a.c=x.y",), ("*.*.z",))
    assert rules.given == ("--include a.*", "--exclude a.b", "--route a.c=x.y", "--drop-column *.*.z")


def test_columns_are_named_without_case_by_three_wildcards() -> None:
    columns = ColumnsOfTables(["shop.users.phone", "*.log_?.`a.b`", "", "# nothing", "x.y.secret_*"])
    assert columns.matches("SHOP", "Users", "PHONE")
    assert columns.matches("mart", "log_1", "a.b")
    assert columns.matches("x", "y", "secret_key")
    assert not columns.matches("x", "y", "phone")
    assert not columns.matches("shop", "users2", "phone")
    assert columns.of_table("x", "y") == (2,)
    assert not ColumnsOfTables([])


@pytest.mark.parametrize("rule", ["phone", "users.phone", "shop.users.", "!shop.users.phone", "a.b.c.d"])
def test_a_rule_for_columns_that_cannot_be_read_is_refused(rule: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        Rules(drop_column=(rule,)).columns()
