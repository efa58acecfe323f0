"""The digest of DDL: it depends on what is known, and not on when the spans were opened."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.control.words import task

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.ddl_log import DdlLog

NAMES = "abcd"
START = 100


@st.composite
def histories(draw: st.DrawFn) -> list[DdlBatch]:
    """DDL that adds and drops spans, and changes which tables of a span are wanted."""
    found, there = [], {"a": "1", "b": "0"}
    for ts in range(START + 10, START + 10 * draw(st.integers(1, 6)), 10):
        gone = draw(st.sets(st.sampled_from(sorted(there)), max_size=1)) if there else set()
        names = sorted(draw(st.sets(st.sampled_from(NAMES))))
        came = {name: draw(st.sampled_from(("0", "1", "11"))) for name in names}
        there = {name: bits for name, bits in there.items() if name not in gone} | came
        added = tuple(task(name, ts, bits) for name, bits in sorted(came.items()))
        found.append(DdlBatch(ts, (), added, frozenset(gone)))
    return found


def spans_at(history: list[DdlBatch], ts: int) -> list[SpanTask]:
    """The spans wanted at a ts, found in the plain way."""
    there = {one.id: one for one in (task("a", wanted="1"), task("b"))}
    for batch in history:
        if batch.finished_ts <= ts:
            for name in batch.removed:
                there.pop(name, None)
            there |= {one.id: one for one in batch.added}
    return [task(one.id, ts, f"{one.wanted:b}") for one in there.values()]


def log(history: list[DdlBatch], opened_at: int, known: int) -> DdlLog:
    found = DdlLog(opened_at, spans_at(history, opened_at))
    found.learn([one for one in history if opened_at < one.finished_ts <= known], known)
    return found


@given(histories(), st.integers(START, 170), st.integers(0, 70), st.integers(0, 70))
def test_views_opened_at_different_ts_agree(
    history: list[DdlBatch], opened_at: int, later: int, ahead: int
) -> None:
    known = opened_at + later + ahead
    owner, capture = log(history, opened_at, known), log(history, opened_at + later, known)
    assert owner.agrees(capture.said)
    owner.forget(opened_at + later)
    assert owner.said == capture.said


@given(histories(), st.data())
def test_a_view_that_has_missed_a_ddl_never_agrees(history: list[DdlBatch], data: st.DataObject) -> None:
    """Except if a later DDL has undone it, and the view says only what came after both."""
    known = START + 100
    missed = data.draw(st.sampled_from(history)) if history else None
    if missed is None:
        return
    owner, capture = log(history, START, known), DdlLog(START, spans_at(history, START))
    kept = [one for one in history if one is not missed]
    capture.learn(kept, known)
    assert not owner.agrees(capture.said)
    capture.forget(after := data.draw(st.integers(START, known)))
    # The CRCs of spans would have to collide for two views of other spans to agree.
    same = _wanted(history, after) == _wanted(kept, after) and missed.finished_ts <= after
    assert owner.agrees(capture.said) is same


def _wanted(history: list[DdlBatch], ts: int) -> dict[str, int]:
    return {one.id: one.wanted for one in spans_at(history, ts)}
