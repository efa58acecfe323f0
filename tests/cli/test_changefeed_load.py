"""`tidegate changefeed load`: what it says, and when it gives up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidegate.cli.changefeed_load import clock, follow, line_of, load_of
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.reports import LoadState
from tidegate.server.delivery.initial_load import shown


def feed(load: dict[str, Any] | None, state: str = "normal", error: str = "") -> dict[str, Any]:
    reported = {"message": error} if error else None
    own = {"initial_load": load}
    return {"namespace": "default", "id": "bank", "state": state, "error": reported, "tidegate": own}


def test_lines_for_people() -> None:
    begun = shown(LoadState(7, 0, 1200, 300.0, 0), loading=True)
    assert line_of(begun) == "  0%  0 of 7 ranges, 1,200 rows, 300 rows/s, time left not known yet"
    half = shown(LoadState(7, 3, 50_000, 1000.0, 120_000), loading=True)
    assert line_of(half) == " 42%  3 of 7 ranges, 50,000 rows, 1,000 rows/s, about 1:10 left"
    slow = shown(LoadState(7, 3, 50_000, 1000.0, 120_000, slowed=1), loading=True)
    assert "1,000 rows/s, changefeeds with rows come first, about 1:10 left" in line_of(slow)
    del half["makes_way"]
    assert line_of(half).endswith("about 1:10 left"), "a server of an earlier version"
    assert line_of(shown(LoadState(7, 7, 9, 3.0, 9), loading=False)) == "initial load done: 9 rows"
    assert line_of(shown(LoadState(), loading=False)) == "initial load done"
    assert [clock(s) for s in (0, 59.6, 3661)] == ["0:00", "1:00", "1:01:01"]


def test_a_feed_without_a_load_and_one_that_cannot_continue_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"default/bank has no initial load[\s\S]*--initial-load"):
        load_of(feed(None))
    loading = shown(LoadState(2, 1, 5, 1.0, 10), loading=True)
    with pytest.raises(
        Fatal, match=r"the changefeed is failed[\s\S]*no topic[\s\S]*the rows that are loaded are kept"
    ):
        load_of(feed(loading, "failed", "no topic"))
    assert load_of(feed(loading, "warning")) == loading


def test_each_change_is_a_line_of_json_until_the_load_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    states = [LoadState(2, 1, 5, 1.0, 10), LoadState(2, 1, 5, 1.0, 10), LoadState(2, 2, 10, 2.0, 10)]
    answers = iter(feed(shown(state, loading=not state.finished)) for state in states)
    follow(lambda: next(answers), as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["state"], line["rows"]) for line in lines] == [("loading", 5), ("done", 10)]
