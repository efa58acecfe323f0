"""One observed region: turns applied commands into change events for its downstreams.

Pure, except that it reads old values.

| change in a command | row |
|---|---|
| put lock, type Put or Delete | PREWRITE with value and old value; none for a Put without its value (below) |
| put write, type Put or Delete | COMMIT |
| the same in a one-phase commit | COMMITTED with value and old value |
| put write, type Rollback | ROLLBACK |
| put write with a gc_fence (a rollback at another's commit_ts) | ROLLBACK with that ts as its start_ts |
| delete lock, no write for the key | ROLLBACK of the lock that was tracked: a silent rollback |
| put of a raw key (API V2) | COMMITTED for downstreams of RawKV, with the expiry and the command's index |
| anything else | none |

If the long value of a Put lock is not in the same command, an old lock was rewritten (heartbeat, pushed
min_commit_ts), and its value was sent with the first row. The rows of a command for one downstream are sent
as one event. A downstream gets only rows of its range and its kind of keys. If a command empties a range, the
locks there are forgotten without rows.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from tidegate.proto import cdcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.api_version import RAW_PREFIX
from tidegate.tikv.cdc import wire
from tidegate.tikv.cdc.channel import Channel, Subscription
from tidegate.tikv.cdc.old_value import OldValues
from tidegate.tikv.cdc.resolver import Resolver
from tidegate.tikv.raft.raftstore import Command
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raw.raw_pairs import decode_value

CDC_WRITE_SOURCE: Final = 0xFF
"""Bits of txn_source that a CDC writer sets; such rows are dropped if the downstream filters loops."""
NEVER_SENT: Final = ~0xFF
"""Bits of txn_source (lossy DDL reorganisation, physical import) whose rows are never sent."""
OPS: Final = {mvcc.KIND_PUT: wire.OP_PUT, mvcc.KIND_DELETE: wire.OP_DELETE}
_RAW: Final = RAW_PREFIX[0]


class State(Enum):
    """The state of a downstream. It gets rows from INITIALIZING on, and resolved ts only in NORMAL."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    NORMAL = "normal"


class Downstream(Subscription):
    """One registration: (connection, request id, region), its range in encoded keys, and its locks."""

    __slots__ = (
        "channel",
        "checkpoint_ts",
        "end",
        "filter_loop",
        "home",
        "raw",
        "region",
        "request_id",
        "resolver",
        "sent_at",
        "sent_ts",
        "start",
        "state",
    )

    def __init__(
        self,
        channel: Channel,
        request_id: int,
        region: Region,
        start: bytes,
        end: bytes,
        checkpoint_ts: int,
        filter_loop: bool = False,
        raw: bool = False,
        resolver: Resolver | None = None,
    ) -> None:
        super().__init__()
        self.channel = channel
        self.request_id = request_id
        self.region = region
        self.start = max(start, region.start)
        self.end = min(end, region.end) if end and region.end else end or region.end
        self.checkpoint_ts = checkpoint_ts
        self.filter_loop = filter_loop
        self.raw = raw
        self.state = State.UNINITIALIZED
        self.resolver = Resolver() if resolver is None else resolver
        self.home: dict[tuple[int, int], Downstream] = {}
        """All registrations of its connection, by request id and region id."""
        self.sent_ts = 0
        """The resolved ts last sent to its client, and the time of that (`sent_at`)."""
        self.sent_at = 0.0

    def event(self, rows: Sequence[bytes], index: int = 0) -> bytes:
        """An event for this downstream with the given rows."""
        return wire.event(self.region.id, self.request_id, rows, index)

    def error(self, error: pb.Error) -> bytes:
        """An event with an error, which ends this downstream."""
        return wire.framed(pb.Event(region_id=self.region.id, request_id=self.request_id, error=error))

    def wants(self, txn_source: int) -> bool:
        """Whether the downstream gets rows of a transaction with this source."""
        return not txn_source or not (
            txn_source & NEVER_SENT or (self.filter_loop and txn_source & CDC_WRITE_SOURCE)
        )


Seen = tuple[bytes, bytes | None, int | None, int, bool, bool]
"""The effect of a command on one key: the key, its row or None, the start_ts of the data lock it has
afterwards (0: no lock; None: not changed), the row's txn_source, whether the key is raw, and whether the
lock belongs to a large transaction."""


class Announced:
    """The highest resolved ts that may have been sent to downstreams of transactional keys, by key.

    Thread-safe; the answers only rise. Downstreams of raw keys do not count, because no lock holds them back.
    """

    __slots__ = ("_all", "_bounds", "_segments")

    def __init__(self, bounds: list[bytes], segments: list[list[Downstream]]) -> None:
        self._bounds = bounds
        self._segments = [[each.resolver for each in found if not each.raw] for found in segments]
        self._all = list({id(each): each for found in self._segments for each in found}.values())

    @property
    def highest(self) -> int:
        """The maximum over all keys."""
        return max([each.resolved_ts for each in self._all], default=0)

    def __call__(self, key: bytes) -> int:
        """The answer for an encoded key; 0 if nothing was sent."""
        found = self._segments[bisect.bisect_right(self._bounds, key) - 1]
        return max([each.resolved_ts for each in found], default=0)


