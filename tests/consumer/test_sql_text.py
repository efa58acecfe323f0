import pyarrow as pa
import pytest

from tidegate.consumer.sql_text import sql_rows


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (7559.59, "7559.59"),
        (0.0056335614, "0.0056335614"),
        (-1501522.0, "-1.501522e+06"),
        (16777216.0, "1.6777216e+07"),
        (3.4028235e38, "3.40282e+38"),
        (-3.4028235e38, "-3.40282e+38"),
        (1e-38, "1e-38"),
        (1.1754944e-38, "1.17549e-38"),
    ],
)
def test_a_float_has_the_digits_that_tidb_sends(value: float, text: str) -> None:
    column = pa.table({"f": pa.array([value], pa.float32())})
    assert list(sql_rows(column, ["float"])) == [(text,)]


def test_a_double_has_all_its_digits() -> None:
    column = pa.table({"d": [1.7976931348623157e308, 123456789.12345679]})
    assert list(sql_rows(column, ["double"])) == [
        ("1.7976931348623157e+308",),
        ("1.2345678912345679e+08",),
    ]
