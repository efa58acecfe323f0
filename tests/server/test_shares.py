"""When the key space of a changefeed is divided in another way, and among whom. No processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate import __version__
from tidegate.control.barrier import DdlBatch
from tidegate.control.gc import History
from tidegate.control.grants import GRANTS_MAX, Grant, GrantedRange
from tidegate.control.messages import Dispatch, Header, Wish
from tidegate.model.span import Span
from tidegate.model.timestamp import compose
from tidegate.server.catalogue.stripes import table_task
from tidegate.server.node import Node
from tidegate.server.owner.delivered_spans import WORTH
from tidegate.server.owner.peers import (
    CUT_OFF_S,
    FORGIVEN_S,
    JOIN_S,
    SHUN_S,
    SILENT_S,
    WARM_MAX_S,
    Peer,
    Peers,
)
from tidegate.server.owner.sharing import BALANCE_S, Sharing

ALL = Span(b"", b"")
TABLES = [table_task(table, 1) for table in (10, 20, 30, 40)]
NOW_MS = 1_000_000
NOW = compose(NOW_MS)


class World:
    """An owner's capture `a`, and others."""

    def __init__(self, *others: str, stays: bool = False) -> None:
        self.now, self.peers, names = 1000.0, Peers(), ("a", *others)
        self.node: Any = SimpleNamespace(
            capture="a",
            owner_rev=7,
            drained=set(),
            clock=SimpleNamespace(monotonic=lambda: self.now),
            now_ms=lambda: NOW_MS,
            burdens=dict,
            others=lambda: dict.fromkeys(others, "addr"),
        )
        for name in names:
            peer = self.peers[name]
            peer.met_rev, peer.met_at, peer.received_at, peer.ready = 7, 0.0, self.now, True
        self.sharing = Sharing(
            self.node, ALL, self.peers, lambda: [self.peers[name] for name in names], stays=stays
        )
        self.sharing.begin(TABLES)

    def run(self, **ranges: Span) -> None:
        """These captures deliver these ranges."""
        for name, span in ranges.items():
            granted = (GrantedRange(span, (7, 1)),)
            header = Header(1, "default/one", "i", 7, name, 1, 1)
            self.peers[name].grant = Grant("i", (7, 1), 1, 4, granted)
            self.peers[name].asked = Dispatch(header, Wish.RUN, 1, granted, 1, 1, False)

    def better(self, *, shared: bool = True) -> tuple[str, list[Peer]]:
        return self.sharing.better(self.now, NOW, shared=shared)


def test_the_tables_of_a_range_are_those_wanted_at_the_checkpoint() -> None:
    """They are looked up in key order, which changes with each DDL that adds or removes tables."""
    sharing, cut = World().sharing, TABLES[2].span.start
    spans = sharing.spans
    low, high = Span(b"", cut), Span(cut, b"")
    assert [spans.tables_in(span) for span in (low, high, ALL)] == [[10, 20], [30, 40], [10, 20, 30, 40]]
    added = table_task(15, 1)
    spans.passed(DdlBatch(5, (), added=(added,), removed=frozenset({TABLES[0].id})))
    assert [spans.tables_in(span) for span in (low, added.span)] == [[15, 20], [15]]
    assert [piece.span for piece in spans.pieces[0]] == [added.span, *(task.span for task in TABLES[1:])]
    sharing.begin(TABLES[2:])
    assert spans.tables_in(ALL) == [30, 40]


def test_nothing_moves_before_the_taker_runs_spark_and_has_what_it_takes() -> None:
    world = World("b")
    world.run(a=ALL)
    taker = world.peers["b"]
    taker.ready = False
    why, prepare = world.better()
    assert (why, prepare) == ("", [taker])
    assert taker.coming
    assert world.better() == ("", []), "it was sent"
    taker.received = NOW
    assert world.better() == ("", []), "its Spark does not run"
    taker.ready, taker.received = True, 0
    assert world.better() == ("", []), "it lacks the changes"
    taker.received = NOW
    assert "b" in world.better()[0]
    assert world.sharing.divide({"a": [ALL]}, shared=True)["b"] == taker.coming


