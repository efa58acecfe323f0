"""One observed region: turns applied commands into change events for its downstreams.

Pure but for the reading of old values.

| change in a command | row |
|---|---|
| put lock, type Put or Delete | PREWRITE with value and old value; none for a Put without its value (below) |
| put write, type Put or Delete | COMMIT |
| put write, type Rollback | ROLLBACK |
| put write with a gc_fence (a rollback at another's commit_ts) | ROLLBACK of who started at that ts |
| delete lock, no write for the key | ROLLBACK of the lock that was tracked: a silent rollback |
| anything else | none |

A Put lock whose long value is not in the same command is an old lock rewritten (heartbeat, pushed
min_commit_ts): its value went out with the first row. A command's rows for one downstream make one event,
whole. Downstreams see the rows of their own range.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from tidegate.proto import cdcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.cdc.channel import Channel, Subscription
from tidegate.tikv.cdc.old_value import OldValues
from tidegate.tikv.cdc.resolver import Resolver
from tidegate.tikv.mvcc import Change
from tidegate.tikv.region import Region

Row = pb.Event.Row
CDC_WRITE_SOURCE: Final = 0xFF
"""Bits of txn_source that a CDC writer sets; dropped when the downstream filters loops."""
NEVER_SENT: Final = ~0xFF
"""Bits of txn_source (lossy DDL reorganisation, physical import) whose rows nobody gets."""
_OPS: Final = {mvcc.PUT: Row.PUT, mvcc.DELETE: Row.DELETE}


class State(Enum):
    """A downstream's life. Rows from INITIALIZING on, resolved ts in NORMAL only."""

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
        "region",
        "request_id",
        "resolver",
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
    ) -> None:
        super().__init__()
        self.channel = channel
        self.request_id = request_id
        self.region = region
        self.start = max(start, region.start)
        self.end = min(end, region.end) if end and region.end else end or region.end
        self.checkpoint_ts = checkpoint_ts
        self.filter_loop = filter_loop
        self.state = State.UNINITIALIZED
        self.resolver = Resolver()

    def event(self, rows: Iterable[pb.Event.Row] = ()) -> pb.Event:
        """An event of this downstream with the given rows."""
        return pb.Event(
            region_id=self.region.id, request_id=self.request_id, entries=pb.Event.Entries(entries=rows)
        )

    def error(self, error: pb.Error) -> pb.Event:
        """An event of this downstream that ends it."""
        return pb.Event(region_id=self.region.id, request_id=self.request_id, error=error)

    def wants(self, txn_source: int) -> bool:
        """Whether rows of a transaction with this source are for the downstream."""
        return not txn_source or not (
            txn_source & NEVER_SENT or (self.filter_loop and txn_source & CDC_WRITE_SOURCE)
        )


class Seen(NamedTuple):
    """What a command did to one key: a row for it or none, and the data lock it has afterwards.

    `lock_ts` is 0 when it has none, None when the command did not touch the lock.
    """

    key: bytes
    row: pb.Event.Row | None
    lock_ts: int | None


class Announced:
    """The highest resolved ts that downstreams were told, by key. Immutable, so that any thread may ask."""

    __slots__ = ("_bounds", "_highest")

    def __init__(self, bounds: list[bytes], segments: list[list[Downstream]]) -> None:
        self._bounds = bounds
        self._highest = [max((each.resolver.resolved_ts for each in found), default=0) for found in segments]

    def __call__(self, key: bytes) -> int:
        """For an encoded key; 0 when nobody was told anything."""
        return self._highest[bisect.bisect_right(self._bounds, key) - 1]


