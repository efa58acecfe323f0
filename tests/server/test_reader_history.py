"""Where a query of typed rows must stop, by the DDL of its table; and what its options may say."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.small_tables import ID, _info, number, text

from tidegate.control.metadata import FeedId
from tidegate.errors import InvalidInput
from tidegate.server.changefeeds.new_feed import Refused
from tidegate.server.changefeeds.reader_history import History, Query, check_columns, rules_of
from tidegate.server.changefeeds.readers import Ticket, _seal
from tidegate.sink.reader.changes import Definition

RULE = "`shop`.`acc`"
NARROW, WIDE = _info(7, "acc", [ID, number("n")]), _info(7, "acc", [ID, number("n"), text("t")])
ADD_COLUMN, ADD_INDEX, DROP_TABLE, CREATE_TABLE, TRUNCATE, RENAME, DROP_SCHEMA = 5, 7, 4, 3, 11, 14, 2


def line(
    ts: int, action: int, info: dict[str, Any] | None, table: str = "acc", old: str = "acc"
) -> Definition:
    return Definition(ts, 0, "shop", table, "shop", old, action, f"statement {action}", info)


def history(*lines: Definition) -> History:
    return History([Definition(10, -1, "shop", "acc", "shop", "acc", 0, "", NARROW), *lines], RULE)


def asks(columns: pa.Schema | None, after_ddl: int = 0) -> Query:
    return Query("one", columns, after_ddl)


@pytest.mark.parametrize(
    ("what", "made", "stops"),
    [
        ("a column more", line(20, ADD_COLUMN, WIDE), 20),
        ("an index more", line(20, ADD_INDEX, NARROW), 0),
        ("all rows gone", line(20, TRUNCATE, NARROW), 20),
        ("the table gone", line(20, DROP_TABLE, None), 20),
        ("renamed away", line(20, RENAME, NARROW, table="other"), 20),
        ("another table", line(20, ADD_COLUMN, WIDE, table="other", old="other"), 0),
        ("the schema gone", line(20, DROP_SCHEMA, None, table="", old=""), 20),
    ],
)
def test_rows_on_both_sides_of_a_ddl_are_read_apart_where_it_matters(
    what: str, made: Definition, stops: int
) -> None:
    found = history(made)
    assert found.stop(10) == stops, what
    assert found.stop(20) == 0


def test_several_ddl_stop_a_query_one_by_one() -> None:
    found = history(line(20, ADD_COLUMN, WIDE), line(25, ADD_INDEX, WIDE), line(30, ADD_COLUMN, NARROW))
    assert [found.stop(ts) for ts in (10, 19, 20, 25, 29, 30)] == [20, 20, 30, 30, 30, 0]
    assert [found.after(ts) == found.after(10) for ts in (15, 20, 29, 30)] == [True, False, False, True]
    assert found.after(20).names == ["_tidegate_op", "_tidegate_commit_ts", "_tidegate_seq", "id", "n", "t"]


def test_a_query_continues_only_with_the_columns_that_rows_have_then() -> None:
    found = history(line(20, ADD_COLUMN, WIDE))
    narrow, wide = found.after(10), found.after(20)
    check_columns(found, asks(narrow), 19)
    check_columns(found, asks(wide), 20)
    with pytest.raises(Refused, match="statement 5") as error:
        check_columns(found, asks(narrow), 20)
    assert "t string is new" in error.value.where
    for wrong in (asks(wide), asks(None)):
        with pytest.raises(Refused, match="other columns"):
            check_columns(found, wrong, 15)


def test_rows_removed_by_a_ddl_stop_a_query_until_it_acknowledges_the_ddl() -> None:
    """TRUNCATE removes rows without row changes."""
    found = history(line(20, TRUNCATE, NARROW))
    columns = found.after(10)
    check_columns(found, asks(columns), 19)
    with pytest.raises(Refused, match="statement 11") as error:
        check_columns(found, asks(columns), 20)
    assert '"after-ddl", "20"' in error.value.fix
    with pytest.raises(Refused):
        check_columns(found, asks(columns, after_ddl=19), 20)
    check_columns(found, asks(columns, after_ddl=20), 20)
    check_columns(found, asks(columns), 20, replay=True)
    check_columns(found, asks(columns), 21)


def test_a_dropped_table_ends_a_query_and_a_recreated_one_continues_it() -> None:
    found = history(line(20, DROP_TABLE, None), line(30, CREATE_TABLE, NARROW))
    columns = found.after(10)
    assert (found.after(20), found.stop(10), found.stop(20)) == (None, 20, 30)
    with pytest.raises(Refused, match="statement 4"):
        check_columns(found, asks(columns), 20)
    check_columns(found, asks(columns, after_ddl=20), 20)
    with pytest.raises(Refused, match="not there after ts 25"):
        check_columns(found, asks(columns), 25)
    check_columns(found, asks(columns), 30)


@pytest.mark.parametrize(
    ("tables", "rows", "rules"),
    [
        (["shop.acc"], "typed", ["`shop`.`acc`"]),
        (["shop.a.b"], "typed", ["`shop`.`a.b`"]),
        (["shop.a`b"], "typed", ["`shop`.`a``b`"]),
        (["shop.*", "!shop.x"], "generic", ["shop.*", "!shop.x"]),
    ],
)
def test_typed_rows_are_of_one_table_by_its_exact_name(
    tables: list[str], rows: str, rules: list[str]
) -> None:
    assert list(rules_of(tables, rows)) == rules


@pytest.mark.parametrize(
    ("tables", "rows"),
    [([], "typed"), ([""], "generic"), (["acc"], "typed"), (["shop.*"], "typed"), (["a.b", "a.c"], "typed"),
     (["a.b"], "tables"), (["a.[b]"], "typed"), (["!a.b"], "typed")],
)  # fmt: skip
def test_what_is_no_table_is_refused(tables: list[str], rows: str) -> None:
    with pytest.raises(InvalidInput):
        rules_of(tables, rows)


def test_a_ticket_opens_what_it_was_made_for() -> None:
    secret, made = b"s" * 32, Ticket(FeedId("default", "r"), "one", 5, 9, 1, 4)
    text_of_it = made.sealed(secret)
    ticket, body, seal = Ticket.opened(text_of_it)
    assert (ticket, seal) == (made, _seal(body, secret))
    assert _seal(body, b"t" * 32) != seal
    for other in (
        Ticket(FeedId("default", "r"), "one", 4, 9, 1, 4),
        Ticket(FeedId("default", "s"), "one", 5, 9, 1, 4),
    ):
        _, other_body, _ = Ticket.opened(other.sealed(secret).partition(".")[0] + "." + seal)
        assert _seal(other_body, secret) != seal
    for bad in ("", "x", ".", "e30=.aa", "W10=.aa", text_of_it[5:], "A" * 5000):
        with pytest.raises(InvalidInput):
            Ticket.opened(bad)
