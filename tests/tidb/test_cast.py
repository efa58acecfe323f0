"""MODIFY COLUMN's conversions: TiDB's rules by pair of types. (Recorded rows: the change log `onlineddl`.)"""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from typing import Any

import pytest

from tidegate.errors import Undecodable
from tidegate.model.row import Value
from tidegate.model.schema import Column
from tidegate.tidb.cast import cast, refusal
from tidegate.tidb.table_info import every_column

UNSIGNED = 32


def column(tp: int, flen: int = -1, decimal: int = -1, flag: int = 0, **more: Any) -> Column:
    """A column as a TableInfo describes it."""
    charset = more.get("charset", "binary")
    field = {
        "Tp": tp,
        "Flag": flag,
        "Flen": flen,
        "Decimal": decimal,
        "Charset": charset,
        "Collate": more.get("collate", "utf8mb4_bin" if charset == "utf8mb4" else "binary"),
        "Elems": more.get("elems"),
    }
    entry = {"id": 1, "name": {"O": "c", "L": "c"}, "offset": 0, "state": 5, "type": field}
    return every_column({"cols": [entry]}, 1)[0]


TINY, SMALL, INT, BIGINT = (column(code) for code in (1, 2, 3, 8))
TINY_U, BIGINT_U = column(1, flag=UNSIGNED), column(8, flag=UNSIGNED)
FLOAT, DOUBLE, FLOAT_52, DOUBLE_U = column(4), column(5), column(4, 5, 2), column(5, flag=UNSIGNED)
DEC_12_4, DEC_10_2, DEC_3_0, DEC_U = (
    column(246, 12, 4),
    column(246, 10, 2),
    column(246, 3, 0),
    column(246, 10, 2, UNSIGNED),
)
VARCHAR, VARCHAR_3, CHAR_5, TEXT = (
    column(15, 200, charset="utf8mb4"),
    column(15, 3, charset="utf8mb4"),
    column(254, 5, charset="utf8mb4"),
    column(252, 3, charset="utf8mb4"),
)
GBK = column(15, 20, charset="gbk", collate="gbk_bin")
VARBINARY, BINARY_4 = column(15, 20), column(254, 4)
DATE, DATETIME, DATETIME_6, DATETIME_3 = (
    column(10),
    column(12, decimal=0),
    column(12, decimal=6),
    column(12, decimal=3),
)
STAMP, STAMP_NN = column(7, decimal=0), column(7, decimal=0, flag=1)
TIME, TIME_6, YEAR, BIT_4, BIT_40, JSON = (
    column(11, decimal=0),
    column(11, decimal=6),
    column(13),
    column(16, 4),
    column(16, 40),
    column(245),
)
ENUM = column(247, charset="utf8mb4", elems=["a", "b", "10", ""])
ENUM_CI = column(247, charset="utf8mb4", collate="utf8mb4_general_ci", elems=["x", "B", "A"])
SET = column(248, charset="utf8mb4", elems=["a", "b", "c"])


