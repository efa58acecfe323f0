"""Ordered apply: observers before clients, captures between rounds, nothing after a failure."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path

from tidegate.errors import Retryable
from tidegate.tikv import mvcc
from tidegate.tikv.engine import Engine, EngineSnapshot
from tidegate.tikv.raft import region_change
from tidegate.tikv.raft.raftstore import Command, Raftstore
from tidegate.tikv.raft.region import split
from tidegate.tikv.raft.region_change import RegionChange
from tidegate.tikv.raft.region_meta import load
from tidegate.tikv.raft.region_table import RegionTable

WAIT_S = 120
"""Guards against what hangs, and costs nothing when all is well."""


class Recorder:
    """An observer that notes what it saw, and whether it was durable and unanswered then."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def on_applied(self, commands: Sequence[Command]) -> None:
        self.log += [f"seen {command.changes[0][1].decode()}" for command in commands]


def test_observers_see_a_command_before_its_client_and_match_captures(tmp_path: Path) -> None:
    log: list[str] = []
    store = Raftstore(Engine(tmp_path), RegionTable(split([])))
    store.observers[1] = Recorder(log)
    done = threading.Event()

    def propose(name: str) -> None:
        def applied(error: Exception | None) -> None:
            assert error is None
            log.append(f"answered {name}")

        store.propose(Command(2, [(mvcc.LOCK, name.encode(), b"")], on_applied=applied))

    def capture(snapshot: EngineSnapshot | Exception) -> None:
        assert isinstance(snapshot, EngineSnapshot)
        seen = {line.split()[1] for line in log if line.startswith("seen")}
        there = {name for name in "abcde" if snapshot.get(mvcc.LOCK, name.encode()) is not None}
        assert seen == there, "exactly what was observed before is in the snapshot"
        log.append("captured")
        done.set()

    store.start()
    for name in "abcde":
        propose(name)
    store.capture(capture)
    assert done.wait(WAIT_S)
    store.stop()
    for name in "abcde":
        assert log.index(f"seen {name}") < log.index(f"answered {name}")
    assert [line for line in log if line.startswith("seen")] == [f"seen {name}" for name in "abcde"]
    store.engine.close()


def test_a_split_is_durable_and_observed_before_anyone_can_find_its_parts(tmp_path: Path) -> None:
    store = Raftstore(Engine(tmp_path), RegionTable(split([])))
    (region,) = store.regions.all
    seen: list[tuple[str, int, int]] = []

    class Watcher:
        """Both an observer and a member: notes its calls, and how many regions there are by then."""

        def _record(self, what: str) -> None:
            durable = len(load(store.engine, [], 1).all)
            seen.append((what, durable, len(store.regions.all)))

        def on_applied(self, commands: Sequence[Command]) -> None:
            self._record("observed")

        def will_change(self, change: RegionChange) -> None:
            self._record("will change")

        def has_changed(self, change: RegionChange) -> None:
            self._record("has changed")

    reported = threading.Event()
    store.observers[1] = store.members[1] = Watcher()
    store.start()
    ids = iter(range(100, 110))
    store.propose(
        Command(
            region.id,
            (),
            on_applied=lambda error: reported.set(),
            admin=lambda table: region_change.split(table.all[0], [b"m"], lambda: next(ids)),
        )
    )
    assert reported.wait(WAIT_S)
    store.stop()
    store.engine.close()
    assert seen == [("observed", 2, 1), ("will change", 2, 1), ("has changed", 2, 2)]


def test_after_a_failure_nothing_is_applied_on_top_of_it(tmp_path: Path) -> None:
    errors: list[Exception | None] = []
    reported = threading.Semaphore(0)

    def applied(error: Exception | None) -> None:
        errors.append(error)
        reported.release()

    store = Raftstore(Engine(tmp_path), RegionTable(split([])))
    store.start()
    store.propose(Command(2, [(77, b"no such family", b"")], on_applied=applied))
    assert reported.acquire(timeout=WAIT_S)
    store.propose(Command(2, [(mvcc.LOCK, b"k", b"")], on_applied=applied))
    assert reported.acquire(timeout=WAIT_S)
    assert all(isinstance(error, IndexError) for error in errors)
    store.stop()
    assert store.engine.get(mvcc.LOCK, b"k") is None
    store.engine.close()


def test_proposals_before_a_stop_are_applied_and_later_ones_are_rejected(tmp_path: Path) -> None:
    errors: list[Exception | None] = []
    store = Raftstore(Engine(tmp_path), RegionTable(split([])))
    for name in (b"a", b"b"):
        store.propose(Command(2, [(mvcc.LOCK, name, b"")], on_applied=errors.append))
    store.start()
    store.stop()
    assert errors == [None, None]
    store.propose(Command(2, [(mvcc.LOCK, b"c", b"")], on_applied=errors.append))
    assert isinstance(errors[2], Retryable)
    store.engine.close()


def test_a_failed_capture_or_command_gets_the_error_and_the_next_proceed(tmp_path: Path) -> None:
    store = Raftstore(Engine(tmp_path), RegionTable(split([])))
    reported: queue.SimpleQueue[object] = queue.SimpleQueue()

    def decide(table: RegionTable) -> RegionChange:
        raise AssertionError("a defect")

    store.capture(reported.put, (77, b"", b""))  # no such family
    store.capture(reported.put)
    store.propose(Command(0, (), on_applied=reported.put, admin=decide))
    store.propose(Command(2, [(mvcc.LOCK, b"k", b"")], on_applied=reported.put))
    store.start()
    found = [reported.get(timeout=WAIT_S) for _ in range(4)]
    assert [type(each) for each in found] == [IndexError, EngineSnapshot, AssertionError, type(None)]
    store.stop()
    del found
    store.engine.close()