def test_who_delivers_prepares_for_what_is_to_come_alone() -> None:
    world = World("b")
    cut = TABLES[2].span.start
    world.run(a=Span(b"", cut), b=Span(cut, b""))
    world.node.drained.add("b")
    why, prepare = world.better()
    assert (why, prepare) == ("", [world.peers["a"]])
    assert world.peers["a"].coming == (ALL,)
    world.node.drained.clear()
    assert world.better() == ("", [])
    assert world.sharing.not_wanted() == [world.peers["a"]], "it may release that again"


def test_loads_that_change_during_preparation_do_not_change_its_plan() -> None:
    world = World("b")
    world.run(a=ALL)
    world.better()
    planned = world.peers["b"].coming
    taken = [task.id for task in TABLES if planned[0].covers(task.span)]
    assert len(taken) == 2
    world.sharing.spans.loads["a"] = dict.fromkeys(taken, int(9 * WORTH))  # one of them would be enough now
    world.now += 1
    assert world.better() == ("", [])
    assert world.peers["b"].coming == planned


def test_takers_are_warm_together_although_they_report_at_different_times() -> None:
    """Each says every 5 s how far it is. With many of them, never have all just said it."""
    world = World("b", "c")
    world.run(a=ALL)
    world.better()
    one, other = world.peers["b"], world.peers["c"]
    other.receives(NOW, world.now)
    one.receives(compose(NOW_MS - 4000), world.now)
    assert world.better() == ("", []), "it was 4 s behind"
    one.receives(compose(NOW_MS - 60_000), world.now - 59.0)
    assert world.better() == ("", []), "it has said nothing for long"
    one.receives(compose(NOW_MS - 4000), world.now - 3.0)
    assert "other shares are better" in world.better()[0], "it was 1 s behind, 3 s ago"


def test_uneven_loads_are_evened_out_after_a_while_and_small_ones_never() -> None:
    world = World("b")
    cut = TABLES[2].span.start
    world.run(a=Span(b"", cut), b=Span(cut, b""))
    hot = {TABLES[0].id: 100_000, TABLES[1].id: 100_000}
    world.sharing.spans.loads["a"] = hot
    assert world.better() == ("", [])
    world.sharing.spans.loads["a"] = {name: int(load * WORTH) for name, load in hot.items()}
    assert world.better() == ("", []), "it was compared a moment ago"
    world.now += BALANCE_S
    for peer in world.peers:
        peer.received_at = world.now
    assert world.better()[1] == [world.peers["b"]]
    assert world.peers["b"].coming[0].covers(TABLES[1].span)


def test_who_is_given_nothing() -> None:
    """One that has just come, is silent, is drained or has failed; unless there is no other."""
    world = World("b", "c", "d", "e")
    world.peers["b"].met_at = world.now - JOIN_S / 2
    world.peers["c"].received_at = world.now - SILENT_S - 1
    world.node.drained.add("d")
    world.peers["e"].fails(world.now - SHUN_S / 2)
    assert world.sharing.captures.able() == ["a"]
    assert set(world.sharing.captures.able(joined_s=0.0)) == {"a", "b"}
    world.now += SHUN_S
    assert "e" in world.sharing.captures.able()
    alone = World()
    alone.node.drained.add("a")
    alone.peers["a"].fails(alone.now)
    assert alone.sharing.captures.able() == ["a"]