class Delegate:
    """The downstreams of one region. Owned by the endpoint's thread."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.downstreams: list[Downstream] = []
        self._bounds: list[bytes] = [b""]
        self._segments: list[list[Downstream]] = [[]]

    def add(self, downstream: Downstream) -> None:
        """Begin to serve a downstream (it gets rows when it is initialized)."""
        self.downstreams.append(downstream)
        self._cut()

    def remove(self, downstream: Downstream) -> None:
        """Serve it no more."""
        self.downstreams.remove(downstream)
        self._cut()

    def _cut(self) -> None:
        """Cut the key space at all range bounds; a key's downstreams are those of its segment."""
        ends = [each.end for each in self.downstreams if each.end]
        self._bounds = sorted({b"", *(each.start for each in self.downstreams), *ends})
        self._segments = [[] for _ in self._bounds]
        for each in self.downstreams:
            first = bisect.bisect_left(self._bounds, each.start)
            last = bisect.bisect_left(self._bounds, each.end) if each.end else len(self._bounds)
            for segment in self._segments[first:last]:
                segment.append(each)

    def resolve(self, min_ts: int) -> Announced:
        """Advance every downstream that is in step; what they may now be told."""
        for each in self.downstreams:
            if each.state is State.NORMAL:
                each.resolver.resolve(min_ts)
        return Announced(self._bounds, self._segments)

    def on_command(self, changes: Sequence[Change], old_values: OldValues) -> list[Downstream]:
        """Send an applied command's rows to the downstreams; those that are congested are returned."""
        rows: dict[Downstream, list[pb.Event.Row]] = {}
        bounds, segments = self._bounds, self._segments
        for key, row, lock_ts in self._seen(changes, old_values):
            for downstream in segments[bisect.bisect_right(bounds, key) - 1]:
                if downstream.state is State.UNINITIALIZED:
                    continue
                if lock_ts is not None:
                    if not lock_ts and row is None:
                        row = _silent_rollback(key, downstream.resolver.locked_by(key))
                    downstream.resolver.track(key, lock_ts)
                if row is not None and downstream.wants(row.txn_source):
                    rows.setdefault(downstream, []).append(row)
        congested = []
        for downstream, mine in rows.items():
            if not downstream.channel.put_observed(downstream, downstream.event(mine)):
                congested.append(downstream)
        return congested

    def _seen(self, changes: Sequence[Change], old_values: OldValues) -> Iterable[Seen]:
        long_values: dict[bytes, bytes] = {}
        unlocked: dict[bytes, None] = {}
        seen: dict[bytes, Seen] = {}
        for cf, key, value in changes:
            if cf == mvcc.LOCK:
                if value is None:
                    unlocked[key] = None
                else:
                    seen[key] = _on_lock(key, value, long_values, old_values)
            elif value is None:
                continue
            elif cf == mvcc.WRITE:
                row = _on_write(key, value)
                if row is not None:
                    seen[key[: -keys.TS_BYTES]] = Seen(key[: -keys.TS_BYTES], row, None)
            elif cf == mvcc.DEFAULT:
                long_values[key[: -keys.TS_BYTES]] = value
        for key in unlocked:
            before = seen.get(key)
            seen[key] = Seen(key, before.row if before else None, 0)
        return seen.values()


def _on_lock(key: bytes, value: bytes, long_values: dict[bytes, bytes], old_values: OldValues) -> Seen:
    lock = mvcc.decode_lock(value)
    if not lock.is_data():
        return Seen(key, None, 0)
    new = b""
    if lock.kind == mvcc.PUT:
        found = long_values.get(key) if lock.short_value is None else lock.short_value
        if found is None:
            return Seen(key, None, lock.start_ts)
        new = found
    return Seen(key, prewrite_row(key, lock, new, old_values.before(key, lock)), lock.start_ts)


def prewrite_row(key: bytes, lock: mvcc.Lock, value: bytes, old_value: bytes) -> pb.Event.Row:
    """The row of a data lock on an encoded key."""
    return Row(
        start_ts=lock.start_ts,
        type=pb.Event.PREWRITE,
        op_type=_OPS[lock.kind],
        key=keys.decode(key),
        value=value,
        old_value=old_value,
        txn_source=lock.txn_source,
        generation=lock.generation,
    )


def _on_write(key: bytes, value: bytes) -> pb.Event.Row | None:
    write = mvcc.decode_write(value)
    raw, ts = keys.decode(key[: -keys.TS_BYTES]), keys.version_of(key)
    if write.gc_fence is not None:
        return Row(start_ts=ts, type=pb.Event.ROLLBACK, key=raw)
    if write.kind == mvcc.ROLLBACK:
        return Row(start_ts=write.start_ts, type=pb.Event.ROLLBACK, key=raw)
    if not write.is_data():
        return None
    return Row(
        start_ts=write.start_ts,
        commit_ts=ts,
        type=pb.Event.COMMIT,
        op_type=_OPS[write.kind],
        key=raw,
        value=write.short_value or b"",
        txn_source=write.txn_source,
    )


def _silent_rollback(key: bytes, start_ts: int) -> pb.Event.Row | None:
    return Row(start_ts=start_ts, type=pb.Event.ROLLBACK, key=keys.decode(key)) if start_ts else None


def committed_row(
    key: bytes, commit_ts: int, write: mvcc.Write, value: bytes, old_value: bytes
) -> pb.Event.Row:
    """The row of a version that was committed before the downstream came."""
    return Row(
        start_ts=write.start_ts,
        commit_ts=commit_ts,
        type=pb.Event.COMMITTED,
        op_type=_OPS[write.kind],
        key=keys.decode(key),
        value=value,
        old_value=old_value,
        txn_source=write.txn_source,
    )
