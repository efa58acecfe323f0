"""How a key space is divided among captures: it tiles, it is balanced, and it stays as it is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.control.share import Move, Piece, Shares, load_of, moved, share
from tidegate.model.span import Span

ALL = Span(b"", b"")
TOLERANCE = 0.2
PAGE = Path(__file__).parents[2] / "docs/internals/sharing.md"
Before = Mapping[str, Sequence[Span]]


def key(number: int) -> bytes:
    return b"t%05d" % number


def row(*weights: float) -> list[Piece]:
    """Neighbouring pieces with these weights; the first has the keys from `key(0)` on."""
    return [Piece(Span(key(i), key(i + 1)), weight) for i, weight in enumerate(weights)]


def split(*numbers: int, names: str = "abcdefgh") -> Shares:
    """Everything, cut at the keys of these numbers: a has the first range, b the second."""
    return {name: (span,) for name, span in zip(names, ALL.cut_at([key(n) for n in numbers]), strict=False)}


def greatest(shares: Before, pieces: Sequence[Piece]) -> float:
    return max(load_of(shares, pieces).values())


def weight_moved(before: Before, after: Before, pieces: Sequence[Piece]) -> float:
    return sum(move.weight for move in moved(before, after, pieces))


def optimum(weights: Sequence[float], parts: int) -> float:
    """The slow twin: the least greatest sum of at most so many contiguous parts."""

    @cache
    def best(first: int, parts: int) -> float:
        if first == len(weights) or parts == 1:
            return sum(weights[first:])
        ends = range(first + 1, len(weights) + 1)
        return min(max(sum(weights[first:end]), best(end, parts - 1)) for end in ends)

    return best(0, parts)


def assert_tiles(shares: Shares, wanted: Span, pieces: Sequence[Piece]) -> None:
    """All of `wanted` once; inner edges only where a piece starts; neighbours joined."""
    ranges = sorted((span, name) for name, spans in shares.items() for span in spans)
    assert ranges[0][0].start == wanted.start
    assert ranges[-1][0].end == wanted.end
    starts = {piece.span.start for piece in pieces}
    for (low, giver), (high, taker) in itertools.pairwise(ranges):
        assert low.end == high.start
        assert high.start in starts
        assert giver != taker
    assert all(list(spans) == sorted(spans) for spans in shares.values())


weights = st.one_of(st.integers(0, 9).map(float), st.floats(0, 1e6), st.sampled_from([0.0, 1.0, 1000.0]))


@st.composite
def piece_lists(draw: st.DrawFn, most: int = 24) -> list[Piece]:
    """Pieces with gaps here and there; the last may have no end."""
    edges = sorted(draw(st.sets(st.integers(1, 60), min_size=0, max_size=most)))
    pieces = []
    for low, high in itertools.pairwise(edges):
        if draw(st.integers(0, 4)):
            pieces.append(Piece(Span(key(low), key(high)), draw(weights)))
    if edges and draw(st.booleans()):
        pieces.append(Piece(Span(key(edges[-1]), b""), draw(weights)))
    return pieces


@st.composite
def holdings(draw: st.DrawFn) -> dict[str, tuple[Span, ...]]:
    """Ranges of some captures, at edges of their own, with holes."""
    edges = sorted(draw(st.sets(st.integers(0, 62), max_size=10)))
    found: dict[str, list[Span]] = {}
    for span in ALL.cut_at([key(edge) for edge in edges]):
        found.setdefault(draw(st.sampled_from("abcdegone")), []).append(span)
    found.pop("n", None)
    return {name: tuple(spans) for name, spans in found.items()}


wanted_spans = st.sampled_from([ALL, Span(key(5), key(50)), Span(key(10), b""), Span(b"", key(40))])


def held(holders: str) -> dict[str, list[Span]]:
    """Everything, with a range for each letter: the first begins at b"", the others at key(1), key(2), ..."""
    found: dict[str, list[Span]] = {}
    for name, span in zip(holders, ALL.cut_at([key(i) for i in range(1, len(holders))]), strict=True):
        found.setdefault(name, []).append(span)
    return found


@given(
    wanted=wanted_spans,
    pieces=piece_lists(),
    captures=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True),
    before=holdings(),
    at_most=st.integers(0, 4),
    tolerance=st.sampled_from([0.0, 0.1, 0.2, 1.0]),
    order=st.randoms(use_true_random=False),
)
def test_ranges_tile_what_is_wanted_within_the_bound_and_then_stay(
    wanted: Span,
    pieces: list[Piece],
    captures: list[str],
    before: Before,
    at_most: int,
    tolerance: float,
    order: Random,
) -> None:
    found = share(wanted, pieces, captures, before, at_most=at_most, tolerance=tolerance)
    assert_tiles(found, wanted, pieces)
    assert found.keys() <= set(captures)
    parts = min(len(captures), at_most or len(captures))
    assert len(found) <= parts
    inside = [piece for piece in pieces if piece.span.intersect(wanted) is not None]
    loads = load_of(found, pieces)
    assert sum(loads.values()) == pytest.approx(sum(piece.weight for piece in inside))
    least = optimum([piece.weight for piece in inside], parts)
    assert max(loads.values()) <= (1 + tolerance) * least * (1 + 1e-9)
    order.shuffle(captures)
    assert share(wanted, pieces, captures, found, at_most=at_most, tolerance=tolerance) == found


@given(
    numbers=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    captures=st.integers(1, 5),
)
@example(numbers=[9, 1, 1, 1, 9], captures=2)
@example(numbers=[0, 0, 5, 0], captures=3)
def test_a_fresh_cut_into_a_range_each_is_the_optimum(numbers: list[int], captures: int) -> None:
    pieces = row(*map(float, numbers))
    found = share(ALL, pieces, "abcde"[:captures], {})
    least = optimum(numbers, captures)
    assert greatest(found, pieces) <= least
    if all(len(spans) == 1 for spans in found.values()) and any(numbers):
        assert greatest(found, pieces) == least


def test_equal_pieces_are_shared_evenly() -> None:
    pieces = row(*[1.0] * 10)
    found = share(ALL, pieces, "abcd", {})
    assert sorted(load_of(found, pieces).values()) == [2, 2, 3, 3]


def test_pieces_without_any_load_are_shared_by_their_number() -> None:
    found = share(ALL, row(*[0.0] * 6), "abc", {})
    assert found == split(2, 4)


def test_without_pieces_one_capture_has_all() -> None:
    assert share(ALL, [], "abc", {}) == {"a": (ALL,)}
    assert share(ALL, [], "abc", {"x": [ALL]}) == {"a": (ALL,)}
    assert share(ALL, [], "abc", {"c": [Span(b"", key(1))], "x": [Span(key(1), b"")]}) == {"c": (ALL,)}


def test_pieces_outside_of_what_is_wanted_do_not_count() -> None:
    pieces = row(100, 1, 1, 1, 100)
    wanted = Span(key(1), key(3))
    assert share(wanted, pieces, "ab", {}) == {"a": (Span(key(1), key(2)),), "b": (Span(key(2), key(3)),)}


def test_a_piece_that_begins_below_what_is_wanted_is_no_edge() -> None:
    pieces = [Piece(Span(key(0), key(4)), 5), Piece(Span(key(4), b""), 5)]
    wanted = Span(key(2), b"")
    found = share(wanted, pieces, "ab", {})
    assert found == {"a": (Span(key(2), key(4)),), "b": (Span(key(4), b""),)}
    assert load_of(found, pieces) == {"a": 5, "b": 5}


def test_more_captures_than_pieces_leave_the_others_without_work() -> None:
    pieces = row(1, 1)
    assert share(ALL, pieces, "abcd", {}) == split(1)


def test_keys_between_pieces_go_with_the_piece_before_them() -> None:
    pieces = [Piece(Span(key(2), key(3)), 1), Piece(Span(key(7), key(8)), 1)]
    assert share(ALL, pieces, "ab", {}) == split(7)


@given(
    numbers=st.lists(st.integers(1, 9), min_size=8, max_size=30),
    cuts=st.sets(st.integers(1, 7), min_size=1, max_size=3),
)
def test_nothing_moves_while_loads_are_within_the_tolerance(numbers: list[int], cuts: set[int]) -> None:
    pieces = row(*map(float, numbers))
    before = split(*sorted(cuts))
    mean = sum(numbers) / len(before)
    bound = (1 + TOLERANCE) * max(mean, *numbers)
    loads = load_of(before, pieces).values()
    found = share(ALL, pieces, list(before), before)
    if max(loads) <= bound and min(loads) >= TOLERANCE * mean:
        assert found == before
    else:
        assert weight_moved(before, found, pieces) > 0 or greatest(found, pieces) == greatest(before, pieces)


def test_a_load_above_the_tolerance_sheds_what_exceeds_it_and_no_more() -> None:
    pieces = row(*[1.0] * 20)
    before = split(14)
    found = share(ALL, pieces, "ab", before)
    assert found == split(12)
    assert moved(before, found, pieces) == [Move(Span(key(12), key(14)), "a", "b", 2.0)]


def test_a_single_light_piece_is_taken_from_between_heavy_ones() -> None:
    pieces = row(40, 12, 40, 30, 28)
    found = share(ALL, pieces, "ab", split(3))
    assert moved(split(3), found, pieces) == [Move(Span(key(1), key(2)), "a", "b", 12.0)]


@given(pieces=st.integers(30, 90), captures=st.integers(2, 5), gone=st.integers(0, 4))
def test_only_the_ranges_of_a_gone_capture_move_if_the_others_have_room(
    pieces: int, captures: int, gone: int
) -> None:
    row_of_ones, names = row(*[1.0] * pieces), "abcde"[:captures]
    before = share(ALL, row_of_ones, names, {})
    lost = names[gone % captures]
    found = share(ALL, row_of_ones, [name for name in names if name != lost], before)
    assert {move.giver for move in moved(before, found, row_of_ones)} <= {lost}


@given(numbers=st.lists(st.integers(1, 9), min_size=12, max_size=40), gone=st.sampled_from("abc"))
def test_others_give_up_little_when_a_capture_is_gone(numbers: list[int], gone: str) -> None:
    pieces = row(*map(float, numbers))
    before = share(ALL, pieces, "abc", {})
    found = share(ALL, pieces, [name for name in "abc" if name != gone], before)
    surplus = weight_moved(before, found, pieces) - load_of(before, pieces)[gone]
    assert surplus <= 2 * max(numbers), "uneven pieces make it necessary"


def test_what_a_gone_capture_had_is_shared_by_as_few_as_have_room() -> None:
    pieces = row(*[1.0] * 100)
    before = share(ALL, pieces, "abcde", {})
    found = share(ALL, pieces, "abde", before)
    moves = moved(before, found, pieces)
    assert {move.giver for move in moves} == {"c"}
    assert sum(move.weight for move in moves) == 20
    assert len({move.taker for move in moves}) == 2
    assert greatest(found, pieces) <= 1.2 * 25


def test_the_next_call_does_not_improve_a_division_found_in_a_new_way() -> None:
    pieces = row(6, 7, 6, 2)
    found = share(ALL, pieces, "ab", held("abbx"))
    assert share(ALL, pieces, "ab", found) == found


def test_a_gone_capture_moves_nothing_that_is_within_the_tolerance() -> None:
    pieces, before = row(7, 9, 8, 1), held("xbba")
    found = share(ALL, pieces, "ab", before)
    assert moved(before, found, pieces) == [Move(Span(b"", key(1)), "x", "a", 7.0)]
    assert load_of(found, pieces) == {"a": 8, "b": 17}


def test_a_load_far_above_the_mean_is_brought_near_it_at_once() -> None:
    pieces, before = row(7, 5, 3, 8, 5), held("axcac")
    found = share(ALL, pieces, "abc", before)
    assert greatest(before, pieces) > 1.2 * optimum([7, 5, 3, 8, 5], 3)
    assert greatest(found, pieces) <= 1.2 * 28 / 3


def test_a_piece_with_unheld_first_keys_goes_to_the_holder_of_its_rest() -> None:
    pieces = [Piece(Span(key(0), key(4)), 4), *(Piece(Span(key(i), key(i + 1)), 4) for i in (4, 5, 6))]
    before = {"x": [Span(b"", key(2))], "a": [Span(key(2), key(4)), Span(key(6), b"")]}
    before |= {"b": [Span(key(4), key(5))], "c": [Span(key(5), key(6))]}
    found = share(ALL, pieces, "cba", before)
    assert load_of(found, pieces) == {"a": 8, "b": 4, "c": 4}


def test_idle_captures_share_what_a_gone_one_had() -> None:
    pieces = row(*[1.0] * 100)
    before = {
        name: (span,)
        for name, span in zip("abcdefghiz", ALL.cut_at([key(i) for i in range(10, 100, 10)]), strict=True)
    }
    found = share(ALL, pieces, "abcdefghixy", before)
    assert {(move.giver, move.taker, move.weight) for move in moved(before, found, pieces)} == {
        ("z", "x", 5),
        ("z", "y", 5),
    }


def test_an_idle_capture_is_preferred_to_a_neighbour_with_room() -> None:
    pieces = row(*[1.0] * 110)
    cuts = [*range(10, 101, 10), 106]
    before = {
        name: (span,) for name, span in zip("abcdefghijkz", ALL.cut_at([key(i) for i in cuts]), strict=True)
    }
    found = share(ALL, pieces, "abcdefghijkx", before)
    assert moved(before, found, pieces) == [Move(Span(key(106), b""), "z", "x", 4.0)]


def test_a_capture_in_the_place_of_another_takes_its_ranges() -> None:
    pieces = row(*[1.0] * 30)
    before = share(ALL, pieces, "abc", {})
    found = share(ALL, pieces, "acd", before)
    assert found == {"a": before["a"], "c": before["c"], "d": before["b"]}


@given(
    numbers=st.lists(st.integers(1, 9), min_size=20, max_size=60),
    captures=st.integers(1, 5),
)
def test_a_capture_that_joins_gets_work_and_nobody_else_gets_more(numbers: list[int], captures: int) -> None:
    pieces = row(*map(float, numbers))
    names = "abcde"[:captures]
    before = share(ALL, pieces, names, {})
    found = share(ALL, pieces, [*names, "new"], before)
    mean = sum(numbers) / (captures + 1)
    assert greatest(found, pieces) <= (1 + TOLERANCE) * optimum(numbers, captures + 1)
    assert load_of(found, pieces)["new"] >= TOLERANCE * mean
    assert greatest(found, pieces) <= greatest(before, pieces)


def test_a_capture_that_joins_many_takes_half_of_the_busiest_ones_work() -> None:
    pieces = row(*[1.0] * 200, 2.0)
    before = share(ALL, pieces, "abcdefghij", {})
    busiest = max(load_of(before, pieces), key=lambda name: load_of(before, pieces)[name])
    found = share(ALL, pieces, "abcdefghijk", before)
    (move,) = moved(before, found, pieces)
    assert (move.giver, move.taker) == (busiest, "k")
    assert move.weight in (10, 11)


@pytest.mark.parametrize("at_most", [1, 2, 3])
def test_no_more_captures_share_than_may(at_most: int) -> None:
    pieces = row(*[1.0] * 30)
    before = split(3, 10, 14)
    found = share(ALL, pieces, "abcd", before, at_most=at_most)
    assert len(found) == at_most
    assert "d" in found, "it had most"


def test_one_writer_is_the_one_that_had_most() -> None:
    pieces = row(*[1.0] * 10)
    assert share(ALL, pieces, "abc", split(2, 7), at_most=1) == {"b": (ALL,)}
    assert share(ALL, pieces, "abc", {}, at_most=1) == {"a": (ALL,)}


@pytest.mark.parametrize("captures", [3, 10, 100])
@pytest.mark.parametrize("heavy_first", [True, False])
def test_a_hundredth_of_the_pieces_with_90_percent_of_bytes_is_balanced(
    captures: int, heavy_first: bool
) -> None:
    count, heavy = 10_000, 100
    step = 1 if heavy_first else count // heavy
    heavy_ones = set(range(0, heavy * step, step))
    numbers = [90 / heavy if i in heavy_ones else 10 / (count - heavy) for i in range(count)]
    pieces = row(*numbers)
    names = [f"c{i:03}" for i in range(captures)]
    mean = sum(numbers) / captures
    fresh = share(ALL, pieces, names, {})
    assert greatest(fresh, pieces) <= 1.2 * mean + 1e-9
    equal = share(ALL, row(*[1.0] * count), names, {})
    found = share(ALL, pieces, names, equal)
    assert greatest(found, pieces) <= 1.2 * mean + 1e-9
    assert share(ALL, pieces, names, found) == found


def test_ranges_that_many_moves_have_scattered_are_divided_from_scratch() -> None:
    pieces = row(*[1.0] * 200)
    scattered: dict[str, list[Span]] = {"a": [], "b": []}
    for number, span in enumerate(ALL.cut_at([key(i) for i in range(1, 200)])):
        scattered["ab"[number % 2]].append(span)
    found = share(ALL, pieces, "ab", scattered)
    assert sum(map(len, found.values())) == 2


@given(
    numbers=st.lists(st.integers(0, 30), min_size=1, max_size=60),
    events=st.lists(st.tuples(st.sampled_from(["gone", "joins", "drift"]), st.integers(0, 59)), max_size=12),
)
def test_any_series_of_changes_keeps_loads_bounded_and_ranges_few(
    numbers: list[int], events: list[tuple[str, int]]
) -> None:
    captures, found = list("abcd"), share(ALL, row(*map(float, numbers)), "abcd", {})
    for event, at in events:
        if event == "gone" and len(captures) > 1:
            captures.pop(at % len(captures))
        elif event == "joins":
            captures += [name for name in "abcdef" if name not in captures][:1]
        elif event == "drift":
            numbers[at % len(numbers)] += at
        pieces = row(*map(float, numbers))
        found = share(ALL, pieces, captures, found)
        assert_tiles(found, ALL, pieces)
        assert greatest(found, pieces) <= (1 + TOLERANCE) * optimum(numbers, len(captures)) * (1 + 1e-9)
        assert sum(map(len, found.values())) <= 8 * len(captures)
        assert share(ALL, pieces, captures, found) == found


@given(pieces=piece_lists(), before=holdings(), after=holdings())
def test_moves_are_what_a_capture_has_and_did_not_have(
    pieces: list[Piece], before: Before, after: Before
) -> None:
    def holder(shares: Before, number: int) -> str:
        found = [n for n, spans in shares.items() for span in spans if span.contains(key(number))]
        return found[0] if found else ""

    moves = moved(before, after, pieces)
    assert [move.span for move in moves] == sorted(move.span for move in moves)
    for number in range(63):
        giver, taker = holder(before, number), holder(after, number)
        crossing = [(m.giver, m.taker) for m in moves if m.span.contains(key(number))]
        assert crossing == ([(giver, taker)] if taker and giver != taker else [])


def test_the_weight_of_a_move_is_that_of_its_pieces() -> None:
    pieces = row(1, 2, 4, 8)
    before = {"a": [Span(b"", key(3))], "gone": [Span(key(3), key(9))]}
    after = {"a": [Span(b"", key(1))], "b": [Span(key(1), b"")]}
    assert moved(before, after, pieces) == [
        Move(Span(key(1), key(3)), "a", "b", 6.0),
        Move(Span(key(3), key(9)), "gone", "b", 8.0),
        Move(Span(key(9), b""), "", "b", 0.0),
    ]


def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(AssertionError, match="needed"):
        share(ALL, [], [], {})
    with pytest.raises(AssertionError, match="once each"):
        share(ALL, [], ["a", "a"], {})
    with pytest.raises(AssertionError, match="overlap"):
        share(ALL, [Piece(ALL, 1), Piece(Span(key(1), b""), 1)], ["a"], {})
    with pytest.raises(AssertionError, match="finite"):
        share(ALL, [Piece(ALL, float("nan"))], ["a"], {})


def test_the_example_of_the_page_is_what_comes_out() -> None:
    lines = PAGE.read_text().partition("## An example")[2].partition("##")[0].splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    found: Shares = {}
    for _, numbers, captures, holders, loads, weight in cells[2:]:
        pieces = row(*map(float, numbers.split()))
        before, found = found, share(ALL, pieces, captures, found)
        names = [
            n for piece in pieces for n, spans in found.items() if any(s.covers(piece.span) for s in spans)
        ]
        assert "".join(names) == holders
        assert ", ".join(f"{name} {load:g}" for name, load in load_of(found, pieces).items()) == loads
        assert f"{weight_moved(before, found, pieces):g}" == weight
    assert len(cells) == 2 + 5
