"""The output of `changefeed query`."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.api.feed_json import reader_json
from tidegate.cli.changefeed import _described
from tidegate.config.sink_uri import reader_uri


@pytest.mark.parametrize("cuts", [0, 3])
def test_what_several_writers_of_a_table_cost_is_said(cuts: int) -> None:
    own: dict[str, Any] = defaultdict(int, spans=[], waiting_for="", captures=[], initial_load=None)
    own["table_cuts"] = cuts
    feed: dict[str, Any] = defaultdict(str, tidegate=own)
    line = next((one for one in _described(feed).splitlines() if one.startswith("in pieces")), "")
    assert bool(line) is bool(cuts)
    if cuts:
        assert "cut at 3 keys" in line
        assert "those of two rows may not, until Resolved" in line


def test_a_reader_is_described_from_what_the_api_says_of_it() -> None:
    record = SimpleNamespace(
        config=SimpleNamespace(filter=SimpleNamespace(rules=["s.t"])), uri=reader_uri("typed", 3600, 8 << 20)
    )
    feed_of_reader: Any = SimpleNamespace(record=record)
    progress: Any = SimpleNamespace(queried_ms=86_400_000, confirmed_ts=20, readable=40, kept=1 << 20)
    own: dict[str, Any] = defaultdict(int, spans=[], captures=[], initial_load=None)
    own["reader"] = reader_json(feed_of_reader, progress)
    lines = _described(defaultdict(str, tidegate=own)).splitlines()
    assert [" ".join(line.split()) for line in lines if line.startswith(("tables", "kept", "query"))] == [
        "tables s.t",
        "kept 1.0 of 8 MiB, readable up to 40",
        "query last request 1970-01-02T00:00:00+00:00, kept for 3600 s without another",
    ]
