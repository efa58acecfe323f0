from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.codec.cells import block_of
from tests.filter.tables import EVERY_KIND, NOT_NULL, PRIMARY, VALUES, column, index, row_of, table
from tidegate.config.settings import EventFilterRule, FilterConfig
from tidegate.errors import Fatal
from tidegate.filter.event_filter import EventFilter
from tidegate.filter.rows import ignored, ignores
from tidegate.model.row import RowChange
from tidegate.model.schema import TableSchema

EVERYWHERE = ("*.*",)
SMALL = table(
    [
        column("id", 3, flag=NOT_NULL | PRIMARY),
        column("v", 3),
        column("s", 15, flen=9, collate="utf8mb4_bin"),
    ],
    pk_is_handle=True,
)


def made(
    *rules: EventFilterRule, start_ts: tuple[int, ...] = (), case_sensitive: bool = False
) -> EventFilter:
    return EventFilter(FilterConfig(("*.*",), start_ts, rules), case_sensitive=case_sensitive)


def changed(old: dict[str, object], new: dict[str, object], schema: TableSchema = SMALL) -> RowChange:
    return row_of(schema, new, old)  # type: ignore[arg-type]


INSERT = row_of(SMALL, {"id": 1, "v": 5})
UPDATE = changed({"id": 1, "v": 5}, {"id": 1, "v": 6})
DELETE = replace(row_of(SMALL, None, {"id": 1, "v": 6}), start_ts=77)


def kept(rules: EventFilter, *changes: RowChange) -> list[RowChange]:
    """Return the rows that remain of a block, after the row-wise twin has agreed."""
    block = block_of(list(changes))
    positions = rules.remaining(block).position.tolist()
    found = rules.rules_of(block.table)
    start_ts = [77] if rules.skips(77) else []
    assert positions == [i for i, change in enumerate(changes) if not ignores(change, found, start_ts)]
    return [changes[i] for i in positions]


def test_without_a_rule_the_block_itself_is_passed_on() -> None:
    rules, block = made(), block_of([INSERT, UPDATE])
    assert not rules.concerns_rows
    assert rules.remaining(block) is block


def test_a_rule_about_other_tables_or_ddl_leaves_the_block_alone() -> None:
    rules = made(EventFilterRule(("other.*",), ("insert",)), EventFilterRule(EVERYWHERE, ("all ddl",)))
    block = block_of([INSERT])
    assert rules.concerns_rows
    assert rules.remaining(block) is block
    assert not made(EventFilterRule(EVERYWHERE, ("all ddl",), ("drop",))).concerns_rows


@pytest.mark.parametrize(
    ("events", "left"),
    [
        (("insert",), [UPDATE, DELETE]),
        (("update", "delete"), [INSERT]),
        (("all dml",), []),
        (("drop table",), [INSERT, UPDATE, DELETE]),
    ],
)
def test_operations_are_ignored_by_name(events: tuple[str, ...], left: list[RowChange]) -> None:
    assert kept(made(EventFilterRule(EVERYWHERE, events)), INSERT, UPDATE, DELETE) == left


def test_transactions_are_left_out_by_their_start_ts() -> None:
    assert kept(made(start_ts=(77, 99)), INSERT, DELETE, UPDATE) == [INSERT, UPDATE]
    largest = (1 << 64) - 1
    assert kept(made(start_ts=(largest,)), replace(INSERT, start_ts=largest - 1)) != []


def test_each_expression_sees_its_own_image() -> None:
    rule = EventFilterRule(
        EVERYWHERE,
        ignore_insert_value_expr="v = 5",
        ignore_update_old_value_expr="v = 100",
        ignore_update_new_value_expr="v = 6",
        ignore_delete_value_expr="v = 5",
    )
    other = changed({"id": 1, "v": 100}, {"id": 1, "v": 7})
    passing = changed({"id": 1, "v": 6}, {"id": 1, "v": 5})
    assert kept(made(rule), INSERT, UPDATE, DELETE, other, passing) == [DELETE, passing]


def test_only_the_integer_one_drops_a_row() -> None:
    rows = [row_of(SMALL, {"id": n, "v": n}) for n in (0, 1, 2, -1)]
    assert kept(made(EventFilterRule(EVERYWHERE, ignore_insert_value_expr="v")), *rows) == [
        rows[0],
        rows[2],
        rows[3],
    ]
    assert kept(made(EventFilterRule(EVERYWHERE, ignore_insert_value_expr="v <> 0")), *rows) == [rows[0]]
    assert kept(made(EventFilterRule(EVERYWHERE, ignore_insert_value_expr="v / 1")), *rows) == rows
    assert kept(made(EventFilterRule(EVERYWHERE, ignore_insert_value_expr="NULL")), *rows) == rows