class Delegate:
    """The downstreams of one region. Owned by the endpoint's thread."""

    def __init__(self, region: Region, has_raw: bool = False) -> None:
        self.region = region
        self.has_raw = has_raw
        """Whether keys that begin with `r` are raw ones (API V2)."""
        self.downstreams: dict[Downstream, None] = {}
        """In the order of registration."""
        self._is_cut = True
        self.flashback = 0
        """The start_ts of a flashback in progress, which limits the resolved ts; 0: none."""
        self._bounds: list[bytes] = [b""]
        self._segments: list[list[Downstream]] = [[]]
        self.announced = Announced(self._bounds, self._segments)

    def add(self, downstream: Downstream) -> None:
        """Add a downstream; it gets rows once it is initializing."""
        self.downstreams[downstream] = None
        self._is_cut = False

    def remove(self, downstream: Downstream) -> None:
        """Remove a downstream."""
        del self.downstreams[downstream]
        self._is_cut = False

    def _cut(self) -> None:
        """Cut the key space at all range bounds; the downstreams of a key are those of its segment.

        This is delayed until rows or resolved ts are sent, because many downstreams may be added and removed
        at once, and before that nothing was sent to a new one.
        """
        if self._is_cut:
            return
        self._is_cut = True
        ends = [each.end for each in self.downstreams if each.end]
        self._bounds = sorted({b"", *(each.start for each in self.downstreams), *ends})
        self._segments = [[] for _ in self._bounds]
        for each in self.downstreams:
            first = bisect.bisect_left(self._bounds, each.start)
            last = bisect.bisect_left(self._bounds, each.end) if each.end else len(self._bounds)
            for segment in self._segments[first:last]:
                segment.append(each)
        # A new object, because threads that commit read the former one without a lock.
        self.announced = Announced(self._bounds, self._segments)

    def resolve(self, min_ts: int) -> None:
        """Advance the resolved ts of every downstream in NORMAL."""
        self._cut()
        if self.flashback:
            min_ts = min(min_ts, self.flashback)
        for each in self.downstreams:
            if each.state is State.NORMAL:
                each.resolver.resolve(min_ts)

    def on_command(self, command: Command, old_values: OldValues) -> list[Downstream]:
        """Send an applied command's rows to the downstreams.

        Returns the congested ones: their client reads too slowly, or they have too many locks.
        """
        rows: dict[Downstream, list[bytes]] = {}
        congested: dict[Downstream, None] = {}
        self._cut()
        bounds, segments = self._bounds, self._segments
        # A command empties its ranges before it makes its changes, so locks that it puts there stay.
        if command.ranges:
            self._forget(command)
        for key, row, lock_ts, txn_source, raw, is_large in self._seen(command, old_values):
            for downstream in segments[bisect.bisect_right(bounds, key) - 1]:
                if downstream.state is State.UNINITIALIZED or downstream.raw is not raw:
                    continue
                mine = row
                if lock_ts is not None:
                    # A rollback need not leave a record (`commit.make_rollback`). The client still has the
                    # prewrite, so it gets a row. `locked_by` is asked before `track` removes the lock.
                    if not lock_ts and row is None:
                        mine = _silent_rollback(key, downstream.resolver.locked_by(key))
                    # Also if the row is filtered below: a lock whose row is not sent holds the resolved ts
                    # back as well.
                    if not downstream.resolver.track(key, lock_ts, is_large):
                        congested[downstream] = None
                if mine is not None and (not txn_source or downstream.wants(txn_source)):
                    found = rows.get(downstream)
                    if found is None:
                        rows[downstream] = [mine]
                    else:
                        found.append(mine)
        for downstream, found in rows.items():
            event = downstream.event(found, command.index if downstream.raw else 0)
            if not downstream.channel.put_observed(downstream, event):
                congested[downstream] = None
        return list(congested)

    def _forget(self, command: Command) -> None:
        for cf, start, end in command.ranges:
            if cf == mvcc.LOCK:
                for downstream in self.downstreams:
                    if downstream.state is not State.UNINITIALIZED:
                        downstream.resolver.forget(start, end)

    def _seen(self, command: Command, old_values: OldValues) -> Iterable[Seen]:
        long_values: dict[bytes, bytes] = {}
        unlocked: list[bytes] = []
        shapes, records = mvcc.LockShapes(), mvcc.WriteShapes()
        seen: dict[bytes, Seen] = {}
        for cf, key, value in command.changes:
            if cf == mvcc.LOCK:
                if value is None:
                    unlocked.append(key)
                else:
                    seen[key] = _on_lock(key, *shapes.split(value), long_values, old_values)
            # Versions and values are removed by GC and by rollbacks. A rollback has another change, which is
            # sent.
            elif value is None:
                continue
            elif cf == mvcc.WRITE:
                user = key[: -keys.TS_BYTES]
                if command.one_pc:
                    found = _on_one_pc(user, key, *records.split(value), long_values, old_values)
                else:
                    found = _on_write(user, key, *records.split(value))
                if found is not None:
                    seen[user] = found
            elif cf == mvcc.DEFAULT:
                user = key[: -keys.TS_BYTES]
                if self.has_raw and key[0] == _RAW:
                    seen[user] = (user, raw_row(user, keys.version_of(key), value), None, 0, True, False)
                else:
                    # A command writes the value before the lock or record that needs it.
                    long_values[user] = value
        # After all changes: the removal of a lock may come before or after the record that replaces it.
        for key in unlocked:
            before = seen.get(key)
            row, source = (None, 0) if before is None else (before[1], before[3])
            seen[key] = (key, row, 0, source, False, False)
        return seen.values()


