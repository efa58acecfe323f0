"""What `changefeed query` says of a changefeed."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tidegate.cli.changefeed import _described


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
