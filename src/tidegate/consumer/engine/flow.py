"""The consumer's state machine: fetched messages go in, steps to apply and positions to store come out. Pure.

    join(partitions) -> add partitions of a new topic, or those that are written from some ts on
    take(fetched)  ->  watermarks, waiting rows, waiting DDLs
    next_step()    ->  Rows(bounds) until everything below the next DDL is applied, then Ddls(ts), ...
    position(ts)   ->  what the target must store so that a restart neither loses nor repeats anything

In row mode, partitions of one topic wait for each other at its alignment marks (`meetings`). In table and
transaction mode they always advance together. A DDL may be read several times and is executed once
(`ddl_queue`).

If a write to the target was interrupted, its bounds come first (`begun`): exactly the rows of that write are
handed out again, so that what is written twice is the same. After Resolved a partition brings nothing new
below it, so the bounds alone determine the rows.

When the number of partitions changes (docs/repartition.md), rows of one key continue in another partition. So
no partition passes that ts before all have reached it; otherwise changes of a row would be applied out of
order. Each later Resolved names the ts, also after a restart.

A restart begins at the first offset still needed, with the largest Resolved mark *before* it: a mark after
that offset must be read again, together with the rows that it covers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.codec.base import DdlMessage
from tidegate.consumer.engine.assembler import Assembler
from tidegate.consumer.engine.ddl_queue import DdlQueue
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.meetings import Meetings
from tidegate.consumer.engine.places import topic_index
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.engine.watermark import Limits, Mode, Watermarks, bounds

MAX_WAITING_ROWS: Final = 20_000_000
"""Above this, only the partitions that hold the watermark back are read."""
MAX_WAITING_BYTES: Final = 16 << 30
"""The same limit in bytes of staging files. A single transaction that is larger is still read to its end."""
MAX_MEETINGS: Final = 10_000
"""The same limit for alignment marks that not all partitions have reached."""
MAX_MARKS: Final = 4096
"""Resolved marks remembered per partition. If there are more, every second one is forgotten."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Apply each partition's rows up to its bound."""

    bounds: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Ddls:
    """Execute these DDLs in order: all partitions have reached their FinishedTS."""

    ts: int
    messages: tuple[DdlMessage, ...]


