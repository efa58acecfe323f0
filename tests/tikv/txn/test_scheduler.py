"""Latches: who may write now."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidegate.tikv.percolator.outcome import CommandOutcome
from tidegate.tikv.reader import MvccReader
from tidegate.tikv.txn.latches import Latches
from tidegate.tikv.txn.scheduler import Task


def task(*keys: bytes) -> Task:
    def decide(reader: MvccReader) -> CommandOutcome[Any]:
        return CommandOutcome(None, [], {})

    return Task(1, keys, decide, lambda response, error: None)


def test_a_newcomer_waits_behind_those_who_wait_for_its_keys() -> None:
    latches = Latches()
    first, second, third, free = task(b"a"), task(b"a", b"b"), task(b"b"), task(b"c")
    assert latches.acquire(first)
    assert not latches.acquire(second)
    assert not latches.acquire(third), "b is free, but the second came before"
    assert latches.acquire(free)
    assert latches.release(first) == [second]
    assert latches.release(second) == [third]


@given(st.lists(st.sets(st.sampled_from([b"a", b"b", b"c"]), min_size=1), max_size=12), st.randoms())
def test_tasks_that_share_a_key_run_one_by_one_in_order_of_arrival(
    wanted: list[set[bytes]], rng: Any
) -> None:
    latches = Latches()
    tasks = [task(*keys) for keys in wanted]
    running = [each for each in tasks if latches.acquire(each)]
    ran: list[Task] = []
    while running:
        held = [key for each in running for key in each.keys]
        assert len(held) == len(set(held))
        ended = running.pop(rng.randrange(len(running)))
        ran.append(ended)
        running += latches.release(ended)
    assert len(ran) == len(tasks), "nobody waits for ever"
    for key in (b"a", b"b", b"c"):
        assert [each for each in ran if key in each.keys] == [each for each in tasks if key in each.keys]
