"""Sums over Arrow columns, as a consumer has them, are those that TiCDC sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count
from tests.tidb.golden_rows import case_names, changes
from tidegate.errors import InvalidInput
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb import arrow_checksum, checksum, keys, record
from tidegate.tidb.types import temporal

TYPES = {
    Kind.INT: pa.int64(),
    Kind.YEAR: pa.int64(),
    Kind.UINT: pa.uint64(),
    Kind.ENUM: pa.uint64(),
    Kind.SET: pa.uint64(),
    Kind.BIT: pa.uint64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.binary(),
    Kind.BYTES: pa.binary(),
}


def wire(columns: list[Column], rows: list[dict[int, Value]]) -> pa.RecordBatch:
    """Rows as a decoder gives them, columns in ascending order of id."""
    arrays = [pa.array([row[c.id] for row in rows], TYPES.get(c.kind, pa.string())) for c in columns]
    return pa.record_batch(arrays, names=[c.name for c in columns])


@pytest.mark.golden
@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai"])
@pytest.mark.parametrize("name", case_names())
def test_golden_rows_have_the_sums_ticdc_sends(name: str, zone: str) -> None:
    groups: dict[TableSchema, list[tuple[dict[int, Value], int]]] = {}
    for change in changes(name):
        theirs = change.mounted.get("checksum")
        if theirs is None or theirs["corrupted"]:
            continue
        for data, expected in ((change.value, theirs["current"]), (change.old_value, theirs["previous"])):
            if data and expected:
                values = record.decode(change.table, keys.parse_record(change.key), data, temporal.zone(zone))
                row: dict[int, Any] = dict(zip((c.id for c in change.table.columns), values, strict=True))
                groups.setdefault(change.table, []).append((row, expected))
    for table, rows in groups.items():
        columns = sorted(table.columns, key=lambda column: column.id)
        batch = wire(columns, [row for row, _ in rows])
        kinds, expected = [c.kind for c in columns], pa.array([sum_ for _, sum_ in rows], pa.uint32())
        assert arrow_checksum.verify(batch, kinds, expected, zone).tolist() == []
        assert arrow_checksum.verify(batch[3:], kinds, expected[3:], zone).tolist() == []
        wrong = pa.array([None if i % 3 == 0 else (s + i % 2) % 2**32 for i, (_, s) in enumerate(rows)])
        found = arrow_checksum.verify(batch, kinds, wrong, zone).tolist()
        assert found == [i for i in range(len(rows)) if i % 3 and i % 2]
        count("rows", "row images, checksum of Arrow columns", len(rows))


CELLS = {
    Kind.INT: st.integers(-(2**63), 2**63 - 1),
    Kind.UINT: st.integers(0, 2**64 - 1),
    Kind.DOUBLE: st.floats(),
    Kind.FLOAT: st.floats(width=32),
    Kind.STRING: st.binary(max_size=30),
    Kind.DECIMAL: st.decimals(allow_nan=False, allow_infinity=False).map(lambda d: f"{d:f}"),
}


@given(st.data())
def test_any_columns_have_the_sum_of_the_plain_twin(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(CELLS)), min_size=1, max_size=5))
    rows = data.draw(st.lists(st.tuples(*(st.none() | CELLS[kind] for kind in kinds)), max_size=5))
    arrays = [
        pa.array([row[i] for row in rows], TYPES.get(kind, pa.string())) for i, kind in enumerate(kinds)
    ]
    batch = pa.record_batch(arrays, names=[str(i) for i in range(len(kinds))])
    found = arrow_checksum.sums(batch, kinds)
    for row, one in zip(rows, found.tolist(), strict=True):
        whole = b"".join(map(checksum.column_bytes, kinds, row))
        assert one == checksum.crc32(whole)


def test_columns_of_the_wrong_type_are_refused() -> None:
    batch = pa.record_batch([pa.array(["1"])], names=["a"])
    with pytest.raises(InvalidInput, match="a column of kind INT cannot be string"):
        arrow_checksum.sums(batch, [Kind.INT])
    with pytest.raises(InvalidInput, match="1 columns cannot have 0 kinds"):
        arrow_checksum.sums(batch, [])


def test_a_row_without_columns_has_the_sum_of_nothing() -> None:
    batch = pa.record_batch([pa.array([None, None], pa.int64())], names=["a"])
    assert np.array_equal(arrow_checksum.sums(batch, [Kind.INT]), np.zeros(2))
