"""One EventFeedV2 stream to one store: the only edge of this folder that touches gRPC.

Two threads a stream. The *reader* takes messages from gRPC as bytes, unparsed, into a queue bounded by the
stream's share of the process's `budget`; when it is full the reader stops, HTTP/2 flow control closes the
window, and the store feels the back-pressure. The *worker* takes all that is there (at most `BATCH_BYTES`),
runs the matcher over it in compiled code and hands the result to its owner in the order of arrival. When the
stream ends, whatever the reason and whether or not the reader sees it (`at_end`), the worker first finishes
what was received and then calls `lost`, once, last.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from tidegate.disk import DiskFull
from tidegate.errors import Fatal, TidegateError
from tidegate.kvclient.channel import Requests, at_end, beginning
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp, compose
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb
from tidegate.proto import metapb_pb2 as metapb
from tidegate.puller.match import spill
from tidegate.puller.match.block_matcher import BlockMatcher
from tidegate.puller.match.budget import Share, StreamMemory
from tidegate.puller.match.matched import Matched, Registration
from tidegate.tidb.memcomparable import encode_bytes

METHOD: Final = "/cdcpb.ChangeData/EventFeedV2"
FEATURES: Final = (("features", "stream-multiplexing"),)
VERSION: Final = "8.5.0"
"""Sent with the first request: below 4.0.8 a store sends resolved ts one by one, below 5.3.0 it does not
check the cluster id."""

RAW_LAG: Final = compose(3000)
"""Taken off the resolved ts of raw keys: a deposed leader's may lie above timestamps that the new leader's
causal provider still hands out (tikv/migration#193, `resolved-ts-safe-interval`)."""
BATCH_BYTES: Final = 8 << 20
QUIET_S: Final = 2.0
"""After so long without a change a stream is quiet: only marks come, which nobody waits for."""
GATHER_S: Final = 0.01
"""Then a store's marks, a message for each request id, are gathered for so long and worked off together."""


class Owner(Protocol):
    """Who listens to a stream. Called in the worker's thread."""

    def matched(self, stream: Stream, matched: Matched) -> None:
        """A batch came. An exception ends the stream; Fatal ends the puller."""
        ...

    def held_up(self, stream: Stream, error: DiskFull | None) -> bool:
        """Open transactions do not fit on the disk, or (None) do again. Waits a little; False: give up."""
        ...

    def lost(self, stream: Stream, error: TidegateError | None, why: str) -> None:
        """The stream is over; the last call. `error` is set when it must not be opened again."""
        ...


class MessageQueue:
    """Messages between reader and worker, bounded by their bytes.

    An empty queue always takes a message: so nobody waits for the queue of another stream.
    """

    def __init__(self, share: Share) -> None:
        self._share, self._size, self._closed = share, 0, False
        self.emptied = 0
        """How often its taker came and found nothing: that it keeps up."""
        self.is_awaited = False
        """Whether its taker waits for a message now."""
        self._messages: deque[bytes] = deque()
        self._changed = threading.Condition()

    def put(self, message: bytes) -> None:
        """Add one; waits while the queue is over its limit, unless it is closed."""
        with self._changed:
            while self._size > self._share.limit and not self._closed:
                self._changed.wait()
            self._messages.append(message)
            self._size += len(message)
            self._share.hold(self._size)
            self._changed.notify_all()

    def take(self, limit: int = BATCH_BYTES, gather_s: float = 0.0) -> list[bytes]:
        """At least one message, up to about `limit` bytes; waits for the first, and then `gather_s` for
        others. Empty: closed and drained.
        """
        self._await_first()
        if gather_s:
            time.sleep(gather_s)  # without the lock: putting does not wake anybody then
        with self._changed:
            taken, size = [], 0
            while self._messages and size < limit:
                taken.append(self._messages.popleft())
                size += len(taken[-1])
            self._size -= size
            self._share.hold(self._size)
            self._changed.notify_all()
            return taken

    def _await_first(self) -> None:
        with self._changed:
            if not self._messages:
                self.emptied, self.is_awaited = self.emptied + 1, True
            while not self._messages and not self._closed:
                self._changed.wait()
            self.is_awaited = False

    def close(self) -> None:
        """No more will come; what is there may be taken still."""
        with self._changed:
            self._closed = True
            self._share.leave()
            self._changed.notify_all()


class Stream:
    """All registrations at one store."""

    def __init__(
        self,
        store_id: int,
        channel: grpc.Channel,
        cluster_id: int,
        owner: Owner,
        *,
        raw: bool = False,
        trust_empty: bool = False,
        memory: StreamMemory | None = None,
        spill_to: Path | None = None,
    ) -> None:
        """Open the stream and start its threads; failures to connect arrive as `lost`. Raises Retryable where
        the channel is closed.

        `raw`: of RawKV; `trust_empty`: see `Matcher`. `memory`: what the process's streams share;
        `spill_to`: a folder of its own for open transactions beyond that.
        """
        self.store_id, self._cluster_id, self._owner = store_id, cluster_id, owner
        self._spill = spill_to
        self._kv_api = cdcpb.ChangeDataRequest.RawKV if raw else cdcpb.ChangeDataRequest.TiDB
        self.messages = self.bytes = self.rows = 0
        self._requests = Requests()
        self._emptied = 0
        self._doubted: dict[tuple[int, int], bool] = {}
        self._why = ""
        call = channel.stream_stream(
            METHOD, request_serializer=cdcpb.ChangeDataRequest.SerializeToString, response_deserializer=None
        )
        with beginning(f"store {store_id}"):
            self._call = call(self._requests, metadata=FEATURES)
        memory = memory or StreamMemory()
        self.matcher = BlockMatcher(memory, spill_to, RAW_LAG if raw else 0, trust_empty=trust_empty)
        self._queue = MessageQueue(memory.queued.join())
        name = f"feed-{store_id}"
        self._threads = [
            threading.Thread(target=self._read, name=f"{name}-read", daemon=True),
            threading.Thread(target=self._work, name=f"{name}-work", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        at_end(self._call, self._ended)

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
        """Ask for the changes of `bounds` in a region above `checkpoint`. `records`: of records only."""
        registration = self.matcher.register(
            request_id, region.id, span, mark, bounds, checkpoint, records=records
        )
        self._requests.put(
            cdcpb.ChangeDataRequest(
                header=self._header(),
                region_id=region.id,
                region_epoch=metapb.RegionEpoch(version=region.epoch_version, conf_ver=region.conf_ver),
                checkpoint_ts=checkpoint,
                start_key=encode_bytes(bounds.start) if bounds.start else b"",
                end_key=encode_bytes(bounds.end) if bounds.end else b"",
                request_id=request_id,
                extra_op=kvrpcpb.ReadOldValue,
                register=cdcpb.ChangeDataRequest.Register(),
                kv_api=self._kv_api,
            )
        )
        return registration

    def deregister(self, request_id: int, region_id: int = 0) -> None:
        """Ask the store to forget one registration, or with region 0 all of a request id."""
        self._requests.put(
            cdcpb.ChangeDataRequest(
                header=self._header(),
                region_id=region_id,
                request_id=request_id,
                deregister=cdcpb.ChangeDataRequest.Deregister(),
            )
        )

    def doubt(self, registrations: Collection[Registration]) -> None:
        """Find out whether anything comes for these from now on (`hears`), and for no others.

        While there are any every message is parsed once more, so let there be some only when in doubt.
        """
        asked = [(each.request_id, each.region_id) for each in registrations]
        self._doubted = {pair: self._doubted.get(pair, False) for pair in asked}

    def receives(self, registration: Registration) -> bool:
        """Whether anything came for a doubted registration since this was last asked."""
        pair = registration.request_id, registration.region_id
        received = self._doubted.get(pair, False)
        if received:
            self._doubted[pair] = False
        return received

    def keeps_up(self) -> bool:
        """Whether all that came has been worked off at some time since this was last asked.

        If not, what seems silent may lie in the queue, or in gRPC's window.
        """
        before, self._emptied = self._emptied, self._queue.emptied
        return self._queue.is_awaited or self._emptied > before

    def spilled(self) -> dict[int, int]:
        """Bytes on disk of open transactions, by the number of their registration."""
        return {} if self._spill is None else spill.bytes_by_registration(self._spill)

    def close(self) -> None:
        """End the stream; `lost` follows from the worker unless it was called before."""
        self._requests.end()
        self._call.cancel()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end."""
        for thread in self._threads:
            thread.join(timeout_s)
        self._requests.join(timeout_s)

    def _header(self) -> Any:
        return cdcpb.Header(cluster_id=self._cluster_id, ticdc_version=VERSION)

    def _ended(self) -> None:
        code, why = self._call.code(), str(self._call.details())
        if code is grpc.StatusCode.UNIMPLEMENTED:
            # Nothing to end all spans for: it may be another program's address by now, and PD knows.
            why = f"what answers at its address has no {METHOD}, as TiKV has since 7.5: {why}"
        self._why = self._why or ("the store ended the stream" if code is grpc.StatusCode.OK else why)
        self._queue.close()

    def _read(self) -> None:
        try:
            for message in self._call:
                self.messages += 1
                self.bytes += len(message)
                self._queue.put(message)
        except grpc.RpcError as error:
            error.__traceback__ = None  # the error is the call itself, which would refer to itself
        except Exception as error:  # want of memory, a defect: the stream must end, not fall silent
            self._why = f"its reader failed: {error!r}"
            self._call.cancel()

    def _work(self) -> None:
        error: TidegateError | None = None
        busy_until = time.monotonic() + QUIET_S
        try:
            while messages := self._queue.take(gather_s=GATHER_S if time.monotonic() > busy_until else 0.0):
                if self._doubted:
                    self._look_for_doubted(messages)
                matched = self.matcher.feed(messages)
                self.rows += matched.changes
                if matched.rows or matched.changes:
                    busy_until = time.monotonic() + QUIET_S
                self._owner.matched(self, matched)
                self._settle()
        except TidegateError as raised:
            self._why, error = raised.render(), raised if isinstance(raised, Fatal) else None
        except Exception as raised:  # a defect must stop the puller with its reason, not hang it
            error = Fatal("the change feed's worker failed", where=f"store {self.store_id}", why=repr(raised))
        self._call.cancel()
        self._requests.end()
        self._queue.close()
        self.matcher.close()
        self._owner.lost(self, error, self._why)

    def _look_for_doubted(self, messages: Sequence[bytes]) -> None:
        doubted = self._doubted
        for message in messages:
            for event in cdcpb.ChangeDataEvent.FromString(message).events:
                if (event.request_id, event.region_id) in doubted:
                    doubted[event.request_id, event.region_id] = True

    def _settle(self) -> None:
        """Keep to the memory bound and hand on what was spilled; while the disk is full the stream waits."""
        held_up = False
        while True:
            try:
                self.matcher.relieve()
                for matched in self.matcher.join():
                    self.rows += matched.changes
                    self._owner.matched(self, matched)
            except DiskFull as error:
                held_up = True
                if not self._owner.held_up(self, error):
                    return
                continue
            if held_up:
                self._owner.held_up(self, None)
            return


OpenStream = Callable[[int, Owner], Stream]
"""Opens a stream to a store; raises Retryable when PD does not know it."""
