"""One EventFeedV2 stream to one store: the only edge of this folder that touches gRPC.

The client's stream loop (`kvclient.stream_loop`), one thread for all streams, puts messages as unparsed bytes
into a queue, which is bounded by the stream's share of the process's `budget`. When the queue is full, the
loop no longer extends the store's HTTP/2 flow-control window, so the store must wait (back-pressure). The
*worker*, a thread of this stream only, takes queued messages (some `BATCH_BYTES` at most), runs the matcher
over them in compiled code and passes the results to its receiver in the order of arrival. When the stream
ends, for whatever reason, the worker first processes all received messages and then calls `lost`, once, as
its last call. While the flow is heavy, the worker waits a little for a whole batch (`GATHER_S`).

If a mark arrives while the worker waits for messages, the loop raises it itself, because waking a thread
costs more, and all stores send marks all the time. The order is preserved, because the worker can receive
nothing meanwhile. If more than raising marks may follow, or the receiver would have to wait, the mark goes to
the worker (`BlockMatcher.feed_marks`, `StreamReceiver.may_wait`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import grpc
import numpy as np
import numpy.typing as npt

from tidegate.disk import DiskFull
from tidegate.errors import DEFECT, Fatal, Retryable, TidegateError
from tidegate.kvclient.channel import ChannelPool
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp, compose
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.proto import metapb_pb2 as metapb
from tidegate.puller.match import spill
from tidegate.puller.match.block_matcher import BlockMatcher
from tidegate.puller.match.budget import Share, StreamMemory
from tidegate.puller.match.matched import Matched, Message, Registration
from tidegate.tidb.memcomparable import encode_bytes

METHOD: Final = "/cdcpb.ChangeData/EventFeedV2"
FEATURES: Final = (("features", "stream-multiplexing"),)
VERSION: Final = "8.5.0"
"""Sent with each request. Below 4.0.8 a store sends resolved ts one by one; below 5.3.0 it does not check the
cluster id."""

RAW_LAG: Final = compose(3000)
"""Subtracted from the resolved ts of raw keys: the resolved ts of a deposed leader may be above timestamps
that the new leader's causal provider still assigns (tikv/migration#193, `resolved-ts-safe-interval`)."""
BATCH_BYTES: Final = 7 << 20
"""The worker takes messages until they have so many bytes. With the last one, usually of 1 MB at most, their
rows seldom need a second block of the store (`MAX_BLOCK_BYTES`), which would cost nearly as much.
"""
GATHERED_FROM: Final = 2 << 20
"""After a batch of at least so many bytes the worker waits until as many as it takes at once have arrived."""
GATHER_S: Final = 0.03
"""The longest that it waits for them. Each batch costs the same few milliseconds in all later stages."""
QUIET_S: Final = 2.0
"""A stream without a change for this long is quiet: it receives only marks, for which no reader waits. While
all streams are quiet, the loop gathers their messages and wakes up less often."""


class StreamReceiver(Protocol):
    """The receiver of a stream's results. Called in the worker's thread, or, where noted, in the loop's."""

    @property
    def may_wait(self) -> bool:
        """Whether marks must go to `matched`, as rows do, because the receiver may have to wait for room."""
        ...

    def risen(self, marks: npt.NDArray[np.int64], resolved: npt.NDArray[np.uint64]) -> None:
        """Marks have risen. Called in the loop's thread, so it must not wait."""
        ...

    def matched(self, stream: Stream, matched: Matched) -> None:
        """Take the results of a batch. An exception ends the stream; Fatal ends the puller."""
        ...

    def held_up(self, stream: Stream, error: DiskFull | None) -> bool:
        """Open transactions do not fit on the disk (`error`), or fit again (None).

        Waits a little. Returns whether the stream retries; False if it should stop.
        """
        ...

    def lost(self, stream: Stream, error: TidegateError | None, why: str) -> None:
        """The stream has ended; the last call. `error` is set if it must not be opened again."""
        ...


