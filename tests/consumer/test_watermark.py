"""Watermarks and bounds."""

from __future__ import annotations

import pytest

from tidegate.consumer.engine.places import number_of
from tidegate.consumer.engine.watermark import Limits, Mode, Watermarks, bounds

A0, A1, B0, B1 = (number_of(("a", "b"), name, partition) for name in "ab" for partition in (0, 1))


def test_the_lowest_watermark_is_zero_until_every_partition_has_spoken() -> None:
    marks = Watermarks({0: 0, 1: 0})
    assert marks.advance(0, 10)
    assert marks.lowest == 0
    assert marks.laggards() == [1]
    assert marks.advance(1, 7)
    assert marks.lowest == 7


def test_a_mark_that_goes_back_is_ignored_and_counted() -> None:
    marks = Watermarks({0: 10})
    assert not marks.advance(0, 9)
    assert marks.of(0) == 10
    assert marks.went_back == 1


@pytest.mark.parametrize(
    ("mode", "limits", "expected"),
    [
        (Mode.TRANSACTION, Limits(), {0: 7, 1: 7}),
        (Mode.TRANSACTION, Limits(ddl_ts=5), {0: 5, 1: 5}),
        (Mode.TRANSACTION, Limits(until=3, ddl_ts=5), {0: 3, 1: 3}),
        (Mode.ROW, Limits(), {0: 10, 1: 7}),
        (Mode.ROW, Limits(ddl_ts=8), {0: 8, 1: 7}),
        (Mode.ROW, Limits(ddl_places=((1,),)), {0: 7, 1: 7}),
        (Mode.ROW, Limits(ddl_places=((0, 1),)), {0: 10, 1: 7}),
        (Mode.ROW, Limits(ddl_places=((0,), (1,))), {0: 7, 1: 7}),
        (Mode.ROW, Limits(align=9), {0: 9, 1: 7}),
        (Mode.TABLE, Limits(), {0: 7, 1: 7}),
        (Mode.TABLE, Limits(ddl_ts=5), {0: 5, 1: 5}),
        (Mode.TABLE, Limits(align=6), {0: 6, 1: 6}),
    ],
)
def test_bounds(mode: Mode, limits: Limits, expected: dict[int, int]) -> None:
    assert bounds(Watermarks({0: 10, 1: 7}), mode, limits) == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Mode.ROW, {A0: 40, A1: 30, B0: 40, B1: 10}),
        (Mode.TABLE, {A0: 30, A1: 30, B0: 10, B1: 10}),
        (Mode.TRANSACTION, {A0: 10, A1: 10, B0: 10, B1: 10}),
    ],
)
def test_a_topic_that_lags_holds_back_what_its_level_says(mode: Mode, expected: dict[int, int]) -> None:
    marks = Watermarks({A0: 50, A1: 30, B0: 40, B1: 10})
    # A0 may not pass B0: a DDL of topic b is known only up to there.
    assert bounds(marks, mode, Limits(ddl_places=((A0, A1), (B0, B1)))) == expected
