"""Timestamps never repeat and never go back, whatever the clock does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import InvalidInput
from tidegate.model import timestamp
from tidegate.tikv.engine import Engine
from tidegate.tikv.pd.tso import Tso, TsoMode


class SetClock:
    """A clock that keeps the time it was set to."""

    def __init__(self, now_ms: int) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


STEPS = st.lists(st.one_of(st.integers(-5000, 5000), st.just("restart"), st.just("batch")), max_size=20)


@settings(max_examples=30, deadline=None)
@given(STEPS)
def test_they_ascend_across_restarts_and_clock_jumps(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int | str]
) -> None:
    directory = tmp_path_factory.mktemp("tso")
    clock = SetClock(10_000)
    engine = Engine(directory)
    tso = Tso(engine, clock, TsoMode.SYSTEM)
    last = 0
    for step in steps:
        count = 1
        if step == "restart":
            tso = Tso(engine, clock, TsoMode.SYSTEM)
        elif step == "batch":
            count = 200_000
        else:
            assert isinstance(step, int)
            clock.ms = max(0, clock.ms + step)
        ts = tso.get(count)
        assert ts - (count - 1) > last, "the first of the batch is above the last of the one before"
        assert timestamp.physical_ms(ts) == timestamp.physical_ms(ts - count + 1), (
            "a batch is within one millisecond"
        )
        last = ts
    engine.close()


def test_they_follow_the_clock(tmp_path: Path) -> None:
    engine, clock = Engine(tmp_path), SetClock(10_000)
    tso = Tso(engine, clock, TsoMode.SYSTEM)
    assert timestamp.physical_ms(tso.get()) == 10_000
    clock.ms = 99_000
    assert timestamp.physical_ms(tso.get()) == 99_000
    with pytest.raises(InvalidInput):
        tso.get(0)
    engine.close()


def test_a_manual_one_moves_only_forward_and_only_on_request(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    tso = Tso(engine, SetClock(10_000), TsoMode.MANUAL)
    assert [tso.get(), tso.advance(7), tso.get(100), tso.advance(3), tso.present()] == [0, 7, 7, 7, 7]
    assert Tso(engine, SetClock(0), TsoMode.MANUAL).present() == 7
    engine.close()