@pytest.mark.parametrize("how", ["gone", "silent", "deaf"])
def test_a_capture_that_is_lost_again_and_again_is_left_out_for_longer(how: str) -> None:
    """Each loss ends the incarnation of all: one that crashes when it delivers would stop them for ever."""
    world, there = World("b"), {"b": "addr"}
    world.node.others = lambda: there
    cut = TABLES[2].span.start
    left_out = []
    for _ in range(9):
        peer = world.peers["b"]
        peer.met_rev, peer.met_at, peer.received_at, peer.ready = 7, 0.0, world.now, True
        world.run(a=Span(b"", cut), b=Span(cut, b""))
        assert world.sharing.captures.lost(world.now, NOW) == ""
        if how == "gone":
            there.clear()
        elif how == "silent":
            peer.received_at -= 2 * SILENT_S
        else:
            peer.unconfirmed = 1, world.now - 2 * SILENT_S
        assert "capture b" in world.sharing.captures.lost(world.now, NOW)
        peer.asked = None
        world.peers.forget(["b"], world.now)
        there["b"], lost_at = "addr", world.now
        while "b" not in world.sharing.captures.able():
            world.now += 1
            for peer in (world.peers["a"], world.peers["b"]):
                peer.met_rev, peer.met_at, peer.received_at = 7, 0.0, world.now
        left_out.append(world.now - lost_at)
    assert left_out == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    world.peers["b"].failed_at = world.now
    world.peers.forget(["b"], world.now + FORGIVEN_S)
    assert world.peers["b"].failures
    world.peers.forget(["b"], world.now + FORGIVEN_S + 1)
    assert world.peers["b"].failures == 0, "not for ever: names of captures come and go"


@pytest.mark.parametrize(("stays", "shared"), [(True, True), (False, False)])
def test_what_cannot_be_divided_is_one_captures(stays: bool, shared: bool) -> None:
    world = World("b", stays=stays)
    assert len(world.sharing.divide({}, shared=shared)) == 1
    assert not stays or world.sharing.divide({"b": [ALL]}, shared=shared) == {"a": (ALL,)}


def test_what_an_owner_says_of_history_counts_in_the_order_of_its_messages() -> None:
    """It may go down, for a changefeed that begins earlier; what arrives late does not count."""
    node: Any = SimpleNamespace(_sent_history={}, histories={})

    def receive(order: tuple[int, int], ts: int) -> bool:
        return Node.receive_history(node, -1, order, History(ts + 1, ts))

    assert receive((7, 5), 100)
    assert receive((7, 9), 40)
    assert not receive((7, 8), 100)
    assert node.histories[-1].safe_point == 40
    assert receive((8, 1), 90), "the next owner's"


def test_tables_moved_by_hand_stay_until_others_are_there_or_somebody_asks() -> None:
    world = World("b")
    cut = TABLES[2].span.start
    world.run(a=Span(b"", cut), b=Span(cut, b""))
    plan = world.sharing.handed({TABLES[1].physical_id, TABLES[3].physical_id}, "a")
    assert [one.taker for one in plan.moves] == ["a"]
    assert plan.shares == {
        "a": (Span(b"", TABLES[2].span.start), Span(TABLES[3].span.start, b"")),
        "b": (Span(TABLES[2].span.start, TABLES[3].span.start),),
    }
    world.sharing.hand({TABLES[3].physical_id}, "a")
    world.peers["a"].received = 0
    assert world.better() == ("", [world.peers["a"]]), "the taker prepares"
    assert world.peers["a"].coming == (Span(TABLES[3].span.start, b""),)
    world.peers["a"].received = NOW
    assert world.better()[0]
    before = world.sharing.now
    after = world.sharing.divide(before, shared=True)
    assert after == plan.shares
    for name, spans in after.items():
        granted = tuple(GrantedRange(span, (7, 2)) for span in spans)
        world.peers[name].grant = Grant("i", (7, 2), 1, 4, granted)
        world.peers[name].coming = ()
    # Loads that differ move nothing now, and a restart of all incarnations does not either.
    world.sharing.spans.loads["a"] = dict.fromkeys((task.id for task in TABLES[:2]), int(9 * WORTH))
    world.now += 2 * BALANCE_S
    for peer in world.peers:
        peer.received_at = world.now
    assert world.better() == ("", [])
    assert world.sharing.divide(world.sharing.now, shared=True) == after
    world.sharing.ask()
    world.better()
    assert world.sharing.aim is not None
    assert world.sharing.aim != after


