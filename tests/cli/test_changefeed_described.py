"""The output of `changefeed query`."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.api.feed_json import reader_json
from tidegate.cli import changefeed_moves, changefeed_ranges
from tidegate.cli.changefeed import _described, table
from tidegate.config.sink_uri import reader_uri
from tidegate.dispatcher.consistency import Order, cost_of_pieces
from tidegate.server.changefeeds.hot_spans import OF_A_TABLE

SILENT = (
    "capture 10.0.0.2:8300 has sent nothing for 12 s; the others get its ranges when its session ends, or in "
    "8.0 s at the latest"
)


@pytest.mark.parametrize("cuts", [0, 3])
def test_what_several_writers_of_a_table_cost_is_said(cuts: int) -> None:
    own: dict[str, Any] = defaultdict(int, spans=[], waiting_for="", captures=[], initial_load=None)
    own["table_cuts"] = cuts
    cost = cost_of_pieces(Order.TABLES, marks=True)
    own["cut_tables"] = {"cost": cost, "tables": [{"table": "s.t", "captures": 2}], "more": 0}
    feed: dict[str, Any] = defaultdict(str, tidegate=own)
    line = next((one for one in _described(feed).splitlines() if one.startswith("in pieces")), "")
    assert bool(line) is bool(cuts)
    if cuts:
        assert "cut at 3 keys" in line
        assert "those of two rows may not" in line
        assert "by several captures now: s.t (2)" in _described(feed)
        assert "chosen" not in _described(feed), "an earlier server does not say it"
        own["cuts_chosen"] = {"at": "2026-11-29 23:00:00+00:00", "why": "s.t had 8.0 MiB/s"}
        assert "chosen 2026-11-29 23:00:00+00:00: s.t had 8.0 MiB/s" in _described(feed)


def test_what_the_sink_gives_up_is_said() -> None:
    own: dict[str, Any] = defaultdict(int, spans=[], waiting_for="", captures=[], initial_load=None)
    assert "gives up" not in _described(defaultdict(str, tidegate=own))
    own["gives_up"] = ["one thing", "another"]
    lines = _described(defaultdict(str, tidegate=own)).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("gives up"))
    assert lines[at].endswith(" one thing")
    assert lines[at + 1].strip() == "another"


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


def listed(state: str = "normal", **own: Any) -> dict[str, Any]:
    """A changefeed as the API lists it."""
    known = {"namespace": "default", "id": "bank", "state": state, "checkpoint_tso": 470, "error": None}
    return known | {"tidegate": {"kind": "changefeed", "checkpoint_lag_ms": 1_234} | own}


def test_the_list_says_how_far_behind_each_changefeed_is() -> None:
    head, *lines = table([listed(), listed("stopped", checkpoint_lag_ms=108_000_000)]).splitlines()
    assert head == "CHANGEFEED    STATE    CHECKPOINT  LAG    ERROR"
    assert lines[0] == "default/bank  normal   470         1.2 s"
    assert lines[1] == "default/bank  stopped  470         30 h"
    assert table([listed("finished")]).endswith("470         -"), "its lag says nothing"
    assert table([listed(checkpoint_lag_ms=None)]).endswith("  -"), "the checkpoint is not known"


def test_kinds_are_listed_only_if_there_are_readers() -> None:
    lines = table([listed(), listed(kind="reader")]).splitlines()
    assert [line.split()[1] for line in lines] == ["KIND", "changefeed", "reader"]
    of_ticdc = listed()
    del of_ticdc["tidegate"]
    assert table([of_ticdc]).splitlines()[1].split()[-2:] == ["470", "-"]


def test_lag_and_counts_are_for_people() -> None:
    counts = {"rows": 5020, "messages": 320, "bytes": 1_528_049, "ddl_events": 4}
    own: dict[str, Any] = defaultdict(int, spans=[], captures=[], initial_load=None, **counts)
    own["checkpoint_lag_ms"] = 750_000
    lines = _described(defaultdict(str, tidegate=own)).splitlines()
    assert "lag          12 min" in lines
    assert "delivered    5,020 rows, 320 messages, 1.5 MiB, 4 DDLs" in lines


def a_range(number: int, **given: Any) -> dict[str, Any]:
    """A range as the API shows it."""
    return {
        "id": f"{number:016x}"[::-1],
        "capture": "b",
        "address": "10.0.0.2:8300",
        "tables": 12,
        "running": True,
        "state": "running",
        "reason": "",
        "why": "",
        "checkpoint_ts": 470,
        "checkpoint_lag_ms": 400,
        "resolved_lag_ms": 100,
        "bytes_per_second": 1_234_567,
    } | given


def silent(number: int) -> dict[str, Any]:
    return a_range(number, state="not running", reason="capture silent", why=SILENT, checkpoint_lag_ms=12_000)


@pytest.mark.parametrize("width", [80, 120])
def test_reasons_fit_a_terminal_and_are_complete(width: int) -> None:
    one = {
        "state": "not running",
        "why": SILENT,
        "ranges": 7,
        "example": silent(1) | {"table": "shop.orders"},
    }
    text = changefeed_ranges.reasons({"reasons": [one], "more": 3}, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["RANGES", "STATE", "WHY", "FOR", "EXAMPLE"]
    assert "7  not running" in lines[1]
    assert "shop.orders" in lines[1]
    words = " ".join(" ".join(lines).replace("shop.orders", "").replace("not running", "").split())
    assert SILENT in words, "nothing is cut off"
    assert lines[-1] == "and 3 more ranges with other reasons"
    assert changefeed_ranges.reasons({"reasons": [], "more": 0}, width) == ""


@pytest.mark.parametrize("width", [80, 120])
def test_all_ranges_are_a_table_with_the_troubled_ones_first(width: int) -> None:
    ranges = [a_range(at) for at in range(300)] + [silent(300)]
    text = changefeed_ranges.every(ranges, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["RANGE", "TABLES", "CAPTURE", "LAG", "RECEIVED", "BYTES/S", "STATE"]
    assert "not running:" in lines[1]
    assert "capture silent" in " ".join(f"{lines[1]} {lines[2]}".split()), "in two lines if it must be"
    assert lines[-1] == "and 101 more ranges: --json has all"
    assert lines[-2].split()[-7:] == ["0.4", "s", "0.1", "s", "1.2", "MiB", "running"]
    assert sum("10.0.0.2:8300" in line for line in lines) == changefeed_ranges.ROWS_MAX


def test_captures_and_states_are_summed() -> None:
    ranges = [a_range(1), a_range(2, running=False, checkpoint_ts=400), a_range(3, address="", capture="c")]
    assert changefeed_ranges.captures(ranges) == [
        "10.0.0.2:8300: 24 tables in 2 ranges, checkpoint 400, 1 starting",
        "c: 12 tables, checkpoint 470",
    ]
    states = {"running": 1200, "held": 0, "not running": 2}
    assert (
        changefeed_ranges.summary({"total": 1202, "states": states}) == "1,202: 1,200 running, 2 not running"
    )
    assert changefeed_ranges.summary({"total": 2, "states": {"running": 2}}) == "2 running"


def proposal(moves: int, **given: Any) -> dict[str, Any]:
    first = [{"table": "shop.orders", "is_whole": True}, {"table": "shop.items", "is_whole": False}]
    move = {"from": "1c9c0dd0aaaa", "to": "5a7e22f1bbbb", "load": 1_000_000}
    move |= {"tables": 2, "first_tables": first}
    more = max(0, moves - 20)
    sides = {
        "before": {"max": 3, "mean": 2, "max_over_mean": 1.83},
        "after": {"max": 2, "mean": 2, "max_over_mean": 1.02},
    }
    cost = {
        "moves": moves,
        "tables": 41,
        "received_again": 12_900_000,
        "gap_ms": 700,
        "is_gap_measured": True,
    }
    loads = {name: {"before": 9_000_000, "after": 5_000_000} for name in ("1c9c0dd0aaaa", "5a7e22f1bbbb")}
    return {
        "dry_run": True, "unit": "bytes per second", "captures": loads, "moves": [move] * (moves - more),
        "other_moves": {"moves": more, "tables": 8 * more, "load": 1_000_000 * more}, "cost": cost,
        "gain": sides,
    } | given  # fmt: skip


def test_a_rebalance_says_what_moves_its_cost_and_its_gain() -> None:
    text = changefeed_moves.described(proposal(25))
    assert max(map(len, text.splitlines())) <= 80
    rows = [" ".join(line.split()) for line in text.split("\n\n")[1].splitlines()]
    assert rows[0] == "FROM TO LOAD TABLES"
    assert rows[1] == "1c9c0dd0aaaa 5a7e22f1bbbb 1,000,000 shop.orders, part of shop.items"
    assert rows[20:] == [rows[1], "5 more 5,000,000 40 tables"]
    assert "25 ranges would move, with 25,000,000 of the load" in text
    assert [" ".join(line.split()) for line in text.splitlines()[-4:]] == [
        "moves 25 of 41 tables",
        "received again about 12.3 MiB of changes, while the givers still deliver",
        "checkpoint stops for about 0.7 s, as the last time",
        "greatest / mean load 1.83 now, 1.02 after (1 is even)",
    ]
    little = {"received_again": None, "is_gap_measured": False, "tables": 0}
    quiet = proposal(1)
    quiet["cost"] |= little
    text = changefeed_moves.described(quiet)
    assert "few changes, while" in text
    assert "0.7 s, as is typical" in text


def test_a_range_that_moves_is_known_by_its_first_tables_and_their_number() -> None:
    many = proposal(1)
    many["moves"][0]["tables"] = 1_205
    assert "shop.orders, part of shop.items and 1,203 more\n" in changefeed_moves.described(many)
    keys = proposal(1)
    keys["moves"][0] |= {"tables": 0, "first_tables": []}
    assert "1,000,000\n" in changefeed_moves.described(keys), "a changefeed of keys has no tables"


def test_nothing_to_move_says_how_even_the_load_is() -> None:
    even = proposal(0)
    assert changefeed_moves.described(even).endswith("the greatest load is 1.83 times the mean")
    assert changefeed_moves.described({"moves": []}) == changefeed_moves.BEST, "an earlier server"


def test_one_thing_is_not_named_as_several_and_numbers_are_aligned() -> None:
    found: dict[str, Any] = {"unit": "spans", "moves": [{"from": "a", "to": "b", "load": 7}], "dry_run": True}
    found["captures"] = {"a": {"before": 1_207, "after": 1_200}, "b": {"before": 0, "after": 7}}
    lines = changefeed_moves.described(found).splitlines()
    assert lines[:3] == [
        "CAPTURE  LOAD NOW  LOAD AFTER",
        "a           1,207       1,200",
        "b               0           7",
    ]
    assert lines[-1] == "load in spans; 1 range would move, with 7 of the load"
    assert changefeed_moves.described(found | {"dry_run": False}).endswith(
        "1 range is moving, with 7 of the load"
    )
    assert changefeed_ranges.captures([a_range(1, tables=1)]) == ["10.0.0.2:8300: 1 table, checkpoint 470"]


def test_a_span_that_is_too_hot_is_a_warning_with_the_settings_that_cut_it() -> None:
    first = [{"table": "shop.orders", "is_whole": True}]
    one = {"load": 8 << 20, "times_mean": 2.74, "tables": 1, "first_tables": first, "remedy": OF_A_TABLE}
    hot = {"spans": [one], "more": 2}
    own: dict[str, Any] = defaultdict(int, spans=[], waiting_for="", captures=[], initial_load=None)
    own["hot_spans"] = {"spans": [], "more": 0}
    assert "too hot" not in _described(defaultdict(str, tidegate=own))
    own["hot_spans"] = hot
    lines = _described(defaultdict(str, tidegate=own)).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("too hot"))
    assert "shop.orders: 8.0 MiB/s, 2.7 times the mean of a capture" in lines[at]
    assert "tidegate changefeed update" in lines[at]
    assert "enable-table-across-nodes = true" in lines[at]
    assert lines[at + 1].strip() == "and 2 more"
    by_itself = {"spans": [one | {"by_itself": "it is cut by itself soon"}], "more": 0}
    (line,) = changefeed_moves.hot_spans(by_itself)
    assert line.endswith("no move helps; it is cut by itself soon")
    for moves in (0, 1):
        text = changefeed_moves.described(proposal(moves, hot_spans=hot))
        assert "warning: shop.orders: 8.0 MiB/s" in text