@pytest.mark.parametrize(
    ("before", "after", "value", "expected"),
    [
        # integers
        (BIGINT, TINY, 300, 127),
        (BIGINT, TINY, -300, -128),
        (INT, TINY_U, -1, 0),
        (BIGINT_U, BIGINT, 2**64 - 1, 2**63 - 1),
        (INT, YEAR, 70, 1970),
        (INT, YEAR, 69, 2069),
        (INT, YEAR, 0, 0),
        (INT, YEAR, 1000, 1901),
        (INT, BIT_4, 5, 5),
        (INT, BIT_4, 99, 15),
        (INT, ENUM, 2, 2),
        (INT, ENUM, 9, 0),
        (INT, SET, 5, 5),
        (INT, SET, 9, 0),
        (INT, VARCHAR_3, 12345, b"123"),
        (INT, BINARY_4, 7, b"7\0\0\0"),
        (INT, DEC_3_0, 12345, "999"),
        (INT, DOUBLE, 7, 7.0),
        (INT, JSON, -7, "-7"),
        (INT, DATE, 20240229, "2024-02-29"),
        (INT, DATETIME, 240229101112, "2024-02-29 10:11:12"),
        (INT, DATETIME, 20240230, "0000-00-00 00:00:00"),
        (INT, TIME, 101112, "10:11:12"),
        (INT, TIME, 9000000, "838:59:59"),
        (INT, STAMP, 20240229101112, "2024-02-29 10:11:12"),
        # decimals and floats
        (DEC_12_4, DEC_10_2, "4.3250", "4.33"),
        (DEC_12_4, DEC_10_2, "-4.3250", "-4.33"),
        (DEC_12_4, DEC_10_2, "-0.0010", "0.00"),
        (DEC_12_4, DEC_3_0, "999.5000", "999"),
        (DEC_12_4, DEC_U, "-1.0000", "0.00"),
        (DEC_12_4, INT, "2.5000", 3),
        (DEC_12_4, INT, "-2.5000", -3),
        (DEC_12_4, VARCHAR, "1.5000", b"1.5000"),
        (DEC_12_4, DOUBLE, "1.5000", 1.5),
        (DEC_12_4, YEAR, "24.4000", 2024),
        (DEC_12_4, BIT_4, "2.5000", 3),
        (DEC_12_4, JSON, "1.5000", "1.5"),
        (DEC_12_4, TIME_6, "101112.5000", "10:11:12.500000"),
        (DOUBLE, INT, 2.5, 2),
        (DOUBLE, INT, 3.5, 4),
        (DOUBLE, INT, 1e30, 2**31 - 1),
        (DOUBLE, DEC_10_2, 1.005, "1.01"),
        (FLOAT, DEC_12_4, 0.10000000149011612, "0.1000"),
        (FLOAT, VARCHAR, 0.10000000149011612, b"0.1"),
        (FLOAT, DOUBLE, 0.10000000149011612, 0.10000000149011612),
        (DOUBLE, FLOAT, 1e300, 3.4028234663852886e38),
        (DOUBLE, FLOAT_52, 1234.567, 999.989990234375),
        (DOUBLE, FLOAT_52, 1.125, 1.1200000047683716),
        (DOUBLE, DOUBLE_U, -1.0, 0.0),
        (DOUBLE, VARCHAR, 1e21, b"1" + b"0" * 21),
        (DOUBLE, JSON, 3.0, "3.0"),
        (DOUBLE, TIME, 101112.4, "10:11:12"),
        # text
        (VARCHAR, INT, b"one", 0),
        (VARCHAR, INT, b" 12.5x", 13),
        (VARCHAR, INT, b"-1.5e1z", -15),
        (VARCHAR, BIGINT_U, b"-3", 0),
        (VARCHAR, BIGINT_U, b"18446744073709551615", 2**64 - 1),
        (VARCHAR, DEC_10_2, b"1.005", "1.01"),
        (VARCHAR, DOUBLE, b"1e400", 1.7976931348623157e308),
        (VARCHAR, VARCHAR_3, "aé😀z".encode(), "aé😀".encode()),
        (VARCHAR, TEXT, "aé😀z".encode(), "aé".encode()),
        (VARCHAR, CHAR_5, b"ab  ", b"ab"),
        (VARCHAR, VARBINARY, "é".encode(), "é".encode()),
        (VARCHAR, BINARY_4, b"ab", b"ab\0\0"),
        (GBK, VARBINARY, "中".encode(), b"\xd6\xd0"),
        (VARBINARY, GBK, b"\xd6\xd0", "中".encode()),
        (VARBINARY, VARCHAR, b"ab", b"ab"),
        (VARCHAR, ENUM, b"b", 2),
        (VARCHAR, ENUM, b"2", 2),
        (VARCHAR, ENUM, b"10", 3),
        (VARCHAR, ENUM, b"zz", 0),
        (VARCHAR, ENUM_CI, b"a", 3),
        (VARCHAR, SET, b"c,a", 5),
        (VARCHAR, SET, b"6", 6),
        (VARCHAR, SET, b"zz", 0),
        (VARCHAR, JSON, b'{"b":1,"a":[1.50,null]}', '{"a": [1.5, null], "b": 1}'),
        (VARCHAR, DATE, b"2024-2-9", "2024-02-09"),
        (VARCHAR, DATETIME, b"20240229235959.5", "2024-03-01 00:00:00"),
        (VARCHAR, DATETIME_3, b"24/02/29T1.2.3.4567", "2024-02-29 01:02:03.457"),
        (VARCHAR, TIME, b"1 2:3", "26:03:00"),
        (VARCHAR, TIME_6, b"-101112.1234567", "-10:11:12.123457"),
        (VARCHAR, TIME, b"2024-02-29 10:11:12", "10:11:12"),
        (VARCHAR, YEAR, b"0", 2000),
        (VARCHAR, YEAR, b"99", 1999),
        # dates and times
        (DATETIME_6, DATETIME, "2024-02-29 23:59:59.500000", "2024-03-01 00:00:00"),
        (DATETIME_6, DATETIME_3, "2024-02-29 23:59:59.123456", "2024-02-29 23:59:59.123"),
        (DATETIME_6, DATE, "2024-02-29 23:59:59.900000", "2024-02-29"),
        (DATETIME_6, BIGINT, "2024-02-29 10:11:59.500000", 20240229101200),
        (DATETIME_6, BIGINT_U, "2024-02-29 10:11:59.500000", 20240229101160),
        (DATETIME_6, DOUBLE, "2024-02-29 10:11:12.500000", 20240229101112.5),
        (DATETIME_6, VARCHAR, "2024-02-29 10:11:12.500000", b"2024-02-29 10:11:12.500000"),
        (DATETIME_6, JSON, "2024-02-29 10:11:12.500000", '"2024-02-29 10:11:12.500000"'),
        (DATETIME_6, TIME, "2024-02-29 10:11:12.500000", "10:11:13"),
        (DATETIME_6, YEAR, "2024-02-29 10:11:12.500000", 2024),
        (DATETIME, STAMP, "1969-01-01 00:00:00", "0000-00-00 00:00:00"),
        (DATE, DATETIME_3, "2024-02-29", "2024-02-29 00:00:00.000"),
        (DATE, INT, "2024-02-29", 20240229),
        (DATE, JSON, "2024-02-29", '"2024-02-29"'),
        (DATE, TIME, "2024-02-29", "00:00:00"),
        (TIME_6, TIME, "-10:11:12.500000", "-10:11:13"),
        (TIME, INT, "-10:11:12", -101112),
        (TIME, YEAR, "00:00:24", 2024),
        (TIME, VARCHAR, "10:11:12", b"10:11:12"),
        (TIME, JSON, "10:11:12", '"10:11:12.000000"'),
        (YEAR, INT, 2024, 2024),
        (YEAR, VARCHAR, 2024, b"2024"),
        (YEAR, JSON, 2024, "2024"),
        # enum, set, bit, JSON
        (ENUM, INT, 2, 2),
        (ENUM, VARCHAR, 2, b"b"),
        (ENUM, VARCHAR, 0, b""),
        (ENUM, ENUM_CI, 1, 3),
        (ENUM, SET, 2, 2),
        (ENUM, JSON, 3, "10"),
        (SET, INT, 5, 5),
        (SET, VARCHAR, 5, b"a,c"),
        (SET, ENUM, 2, 2),
        (SET, ENUM, 3, 0),
        (BIT_40, BIT_4, 99, 15),
        (BIT_4, VARCHAR, 5, b"5"),
        (BIT_4, DEC_10_2, 5, "5.00"),
        (BIT_40, JSON, 0x6162636465, '"abcde"'),
        (JSON, VARCHAR, '{"a": 1}', b'{"a": 1}'),
        (JSON, VARCHAR, '"x"', b'"x"'),
        (JSON, INT, "2.5", 2),
        (JSON, INT, '"2.5x"', 3),
        (JSON, INT, "true", 1),
        (JSON, INT, "[1]", 0),
        (JSON, DOUBLE, "null", 0.0),
        (JSON, DEC_10_2, "1.005", "1.01"),
        (JSON, DATE, '"2024-02-29"', "2024-02-29"),
        (JSON, TIME, '"10:11:12"', "10:11:12"),
        (JSON, YEAR, "24", 2024),
    ],
)
def test_a_value_is_converted_as_tidb_does(
    before: Column, after: Column, value: Value, expected: Value
) -> None:
    assert refusal(before, after, UTC) == ""
    assert cast(value, before, after) == expected
    assert cast(None, before, after) is None


