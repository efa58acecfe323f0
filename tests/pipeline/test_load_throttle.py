"""Loads make way while rows are late, are never stopped, and run at full speed when nobody minds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.errors import Retryable
from tidegate.pipeline.exchange.work import Load
from tidegate.pipeline.host.cpu_wait import CpuWait
from tidegate.pipeline.host.load_requests import LoadRequests
from tidegate.pipeline.host.load_throttle import (
    EASY,
    IDLE_S,
    LATE,
    LIVE_S,
    LOAD_SHARE_MIN,
    LONG_S,
    LOOK_S,
    PAUSE_MAX_S,
    SHARE_STEP,
    SHORT_S,
    CpuTime,
    LoadThrottle,
)
from tidegate.pipeline.host.timetable import Timetable, WorkKind
from tidegate.pipeline.worker.load_task import TASK_S

CORES = 2
FULL, FREE = CpuTime(1.0, LATE), CpuTime(1.0, EASY)
STEP_S = 0.05
Wait = Callable[[int], float]
"""The seconds of waiting for each of running, while so many workers have a piece of a load."""


class Model:
    """A load with endless pieces, in virtual time. Rows of others are delivered if `is_live`."""

    def __init__(self, wait: Wait, piece_s: float = SHORT_S, cores: int = CORES) -> None:
        self.throttle = LoadThrottle(cores)
        self.now, self.is_live = 1000.0, True
        self.wait, self._piece_s, self._cores = wait, piece_s, cores
        self._out: list[float] = []
        """When each piece that is out began."""
        self._waited = 0.0
        self.shares: list[float] = []

    def run(self, seconds: float) -> tuple[float, float]:
        """The part of the workers' time that the load had, and the longest time without a piece of it."""
        worked_s = longest_s = 0.0
        end, last = self.now + seconds, self.now
        while self.now < end:
            self.now += STEP_S
            now, throttle = self.now, self.throttle
            if self.is_live:
                throttle.delivers(now)
            self._waited += STEP_S * self.wait(len(self._out))
            if throttle.is_look_due(now):
                throttle.look(now, CpuTime(LOOK_S, self._waited))
                self._waited = 0.0
                self.shares.append(throttle.share)
            for began in [began for began in self._out if now - began >= self._piece_s]:
                self._out.remove(began)
                throttle.ended(now, now - began)
            while len(self._out) < self._cores and throttle.may_begin(now, len(self._out)):
                self._out.append(now)
            worked_s += STEP_S * len(self._out)
            last = now if self._out else last
            longest_s = max(longest_s, now - last)
        return worked_s / (seconds * self._cores), longest_s


def test_a_load_has_all_workers_while_no_rows_are_delivered() -> None:
    model = Model(lambda out: 10 * LATE)
    model.is_live = False
    assert model.run(30.0)[0] == pytest.approx(1.0, abs=0.05)
    assert model.throttle.piece_s(model.now) == LONG_S


@pytest.mark.parametrize("cores", [1, 2, 12])
def test_on_a_full_machine_a_load_keeps_its_least_share(cores: int) -> None:
    """Also if the machine is full without it: it would have to wait for ever otherwise."""
    part, longest_s = Model(lambda out: 10 * LATE, cores=cores).run(300.0)
    # The model's steps are a tenth of a piece.
    assert part == pytest.approx(LOAD_SHARE_MIN, rel=0.15)
    assert longest_s <= PAUSE_MAX_S + STEP_S


def test_a_load_begins_gently_and_gets_all_of_a_machine_with_free_cores() -> None:
    model = Model(lambda out: 0.0)
    began, _ = model.run(2.0)
    assert began <= 3 * LOAD_SHARE_MIN, "the first seconds would be those in which everything is late"
    model.run(1.0 / SHARE_STEP)
    assert model.run(30.0)[0] == pytest.approx(1.0, abs=0.05)
    assert model.throttle.piece_s(model.now) == SHORT_S


def test_a_load_makes_way_within_seconds_when_a_machine_becomes_full() -> None:
    model = Model(lambda out: 0.0)
    model.run(30.0)
    model.wait = lambda out: 10 * LATE
    model.run(5.0)
    assert model.run(60.0)[0] == pytest.approx(LOAD_SHARE_MIN, rel=0.2)


def test_a_load_that_makes_rows_late_settles_below_that() -> None:
    """One worker with a piece is bearable, two are not."""
    model = Model(lambda out: (0.0, LATE, 3 * LATE)[out])
    model.run(30.0)
    part, longest_s = model.run(300.0)
    assert LOAD_SHARE_MIN < part < 0.5
    assert longest_s <= PAUSE_MAX_S
    last = model.shares[-300:]
    assert max(last) <= 0.7, "it does not swing between its bounds"


def test_between_the_two_bounds_the_share_stays() -> None:
    throttle = LoadThrottle(CORES)
    shares = []
    for second in range(20):
        throttle.delivers(float(second))
        throttle.look(float(second), FREE if second < 5 else CpuTime(1.0, (EASY + LATE) / 2))
        if second >= 5:
            shares.append(throttle.share)
    assert shares == [pytest.approx(LOAD_SHARE_MIN + 4 * SHARE_STEP)] * 15