class MessageQueue:
    """Messages between the loop and a worker, bounded by their bytes.

    An empty queue always accepts messages, so no stream waits for the queue of another stream.
    """

    def __init__(self, share: Share, on_room: Callable[[], None]) -> None:
        """`on_room` is called in the taker's thread when there is room again after `put` returned False."""
        self._share, self._size, self._closed = share, 0, False
        self._on_room, self._is_full = on_room, False
        self.emptied = 0
        """How often the taker came back and found the queue empty, or had emptied it with its last batch.
        Both show that it keeps up. While it gathers, it hardly ever finds the queue empty.
        """
        self.is_awaited = False
        """Whether the taker waits and the queue is empty: all earlier messages have been processed."""
        self._messages: deque[Message] = deque()
        self._last = 0
        """The bytes of the last batch."""
        self._took_all = False
        """Whether the last batch left no message in the queue."""
        self._needed = 0
        """The taker sleeps until the queue has so many bytes."""
        self._changed = threading.Condition()

    def put(self, messages: Sequence[Message]) -> bool:
        """Add messages, whatever their size. False: the queue is over its limit; wait for `on_room`."""
        with self._changed:
            self._messages.extend(messages)
            # Cleared here and not when the taker wakes up, because a mark must not overtake these messages.
            self.is_awaited = False
            self._size += sum(map(len, messages))
            self._share.hold(self._size)
            self._is_full = self._size > self._share.limit
            if self._is_full or self._size >= self._needed:
                self._changed.notify()
            return not self._is_full

    def take(self, limit: int = BATCH_BYTES) -> list[Message]:
        """Take up to about `limit` bytes, at least one message; waits for it. Empty: closed and drained."""
        with self._changed:
            self.is_awaited = not self._messages
            if self.is_awaited or self._took_all:
                self.emptied += 1
            while not self._messages and not self._closed:
                self._changed.wait()
            self.is_awaited = False
            if self._last >= GATHERED_FROM:
                self._gather(limit)
            taken, size = [], 0
            while self._messages and size < limit:
                taken.append(self._messages.popleft())
                size += len(taken[-1])
            self._size, self._last, self._took_all = self._size - size, size, not self._messages
            self._share.hold(self._size)
            # Only after `put` returned False: otherwise each batch would wake the loop for nothing.
            has_room = self._is_full and self._size <= self._share.limit
            self._is_full = self._is_full and not has_room
        # Outside the lock, because it posts to the loop, whose thread may wait for this lock in `put`.
        if has_room:
            self._on_room()
        return taken

    def _gather(self, limit: int) -> None:
        self._needed = limit
        self._changed.wait_for(lambda: self._closed or self._is_full or self._size >= limit, GATHER_S)
        self._needed = 0

    def close(self) -> None:
        """No more messages will be put; those in the queue can still be taken."""
        with self._changed:
            self._closed = True
            self._share.leave()
            self._changed.notify_all()


