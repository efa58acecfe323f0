"""The queue of one connection: memory quota, order, batching. Events are in their wire form (`wire`).

Events of a connection are sent in the order they were put. Scanned events wait for room, so a slow client
slows down only its own scans. Observed events cannot wait, because they would delay all regions; if an event
does not fit the quota, its subscription fails with `Congested`, and the client registers again later.
Resolved marks that do not fit are dropped, because the next tick repeats them. No event of a subscription
follows its error, because putting and failing check the same flag under the same mutex.

All channels of a store share a `Budget`. When it is used up, live events are refused as if the channel's own
quota were used up, and each channel with scans has at most one event waiting.

If a client reads nothing, its events keep their memory, and its scans hold threads that other scans need.
`is_stuck` detects this, and `cancel` ends the connection (TiKV's watchdog of a stream, cdc/src/service.rs).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from tidegate.tikv.budget import Budget

QUOTA_BYTES: Final = 256 << 20
"""The most bytes of events of one connection that wait to be sent; observed events beyond it are refused."""
SCAN_BYTES_MAX: Final = 4 << 20
"""Scans put no events while more bytes than this wait."""
MESSAGE_BYTES_MAX: Final = 6 << 20
DRAIN_MAX: Final = 64
REQUESTS_MAX: Final = 1024
"""The most requests of one connection that wait for the endpoint."""
ERRORS_MAX: Final = 4096
"""The most refusals that wait to be sent; beyond it the client's requests are not read."""
UNREAD_BYTES_MAX: Final = 1 << 30
"""The most bytes that wait to be sent on all connections of a store together."""
FULL: Final = 0.999
"""From this share of its quota on, a channel counts as full."""
EVENT_OVERHEAD: Final = 64
"""The bytes charged for each item in addition to its rows."""


class Subscription:
    """The channel's view of a downstream: whether it may still send."""

    __slots__ = ("stopped",)

    def __init__(self) -> None:
        self.stopped = False


class _Item(NamedTuple):
    """An event in its wire form (`wire.event`), or a message that must be sent alone."""

    data: bytes
    size: int
    alone: bool
    is_error: bool = False
    is_mark: bool = False


