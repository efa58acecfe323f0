"""The turns of incremental scans that run at the same time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tidegate.tikv.cdc import initializer

USUAL_S = sys.getswitchinterval()


class Scan:
    """The rows of a scan, with what it sees while it computes one."""

    computing = 0

    def __init__(self, rows: int) -> None:
        self.left = rows
        self.most = 0
        self.turns_s: set[float] = set()

    def rows(self) -> Iterator[bytes]:
        while self.left:
            Scan.computing += 1
            self.most = max(self.most, Scan.computing)
            self.turns_s.add(sys.getswitchinterval())
            time.sleep(0.0002)  # the interpreter is free, so another scan could compute
            Scan.computing -= 1
            self.left -= 1
            yield b"r" * 4096


def test_one_scan_computes_at_a_time_and_in_short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initializer, "_WAIT_S", 10.0)  # also on a machine that stalls
    scans = [Scan(60) for _ in range(3)]
    events: list[int] = []

    def run(scan: Scan) -> None:
        rows = scan.rows()
        while event := initializer._next_event(rows):
            events.append(len(event))

    threads = [threading.Thread(target=run, args=(scan,)) for scan in scans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {scan.most for scan in scans} == {1}
    assert [turn for scan in scans for turn in scan.turns_s] == pytest.approx([initializer.TURN_S] * 3)
    assert sum(events) == 180
    assert max(events) == initializer.EVENT_BYTES // 4096
    assert sys.getswitchinterval() == pytest.approx(USUAL_S)


def test_a_scan_does_not_wait_long_for_one_that_finds_nothing() -> None:
    searching, found = threading.Event(), threading.Event()

    def empty() -> Iterator[bytes]:
        searching.set()
        assert found.wait(60)
        yield from ()

    other = threading.Thread(target=lambda: initializer._next_event(empty()))
    other.start()
    assert searching.wait(60)
    assert initializer._next_event(iter([b"row"])) == [b"row"]
    found.set()
    other.join()
    assert initializer._next_event(iter([b"row"])) == [b"row"]
