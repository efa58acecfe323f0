"""Marks of a stream that has nothing else to do are raised at once, and never before what came earlier."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.puller.test_puller import eventually
from tests.puller.wire import error_message, resolved_message, rows_message
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.span import Span
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.puller.event_feed import MessageQueue, Stream
from tidegate.puller.match.block_matcher import BlockMatcher, is_mark
from tidegate.puller.match.budget import Budget, StreamMemory
from tidegate.puller.match.matched import Matched
from tidegate.puller.match.matcher import LogType, Row
from tidegate.tidb.memcomparable import encode_bytes

SPAN = Span(b"a", b"z")
REQUEST = 7
KEY = encode_bytes(b"key")
PUT = 1
INITIALIZED = Row(LogType.INITIALIZED)


class Call:
    """A stream's call: what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.asked.append(name)


class Channels:
    """A pool that connects nowhere."""

    def __init__(self) -> None:
        self.call = Call()

    def stream(self, *_: Any) -> Call:
        return self.call


class Receiver:
    """Records a stream's output in order: rows, and marks with the call that brought them."""

    def __init__(self) -> None:
        self.may_wait = False
        self.proceed = threading.Event()
        self.proceed.set()
        self.found: list[tuple[str, list[int], int]] = []
        self.lost_why = ""

    def risen(self, marks: Any, resolved: Any) -> None:
        self._record("risen", marks, resolved)

    def matched(self, stream: Stream, matched: Matched) -> None:
        assert self.proceed.wait(60)
        if matched.changes:
            self.found.append(("rows", [], matched.changes))
        if len(matched.marks):
            self._record("matched", matched.marks, matched.resolved)

    def _record(self, how: str, marks: Any, resolved: Any) -> None:
        self.found.append((how, sorted(marks.tolist()), max(resolved.tolist(), default=0)))

    def held_up(self, *_: Any) -> bool:
        return False

    def lost(self, stream: Stream, error: Any, why: str) -> None:
        self.lost_why = why


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def stream(receiver: Receiver) -> Iterator[Stream]:
    """Regions 1 and 2, scanned, with the marks 101 and 102; the worker waits."""
    made = Stream(1, Channels(), "nowhere:1", 1, receiver)  # type: ignore[arg-type]
    for region in (1, 2):
        made.register(RegionInfo(region, b"", b"", 1, 1, 1, 1), REQUEST, 0, 100 + region, SPAN, 10)
    made.received([rows_message(region, REQUEST, [INITIALIZED]) for region in (1, 2)])
    eventually(lambda: made._queue.is_awaited, "the worker to wait")
    yield made
    receiver.proceed.set()
    made.ended(grpc.StatusCode.OK, "")
    made.join(60)
    assert receiver.lost_why


def committed(ts: int) -> list[Row]:
    return [Row(LogType.COMMITTED, ts - 1, ts, PUT, KEY, b"value")]


def test_a_mark_is_raised_in_the_loop_while_the_worker_waits(stream: Stream, receiver: Receiver) -> None:
    assert stream.received([resolved_message([1, 2], REQUEST, 20), resolved_message([1], REQUEST, 30)])
    assert receiver.found == [("risen", [101, 101, 102], 30)]
    assert stream._queue.is_awaited
    assert stream.messages == 4
    assert stream.received([resolved_message([1], REQUEST, 25), resolved_message([9], REQUEST, 99)])
    assert receiver.found[1:] == [("risen", [], 0)], "a lower ts, and a region of another stream"


def test_a_mark_never_overtakes_rows(stream: Stream, receiver: Receiver) -> None:
    for ts in range(20, 200, 10):
        before = len(receiver.found)
        stream.received([rows_message(1, REQUEST, committed(ts))])
        stream.received([resolved_message([1], REQUEST, ts)])
        eventually(lambda ts=ts: receiver.found[-1:] and receiver.found[-1][2] == ts, "the mark")  # type: ignore[misc]
        assert [what for what, *_ in receiver.found[before:]] in (["rows", "matched"], ["rows", "risen"])
        assert receiver.found[before][2] == 1


def test_messages_are_dropped_as_soon_as_they_are_matched(stream: Stream, receiver: Receiver) -> None:
    # Their memory is then used for the next ones, while the worker waits for room in the event store.
    message = memoryview(rows_message(1, REQUEST, committed(20)))
    held, inside = weakref.ref(message), receiver.matched
    seen: list[bool] = []

    def matched(where: Stream, found: Matched) -> None:
        seen.append(held() is None)
        inside(where, found)

    receiver.matched = matched  # type: ignore[method-assign]
    with stream.matcher._lock:  # the worker does not match before the message has no other owner
        stream.received([message])
        del message
    eventually(lambda: receiver.found, "the row")
    assert seen == [True]


def test_marks_queue_behind_a_worker_that_is_held_up(stream: Stream, receiver: Receiver) -> None:
    receiver.proceed.clear()
    stream.received([rows_message(1, REQUEST, committed(20))])
    for ts in (20, 30):
        stream.received([resolved_message([1], REQUEST, ts)])
    assert receiver.found == []
    receiver.proceed.set()
    eventually(lambda: len(receiver.found) > 1 and receiver.found[-1][2] == 30, "both marks")
    assert receiver.found[0] == ("rows", [], 1)
    assert {what for what, *_ in receiver.found[1:]} == {"matched"}