class Stream:
    """A stream to one store, with all registrations at it."""

    def __init__(
        self,
        store_id: int,
        channels: ChannelPool,
        address: str,
        cluster_id: int,
        receiver: StreamReceiver,
        *,
        raw: bool = False,
        trust_empty: bool = False,
        memory: StreamMemory | None = None,
        spill_to: Path | None = None,
    ) -> None:
        """Open the stream to a store's address and start its worker; `lost` reports a failed connection.

        `raw`: the keys are RawKV's. `trust_empty`: see `Matcher`. `memory`: the memory that the streams of
        this process share. `spill_to`: this stream's own folder for open transactions that do not fit in it.
        """
        self.store_id, self._cluster_id, self._receiver = store_id, cluster_id, receiver
        self._spill = spill_to
        self._kv_api = cdcpb.ChangeDataRequest.RawKV if raw else cdcpb.ChangeDataRequest.TiDB
        self.messages = self.bytes = self.rows = 0
        self._emptied = 0
        self._doubted: dict[tuple[int, int], bool] = {}
        self._why = ""
        memory = memory or StreamMemory()
        # docs/guarantees.md#changefeeds-of-keys-keep-the-same-promises: see `RAW_LAG`.
        self.matcher = BlockMatcher(memory, spill_to, RAW_LAG if raw else 0, trust_empty=trust_empty)
        # A lambda, because the call does not exist yet. The queue calls it only after messages came.
        self._queue = MessageQueue(memory.queued.join(), lambda: self._call.resume())
        self._call = channels.stream(address, METHOD, FEATURES, self)
        self._worker = threading.Thread(target=self._work, name=f"feed-{store_id}-work", daemon=True)
        self._worker.start()

    def register(
        self,
        region: RegionInfo,
        request_id: int,
        span: int,
        mark: int,
        bounds: Span,
        checkpoint: Timestamp,
        *,
        records: bool = False,
    ) -> Registration:
        """Request a region's changes in `bounds` above `checkpoint`. `records`: only of records."""
        # Before the request is sent: the store may answer at once, and events of an unknown registration are
        # dropped.
        registration = self.matcher.register(
            request_id, region.id, span, mark, bounds, checkpoint, records=records
        )
        self._send(
            cdcpb.ChangeDataRequest(
                header=self._header(),
                region_id=region.id,
                region_epoch=metapb.RegionEpoch(version=region.epoch_version, conf_ver=region.conf_ver),
                checkpoint_ts=checkpoint,
                start_key=encode_bytes(bounds.start) if bounds.start else b"",
                end_key=encode_bytes(bounds.end) if bounds.end else b"",
                request_id=request_id,
                # TiKV reads old values only for a registration that asks for them (tikv
                # `components/cdc/src/delegate.rs`).
                extra_op=kvrpcpb.ReadOldValue,
                register=cdcpb.ChangeDataRequest.Register(),
                kv_api=self._kv_api,
            )
        )
        return registration

    def deregister(self, request_id: int, region_id: int = 0) -> None:
        """Ask the store to end one registration, or, if `region_id` is 0, all with this request id."""
        self._send(
            cdcpb.ChangeDataRequest(
                header=self._header(),
                region_id=region_id,
                request_id=request_id,
                deregister=cdcpb.ChangeDataRequest.Deregister(),
            )
        )

    def doubt(self, registrations: Collection[Registration]) -> None:
        """From now on record whether messages arrive for these registrations (`receives`), and no others.

        While there are any, every message is parsed a second time, so pass only registrations that seem
        silent.
        """
        asked = [(each.request_id, each.region_id) for each in registrations]
        # A new dictionary instead of changes, because the worker iterates over messages with the old one in
        # another thread.
        self._doubted = {pair: self._doubted.get(pair, False) for pair in asked}

    def receives(self, registration: Registration) -> bool:
        """Whether a message arrived for a doubted registration since the last call."""
        pair = registration.request_id, registration.region_id
        received = self._doubted.get(pair, False)
        if received:
            self._doubted[pair] = False
        return received

    def keeps_up(self) -> bool:
        """Whether since the last call the worker has processed all that had been received at some moment.

        If not, messages of a registration that seems silent may still be in the queue or in HTTP/2's window.
        """
        before, self._emptied = self._emptied, self._queue.emptied
        return self._queue.is_awaited or self._emptied > before

    def spilled(self) -> dict[int, int]:
        """The bytes of open transactions on disk, by the number of their registration."""
        return {} if self._spill is None else spill.bytes_by_registration(self._spill)

    def close(self) -> None:
        """End the stream; the worker then calls `lost`, unless it already has."""
        self._call.cancel()

    def join(self, timeout_s: float) -> None:
        """Wait for the worker to end."""
        self._worker.join(timeout_s)

    def _send(self, request: cdcpb.ChangeDataRequest) -> None:
        self._call.send(request.SerializeToString())

    def _header(self) -> cdcpb.Header:
        return cdcpb.Header(cluster_id=self._cluster_id, ticdc_version=VERSION)

    # --- called by the loop, in its thread ---------------------------------------------------------------

    def received(self, messages: list[Message]) -> bool:
        """Raise marks at once if only marks arrived and the worker is idle; otherwise queue the messages."""
        self.messages += len(messages)
        self.bytes += sum(map(len, messages))
        # `is_awaited` is read without the lock: while it is true, only a `put` in this thread makes it
        # false.
        if self._queue.is_awaited and not self._doubted and not self._receiver.may_wait:
            with suppress(Retryable):  # a malformed message: the worker finds it too, and ends the stream
                risen = self.matcher.feed_marks(messages)
                if risen is not None:
                    self._receiver.risen(*risen)
                    return True
        return self._queue.put(messages)

    def ended(self, code: grpc.StatusCode, details: str) -> None:
        """The call has ended: the worker processes what was received and then reports the stream as lost."""
        why = details
        if code is grpc.StatusCode.UNIMPLEMENTED:
            # Not Fatal, which would end all spans: another program may use this address by now, and PD will
            # name the store's new address.
            why = f"what answers at its address has no {METHOD}, as TiKV has since 7.5: {why}"
        self._why = self._why or ("the store ended the stream" if code is grpc.StatusCode.OK else why)
        self._queue.close()

    # --- the worker --------------------------------------------------------------------------------------

    def _work(self) -> None:
        error: TidegateError | None = None
        self._call.hurry(QUIET_S)
        try:
            while messages := self._queue.take():
                if self._doubted:
                    self._look_for_doubted(messages)
                matched = self.matcher.feed(messages)
                self.rows += matched.changes
                if matched.rows or matched.changes:
                    self._call.hurry(QUIET_S)
                # The changes were copied. While this thread waits, the messages' memory is used for the next.
                del messages
                self._receiver.matched(self, matched)
                self._relieve()
        except TidegateError as raised:
            self._why, error = raised.render(), raised if isinstance(raised, Fatal) else None
        except Exception as raised:  # a defect must stop the puller with its reason, not hang it
            where = f"store {self.store_id}"
            error = Fatal("the change feed's worker failed", where=where, why=repr(raised), fix=DEFECT)
        # First the call, so that no more messages come; `lost` last, because the receiver may open a new
        # stream at once.
        self._call.cancel()
        self._queue.close()
        self.matcher.close()
        self._receiver.lost(self, error, self._why)

    def _look_for_doubted(self, messages: Sequence[Message]) -> None:
        doubted = self._doubted
        for message in messages:
            for event in cdcpb.ChangeDataEvent.FromString(bytes(message)).events:
                if (event.request_id, event.region_id) in doubted:
                    doubted[event.request_id, event.region_id] = True

    def _relieve(self) -> None:
        """Spill open transactions beyond the memory bound, and pass on spilled rows whose commit has arrived.

        While the disk is full, the stream waits here.
        """
        held_up = False
        while True:
            try:
                # Before `join`: a registration that is due may need the space that this frees.
                self.matcher.relieve()
                for matched in self.matcher.join():
                    self.rows += matched.changes
                    self._receiver.matched(self, matched)
            except DiskFull as error:
                held_up = True
                if not self._receiver.held_up(self, error):
                    return
                continue
            if held_up:
                self._receiver.held_up(self, None)
            return


OpenStream = Callable[[int, StreamReceiver], Stream]
"""Opens a stream to a store; raises Retryable if PD does not know the store."""
