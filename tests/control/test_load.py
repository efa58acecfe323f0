"""The ranges of an initial load: handed out, taken back, resumed; its pace and its estimate."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.load import SHARE_MAX, LoadPlan, LoadQueue, LoadRange, Pace
from tidegate.errors import Fatal, Undecodable
from tidegate.model.reports import LoadState
from tidegate.model.span import Span


def plan(ranges: int) -> LoadPlan:
    made = (LoadRange.of(7, Span(b"t%03d" % i, b"t%03d" % (i + 1))) for i in range(ranges))
    return LoadPlan(100, "127.0.0.1:2379", tuple(made))


def test_a_plan_is_read_back_as_it_was_written() -> None:
    assert LoadPlan.from_bytes(plan(3).to_bytes()) == plan(3)


def test_a_damaged_plan_is_known_as_such_however_much_of_it_is_there() -> None:
    whole = plan(2).to_bytes()
    for data in [whole[:end] for end in range(len(whole))] + [
        whole.replace(b"ranges", b"rangez"),
        b"[]",
        b"\xff",
    ]:
        with pytest.raises(Undecodable, match="the plan of an initial load is damaged"):
            LoadPlan.from_bytes(data)


def test_a_second_plan_serves_while_it_has_the_ranges_that_were_begun() -> None:
    first, second, third = (one.id for one in plan(3).ranges)
    queue = LoadQueue(plan(3), {second: (10, None), third: (5, b"t002x".hex())})
    assert [(left.id, left.span.start) for left in queue.take(1)] == [(first, b"t000"), (third, b"t002x")]
    whole = LoadRange.of(7, Span(b"t001", b"t003"))
    with pytest.raises(Fatal, match=r"1 of 2 ranges with rows on the topic[\s\S]*remove the changefeed"):
        LoadQueue(plan(3), {first: (10, None), whole.id: (7, None)})


@given(
    ranges=st.integers(0, 40),
    tasks=st.integers(1, 4),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=60),
)
def test_every_key_is_read_once_whatever_tasks_leave_undone(
    ranges: int, tasks: int, steps: list[tuple[int, int]]
) -> None:
    queue, whole = LoadQueue(plan(ranges), {}), plan(ranges)
    read: dict[str, list[tuple[bytes, bytes]]] = {one.id: [] for one in whole.ranges}
    rows = 0
    pending = iter([*steps, *[(3, 1)] * 200])
    while share := queue.take(tasks):
        assert len(share) <= SHARE_MAX
        whole_ones, part = next(pending)
        outcome = []
        for i, one in enumerate(share):
            if i < whole_ones:
                outcome.append((one.id, one.rows + 10, None))
                read[one.id].append((one.span.start, one.span.end))
                rows += 10
            elif i == whole_ones:
                # Up to some key inside, as a task that ran out of time.
                at = one.span.start + b"x" * part
                if at < one.span.end:
                    outcome.append((one.id, one.rows + part, at.hex()))
                    read[one.id].append((one.span.start, at))
                    rows += part
        queue.settle(outcome, share)
        assert not queue.busy
    state = queue.state(2.0)
    assert state.finished
    assert state.rows == rows
    assert state.rows_per_second == rows / 2
    for one in whole.ranges:
        pieces = read[one.id]
        assert [pieces[0][0], pieces[-1][1]] == [one.span.start, one.span.end]
        assert all(before[1] == after[0] for before, after in itertools.pairwise(pieces))


def test_what_is_durable_is_not_handed_out_again() -> None:
    first, second, third = plan(3).ranges
    queue = LoadQueue(plan(3), {first.id: (50, None), second.id: (20, b"t001x".hex())})
    state = queue.state(0.0)
    assert (state.ranges, state.done, state.rows, state.rows_expected) == (3, 1, 70, 150)
    left = queue.take(1)
    assert [(one.id, one.span.start, one.rows) for one in left] == [
        (second.id, b"t001x", 20),
        (third.id, b"t002", 0),
    ]


def test_the_estimate_comes_from_the_ranges_that_are_done() -> None:
    assert LoadState(4, 0, 10, 5.0, 0).seconds_left is None
    half = LoadState(4, 2, 200, 50.0, 400)
    assert (half.fraction, half.seconds_left) == (0.5, 4.0)
    done = LoadState(4, 4, 420, 50.0, 420)
    assert (done.fraction, done.seconds_left) == (1.0, 0.0)


def test_a_load_keeps_its_pace() -> None:
    pace = Pace(100, 0)
    assert pace.wait(10.0) == 0
    pace.spent(10.0, 300, 1 << 30)
    assert pace.wait(10.0) == pytest.approx(2.0)
    assert pace.wait(12.5) == 0
    assert pace.share(2) == (25, 0)
    slow = Pace(100, 1000)
    slow.spent(10.0, 100, 5000)
    assert slow.wait(10.0) == pytest.approx(4.0)
    free = Pace(0, 0)
    free.spent(10.0, 1 << 40, 1 << 50)
    assert (free.wait(10.0), free.share(2)) == (0, (0, 0))
