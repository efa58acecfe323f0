"""The granted ranges with their progress in columns, against the plain form: one object a range."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.granted_ranges import GrantedRanges
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import RangeColumns, RangeProgress
from tidegate.model.span import Span

ALL = Span(b"", b"")
PIECES = [Span(low, end) for low, end in pairwise([b"", b"d", b"h", b"m", b"t", b""])]
SPANS = [*PIECES, Span(b"", b"h"), Span(b"h", b"t")]
CAPTURES = ("a", "b", "c")


@dataclass
class PlainRange:
    """The owner's knowledge of one range."""

    capture: str
    granted: GrantedRange
    incarnation: int
    checkpoint: int
    resolved: int = 0
    running: bool = False


class PlainRanges:
    """The slow twin of `GrantedRanges`: each range is looked up, and each question goes through all."""

    def __init__(self) -> None:
        self.ranges: dict[Span, PlainRange] = {}

    def grant(self, capture: str, incarnation: int, ranges: Sequence[GrantedRange]) -> None:
        known = {span: one.checkpoint for span, one in self.ranges.items()}
        self.ranges = {span: one for span, one in self.ranges.items() if one.capture != capture}
        for new in ranges:
            self.ranges[new.id] = PlainRange(capture, new, incarnation, known.get(new.id, 0))

    def running(self, capture: str, incarnation: int, ranges: Iterable[GrantedRange]) -> None:
        for one in ranges:
            if (known := self._of(capture, incarnation, one)) is not None:
                known.running = True

    def report(self, capture: str, incarnation: int, progress: Iterable[RangeProgress]) -> bool:
        counts = True
        for one in progress:
            known = self._of(capture, incarnation, GrantedRange(one.id, one.token))
            if known is None:
                counts = False
            else:
                known.checkpoint = max(one.checkpoint_ts, known.checkpoint)
                known.resolved = max(one.resolved_ts, known.resolved)
        return counts

    def _of(self, capture: str, incarnation: int, granted: GrantedRange) -> PlainRange | None:
        known = self.ranges.get(granted.id)
        if known is None or (known.capture, known.incarnation, known.granted) != (
            capture,
            incarnation,
            granted,
        ):
            return None
        return known

    def is_whole(self) -> bool:
        """Whether each key is in a range. All edges are those of `PIECES`."""
        return all(any(span.covers(piece) for span in self.ranges) for piece in PIECES)

    def shown(self) -> list[object]:
        """The answers to all questions."""
        all_of, whole = list(self.ranges.values()), self.is_whole()
        rows = [
            (one.capture, span, one.running, one.checkpoint, one.resolved)
            for span, one in self.ranges.items()
        ]
        return [
            sorted(rows),
            frozenset(one.capture for one in all_of),
            whole and all(one.running for one in all_of),
            min((one.checkpoint for one in all_of), default=0) if whole else 0,
            min((one.resolved for one in all_of), default=0) if whole else 0,
            max((one.checkpoint for one in all_of), default=0),
        ]


def shown(ranges: GrantedRanges) -> list[object]:
    rows = ranges.progress()
    assert [row[1].start for row in rows] == sorted(row[1].start for row in rows)
    slowest = {row[0] for row in rows if row[3] == min(row[3] for row in rows)}
    assert ranges.slowest in (slowest or {""})
    numbers = ranges.are_running, ranges.durable, ranges.resolved, ranges.furthest
    return [sorted(rows), ranges.captures, *numbers]


@given(data=st.data())
def test_columns_answer_as_single_ranges_do(data: st.DataObject) -> None:
    """Also for some ranges only, those of others, those under old tokens, and those named twice."""
    columns, plain = GrantedRanges(ALL), PlainRanges()
    now: dict[str, list[GrantedRange]] = {name: [] for name in CAPTURES}
    incarnations = dict.fromkeys(CAPTURES, 0)
    for token in range(1, data.draw(st.integers(1, 10)) + 1):
        capture = data.draw(st.sampled_from(CAPTURES))
        if data.draw(st.booleans()):
            spans = data.draw(st.lists(st.sampled_from(SPANS), unique=True, max_size=5))
            now[capture] = [GrantedRange(span, (1, token)) for span in spans]
            incarnations[capture] += 1
            for one in (columns, plain):
                one.grant(capture, incarnations[capture], now[capture])
        incarnation = incarnations[capture] - data.draw(st.sampled_from((0, 0, 0, 1)))
        known = [one for ranges in now.values() for one in ranges]
        some = st.lists(st.sampled_from(known), max_size=6) if known else st.just([])
        found = data.draw(st.one_of(st.just(now[capture]), some))
        if data.draw(st.booleans()):
            for one in (columns, plain):
                one.running(capture, incarnation, found)
        ts = st.integers(0, 9)
        progress = [RangeProgress(one.id, one.token, data.draw(ts), data.draw(ts)) for one in found]
        given = RangeColumns.of(progress) if data.draw(st.booleans()) else progress
        assert columns.report(capture, incarnation, given) == plain.report(capture, incarnation, progress)
        assert shown(columns) == plain.shown()


def test_tokens_and_incarnations_of_a_capture_rise() -> None:
    ranges = GrantedRanges(ALL)
    ranges.grant("a", 2, [GrantedRange(ALL, (1, 2))])
    for incarnation, token in ((2, (1, 2)), (3, (1, 1)), (1, (1, 2))):
        with pytest.raises(AssertionError, match="tokens and incarnations rise"):
            ranges.grant("a", incarnation, [GrantedRange(ALL, token)])


def test_a_report_of_all_ranges_under_another_token_does_not_count() -> None:
    """It is compared as a whole, tokens included."""
    ranges = GrantedRanges(ALL)
    ranges.grant("a", 1, [GrantedRange(span, (1, 2)) for span in PIECES])
    assert not ranges.report("a", 1, [RangeProgress(span, (1, 1), 5, 5) for span in PIECES])
    assert not ranges.report("a", 2, [RangeProgress(span, (1, 2), 5, 5) for span in PIECES])
    assert not ranges.report("b", 1, [RangeProgress(span, (1, 2), 5, 5) for span in PIECES])
    assert (ranges.durable, ranges.resolved) == (0, 0)
    assert ranges.report("a", 1, [RangeProgress(span, (1, 2), 5, 6) for span in PIECES])
    assert (ranges.durable, ranges.resolved) == (5, 6)
