"""Watermarks and bounds."""

from __future__ import annotations

import pytest

from tidegate.consumer.engine.watermark import Limits, Mode, Watermarks, bounds


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
    ],
)
def test_bounds(mode: Mode, limits: Limits, expected: dict[int, int]) -> None:
    assert bounds(Watermarks({0: 10, 1: 7}), mode, limits) == expected