def test_the_worker_raises_marks_if_its_owner_may_wait_or_one_is_doubted(
    stream: Stream, receiver: Receiver
) -> None:
    receiver.may_wait = True
    stream.received([resolved_message([1], REQUEST, 20)])
    eventually(lambda: receiver.found == [("matched", [101], 20)] and stream._queue.is_awaited, "the mark")
    receiver.may_wait = False
    stream._doubted = {(REQUEST, 2): False}
    stream.received([resolved_message([2], REQUEST, 30)])
    eventually(lambda: receiver.found[1:] == [("matched", [102], 30)], "the mark")


def test_the_loop_does_not_wait_for_a_registration(stream: Stream, receiver: Receiver) -> None:
    with stream.matcher._lock:
        stream.received([resolved_message([1], REQUEST, 20)])
        assert receiver.found == []
    eventually(lambda: receiver.found == [("matched", [101], 20)], "the mark")


def test_a_malformed_mark_ends_the_stream(stream: Stream, receiver: Receiver) -> None:
    stream.received([b"\x12\x02\x0a\x7f"])
    eventually(lambda: "malformed" in receiver.lost_why, "the end")
    assert receiver.found == []


def test_a_full_queue_stops_the_call_and_an_empty_one_resumes_it(receiver: Receiver) -> None:
    channels = Channels()
    made = Stream(1, channels, "nowhere:1", 1, receiver, memory=StreamMemory(1 << 20, 100))  # type: ignore[arg-type]
    receiver.proceed.clear()
    made.register(RegionInfo(1, b"", b"", 1, 1, 1, 1), REQUEST, 0, 101, SPAN, 10)
    assert made.received([rows_message(1, REQUEST, [INITIALIZED])])
    eventually(lambda: not made._queue._messages, "the worker to be held up")
    assert not made.received([rows_message(1, REQUEST, committed(20)) * 20])
    assert "resume" not in channels.call.asked
    receiver.proceed.set()
    eventually(lambda: "resume" in channels.call.asked, "the call to resume")
    made.ended(grpc.StatusCode.UNAVAILABLE, "it went away")
    made.join(60)
    assert receiver.lost_why == "it went away"
    assert channels.call.asked[-1] == "cancel"


def test_a_queue_is_not_awaited_from_the_moment_something_is_put() -> None:
    queue = MessageQueue(Budget(1000).join(), lambda: None)
    taken: list[list[bytes]] = []
    taker = threading.Thread(target=lambda: taken.append(queue.take()))
    taker.start()
    eventually(lambda: queue.is_awaited, "the taker to wait")
    with queue._changed:  # the taker cannot wake up yet
        queue.put([b"m"])
        assert not queue.is_awaited
    taker.join(60)
    assert taken == [[b"m"]]


@given(st.lists(st.tuples(st.lists(st.integers(1, 6), unique=True), st.integers(5, 60)), min_size=1))
def test_marks_alone_rise_as_they_rise_with_rows(marks: list[tuple[list[int], int]]) -> None:
    quick, plain = BlockMatcher(lag=3), BlockMatcher(lag=3)
    for matcher in (quick, plain):
        for region in range(1, 6):
            matcher.register(REQUEST, region, 0, 100 + region, SPAN, 10)
        matcher.feed([rows_message(region, REQUEST, [INITIALIZED]) for region in range(1, 5)])
        matcher.relieve()
    for regions, ts in marks:
        message = resolved_message(regions, REQUEST, ts)
        found, expected = quick.feed_marks([message]), plain.feed([message])
        assert found is not None
        assert [each.tolist() for each in found] == [expected.marks.tolist(), expected.resolved.tolist()]


def test_only_a_batch_of_resolved_ts_alone_is_a_mark() -> None:
    for count in (0, 1, 5, 100, 3000):
        whole = resolved_message(range(1, count + 1), REQUEST, 1 << 60)
        assert is_mark(whole), count
        assert not is_mark(whole + whole)
        assert not is_mark(whole[:-1])
    both = cdcpb.ChangeDataEvent.FromString(resolved_message([1], REQUEST, 20))
    both.events.add(region_id=1, request_id=REQUEST)
    others = [
        b"",
        b"\x12",
        b"\x12" + b"\xff" * 11,
        both.SerializeToString(),
        rows_message(1, REQUEST, [INITIALIZED]),
    ]
    others.append(error_message(1, REQUEST, cdcpb.Error()))
    assert not any(map(is_mark, others))


def test_marks_go_by_feed_while_rows_are_on_disk_or_too_many(tmp_path: Path) -> None:
    memory = StreamMemory(1 << 16)
    matcher = BlockMatcher(memory, tmp_path)
    matcher.register(REQUEST, 1, 0, 101, SPAN, 10)
    matcher.feed([rows_message(1, REQUEST, [INITIALIZED])])
    mark = [resolved_message([1], REQUEST, 20)]
    open_row = Row(LogType.PREWRITE, 30, 0, PUT, KEY, b"v" * (1 << 17))
    matcher.feed([rows_message(1, REQUEST, [open_row])])
    assert matcher.feed_marks(mark) is None, "more is open than may be"
    matcher.relieve()
    assert matcher.feed_marks(mark) is None, "it is on disk"
    matcher.feed([rows_message(1, REQUEST, [Row(LogType.COMMIT, 30, 40, PUT, KEY, b"")])])
    matcher.relieve()
    matcher.feed([resolved_message([1], REQUEST, 50)])
    matcher.relieve()
    assert sum(each.changes for each in matcher.join()) == 1
    assert matcher.feed_marks(mark) is None, "what it holds has not been reported to the others"
    matcher.relieve()
    found = matcher.feed_marks([resolved_message([1], REQUEST, 60)])
    assert found is not None
    assert found[1].tolist() == [60]
    matcher.close()
