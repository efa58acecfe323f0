"""Under a heavy flow the worker waits a little for a whole batch, and otherwise not at all."""

from __future__ import annotations

import threading
import time

import pytest

from tidegate.puller import event_feed
from tidegate.puller.event_feed import BATCH_BYTES, GATHERED_FROM, MessageQueue
from tidegate.puller.match.budget import Budget

LARGE = bytes(GATHERED_FROM)
FOREVER_S = 600.0


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> MessageQueue:
    """One whose wait for a whole batch does not end by itself."""
    monkeypatch.setattr(event_feed, "GATHER_S", FOREVER_S)
    return MessageQueue(Budget(4 * BATCH_BYTES).join(), lambda: None)


def flow(queue: MessageQueue) -> None:
    """The last batch was large."""
    queue.put([LARGE])
    assert queue.take() == [LARGE]


def test_after_a_large_batch_the_next_one_is_gathered(queue: MessageQueue) -> None:
    flow(queue)
    taken: list[list[bytes]] = []
    worker = threading.Thread(target=lambda: taken.append([bytes(each) for each in queue.take()]))
    worker.start()
    parts = [bytes([number]) * (BATCH_BYTES // 4) for number in range(4)]
    for part in parts:
        assert taken == []
        assert queue.put([part])
        time.sleep(0.01)
    worker.join(60)
    assert taken == [parts]


def test_after_a_small_batch_nothing_waits(queue: MessageQueue) -> None:
    queue.put([LARGE[:-1]])
    queue.take()
    queue.put([b"one"])
    assert queue.take() == [b"one"]


@pytest.mark.parametrize("how", ["full", "closed", "late"])
def test_the_wait_for_a_whole_batch_ends(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no more can come, no more will come, or its time is over."""
    monkeypatch.setattr(event_feed, "GATHER_S", 0.01 if how == "late" else FOREVER_S)
    queue = MessageQueue(Budget(len(LARGE)).join(), lambda: None)
    flow(queue)
    more = LARGE + b"more" if how == "full" else b"last"
    taken: list[list[bytes]] = []
    worker = threading.Thread(target=lambda: taken.append([bytes(each) for each in queue.take()]))
    worker.start()
    assert queue.put([more]) is not (how == "full")
    if how == "closed":
        queue.close()
    worker.join(60)
    assert taken == [[more]]


def test_a_taker_that_gathers_keeps_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never finds the queue empty, because messages come while it processes a batch."""
    monkeypatch.setattr(event_feed, "GATHER_S", 0.001)
    queue = MessageQueue(Budget(4 * BATCH_BYTES).join(), lambda: None)
    flow(queue)
    before = queue.emptied
    for _ in range(3):
        queue.put([LARGE])
        assert queue.take() == [LARGE]
    assert queue.emptied == before + 3


def test_a_taker_that_leaves_messages_does_not_keep_up() -> None:
    queue = MessageQueue(Budget(4 * BATCH_BYTES).join(), lambda: None)
    queue.put([b"one", b"two", b"three"])
    for left in (b"one", b"two", b"three"):
        assert queue.take(limit=1) == [left]
    assert queue.emptied == 0
