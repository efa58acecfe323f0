"""Updates of unique keys are split, plain and compiled alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec import golden
from tests.codec.cells import block_of
from tests.golden_folder import count, names
from tidegate.dispatcher.split import Part, changes_key, key_columns, part_of, split_block, split_rows
from tidegate.model.row import RowChange


@pytest.mark.golden
@pytest.mark.parametrize("name", names("rows"))
def test_golden_rows_that_ticdc_splits_are_split(name: str) -> None:
    case = golden.case(name)
    for seq, record in case.records.items():
        row = case.row(seq)
        if row.is_update:
            assert changes_key(row) == bool(record["mounted"].get("split")), (name, seq)
            count("rows", f"updates {'split' if changes_key(row) else 'left whole'}")


@pytest.mark.golden
@pytest.mark.parametrize("name", names("rows"))
def test_no_golden_update_changes_an_integer_handle(name: str) -> None:
    for row in _rows(name):
        if row.is_update and row.table.pk_is_handle:
            assert row.old is not None
            assert row.new is not None
            assert [row.old[i] == row.new[i] for i in row.table.handle_columns] == [True]
            count("rows", "updates with the same integer handle")


@pytest.mark.parametrize(
    ("name", "can_change"),
    [("key_int_signed", False), ("key_int_unsigned", False), ("key_common_general_ci", True)],
)
def test_an_update_can_change_a_key_column_unless_it_is_an_integer_handle(
    name: str, can_change: bool
) -> None:
    for table in golden.case(name).tables.values():
        assert table.handle_columns
        assert {*table.handle_columns} & {*key_columns(table)} == (
            {*table.handle_columns} if can_change else set()
        )


def test_a_table_with_an_integer_handle_alone_has_no_halves() -> None:
    rows = [row for row in _rows("key_int_signed") if row.is_update]
    assert key_columns(rows[0].table) == ()
    block = block_of([row for row in rows if row.table is rows[0].table])
    for part in (Part.SPLIT, Part.UPDATES, Part.WHOLE):
        assert part_of(block, part) == (block, 0)
    for part in (Part.OLD_HALVES, Part.NEW_HALVES):
        found, count = part_of(block, part)
        assert (len(found), count) == (0, 0)


def _rows(name: str = "key_uk_notnull") -> list[RowChange]:
    case = golden.case(name)
    return [case.row(seq) for seq in case.records]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 3), st.booleans()), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_blocks_split_as_rows_do(picks: list[tuple[int, int, bool]]) -> None:
    pool = [row for row in _rows() if row.table is _rows()[0].table]
    rows: list[RowChange] = []
    for pick, step, reverse in picks:
        row = pool[pick % len(pool)]
        ts = (rows[-1].commit_ts if rows else 100) + step // 2
        other = pool[(pick // 7) % len(pool)]
        if reverse and row.new is not None and other.new is not None:
            row = replace(row, old=other.new)
        rows.append(replace(row, commit_ts=ts, start_ts=ts - 1))
    expected = split_rows(rows)
    block = split_block(block_of(rows))
    assert block.op.tolist() == [3 if row.is_delete else 1 if row.is_insert else 2 for row in expected]
    assert block.commit_ts.tolist() == [row.commit_ts for row in expected]
    assert block.handle.tolist() == [row.handle for row in expected]
