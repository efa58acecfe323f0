"""Tests of TiCDC's matcher and region state by their own names, on the plain and the compiled matcher alike.

Source: tiflow `cdc/kv/matcher_test.go`, `cdc/kv/region_worker_test.go`, ticdc `logservice/logpuller`.
"""

from __future__ import annotations

from tests.puller.match.test_matcher import changes_of
from tests.puller.wire import resolved_message, rows_message
from tidegate.model.span import Span
from tidegate.puller.match.block_matcher import BlockMatcher
from tidegate.puller.match.matched import Happening
from tidegate.puller.match.matcher import BrokenContractError, Change, Kind, Matcher, Row, Violation

INITIALIZED = Row(Kind.INITIALIZED)


def prewrite(start: int, key: bytes, value: bytes, old: bytes = b"", generation: int = 0) -> Row:
    return Row(Kind.PREWRITE, start, 0, 1, key, value, old, generation)


def commit(start: int, ts: int, key: bytes) -> Row:
    return Row(Kind.COMMIT, start, ts, 1, key)


def rollback(start: int, key: bytes) -> Row:
    return Row(Kind.ROLLBACK, start, 0, 0, key)


class Both:
    """One registration of everything, from `checkpoint`, in both matchers."""

    def __init__(self, checkpoint: int = 0, *, trust_empty: bool = False) -> None:
        self.plain = Matcher(Span(b"", b""), checkpoint, trust_empty=trust_empty)
        self.compiled = BlockMatcher(trust_empty=trust_empty)
        self.compiled.register(7, 1, 0, 0, Span(b"", b""), checkpoint)

    def push(self, *rows: Row) -> list[Change] | Violation:
        """What comes of the rows; a violation when one is met."""
        found: list[Change] | Violation = []
        try:
            found = [change for row in rows for change in self.plain.push(row)]
        except BrokenContractError as error:
            found = error.violation
        matched = self.compiled.feed([rows_message(1, 7, rows)])
        violated = [n.violation for n in matched.notes if n.happening is Happening.VIOLATED]
        assert found == (violated[0] if violated else changes_of(matched)[0])
        return found

    def resolve(self, ts: int) -> int:
        """The resolved ts that then counts."""
        self.plain.resolve(ts)
        moved = self.compiled.feed([resolved_message([1], 7, ts)]).resolved.tolist()
        assert not moved or moved == [self.plain.resolved]
        return self.plain.resolved


def test_match_row_a_rollback_kills_only_its_own_start_ts() -> None:
    both = Both()
    assert both.push(INITIALIZED, prewrite(1, b"k1", b"v1"), prewrite(2, b"k1", b"v2")) == []
    assert both.push(rollback(1, b"k1")) == []
    assert both.push(commit(2, 3, b"k1")) == [Change(3, 2, 1, b"k1", b"v2", b"")]
    assert both.push(commit(1, 4, b"k1")) is Violation.PREWRITE_MISSING


def test_match_fake_prewrite_one_without_value_does_not_overwrite() -> None:
    both = Both()
    both.push(INITIALIZED, prewrite(1, b"k", b"v1", b"v3"), prewrite(1, b"k", b"", b"v4"))
    assert both.push(commit(1, 2, b"k")) == [Change(2, 1, 1, b"k", b"v1", b"v3")]


def test_match_row_uninitialized_the_commit_waits_for_the_real_prewrite() -> None:
    both = Both()
    assert both.push(prewrite(1, b"k1", b"", b"v4"), commit(1, 2, b"k1")) == []
    assert both.push(prewrite(1, b"k1", b"v3", b"v4")) == []
    assert both.push(prewrite(5, b"k2", b"v5"), commit(5, 6, b"k2")) == [Change(6, 5, 1, b"k2", b"v5", b"")]
    assert both.push(INITIALIZED) == [Change(2, 1, 1, b"k1", b"v3", b"v4")]


def test_match_cached_row_commits_without_their_prewrite_are_dropped() -> None:
    both = Both()
    assert both.push(commit(1, 2, b"k1"), commit(3, 4, b"k2"), commit(4, 5, b"k2")) == []
    assert both.push(prewrite(1, b"k1", b"v1"), prewrite(3, b"k2", b"v2")) == []
    wanted = [Change(2, 1, 1, b"k1", b"v1", b""), Change(4, 3, 1, b"k2", b"v2", b"")]
    assert both.push(INITIALIZED) == wanted


