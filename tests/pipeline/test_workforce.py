"""Which worker gets a piece, and when one counts as stuck with it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import Begun, Deliver, to_json
from tidegate.pipeline.host import signs_of_life
from tidegate.pipeline.host.connected_worker import STUCK_FIRST_S, STUCK_S, ConnectedWorker, Silence, Work
from tidegate.pipeline.host.load_requests import LoadRequests
from tidegate.pipeline.host.load_throttle import LOAD_SHARE_MIN, CpuTime
from tidegate.pipeline.host.placement import Placement
from tidegate.pipeline.host.processes import is_stopped
from tidegate.pipeline.host.signs_of_life import STOPPED_S, SignsOfLife
from tidegate.pipeline.host.timetable import Timetable, WorkKind
from tidegate.pipeline.host.workforce import Workforce

KEY = ("one", 1)
OTHERS = [(name, 1) for name in "abc"]


def worker(*served: tuple[str, int]) -> ConnectedWorker:
    """One that has the writers of these incarnations."""
    none: Any = None
    return ConnectedWorker(none, none, served=dict.fromkeys(served, 1))


@pytest.mark.parametrize(("in_doubt", "expected"), [(False, 0), (True, 2)])
def test_a_piece_in_doubt_goes_where_it_is_in_the_way_of_the_fewest(in_doubt: bool, expected: int) -> None:
    """Otherwise it would go where its writer is, with those of many others."""
    workers = [worker(KEY, *OTHERS), worker(*OTHERS), worker(OTHERS[0])]
    workforce = Workforce()
    for each in workers:
        workforce.release(each)
    assert workforce.take(KEY, in_doubt=in_doubt) is workers[expected]


@pytest.mark.parametrize(
    ("served", "in_doubt", "stuck_s"),
    [([KEY], False, STUCK_S), ([KEY], True, STUCK_S), ([], True, STUCK_FIRST_S), ([], False, float("inf"))],
)
def test_a_worker_that_opens_a_sink_in_doubt_is_stuck_later(
    served: list[tuple[str, int]], in_doubt: bool, stuck_s: float
) -> None:
    """If it were never stuck, one changefeed with trouble would keep all others there waiting."""
    own = SimpleNamespace(stall_timeout=60.0, start_timeout=60.0)
    spec = SimpleNamespace(config=SimpleNamespace(tidegate=own))
    one: Any = SimpleNamespace(spec=spec, key=KEY, failures=0)
    deliver = Deliver("spec", (Range("span", 10, 30),))
    work = Work(one, deliver, WorkKind.DELIVER, "rows")
    busy = worker(*served)
    busy.give(work, 0.0)
    stuck = []
    for step in range(19):
        busy.note(work, busy.look(work, None, step / 2, in_doubt=in_doubt))
        stuck.append(busy.is_stuck)
    assert stuck == [step / 2 >= stuck_s for step in range(19)]


def test_a_long_piece_that_moves_shows_that_its_sink_answers() -> None:
    """The first signs do not, because they come from the encoding. A piece that has ended shows nothing."""
    alive = list[str]()
    own = SimpleNamespace(stall_timeout=60.0, start_timeout=60.0)
    spec = SimpleNamespace(config=SimpleNamespace(tidegate=own))
    one: Any = SimpleNamespace(spec=spec, key=KEY, failures=0)
    timetable: Any = SimpleNamespace(is_proven=lambda key: True, alive=alive.append, doubt=None)
    none: Any = SimpleNamespace(changed=threading.Lock())
    signs, busy = SignsOfLife(none, timetable, none, none, none, none), worker(KEY)
    work = Work(one, Deliver("spec", ()), WorkKind.DELIVER, "rows")
    busy.give(work, 0.0)
    found = [
        busy.look(work, beats, now, in_doubt=False) for now, beats in [(0.2, 1), (0.7, 2), (1.2, 3), (1.7, 3)]
    ]
    assert [each.is_moving for each in found] == [False, False, True, False]
    for beats in (4, 5, 5):
        signs._watch_one(busy, work, beats)
    assert alive == [KEY, KEY]
    busy.give(work, 0.0)
    signs._watch_one(busy, Work(one, work.piece, WorkKind.DELIVER, "other rows"), 6)
    assert alive == [KEY, KEY]


@pytest.mark.parametrize("is_proven", [True, False])
def test_a_look_knows_whether_the_address_is_in_doubt_by_now(
    monkeypatch: pytest.MonkeyPatch, is_proven: bool
) -> None:
    """It may have been proven when the piece was given out."""
    found = list[bool]()

    def look(worker: ConnectedWorker, work: Work, beats: None, now: float, *, in_doubt: bool) -> Silence:
        found.append(in_doubt)
        return Silence(0.0, 5.0, 60.0, 3.0)

    monkeypatch.setattr(ConnectedWorker, "look", look)
    timetable: Any = SimpleNamespace(is_proven=lambda key: is_proven)
    none: Any = SimpleNamespace(changed=threading.Lock(), key=KEY)
    signs, busy = SignsOfLife(none, timetable, none, none, none, none), worker(KEY)
    work = Work(none, Deliver("spec", ()), WorkKind.DELIVER, "rows")
    busy.give(work, 0.0)
    signs._watch_one(busy, work, None)
    assert found == [not is_proven]


@pytest.mark.parametrize(
    ("addresses", "is_proven", "expected"), [(1, False, True), (2, True, True), (2, False, False)]
)
def test_a_piece_that_goes_elsewhere_anyway_does_not_wait_for_its_writer(
    monkeypatch: pytest.MonkeyPatch, addresses: int, is_proven: bool, expected: bool
) -> None:
    """Otherwise nothing would prove its address while the worker with its writer is busy."""
    monkeypatch.setattr("tidegate.pipeline.host.placement.HOME_S", 60.0)
    table: Any = Timetable(2)
    for number, key in enumerate([KEY, *OTHERS]):
        table.ask_begin(key, f"kafka://{number % addresses}", 0)
        table.give(key, WorkKind.BEGIN)
        table.answered(key, well=True)
        table.back(key, WorkKind.BEGIN)
    table.answered(KEY, well=is_proven)
    home, workforce, none = worker(KEY), Workforce(), SimpleNamespace(changed=None)
    workforce.join(home, 0.0)
    other: Any = SimpleNamespace()
    home.give(other, time.monotonic())
    incarnations: Any = [KEY, *OTHERS]
    unused: Any = none
    placement = Placement(unused, table, workforce, incarnations, unused, unused)
    assert placement._waits_for_home(KEY) is expected


@pytest.mark.parametrize(("is_proven", "share"), [(True, LOAD_SHARE_MIN), (False, 1.0)])
def test_rows_count_as_delivered_for_as_long_as_their_piece_takes(is_proven: bool, share: float) -> None:
    """On a full machine that is longer than LIVE_S, and a load would get all of it. Not at a silent sink."""
    table: Any = Timetable(2)
    table.ask_begin(KEY, "kafka://0", 0)
    table.give(KEY, WorkKind.BEGIN)
    table.answered(KEY, well=is_proven)
    table.back(KEY, WorkKind.BEGIN)
    busy, workforce = worker(KEY), Workforce()
    workforce.join(busy, 0.0)
    delivers: Any = SimpleNamespace(of=SimpleNamespace(key=KEY), kind=WorkKind.DELIVER)
    busy.give(delivers, 0.0)
    unused: Any = SimpleNamespace()
    threads: Any = SimpleNamespace(changed=threading.Condition())
    requests = LoadRequests(threads, table, 2)
    placement: Any = Placement(threads, table, workforce, unused, requests, unused)
    placement._cpu_wait = SimpleNamespace(look=lambda _: CpuTime(1.0, 1000.0))
    for second in range(30):
        placement._look_at_cores([1], float(second))
    assert requests.throttle.share == share


def test_one_that_a_signal_has_stopped_is_killed_with_work_or_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would hold the next start of a changefeed for minutes."""
    answered, killed = list[bool](), list[int]()
    given: Any = SimpleNamespace(
        changed=threading.Lock(), answered=lambda key, well: answered.append(well), key=KEY
    )

    def joined(pid: int, *, machine: str = "") -> ConnectedWorker:
        process: Any = SimpleNamespace(pid=pid, kill=lambda: killed.append(pid))
        found = ConnectedWorker(given, process, machine=machine)
        workforce.join(found, 0.0)
        return found

    workforce = Workforce()
    free, busy, running, elsewhere = joined(1), joined(2), joined(3), joined(1, machine="there")
    joined(0)  # it is between two pieces
    for each in (free, running, elsewhere):
        workforce.release(each)
    busy.give(Work(given, given, WorkKind.BEGIN, "a start"), 0.0)
    monkeypatch.setattr(signs_of_life, "is_stopped", lambda pid: pid < 3)
    signs = SignsOfLife(given, given, workforce, given, given, given)
    signs._end_stopped(100.0)
    signs._end_stopped(100.0 + STOPPED_S - 1.0)
    assert (killed, answered) == ([], [])
    signs._end_stopped(100.0 + STOPPED_S)
    signs._end_stopped(100.0 + STOPPED_S + 1.0)
    assert sorted(killed) == [1, 2]
    assert answered == [False]
    assert (workforce.is_free(free), workforce.is_free(running), workforce.is_free(elsewhere)) == (
        False,
        True,
        True,
    )
    assert (free.pieces.get(timeout=60), busy.pieces.get(timeout=60)) == (None, busy.work)
    assert busy.killed_for is not None
    assert "CDC:ErrPipelineHung" in busy.killed_for.what
    assert busy.killed_for.where == "a worker (2), with a start"
    # Continued before it was over, it counts from the next stop on.
    monkeypatch.setattr(signs_of_life, "is_stopped", lambda pid: False)
    signs._end_stopped(200.0)
    assert signs._stopped_since == {}


