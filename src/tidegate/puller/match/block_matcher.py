"""The matcher of one stream: messages of bytes in, blocks of committed changes out.

It drives the kernels: `scan`, `match`, `keep` what is open, `gather` what is complete.

It owns the tables that the kernels work on, and makes room in them; it decides nothing about rows. One
stream's worker calls `feed`; `register` and `stop` may come from another thread.

Memory: open prewrites are kept whole until their commit. Beyond the stream's share of the process's `budget`,
prewrites that a later resolved ts has passed are dropped first. Then `relieve` spills the registrations that
hold most to disk (`spill`), and `join` matches them when a resolved ts would pass one of their commits.
Without a folder for that, their state is dropped. A commit without its prewrite then makes the registration
restart from its resolved ts, and the scan brings the change whole. So dropping costs time, never a change.

A change is not copied when it is matched: it points into a message or an arena until `_blocks` gathers it.
That is why an arena that is replaced during a call is kept to the call's end, and why `feed` must not reset
arenas between two portions.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from tidegate.disk import DiskFull
from tidegate.errors import Retryable
from tidegate.kernel import address, buffer
from tidegate.model.block import ENTRY_SCHEMA, MAX_BLOCK_BYTES, MAX_BLOCK_ROWS
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.match import (
    bucket_kernels,
    gather_kernels,
    match_kernels,
    open_kernels,
    scan_kernels,
    slot_kernels,
    spill_kernels,
)
from tidegate.puller.match import table_kernels as k
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.match.matcher import Violation
from tidegate.puller.match.spill import DamagedLogError, SpillFolder, SpillLog

FLUSH_BYTES: Final = 8 << 20
"""So much of spilled registrations' rows is gathered before it is written."""

PASS_BYTES_MIN: Final = 16 << 10
"""A pass over a log is not worth its while for less."""

_TABLE: Final = 2048
_TYPES: Final = [field.type for field in ENTRY_SCHEMA]
_PLAYED: Final = 4096
"""Rows of a log that are played back at once."""
_NO_MARKS: Final = np.zeros(0, dtype=np.int64)
_NO_TS: Final = np.zeros(0, dtype=np.uint64)

Table = TypeVar("Table", bound=np.ndarray)
LogKernel = Callable[[int, int, int, int, int, int, int], int]
_PORTION_BYTES: Final = 512 << 10
_SPARE_BYTES: Final = 4 << 20
"""What a few portions need: so much room is left in an arena that gives back what a peak needed."""


@dataclass(eq=False, slots=True)
class Registration:
    """One region's part of a span, as registered on the stream. `span`, `mark`: the caller's numbers."""

    slot: int
    request_id: int
    region_id: int
    span: int
    mark: int
    bounds: Span
    _held: tuple[pa.Buffer, pa.Buffer]


class Happening(StrEnum):
    """What a registration's owner must hear of."""

    INITIALIZED = "initialized"
    FAILED = "failed"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True)
class Note:
    """FAILED: `event` is the cdcpb.Event with the error. VIOLATED: which rule, at which commit_ts."""

    happening: Happening
    registration: Registration
    event: bytes = b""
    violation: Violation | None = None
    commit_ts: Timestamp = 0


