"""Who gets a worker next: each kind of work within its bound, changefeeds in turns, the failing ones last."""

from __future__ import annotations

from tidegate.pipeline.host.timetable import Timetable, WorkKind, workers_for

CORES = 2


def back(table: Timetable[str], key: str, kind: WorkKind, *, well: bool) -> None:
    table.answered(key, well=well)
    table.back(key, kind)


def proven(*addresses: str) -> Timetable[str]:
    """One at which something has ended well at these addresses."""
    table: Timetable[str] = Timetable(CORES)
    for address in addresses:
        table.ask_begin(address, address, 0)
        table.give(address, WorkKind.BEGIN)
        back(table, address, WorkKind.BEGIN, well=True)
    return table


def started(table: Timetable[str]) -> list[str]:
    """Give out all beginnings that may be under way at once."""
    found = []
    while (key := table.next_begin()) is not None:
        table.give(key, WorkKind.BEGIN)
        found.append(key)
    return found


def test_deliveries_have_workers_of_their_own_under_any_begins_and_loads() -> None:
    table = proven("kafka://one")
    for name in "abcdef":
        table.ask_begin(name, "kafka://one", 0)
        table.ask_load(f"load of {name}")
    begun = started(table)
    loads = []
    while (key := table.next_load()) is not None:
        table.give(key, WorkKind.LOAD)
        loads.append(key)
    assert (begun, len(loads)) == (["a", "b"], CORES)
    assert workers_for(CORES) - len(begun) - len(loads) == 2
    back(table, "a", WorkKind.BEGIN, well=True)
    assert started(table) == ["c"]
    table.ask_begin(loads[0], "kafka://one", 0)
    back(table, loads[0], WorkKind.LOAD, well=True)
    assert table.next_load() not in (None, *loads), "a feed that has none out comes first"


def test_begins_at_a_silent_address_run_one_at_a_time_and_last() -> None:
    table = proven("up")
    for name, address in [("a", "down"), ("b", "down"), ("c", "up"), ("d", "up"), ("e", "new")]:
        table.ask_begin(name, address, 0)
    assert started(table) == ["c", "d"]
    back(table, "c", WorkKind.BEGIN, well=True)
    back(table, "d", WorkKind.BEGIN, well=True)
    assert started(table) == ["a", "e"], "b waits for what a finds there"
    back(table, "e", WorkKind.BEGIN, well=True)
    assert started(table) == []
    back(table, "a", WorkKind.BEGIN, well=False)
    assert started(table) == ["b"]
    back(table, "b", WorkKind.BEGIN, well=True)
    for name in "fg":
        table.ask_begin(name, "down", 0)
    assert started(table) == ["f", "g"], "it answers again"


def test_those_that_have_failed_begin_after_the_others_at_their_address() -> None:
    table = proven("one")
    for name, failures in [("a", 3), ("b", 1), ("c", 0)]:
        table.ask_begin(name, "one", failures)
    assert started(table) == ["c", "b"]


def test_changefeeds_deliver_in_turns_with_a_bound_for_each() -> None:
    table = proven("one")
    for name in "abc":
        table.ask_begin(name, "one", 0)
    assert table.room("a", 8) == CORES
    assert table.room("a", 1) == 1
    for name in "aba":
        table.give(name, WorkKind.DELIVER)
    assert table.room("a", 8) == 0
    assert table.room("b", 8) == 1
    assert table.in_turn({"a", "b", "c"}) == ["c", "b", "a"]
    back(table, "a", WorkKind.DELIVER, well=True)
    assert table.room("a", 8) == 1


def test_after_a_failed_delivery_one_runs_at_a_time_until_one_succeeds() -> None:
    table = proven("one", "two")
    for name in "ab":
        table.ask_begin(name, "one", 0)
    table.ask_begin("c", "two", 0)
    table.give("a", WorkKind.DELIVER)
    back(table, "a", WorkKind.DELIVER, well=False)
    assert table.room("a", 8) == table.room("b", 8) == 1
    table.give("b", WorkKind.DELIVER)
    assert table.room("a", 8) == table.room("b", 8) == 0
    assert table.room("c", 8) == CORES
    back(table, "b", WorkKind.DELIVER, well=True)
    assert table.room("a", 8) == CORES


def test_an_ended_feed_gets_no_more_work_and_its_open_work_is_known() -> None:
    table: Timetable[str] = Timetable(CORES)
    table.ask_begin("a", "one", 0)
    table.ask_load("b")
    table.ask_begin("c", "one", 0)
    table.give("c", WorkKind.DELIVER)
    for name in "abc":
        table.over(name)
    assert table.next_begin() is None
    assert table.next_load() is None
    assert table.has_out("c")
    back(table, "c", WorkKind.DELIVER, well=True)
    assert not table.has_out("c")
    table.forget("c")
