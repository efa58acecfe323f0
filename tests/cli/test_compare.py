"""`tidegate compare` prints one line a table, and below it how rows differ."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from tidegate.cli.compare import text_of

EQUAL = {"table": "b.orders", "source_rows": 7, "target_rows": 7, "differing": 0, "differences": ()}
EQUAL |= {"note": "", "key": ("id",), "equal": True}


def outcome(*tables: dict[str, Any]) -> dict[str, Any]:
    return {
        "ts": 10,
        "snapshot_ts": 10,
        "equal": all(table["equal"] for table in tables),
        "undecodable_source_rows": 0,
        "tables": list(tables),
    }


def row(number: int, note: str | None, balance: str = "1.50") -> dict[str, Any]:
    return {"id": number, "balance": Decimal(balance), "note": note}


def test_equal_tables_take_a_line_each() -> None:
    lines = text_of(outcome(EQUAL)).splitlines()
    assert lines[1].split() == ["b.orders", "7", "7", "equal"]
    assert lines[-1] == "equal at ts 10"


def test_a_changed_row_shows_what_changed_and_a_missing_one_itself() -> None:
    differences = (
        {"side": "source", "row": row(1, "it's")},
        {"side": "source", "row": row(2, None)},
        {"side": "target", "row": row(2, "x", "2.00")},
        {"side": "target", "row": row(3, None)},
    )
    verdict = EQUAL | {"table": "b.t", "differing": 9, "differences": differences, "equal": False}
    lines = text_of(outcome(EQUAL, verdict)).splitlines()
    assert lines[2].split()[:3] == ["b.t", "7", "7"]
    assert lines[2].endswith("NOT equal")
    assert [line.strip() for line in lines[3:6]] == [
        'only at the source  id=1 balance=1.50 note="it\'s"',
        "source -> target  id=2  balance: 1.50 -> 2.00, note: NULL -> 'x'",
        "only at the target  id=3 balance=1.50 note=NULL",
    ]
    assert lines[6].strip() == "4 of 9 differing rows shown; see --limit"
    assert lines[-1] == "NOT equal at ts 10"
