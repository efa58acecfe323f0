"""Cells as typed Arrow columns: the same values as the plain mounter's, in the target's types."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from tests.guarded import Guarded
from tests.mounter.golden_rows import CASES, GoldenRow, block_of, golden_rows, store_of
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind
from tidegate.mounter.columns import Losses, target_type, to_arrow
from tidegate.mounter.decode import MountOptions, mount
from tidegate.mounter.rows import rows_of
from tidegate.tidb.kernels.arrow import TILE
from tidegate.tidb.types import enum


def expected(column: Column, value: Value) -> Any:
    """A plain value as the target's type shows it in Python."""
    of_type = target_type(column)
    match column.kind, value:
        case _, None:
            return None
        case Kind.STRING, bytes(raw):
            return raw.decode(errors="replace")
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP, str(text):
            try:
                moment = datetime.fromisoformat(text)
            except ValueError:
                return None
            if column.kind is Kind.DATE:
                return date.fromisoformat(text)
            return moment.replace(tzinfo=UTC) if column.kind is Kind.TIMESTAMP else moment
        case Kind.ENUM, int(index):
            return enum.enum_name(index, column.elems)
        case Kind.SET, int(mask):
            return enum.set_names(mask, column.elems)
        case Kind.VECTOR, str(text):
            return [float(np.float32(number)) for number in orjson.loads(text)]
        case Kind.FLOAT, float(number):
            return float(np.float32(number))
        case _ if pa.types.is_decimal(of_type):
            return Decimal(str(value))
        case _:
            return value


@pytest.mark.parametrize("case", CASES)
def test_arrow_columns_hold_what_the_plain_rows_do(case: str) -> None:
    check(golden_rows(case))


@pytest.mark.parametrize("case", ["random_00", "types_decimals_wide", "types_enums_sets", "part_hash"])
def test_rows_of_many_tiles_are_as_those_of_one(case: str) -> None:
    rows = golden_rows(case)
    check([rows[i % len(rows)] for i in range(2 * TILE + 1)])
    check([rows[i % len(rows)] for i in range(2 * TILE)])


def check(rows: list[GoldenRow]) -> None:
    """Both images of the rows as Arrow columns, with the plain mounter's values."""
    mounted, _ = mount(
        block_of([row.entry for row in rows]), store_of(rows), MountOptions(force_replicate=True)
    )
    for block in mounted:
        changes = rows_of(block)
        new, old = to_arrow(block, "new"), to_arrow(block, "old")
        for at, column in enumerate(block.table.columns):
            for batch, images in ((new, [row.new for row in changes]), (old, [row.old for row in changes])):
                array = batch.column(at)
                array.validate(full=True)
                assert array.type == target_type(column)
                wanted = [None if image is None else expected(column, image[at]) for image in images]
                assert array.to_pylist() == wanted, column.name
                assert array.null_count == wanted.count(None)


def at_the_end_of_memory(block: pa.RecordBatch) -> pa.RecordBatch:
    """The block with values and old values that end where readable memory ends."""
    columns = []
    for name in block.schema.names:
        column = block.column(name)
        if name in ("value", "old_value"):
            data = b"".join(column.to_pylist())
            room = Guarded(data)
            guarded = pa.foreign_buffer(room.address, len(data), base=room)
            column = pa.Array.from_buffers(pa.binary(), len(column), [None, column.buffers()[1], guarded])
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=block.schema)


def test_text_at_the_end_of_readable_memory_is_copied_within_it() -> None:
    """Short texts are copied as 64 bytes, but only where so many can be read; else this crashes."""
    rows = golden_rows("types_texts")
    store, options = store_of(rows), MountOptions(force_replicate=True)
    for blocks in ([[row] for row in rows], [rows]):
        for some in blocks:
            block = block_of([row.entry for row in some])
            (found, _), (wanted, _) = (
                mount(each, store, options) for each in (at_the_end_of_memory(block), block)
            )
            assert [to_arrow(each) for each in found] == [to_arrow(each) for each in wanted]
            assert sum(map(len, found)) == len(some)


def test_dates_of_no_calendar_are_null_and_counted() -> None:
    rows = golden_rows("types_dates")
    mounted, _ = mount(
        block_of([row.entry for row in rows]), store_of(rows), MountOptions(force_replicate=True)
    )
    losses = Losses()
    lost = 0
    for block in mounted:
        batch = to_arrow(block, "new", losses)
        for at, column in enumerate(block.table.columns):
            if column.kind is Kind.DATE:
                values = [row.new[at] for row in rows_of(block) if row.new is not None]
                lost += sum(value is not None and expected(column, value) is None for value in values)
                assert batch.column(at).null_count == len(block) - sum(
                    value is not None and expected(column, value) is not None for value in values
                )
    assert losses.bad_dates == lost > 0
