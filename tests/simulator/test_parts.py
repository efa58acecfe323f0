"""The parts of a simulation: virtual time, leases, the network and the sink keep what the tasks rely on."""

from __future__ import annotations

import random

import pytest

from tidegate.control.metadata import Put
from tidegate.errors import Fenced, Retryable
from tidegate.simulator import virtual_time
from tidegate.simulator.checks import Checks, Violation
from tidegate.simulator.etcd import Etcd
from tidegate.simulator.network import ETCD, Network
from tidegate.simulator.sink import OWNER, TIMEOUT_S, Journal, Record, RecordKind, Sink
from tidegate.simulator.timeline import Timeline
from tidegate.simulator.upstream import Upstream
from tidegate.simulator.virtual_time import Process, Signal, Steps, VirtualTime


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime(random.Random(1))


def run(time: VirtualTime, until: float) -> None:
    time.run(until, lambda: False)


# --- virtual time ---------------------------------------------------------------------------------


def test_a_stopped_process_does_what_was_due_when_it_resumes(time: VirtualTime) -> None:
    process, seen = Process("a"), list[float]()

    def steps() -> Steps[None]:
        while True:
            seen.append(time.now)
            yield 1.0

    time.spawn(process, steps())
    run(time, 1.5)
    time.stop(process)
    run(time, 10.0)
    assert seen == [0.0, 1.0]
    time.continue_process(process)
    run(time, 11.5)
    assert seen == [0.0, 1.0, 10.0, 11.0]


def test_a_killed_process_takes_no_other_step(time: VirtualTime) -> None:
    process, seen = Process("a"), list[float]()

    def steps() -> Steps[None]:
        yield 1.0
        seen.append(time.now)

    time.spawn(process, steps())
    run(time, 0.5)
    time.kill(process)
    run(time, 5.0)
    assert not seen


def test_a_wait_ends_with_the_signal_or_with_its_time(time: VirtualTime) -> None:
    process, signal, seen = Process("a"), Signal(time), list[tuple[float, bool]]()

    def steps() -> Steps[None]:
        for _ in range(2):
            woken = yield signal.wait(2.0)
            seen.append((time.now, woken))
            signal.clear()

    time.spawn(process, steps())
    time.after(1.0, signal.set)
    run(time, 10.0)
    assert seen == [(1.0, True), (3.0, False)]


# --- etcd -----------------------------------------------------------------------------------------


def test_a_wait_that_vanishes_in_the_sum_ends_nevertheless(time: VirtualTime) -> None:
    """Seeds 256 and 1107 waited forever for the last 1e-15 s of a back-off by the capture's own clock."""
    tries = list[float]()

    def steps() -> Steps[None]:
        yield 32.0
        while time.now <= 32.0:
            assert len(tries) < 10
            tries.append(time.now)
            yield 1e-16

    time.spawn(Process("a"), steps())
    run(time, 40.0)
    assert tries == [32.0]


def test_a_task_that_never_waits_ends_the_run(time: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "STEPS_AT_ONCE", 100)

    def steps() -> Steps[None]:
        yield 1.0
        while True:
            yield 0.0

    time.spawn(Process("a"), steps())
    with pytest.raises(AssertionError, match=r"no time passes at 1\.0 s"):
        run(time, 2.0)


def test_a_lease_that_is_not_renewed_ends_with_its_keys(time: VirtualTime) -> None:
    etcd = Etcd(time)
    lease = etcd.grant_lease(10.0)
    etcd.transact((), [Put("k", b"v")], lease)
    run(time, 9.0)
    assert etcd.keep_alive(lease) == 10
    run(time, 18.0)
    assert etcd.get("k") is not None
    run(time, 19.5)
    assert etcd.get("k") is None
    assert etcd.keep_alive(lease) == 0


def test_a_restart_of_etcd_gives_each_lease_its_whole_time_again(time: VirtualTime) -> None:
    etcd = Etcd(time)
    lease = etcd.grant_lease(10.0)
    etcd.up = False
    run(time, 30.0)
    etcd.restarted()
    run(time, 39.0)
    assert etcd.keep_alive(lease) == 10, "nobody could renew it meanwhile"


