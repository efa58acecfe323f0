"""More and more captures share a changefeed: each gets its part soon, and loads become even.

`python -m benchmarks.many_captures` is the long form, with 100 captures.
"""

from __future__ import annotations

from tidegate.simulator.growth import Event, Growth


def grown(seed: int) -> list[Event]:
    return Growth(seed, tables=100, sizes=(1, 3, 10)).grow()


def test_captures_that_join_get_their_part_and_loads_become_even() -> None:
    events = grown(0)
    assert [one.captures for one in events] == [1, 3, 10, 10, 10, 9, 8]
    for one in events:
        assert one.took_s < 100.0, one
        assert one.rounds <= 3, one
        assert one.load_after <= 1.5 * one.load_least, one
        assert one.ranges <= 8 * one.captures, one
    joined, died = events[1:5], events[5:]
    assert max(one.halted_s for one in joined) < 3.0, "the pause of a round; takers prepare before it"
    assert max(one.halted_s for one in died) < 20.0, "a session, and a round"
    assert max(one.load_after / one.load_least for one in events[1:4]) <= 1.21


def test_the_same_seed_gives_the_same_events() -> None:
    first, again = (Growth(3, tables=20, sizes=(1, 3)).grow() for _ in range(2))
    assert first == again