def _on_lock(
    key: bytes,
    lock: mvcc.Lock,
    short: bytes | None,
    long_values: dict[bytes, bytes],
    old_values: OldValues,
) -> Seen:
    if not lock.is_data():
        return key, None, 0, 0, False, False
    new = b""
    is_large = lock.generation > 0
    if lock.kind == mvcc.KIND_PUT:
        found = long_values.get(key) if short is None else short
        # The lock was only rewritten, for example with a higher min_commit_ts. Its row was sent when it was
        # written.
        if found is None:
            return key, None, lock.start_ts, 0, False, is_large
        new = found
    # Another transaction may have committed between start_ts and for_update_ts. The lock replaces that
    # version.
    old = old_values.before(key, max(lock.start_ts, lock.for_update_ts))
    return key, prewrite_row(key, lock, new, old), lock.start_ts, lock.txn_source, False, is_large


def _on_write(user: bytes, key: bytes, write: mvcc.Write, short: bytes | None) -> Seen | None:
    raw, ts = keys.decode(user), keys.version_of(key)
    # A rollback has marked the record of another transaction, whose commit_ts is the start_ts that is
    # rolled back. Only the rollback is new.
    if write.gc_fence is not None:
        return user, wire.row(wire.ROLLBACK, 0, ts, 0, raw), None, 0, False, False
    if write.kind == mvcc.KIND_ROLLBACK:
        return user, wire.row(wire.ROLLBACK, 0, write.start_ts, 0, raw), None, 0, False, False
    if not write.is_data():
        return None
    source = write.txn_source
    row = wire.row(wire.COMMIT, OPS[write.kind], write.start_ts, ts, raw, short or b"", txn_source=source)
    return user, row, None, source, False, False


def _on_one_pc(
    user: bytes,
    key: bytes,
    write: mvcc.Write,
    short: bytes | None,
    long_values: dict[bytes, bytes],
    old_values: OldValues,
) -> Seen | None:
    if not write.is_data():
        return None
    commit_ts = keys.version_of(key)
    new = long_values.get(user, b"") if short is None else short
    # Below commit_ts, because the record is in the engine already, and a read at commit_ts would find it.
    old = old_values.before(user, commit_ts - 1)
    return user, committed_row(user, commit_ts, write, new, old), None, write.txn_source, False, False


def prewrite_row(key: bytes, lock: mvcc.Lock, value: bytes, old_value: bytes) -> bytes:
    """The row of a data lock on an encoded key."""
    return wire.row(
        wire.PREWRITE,
        OPS[lock.kind],
        lock.start_ts,
        0,
        keys.decode(key),
        value,
        old_value,
        lock.txn_source,
        lock.generation,
    )


def _silent_rollback(key: bytes, start_ts: int) -> bytes | None:
    return wire.row(wire.ROLLBACK, 0, start_ts, 0, keys.decode(key)) if start_ts else None


def committed_row(key: bytes, commit_ts: int, write: mvcc.Write, value: bytes, old_value: bytes) -> bytes:
    """The row of a version whose commit_ts and value are known together."""
    return wire.row(
        wire.COMMITTED,
        OPS[write.kind],
        write.start_ts,
        commit_ts,
        keys.decode(key),
        value,
        old_value,
        write.txn_source,
    )


def raw_row(key: bytes, ts: int, stored: bytes) -> bytes:
    """The row of a raw version: start_ts and commit_ts are the version's."""
    found = decode_value(stored)
    op = wire.OP_DELETE if found.deleted else wire.OP_PUT
    return wire.row(wire.COMMITTED, op, ts, ts, keys.decode(key), found.value, expires=found.expires)