# --- the network ----------------------------------------------------------------------------------


def test_a_request_is_carried_out_although_its_answer_is_lost(time: VirtualTime) -> None:
    network, process, done, errors = Network(time, Timeline()), Process("a"), list[int](), list[Retryable]()
    network.cuts.add((ETCD, "a"))

    def steps() -> Steps[None]:
        try:
            yield from network.call(process, "a", ETCD, lambda: done.append(1), 1.0)
        except Retryable as error:
            errors.append(error)

    time.spawn(process, steps())
    run(time, 5.0)
    assert (len(done), len(errors)) == (1, 1)


def test_a_message_that_meets_a_cut_arrives_after_it(time: VirtualTime) -> None:
    network, seen = Network(time, Timeline()), list[float]()
    network.cuts.add(("a", "b"))
    network.send("a", "b", lambda: seen.append(time.now))
    time.after(3.0, network.cuts.clear)
    run(time, 20.0)
    assert len(seen) == 1
    assert seen[0] > 3.0


# --- the sink -------------------------------------------------------------------------------------


@pytest.fixture
def upstream() -> Upstream:
    return Upstream(random.Random(1), 2)


@pytest.fixture
def sink(time: VirtualTime, upstream: Upstream) -> Sink:
    return Sink(time, Checks(upstream))


def row(upstream: Upstream, now: float) -> Record:
    """A new row of the first table."""
    table, ts = upstream.tables["t00"], upstream.tso(now)
    table.rows.append(ts)
    return Record(RecordKind.ROW, "t00", ts)


def test_a_writer_initialised_again_is_fenced_and_its_transaction_is_over(
    sink: Sink, upstream: Upstream
) -> None:
    first, one = sink.initialise("a"), row(upstream, 1.0)
    sink.produce("a", first, [one])
    second = sink.initialise("a")
    assert isinstance(sink.commit("a", first, None), Fenced)
    assert sink.progress() == {}
    sink.produce("a", second, [one])
    assert sink.commit("a", second, None) is None
    assert sink.progress() == {"t00": one.ts}


def test_an_open_transaction_hides_what_was_committed_behind_it(sink: Sink, upstream: Upstream) -> None:
    one, other, hidden = sink.initialise("a"), sink.initialise("b"), row(upstream, 1.0)
    sink.produce("a", one, [])
    sink.produce("b", other, [hidden])
    sink.commit("b", other, None)
    assert sink.progress() == {}
    assert isinstance(sink.journal(), Retryable)
    sink.initialise("a")
    assert sink.progress() == {"t00": hidden.ts}
    assert sink.journal() == Journal(0, 0)


def test_a_transaction_that_stays_open_is_ended(time: VirtualTime, sink: Sink, upstream: Upstream) -> None:
    epoch = sink.initialise("a")
    sink.produce("a", epoch, [row(upstream, 1.0)])
    run(time, TIMEOUT_S + 1)
    assert not sink.accepts("a", epoch)
    assert sink.journal() == Journal(0, 0)


def test_resolved_above_a_row_that_is_missing_breaks_a_promise(sink: Sink, upstream: Upstream) -> None:
    epoch, missing = sink.initialise(OWNER), row(upstream, 1.0)
    sink.produce(OWNER, epoch, [Record(RecordKind.RESOLVED, "", missing.ts)])
    with pytest.raises(Violation, match="a row of t00 below it is missing"):
        sink.commit(OWNER, epoch, None)


def test_a_row_that_is_written_twice_or_too_early_breaks_a_promise(sink: Sink, upstream: Upstream) -> None:
    epoch, first, second = sink.initialise("a"), row(upstream, 1.0), row(upstream, 2.0)
    sink.produce("a", epoch, [second])
    with pytest.raises(Violation, match="is missing"):
        sink.commit("a", epoch, None)
    epoch = sink.initialise("a")
    sink.produce("a", epoch, [first, first])
    with pytest.raises(Violation, match="it is there already"):
        sink.commit("a", epoch, None)
