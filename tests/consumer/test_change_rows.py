"""The rows of a change log: which changes become which rows, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.consumer.applying.change_rows import check_columns, logged
from tidegate.consumer.applying.net_effect import Changes
from tidegate.consumer.table.convert import TargetColumn
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal
from tidegate.model.cells import DELETE, INSERT, UPDATE

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
Image = tuple[int | None, str | None] | None


def changes(*made: tuple[int, int, Image, Image], order: Sequence[int] | None = None) -> Changes:
    """Operation, ts, row before, row after; `order`: their offsets."""
    count = len(made)
    olds, news = ([one[at] or (None, None) for one in made] for at in (2, 3))
    return Changes(
        op=np.array([one[0] for one in made], np.uint8),
        commit_ts=np.array([one[1] for one in made], np.uint64),
        partition=np.zeros(count, np.int32),
        offset=np.array(order if order is not None else range(count), np.int64),
        seq=np.zeros(count, np.int32),
        new=pa.Table.from_arrays([pa.array(column, f.type) for column, f in _columns(news)], schema=SCHEMA),
        old=pa.Table.from_arrays([pa.array(column, f.type) for column, f in _columns(olds)], schema=SCHEMA),
    )


def _columns(rows: list[Any]) -> list[tuple[list[Any], pa.Field]]:
    return [([row[at] for row in rows], SCHEMA.field(at)) for at in range(2)]


def rows(made: Changes, keys: Sequence[str] = ("id",), *, knows_old: bool = True) -> list[tuple[Any, ...]]:
    effect = logged(made, keys, knows_old=knows_old)
    assert effect.deletes.num_rows == 0
    return [tuple(row.values()) for row in effect.inserts.to_pylist()]


def test_each_change_is_a_row_and_an_update_has_the_row_before_it() -> None:
    made = changes((INSERT, 5, None, (1, "a")), (UPDATE, 6, (1, "a"), (1, "b")), (DELETE, 7, (1, "b"), None))
    assert rows(made) == [
        ("insert", 5, 21, 1, "a"),
        ("before", 6, 24, 1, "a"),
        ("update", 6, 25, 1, "b"),
        ("delete", 7, 28, 1, "b"),
    ]


def test_an_update_of_the_key_is_a_delete_and_an_insert() -> None:
    """Two rows that exchange their keys free both before one is taken."""
    made = changes((UPDATE, 5, (1, "a"), (2, "a")), (UPDATE, 5, (2, "b"), (1, "b")))
    assert rows(made) == [
        ("delete", 5, 20, 1, "a"),
        ("delete", 5, 20, 2, "b"),
        ("insert", 5, 21, 2, "a"),
        ("insert", 5, 21, 1, "b"),
    ]


def test_a_key_that_is_freed_and_taken_at_one_ts_has_both_in_order() -> None:
    made = changes((INSERT, 5, None, (1, "new")), (DELETE, 5, (1, "old"), None))
    assert rows(made) == [("delete", 5, 20, 1, "old"), ("insert", 5, 21, 1, "new")]


def test_a_change_that_was_sent_again_is_one_row() -> None:
    insert, update = (INSERT, 5, None, (1, "a")), (UPDATE, 6, (1, "a"), (1, "b"))
    moved = (UPDATE, 7, (1, "b"), (2, "b"))
    once = rows(changes(insert, update, moved))
    assert rows(changes(insert, update, insert, update, moved, moved)) == once
    assert rows(changes(insert, update, moved, moved, order=[2, 0, 3, 1])) == once


def test_a_row_without_a_key_counts_as_often_as_it_was_inserted() -> None:
    twice = [(INSERT, 5, None, (1, "a"))] * 2
    assert rows(changes(*twice), ()) == [("insert", 5, 21, 1, "a")] * 2
    # Sent again after a later change: the ts falls, so it is a run of its own.
    again = changes(*twice, (DELETE, 6, (1, "a"), None), *twice)
    assert rows(again, ()) == [("insert", 5, 21, 1, "a")] * 2 + [("delete", 6, 24, 1, "a")]
    updated = changes((UPDATE, 5, (1, "a"), (1, "b")))
    assert rows(updated, ()) == [("delete", 5, 20, 1, "a"), ("insert", 5, 21, 1, "b")]


def test_without_old_values_an_insert_may_be_an_update() -> None:
    made = changes((INSERT, 5, None, (1, "a")), (INSERT, 6, None, (1, "b")), (DELETE, 7, (1, None), None))
    assert rows(made, knows_old=False) == [
        ("update", 5, 21, 1, "a"),
        ("update", 6, 25, 1, "b"),
        ("delete", 7, 28, 1, None),
    ]


def test_an_update_with_the_old_key_alone_has_no_row_before_it() -> None:
    assert rows(changes((UPDATE, 5, (1, None), (1, "a")))) == [("update", 5, 21, 1, "a")]


def test_a_ts_of_the_far_future_is_refused() -> None:
    """Four times the ts has to fit into the column of the sequence."""
    last = (1 << 61) - 2
    assert rows(changes((INSERT, last, None, (1, "a")))) == [("insert", last, 4 * last + 1, 1, "a")]
    with pytest.raises(Fatal, match="too large"):
        rows(changes((INSERT, last + 2, None, (1, "a"))))


def test_a_column_with_a_name_of_the_logs_is_refused() -> None:
    columns = (TargetColumn("id", 8, pa.int64()), TargetColumn("_tidegate_op", 15, pa.string()))
    with pytest.raises(Fatal, match="name the change log uses for its own"):
        check_columns(Definition("shop", "t", 1, 1, columns, ("id",), None))
