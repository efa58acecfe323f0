from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidb.golden_rows import tables
from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.schema import Column, Kind
from tidegate.tidb import value
from tidegate.tidb.types import temporal

TIME, _ = next(iter(tables("types_times", ours=True)))
STAMPS, _ = next(iter(tables("types_timestamps", ours=True)))


def column(kind: Kind, **changes: object) -> Column:
    changes = {"kind": kind, "origin_default": None, "flag": 1, **changes}
    return replace(TIME.columns[1], **changes)  # type: ignore[arg-type]


def test_a_missing_column_is_its_origin_default_else_null_else_zero() -> None:
    assert value.missing(column(Kind.INT, origin_default="-5")) == -5
    assert value.missing(column(Kind.INT, flag=0)) is None
    assert value.missing(column(Kind.INT)) == 0
    assert value.missing(column(Kind.ENUM, elems=("a", "b"))) == 1
    assert value.missing(column(Kind.ENUM, elems=("a", "b"), origin_default="b")) == 2
    assert value.missing(column(Kind.SET, elems=("a", "b"), origin_default="a,b")) == 3
    assert value.missing(column(Kind.STRING)) == b""
    short = column(Kind.BYTES, origin_default="\0\ufffd\ufffd\ufffd", flen=8)
    assert value.missing(short) == b"\0\xef\xbf\xbd\xef\xbf\xbd\xef", "cut in bytes, as TiDB does"
    assert value.missing(replace(short, origin_default=b"123456789")) == b"12345678"
    assert value.missing(replace(short, origin_default="é", flen=-1)) == "é".encode()
    assert value.missing(column(Kind.BIT, origin_default=b"\x05")) == 5
    assert value.missing(column(Kind.BIT, origin_default="\x05")) == 5
    assert value.missing(column(Kind.DOUBLE, origin_default="-0.5")) == -0.5
    decimal = column(Kind.DECIMAL, origin_default="1.5", flen=10, decimal=3)
    assert value.present(decimal, value.missing(decimal)) == "1.500"
    json = column(Kind.JSON)
    assert value.present(json, value.missing(json)) == "null"


def test_a_timestamps_origin_default_is_utc() -> None:
    stamp = column(Kind.TIMESTAMP, origin_default="2020-01-02 03:04:05", decimal=0)
    shown = value.present(stamp, value.missing(stamp), temporal.zone("Asia/Shanghai"))
    assert shown == "2020-01-02 11:04:05"


def test_a_default_that_cannot_be_read_is_undecodable() -> None:
    with pytest.raises(Undecodable, match="origin default"):
        value.missing(column(Kind.INT, origin_default="many"))


@given(st.datetimes(), st.sampled_from(["UTC", "Asia/Shanghai", "America/New_York"]))
def test_timestamps_come_back_in_a_zone(moment: object, zone: str) -> None:
    stamp = column(Kind.TIMESTAMP, decimal=6)
    tz = temporal.zone(zone)
    try:
        stored = value.parse(stamp, f"{moment}"[:26], tz)
        text = value.present(stamp, stored, tz)
    except Undecodable:
        return  # the first and last day of time
    assert value.parse(stamp, text, tz) == stored


def test_plain_values_of_the_wrong_type_are_refused() -> None:
    for kind, wrong in [(Kind.INT, "1"), (Kind.DATE, 5), (Kind.STRING, 5), (Kind.DECIMAL, b"1")]:
        with pytest.raises(InvalidInput):
            value.parse(column(kind), wrong)
