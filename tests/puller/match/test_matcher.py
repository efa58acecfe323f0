"""The compiled matcher of a stream against one plain matcher per region, and its limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.puller.wire import resolved_message, rows_message
from tidegate.errors import Retryable
from tidegate.eventstore.order import op_class
from tidegate.model.span import Span
from tidegate.puller.match import block_matcher
from tidegate.puller.match.block_matcher import BlockMatcher
from tidegate.puller.match.matched import Happening, Matched
from tidegate.puller.match.matcher import BrokenContractError, Change, LogType, Matcher, Row, Violation
from tidegate.tidb.keys import table_prefix

BOUNDS = [Span(b"a", b"m"), Span(b"m", b""), Span(b"a", b"z")]
REGIONS = [(1, 7), (2, 7), (1, 8)]
SPANS = [0, 0, 1]
CHECKPOINT = 10

keys = st.sampled_from([b"a", b"abcdefgh", b"abcdefghi", b"lzzzzzzzzzzzzzzzzz", b"m", b"zz", b"`"])
rows = st.builds(
    Row,
    kind=st.sampled_from([1, 1, 1, 2, 2, 3, 4]),
    start_ts=st.integers(1, 6),
    commit_ts=st.integers(8, 40),
    op=st.sampled_from([1, 1, 1, 2]),
    key=keys,
    value=st.sampled_from([b"", b"v", b"value" * 20]),
    old_value=st.sampled_from([b"", b"old"]),
    generation=st.sampled_from([0, 0, 0, 1, 2]),
)
odd = st.builds(
    lambda kind, op, key, ts: Row(kind, 1, ts, op, key),
    st.integers(0, 9),
    st.integers(0, 3),
    keys,
    st.integers(0, 20),
)
steps = st.one_of(
    st.tuples(st.just("rows"), st.integers(0, 2), st.lists(rows, min_size=1, max_size=8)),
    st.tuples(st.just("rows"), st.integers(0, 2), st.lists(rows, min_size=1, max_size=8)),
    st.tuples(st.just("initialized"), st.integers(0, 2), st.just([Row(LogType.INITIALIZED)])),
    st.tuples(st.just("resolved"), st.integers(0, 2), st.integers(1, 30)),
)


@pytest.fixture(scope="module", autouse=True)
def _small_portions() -> Iterator[None]:
    """Few messages a portion, so that a batch has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_matcher, "_PORTION_BYTES", 64)
        yield


def changes_of(matched: Matched) -> list[list[Change]]:
    found: list[list[Change]] = [[], []]
    for span, block in matched.blocks:
        columns = [block.column(i).to_pylist() for i in range(6)]
        found[span] += [Change(*row) for row in zip(*columns, strict=True)]
    return found


def by_class(changes: list[Change]) -> list[Change]:
    """The changes of each transaction that follow one another by class, else as before."""
    runs = groupby(changes, key=lambda change: (change.commit_ts, change.start_ts))
    return [one for _, run in runs for one in sorted(run, key=lambda one: op_class(one.op, one.old_value))]


@dataclass
class Twins:
    """Plain matchers next to the compiled one."""

    trust_empty: bool = False
    compiled: BlockMatcher = field(init=False)
    plain: list[Matcher | None] = field(init=False)

    def __post_init__(self) -> None:
        self.compiled = BlockMatcher(trust_empty=self.trust_empty)
        self.plain = [Matcher(bounds, CHECKPOINT, trust_empty=self.trust_empty) for bounds in BOUNDS]
        for i, (region, request) in enumerate(REGIONS):
            self.compiled.register(request, region, SPANS[i], i, BOUNDS[i], CHECKPOINT)

    def step(self, batch: list[tuple[str, int, object]]) -> None:
        """Feed a batch to both and compare changes, violations and resolved ts."""
        expected: list[list[Change]] = [[], []]
        broken: list[tuple[int, Violation]] = []
        wire: list[bytes] = []
        for what, at, content in batch:
            region, request = REGIONS[at]
            matcher = self.plain[at]
            if what == "resolved":
                wire.append(resolved_message([region, 99], request, content))  # type: ignore[arg-type]
                if matcher is not None:
                    matcher.resolve(content)  # type: ignore[arg-type]
                continue
            wire.append(rows_message(region, request, content))  # type: ignore[arg-type]
            for row in content:  # type: ignore[attr-defined]
                if self.plain[at] is None or matcher is None:
                    break
                try:
                    expected[SPANS[at]] += matcher.push(row)
                except BrokenContractError as error:
                    expected[SPANS[at]] += error.changes
                    broken.append((at, error.violation))
                    self.plain[at] = None
        # As the client gives them: when `feed` has returned, their memory may be used for other messages.
        memory = list(map(bytearray, wire))
        matched = self.compiled.feed(list(map(memoryview, memory)))
        for message in memory:
            message[:] = bytes(len(message))
        assert [by_class(changes) for changes in changes_of(matched)] == [by_class(one) for one in expected]
        violated = [n for n in matched.notes if n.happening is Happening.VIOLATED]
        assert [(n.registration.mark, n.violation) for n in violated] == broken
        moved = dict(zip(matched.marks.tolist(), matched.resolved.tolist(), strict=True))
        for mark, ts in moved.items():
            plain = self.plain[mark]
            assert plain is None or plain.resolved == ts


@settings(max_examples=400, deadline=None)
@given(st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=8), st.booleans())
def test_the_compiled_matcher_does_what_plain_matchers_do(
    batches: list[list[tuple[str, int, object]]], trust_empty: bool
) -> None:
    twins = Twins(trust_empty)
    for batch in batches:
        twins.step(batch)


def _table_key(table: int, rest: bytes) -> bytes:
    return table_prefix(table) + rest


