"""Who gets a worker next: each kind of work within its bound, changefeeds in turns, the failing ones last."""

from __future__ import annotations

from tidegate.pipeline.host.addresses import SILENT_MAX_S, SILENT_S
from tidegate.pipeline.host.timetable import ASKED_S, Timetable, WorkKind, workers_for

CORES = 2
FREE = 6


def back(table: Timetable[str], key: str, kind: WorkKind, *, well: bool) -> None:
    table.answered(key, well=well)
    table.back(key, kind)


def proven(*addresses: str, cores: int = CORES) -> Timetable[str]:
    """One at which something has ended well at these addresses."""
    table: Timetable[str] = Timetable(cores)
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


def test_loads_take_turns_also_if_only_one_piece_is_out_at_a_time() -> None:
    """As while loads make way. Each has several shares waiting, so none of them leaves the queue."""
    table = proven("kafka://one")
    loads = ["a", "b", "c"]
    for name in loads:
        table.ask_begin(name, "kafka://one", 0)
        table.ask_load(name)
        table.ask_load(name)
    started(table)
    found = []
    for _ in range(6):
        key = table.next_load()
        assert key is not None
        table.give(key, WorkKind.LOAD)
        back(table, key, WorkKind.LOAD, well=True)
        table.ask_load(key)
        found.append(key)
    assert found == 2 * loads


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


def test_those_that_have_failed_at_many_sinks_leave_a_place_to_others() -> None:
    table = proven("up")
    for name in "abc":
        table.ask_begin(name, f"down {name}", 1)
    assert started(table) == ["a"]
    table.ask_begin("d", "new", 0)
    assert started(table) == ["d"]
    back(table, "d", WorkKind.BEGIN, well=True)
    table.ask_begin("e", "up", 2)
    assert started(table) == ["e"]
    back(table, "a", WorkKind.BEGIN, well=False)
    assert started(table) == []
    back(table, "e", WorkKind.BEGIN, well=True)
    assert started(table) == ["b"]


def test_changefeeds_deliver_in_turns_with_a_bound_for_each() -> None:
    table = proven("one")
    for name in "abc":
        table.ask_begin(name, "one", 0)
    assert table.room("a", 8, FREE) == CORES
    assert table.room("a", 1, FREE) == 1
    for name in "aba":
        table.give(name, WorkKind.DELIVER)
    assert table.room("a", 8, FREE) == 0
    assert table.room("b", 8, FREE) == 1
    assert table.in_turn({"a", "b", "c"}) == ["c", "b", "a"]
    back(table, "a", WorkKind.DELIVER, well=True)
    assert table.room("a", 8, FREE) == 1


def test_after_a_failed_delivery_one_runs_at_a_time_until_one_succeeds() -> None:
    table = proven("one", "two")
    for name in "ab":
        table.ask_begin(name, "one", 0)
    table.ask_begin("c", "two", 0)
    table.give("a", WorkKind.DELIVER)
    back(table, "a", WorkKind.DELIVER, well=False)
    assert table.room("a", 8, FREE) == table.room("b", 8, FREE) == 1
    table.give("b", WorkKind.DELIVER)
    assert table.room("a", 8, FREE) == table.room("b", 8, FREE) == 0
    assert table.room("c", 8, FREE) == CORES
    back(table, "b", WorkKind.DELIVER, well=True)
    assert table.room("a", 8, FREE) == CORES


def stuck_at_one(cores: int = CORES) -> Timetable[str]:
    """Two of four changefeeds at an address have a stuck worker; a fifth one has another address."""
    table = proven("one", "two", cores=cores)
    for name in "abcd":
        table.ask_begin(name, "one", 0)
    table.ask_begin("e", "two", 0)
    for name in "ab":
        table.give(name, WorkKind.DELIVER)
        table.doubt(name)
    return table


def rooms(table: Timetable[str], free: int = FREE) -> list[int]:
    return [table.room(name, 8, free) for name in "abcde"]


def test_an_address_with_a_stuck_worker_gets_one_more_at_a_time() -> None:
    table = stuck_at_one()
    assert rooms(table) == [0, 0, 1, 1, CORES]
    table.give("c", WorkKind.DELIVER)
    assert rooms(table) == [0, 0, 0, 0, CORES], "c may yet show that the address answers"
    back(table, "a", WorkKind.DELIVER, well=False)
    assert rooms(table) == [0, 0, 0, 0, CORES]
    back(table, "c", WorkKind.DELIVER, well=True)
    assert rooms(table) == [CORES, CORES - 1, CORES, CORES, CORES], "b alone is stuck"


