"""The processes for the time that the others leave get only tests that nobody has to wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixtures.filler import ROOT, FillerScheduling, fillers, is_pure, last, needs_service

WHOLE = ("tests/integration/test_kills.py", "tests/server/test_hangs.py", "tests/sink/test_kafka.py")
LIGHT = ("tests/kvclient/test_hpack.py", "tests/tikv/raft/test_raftstore.py")
PURE = ("tests/codec/test_avro.py", "tests/tidb/test_cast.py", "tests/contracts/test_codecs.py")

SERVICES = {"kafka_broker", "etcd", "mariadb", "registry", "s3", "spark"}


@dataclass(eq=False)
class Process:
    """A process of a run. It does what it has whenever the test says so."""

    number: int
    collected: list[str]
    has: list[str] = field(default_factory=list)
    shutting_down: bool = False

    @property
    def gateway(self) -> Any:
        return SimpleNamespace(id=f"gw{self.number}")

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        assert not self.shutting_down
        self.has += [self.collected[one] for one in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def begun(
    files: Sequence[str], processes: int, *, ready: Sequence[int] = ()
) -> tuple[FillerScheduling, list[Process]]:
    """A run of these files, of three tests each, whose first files have been given out. `ready`: the order in
    which the processes were.
    """
    option = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(getvalue=lambda name: [f"{processes}*popen"], option=option)
    scheduling = FillerScheduling(config)
    tests = [f"{file}::test_{number}" for file in files for number in range(3)]
    made = [Process(number, tests) for number in range(processes)]
    for one in [made[number] for number in ready or range(processes)]:
        node: Any = one
        scheduling.add_node(node)
        scheduling.add_node_collection(node, tests)
    scheduling.schedule()
    return scheduling, made


def run(scheduling: FillerScheduling, process: Process, tests: int) -> None:
    """Let a process do its next tests."""
    for _ in range(tests):
        node: Any = process
        scheduling.mark_test_complete(node, process.collected.index(process.has.pop(0)))


def files_of(process: Process) -> list[str]:
    return list(dict.fromkeys(one.partition("::")[0] for one in process.has))


def test_the_filler_gets_pure_files_and_the_others_get_those_last() -> None:
    scheduling, (first, second, filler) = begun([*WHOLE, *PURE], 3)
    assert (files_of(first), files_of(second), files_of(filler)) == ([WHOLE[0]], [WHOLE[1]], [PURE[0]])
    run(scheduling, filler, 1)
    assert files_of(filler) == [PURE[0], PURE[1]]
    run(scheduling, first, 1)
    assert files_of(first) == [WHOLE[0], WHOLE[2]]
    run(scheduling, second, 1)
    assert files_of(second) == [WHOLE[1], PURE[2]]


def test_of_four_processes_two_are_fillers_and_a_single_one_is_none() -> None:
    assert [sorted(fillers(count)) for count in range(1, 6)] == [
        [],
        ["gw1"],
        ["gw2"],
        ["gw2", "gw3"],
        ["gw3", "gw4"],
    ]
    _, made = begun([*WHOLE, *LIGHT, *PURE], 4)
    assert [files_of(one)[0] for one in made] == [WHOLE[0], WHOLE[1], PURE[0], PURE[1]]


def test_without_pure_files_the_filler_gets_those_without_service() -> None:
    scheduling, (first, filler) = begun([*WHOLE, *LIGHT, PURE[0]], 2)
    assert (files_of(first), files_of(filler)) == ([WHOLE[0]], [PURE[0]])
    run(scheduling, filler, 1)
    assert files_of(filler) == [PURE[0], LIGHT[0]]
    run(scheduling, filler, 3)
    assert files_of(filler) == [LIGHT[0], LIGHT[1]]
    run(scheduling, filler, 4)
    assert files_of(filler) == [LIGHT[1]], "what needs a service is not for it"


def test_files_come_in_the_order_in_which_others_are_to_take_them() -> None:
    files = [*PURE, *LIGHT, *WHOLE]
    assert all((ROOT / file).exists() for file in files)
    assert sorted(files, key=last) == [*WHOLE, *LIGHT, *PURE]


def test_the_filler_waits_when_only_others_are_left_and_all_end_at_once() -> None:
    scheduling, (first, filler) = begun([*PURE[:1], *WHOLE], 2)
    assert files_of(first) == [PURE[0]]
    assert filler.has == [], "there is no other pure file"
    while len(first.has) > 1:
        assert not scheduling.tests_finished
        run(scheduling, first, 1)
    assert files_of(first) == [WHOLE[2]]
    assert scheduling.tests_finished, "xdist lets all processes end then, each with its last test"
    assert not filler.shutting_down
    assert not first.shutting_down


def test_a_file_that_only_the_filler_is_left_for_is_run_by_it() -> None:
    """With fewer files than processes, those that were ready last are ended at once."""
    _, (*others, filler) = begun(WHOLE[:1], 3, ready=(2, 0, 1))
    assert all(one.shutting_down for one in others)
    assert files_of(filler) == [WHOLE[0]]
    _, (first, second, *both) = begun(WHOLE[:2], 4, ready=(2, 3, 0, 1))
    assert (first.shutting_down, second.shutting_down) == (True, True)
    assert [files_of(one) for one in both] == [[WHOLE[0]], [WHOLE[1]]]


def test_a_single_process_gets_everything() -> None:
    _, (only,) = begun(WHOLE[:1], 1)
    assert files_of(only) == [WHOLE[0]]


def test_the_filler_gets_no_test_that_needs_a_service(request: pytest.FixtureRequest) -> None:
    """With the tests of this run, all or those that were asked for."""
    for item in request.session.items:
        if is_pure(item.nodeid) or not needs_service(item.nodeid.partition("::")[0]):
            assert not SERVICES & {*getattr(item, "fixturenames", ())}, item.nodeid
            assert item.get_closest_marker("integration") is None, item.nodeid