def test_match_cached_rollback_row_leaves_nothing_open() -> None:
    both = Both()
    rows = [rollback(1, b"k1"), rollback(3, b"k2"), rollback(4, b"k2")]
    both.push(*rows, prewrite(1, b"k1", b"v1"), prewrite(3, b"k2", b"v2"))
    assert both.push(INITIALIZED) == []
    assert both.compiled.open_bytes == 0
    assert both.push(commit(1, 9, b"k1")) is Violation.PREWRITE_MISSING


def test_pipelined_dml_the_later_generation_wins_whatever_comes_first() -> None:
    both = Both()
    assert both.push(prewrite(1, b"k", b"v2", generation=2), commit(1, 5, b"k")) == []
    both.push(prewrite(1, b"k", b"v4", generation=4), prewrite(1, b"k", b"v3", generation=3))
    assert both.push(INITIALIZED) == [Change(5, 1, 1, b"k", b"v4", b"")]


def test_event_out_of_order_gives_one_event_with_value_and_old_value() -> None:
    both = Both(checkpoint=1)
    assert both.push(prewrite(2, b"k", b"", b"old")) == []
    assert both.push(commit(2, 3, b"k")) == []
    assert both.push(prewrite(2, b"k", b"new", b"old")) == []
    assert both.push(INITIALIZED) == [Change(3, 2, 1, b"k", b"new", b"old")]


def test_handle_resolved_ts_counts_only_upwards_and_only_after_initialized() -> None:
    states = {9: True, 11: True, 8: False}
    found = []
    for resolved, initialized in states.items():
        both = Both(checkpoint=resolved)
        if initialized:
            both.push(INITIALIZED)
        found.append(both.resolve(10))
    assert found == [10, 11, 8]


def test_a_replayed_cached_commit_is_checked_against_start_and_resolved_ts() -> None:
    """Both clients of TiCDC emit it unchecked; a transaction under way at the start may commit below it."""
    both = Both(checkpoint=10)
    both.push(commit(5, 8, b"k1"), commit(6, 12, b"k2"))
    both.push(prewrite(5, b"k1", b"v"), prewrite(6, b"k2", b"v"))
    assert both.push(INITIALIZED) == [Change(12, 6, 1, b"k2", b"v", b"")]
    assert both.resolve(20) == 20
    both.push(prewrite(15, b"k3", b"v"))
    assert both.push(commit(15, 18, b"k3")) is Violation.COMMIT_BELOW_RESOLVED


def test_an_empty_value_is_a_value_and_a_delete_comes_out_as_one() -> None:
    both = Both()
    both.push(INITIALIZED, prewrite(1, b"k1", b"", b"old"), Row(Kind.PREWRITE, 2, 0, 2, b"k2", b"", b"old"))
    assert both.push(commit(1, 3, b"k1")) == [Change(3, 1, 1, b"k1", b"", b"old")]
    assert both.push(Row(Kind.COMMIT, 2, 4, 2, b"k2")) == [Change(4, 2, 2, b"k2", b"", b"old")]


def test_an_empty_value_after_another_counts_only_where_rows_may_be_empty() -> None:
    """TiCDC loses it: docs/formats/change-feed.md#a-prewrite-without-a-value."""
    for trust_empty, value in ((False, b"v"), (True, b"")):
        both = Both(trust_empty=trust_empty)
        assert both.push(INITIALIZED, prewrite(1, b"k", b"v"), prewrite(1, b"k", b"")) == []
        assert both.push(commit(1, 3, b"k")) == [Change(3, 1, 1, b"k", value, b"")]


def test_the_worked_example_of_three_transactions_and_three_resolved_ts() -> None:
    """The capture's side. T1 = k1 and k2 at 1..2, T2 = k1 at 3..6, T3 = k2 from 4 on; resolved 2, 3, 4."""
    both = Both()
    both.push(INITIALIZED, prewrite(1, b"k1", b"a1"), prewrite(1, b"k2", b"a2"))
    first = [Change(2, 1, 1, b"k1", b"a1", b""), Change(2, 1, 1, b"k2", b"a2", b"")]
    assert both.push(commit(1, 2, b"k1"), commit(1, 2, b"k2")) == first
    assert both.resolve(2) == 2
    assert both.push(prewrite(3, b"k1", b"b1", b"a1")) == []
    assert both.resolve(3) == 3
    assert both.push(prewrite(4, b"k2", b"c2", b"a2")) == []
    assert both.push(commit(3, 6, b"k1")) == [Change(6, 3, 1, b"k1", b"b1", b"a1")]
    assert both.resolve(4) == 4
    assert both.push(commit(4, 7, b"k2")) == [Change(7, 4, 1, b"k2", b"c2", b"a2")]