def test_an_address_with_a_stuck_worker_comes_last_and_not_among_the_last() -> None:
    table = stuck_at_one()
    table.give("e", WorkKind.DELIVER)
    assert table.in_turn("cde") == ["e", "c", "d"]
    assert rooms(table, free=CORES) == [0, 0, 0, 0, CORES - 1]
    for name in "ab":
        back(table, name, WorkKind.DELIVER, well=False)
    assert rooms(table, free=CORES) == [1, 1, 1, 1, CORES - 1], "no worker is stuck there any more"
    alone = stuck_at_one()
    alone.answered("e", well=False)
    assert rooms(alone, free=1) == [0, 0, 1, 1, 1], "no address answers, so none is preferred"


def test_a_cluster_has_workers_for_an_address_with_a_stuck_one() -> None:
    table = stuck_at_one()
    table.resize(8)
    assert rooms(table, free=6) == [0, 0, 1, 1, 8]
    assert rooms(table, free=2) == [0, 0, 0, 0, 8], "the last ones are left for addresses that answer"
    assert rooms(table, free=0) == [0, 0, 1, 1, 8], "a worker that is yet to come may go there"


def test_an_address_with_several_stuck_workers_leaves_more_for_others() -> None:
    """A third one there is stuck, too, more often than not."""
    table = stuck_at_one()
    assert rooms(table, free=CORES + 1) == [0, 0, 0, 0, CORES]
    assert rooms(table, free=CORES + 2) == [0, 0, 1, 1, CORES]
    back(table, "b", WorkKind.DELIVER, well=False)
    assert rooms(table, free=CORES + 1) == [0, 1, 1, 1, CORES], "a alone is stuck"


def test_a_large_machine_with_many_busy_workers_still_tries_it() -> None:
    """Otherwise two changefeeds with trouble of their own would stop all others at their address."""
    table = stuck_at_one(cores=16)
    half = workers_for(16) // 2
    assert rooms(table, free=half) == [0, 0, 0, 0, 8]
    assert rooms(table, free=half + 1) == [0, 0, 1, 1, 8]


def test_an_address_that_is_only_not_proven_has_its_turn() -> None:
    """Nothing but the delivery of such a changefeed can prove its address."""
    table = stuck_at_one()
    for name in "ab":
        table.over(name)
        table.back(name, WorkKind.DELIVER)
    table.give("e", WorkKind.DELIVER)
    assert table.in_turn("ec") == ["c", "e"]


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


def of_two_addresses() -> Timetable[str]:
    """Changefeeds `a` to `f` at one proven address, `g` at another."""
    table = proven("one", "two")
    for name in "abcdef":
        table.ask_begin(name, "one", 0)
    table.ask_begin("g", "two", 0)
    return table


def test_a_sink_that_goes_down_does_not_take_all_workers() -> None:
    """Even if all its changefeeds have rows at once, which is why the time alone does not count."""
    table = of_two_addresses()
    given = ""
    for free in range(FREE, 0, -1):
        name = next(name for name in "abcdefg" if table.room(name, 2, free))
        table.give(name, WorkKind.DELIVER)
        given += name
    assert given == "aabbgg", "the last ones, as many as cores, are for the other address"


def test_a_changefeed_with_many_rows_leaves_the_last_workers_to_others() -> None:
    """It gets as many workers as there is `room`, and is not asked again in between."""
    cores = 8
    table = proven("one", "two", cores=cores)
    for name in "abc":
        table.ask_begin(name, "one", 0)
    free = workers_for(cores)
    for name in "abc":
        for _ in range(table.room(name, cores, free)):
            table.give(name, WorkKind.DELIVER)
            free -= 1
    assert free == cores


def test_an_address_that_answers_has_all_workers() -> None:
    table = of_two_addresses()
    for name in "ab":
        table.give(name, WorkKind.DELIVER)
    assert table.room("c", 1, CORES) == 0
    assert table.room("c", 1, CORES + 1) == 1
    assert table.room("c", 1, 0) == 1, "a worker that is yet to come may go there"
    table.answered("a", well=True)
    table.give("c", WorkKind.DELIVER)
    assert table.room("d", 1, 1) == 1


def test_an_address_that_gives_no_answer_leaves_workers_to_others() -> None:
    table = of_two_addresses()
    table.tick(10.0)
    table.give("a", WorkKind.DELIVER)
    assert table.room("b", 1, CORES) == 1
    table.tick(10.0 + 1.5 * SILENT_S)
    assert table.room("b", 1, CORES) == 0
    table.answered("a", well=True)
    table.give("b", WorkKind.DELIVER)
    assert table.room("c", 1, CORES) == 1, "it has just answered"
    table.tick(10.0 + 3 * SILENT_S)
    assert table.room("c", 1, CORES) == 0


