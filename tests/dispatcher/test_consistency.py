"""The consistency levels that are reported for each dispatcher, protocol and kind of target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.codec.entry import DdlTo
from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.consistency import (
    ROW,
    TABLE,
    TRANSACTION,
    Ddls,
    Order,
    Setting,
    Visibility,
    cost_of_pieces,
    order_of,
    promises,
    refusals,
)
from tidegate.dispatcher.partitions import RULES

BEST = Setting(
    Order.TABLES, pieces=False, topics=False, marks=True, ddls=Ddls.EVERYWHERE, seen=Visibility.TRANSACTIONS
)


def said(about: str, level: str, setting: Setting) -> str:
    (found,) = [one for one in promises(setting) if one.about == about]
    return {ROW: found.row, TABLE: found.table, TRANSACTION: found.transaction}[level]


def test_each_rule_has_its_order_and_the_weakest_counts() -> None:
    known = {
        "default": Order.TABLES,
        "table": Order.TABLES,
        "conflict": Order.ALIGNED,
        "index-value": Order.ROWS,
        "rowid": Order.ROWS,
        "columns": Order.VALUES,
        "ts": Order.NOTHING,
    }
    assert known.keys() == set(RULES)
    assert {name: order_of([DispatchRule(partition=name)]) for name in RULES} == known
    assert order_of([DispatchRule(partition="index-value", index="u")]) is Order.VALUES
    assert order_of([]) is Order.TABLES
    mixed = [DispatchRule(partition=name) for name in ("ts", "table", "columns")]
    assert order_of(mixed) is Order.NOTHING


def test_ddl_places_are_those_of_protocols() -> None:
    assert {one.value for one in Ddls} == {one.value for one in DdlTo}


@pytest.mark.parametrize("order", Order)
def test_transaction_level_keeps_order_and_unique_keys_in_every_setting(order: Order) -> None:
    setting = replace(BEST, order=order, pieces=True, topics=True)
    assert said("changes of one row", TRANSACTION, setting) == "in commit order"
    assert "free before" in said("unique keys", TRANSACTION, setting)
    assert said("a partition that lags", TRANSACTION, setting) == "delays everything"


@pytest.mark.parametrize(
    ("order", "row", "unique", "together"),
    [
        (Order.TABLES, "in commit order", "free before", "of one table together"),
        (
            Order.ALIGNED,
            "in commit order",
            "if readers wait at alignment marks",
            "apart, also those of one table",
        ),
        (Order.ROWS, "in commit order", "collide", "apart, also those of one table"),
        (Order.VALUES, "until a hashed column changes", "collide", "apart, also those of one table"),
        (Order.NOTHING, "may end up old, or twice", "collide", "together, but two transactions"),
        (Order.UNKNOWN, "otherwise old, or twice", "collide", "apart, also those of one table"),
    ],
)
def test_row_level_gives_up_what_the_dispatcher_does(
    order: Order, row: str, unique: str, together: str
) -> None:
    setting = replace(BEST, order=order, seen=Visibility.UNKNOWN)
    assert row in said("changes of one row", ROW, setting)
    assert unique in said("unique keys", ROW, setting)
    assert together in said("one transaction", ROW, setting)


def test_pieces_and_topics_of_tables_weaken_row_level() -> None:
    pieces = replace(BEST, pieces=True)
    assert "collide" in said("unique keys", ROW, pieces)
    assert "apart, also those of one table" in said("one transaction", ROW, pieces)
    by_ts = replace(BEST, order=Order.NOTHING, topics=True)
    assert "apart, also those of one table" in said("one transaction", ROW, by_ts)


def test_what_readers_of_a_target_see_of_a_transaction() -> None:
    whole = {seen: said("one transaction", TRANSACTION, replace(BEST, seen=seen)) for seen in Visibility}
    assert whole[Visibility.SNAPSHOTS].startswith("whole in each snapshot")
    assert whole[Visibility.TRANSACTIONS].startswith("whole for every reader")
    assert "tables may differ during a step" in whole[Visibility.TABLES]
    assert "lowest Resolved" in whole[Visibility.UNKNOWN]
    delta = replace(BEST, seen=Visibility.SNAPSHOTS)
    assert "not enforced" in said("unique keys", TRANSACTION, delta)
    assert said("one transaction", ROW, delta) == "whole in each snapshot, over all tables"
    assert "end up old, or twice" in said("one transaction", ROW, replace(delta, order=Order.VALUES))
    assert "every snapshot waits" in said("a partition that lags", ROW, delta)


@pytest.mark.parametrize("order", Order)
def test_table_level_is_transaction_level_within_a_topic(order: Order) -> None:
    for seen in Visibility:
        one = replace(BEST, order=order, seen=seen, pieces=True)
        assert all(promise.table == promise.transaction for promise in promises(one))
        several = replace(one, topics=True)
        assert "delays the tables of its topic" in said("a partition that lags", TABLE, several)
        for about in ("changes of one row", "unique keys", "a DDL", "a restart, a kill"):
            assert said(about, TABLE, several) == said(about, TRANSACTION, several)
        transaction = said("one transaction", TABLE, several)
        assert ("topic" in transaction) is (seen is not Visibility.SNAPSHOTS)


def test_where_ddl_messages_are_changes_what_is_said_of_ddl() -> None:
    of_topic = replace(BEST, seen=Visibility.UNKNOWN)
    assert "before all rows after it" in said("a DDL", ROW, of_topic)
    first = replace(of_topic, ddls=Ddls.FIRST)
    assert "partition 0 alone" in said("a DDL", ROW, first)
    assert "before all rows after it" in said("a DDL", TRANSACTION, first)
    assert "before all rows after it" in said("a DDL", ROW, replace(first, seen=Visibility.SNAPSHOTS))
    assert "not on the topic" in said("a DDL", TRANSACTION, replace(of_topic, ddls=Ddls.NOWHERE))


def test_levels_that_cannot_be_had_are_named_with_the_reason() -> None:
    assert refusals(BEST) == {}
    unmarked = replace(BEST, marks=False)
    assert refusals(unmarked).keys() == {TABLE, TRANSACTION}
    said = {one.about: one.row for one in promises(unmarked)}
    assert said.keys() == {one.about for one in promises(BEST)}
    assert "repeats itself" in said["changes of one row"]
    assert "is refused" in said["unique keys"]
    enforced = refusals(replace(BEST, row_mode=False))
    assert enforced.keys() == {ROW}
    assert "unique" in enforced[ROW]


def test_a_transaction_by_ts_comes_apart_if_its_tables_are_cut() -> None:
    by_ts = replace(BEST, order=Order.NOTHING)
    assert "together" in said("one transaction", ROW, by_ts)
    assert "apart" in said("one transaction", ROW, replace(by_ts, pieces=True))


@pytest.mark.parametrize("order", Order)
def test_the_cost_of_several_writers_is_said_for_each_dispatcher(order: Order) -> None:
    marked, unmarked = cost_of_pieces(order, marks=True), cost_of_pieces(order, marks=False)
    assert "a transaction's rows of a cut table may come apart, until Resolved" in marked
    assert "until Resolved" not in unmarked
    assert "carries no Resolved" in unmarked
    assert ("exchange a unique value" in marked) is (order in (Order.TABLES, Order.UNKNOWN)), "given up by it"