def test_a_manual_move_survives_a_restart_and_is_dropped_if_impossible() -> None:
    world = World("b")
    cut = TABLES[2].span.start
    world.run(a=Span(b"", cut), b=Span(cut, b""))
    world.sharing.hand({TABLES[2].physical_id}, "a")
    again = world.sharing.divide(world.sharing.now, shared=True)  # something failed before anybody prepared
    assert again == {"a": (Span(b"", cut),), "b": (Span(cut, b""),)}
    assert world.better() == ("", [world.peers["a"]])
    assert world.peers["a"].coming == (Span(b"", TABLES[3].span.start),)
    world.node.drained.add("a")
    world.better()
    assert world.sharing.aim == {"b": (ALL,)}, "a drained capture gets nothing"
    with pytest.raises(KeyError, match="99"):
        world.sharing.handed({99}, "b")


def test_a_key_space_is_not_moved_into_pieces_without_end() -> None:
    world = World("b")
    world.sharing.begin([table_task(table, 1) for table in range(1, 100)])
    world.run(a=ALL)
    with pytest.raises(ValueError, match="99 ranges, and 16 are allowed"):
        world.sharing.handed(set(range(2, 100, 2)), "b")


def test_after_a_failure_givers_keep_delivering_and_takers_keep_preparing() -> None:
    """Moved at once, its ranges would wait for all that upstream has to scan."""
    world = World("b")
    world.run(a=ALL)
    taker = world.peers["b"]
    assert world.better() == ("", [taker])
    assert world.sharing.divide({"a": [ALL]}, shared=True) == {"a": (ALL,)}
    world.run(a=ALL)
    taker.coming = ()  # the incarnation ended
    assert world.better() == ("", [taker])
    taker.received = NOW
    assert world.better()[0]
    assert set(world.sharing.divide({"a": [ALL]}, shared=True)) == {"a", "b"}


def test_a_move_waits_for_its_own_takers_after_others_were_waited_for() -> None:
    """The time spent on the takers of an earlier plan does not count."""
    world = World("b", "c")
    world.run(a=ALL)
    world.better()
    world.now += WARM_MAX_S + 1
    for peer in world.peers:
        peer.received_at, peer.met_at = world.now, 0.0
        peer.received = 1
    world.node.drained.add("b")
    assert world.better()[0] == "", "another plan, just made"
    world.peers["c"].received = 1
    assert world.better()[0] == "", "and its taker has begun"
    world.now += WARM_MAX_S + 1
    for peer in world.peers:
        peer.received_at = world.now
    assert "not all takers are ready" in world.better()[0]


def test_a_capture_that_receives_nothing_is_lost_though_it_sends() -> None:
    world = World("b")
    cut = TABLES[2].span.start
    world.run(a=Span(b"", cut), b=Span(cut, b""))
    peer = world.peers["b"]
    peer.sent(5, world.now)
    peer.sent(6, world.now + 1)
    for _ in range(3):
        world.now += SILENT_S / 2
        peer.received_at = world.now
        peer.has(4)
    assert "has received nothing from the owner" in world.sharing.captures.lost(world.now, 0)
    peer.has(5)
    assert world.sharing.captures.lost(world.now, 0) == ""
    world.now += 2 * SILENT_S
    assert "has been silent" in world.sharing.captures.lost(world.now, 0)


