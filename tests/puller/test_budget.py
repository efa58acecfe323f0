"""Memory of all streams of a process is one budget, whatever the number of stores and of transactions."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.puller.test_puller import eventually, fail
from tests.puller.wire import resolved_message, rows_message
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.model.span import Span
from tidegate.puller.event_feed import MessageQueue
from tidegate.puller.match.block_matcher import BlockMatcher
from tidegate.puller.match.budget import Budget, StreamMemory
from tidegate.puller.match.matched import Matched
from tidegate.puller.match.matcher import LogType, Row
from tidegate.puller.puller import Puller
from tidegate.tikv.server import EmbeddedUpstream

TOTAL = 400_000
SPAN = Span(b"t", b"u")


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3000)), max_size=40),
)
def test_members_within_their_limits_keep_the_total_and_an_equal_share(
    total: int, wishes: list[tuple[int, int]]
) -> None:
    budget = Budget(total)
    shares = [budget.join() for _ in range(8)]
    held = [0] * 8
    for at, wish in wishes:
        limit = shares[at].limit
        assert limit >= total // 8
        held[at] = min(wish, limit)
        shares[at].hold(held[at])
        assert budget.held == sum(held)
    for share, size in zip(shares, held, strict=True):
        share.hold(min(size, share.limit))
    assert budget.held <= total
    for share in shares[1:]:
        share.leave()
        share.leave()
        share.hold(5)
    assert (shares[0].limit, budget.members, budget.held) == (total, 1, min(held[0], budget.held))


class Fed:
    """The matcher of one store's stream, fed as the stream feeds it."""

    def __init__(self, memory: StreamMemory, folder: Path) -> None:
        self.folder = folder
        self.matcher = BlockMatcher(memory, folder)
        self.matcher.register(7, 1, 0, 0, Span(b"a", b"z"), 10)
        self.found: Counter[tuple[int, bytes, int]] = Counter()
        self.feed(rows_message(1, 7, [Row(LogType.INITIALIZED)]))

    def feed(self, *messages: bytes) -> None:
        self._take(self.matcher.feed(messages))
        self.matcher.relieve()
        for matched in self.matcher.join():
            self._take(matched)

    def _take(self, matched: Matched) -> None:
        assert all(note.happening == "initialized" for note in matched.notes)
        for _, block in matched.blocks:
            commits, _, _, keys, values, _ = (column.to_pylist() for column in block.columns)
            self.found.update(zip(commits, keys, map(len, values), strict=True))

    @property
    def spilled(self) -> bool:
        return any(self.folder.iterdir())


def prewrites(first: int, last: int) -> bytes:
    return rows_message(1, 7, [Row(1, 30, 0, 1, b"k%05d" % i, b"v" * 5000) for i in range(first, last)])


def test_streams_of_many_stores_share_one_budget_of_open_transactions(tmp_path: Path) -> None:
    memory = StreamMemory(TOTAL)
    streams = [Fed(memory, tmp_path / str(number)) for number in range(4)]
    streams[0].feed(prewrites(0, 60))
    assert not streams[0].spilled, "a stream may hold what the others leave"
    assert streams[0].matcher.open_bytes > 300_000
    for stream in streams[1:]:
        stream.feed(prewrites(0, 15))
        assert not stream.spilled, "and its equal share whatever the others hold"
    streams[0].feed()
    assert streams[0].spilled, "it gives back what is more than its share"
    for first in range(15, 200, 20):
        for stream in streams[1:]:
            stream.feed(prewrites(first, first + 20))
        for stream in streams:
            stream.feed()
        assert sum(stream.matcher.open_bytes for stream in streams) <= TOTAL
        assert memory.open_rows.held <= TOTAL
    assert all(stream.spilled for stream in streams)
    for stream in streams:
        rows = 60 if stream is streams[0] else 215
        stream.feed(rows_message(1, 7, [Row(2, 30, 40, 1, b"k%05d" % i) for i in range(rows)]))
        stream.feed(resolved_message([1], 7, 50))
        assert stream.found == Counter((40, b"k%05d" % i, 5000) for i in range(rows))
        stream.matcher.close()
    assert (memory.open_rows.members, memory.open_rows.held) == (0, 0)


def test_without_a_folder_what_is_beyond_the_shared_budget_is_forgotten() -> None:
    memory = StreamMemory(TOTAL)
    matchers = [BlockMatcher(memory) for _ in range(3)]
    for matcher in matchers:
        matcher.register(7, 1, 0, 0, Span(b"a", b"z"), 10)
        matcher.feed([rows_message(1, 7, [Row(LogType.INITIALIZED)]), prewrites(0, 70)])
        matcher.relieve()
    for matcher in matchers:
        matcher.relieve()
    assert sum(matcher.open_bytes for matcher in matchers) <= TOTAL


