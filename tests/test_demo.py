"""The demo's own parts: what a target is called, and how MariaDB's rows are compared with the source's."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from tools.demo.targets import TARGETS, target_of, verdict

from tidegate.errors import InvalidInput


def test_an_unknown_target_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    assert [target_of(name, tmp_path).name for name in TARGETS] == ["tables", "MariaDB"]
    with pytest.raises(InvalidInput) as caught:
        target_of("postgres", tmp_path)
    assert "no target 'postgres'" in caught.value.what
    assert "delta or mariadb" in caught.value.why


SOURCE = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "balance": pa.array([Decimal("1.5000"), Decimal("2.0000")], pa.decimal128(20, 4)),
        "at": pa.array([datetime(2024, 2, 29), None], pa.timestamp("us", tz="UTC")),
    }
)


def held(first: str = "1.5") -> dict[str, list[object]]:
    """The same rows as the driver has them, in another order."""
    return {
        "at": [None, datetime(2024, 2, 29)],
        "id": [2, 1],
        "balance": [Decimal("2.0000"), Decimal(first)],
    }


def test_rows_are_compared_as_values_in_whatever_order() -> None:
    assert verdict("b.a", SOURCE, held()) == {
        "table": "b.a",
        "source_rows": 2,
        "target_rows": 2,
        "equal": True,
    }


def test_a_changed_value_a_missing_row_column_or_table_is_not_equal() -> None:
    one_row = {name: values[:1] for name, values in held().items()}
    no_column = {name: values for name, values in held().items() if name != "at"}
    for target in (held("1.5001"), one_row, no_column, None):
        assert not verdict("b.a", SOURCE, target)["equal"]
    assert not verdict("b.a", None, held())["equal"]
