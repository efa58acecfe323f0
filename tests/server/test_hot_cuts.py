"""Where a hot span is cut, when, and in which cases it is not. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from tidegate.config.values import TABLE_CUTS_MAX
from tidegate.eventstore.key_loads import BUCKETS_MAX, KEY_WHOLE, KeyLoads, buckets
from tidegate.server.catalogue.hot_cuts import (
    COOL_DOWN_S,
    HELPS,
    LOOKS_HOT,
    RESTS_MAX,
    ROWS_MIN,
    Choice,
    HotWatch,
    chosen,
    even_cuts,
    greatest_share,
    kept_cuts,
    pieces_of,
)
from tidegate.server.catalogue.table_cuts import PIECES
from tidegate.tidb import keys


def sample(rows: Iterable[tuple[bytes, int]]) -> KeyLoads:
    found = list(rows)
    weights = np.array([weight for _, weight in found], np.int64)
    return buckets(pa.chunked_array([[key for key, _ in found]], pa.binary()), weights)


def of_handles(handles: Iterable[int], table: int = 7) -> KeyLoads:
    return sample((keys.int_record(table, handle), 100) for handle in handles)


def nowhere(key: bytes) -> Sequence[bytes]:
    return ()


SPREAD = of_handles(range(10_000))


def test_buckets_are_even_and_a_heavy_row_is_alone_in_its_own() -> None:
    chance = random.Random(1)
    rows = [(b"k%06d" % chance.randrange(100_000), chance.randint(1, 200)) for _ in range(20_000)]
    rows += [(b"k050000", 100)] * 9_000
    found, total = sample(rows), sum(weight for _, weight in rows)
    assert list(found.starts) == sorted(set(found.starts))
    assert len(found.starts) <= BUCKETS_MAX
    assert (sum(found.weights), found.rows) == (total, len(rows))
    heavy = found.starts.index(b"k050000")
    assert found.weights[heavy] == sum(weight for key, weight in rows if key == b"k050000")
    assert max(weight for at, weight in enumerate(found.weights) if at != heavy) < total / 50
    for at, weight in enumerate(found.weights):
        end = found.starts[at + 1] if at + 1 < len(found.starts) else b"l"
        assert weight == sum(size for key, size in rows if found.starts[at] <= key < end)


def test_long_keys_are_cut_off_where_they_differ() -> None:
    front = b"x" * 80
    found = sample((front + b"%05d" % at + b"y" * 900, 10) for at in range(3_000))
    assert max(map(len, found.starts)) <= len(front) + 5
    assert min(map(len, found.starts)) >= KEY_WHOLE
    assert list(found.starts) == sorted(set(found.starts))
    assert max(found.weights) < sum(found.weights) / 50


def test_a_span_is_cut_into_pieces_of_equal_load() -> None:
    skewed = of_handles([*range(1_000), *range(0, 1_000, 10), *range(990, 1_000)] * 3)
    for loads in (SPREAD, skewed):
        for pieces in (2, 3, 6, 20):
            cuts = even_cuts(loads, pieces, [7], nowhere)
            assert len(cuts) == pieces - 1
            assert cuts == sorted(set(cuts))
            assert greatest_share(loads, cuts) < 1 / pieces + 0.03
    assert chosen(SPREAD, SPREAD, 4, [7], nowhere) == Choice(even_cuts(SPREAD, 4, [7], nowhere))


def test_the_edge_of_a_region_is_preferred_if_it_is_close() -> None:
    (plain,) = even_cuts(SPREAD, 2, [7], nowhere)
    close, far = keys.int_record(7, 5_060), keys.int_record(7, 5_900)
    assert even_cuts(SPREAD, 2, [7], lambda key: [far]) == [plain]
    assert even_cuts(SPREAD, 2, [7], lambda key: [keys.record_prefix(7), close]) == [close]
    assert even_cuts(SPREAD, 2, [7], lambda key: [keys.index_prefix(7, 1), far]) == [plain]


def test_what_no_cut_helps_is_not_cut() -> None:
    """A row is never divided; and with ascending keys all changes are behind the last cut, for ever."""
    row = of_handles([*range(1_000), *[500] * 9_000])
    assert "no cut divides a row" in chosen(row, row, 8, [7], nowhere).why_not
    ascending = chosen(SPREAD, of_handles(range(10_000, 20_000)), 8, [7], nowhere)
    assert "move on to other keys" in ascending.why_not
    assert not ascending.cuts
    assert "nobody follows" in chosen(SPREAD, SPREAD, 8, [8], nowhere).why_not
    assert "one row" in chosen(of_handles([5] * 500), SPREAD, 8, [7], nowhere).why_not
    few = of_handles(range(ROWS_MIN - 1))
    for first, last in ((few, SPREAD), (SPREAD, few), (SPREAD, KeyLoads())):
        assert "too few" in chosen(first, last, 8, [7], nowhere).why_not
    partly = chosen(SPREAD, of_handles([*range(10_000)] + [*range(9_000, 10_000)] * 5), 2, [7], nowhere)
    assert greatest_share(of_handles([*range(10_000)] + [*range(9_000, 10_000)] * 5), [*partly.cuts]) <= HELPS


def test_wanted_tables_of_a_stripe_are_cut_at_their_edge_if_possible() -> None:
    rows = [(keys.int_record(table, at), 100) for table in (4, 5, 6, 7) for at in range(1_000)]
    loads = sample(rows)
    (cut,) = even_cuts(loads, 2, [4, 5, 6, 7], nowhere)
    assert cut == keys.int_record(6, -(1 << 63)), "below all rows of the table, so that it stays whole"
    assert greatest_share(loads, [cut]) == pytest.approx(0.5, abs=0.02)
    assert {keys.parse_record(one).table_id for one in even_cuts(loads, 16, [5, 7], nowhere)} == {5, 7}


def test_the_number_of_pieces_follows_the_load_and_has_bounds() -> None:
    assert pieces_of(1.3, [], [7]) == 3
    assert pieces_of(2.0, [], [7]) == 4
    assert pieces_of(1000.0, [], [7]) == PIECES
    there = [keys.int_record(7, at) for at in range(PIECES - 3)]
    assert pieces_of(9.0, there, [7]) == 3, "two more cuts make it so many pieces"
    assert pieces_of(9.0, there, [8]) == 18
    assert pieces_of(9.0, [*there, *there[:2]], [7]) == 1
    others = [keys.int_record(table, 1) for table in range(100, 100 + TABLE_CUTS_MAX)]
    assert pieces_of(9.0, others, [7]) == 1
    assert kept_cuts([*there, *others[:3]], [7, 101]) == [*there, others[1]], "the rest is of dropped tables"


def test_a_span_must_stay_hot_from_its_first_sample_on() -> None:
    watch = HotWatch()
    assert watch.look(["a", "b"]) == ["a", "b"]
    watch.sampled("a", SPREAD)
    watch.sampled("b", KeyLoads())
    assert watch.look(["a", "b"]) == ["b"], "a sample without rows is none"
    watch.look(["b"])
    watch.look(["a", "b"])
    watch.sampled("a", SPREAD)
    for _ in range(LOOKS_HOT - 1):
        assert not watch.due(0.0), "it was not hot in between"
        watch.look(["a"])
    assert dict(watch.due(0.0)) == {"a": SPREAD}
    watch.done(5.0)
    watch.look(["a"])
    watch.sampled("a", SPREAD)
    for _ in range(LOOKS_HOT):
        watch.look(["a"])
    assert not watch.due(4.0 + COOL_DOWN_S)
    assert watch.due(5.0 + COOL_DOWN_S)


def test_a_span_of_too_few_rows_is_sampled_ever_more_rarely() -> None:
    """Each sample is a request to another capture, which reads files for it."""
    watch, asked = HotWatch(), list[int]()
    for look in range(63 + 2 * RESTS_MAX + 1):
        if watch.look(["a"]):
            watch.sampled("a", of_handles(range(ROWS_MIN - 1)))
            asked.append(look)
        assert "not cut by itself now: too few of its rows" in watch.said("a")
    assert asked == [0, 1, 3, 7, 15, 31, 63, 63 + RESTS_MAX, 63 + 2 * RESTS_MAX]
    watch.sampled("a", SPREAD)
    assert watch.said("a") == ""


def test_each_error_is_said_and_makes_the_next_try_later() -> None:
    watch = HotWatch()
    for minutes in (10, 20, 40):
        watch.look(["a", "b"])
        watch.done(0.0)
        watch.failed(0.0, "it has not ended yet")
        assert watch.not_before == minutes * 60.0
        watch.look(["a"])
        assert watch.said("a").endswith(f"it has not ended yet; this is tried again after {minutes} minutes")
        assert watch.said("b") == ""
