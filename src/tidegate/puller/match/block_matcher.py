"""The matcher of one stream: turns messages (bytes) into blocks of committed changes.

It decides when things happen: which portions go through the kernels (`pairing`), when memory is short, and
when a spilled registration is played back. The kernels decide about rows. The stream's worker calls `feed`,
`relieve` and `join`; `register` and `stop` may be called by another thread, so a lock guards the state.

Memory: open prewrites are kept completely until their commit. When they exceed the stream's share of the
process's `budget`, prewrites that a later resolved ts has passed are dropped first. Then `relieve` spills the
registrations that hold most to disk (`spilling`), and `join` matches them (`playback`) when a resolved ts
would pass one of their commits. Without a folder for spilling, their prewrites are dropped. A commit without
its prewrite then restarts the registration from its resolved ts, and the scan delivers the change completely.
Dropping therefore costs time, but never loses a change.

A change is not copied when it is matched: it points into a message or an arena until `outcome` gathers it.
That is why `relieve`, which frees arenas, comes after `feed`, and why `feed` must not reset arenas between
two portions (`open_rows`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.match import (
    gather_kernels,
    match_kernels,
    open_kernels,
    registration_kernels,
    scan_kernels,
    spill_kernels,
)
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.match.matched import Matched, Message, Registration
from tidegate.puller.match.pairing import NO_MARKS, NO_TS, Pairing
from tidegate.puller.match.playback import Playback
from tidegate.puller.match.spill import SpillFolder, SpillLog
from tidegate.puller.match.spilling import Spilling

FLUSH_BYTES: Final = 8 << 20
"""The size of the buffer that gathers rows of spilled registrations before they are written."""
PASS_BYTES_MIN: Final = 16 << 10
"""The least memory that a pass over a log is planned for."""
_PORTION_BYTES: Final = 512 << 10
_RESOLVED: Final = bytes([int(scan_kernels.RESOLVED_TAG)])


class BlockMatcher:
    """All registrations of one stream."""

    def __init__(
        self,
        memory: StreamMemory | None = None,
        spill: Path | None = None,
        lag: Timestamp = 0,
        *,
        trust_empty: bool = False,
    ) -> None:
        """`memory`: shared with the process's other streams. `spill`: a folder for open transactions that do
        not fit in it. `lag`: subtracted from every resolved ts that arrives. `trust_empty`: see `Matcher`.
        """
        memory = memory or StreamMemory()
        # This buffer is not part of the budget for open rows, so it is small against it.
        flush = min(FLUSH_BYTES, max(1 << 16, memory.open_rows.total // 8))
        folder = SpillFolder(spill, flush) if spill is not None else None
        self._lock = threading.Lock()
        self._share, self._slabs = memory.open_rows.join(), memory.slabs
        self._pairing = Pairing(self._slabs, folder, lag=lag, trust_empty=trust_empty)
        self._registrations = self._pairing.registrations
        self._open_rows = self._pairing.open_rows
        self._spilling = Spilling(self._pairing, folder) if folder is not None else None

    @property
    def open_bytes(self) -> int:
        """Bytes of prewrites that wait for their commit."""
        return self._open_rows.live_bytes

    @property
    def arena_bytes(self) -> int:
        """Bytes of memory held for such prewrites."""
        return len(self._open_rows.arena)

    def register(
        self,
        request_id: int,
        region_id: int,
        span: int,
        mark: int,
        bounds: Span,
        checkpoint: Timestamp,
        *,
        records: bool = False,
    ) -> Registration:
        """Expect rows of (request_id, region_id). Call this before the request is sent.

        Events of a pair that is not registered are dropped. If the request were sent first, the beginning of
        its scan could be lost, even its `INITIALIZED`.

        `records`: take only keys that are records of tables; `bounds` then holds several tables.

        An older registration of the same pair must have been stopped. TiKV guarantees that the error event of
        the old registration precedes all rows of the new one, so its late rows are not mistaken for these.
        """
        with self._lock:
            if self._registrations.is_full:
                for number in self._pairing.take_back():
                    if self._spilling is not None:
                        self._spilling.forget(number)
            return self._registrations.add(
                request_id, region_id, span, mark, bounds, checkpoint, records=records
            )

    def stop(self, registration: Registration) -> Timestamp:
        """Ignore events that still arrive for a registration; returns its resolved ts. May be repeated."""
        with self._lock:
            if not self._registrations.stop(registration):
                return 0
            if self._spilling is not None:
                self._spilling.forget(registration.number)
            return int(self._registrations.table[registration.number, k.REG_RESOLVED])

    def feed(self, messages: Sequence[Message]) -> Matched:
        """Apply messages in order. Raises Retryable if one is malformed: the stream must end.

        Messages are processed in portions that fit the CPU's cache.
        """
        with self._lock:
            pairing = self._pairing
            pairing.begin()
            rows = sum(pairing.feed(portion) for portion in _portions(messages))
            return pairing.take(rows)

    def feed_marks(self, messages: Sequence[Message]) -> tuple[k.I64, k.U64] | None:
        """The marks that rose, with their ts, if the messages can have no other effect. None: call `feed`.

        This holds if each message is a batch of resolved ts, nothing is on disk, and `relieve` would have
        nothing to do. Then this call replaces `feed`, `relieve` and `join`. It does not wait for `register`
        or `stop`, because its caller is the loop, and all streams would wait.
        """
        if not all(map(is_mark, messages)) or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._pairing.feed_marks(messages) if self._is_at_rest else None
        finally:
            self._lock.release()

    @property
    def _is_at_rest(self) -> bool:
        """Whether `relieve` and `join` would have nothing to do."""
        is_spilled = self._spilling is not None and self._spilling.is_used
        is_reported = self._share.held == self.open_bytes
        return not is_spilled and is_reported and self._open_rows.is_at_rest(self._share.limit)

    def relieve(self) -> None:
        """Bring open prewrites below the limit, write logged rows to disk, and release unneeded memory.

        Called after `feed`. Raises DiskFull; then nothing has changed, and the caller retries.
        """
        with self._lock:
            self._share.hold(self.open_bytes)
            try:
                self._relieve(self._share.limit)
            finally:
                self._open_rows.unpin()
                self._share.hold(self.open_bytes)

    def _relieve(self, limit: int) -> None:
        """The steps go from cheap to costly, and end as soon as open prewrites fit the limit.

        First it frees the prewrites of stopped registrations, then those that no commit can need any more.
        Only then does it write to disk, or drop prewrites that may still be committed. `feed` has copied its
        changes, so a replaced arena is freed after each step, because memory is short here.
        """
        open_rows, spilling = self._open_rows, self._spilling
        if spilling is not None:
            spilling.tend()
        open_rows.unpin()
        if open_rows.live_bytes <= limit:
            open_rows.give_back()
            return
        open_rows.compact(drop_resolved=True)
        open_rows.unpin()
        if open_rows.live_bytes <= limit:
            return
        if spilling is None:
            open_rows.shed(limit)
        else:
            spilling.spill_largest(limit)

    def join(self) -> Iterator[Matched]:
        """Match the spilled registrations that are due; the last result of each has its resolved ts.

        The thread that calls `feed` and `relieve` calls this after them, and takes all results. Raises
        DiskFull: call it again; changes may then be emitted twice.
        """
        spilling = self._spilling
        if spilling is None:
            return
        for number in spilling.due_registrations():
            with self._lock:
                found = spilling.due(number)
                if found is None:
                    continue
                # The newest rows of the log may still be in memory.
                spilling.flush()
            yield from self._play_back(spilling, *found)

    def _play_back(self, spilling: Spilling, owner: Registration, log: SpillLog) -> Iterator[Matched]:
        """Match a registration's log; prewrites that stay open go back to memory, or to a new log.

        The lock is not held across a `yield`, so another thread may stop the registration meanwhile; this is
        checked after each `yield`.
        """
        line = self._registrations.table[owner.number]
        # A pass reads its share of the keys, about half of the limit, so even an uneven split should fit.
        passes = 1 + 2 * log.size // max(self._share.limit, PASS_BYTES_MIN)
        # Reported before it is used, so that the limits of the other streams fall first.
        self._share.hold(self.open_bytes + log.size // passes)
        # When the passes end, every change up to the ts that is due has come out, so the rest begins there.
        rest = spilling.new_log(k.LIVE, int(line[k.REG_DUE]))
        playback = Playback(
            owner,
            log,
            rest,
            checkpoint=int(line[k.REG_CHECKPOINT]),
            passes=passes,
            slabs=self._slabs,
            trust_empty=self._pairing.trust_empty,
        )
        for matched in playback.matched():
            if matched.notes:
                # Before the caller sees the note: no row that follows may be logged for a registration that
                # has ended.
                self.stop(owner)
                rest.remove()
                yield matched
                return
            yield matched
            if not self._registrations.is_live(owner):
                rest.remove()
                return
        yield self._rejoin(spilling, owner, rest, playback.left)

    def _rejoin(self, spilling: Spilling, owner: Registration, rest: SpillLog, left: int) -> Matched:
        """Continue the registration with the prewrites that are still open, and report its resolved ts."""
        with self._lock:
            if not self._registrations.is_live(owner):
                rest.remove()
                return Matched([], [], NO_MARKS, NO_TS, 0, 0)
            # First: while it is marked as spilled, rows that are fed below would be logged, not matched.
            spilling.forget(owner.number)
            self._registrations.restore(owner, k.LIVE, rest.resolved)
            # Much of it would soon be spilled again, and the new log already has it.
            if left > self._share.limit // 8:
                spilling.put(owner.number, rest)
            else:
                for chunk in rest.chunks():
                    # `rest` holds only open prewrites. They complete no change, so this needs no `begin`
                    # and no `take`.
                    self._pairing.feed_log(chunk, owner)
                rest.remove()
            marks = np.array([owner.mark], dtype=np.int64)
            return Matched([], [], marks, np.array([rest.resolved], dtype=np.uint64), 0, 0)

    def close(self) -> None:
        """Remove the logs on disk, and release this stream's share of the memory."""
        with self._lock:
            self._share.leave()
            if self._spilling is not None:
                self._spilling.close()


def is_mark(message: Message) -> bool:
    """Whether a message consists of one batch of resolved ts."""
    if message[:1] != _RESOLVED:
        return False
    size = at = 0
    for at, byte in enumerate(message[1:11]):  # a varint: 7 bits in each byte, least significant first
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            break
    # Nothing may follow: an event behind the batch has to go through `feed`.
    return len(message) == at + 2 + size


def _portions(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Runs of messages of about `_PORTION_BYTES`."""
    first = size = 0
    for i, message in enumerate(messages):
        size += len(message)
        if size >= _PORTION_BYTES:
            yield messages[first : i + 1]
            first, size = i + 1, 0
    if first < len(messages):
        yield messages[first:]


def warm() -> None:
    """Compile the kernels, or load them if they were compiled before."""
    for kernels in (
        scan_kernels,
        registration_kernels,
        match_kernels,
        open_kernels,
        spill_kernels,
        gather_kernels,
    ):
        kernels.warm()