def test_a_load_has_full_speed_again_when_the_last_rows_are_delivered() -> None:
    model = Model(lambda out: 10 * LATE)
    model.run(30.0)
    model.is_live = False
    model.run(LIVE_S + LOOK_S + PAUSE_MAX_S)
    assert model.run(10.0)[0] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("took_s", "pause_s"), [(SHORT_S, 2.0), (2.0, 0.5), (60.0, 0.0)])
def test_a_piece_that_waited_for_its_sink_is_followed_by_no_pause(took_s: float, pause_s: float) -> None:
    """Nor one that waited for a core. The least share is kept of what it may have used."""
    throttle = LoadThrottle(CORES)
    throttle.delivers(0.0)
    throttle.look(0.0, FULL)
    throttle.ended(100.0, took_s)
    assert throttle.may_begin(100.0 + pause_s, 0)
    assert pause_s == 0.0 or not throttle.may_begin(100.0 + pause_s - 0.01, 0)


def test_threads_that_hardly_ran_keep_no_load_slow() -> None:
    throttle = LoadThrottle(CORES)
    throttle.delivers(0.0)
    throttle.look(0.0, FREE)
    throttle.look(1.0, CpuTime(0.0, 0.001))
    assert throttle.share > LOAD_SHARE_MIN


def test_the_next_load_begins_gently_again() -> None:
    model = Model(lambda out: 0.0)
    model.run(30.0)
    now = model.now + IDLE_S + 1
    model.throttle.delivers(now)
    model.throttle.look(now, FREE)
    assert model.throttle.share == LOAD_SHARE_MIN


def test_where_cores_cannot_be_looked_at_nothing_is_limited() -> None:
    """On a cluster, and where the kernel keeps no account of waiting."""
    throttle = LoadThrottle(CORES)
    throttle.delivers(0.0)
    throttle.ended(1.0, 60.0)
    assert throttle.may_begin(1.0, CORES - 1)
    assert throttle.piece_s(1.0) == LONG_S, "short pieces cost more"
    for second in range(30):
        throttle.delivers(float(second))
        throttle.look(float(second), None)
        assert throttle.share == 1.0
        assert throttle.piece_s(float(second)) == LONG_S


def test_a_load_whose_sink_does_not_answer_stops_no_other_load() -> None:
    threads: Any = SimpleNamespace(changed=threading.Condition())
    table: Timetable[Any] = Timetable(CORES)
    requests = LoadRequests(threads, table, CORES)
    ended = Retryable("the test is over")
    loads: list[Any] = [SimpleNamespace(key=(name, 1), over=False, fenced=lambda: ended) for name in "ab"]
    with ThreadPoolExecutor(2) as pool:
        for one in loads:
            table.ask_begin(one.key, "kafka://one", 0)
            pool.submit(requests.ask, one, Load("spec", "pd", 1, (), 0, 0))
        end = time.monotonic() + 60
        while sum(len(some) for some in requests._waiting.values()) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        requests.throttle.delivers(0.0)
        requests.throttle.look(0.0, FULL)
        given = []
        for now in (0.0, TASK_S, PAUSE_MAX_S):
            with threads.changed:
                if (key := requests.next_key(now)) is not None:
                    table.give(key, WorkKind.LOAD)
                    given.append((now, requests.next(key, now)))
        for _, work in given:
            work.answered([])
        for one in loads:
            requests.drop(one)
    assert [now for now, _ in given] == [0.0, PAUSE_MAX_S]
    assert {work.of.key for _, work in given} == {one.key for one in loads}


# --- the kernel's account


def account(proc: Path, thread: str, ran_s: float, waited_s: float) -> None:
    folder = proc / thread
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(f"{int(ran_s * 1e9)} {int(waited_s * 1e9)} 5\n")


def test_the_time_since_the_last_look_is_summed_over_threads(tmp_path: Path) -> None:
    cpu_wait = CpuWait(tmp_path)
    account(tmp_path, "self/task/1", 10.0, 5.0)
    account(tmp_path, "70", 3.0, 0.0)
    account(tmp_path, "71", 9.0, 0.0)
    assert cpu_wait.look([70, 71, 99]) == CpuTime(0.0, 0.0), "nothing is known of the time before"
    account(tmp_path, "self/task/1", 10.5, 7.0)
    account(tmp_path, "self/task/2", 4.0, 4.0)
    account(tmp_path, "70", 3.25, 0.5)
    account(tmp_path, "71", 1.0, 0.0)
    found = cpu_wait.look([70, 71])
    assert found is not None
    assert (found.run_s, found.wait_s) == (pytest.approx(0.75), pytest.approx(2.5)), (
        "71 is another process now"
    )


def test_without_an_account_nothing_is_found(tmp_path: Path) -> None:
    cpu_wait = CpuWait(tmp_path)
    (tmp_path / "self/task/1").mkdir(parents=True)
    (tmp_path / "self/task/1/schedstat").write_text("no figures\n")
    assert [cpu_wait.look([1]) for _ in range(2)] == [None, None]


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel keeps no account of waiting"
)
def test_this_machine_accounts_for_running_and_waiting() -> None:
    cpu_wait = CpuWait()
    cpu_wait.look([])
    began, used = time.monotonic(), time.process_time()
    while time.process_time() - used < 0.1 and time.monotonic() - began < 60:
        pass
    found = cpu_wait.look([])
    assert found is not None
    assert 0.05 < found.run_s < 60
    assert found.wait_s >= 0.0
