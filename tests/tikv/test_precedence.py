"""Scans of many rows pause while clients wait for requests, and for a bounded share of the time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tikv.cluster import Client, Cluster
from tests.tikv.support import put
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys
from tidegate.tikv.cdc import initializer
from tidegate.tikv.precedence import ENTRIES, PAUSE_MAX_S, PAUSE_SHARE, SERVED_S, Pauses, Served, pausing
from tidegate.tikv.txn.read_calls import LONG_ROWS


class Time:
    """A clock, and the CPU of the scan's thread. To sleep takes time, to compute both."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cpu_s = 5.0
        self.slept: list[float] = []
        self.at_wake_up = list[float]()
        """Moments, relative to a wake-up, of the steps that a request takes then."""
        self.served = Served(lambda: self.now)
        self.pauses = Pauses(self.served, lambda: self.now, lambda: self.cpu_s, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        if self.at_wake_up:
            self.now += self.at_wake_up.pop(0)
            self.served.mark()

    def compute(self, seconds: float) -> None:
        self.now += seconds
        self.cpu_s += seconds
        self.pauses.pause()


def test_a_scan_pauses_until_a_request_takes_no_more_steps() -> None:
    time = Time()
    time.compute(0.001)
    assert time.slept == []
    time.served.mark()
    time.at_wake_up = [0.0, 0.0]
    time.compute(0.0005)
    assert time.slept == pytest.approx([SERVED_S - 0.0005, SERVED_S, SERVED_S])
    time.compute(0.001)
    assert len(time.slept) == 3


def test_with_requests_all_the_time_a_scan_computes_for_a_third_of_it() -> None:
    time = Time()
    began = time.now
    for _ in range(400):
        time.served.until = time.now + 1
        time.compute(0.0005)
    paused = sum(time.slept)
    assert paused == pytest.approx(PAUSE_MAX_S + PAUSE_SHARE * 400 * 0.0005, rel=0.01)
    assert time.now - began == pytest.approx(paused + 400 * 0.0005)


def test_a_scan_that_waits_for_others_may_not_pause_longer_for_that() -> None:
    time = Time()
    time.served.until = time.now + 1
    time.compute(0.0)
    time.now += 0.5  # its client does not read, or another scan computes
    time.compute(0.0)
    assert sum(time.slept) == pytest.approx(PAUSE_MAX_S)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each look of the scans in a test."""
    found: list[None] = []
    monkeypatch.setattr(Pauses, "pause", lambda pauses: found.append(None))
    return found


def test_a_scan_looks_after_some_entries_and_returns_all(looks: list[None]) -> None:
    seen = [(one, len(looks)) for one in pausing(iter(range(3 * ENTRIES + 1)), Pauses())]
    assert seen == [(one, one // ENTRIES) for one in range(3 * ENTRIES + 1)]
    assert len(looks) == 3


def test_a_scan_reads_no_entry_in_advance(looks: list[None]) -> None:
    entries = iter(range(3))
    scanned = pausing(entries, Pauses())
    assert (next(scanned), next(entries)) == (0, 1)


@pytest.mark.parametrize("scan", [initializer._committed, initializer._raw])
def test_a_scan_looks_also_while_it_finds_nothing_to_send(
    scan: Callable[[Any, Any], Any], looks: list[None]
) -> None:
    entries = ((keys.versioned(b"key %d" % number, 7), b"") for number in range(10 * ENTRIES))
    passed = list(
        scan(SimpleNamespace(checkpoint_ts=8), SimpleNamespace(entries=entries, getter=lambda cf: None))
    )
    assert passed == []
    assert len(looks) == 10


def test_scans_pause_for_each_step_of_a_commit_and_for_ticks(
    make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(Served, "mark", lambda served: steps.append(sys._getframe(1).f_code.co_qualname))
    cluster = make()
    cluster.txn(put(b"k"))
    of_request = ["Store.submit", "Raftstore._apply", "Store.submit.<locals>.served"]
    assert steps == 2 * of_request
    client = Client(cluster)
    client.register(1, cluster.regions.all[0])
    client.until(lambda: "Ticker._run" in steps)
    client.close()


@pytest.mark.parametrize(("limit", "expected"), [(LONG_ROWS, 0), (LONG_ROWS + 1, 3)])
def test_a_page_of_a_whole_table_gives_way_and_a_short_scan_does_not(
    make: Callable[..., Cluster], looks: list[None], limit: int, expected: int
) -> None:
    cluster = make()
    cluster.txn(*(put(b"k%03d" % number) for number in range(3 * ENTRIES)))
    looks.clear()
    request = pb.ScanRequest(start_key=b"k", end_key=b"l", limit=limit, version=cluster.tso.get())
    found = cluster.call(request, b"k").pairs
    assert [one.key for one in found] == [b"k%03d" % number for number in range(3 * ENTRIES)]
    assert len(looks) == expected


@pytest.mark.parametrize("reverse", [False, True])
def test_a_page_of_deleted_rows_gives_way_too(
    make: Callable[..., Cluster], looks: list[None], reverse: bool
) -> None:
    cluster = make()
    names = [b"k%03d" % number for number in range(3 * ENTRIES)]
    cluster.txn(*(put(name) for name in names))
    cluster.txn(*(pb.Mutation(op=pb.Del, key=name) for name in names))
    looks.clear()
    start, end = (b"l", b"k") if reverse else (b"k", b"l")
    request = pb.ScanRequest(
        start_key=start, end_key=end, limit=LONG_ROWS + 1, version=cluster.tso.get(), reverse=reverse
    )
    assert not cluster.call(request, b"k").pairs
    assert len(looks) == 3
