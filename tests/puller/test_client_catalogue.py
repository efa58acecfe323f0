"""Tests of TiCDC's range lock, span frontier and streams by their own names, setups and expectations.

Source: tiflow `cdc/kv/regionlock`, `cdc/puller/frontier`, `cdc/kv/shared_*_test.go`; ticdc
`logservice/logpuller`. Matcher, region state and most of the range lock are scripts, in `testdata`. Which is
which, and what has no meaning here: docs/upstream-tests.md.
"""

from __future__ import annotations

import copy
import threading
from random import Random

import numpy as np

from tests.puller.test_puller import eventually
from tests.puller.wire import resolved_message, rows_message
from tidegate.model.span import Span
from tidegate.puller.event_feed import MessageQueue
from tidegate.puller.frontier import Frontier
from tidegate.puller.match.block_matcher import BlockMatcher
from tidegate.puller.match.budget import Budget
from tidegate.puller.match.matcher import LogType, Row
from tidegate.puller.range_lock import Locked, RangeLock

NEVER = (1 << 64) - 1
"""Upstream's start ts where a test does not care."""


def span(start: str, end: str) -> Span:
    return Span(start.encode(), end.encode())


def least_in(lock: RangeLock, start: str, end: str) -> int:
    """Return the ts that a registration of a free range would begin from. The lock does not change."""
    answer = copy.deepcopy(lock).lock(span(start, end), 99, 99)
    assert isinstance(answer, Locked)
    return answer.resolved


# --- RangeLock ---------------------------------------------------------------------------------------


def test_range_ts_map() -> None:
    lock = RangeLock(span("a", "z"), NEVER)

    def put(start: str, end: str, ts: int) -> None:
        assert isinstance(lock.lock(span(start, end), 1, 1), Locked)
        lock.unlock(span(start, end), 1, 1, ts)

    put("b", "e", 100)
    wanted = {"az": 100, "be": 100, "ac": 100, "df": 100, "ab": NEVER, "ef": NEVER}
    assert {pair: least_in(lock, *pair) for pair in wanted} == wanted
    assert least_in(lock, "a", "b\x00") == 100
    put("d", "g", 80)
    wanted = {"dg": 80, "az": 80, "de": 80, "ad": 100}
    assert {pair: least_in(lock, *pair) for pair in wanted} == wanted
    for ts in (120, 130):
        put("c", "f", ts)
        wanted = {"cf": ts, "cd": ts, "de": ts, "ef": ts, "be": 100, "az": 80}
        assert {pair: least_in(lock, *pair) for pair in wanted} == wanted


# --- the frontier, with the lock as the puller joins them --------------------------------------------


class Subscription:
    """One span: its range lock, and its marks in a frontier that others share."""

    def __init__(self, frontier: Frontier, number: int, bounds: Span, ts: int) -> None:
        self._frontier, self._number = frontier, number
        self._lock = RangeLock(bounds, ts)
        self._free = frontier.hold(number, ts)
        self._marks: dict[tuple[Span, int, int], int] = {}

    def register(self, bounds: Span, region: int, version: int) -> int:
        """A new registration's mark."""
        answer = self._lock.lock(bounds, region, version)
        assert isinstance(answer, Locked)
        mark = self._marks[bounds, region, version] = self._frontier.hold(self._number, answer.resolved)
        self._frontier.put(self._free, self._lock.free_resolved)
        return mark

    def end(self, bounds: Span, region: int, version: int) -> None:
        mark = self._marks.pop((bounds, region, version))
        self._lock.unlock(bounds, region, version, self._frontier.at(mark))
        self._frontier.put(self._free, self._lock.free_resolved)
        self._frontier.release(mark)

    def forward(self, mark: int, ts: int) -> int:
        """The span's least ts, once a store has reported this one."""
        self._frontier.advance(np.array([mark]), np.array([ts], dtype=np.uint64))
        return self.least

    @property
    def least(self) -> int:
        return int(self._frontier.minima(self._number + 1)[self._number])


def test_calculate_min_resolved_ts_counts_what_is_locked_and_what_is_not() -> None:
    one = Subscription(Frontier(), 0, span("a", "z"), 100)
    assert one.forward(one.register(span("m", "x"), 1, 1), 101) == 100
    one.forward(one.register(span("a", "m"), 2, 1), 102)
    assert one.forward(one.register(span("x", "z"), 3, 1), 103) == 101


def test_span_frontier_parts_ahead_wait_for_the_last_and_never_fall() -> None:
    one = Subscription(Frontier(), 0, span("a", "d"), 5)
    ab, bc, cd = (one.register(span(*pair), 1 + i, 1) for i, pair in enumerate(("ab", "bc", "cd")))
    assert one.least == 5
    assert [one.forward(ab, 8), one.forward(cd, 8), one.forward(bc, 6), one.forward(bc, 7)] == [5, 5, 6, 7]
    assert one.forward(ab, 1) == 7, "a smaller ts is no fall-back"
    assert one.forward(bc, 9) == 8


def test_min_max_a_span_without_end_is_split_in_the_middle() -> None:
    one = Subscription(Frontier(), 0, Span(b"", b""), 0)
    assert one.forward(one.register(Span(b"", b""), 1, 1), 1) == 1
    one.end(Span(b"", b""), 1, 1)
    left, right = one.register(Span(b"", b"m"), 1, 2), one.register(Span(b"m", b""), 2, 2)
    assert [one.forward(left, 2), one.forward(right, 2)] == [1, 2]
    one.end(Span(b"", b"m"), 1, 2)
    one.end(Span(b"m", b""), 2, 2)
    assert one.forward(one.register(Span(b"", b""), 2, 3), 3) == 3


