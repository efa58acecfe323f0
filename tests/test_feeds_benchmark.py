"""The benchmark of many changefeeds keeps what it has found, whatever a later phase does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from benchmarks import feeds_capture
from benchmarks.feeds import ALWAYS, Run, Sizes
from benchmarks.feeds_capture import TABLES_A_TXN, WRITES_A_S, FeedReader, RowWriters, Settling, settle
from benchmarks.feeds_figures import DONE, Figures, Goal, Late, Limit, Phase, chosen, run_phases
from benchmarks.many_tables import Upstream
from benchmarks.show import Ticker

from tidegate.model.timestamp import compose
from tidegate.tidb import keys


class Clock:
    """A time that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_phase_beyond_its_limit_keeps_its_figures_and_the_next_one_runs(tmp_path: Path) -> None:
    clock, figures = Clock(), Figures({"machine": "m"}, tmp_path / "figures.json")
    written = []

    def slow(limit: Limit) -> None:
        figures.add("created", 7)
        clock.now += 10
        limit.check()
        figures.add("all", 8)

    def quick(limit: Limit) -> None:
        written.append(json.loads((tmp_path / "figures.json").read_text()))
        figures.add("percent", 3)

    run_phases([Phase("slow", slow, 10), Phase("quick", quick, 10)], figures, 100, clock)
    slow_figures = {"created": 7, "ended": "ended at its limit of 10 s", "seconds": 10.0}
    assert written == [{"machine": "m", "phases": {"slow": slow_figures}}]
    assert json.loads((tmp_path / "figures.json").read_text())["phases"] == {
        "slow": slow_figures,
        "quick": {"percent": 3, "ended": DONE, "seconds": 0.0},
    }


def test_all_phases_together_take_at_most_the_total() -> None:
    clock, figures, began = Clock(), Figures({}), []

    def phase(limit: Limit) -> None:
        began.append(limit.left_s)
        clock.now += 10

    run_phases([Phase(name, phase, 10) for name in "abc"], figures, 15, clock)
    assert began == [10, 5]
    assert figures.get("c", "ended") == "ended at its limit of 0 s"


def test_a_phase_that_fails_ends_the_run_after_the_file_is_written(tmp_path: Path) -> None:
    figures = Figures({}, tmp_path / "figures.json")

    def phase(limit: Limit) -> None:
        raise RuntimeError("a process has ended")

    with pytest.raises(RuntimeError, match="a process has ended"):
        run_phases([Phase("idle", phase, 10)], figures, 100)
    assert json.loads((tmp_path / "figures.json").read_text())["phases"]["idle"]["ended"] == (
        "failed: a process has ended"
    )


def test_a_wait_ends_at_the_limit() -> None:
    with pytest.raises(Late, match="limit of 0 s"):
        Limit(0.02).wait(lambda: False, 0.005)


def test_a_figure_is_printed_with_its_goal(capsys: pytest.CaptureFixture[str]) -> None:
    figures = Figures({}, goals={("idle", "percent"): Goal(30, "% of a core")}, phase="idle")
    figures.add("percent", 31.5)
    figures.add("by_process", {"control": 20.0, "puller": 1.25})
    assert capsys.readouterr().out.splitlines() == [
        "idle     percent: 31.50 % of a core; goal 30: missed",
        "idle     by process: control 20, puller 1.25",
    ]


def test_one_phase_alone_runs_with_those_that_all_need() -> None:
    phases = Run(Sizes(), Figures({}), ExitStack(), Ticker()).phases
    assert [one.name for one in chosen(phases, ["dead"], ALWAYS)] == ["start", "open", "dead"]
    assert chosen(phases, [], ALWAYS) == phases
    with pytest.raises(ValueError, match="no such phase: deaf"):
        chosen(phases, ["deaf"], ALWAYS)