def test_a_process_is_stopped_while_a_signal_keeps_it_so() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        while "(sleep) S" not in Path(f"/proc/{child.pid}/stat").read_text():
            time.sleep(0.001)  # it has begun, and waits
        assert not is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert is_stopped(child.pid)
        child.send_signal(signal.SIGCONT)
        os.waitpid(child.pid, os.WCONTINUED)
        assert not is_stopped(child.pid)
    finally:
        child.kill()
        child.wait()
    assert not is_stopped(child.pid)


@pytest.mark.parametrize(
    "other", ["none", "between two pieces", "its result has come", "free meanwhile", "moving", "few moving"]
)
def test_no_worker_is_killed_if_another_gets_the_waiting_piece(other: str) -> None:
    """It gets the worker that has just connected or finished its piece, or one of many that will soon."""
    none: Any = SimpleNamespace(
        changed=threading.Lock(), is_one_coming=lambda now: False, answered=lambda key, well: None, enough=4
    )
    process: Any = SimpleNamespace(pid=1, kill=lambda: None)
    one: Any = SimpleNamespace(key=KEY)
    workforce, slow = Workforce(), ConnectedWorker(none, process)
    workforce.join(slow, 0.0)
    slow.give(Work(one, none, WorkKind.DELIVER, "rows"), 0.0)
    slow.silent_s = 9.0
    if other in ("between two pieces", "its result has come"):
        ends = worker()
        workforce.join(ends, 0.0)
        if other == "its result has come":
            ends.give(Work(one, none, WorkKind.BEGIN, "a start"), 0.0)
            ends.line = SimpleNamespace(receive=lambda: to_json(Begun({})))
            ends.received()

    for _ in range({"moving": 4, "few moving": 3}.get(other, 0)):
        busy = worker()
        workforce.join(busy, 0.0)
        busy.give(Work(one, none, WorkKind.DELIVER, "rows"), 0.0)

    def is_wanted() -> bool:
        if other == "free meanwhile":
            workforce.release(worker())
        return True

    SignsOfLife(none, none, workforce, none, none, none).make_room(is_wanted)
    assert slow.killed is (other in ("none", "few moving"))