def test_span_frontier_disjoint_spans_do_not_hold_each_other() -> None:
    frontier = Frontier()
    first, second = (Subscription(frontier, n, span(*p), 0) for n, p in enumerate(("ab", "ce")))
    assert first.forward(first.register(span("a", "b"), 1, 1), 1) == 1
    assert second.least == 0
    cd, de = second.register(span("c", "d"), 2, 1), second.register(span("d", "e"), 3, 1)
    assert [second.forward(de, 2), second.forward(cd, 1), second.forward(cd, 3)] == [0, 1, 2]
    assert first.least == 1


def test_min_max_with_region_split_merge() -> None:
    one = Subscription(Frontier(), 0, span("a", "f"), 0)
    parts = [span(*pair) for pair in ("ab", "bc", "cd", "de", "ef")]
    marks = [one.register(part, 1 + i, 1) for i, part in enumerate(parts)]
    assert [one.forward(mark, 1) for mark in marks] == [0, 0, 0, 0, 1]
    for region, part in enumerate(parts[:3], 1):
        one.end(part, region, 1)
    assert one.forward(one.register(span("a", "d"), 6, 2), 6) == 1
    for region, part in enumerate(parts[3:], 4):
        one.end(part, region, 1)
    df = one.register(span("d", "f"), 7, 2)
    assert [one.forward(df, ts) for ts in (2, 3, 4)] == [2, 3, 4]
    one.end(span("d", "f"), 7, 2)
    de, ef = one.register(span("d", "e"), 8, 3), one.register(span("e", "f"), 9, 3)
    assert [one.forward(de, 4), one.forward(ef, 4), one.forward(ef, 7), one.forward(de, 5)] == [4, 4, 4, 5]


def test_random_merge_and_split_against_a_ts_for_each_key() -> None:
    random = Random(8616)
    one = Subscription(Frontier(), 0, Span(b"\x00", b"\x40"), 100)
    plain = [100] * 64
    regions = [(0, 64, 1, 1)]  # from, to, id, version
    marks = {regions[0]: one.register(Span(b"\x00", b"\x40"), 1, 1)}

    def bounds(region: tuple[int, int, int, int]) -> Span:
        return Span(bytes([region[0]]), bytes([region[1]]))

    for number in range(2, 400):
        at = random.randrange(len(regions))
        low, high, _, version = regions[at]
        if random.random() < 0.55 and high - low > 1:
            middle = random.randint(low + 1, high - 1)
            old, new = [at], [(low, middle, number, version + 1), (middle, high, 1000 + number, version + 1)]
        elif at + 1 < len(regions):
            _, end, other, other_version = regions[at + 1]
            old, new = [at, at + 1], [(low, end, other, max(version, other_version) + 1)]
        else:
            continue
        for each in old:
            one.end(bounds(regions[each]), *regions[each][2:])
            del marks[regions[each]]
        regions[at : at + len(old)] = new
        for region in new:
            marks[region] = one.register(bounds(region), *region[2:])
            plain[region[0] : region[1]] = [min(plain[region[0] : region[1]])] * (region[1] - region[0])
        region = random.choice(regions)
        ts = random.randint(100, 100 + number)
        plain[region[0] : region[1]] = [max(ts, plain[region[0]])] * (region[1] - region[0])
        assert one.forward(marks[region], ts) == min(plain)


def test_region_id_cache_a_region_that_keeps_its_id_moves_its_own_mark() -> None:
    """Messages for the old range of the region move nothing."""
    one = Subscription(Frontier(), 0, span("a", "c"), 5)
    old = one.register(span("a", "c"), 1, 1)
    one.end(span("a", "c"), 1, 1)
    left, right = one.register(span("a", "b"), 1, 2), one.register(span("b", "c"), 2, 2)
    assert one.forward(old, 90) == 5, "what is still under way for the old range moves nothing"
    assert [one.forward(left, 20), one.forward(right, 30)] == [5, 20]


# --- what comes on a stream --------------------------------------------------------------------------


def test_handle_resolved_ts_a_large_batch_is_applied_whole_without_zero() -> None:
    """Upstream cuts it into slices of 1024 regions."""
    regions = list(range(1, 3001))
    matcher = BlockMatcher()
    for region in regions:
        matcher.register(7, region, 0, region, Span(b"a", b"z"), 10)
    matcher.feed([rows_message(region, 7, [Row(LogType.INITIALIZED)]) for region in regions])
    assert matcher.feed([resolved_message(regions, 7, 0)]).marks.tolist() == []
    matched = matcher.feed([resolved_message(regions, 7, 20)])
    assert sorted(matched.marks.tolist()) == regions
    assert set(matched.resolved.tolist()) == {20}


def test_memory_thresholds_a_reader_waits_at_the_bound_and_always_wakes() -> None:
    has_room = threading.Event()
    queue = MessageQueue(Budget(100).join(), has_room.set)
    sent = [bytes([number % 250]) * 30 for number in range(500)]
    held: list[int] = []

    def read() -> None:
        for message in sent:
            has_room.clear()
            if not queue.put([message]):
                held.append(queue._size)
                assert has_room.wait(60)
        queue.close()

    reader = threading.Thread(target=read)
    reader.start()
    eventually(lambda: bool(held), "the bound")
    found: list[bytes] = []
    while messages := queue.take(limit=60):
        found += messages
    reader.join()
    assert found == sent
    assert max(held) <= 100 + 30
    assert queue.emptied > 0