@dataclass(slots=True)
class _Partition:
    next_offset: int
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(offset, ts) of Resolved marks above what is applied, ascending."""


class Flow:
    """The flow from one source to one target."""

    by_offset: Final = False

    def __init__(
        self,
        position: Position,
        mode: Mode,
        ddl_places: tuple[tuple[int, ...], ...],
        until: int | None,
        begun: Mapping[int, int] | None = None,
        *,
        apart: bool = False,
    ) -> None:
        """`position` names every partition; that of a fresh target has ts 0 and the topic's first offsets.

        A partition of which nothing is applied, while the position has a ts, belongs to a topic that is read
        from now on. `ddl_places`: as in `Limits`. `begun`: by partition, the ts up to which an interrupted
        write went. `apart`: the target's readers see each step, so a snapshot is only the ts up to which
        everything is applied, and partitions need not meet for it.
        """
        self.mode, self.until, self.apart = mode, until, apart
        self.align: int | None = None
        """Row and table mode: the ts at which all partitions must meet, when a snapshot is due; otherwise
        None."""
        self._base, self._begun = position, begun
        self._ddl_places = ddl_places
        self._joining = {number for number, p in position.partitions.items() if position.ts and not p.applied}
        self._ddls = DdlQueue(position.ddl_ts, position.ddls)
        # Marks before `offset` are not read again, so the stored watermark becomes a mark just before it.
        self._at = {
            number: _Partition(p.offset, [(p.offset - 1, p.watermark)])
            for number, p in position.partitions.items()
        }
        self.watermarks = Watermarks({number: p.watermark for number, p in position.partitions.items()})
        self.assembler = Assembler({number: p.applied for number, p in position.partitions.items()})
        self._meetings = Meetings(self.assembler, self._at)
        self._epoch = position.epoch
        self._switches = set(position.switches)
        """The ts at which the number of partitions changes, as long as not all partitions have reached it."""
        self._with_watermark: set[int] = set()
        """Topics of which one partition has brought two Resolved; for `asked`."""

    def join(
        self, numbers: Iterable[int], ddl_places: tuple[tuple[int, ...], ...], ids: Mapping[str, str]
    ) -> None:
        """Add partitions that are read from now on: those of a new topic, or those that a topic's changefeed
        writes from some ts on. `ddl_places` and the topics' `ids` replace the earlier ones.

        Call it before marks are taken that may follow their first rows: otherwise a watermark would pass rows
        of a partition that is not known. The producer creates a topic before it sends a Resolved that covers
        its rows, and the first Resolved that covers rows of new partitions names them.
        """
        self._ddl_places = ddl_places
        self._base = replace(self._base, ids=dict(ids))
        for number in numbers:
            self._at[number] = _Partition(0, [(-1, 0)])
            self._meetings.join(number)
            self._joining.add(number)
            self.watermarks.join(number)
            self.assembler.join(number)

    def asked(self) -> list[int]:
        """The partitions that may `leave`, if the broker confirms that nothing was ever written to them,
        committed or not.

        Nothing was read from them, and another partition of their topic has brought two Resolved. A producer
        sends the second one only when the first is on every partition that it writes, so it does not write
        these.
        """
        # An interrupted write may name such a partition, and `next_step` waits until it is there.
        if self._begun is not None:
            return []
        return [
            number
            for number, state in self._at.items()
            if not state.next_offset
            and not self.watermarks.of(number)
            and topic_index(number) in self._with_watermark
        ]

    def leave(self, numbers: Iterable[int], ddl_places: tuple[tuple[int, ...], ...]) -> None:
        """Remove partitions of `asked` that are empty; `ddl_places` is that of the others. They may join
        again later.
        """
        self._ddl_places = ddl_places
        for number in numbers:
            del self._at[number]
            self._meetings.leave(number)
            self._joining.discard(number)
            self.watermarks.leave(number)
            self.assembler.leave(number)

    def wanted(self) -> dict[int, int]:
        """Where to continue reading, by partition.

        Above the limits, only the partitions at the lowest watermark are read. They must be: waiting marks
        and rows go only when these partitions pass them, so a stop of all would never end. Each such
        partition can add only what comes before its next Resolved.
        """
        held = self.assembler
        crowded = held.rows > MAX_WAITING_ROWS or held.bytes > MAX_WAITING_BYTES
        crowded = crowded or self._meetings.count > MAX_MEETINGS
        numbers = self.watermarks.laggards() if crowded else list(self._at)
        return {number: self._at[number].next_offset for number in numbers}

    def take(self, fetched: Iterable[Fetched]) -> None:
        """Take the results of fetch tasks."""
        for part in fetched:
            state = self._at[part.partition]
            state.next_offset = max(state.next_offset, part.next_offset)
            self.assembler.add(part.segments)
            for ts, offset in part.resolved:
                if 0 < self.watermarks.of(part.partition) < ts:
                    # The first of the two may be that of the stored position.
                    self._with_watermark.add(topic_index(part.partition))
                if self.watermarks.advance(part.partition, ts):
                    state.marks.append((offset, ts))
            if len(state.marks) > MAX_MARKS:
                # A mark that is left out only makes the watermark lower that is stored.
                state.marks = state.marks[1::2]
            for message in part.ddls:
                # A topic that joins is read from its beginning: its DDLs may be older than those executed for
                # others.
                joins = part.partition in self._joining
                is_unreached = joins and message.ts > self.assembler.applied(part.partition)
                self._ddls.add(part.partition, message, is_unreached=is_unreached)
            for layout in part.layouts:
                self._epoch = max(self._epoch, layout.epoch)
                # Every later Resolved names the change again. Once all partitions have passed it, it must
                # hold none back.
                if not self.reached(layout.ts):
                    self._switches.add(layout.ts)
            if self.mode is Mode.ROW:
                self._meetings.take(part.partition, part.aligns)

    def next_step(self, max_rows: int) -> Rows | Ddls | None:
        """The next step that can be applied: about `max_rows` rows or `STEP_BYTES` at most; None if there is
        none.

        Rows of one ts stay in one step, even above these limits.
        """
        if self._begun is not None:
            # A partition that had just joined is in `_at` only after something was found on it.
            if any(number not in self._at for number in self._begun):
                return None
            # The write is repeated only when all its rows are read: some of its tables may hold them already,
            # and what is written twice must be the same.
            if any(self.watermarks.of(number) < ts for number, ts in self._begun.items()):
                return None
            begun, self._begun = self._begun, None
            return Rows(begun)
        ddl_ts = self._ddls.first_ts
        self._switches = {ts for ts in self._switches if not self.reached(ts)}
        allowed = self._meetings.lowered(bounds(self.watermarks, self.mode, self._limits()))
        moves = {p: ts for p, ts in allowed.items() if ts > self.assembler.applied(p)}
        if moves:
            # Rows of partitions that may not move do not count: the cut could lie below what the others have
            # applied, and a step would be empty.
            cut = self.assembler.cut(moves, max_rows)
            # One cut for all partitions, so that a step ends between transactions. A partition that is
            # further stays where it is, because applied rows cannot be taken back.
            return Rows({p: min(ts, max(cut, self.assembler.applied(p))) for p, ts in allowed.items()})
        # After a restart, applied rows may reach further than the watermark: the mark that covers them must
        # be read again, and DDLs of this ts may come before it. So the watermark must reach the ts as well.
        if ddl_ts is not None and self.reached(ddl_ts) and self.watermarks.lowest >= ddl_ts:
            return Ddls(ddl_ts, self._ddls.take(ddl_ts))
        return None

    def reached(self, ts: int) -> bool:
        """Whether all rows of every partition up to ts are handed out."""
        return all(self.assembler.applied(number) >= ts for number in self._at)

    def snapshot(self, after: int) -> int | None:
        """The ts, above `after`, at which the target's state can be named; None when it has no common ts."""
        ts = self.assembler.lowest if self.apart else self.assembler.aligned
        # docs/guarantees.md#snapshots-are-whole: only where every partition is applied up to the same ts.
        if ts is None or ts <= after or self.ddl_waits_at(ts):
            return None
        # After a restart, a DDL of ts may be before a mark that must be read again.
        return ts if self.watermarks.lowest >= ts else None

    def named(self) -> None:
        """The snapshot is named: partitions may advance independently again."""
        self.align = None

    def meet(self) -> None:
        """Row and table mode: make partitions wait for each other, if a snapshot needs it."""
        if self.align is None and not self.apart:
            # The largest one, because a partition may already be applied up to its own watermark.
            self.align = max(ts for _, ts in self.watermarks.items())

    def waiting(self) -> int:
        """About how many rows could be applied now."""
        limits, lowest = self._limits(), self.watermarks.lowest
        # A ts that all partitions can reach holds no row back: they pass it within the same commit.
        ddl_ts, switch_ts = (
            ts if ts is not None and ts > lowest else None for ts in (limits.ddl_ts, limits.switch_ts)
        )
        # Rows that must wait do not count: the caller would try again and again, without a pause.
        limits = replace(limits, ddl_ts=ddl_ts, switch_ts=switch_ts)
        return self.assembler.pending(self._meetings.lowered(bounds(self.watermarks, self.mode, limits)))

    def _limits(self) -> Limits:
        return Limits(
            ddl_ts=self._ddls.first_ts,
            # docs/guarantees.md#the-number-of-partitions-changes-at-one-ts-for-all-rows
            switch_ts=min(self._switches, default=None),
            until=self.until,
            ddl_places=self._ddl_places,
            align=self.align,
        )

    def ddl_waits_at(self, ts: int) -> bool:
        """Whether a DDL with finished_ts <= ts is not executed yet: then no snapshot can be named at ts."""
        first = self._ddls.first_ts
        return first is not None and first <= ts

    @property
    def ddls_waiting(self) -> int:
        """How many DDLs wait for the partitions to reach them."""
        return len(self._ddls)

    def position(self, ts: int) -> Position:
        """The position to store with the snapshot at ts."""
        partitions = {}
        for number, state in self._at.items():
            applied = self.assembler.applied(number)
            # Rows in staging files, waiting DDLs and marks ahead are only in memory, so a restart must read
            # all of them again: the least of their offsets is the first one needed.
            copies, ddl_ts = self._ddls.copies_in(number)
            needed = [*copies, *self._meetings.offsets_ahead(number)]
            offset = min([self.assembler.restart_offset(number, state.next_offset), *needed])
            # A mark at `offset` or behind it is read again, so a restart must not count on it.
            passed = [mark for at, mark in state.marks if at < offset]
            # Marks up to what is applied add nothing: the stored watermark is at least that.
            state.marks = [(at, mark) for at, mark in state.marks if mark > applied]
            watermark = max([applied, *passed])
            # A restart must read this DDL again before its partition counts as resolved up to the DDL's ts.
            if ddl_ts is not None and ddl_ts <= applied:
                watermark = ddl_ts - 1
            partitions[number] = PartitionPosition(offset, applied, watermark)
        made = replace(self._base, ts=ts, mode=self.mode.value, partitions=partitions, definitions=None)
        made = replace(made, ddl_ts=self._ddls.executed_ts, ddls=self._ddls.executed)
        switches = tuple(sorted(ts for ts in self._switches if not self.reached(ts)))
        return replace(made, epoch=self._epoch, switches=switches)

    def next_offsets(self) -> dict[int, int]:
        """The offset up to which each partition has been read; only used to show lag."""
        return {number: state.next_offset for number, state in self._at.items()}