def test_long_pieces_of_some_do_not_keep_others_at_their_address_waiting() -> None:
    """If two pieces took half a minute, the last workers would be idle, and all others there would wait."""
    table = of_two_addresses()
    table.tick(10.0)
    for name in "ab":
        table.give(name, WorkKind.DELIVER)
    table.tick(10.0 + 0.9 * SILENT_MAX_S)
    assert table.room("c", 1, CORES) == 0
    table.alive("a")
    assert table.room("c", 1, CORES) == 1
    table.tick(10.0 + 1.5 * SILENT_MAX_S)
    assert table.room("c", 1, CORES) == 1
    table.tick(10.0 + 2 * SILENT_MAX_S)
    assert table.room("c", 1, CORES) == 0, "it has given no sign of life since"
    assert not table.is_proven("c")


def test_silence_begins_with_the_first_delivery_not_the_last_answer() -> None:
    table = of_two_addresses()
    for name in "ab":
        table.give(name, WorkKind.DELIVER)
    table.answered("a", well=True)
    for later in (10.0, 10.0 + 2 * SILENT_MAX_S):
        table.tick(later)
        table.give("c", WorkKind.DELIVER)
        assert table.room("d", 1, CORES) == 1
        table.tick(later + 1.5 * SILENT_S)
        assert table.room("d", 1, CORES) == 0
        table.answered("c", well=True)
        table.back("c", WorkKind.DELIVER)


def test_an_address_without_deliveries_or_alone_has_all_workers() -> None:
    table = of_two_addresses()
    for name in "ab":
        table.give(name, WorkKind.DELIVER)
    table.back("a", WorkKind.DELIVER)
    assert table.room("c", 1, 1) == 0
    table.back("b", WorkKind.DELIVER)  # both workers are dead, so there is no answer
    assert table.room("c", 1, 1) == 1
    for name in "ab":
        table.give(name, WorkKind.DELIVER)
    table.answered("g", well=False)
    assert table.room("c", 1, 1) == 1, "no other address is proven, so nobody else could use it"


def trusted(table: Timetable[str]) -> str:
    return "".join(name for name in "abc" if table._addresses.is_trusted(name))


def test_an_address_is_trusted_that_has_answered_since_the_trouble_began() -> None:
    """It began when the delivery was given out that is stuck, not when that was noticed."""
    table = proven("a", "b", "c")
    for name in "abc":
        table.ask_begin(name, name, 0)
    table.tick(10.0)
    table.answered("b", well=True)
    table.tick(11.0)
    table.give("a", WorkKind.DELIVER)
    table.tick(12.0)
    table.answered("c", well=True)
    table.tick(13.0)
    table.doubt("a")
    assert trusted(table) == "c"
    table.answered("b", well=True)
    assert trusted(table) == "bc"
    back(table, "a", WorkKind.DELIVER, well=True)
    table.tick(14.0)
    table.give("a", WorkKind.DELIVER)
    table.tick(16.0)
    table.doubt("a")
    assert trusted(table) == "", "this is another trouble"
    table.alive("b")
    table.give("b", WorkKind.DELIVER)
    table.tick(17.0)
    table.alive("b")
    assert trusted(table) == "b"


def test_beyond_the_bound_one_address_at_a_time_is_asked() -> None:
    """The next one as soon as it has answered, or if it does not in time."""
    table = proven("bad", *"ghi")
    for name in "abcdef":
        table.ask_begin(name, "bad", 0)
    for name in "ghi":
        table.ask_begin(name, name, 0)
    table.tick(10.0)
    for name in "abcdef":
        table.give(name, WorkKind.DELIVER)
    table.tick(12.0)
    for name in "abcdef":
        table.doubt(name)
    assert [table.room(name, 1, FREE) for name in "ghi"] == [1, 1, 1]
    table.give("g", WorkKind.DELIVER)
    assert [table.room(name, 1, FREE) for name in "hi"] == [0, 0]
    back(table, "g", WorkKind.DELIVER, well=True)
    assert [table.room(name, 1, FREE) for name in "hi"] == [1, 1]
    table.give("h", WorkKind.DELIVER)
    table.tick(12.0 + 0.9 * ASKED_S)
    assert table.room("i", 1, FREE) == 0
    table.tick(12.0 + ASKED_S)
    assert table.room("i", 1, FREE) == 1
    assert table.room("g", 2, FREE) == 2, "it has answered"