def test_an_arena_that_was_replaced_is_freed_before_more_is_taken(tmp_path: Path) -> None:
    """Or a spill, which comes when there is too little memory, takes three times what is open."""
    stream = Fed(StreamMemory(TOTAL), tmp_path / "spill")
    stream.matcher.feed([prewrites(0, 200)])
    before = weakref.ref(stream.matcher._open_rows.arena)
    stream.matcher.relieve()
    assert stream.spilled
    assert before() is None


def test_queues_share_one_budget_and_an_empty_one_always_takes_a_message() -> None:
    budget = Budget(1000)
    found_room: list[str] = []
    full = MessageQueue(budget.join(), lambda: found_room.append("full"))
    other = MessageQueue(budget.join(), lambda: found_room.append("other"))
    for _ in range(10):
        assert full.put([b"m" * 100]), "all of it is left"
    assert other.put([b"m" * 400]), "its share is, though the other queue has all"
    assert not other.put([b"m" * 200]), "more than its share, and the other queue has the rest"
    assert budget.held == 1600
    assert full.take(limit=900) == [b"m" * 100] * 9
    assert found_room == [], "nobody was sent away"
    assert other.take(limit=1) == [b"m" * 400]
    assert found_room == ["other"]
    assert other.take() == [b"m" * 200]
    assert found_room == ["other"], "once"
    assert other.put([b"last"])
    assert budget.held == 104
    full.close()
    other.close()
    assert (budget.held, budget.members) == (0, 0)
    assert other.take() == [b"last"]


@pytest.mark.integration
def test_one_budget_serves_all_stores_and_lost_streams_return_their_share(
    tmp_path: Path,
) -> None:
    memory, spill = StreamMemory(TOTAL), tmp_path / "spill"
    with (
        EmbeddedUpstream(tmp_path / "upstream", regions=6, stores=3) as upstream,
        PdClient(upstream.pd_addr) as pd,
    ):
        store = EventStore(tmp_path / "events")
        puller = Puller(pd, store, spill=spill, memory=memory, on_failure=fail)
        puller.watch(SPAN, pd.tso())
        changes = {b"t" + bytes([i % 256]) + b"%d" % i: b"value" * 1000 for i in range(300)}
        large = TwoPhase(pd, pd.tso(), min(changes), ttl_ms=3_600_000)
        large.prewrite([Mutation(PUT, *change) for change in changes.items()], Backoff(20_000))
        eventually(lambda: sum(s.spilled() != {} for s in puller.streams) > 1, "two spills")
        # A stream is cut only where its store knows of it.
        eventually(lambda: sum(s.messages > 0 for s in puller.streams) == 3, "streams to all stores")
        assert memory.open_rows.members == memory.queued.members == 3
        for _ in range(3):
            seen = set(puller.streams)
            upstream.cut_streams()
            eventually(
                lambda seen=seen: sum(s.messages > 0 for s in set(puller.streams) - seen) == 3, "streams"
            )
            eventually(lambda: memory.open_rows.members == memory.queued.members == 3, "their shares")
        commit_ts = pd.tso()
        large.commit(list(changes), commit_ts, Backoff(20_000))
        eventually(lambda: store.open_span(SPAN).resolved >= commit_ts, "the transaction")
        eventually(lambda: memory.open_rows.held < TOTAL // 10, "its memory")
        assert store.open_span(SPAN).rows_sealed == 300
        puller.close()
        store.close()
        budgets = memory.open_rows, memory.queued
        eventually(lambda: all((one.members, one.held) == (0, 0) for one in budgets), "the end of all shares")


LARGE = """
import sys
from pathlib import Path
from tests.puller.test_budget import Fed, Row, Span, StreamMemory, resolved_message, rows_message
from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore.store import EventStore
from tidegate.puller.match import block_matcher

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) >> 10

block_matcher.warm()
store_kernels.warm()
folder, bound = Path(sys.argv[1]), 16 << 20
store = EventStore(folder / "events", memory_bytes=bound)
span = store.open_span(Span(b"a", b"z"))
span.begin(10)

class Stored(Fed):
    def _take(self, matched):
        for _, block in matched.blocks:
            span.append(block)

stream, before = Stored(StreamMemory(bound), folder / "spill"), peak()
for first in range(0, 160_000, 1000):
    some = range(first, first + 1000)
    stream.feed(rows_message(1, 7, [Row(1, 30, 0, 1, b"k%06d" % i, b"%6d" % i * 166) for i in some]))
for first in range(0, 160_000, 1000):
    some = range(first, first + 1000)
    stream.feed(rows_message(1, 7, [Row(2, 30, 40, 1, b"k%06d" % i) for i in some]))
stream.feed(resolved_message([1], 7, 50))
span.seal(50)
assert span.rows_sealed == sum(s.rows for s in span.manifest.segments) == 160_000
print(peak() - before)
"""


def test_a_transaction_of_ten_times_the_bound_passes_in_bounded_memory(
    tmp_path: Path,
) -> None:
    """160 MB with all its rows open until the commit, into a real event store."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert int(done.stdout) < 130