class Row:
    """A message with one row."""

    def __init__(self, topic: str, committed_ms: float) -> None:
        self._topic, self._key = topic, b'{"ts":%d,"scm":"s"}' % compose(int(committed_ms))

    def topic(self) -> str:
        return self._topic

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return b""


def test_an_outage_ends_when_each_topic_has_a_row_committed_after_it() -> None:
    reader = FeedReader("broker", ["a", "b"])

    def take(topic: str, committed_ms: float, stamp: float) -> None:
        message: Any = Row(topic, committed_ms)
        reader._take(message, committed_ms + 5, stamp)

    before, later = time.time() * 1000 - 10, time.time() * 1000 + 60_000
    take("a", later, 1.0)
    reader.watch()
    for topic in "ab":
        take(topic, before, 2.0)
    assert reader.first_rows() is None, "their rows were committed before"
    take("b", later, 3.0)
    take("b", later, 4.0)
    assert reader.first_rows() is None
    take("a", later, 5.0)
    assert sorted(reader.first_rows() or []) == [3.0, 5.0]
    assert len(reader.lags) == 6


def test_the_lag_has_settled_when_it_falls_no_longer() -> None:
    settling = Settling()
    lags_ms = [float("inf"), float("inf"), 9000.0, 5000.0, 4500.0, 3000.0, 2900.0, 3500.0]
    assert [settling.take(one) for one in lags_ms] == [False] * 7 + [True]


def test_a_warm_up_ends_although_the_lag_falls_or_no_row_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds_capture, "WINDOW_S", 0.01)
    found = settle(FeedReader("broker", ["a"]), 0.05, Limit(60))
    assert found.startswith("the lag was still falling after")


class NoUpstream:
    """Takes the place of a client of PD."""

    def __init__(self, address: str) -> None:
        pass

    def __enter__(self) -> NoUpstream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_rows_are_written_to_each_table_at_the_rate_until_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[list[tuple[int, int]]] = []

    class Kept:
        def __init__(self, pd: object, *, one_phase: bool) -> None:
            self._rows: list[tuple[int, int]] = []

        def put(self, key: bytes, value: bytes) -> None:
            found = keys.parse_record(key)
            self._rows.append((found.table_id, int.from_bytes(key[-8:], "big") - (1 << 63)))

        def commit(self) -> None:
            commits.append(self._rows)

    class Pause(threading.Event):
        """Knows the threads that have seen it set: they have ended the transaction that they had begun."""

        def __init__(self) -> None:
            super().__init__()
            self.seen_by = set[int]()

        def is_set(self) -> bool:
            found = super().is_set()
            if found:
                self.seen_by.add(threading.get_ident())
            return found

    def until(check: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not check():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    monkeypatch.setattr(feeds_capture, "PdClient", NoUpstream)
    monkeypatch.setattr(feeds_capture, "Transaction", Kept)
    monkeypatch.setattr(feeds_capture, "PAUSED_S", 0.01)
    numbers = range(TABLES_A_TXN + 2)
    writers, pause = RowWriters("pd", numbers, 3 * WRITES_A_S, b"row"), Pause()
    writers._is_paused = pause
    with writers:
        until(lambda: len(commits) >= 4)
        writers.pause()
        until(lambda: len(pause.seen_by) == 2)
        before = len(commits)
        time.sleep(1.5 / WRITES_A_S)
        assert len(commits) == before
        writers.resume()
        until(lambda: len(commits) >= before + 2)
    ids = [Upstream.id_of(number) for number in numbers]
    groups = {tuple(sorted({table for table, _ in one})) for one in commits}
    assert groups == {tuple(ids[:TABLES_A_TXN]), tuple(ids[TABLES_A_TXN:])}
    rows = [row for one in commits for row in one]
    assert len(rows) == len(set(rows)), "each row has a handle of its own"
    for table in ids:
        handles = [handle for owner, handle in rows if owner == table]
        assert handles == list(range(1, len(handles) + 1))
        assert len(handles) % 3 == 0
