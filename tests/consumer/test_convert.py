"""Wire columns to the target's types."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from tidegate.consumer.table.convert import Losses, TargetColumn, target_type, to_target, unknown_members
from tidegate.errors import Undecodable

U64 = pa.decimal128(20, 0)


@pytest.mark.parametrize(
    ("kind", "wire", "of_type", "elems", "expected"),
    [
        (8, pa.array([2**64 - 1, None], pa.uint64()), U64, (), [Decimal(2**64 - 1), None]),
        (246, pa.array(["-0.25", None]), pa.decimal128(10, 2), (), [Decimal("-0.25"), None]),
        (247, pa.array([2, 0, None], pa.uint64()), pa.string(), ("a", "b"), ["b", "", None]),
        (248, pa.array([5, 0], pa.uint64()), pa.string(), ("a", "b", "c"), ["a,c", ""]),
        (247, pa.array([2], pa.uint64()), pa.string(), (), ["2"]),
        (10, pa.array(["2020-02-29", "0000-00-00"]), pa.date32(), (), [date(2020, 2, 29), None]),
        (
            12,
            pa.array(["1000-01-01 00:00:00.5"]),
            pa.timestamp("us"),
            (),
            [datetime(1000, 1, 1, microsecond=500000)],
        ),
        (225, pa.array(["[1,2.5]", "[]", None]), pa.list_(pa.float32()), (), [[1.0, 2.5], [], None]),
        (15, pa.array([b"\xc3\xa9"]), pa.string(), (), ["é"]),
    ],
)
def test_values(
    kind: int, wire: pa.Array, of_type: pa.DataType, elems: tuple[str, ...], expected: list[object]
) -> None:
    found = to_target(wire, TargetColumn("c", kind, of_type, elems), "UTC", Losses())
    assert found.type == of_type
    assert found.to_pylist() == expected


def test_days_of_no_calendar_are_counted() -> None:
    losses = Losses()
    column = TargetColumn("c", 12, pa.timestamp("us"))
    to_target(pa.array(["2021-02-31 00:00:00", "0000-00-00 00:00:00", None]), column, "UTC", losses)
    assert losses.bad_dates == 2


def test_timestamps_are_read_in_the_feeds_zone() -> None:
    column = TargetColumn("c", 7, pa.timestamp("us", tz="UTC"))
    found = to_target(pa.array(["2020-01-01 00:00:00"]), column, "Asia/Shanghai", Losses())
    assert str(found[0]) == "2019-12-31 16:00:00+00:00"


def test_what_does_not_fit_names_the_column() -> None:
    with pytest.raises(Undecodable, match="column c"):
        to_target(pa.array(["x"]), TargetColumn("c", 246, pa.decimal128(10, 2)), "UTC", Losses())
    with pytest.raises(Undecodable, match="not known"):
        target_type(255, unsigned=False, binary=False, flen=-1, decimal=-1)


def test_numbers_without_an_element_never_pass_the_converter() -> None:
    for kind, number in ((247, 3), (248, 4)):
        column = TargetColumn("c", kind, pa.string(), ("a", "b"))
        wire = pa.array([1, None, number], pa.uint64())
        found = unknown_members(wire, column)
        assert found is not None
        assert found.to_pylist() == [False, False, True]
        assert unknown_members(wire.slice(0, 2), column) is None
        with pytest.raises(Undecodable, match="column c"):
            to_target(wire, column, "UTC", Losses())
    assert (
        unknown_members(pa.array([2**64 - 1], pa.uint64()), TargetColumn("c", 248, pa.string(), ("x",) * 64))
        is None
    )