def test_a_capture_that_upstream_does_not_reach_is_left_out() -> None:
    world = World("b")
    cut = TABLES[2].span.start
    world.run(a=Span(b"", cut), b=Span(cut, b""))

    def passes(seconds: int, *, known: bool) -> str:
        """Whether the owner gives up somebody while `a` reads on."""
        for _ in range(seconds // 5):
            world.now += 5
            if known:
                world.peers["a"].knows(world.peers["a"].known + 1)
            for peer in world.peers:
                peer.received_at = world.now
            if why := world.sharing.captures.lost(world.now, 0):
                return why
        return ""

    world.peers["a"].knows(7)
    world.peers["b"].knows(5)
    assert passes(10 * int(CUT_OFF_S), known=False) == "", "upstream reaches nobody"
    assert passes(10, known=True) == "", "it has come back, and reaches one first"
    world.peers["b"].knows(8)
    assert passes(int(CUT_OFF_S) // 2, known=True) == ""
    assert "received nothing from upstream" in passes(int(CUT_OFF_S), known=True)
    assert world.sharing.captures.able() == ["a"]


def reads_on(world: World, *readers: str, owner: bool, seconds: float = CUT_OFF_S + 20) -> list[str]:
    """Why captures are given up while some captures, and the owner or not, read on in DDL."""
    said, known = [], max(peer.known for peer in world.peers)
    for step in range(1, int(seconds // 5)):
        world.now += 5
        for peer in world.peers:
            peer.received_at = world.now
            if peer.capture in readers:
                peer.knows(known + step)
        if why := world.sharing.captures.lost(world.now, known + step if owner else 1):
            said.append(why)
    return said


def test_a_capture_that_delivers_alone_is_compared_with_the_owner() -> None:
    world = World("b")
    world.run(b=ALL)
    world.peers["b"].knows(5)
    assert not reads_on(world, owner=False), "upstream reaches nobody"
    assert not reads_on(world, "b", owner=True)
    assert "capture b has received nothing from upstream" in reads_on(world, owner=True)[0]
    assert not world.sharing.captures.is_owner_cut_off


@pytest.mark.parametrize("delivers", [True, False])
def test_an_owner_that_upstream_does_not_reach_is_to_resign(delivers: bool) -> None:
    world, cut = World("b"), TABLES[2].span.start
    if delivers:
        world.run(a=Span(b"", cut), b=Span(cut, b""))
    else:
        world.run(b=ALL)
    assert not reads_on(world, "b", owner=True)
    assert not world.sharing.captures.is_owner_cut_off
    assert not reads_on(world, "b", owner=False), "it is not left out: who is to decide then?"
    assert world.sharing.captures.is_owner_cut_off
    reads_on(world, "b", owner=True, seconds=30)
    assert not world.sharing.captures.is_owner_cut_off, "it is reached again"


def test_an_owner_that_is_cut_off_hides_nobody_else() -> None:
    world = World("b", "c")
    world.run(a=Span(b"", b"m"), b=Span(b"m", b"p"), c=Span(b"p", b""))
    for peer in world.peers:
        peer.knows(1)
    assert "capture c" in reads_on(world, "b", owner=False)[0]
    assert world.sharing.captures.is_owner_cut_off


@pytest.mark.parametrize("ready", [True, False])
def test_tables_that_come_and_go_give_a_taker_no_more_time(ready: bool) -> None:
    world = World("b", "c")
    cut = TABLES[2].span.start
    world.run(a=Span(b"", cut), b=Span(cut, b""))
    world.node.drained.add("b")
    world.peers["c"].ready = ready  # it receives nothing either way
    asked = set()
    for step in range(int(WARM_MAX_S // 60) + 2):
        assert world.better()[0] == ""
        assert bool(world.peers["c"].failures) == (step * 60 > WARM_MAX_S), step
        asked.add(world.peers["c"].coming)
        world.peers["a"].received = 1  # it is able, but has not all yet
        added = tuple(table_task(50 + 10 * step + one, 1) for one in range(8))
        world.sharing.spans.passed(DdlBatch(100 + step, (), added))
        world.now += 60
        for peer in world.peers:
            peer.received_at = world.now
    assert world.better()[0] == ""
    world.peers["a"].received = NOW
    assert world.better()[0], "b is drained without c"
    assert len(asked) > 3, "other ranges each time"
    assert world.sharing.divide(world.sharing.now, shared=True) == {"a": (ALL,)}


def test_many_captures_are_replaced_in_several_rounds() -> None:
    """All grants that a division compares or writes fit into one transaction of etcd."""
    old = ["a", *(f"o{number:02}" for number in range(99))]
    world = World(*old[1:], *(f"n{number:02}" for number in range(100)))
    world.sharing.begin([table_task(table, 1) for table in range(1, 400)])
    world.node.drained |= set(old)
    before = {name: [table_task(table, 1).span] for table, name in enumerate(old, start=1)}
    first = world.sharing._divided(world.sharing.captures.able(), before, shared=True)
    assert len(before.keys() | first.keys()) == GRANTS_MAX
    second = world.sharing._divided(
        world.sharing.captures.able(), {n: list(s) for n, s in first.items()}, shared=True
    )
    assert len(second) == 100


@pytest.mark.parametrize("ready", [True, False])
def test_a_taker_that_never_gets_ready_is_left_out_of_the_next_plan(ready: bool) -> None:
    """While it prepares, upstream keeps history for it, and nothing else is moved."""
    world = World("b", "c")
    cut = TABLES[2].span.start
    world.run(a=Span(b"", cut), b=Span(cut, b""))
    world.peers["c"].ready = ready  # it receives nothing either way
    assert world.better()[0] == ""
    assert world.peers["c"].coming
    world.peers["b"].received = NOW
    world.now += WARM_MAX_S + 1
    for peer in world.peers:
        peer.received_at = world.now
    assert world.better()[0] == ""
    assert world.sharing.captures.able() == ["a", "b"]
    assert world.better() == ("", [])
    assert world.sharing.not_wanted() == [world.peers["c"]]


def test_what_is_asked_for_while_all_begin_again_is_done_after_that() -> None:
    world = World("b")
    cut = TABLES[2].span.start
    world.run(a=ALL)
    world.better()
    world.peers["b"].received = NOW
    assert world.better()[0], "the owner ends all incarnations now"
    world.sharing.hand({TABLES[0].physical_id}, "b")
    assert world.sharing.divide({"a": [ALL]}, shared=True) == {"a": (ALL,)}
    world.run(a=Span(b"", cut), b=Span(cut, b""))
    world.peers["b"].coming = ()
    assert world.better() == ("", [world.peers["b"]])
    assert world.peers["b"].coming[0].start == b""


def test_a_capture_that_has_just_started_again_waits_for_its_application() -> None:
    """Its ranges are granted to it still, but the checkpoint would wait until its JVM has started."""
    world = World("b", "c")
    low, middle, high = Span(b"", TABLES[1].span.start), TABLES[1].span, Span(TABLES[2].span.start, b"")
    before = {"a": [low], "b": [Span(middle.start, high.start)], "c": [high]}
    world.peers["b"].ready = False
    assert world.sharing.divide(before, shared=True).keys() == {"a", "c"}
    assert world.sharing.divide({}, shared=True).keys() == {"a", "c"}, "nor does a changefeed begin with it"
    assert world.sharing.divide({"b": [ALL]}, shared=True) == {"b": (ALL,)}, (
        "the others have received nothing"
    )


def test_the_first_capture_that_is_ready_after_an_outage_does_not_get_all() -> None:
    """The others have the backlog in their event stores, and it would have to be pulled again."""
    world = World("b", "c")
    low, middle, high = Span(b"", TABLES[1].span.start), TABLES[1].span, Span(TABLES[2].span.start, b"")
    before = {"a": [low], "b": [Span(middle.start, high.start)], "c": [high]}
    for ready in ("", "a"):
        for name in "abc":
            world.peers[name].ready = name == ready
        assert world.sharing.divide(before, shared=True).keys() == {"a", "b", "c"}


def test_who_is_drained_gives_to_any_version_and_what_has_no_tables_too() -> None:
    world = World("b")
    world.peers["b"].version = "0.0.1"
    world.node.drained.add("a")
    assert world.sharing.captures.able() == ["b"]
    world.sharing.begin([])
    assert world.sharing.divide({"a": [ALL]}, shared=True) == {"b": (ALL,)}


def test_a_capture_of_another_version_gets_nothing_while_others_can() -> None:
    world = World("b")
    world.peers["b"].version = "0.0.1"
    assert world.sharing.captures.able() == ["a"]
    world.peers["b"].version = __version__
    assert world.sharing.captures.able() == ["a", "b"]