class Channel:
    """A connection's queue: the endpoint and scans put, the stream's thread takes. Thread-safe."""

    def __init__(
        self,
        quota_bytes: int = QUOTA_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
        budget: Budget | None = None,
    ) -> None:
        self._quota = quota_bytes
        self._budget = budget or Budget(UNREAD_BYTES_MAX)
        self._monotonic = monotonic
        self._sent_at = monotonic()
        self._scans_waiting = 0
        self._is_refusing = False
        self.failure = ""
        """Why the channel was cancelled."""
        self._items: deque[_Item] = deque()
        self._bytes = 0
        self._closed = False
        self._requests = self._errors = self._marks = 0
        self._changed = threading.Condition()

    @property
    def queued_bytes(self) -> int:
        """The bytes that wait to be sent."""
        return self._bytes

    @property
    def has_marks(self) -> bool:
        """Whether resolved marks wait to be sent."""
        return self._marks > 0

    def put_observed(self, of: Subscription, event: bytes) -> bool:
        """Queue a live event; False if it does not fit the quota."""
        size = len(event) + EVENT_OVERHEAD
        with self._changed:
            if of.stopped or self._closed:
                # It is dropped, and that is no lack of room.
                return True
            if self._bytes + size > self._quota or not self._budget.has_room(size):
                self._is_refusing = True
                return False
            self._push(event, size)
            return True

    def put_scanned(self, of: Subscription, event: bytes) -> bool:
        """Queue an event of a scan, waiting for room; False if the subscription ended meanwhile."""
        size = len(event) + EVENT_OVERHEAD
        with self._changed:
            # Counted, because a client that does not read while scans wait is stuck, even if its quota is not
            # used up.
            self._scans_waiting += 1
            while self._holds_up_scans() and not (of.stopped or self._closed):
                self._changed.wait()
            self._scans_waiting -= 1
            if of.stopped or self._closed:
                return False
            self._push(event, size)
            return True

    def _holds_up_scans(self) -> bool:
        # If the budget has no room, the scan waits until this channel is empty: only its own client's reading
        # wakes it up.
        return self._bytes > SCAN_BYTES_MAX or (self._bytes > 0 and not self._budget.has_room())

    def put_resolved(self, mark: bytes, alone: bool = True) -> None:
        """Queue a resolved mark, unless the quota is used up; `alone`: it is a whole message."""
        with self._changed:
            size = len(mark) + EVENT_OVERHEAD
            # A mark may be dropped, because a later one says more.
            if not self._closed and self._bytes + size <= self._quota and self._budget.has_room(size):
                self._marks += 1
                self._push(mark, size, alone, is_mark=True)

    def begin_request(self) -> bool:
        """Count a request that arrived. Waits while too many requests of the client are being processed, or
        while it does not read its errors. False if the channel is closed.
        """
        with self._changed:
            while (self._requests >= REQUESTS_MAX or self._errors >= ERRORS_MAX) and not self._closed:
                self._changed.wait()
            self._requests += 1
            return not self._closed

    def end_request(self) -> None:
        """A request has been processed."""
        with self._changed:
            self._requests -= 1
            self._changed.notify_all()

    def put_error(self, event: bytes) -> None:
        """Queue the error of a request that never became a subscription."""
        with self._changed:
            if not self._closed:
                self._errors += 1
                self._push(event, EVENT_OVERHEAD, is_error=True)

    def fail(self, of: Subscription, event: bytes | None) -> None:
        """End a subscription; `event` is its last one."""
        with self._changed:
            if not of.stopped:
                of.stopped = True
                if event is not None and not self._closed:
                    # Whatever the quota says: a client that does not get this error would wait for a region
                    # that sends nothing.
                    self._push(event, EVENT_OVERHEAD)
            self._changed.notify_all()

    def close(self) -> None:
        """Drop the waiting events; `take` returns None, later puts do nothing."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._marks = 0
            self._budget.add(-self._bytes)
            self._bytes = 0
            self._changed.notify_all()

    def sent(self) -> None:
        """A message was sent to the client."""
        self._sent_at = self._monotonic()
        self._is_refusing = False

    def is_stuck(self, idle_s: float) -> bool:
        """Whether nothing was sent for `idle_s` seconds, and live or scanned events have no room.

        If the store's budget has no room, every channel with unread events counts as stuck, because other
        channels wait for its memory.
        """
        if self._monotonic() - self._sent_at < idle_s:
            return False
        with self._changed:
            if self._bytes > 0 and not self._budget.has_room(EVENT_OVERHEAD):
                return True
            is_full = self._is_refusing or self._bytes >= FULL * self._quota
            return is_full or (self._scans_waiting > 0 and self._bytes > SCAN_BYTES_MAX)

    def cancel(self, why: str) -> None:
        """Close the channel; the client gets the reason when it reads again."""
        self.failure = why
        self.close()

    def take(self) -> list[bytes] | None:
        """Wait for messages to the client, and return them serialized; None if the channel is closed."""
        with self._changed:
            while not self._items and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            # The time in which there was nothing to send is no silence of the client (`is_stuck`).
            self._sent_at = self._monotonic()
            taken = [self._items.popleft() for _ in range(min(len(self._items), DRAIN_MAX))]
            size = sum(item.size for item in taken)
            self._bytes -= size
            self._budget.add(-size)
            self._errors -= sum(item.is_error for item in taken)
            self._marks -= sum(item.is_mark for item in taken)
            # Wakes the scans that wait for room, and requests that wait for errors to be read.
            self._changed.notify_all()
        return _pack(taken)

    def _push(
        self, data: bytes, size: int, alone: bool = False, is_error: bool = False, is_mark: bool = False
    ) -> None:
        self._items.append(_Item(data, size, alone, is_error, is_mark))
        self._bytes += size
        self._budget.add(size)
        self._changed.notify_all()


def _pack(items: list[_Item]) -> list[bytes]:
    """Combine events into messages of up to 6 MiB; a resolved mark is always alone."""
    messages: list[bytes] = []
    together: list[bytes] = []
    room = 0
    for data, size, alone, *_ in items:
        if together and (alone or size > room):
            messages.append(b"".join(together))
            together = []
        if alone:
            messages.append(data)
            continue
        if not together:
            room = MESSAGE_BYTES_MAX
        together.append(data)
        room -= size
    if together:
        messages.append(b"".join(together))
    return messages
