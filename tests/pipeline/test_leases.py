"""Slots that are leased to workers: never one to two of those that write, and kept while that is possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.pipeline.exchange.work import Lease
from tidegate.pipeline.host.leases import Leases

WORKERS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["begins", "ends", "dies"])), max_size=60)


def test_a_holder_keeps_its_slot_and_an_idle_slot_can_be_reassigned() -> None:
    leases: Leases[str] = Leases(2)
    assert leases.lease("a", []) == Lease(0, 1)
    assert leases.lease("b", ["a"]) == Lease(1, 2)
    assert leases.lease("a", ["b"]) == Lease(0, 1)
    assert leases.lease("c", ["a", "b"]) is None
    assert leases.lease("c", ["a"]) == Lease(1, 3), "of those without work, who had it longest ago"
    leases.end("a")
    assert leases.lease("b", ["c"]) == Lease(0, 4), "under another lease: somebody has had it since"
    assert leases.lease("d", []) == Lease(1, 5)


@given(st.integers(1, 4), WORKERS)
def test_no_two_that_are_at_work_have_one_slot(slots: int, steps: list[tuple[int, str]]) -> None:
    leases: Leases[int] = Leases(slots)
    at_work: dict[int, Lease] = {}
    last: dict[int, tuple[int, Lease]] = {}
    for who, step in steps:
        if step == "begins" and who not in at_work:
            found = leases.lease(who, at_work)
            assert (found is None) == (len(at_work) == slots)
            if found is None:
                continue
            assert found.slot not in {one.slot for one in at_work.values()}
            before = last.get(found.slot)
            if before is not None:
                assert (found == before[1]) == (who == before[0] and found.number == before[1].number)
                assert found.number >= before[1].number
                assert who == before[0] or found.number > before[1].number
            at_work[who] = found
            last[found.slot] = who, found
        elif step != "begins":
            at_work.pop(who, None)
            if step == "dies":
                leases.end(who)
