"""The output of `tidegate verify`, and invalid requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidegate.cli.main import app
from tidegate.cli.verify import text_of

EQUAL: dict[str, Any] = {
    "table": "b.t", "ts": 10, "equal": True, "source_rows": 1200, "target_rows": 1200, "differing": 0,
    "complete": True, "undecodable": 0, "note": "", "differences": [], "repaired": False, "statements": 0,
}  # fmt: skip


def difference(kind: str, key: int, source: list[Any], target: list[Any], *columns: str) -> dict[str, Any]:
    rows = [[{"id": key, "v": value} for value in side] for side in (source, target)]
    return {"kind": kind, "key": {"id": key}, "columns": list(columns), "source": rows[0], "target": rows[1]}


def test_equal_is_one_line() -> None:
    assert text_of(EQUAL, 20) == "b.t at 10: 1,200 rows at the source, 1,200 at the target: equal"


def test_each_difference_is_a_line_and_what_was_left_out_is_said() -> None:
    found = [
        difference("changed", 2, ["a"], [None], "v"),
        difference("missing", 3, ["c"], []),
        difference("extra", 4, [], ["d"]),
        difference("changed", 5, ["e"], ["e", "e"]),
        difference("missing", 6, ["f"], []),
    ]
    outcome = EQUAL | {"equal": False, "differing": 5, "differences": found, "complete": False}
    lines = text_of(outcome | {"undecodable": 2, "repaired": True, "statements": 4}, 4).splitlines()
    assert lines[0].endswith("at the target: 5 rows differ")
    assert [line.strip() for line in lines[1:]] == [
        "changed  id=2  v: 'a' -> NULL   (source -> target)",
        "missing  id=3 v='c'",
        "extra    id=4 v='d'",
        "changed  id=5   (1 at the source, 2 at the target)",
        "4 of 5 shown; see --limit",
        "and more: the search has ended early; see --most",
        "2 rows of the source cannot be decoded",
        "repaired: the snapshot names the source's rows now",
        "4 statements written",
    ]
    one = EQUAL | {"equal": False, "differing": 1, "differences": found[:1]}
    assert text_of(one, 4).splitlines()[0].endswith("1 row differs")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--at", "now"], "--at is not a number"),
        (["--keys", "5"], "--keys is not a range"),
        (["--keys", "5:5"], "write LOW:END with LOW below END"),
        ([], "there is no such snapshot"),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_at_once(
    options: list[str], words: str, tmp_path: Path
) -> None:
    command = ["verify", "--pd", "127.0.0.1:1", "--target", f"delta://{tmp_path}", "--table", "b.t", *options]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert words in done.output