def test_timestamps_are_converted_in_the_sessions_time_zone() -> None:
    east = timezone(timedelta(hours=8))
    assert cast("2024-02-29 20:00:00", STAMP, DATETIME, east) == "2024-03-01 04:00:00"
    assert cast("2024-02-29 20:00:00", STAMP, DATE, east) == "2024-03-01"
    assert cast("2024-03-01 04:00:00", DATETIME, STAMP, east) == "2024-02-29 20:00:00"
    assert cast(b"2024-03-01 04:00:00", VARCHAR, STAMP, east) == "2024-02-29 20:00:00"
    assert cast("2024-02-29 20:00:00", STAMP, column(7, decimal=3), east) == "2024-02-29 20:00:00.000"
    assert "time zone" in refusal(STAMP, DATETIME, None)
    assert refusal(STAMP, column(7, decimal=3), None) == ""


@pytest.mark.parametrize("after", [DATE, DATETIME, STAMP])
def test_a_time_that_gets_the_day_of_the_conversion_is_refused(after: Column) -> None:
    assert "day" in refusal(TIME, after, UTC)


def test_what_no_rule_gives_is_undecodable() -> None:
    with pytest.raises(Undecodable, match="current time"):
        cast(None, DATETIME, STAMP_NN)
    with pytest.raises(Undecodable, match="not JSON"):
        cast(b"x", VARCHAR, JSON)
    with pytest.raises(Undecodable, match="not JSON text"):
        cast(0xFF, BIT_40, JSON)
