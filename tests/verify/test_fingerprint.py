"""Compiled fingerprints against the plain ones, and what makes two rows equal."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.verify.fingerprint import KEY, ROW, fingerprints, order_words, plain

TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(1 << 15), (1 << 15) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(20, 0): st.integers(0, (1 << 64) - 1).map(Decimal),
    pa.decimal128(38, 10): st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda n: Decimal((n < 0, _digits(n), -10))
    ),
    pa.string(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=20),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", tz="UTC"): st.datetimes(min_value=datetime(1, 1, 2), timezones=st.just(UTC)),
    pa.list_(pa.float32()): st.lists(st.floats(width=32, allow_nan=False), max_size=4),
}
SCHEMA = pa.schema([(f"c{at}", of_type) for at, of_type in enumerate(TYPES)])


def _digits(number: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(number))))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*(st.none() | values for values in TYPES.values())), max_size=5), st.integers(0, 3))
def test_blocks_give_what_rows_give(rows: list[tuple[Any, ...]], first: int) -> None:
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(SCHEMA)]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    for seed in (ROW, KEY):
        wanted = [plain(row, SCHEMA.types, seed) for row in rows]
        assert fingerprints(batch, seed).tolist() == wanted
        assert fingerprints(batch.slice(first), seed).tolist() == wanted[first:]


def marks(values: list[Any], of_type: pa.DataType) -> list[int]:
    return fingerprints(pa.record_batch([pa.array(values, of_type)], names=["c"])).tolist()


def test_equal_values_are_equal_and_null_is_no_value() -> None:
    assert len(set(marks([0.0, -0.0], pa.float64()))) == 1
    assert len(set(marks([[0.0], [-0.0]], pa.list_(pa.float32())))) == 1
    assert len(set(marks([None, 0, 1], pa.int64()))) == 3
    assert len(set(marks([None, "", "\0", "\0\0", "a", "a\0"], pa.string()))) == 6
    assert len(set(marks([Decimal("1.0"), Decimal("1.00"), Decimal("-1")], pa.decimal128(5, 2)))) == 2


def test_a_value_in_another_column_is_another_row() -> None:
    pairs = [("a", None), (None, "a"), ("ab", "c"), ("a", "bc"), (None, None)]
    batch = pa.record_batch(
        [pa.array([p[at] for p in pairs], pa.string()) for at in (0, 1)], names=["x", "y"]
    )
    assert len(set(fingerprints(batch).tolist())) == len(pairs)


@pytest.mark.parametrize("of_type", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_signed_keys_are_in_the_order_of_their_words(of_type: pa.DataType) -> None:
    words = order_words(pa.array([-128, -1, 0, 1, 127], of_type)).tolist()
    assert words == sorted(words)
    assert words[2] == 1 << 63


def test_unsigned_keys_beyond_the_signed_come_first_as_in_tikv() -> None:
    keys = pa.array([(1 << 63) - 1, 1 << 63, (1 << 64) - 1, 0], pa.decimal128(20, 0))
    assert order_words(keys).tolist() == [(1 << 64) - 1, 0, (1 << 63) - 1, 1 << 63]
    assert order_words(keys.slice(1, 2)).tolist() == [0, (1 << 63) - 1]


def test_a_day_is_what_arrow_counts() -> None:
    days = pa.array([date(1969, 12, 31)], pa.date32())
    assert fingerprints(pa.record_batch([days], names=["d"])).tolist() == [
        plain([date(1969, 12, 31)], [pa.date32()])
    ]
