"""The pace of pieces: none waits while few changefeeds have rows, and many begin a bounded number of them."""

from __future__ import annotations

from collections import Counter

import pytest

from tidegate.pipeline.exchange import pace as pace_module
from tidegate.pipeline.exchange.pace import FRESH_S, GAP_SHARE, LATELY_S, PAUSE_MAX_S, Pace, pause_s

GLANCE_S = 0.01


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "CORES", 2)


def begun(count: int, seconds: float, *, is_cut: bool = False) -> list[tuple[float, int]]:
    """The pieces, as time and changefeed, of so many that have always had rows."""
    pace, found = Pace[int](), list[tuple[float, int]]()
    rests = dict.fromkeys(range(count), 0.0)
    for glance in range(round((FRESH_S + seconds) / GLANCE_S)):
        now = glance * GLANCE_S
        for key in [key for key, until in rests.items() if now >= until]:
            rests[key] = pace.next_at(key, now, is_cut=is_cut)
            if now >= FRESH_S:
                found.append((now, key))
    return found


@pytest.mark.parametrize("count", range(1, 5))
def test_a_few_changefeeds_wait_for_nothing(count: int) -> None:
    assert pause_s(count) == 0
    assert len(begun(count, 1.0)) == round(count / GLANCE_S)


@pytest.mark.parametrize("count", [8, 20, 36, 200])
def test_many_begin_a_bounded_number_of_pieces_and_none_is_left_out(count: int) -> None:
    seconds = 20.0
    found = begun(count, seconds)
    pieces = Counter(key for _, key in found)
    a_second = count / (GAP_SHARE * pause_s(count))
    assert len(found) / seconds <= 1.1 * a_second
    assert min(pieces.values()) >= 0.9 * seconds / (GAP_SHARE * pause_s(count)), "each has its turn"
    assert pause_s(count) <= PAUSE_MAX_S < LATELY_S, "else those that wait would not count as active"


def test_twenty_changefeeds_pause_three_quarters_and_many_one_second() -> None:
    assert pause_s(20) == pytest.approx(16 / 22)
    assert pause_s(1000) == PAUSE_MAX_S


def test_more_cores_take_more_changefeeds_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "CORES", 8)
    assert [pause_s(active) for active in (16, 20, 80)] == pytest.approx([0.0, 4 / 88, 64 / 88])


def test_changefeeds_that_have_no_rows_any_more_slow_nobody_down() -> None:
    pace = Pace[int]()
    for now in (99.0, 100.0, 101.0):
        for key in range(40):
            rest_s = pace.next_at(key, now, is_cut=False) - now
    assert rest_s == pytest.approx(GAP_SHARE * PAUSE_MAX_S)
    now = 101.0 + LATELY_S / 2
    assert pace.next_at(7, now, is_cut=False) == pytest.approx(now + GAP_SHARE * PAUSE_MAX_S)
    now = 101.0 + LATELY_S
    assert pace.next_at(7, now, is_cut=False) == now, "the others have no rows any more"


def test_a_changefeed_whose_rows_begin_waits_for_nothing_at_first() -> None:
    """The parts of its first transactions may come to be due one after the other."""
    pace = Pace[int]()
    for now in (97.0, 98.0, 99.0, 100.0, 101.0):
        for key in range(40):
            pace.next_at(key, now, is_cut=False)
    for now in (100.0, 100.05, 101.9):
        assert pace.next_at(40, now, is_cut=False) == now
    assert pace.next_at(40, 100.0 + FRESH_S, is_cut=False) > 100.0 + FRESH_S


def test_a_piece_that_leaves_rows_is_followed_by_the_next_at_once() -> None:
    assert len(begun(20, 1.0, is_cut=True)) == round(20 / GLANCE_S)