@dataclass(slots=True)
class Matched:
    """What a batch of messages came to.

    `blocks` with their span's number. `marks[i]` is the mark of a registration whose resolved ts rose to
    `resolved[i]`. `rows` of the messages, of which `changes` came out (some of earlier messages' prewrites).
    """

    blocks: list[tuple[int, pa.RecordBatch]]
    notes: list[Note]
    marks: k.I64
    resolved: k.U64
    rows: int
    changes: int


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
        self._lag = np.uint64(lag)
        self._lock = threading.Lock()
        memory = memory or StreamMemory()
        flush = min(FLUSH_BYTES, max(1 << 16, memory.open_rows.total // 8))
        self._spill = SpillFolder(spill, flush) if spill is not None else None
        self._share, self._slabs = memory.open_rows.join(), memory.slabs
        self._owners: dict[int, Registration] = {}
        self._slots = np.zeros((64, k.SLOT_WORDS), dtype=np.uint64)
        self._free = list(range(63, -1, -1))
        self._index = k.slot_index(256)
        self._events = np.zeros((256, k.EVENT_WORDS), dtype=np.uint64)
        self._rows = np.zeros((1024, k.ROW_WORDS), dtype=np.uint64)
        self._kept = np.zeros(1024, dtype=np.int64)
        self._table = bucket_kernels.hash_table(_TABLE)
        self._dead = np.zeros(k.FREE_LISTS, dtype=np.int64)
        self._known: dict[int, tuple[object, int]] = {}
        self._retired: list[k.U8] = []  # arenas that changes of the running call may point into
        self._arena, self._waiting = buffer(1 << 16), buffer(1 << 12)
        self._out = np.zeros((1024, k.OUT_WORDS), dtype=np.uint64)
        self._notes = np.zeros((256, k.NOTE_WORDS), dtype=np.uint64)
        self._moved = np.zeros(k.MOVED_ROOM, dtype=np.int64)
        self._counts = np.zeros(k.COUNT_WORDS, dtype=np.int64)
        self._counts[k.C_ARENA] = k.RECORD
        self._counts[k.C_TRUST_EMPTY] = int(trust_empty)

    @property
    def open_bytes(self) -> int:
        """Bytes of prewrites that wait for their commit."""
        return int(self._counts[k.C_LIVE])

    @property
    def arena_bytes(self) -> int:
        """Bytes of memory held for such prewrites."""
        return len(self._arena)

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
            if not self._free:
                self._make_slots()
            slot = self._free.pop()
            held = (pa.py_buffer(bounds.start), pa.py_buffer(bounds.end))
            line = self._slots[slot]
            line[:] = 0
            line[k.S_STATE] = k.SCANNING
            line[k.S_REGION], line[k.S_REQUEST], line[k.S_SPAN] = region_id, request_id, span
            line[k.S_MARK] = mark
            line[k.S_CHECKPOINT], line[k.S_RESOLVED] = checkpoint, checkpoint
            line[k.S_FROM], line[k.S_FROM_SIZE] = address(held[0]), len(bounds.start)
            line[k.S_TO], line[k.S_TO_SIZE] = address(held[1]), len(bounds.end)
            line[k.S_RECORDS] = records
            registration = Registration(slot, request_id, region_id, span, mark, bounds, held)
            self._owners[slot] = registration
            slot_kernels.index_slot(self._at(self._index, k.index_address), self._at(self._slots), slot)
            return registration

    def stop(self, registration: Registration) -> Timestamp:
        """Ignore what still comes for it; returns its resolved ts. Harmless when repeated."""
        with self._lock:
            if self._owners.get(registration.slot) is not registration:
                return 0
            self._slots[registration.slot, k.S_STATE] = k.STOPPED
            self._unspill(registration.slot)
            return int(self._slots[registration.slot, k.S_RESOLVED])

    def feed(self, messages: Sequence[bytes]) -> Matched:
        """Apply messages in order. Raises Retryable when one is malformed: the stream must end.

        Messages are worked off in portions that fit the processor's cache.
        """
        with self._lock:
            counts = self._counts
            counts[k.C_OUT] = counts[k.C_NOTES] = counts[k.C_MOVED] = 0
            self._retired.clear()
            self._known.clear()
            self._reclaim()
            rows = sum(self._feed(portion) for portion in _portions(messages))
            marks, resolved = self._read_moved()
            changes = int(counts[k.C_OUT])
            return Matched(self._blocks(), self._read_notes(), marks, resolved, rows, changes)

    def relieve(self) -> None:
        """Bring what is open under the limit, and what was logged to disk; give back room no longer needed.

        Called after `feed`. Raises DiskFull: nothing has changed, call it again.
        """
        with self._lock:
            self._share.hold(self.open_bytes)
            try:
                self._relieve(self._share.limit)
            finally:
                self._let_go()
                self._share.hold(self.open_bytes)

    def join(self) -> Iterator[Matched]:
        """Match what was spilled and may be told now; the resolved ts comes with a registration's last part.

        Called after `feed` and `relieve`, by the same thread, until the end. Raises DiskFull: call it again;
        changes may then come twice.
        """
        if self._spill is None:
            return
        for slot in np.flatnonzero(self._slots[:, k.S_DUE]).tolist():
            with self._lock:
                owner = self._owners.get(slot)
                log = self._spill.logs.get(slot)
                if owner is None or log is None or self._slots[slot, k.S_STATE] != k.LIVE:
                    self._slots[slot, k.S_DUE] = 0
                    continue
                self._spill.flush(self._counts, len(self._slots))
            yield from self._play_back(owner, log)

    def close(self) -> None:
        """Remove what is on disk, and leave the memory to other streams."""
        with self._lock:
            self._share.leave()
            if self._spill is not None:
                self._spill.close()

    def _relieve(self, limit: int) -> None:
        """The steps go from cheap to costly, and end as soon as the limit holds.

        First it frees what stopped registrations hold, then what no commit can need any more. Only then does
        it write to disk, or drop what may still be committed. `feed` has copied its changes, so a replaced
        arena is freed after each step: memory is short here, and two arenas at once are enough.
        """
        slots, counts, spill = self._slots, self._counts, self._spill
        if spill is not None:
            for slot in list(spill.logs):
                if slots[slot, k.S_STATE] == k.STOPPED:
                    self._unspill(slot)
            if counts[k.C_LOG] > spill.room // 2:
                spill.flush(counts, len(slots))
        self._let_go()
        if counts[k.C_LIVE] <= limit:
            if len(self._arena) > 8 * (_SPARE_BYTES + int(counts[k.C_LIVE])):
                self._compact(_SPARE_BYTES)
            return
        self._compact(0, drop_resolved=True)
        self._let_go()
        if counts[k.C_LIVE] <= limit:
            return
        if spill is None:
            self._shed(limit)
        else:
            self._spill_largest(spill, limit)

    def _feed(self, messages: Sequence[bytes]) -> int:
        """Scan and match; prewrites still open leave the messages. Returns the number of rows."""
        events, rows = self._scan(messages)
        if self._lag:
            times = self._events[:events, k.E_TS]
            times -= np.minimum(times, self._lag)
        self._apply(events, rows, sum(map(len, messages)))
        return rows

    def _apply(self, events: int, rows: int, size: int) -> None:
        """Match what is in the tables, of `size` bytes.

        `match` stops at a row for which a table or the log has no room, and continues there when it is called
        again. `keep` comes last because most prewrites meet their commit among the same messages: only the
        others are copied.
        """
        counts = self._counts
        self._make_room(events, rows, size)
        counts[k.C_KEPT] = counts[k.C_EVENT] = counts[k.C_ROW] = 0
        match_kernels.locate(
            self._at(self._events),
            events,
            self._at(self._rows),
            self._at(self._slots),
            self._at(self._index, k.index_address),
            self._at(self._table, bucket_kernels.table_address),
        )
        while (state := self._match(events, rows)) != k.DONE:
            if state == k.LOG_FULL:
                self._make_log_room()
                continue
            table = bucket_kernels.hash_table(2 * bucket_kernels.table_room(self._table))
            open_kernels.rehash(
                self._at(self._table, bucket_kernels.table_address),
                bucket_kernels.table_address(table),
                self._at(self._rows),
                self._at(self._arena),
            )
            self._table = table
        open_kernels.keep(
            self._at(self._rows),
            self._at(self._slots),
            self._at(self._table, bucket_kernels.table_address),
            self._at(self._arena),
            self._at(self._dead),
            self._at(self._kept),
            address(counts),
        )

    def _match(self, events: int, rows: int) -> int:
        spill = self._spill
        tables = k.Tables(
            events=self._at(self._events),
            rows=self._at(self._rows),
            slots=self._at(self._slots),
            slot_index=self._at(self._index, k.index_address),
            table=self._at(self._table, bucket_kernels.table_address),
            arena=self._at(self._arena),
            waiting=self._at(self._waiting),
            out=self._at(self._out),
            notes=self._at(self._notes),
            moved=self._at(self._moved),
            kept=self._at(self._kept),
            log=address(spill.memory) if spill is not None else 0,
            log_size=spill.room if spill is not None else 0,
            counts=self._at(self._counts),
        )
        return match_kernels.match(tables, events, rows, bucket_kernels.table_room(self._table))

    # --- what is on disk -----------------------------------------------------------------------------

    def _make_log_room(self) -> None:
        """Write the log out; on a full disk, or for a record that is larger, let it grow."""
        assert self._spill is not None
        used = int(self._counts[k.C_LOG])
        if used:
            try:
                self._spill.flush(self._counts, len(self._slots))
                return
            except DiskFull:
                pass
        self._spill.grow(used)

    def _spill_largest(self, spill: SpillFolder, limit: int) -> None:
        """Spill registrations, those that hold most, until half of the limit is free.

        Half, so that the next messages do not make it spill again at once. The kernels log the records of
        marked slots, so slots are marked first. Records leave the arena only after all of them are on disk.
        If the disk is full before that, the marks are taken back, and nothing has changed.
        """
        slots, counts = self._slots, self._counts
        spill.flush(counts, len(slots))
        chosen: list[int] = []
        left = int(counts[k.C_LIVE])
        for slot in np.argsort(slots[:, k.S_OPEN])[::-1].tolist():
            if left <= limit // 2 or slots[slot, k.S_OPEN] == 0:
                break
            left -= int(slots[slot, k.S_OPEN])
            chosen.append(slot)
        try:
            for slot in chosen:
                spill.logs[slot] = spill.new_log(int(slots[slot, k.S_STATE]), int(slots[slot, k.S_RESOLVED]))
                slots[slot, k.S_SPILLED], slots[slot, k.S_DUE], slots[slot, k.S_LEAST] = 1, 0, 0
            self._log_all(spill_kernels.log_open, self._arena, k.RECORD, int(counts[k.C_ARENA]), spill)
            self._log_all(spill_kernels.log_waiting, self._waiting, 0, int(counts[k.C_WAITING]), spill)
            spill.flush(counts, len(slots))
        except BaseException:
            counts[k.C_LOG] = 0
            for slot in chosen:
                self._unspill(slot)
            raise
        self._let_go()
        self._compact(0)
        self._make_waiting(int(counts[k.C_WAITING]), always=True)

    def _log_all(self, log: LogKernel, arena: k.U8, at: int, end: int, spill: SpillFolder) -> None:
        """Run one of the kernels that log an arena's records of spilled slots, to its end."""
        while at < end:
            memory = address(spill.memory), spill.room
            at = log(address(arena), at, end, self._at(self._slots), *memory, self._at(self._counts))
            if at < end:
                self._make_log_room_or_fail(spill)

    def _make_log_room_or_fail(self, spill: SpillFolder) -> None:
        if self._counts[k.C_LOG]:
            spill.flush(self._counts, len(self._slots))
        else:
            spill.grow(0)

    def _unspill(self, slot: int) -> None:
        self._slots[slot, k.S_SPILLED] = self._slots[slot, k.S_DUE] = self._slots[slot, k.S_LEAST] = 0
        if self._spill is not None:
            self._spill.forget(slot)

    def _play_back(self, owner: Registration, log: SpillLog) -> Iterator[Matched]:
        """Match a registration's log; what it leaves open goes back to memory, or to a new log.

        Each pass reads the whole log and matches one share of the keys, so that what is open at once fits the
        limit. The resolved ts rises only after the last pass: until then a change at or below it may come,
        and after resolved ts R no such change may. The lock is not held across a `yield`, so the registration
        may have been stopped meanwhile; each time it is checked again.
        """
        assert self._spill is not None
        slot = owner.slot
        limit = max(self._share.limit, PASS_BYTES_MIN)
        passes = 1 + 2 * log.size // limit
        self._share.hold(self.open_bytes + log.size // passes)
        due = int(self._slots[slot, k.S_DUE])
        rest = self._spill.new_log(k.LIVE, due)
        left = 0
        for number in range(passes):
            part = BlockMatcher(trust_empty=bool(self._counts[k.C_TRUST_EMPTY]))
            part._slabs = self._slabs
            part._events = np.zeros((_PLAYED, k.EVENT_WORDS), dtype=np.uint64)
            part._rows = np.zeros((_PLAYED, k.ROW_WORDS), dtype=np.uint64)
            one = part.register(
                owner.request_id,
                owner.region_id,
                owner.span,
                owner.mark,
                owner.bounds,
                self._checkpoint(slot),
            )
            part._slots[one.slot, k.S_STATE], part._slots[one.slot, k.S_RESOLVED] = log.state, log.resolved
            part._counts[k.C_PASSES], part._counts[k.C_PASS] = passes, number
            try:
                for chunk in log.chunks():
                    matched = part._feed_log(chunk, one)
                    broken = [note for note in matched.notes if note.happening is Happening.VIOLATED]
                    if broken:
                        matched.notes = [replace(broken[0], registration=owner)]
                        self._end(owner)
                        rest.remove()
                        yield matched
                        return
                    matched.notes = []
                    yield matched
                    if self._slots[slot, k.S_STATE] != k.LIVE or self._owners.get(slot) is not owner:
                        rest.remove()
                        return
            except DamagedLogError:
                self._end(owner)
                rest.remove()
                lost = Note(Happening.VIOLATED, owner, violation=Violation.PREWRITE_MISSING, commit_ts=due)
                yield Matched([], [lost], _NO_MARKS, _NO_TS, 0, 0)
                return
            left += part._write_open(one, rest)
        yield self._rejoin(owner, rest, left, due)

    def _rejoin(self, owner: Registration, rest: SpillLog, left: int, due: Timestamp) -> Matched:
        """Continue the registration with what is still open, and report its resolved ts."""
        with self._lock:
            slot, spill = owner.slot, self._spill
            assert spill is not None
            if self._slots[slot, k.S_STATE] != k.LIVE or self._owners.get(slot) is not owner:
                rest.remove()
                return Matched([], [], _NO_MARKS, _NO_TS, 0, 0)
            self._unspill(slot)
            self._slots[slot, k.S_RESOLVED] = due
            if left > self._share.limit // 8:
                spill.logs[slot] = rest
                self._slots[slot, k.S_SPILLED] = 1
            else:
                for chunk in rest.chunks():
                    self._apply_log(chunk, owner)
                rest.remove()
            marks = np.array([owner.mark], dtype=np.int64)
            return Matched([], [], marks, np.array([due], dtype=np.uint64), 0, 0)

    def _end(self, owner: Registration) -> None:
        with self._lock:
            if self._owners.get(owner.slot) is owner:
                self._slots[owner.slot, k.S_STATE] = k.STOPPED
                self._unspill(owner.slot)

    def _checkpoint(self, slot: int) -> Timestamp:
        return int(self._slots[slot, k.S_CHECKPOINT])

    def _feed_log(self, chunk: k.U8, one: Registration) -> Matched:
        """`feed` for a chunk of a log."""
        counts = self._counts
        counts[k.C_OUT] = counts[k.C_NOTES] = counts[k.C_MOVED] = 0
        self._retired.clear()
        self._reclaim()
        self._apply_log(chunk, one)
        changes = int(counts[k.C_OUT])
        return Matched(self._blocks(), self._read_notes(), _NO_MARKS, _NO_TS, 0, changes)

    def _apply_log(self, chunk: k.U8, one: Registration) -> None:
        at, found = 0, np.zeros(2, dtype=np.int64)
        while at < len(chunk):
            room = min(len(self._events), len(self._rows))
            tables = self._at(self._events), self._at(self._rows), room, address(found)
            played = spill_kernels.Played(one.region_id, one.request_id, *tables)
            end = spill_kernels.load(address(chunk), at, len(chunk), played)
            self._apply(int(found[0]), int(found[1]), end - at)
            at = end

    def _write_open(self, one: Registration, log: SpillLog) -> int:
        """Append what is open to a log; how many bytes that is."""
        counts = self._counts
        self._compact(0, drop_resolved=True)
        self._slots[one.slot, k.S_SPILLED] = 1
        counts[k.C_LOG] = 0
        size = int(counts[k.C_ARENA]) + 32 * int(counts[k.C_OPEN_ROWS]) + 64
        memory = buffer(size)
        end = int(counts[k.C_ARENA])
        spill_kernels.log_open(
            self._at(self._arena),
            k.RECORD,
            end,
            self._at(self._slots),
            address(memory),
            size,
            address(counts),
        )
        used = int(counts[k.C_LOG])
        if used:
            log.append(memory[:used])
        return used

    def _at(self, table: Table, find: Callable[[Table], int] = address) -> int:
        """The table's address, which numpy takes a microsecond to tell: remembered within a `feed`."""
        known = self._known.get(id(table))
        if known is None:
            known = self._known[id(table)] = (table, find(table))
        return known[1]

    # --- the tables' room ----------------------------------------------------------------------------

    def _scan(self, messages: Sequence[bytes]) -> tuple[int, int]:
        places = np.array([(pa.py_buffer(m).address, len(m)) for m in messages], dtype=np.int64).reshape(
            -1, 2
        )
        counts = np.zeros(len(k.SCANNED.fields), dtype=np.int64)
        while True:
            state = scan_kernels.scan(
                places,
                self._at(self._events),
                len(self._events),
                self._at(self._rows),
                len(self._rows),
                address(counts),
            )
            if state == k.GOOD:
                return int(counts[k.SCANNED_EVENTS]), int(counts[k.SCANNED_ROWS])
            if state == k.BAD:
                bad = counts[k.SCANNED_MESSAGE]
                raise Retryable(
                    "a change data message is malformed",
                    where=f"message {bad} of {len(messages)}, {len(messages[bad])} bytes",
                    why="it is not a ChangeDataEvent",
                    fix="nothing to do if it happens once: the stream is opened again",
                )
            self._events = np.zeros((2 * len(self._events), k.EVENT_WORDS), dtype=np.uint64)
            self._rows = np.zeros((2 * len(self._rows), k.ROW_WORDS), dtype=np.uint64)

    def _reclaim(self) -> None:
        """Reset empty arenas. Only before the first portion: changes point into them to the call's end."""
        counts = self._counts
        if not self._slots[:, k.S_WAITING].any():
            counts[k.C_WAITING] = 0
        if counts[k.C_LIVE] == 0:
            counts[k.C_ARENA], counts[k.C_ENDED] = k.RECORD, 0
            self._dead[:] = 0

    def _make_room(self, events: int, rows: int, size: int) -> None:
        """Room for a portion of `rows` rows in messages of `size` bytes, whatever they turn out to be."""
        counts, slots = self._counts, self._slots
        waiting = int(slots[:, k.S_WAITING].sum())
        if (slots[:, k.S_STATE] == k.SCANNING).any():
            self._make_waiting(int(counts[k.C_WAITING]) + size + (k.WAIT_RECORD + 8) * rows)
        if len(self._kept) < len(self._rows):
            self._kept = np.zeros(len(self._rows), dtype=np.int64)
        self._out = _longer(self._out, int(counts[k.C_OUT]) + rows + waiting)
        self._notes = _longer(self._notes, int(counts[k.C_NOTES]) + events + 2 * len(slots))
        need = size + size // 8 + 2 * k.RECORD * rows  # see `_class_of` for what sizes are rounded up to
        if int(counts[k.C_ARENA]) + need > len(self._arena) - k.RECORD:
            self._compact(need)

    def _make_waiting(self, size: int, *, always: bool = False) -> None:
        if not always and size <= len(self._waiting) - k.RECORD:
            return
        fresh = buffer(_power(2 * size))
        open_kernels.compact_waiting(
            self._at(self._waiting),
            address(fresh),
            self._at(self._slots),
            len(self._slots),
            self._at(self._counts),
        )
        self._retired += [self._waiting]
        self._waiting = fresh

    def _compact(self, need: int, drop_resolved: bool = False, victim: int = -1) -> None:
        """A new arena with room for `need` more bytes. Changes that are still to be gathered may lie in the
        old.
        """
        counts = self._counts
        arena = buffer(_power(2 * (int(counts[k.C_LIVE]) + need) + k.RECORD))
        table = bucket_kernels.hash_table(max(_TABLE, 2 * int(counts[k.C_OPEN_ROWS])))
        self._retired += [self._arena]
        work = open_kernels.Compaction(
            old=self._at(self._arena),
            new=address(arena),
            table=bucket_kernels.table_address(table),
            free=self._at(self._dead),
            slots=self._at(self._slots),
            slot_count=len(self._slots),
            drop_resolved=int(drop_resolved),
            victim=victim,
            counts=address(counts),
        )
        open_kernels.compact(work)
        self._arena, self._table = arena, table

    def _shed(self, limit: int) -> None:
        """Bring open prewrites under the limit by forgetting them."""
        while self._counts[k.C_LIVE] > limit:
            self._let_go()
            self._compact(0, drop_resolved=True, victim=int(self._slots[:, k.S_OPEN].argmax()))

    def _let_go(self) -> None:
        """Free the arenas that were replaced. Only where no change is still to be gathered from them."""
        self._retired.clear()
        self._known.clear()

    def _make_slots(self) -> None:
        """Take stopped slots back; when they are few, double the table.

        Records and waiting rows name their slot. Those of stopped slots are removed first; otherwise they
        would count as the next registration's that gets the slot.
        """
        self._compact(0)
        fresh = buffer(len(self._waiting))
        open_kernels.compact_waiting(
            self._at(self._waiting),
            address(fresh),
            self._at(self._slots),
            len(self._slots),
            self._at(self._counts),
        )
        self._retired += [self._waiting]
        self._waiting = fresh
        stopped = np.flatnonzero(self._slots[:, k.S_STATE] == k.STOPPED)
        for slot in stopped.tolist():
            self._unspill(slot)
            self._slots[slot, k.S_STATE] = k.FREE
            self._owners.pop(slot, None)
        self._free = stopped.tolist()
        if 2 * len(self._free) < len(self._slots):
            old = len(self._slots)
            self._slots = np.vstack([self._slots, np.zeros_like(self._slots)])
            self._free += range(2 * old - 1, old - 1, -1)
        self._index = k.slot_index(4 * len(self._slots))
        for slot in self._owners:
            slot_kernels.index_slot(self._at(self._index, k.index_address), self._at(self._slots), slot)

    # --- results -------------------------------------------------------------------------------------

    def _blocks(self) -> list[tuple[int, pa.RecordBatch]]:
        """What came out, span by span; the room of the records it came from may then be used again."""
        count = int(self._counts[k.C_OUT])
        blocks: list[tuple[int, pa.RecordBatch]] = []
        if count:
            out = self._out
            if not gather_kernels.one_span(address(out), count):
                out = out[np.argsort(out[:count, k.O_SPAN], kind="stable")]
            first, at, sizes = 0, address(out), np.zeros(3, dtype=np.int64)
            while first < count:
                most = MAX_BLOCK_ROWS, MAX_BLOCK_BYTES
                end = gather_kernels.measure(at, first, count, *most, address(sizes))
                block = self._gather(at, first, end, sizes.tolist())
                blocks.append((int(out[first, k.O_SPAN]), block))
                first = end
        open_kernels.release(self._at(self._arena), self._at(self._dead), self._at(self._counts))
        return blocks

    def _gather(self, out: int, first: int, end: int, sizes: list[int]) -> pa.RecordBatch:
        rows = end - first
        widths = [8 * rows, 8 * rows, rows]
        for size in sizes:
            widths += [4 * (rows + 1), size]
        buffers = self._slabs.buffers(widths)
        columns = np.array([b.address for b in buffers], dtype=np.int64)
        gather_kernels.gather(out, first, end, address(columns))
        arrays = [pa.Array.from_buffers(_TYPES[i], rows, [None, buffers[i]]) for i in range(3)]
        for i in range(3, 6):
            arrays.append(pa.Array.from_buffers(_TYPES[i], rows, [None, *buffers[2 * i - 3 : 2 * i - 1]]))
        return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)

    def _read_notes(self) -> list[Note]:
        notes = []
        for kind, slot, a, b in self._notes[: self._counts[k.C_NOTES]].tolist():
            owner = self._owners[slot]
            if kind == k.NOTE_INITIALIZED:
                notes.append(Note(Happening.INITIALIZED, owner))
            elif kind == k.NOTE_ERROR:
                notes.append(Note(Happening.FAILED, owner, event=ctypes.string_at(a, b)))
            else:
                notes.append(Note(Happening.VIOLATED, owner, violation=Violation(a), commit_ts=b))
        return notes

    def _read_moved(self) -> tuple[k.I64, k.U64]:
        count = int(self._counts[k.C_MOVED])
        if count > k.MOVED_ROOM:
            slots = np.flatnonzero(self._slots[:, k.S_STATE] == k.LIVE)
        else:
            slots = self._moved[:count]
        lines = self._slots[slots]
        return lines[:, k.S_MARK].astype(np.int64), lines[:, k.S_RESOLVED]


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


def _longer(table: k.U64, rows: int) -> k.U64:
    """The table, or a copy of it with room for `rows`."""
    if len(table) >= rows:
        return table
    longer = np.zeros((_power(rows), table.shape[1]), dtype=np.uint64)
    longer[: len(table)] = table
    return longer


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


def warm() -> None:
    """Compile the kernels, or load what was compiled."""
    for kernels in (scan_kernels, slot_kernels, match_kernels, open_kernels, spill_kernels, gather_kernels):
        kernels.warm()
