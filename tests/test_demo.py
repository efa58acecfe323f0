"""The demo's own parts: targets and their comparison with the source, and what happens to captures."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from tools.demo.faults import Fault, Kind, has_left, plan, ranges_of
from tools.demo.targets import TARGETS, target_of, verdict
from tools.demo.view import faults_table
from tools.longest_pause import LongestPause

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


@pytest.mark.parametrize(
    ("captures", "wanted"),
    [
        (1, []),
        (2, [(30.0, Kind.KILLED)]),
        (3, [(20.0, Kind.KILLED), (40.0, Kind.DRAINED)]),
        (5, [(20.0, Kind.KILLED), (40.0, Kind.DRAINED)]),
    ],
)
def test_faults_are_spread_over_the_run_and_leave_a_capture(
    captures: int, wanted: list[tuple[float, Kind]]
) -> None:
    assert plan(captures, 60) == wanted


def feed(*delivered: tuple[str, bool]) -> dict[str, Any]:
    """The API's answer about a changefeed, with (address, running) for each range."""
    return {"tidegate": {"captures": [{"address": name, "running": running} for name, running in delivered]}}


def test_ranges_are_counted_for_each_capture_that_runs_them() -> None:
    addresses = {"capture-1": "a", "capture-2": "b", "capture-3": "c"}
    found = ranges_of(feed(("a", True), ("b", True), ("a", True), ("c", False)), addresses)
    assert found == {"capture-1": 2, "capture-2": 1, "capture-3": 0}
    assert ranges_of({}, addresses) == dict.fromkeys(addresses, 0)


def test_a_drained_capture_has_left_once_others_run_all_its_ranges() -> None:
    assert has_left("a", feed(("b", True), ("c", True)))
    for one in (feed(("b", True), ("a", True)), feed(("b", True), ("c", False)), feed(), {}):
        assert not has_left("a", one)


def test_the_table_shows_each_fault_its_pause_and_who_has_the_ranges() -> None:
    names = ["capture-1", "capture-2", "capture-3"]
    killed = Fault(
        Kind.KILLED, "capture-1", True, 20.2, dict.fromkeys(names, 2), dict.fromkeys(names[1:], 3), 4.04
    )
    drained = Fault(Kind.DRAINED, "capture-3", False, 40.4, dict.fromkeys(names[1:], 3))
    out = StringIO()
    table = faults_table(SimpleNamespace(faults=[killed, drained], captures=names))  # type: ignore[arg-type]
    Console(file=out, width=100).print(table)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines()]
    assert [line for line in lines if line] == [
        ["capture-1 (owner) killed", "20 s", "4.0 s", "2 → gone", "2 → 3", "2 → 3"],
        ["capture-3 drained", "40 s", "until the end", "-", "3 → ?", "3 → ?"],
    ]


def test_the_longest_pause_of_a_checkpoint_counts_the_one_that_is_not_over() -> None:
    pause = LongestPause(10.0)
    for checkpoint, at in ((5, 10.5), (5, 12.0), (0, 12.2), (6, 12.5), (7, 12.6)):
        pause.see(checkpoint, at)
    assert pause.seconds == 2.0
    pause.see(7, 15.0)
    assert pause.seconds == pytest.approx(2.4)
