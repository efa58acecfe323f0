"""Which ranges move if a user asks for tables that are cut into pieces."""

from __future__ import annotations

import pytest
from tests.server.test_shares import ALL, NOW, World

from tidegate.control.grants import Grant, GrantedRange
from tidegate.model.span import Span
from tidegate.server.catalogue.stripes import Stripes, table_task
from tidegate.tidb import keys

TABLES = (18, 20, 22)
CUTS = (keys.int_record(20, 100), keys.int_record(20, 200))


def world(width: int) -> World:
    """Captures `a`, `b` and `c`; table 20 is in three pieces, and `b` has the piece in the middle."""
    found = World("b", "c")
    found.sharing.begin(Stripes(width, CUTS).begin([table_task(table, 1) for table in TABLES]))
    found.run(a=Span(b"", CUTS[0]), b=Span(*CUTS), c=Span(CUTS[1], b""))
    return found


@pytest.mark.parametrize("width", [1, 64])
def test_a_table_that_is_cut_moves_with_all_its_pieces(width: int) -> None:
    there = world(width)
    # In a stripe, the first and the last piece of the cut table contain its neighbours, too.
    first, last = (keys.record_prefix(20), table_task(22, 1).span.start) if width == 1 else (b"", b"")
    plan = there.sharing.handed({20}, "b")
    assert plan.shares["b"] == (Span(first, last),)
    assert [(one.span.start, one.span.end, one.giver) for one in plan.moves] == [
        (first, CUTS[0], "a"),
        (CUTS[1], last, "c"),
    ]
    there.sharing.hand({20}, "b")
    assert there.better() == ("", [there.peers["b"]])
    assert there.peers["b"].coming == plan.shares["b"]
    there.peers["b"].received = NOW
    assert there.better()[0]
    assert there.sharing.divide(there.sharing.now, shared=True) == plan.shares


def test_pieces_that_the_taker_has_already_do_not_move() -> None:
    there = world(1)
    there.peers["b"].grant = None
    there.run(a=ALL)
    there.peers["c"].grant = None
    (move,) = there.sharing.handed({20}, "c").moves
    assert (move.span, move.weight) == (Span(keys.record_prefix(20), table_task(22, 1).span.start), 3.0)
    there.run(a=Span(b"", CUTS[1]))
    there.peers["c"].grant = Grant("i", (7, 1), 1, 4, (GrantedRange(Span(CUTS[1], b""), (7, 1)),))
    (move,) = there.sharing.handed({20}, "c").moves
    assert (move.span, move.weight) == (Span(keys.record_prefix(20), CUTS[1]), 2.0), "the others are there"