def test_matchers_follow_the_changefeeds_case() -> None:
    rule = EventFilterRule(("TEST.T",), ("insert",))
    assert kept(made(rule), INSERT) == []
    assert kept(made(rule, case_sensitive=True), INSERT) == [INSERT]


def test_an_expression_that_does_not_fit_hurts_when_a_row_needs_it() -> None:
    rules = made(
        EventFilterRule(EVERYWHERE, ignore_insert_value_expr="gone > 1"),
        EventFilterRule(EVERYWHERE, ("update",)),
    )
    assert kept(rules, UPDATE, DELETE) == [DELETE]
    with pytest.raises(Fatal, match="cannot find column 'gone'"):
        rules.remaining(block_of([INSERT]))


def test_a_row_that_cannot_be_computed_stops_the_feed_unless_it_is_ignored() -> None:
    """An earlier rule may have ignored the row already."""
    rule = EventFilterRule(EVERYWHERE, ignore_insert_value_expr="s > 3")
    bad, good = row_of(SMALL, {"id": 1, "s": b"pear"}), row_of(SMALL, {"id": 2, "s": b"4"})
    with pytest.raises(Fatal, match="commit ts 10") as error:
        made(rule).remaining(block_of([good, bad]))
    assert "'pear' is not a number" in error.value.why
    first = EventFilterRule(EVERYWHERE, ignore_insert_value_expr="s = 'pear'")
    assert kept(made(first, rule), bad, good) == []


def test_updates_of_only_the_named_columns_are_ignored() -> None:
    rules = made(EventFilterRule(EVERYWHERE, ignore_update_only_columns=("V", "id", "unknown")))
    of_text = changed({"id": 1, "v": 1, "s": b"a"}, {"id": 1, "v": 2, "s": b"b"})
    of_null = changed({"id": 1, "v": None, "s": b"a"}, {"id": 1, "v": 2, "s": b"a"})
    of_key = changed({"id": 1}, {"id": 2})
    nothing = changed({"id": 1, "v": 1}, {"id": 1, "v": 1})
    assert kept(rules, UPDATE, of_text, of_null, of_key, nothing, INSERT) == [of_text, of_key, INSERT]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_watched_columns_of_every_kind_are_compared(data: st.DataObject) -> None:
    old = {name: data.draw(st.none() | values, name) for name, values in VALUES.items()}
    touched = data.draw(st.sets(st.sampled_from(sorted(VALUES)), max_size=3))
    new = old | {name: data.draw(st.none() | VALUES[name], f"new {name}") for name in touched}
    named = data.draw(st.sets(st.sampled_from(sorted(VALUES)), max_size=8))
    rules = made(EventFilterRule(EVERYWHERE, ignore_update_only_columns=tuple(named)))
    change = row_of(EVERY_KIND, new, old)
    block = block_of([change])
    found = rules.rules_of(EVERY_KIND)
    assert ignored(block, found).tolist() == [ignores(change, found)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("iud"), st.integers(0, 4), st.integers(0, 4), st.integers(1, 3)), min_size=1
    ),
    st.sets(st.sampled_from(["insert", "update", "delete"])),
    st.sets(st.integers(1, 3)),
)
def test_blocks_keep_what_rows_keep(
    changes: list[tuple[str, int, int, int]], events: set[str], start_ts: set[int]
) -> None:
    rules = made(
        EventFilterRule(EVERYWHERE, tuple(events)),
        EventFilterRule(
            EVERYWHERE,
            ignore_insert_value_expr="v % 2 = 0",
            ignore_update_old_value_expr="v > 2",
            ignore_update_new_value_expr="v < 1",
            ignore_delete_value_expr="v between 1 and 2",
        ),
        start_ts=tuple(start_ts),
    )
    rows = [
        replace(
            row_of(
                SMALL,
                None if kind == "d" else {"id": i, "v": new},
                None if kind == "i" else {"id": i, "v": old},
            ),
            start_ts=start,
        )
        for i, (kind, new, old, start) in enumerate(changes)
    ]
    found = rules.rules_of(SMALL)
    stamps = np.array(sorted(start_ts), np.int64)
    wanted = [ignores(row, found, start_ts) for row in rows]
    assert ignored(block_of(rows), found, stamps).tolist() == wanted
    assert rules.remaining(block_of(rows)).position.tolist() == [i for i, out in enumerate(wanted) if not out]


def test_key_columns_are_always_watched() -> None:
    keyed = table([column("a", 3, flag=NOT_NULL), column("b", 3)], [index("uk", [0, 1])])
    rules = made(EventFilterRule(EVERYWHERE, ignore_update_only_columns=("a", "b")))
    change = changed({"a": 1, "b": 1}, {"a": 1, "b": 2}, keyed)
    assert kept(rules, change) == [change]