near_records = st.builds(
    _table_key,
    st.sampled_from([7, 8]),
    st.sampled_from([b"", b"_", b"_r", b"_r1", b"_r12345678", b"_i12345678", b"_s1", b"xr1", b"_R1"]),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.tuples(rows, near_records), min_size=1, max_size=8), min_size=1, max_size=6))
def test_of_a_range_with_several_tables_only_records_count(batches: list[list[tuple[Row, bytes]]]) -> None:
    bounds = Span(table_prefix(7), table_prefix(9))
    compiled, plain = BlockMatcher(), Matcher(bounds, CHECKPOINT, records=True)
    compiled.register(7, 1, 0, 0, bounds, CHECKPOINT, records=True)
    expected: list[Change] = []
    wire = [rows_message(1, 7, [Row(LogType.INITIALIZED)])]
    assert plain.push(Row(LogType.INITIALIZED)) == []
    for batch in batches:
        pushed = [row._replace(key=key) for row, key in batch]
        wire.append(rows_message(1, 7, pushed))
        try:
            for row in pushed:
                expected += plain.push(row)
        except BrokenContractError as error:
            expected += error.changes
            break
    found = by_class(changes_of(compiled.feed(wire))[0])
    assert found[: len(expected)] == by_class(expected)
    assert all(change.key[9:11] == b"_r" and len(change.key) > 11 for change in found)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.one_of(rows, odd), min_size=1, max_size=6), min_size=1, max_size=6))
def test_rows_that_cannot_be_are_violations_in_both(batches: list[list[Row]]) -> None:
    twins = Twins()
    for batch in batches:
        twins.step([("rows", 0, batch)])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.integers(1, 3), st.integers(1, 4))
def test_thousands_of_open_rows_over_many_batches_all_find_their_commit(
    seed: int, transactions: int, batches: int
) -> None:
    random = Random(seed)
    matcher = BlockMatcher()
    matcher.register(7, 1, 0, 0, Span(b"", b""), CHECKPOINT)
    matcher.feed([rows_message(1, 7, [Row(LogType.INITIALIZED)])])
    open_rows = [(start, b"key%d" % i) for start in range(20, 20 + transactions) for i in range(3000)]
    random.shuffle(open_rows)
    part = len(open_rows) // batches + 1
    for first in range(0, len(open_rows), part):
        prewrites = [Row(1, s, 0, 1, key, key + b"!", b"o") for s, key in open_rows[first : first + part]]
        assert matcher.feed([rows_message(1, 7, prewrites)]).changes == 0
    random.shuffle(open_rows)
    found = []
    for first in range(0, len(open_rows), part):
        commits = [Row(2, s, s + 100, 1, key) for s, key in open_rows[first : first + part]]
        found += changes_of(matcher.feed([rows_message(1, 7, commits)]))[0]
    assert found == [Change(s + 100, s, 1, key, key + b"!", b"o") for s, key in open_rows]
    assert matcher.open_bytes == 0


def test_a_transaction_leaves_with_deletes_first_and_inserts_last() -> None:
    """As the event store wants it, in the order of their keys otherwise; other transactions stay apart."""
    mixed = [(1, b""), (2, b"old"), (1, b"old"), (1, b""), (2, b"old"), (1, b"old")]
    changes = [
        Row(4, start, commit, op, b"k%d" % i, b"v" if op == 1 else b"", old)
        for start, commit in ((20, 30), (21, 30), (22, 31))
        for i, (op, old) in enumerate(mixed)
    ]
    found, _ = changes_of(live().feed([rows_message(1, 7, changes)]))
    assert [(one.start_ts, one.key) for one in found] == [
        (start, b"k%d" % i) for start in (20, 21, 22) for i in (1, 4, 2, 5, 0, 3)
    ]


def live() -> BlockMatcher:
    matcher = BlockMatcher()
    matcher.register(7, 1, 0, 0, Span(b"a", b"z"), CHECKPOINT)
    matcher.feed([rows_message(1, 7, [Row(LogType.INITIALIZED)])])
    return matcher


def test_thousands_of_registrations_come_and_go() -> None:
    matcher = BlockMatcher()
    for round_ in range(3):
        held = [matcher.register(7, region, 0, region, Span(b"a", b"z"), 10) for region in range(1, 1200)]
        rows_of_all = [rows_message(r, 7, [Row(4, 5, 20 + round_, 1, b"k", b"v")]) for r in range(1, 1200)]
        assert matcher.feed(rows_of_all).changes == 1199
        for registration in held:
            matcher.stop(registration)
        assert matcher.feed(rows_of_all).changes == 0


def test_the_memory_of_a_peak_is_given_back_and_what_is_still_open_is_kept() -> None:
    matcher = live()
    names = [b"k%03d" % i for i in range(400)]
    for first in range(0, 400, 40):
        some = names[first : first + 40]
        matcher.feed([rows_message(1, 7, [Row(1, 30, 0, 1, key, key * 25_000) for key in some])])
        matcher.relieve()
    peak = matcher.arena_bytes
    assert peak > matcher.open_bytes > 40_000_000
    ended, left = names[3:], names[:3]
    assert matcher.feed([rows_message(1, 7, [Row(2, 30, 40, 1, key) for key in ended])]).changes == 397
    matcher.relieve()
    assert matcher.open_bytes < matcher.arena_bytes < peak // 3
    found, _ = changes_of(matcher.feed([rows_message(1, 7, [Row(2, 30, 50, 1, key) for key in left])]))
    assert found == [Change(50, 30, 1, key, key * 25_000, b"") for key in left]


def test_a_malformed_message_ends_the_stream() -> None:
    with pytest.raises(Retryable, match="malformed"):
        live().feed([b"\x0a\xff"])
