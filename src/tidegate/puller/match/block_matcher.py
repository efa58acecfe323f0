"""The matcher of one stream: messages of bytes in, blocks of committed changes out.

It decides when: which portions go through the kernels (`pairing`), when memory is short, when a spilled
registration is played back. It decides nothing about rows. One stream's worker calls `feed`, `relieve` and
`join`; `register` and `stop` may come from another thread, which is what the lock is for.

Memory: open prewrites are kept whole until their commit. Beyond the stream's share of the process's `budget`,
prewrites that a later resolved ts has passed are dropped first. Then `relieve` spills the registrations that
hold most to disk (`spilling`), and `join` matches them (`playback`) when a resolved ts would pass one of
their commits. Without a folder for that, their state is dropped. A commit without its prewrite then makes the
registration restart from its resolved ts, and the scan brings the change whole. So dropping costs time, never
a change.

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
from tidegate.puller.match.matched import Matched, Registration
from tidegate.puller.match.pairing import NO_MARKS, NO_TS, Pairing
from tidegate.puller.match.playback import Playback
from tidegate.puller.match.spill import SpillFolder, SpillLog
from tidegate.puller.match.spilling import Spilling

FLUSH_BYTES: Final = 8 << 20
"""So much of spilled registrations' rows is gathered before it is written."""
PASS_BYTES_MIN: Final = 16 << 10
"""A pass over a log is not worth its while for less."""
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
        """`lag` is taken off every resolved ts that comes; `spill`: a folder for what is too much.

        `memory`: what it shares with the process's other streams. `trust_empty`: see `Matcher`.
        """
        memory = memory or StreamMemory()
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
        """Await rows of (request_id, region_id). Call it before the request is sent.

        Events of a pair that is not registered are dropped, so a request that was sent first could lose the
        beginning of its scan, and with it `INITIALIZED`.

        `records`: only of keys that are records of tables; `bounds` holds those of several.

        An older registration of the same pair must have been stopped; its late rows are the new one's
        only after the server's error event, which TiKV guarantees to come between.
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
        """Ignore what still comes for it; returns its resolved ts. Harmless when repeated."""
        with self._lock:
            if not self._registrations.stop(registration):
                return 0
            if self._spilling is not None:
                self._spilling.forget(registration.number)
            return int(self._registrations.table[registration.number, k.REG_RESOLVED])

    def feed(self, messages: Sequence[bytes]) -> Matched:
        """Apply messages in order. Raises Retryable when one is malformed: the stream must end.

        Messages are worked off in portions that fit the processor's cache.
        """
        with self._lock:
            pairing = self._pairing
            pairing.begin()
            rows = sum(pairing.feed(portion) for portion in _portions(messages))
            return pairing.take(rows)

    def feed_marks(self, messages: Sequence[bytes]) -> tuple[k.I64, k.U64] | None:
        """The marks that rose, and their ts, where nothing else can come of the messages. None: call `feed`.

        So it is if each message is a batch of resolved ts, nothing is on disk, and `relieve` would find
        nothing to do. This one call stands for `feed`, `relieve` and `join`. It does not wait for `register`
        or `stop`, because all streams wait for its caller.
        """
        if not all(map(is_mark, messages)) or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._pairing.feed_marks(messages) if self._is_at_rest else None
        finally:
            self._lock.release()

    @property
    def _is_at_rest(self) -> bool:
        """Whether `relieve` and `join` would find nothing to do."""
        is_spilled = self._spilling is not None and self._spilling.is_used
        is_reported = self._share.held == self.open_bytes
        return not is_spilled and is_reported and self._open_rows.is_at_rest(self._share.limit)

    def relieve(self) -> None:
        """Bring what is open under the limit, and what was logged to disk; give back room no longer needed.

        Called after `feed`. Raises DiskFull: nothing has changed, call it again.
        """
        with self._lock:
            self._share.hold(self.open_bytes)
            try:
                self._relieve(self._share.limit)
            finally:
                self._open_rows.let_go()
                self._share.hold(self.open_bytes)

    def _relieve(self, limit: int) -> None:
        """The steps go from cheap to costly, and end as soon as the limit holds.

        First it frees what stopped registrations hold, then what no commit can need any more. Only then does
        it write to disk, or drop what may still be committed. `feed` has copied its changes, so a replaced
        arena is freed after each step: memory is short here, and two arenas at once are enough.
        """
        open_rows, spilling = self._open_rows, self._spilling
        if spilling is not None:
            spilling.tend()
        open_rows.let_go()
        if open_rows.live_bytes <= limit:
            open_rows.give_back()
            return
        open_rows.compact(drop_resolved=True)
        open_rows.let_go()
        if open_rows.live_bytes <= limit:
            return
        if spilling is None:
            open_rows.shed(limit)
        else:
            spilling.spill_largest(limit)

    def join(self) -> Iterator[Matched]:
        """Match what was spilled and is due; the resolved ts comes with a registration's last part.

        Called after `feed` and `relieve`, by the same thread, until the end. Raises DiskFull: call it again;
        changes may then come twice.
        """
        spilling = self._spilling
        if spilling is None:
            return
        for number in spilling.due_registrations():
            with self._lock:
                found = spilling.due(number)
                if found is None:
                    continue
                spilling.flush()
            yield from self._play_back(spilling, *found)

    def _play_back(self, spilling: Spilling, owner: Registration, log: SpillLog) -> Iterator[Matched]:
        """Match a registration's log; what it leaves open goes back to memory, or to a new log.

        The lock is not held across a `yield`, so the registration may have been stopped meanwhile; each time
        it is checked again.
        """
        line = self._registrations.table[owner.number]
        passes = 1 + 2 * log.size // max(self._share.limit, PASS_BYTES_MIN)
        self._share.hold(self.open_bytes + log.size // passes)
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
        """Continue the registration with what is still open, and report its resolved ts."""
        with self._lock:
            if not self._registrations.is_live(owner):
                rest.remove()
                return Matched([], [], NO_MARKS, NO_TS, 0, 0)
            spilling.forget(owner.number)
            self._registrations.restore(owner, k.LIVE, rest.resolved)
            if left > self._share.limit // 8:
                spilling.put(owner.number, rest)
            else:
                for chunk in rest.chunks():
                    self._pairing.feed_log(chunk, owner)
                rest.remove()
            marks = np.array([owner.mark], dtype=np.int64)
            return Matched([], [], marks, np.array([rest.resolved], dtype=np.uint64), 0, 0)

    def close(self) -> None:
        """Remove what is on disk, and leave the memory to other streams."""
        with self._lock:
            self._share.leave()
            if self._spilling is not None:
                self._spilling.close()


def is_mark(message: bytes) -> bool:
    """Whether a message has one batch of resolved ts, and nothing else."""
    if message[:1] != _RESOLVED:
        return False
    size = at = 0
    for at, byte in enumerate(message[1:11]):  # a varint: 7 bits a byte, the least first
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            break
    return len(message) == at + 2 + size


def _portions(messages: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
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
    """Compile the kernels, or load what was compiled."""
    for kernels in (
        scan_kernels,
        registration_kernels,
        match_kernels,
        open_kernels,
        spill_kernels,
        gather_kernels,
    ):
        kernels.warm()
