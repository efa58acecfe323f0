"""The consumer's state machine: fetched messages go in, steps to apply and positions to store come out. Pure.

    join(partitions) -> add partitions of a new topic, or those that are written from some ts on
    take(fetched)  ->  watermarks, waiting rows, waiting DDLs
    next_step()    ->  Rows(bounds) until everything below the next DDL is applied, then Ddls(ts), ...
    position(ts)   ->  what the target must store so that a restart neither loses nor repeats anything

In row mode, partitions of one topic wait for each other at its alignment marks (docs/formats/contract.md). In
transaction mode they always advance together.

If a write to the target was interrupted, its bounds come first (`begun`): exactly the rows of that write are
handed out again, so that what is written twice is the same. After Resolved a partition brings nothing new
below it, so the bounds alone determine the rows.

A DDL may be read several times: from each partition of a broadcast, after a restart, and because its producer
sent it again. It is executed once. DDLs below the newest executed ts are dropped. At that ts, DDLs are
dropped by their identities, which are stored with the position. The ts alone does not suffice: on TiCDC's
topics a DDL may follow Resolved of its own ts, and several DDLs share one ts (RENAME TABLES).

When the number of partitions changes (docs/repartition.md), rows of one key continue in another partition. So
no partition passes that ts before all have reached it; otherwise changes of a row would be applied out of
order. Each later Resolved names the ts, also after a restart.

A restart begins at the first offset still needed, with the largest Resolved mark *before* it: a mark after
that offset must be read again, together with the rows that it covers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from tidegate.codec.base import DdlMessage
from tidegate.codec.formats import ddl_header
from tidegate.consumer.engine.assembler import Assembler
from tidegate.consumer.engine.fetched import Fetched
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
class _Waiting:
    message: DdlMessage
    copies: list[tuple[int, int]]
    """(partition, offset) of each copy of the broadcast."""


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
    ) -> None:
        """`position` names every partition; that of a fresh target has ts 0 and the topic's first offsets.

        A partition of which nothing is applied, while the position has a ts, belongs to a topic that is read
        from now on. `ddl_places`: as in `Limits`. `begun`: by partition, the ts up to which an interrupted
        write went.
        """
        self.mode, self.until = mode, until
        self.align: int | None = None
        """Row mode: the ts at which all partitions must meet, when a snapshot is due; otherwise None."""
        self._base, self._begun = position, begun
        self._ddl_places = ddl_places
        self._joining = {number for number, p in position.partitions.items() if position.ts and not p.applied}
        self._ddl_ts, self._ddls_done = position.ddl_ts, dict.fromkeys(position.ddls)
        # Marks before `offset` are not read again, so the stored watermark becomes a mark just before it.
        self._at = {
            number: _Partition(p.offset, [(p.offset - 1, p.watermark)])
            for number, p in position.partitions.items()
        }
        self.watermarks = Watermarks({number: p.watermark for number, p in position.partitions.items()})
        self.assembler = Assembler({number: p.applied for number, p in position.partitions.items()})
        self._ddls: dict[tuple[int, str], _Waiting] = {}
        self._meetings: dict[int, dict[int, dict[int, int]]] = {}
        """Row mode, by topic and commit ts: the alignment marks that not all partitions have passed, with the
        offset of the first copy in each partition. A topic without such marks has no entry."""
        self._epoch = position.epoch
        self._switches = set(position.switches)
        """The ts at which the number of partitions changes, as long as not all partitions have reached it."""
        self._with_watermark: set[int] = set()
        """Topics of which one partition has brought two Resolved; for `asked`."""
        self._members: dict[int, list[int]] = {}
        """The partitions of each topic."""
        for number in self._at:
            self._members.setdefault(topic_index(number), []).append(number)

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
            self._members.setdefault(topic_index(number), []).append(number)
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
            self._members[topic_index(number)].remove(number)
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
        meetings = sum(map(len, self._meetings.values()))
        crowded = held.rows > MAX_WAITING_ROWS or held.bytes > MAX_WAITING_BYTES or meetings > MAX_MEETINGS
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
                self._queue(part.partition, message)
            for layout in part.layouts:
                self._epoch = max(self._epoch, layout.epoch)
                # Every later Resolved names the change again. Once all partitions have passed it, it must
                # hold none back.
                if not self.reached(layout.ts):
                    self._switches.add(layout.ts)
            if self.mode is Mode.ROW:
                self._take_aligns(part)

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
        ddl_ts = min((waiting.message.ts for waiting in self._ddls.values()), default=None)
        self._switches = {ts for ts in self._switches if not self.reached(ts)}
        limits = Limits(
            ddl_ts=ddl_ts,
            # docs/guarantees.md#the-number-of-partitions-changes-at-one-ts-for-all-rows
            switch_ts=min(self._switches, default=None),
            until=self.until,
            ddl_places=self._ddl_places,
            align=self.align,
        )
        allowed = self._meeting(bounds(self.watermarks, self.mode, limits))
        moves = {p: ts for p, ts in allowed.items() if ts > self.assembler.applied(p)}
        if moves:
            cut = self.assembler.cut(max(moves.values()), max_rows)
            # One cut for all partitions, so that a step ends between transactions. A partition that is
            # further stays where it is, because applied rows cannot be taken back.
            capped = {p: min(ts, max(cut, self.assembler.applied(p))) for p, ts in allowed.items()}
            # In row mode the cut may lie below what the moving partitions have applied, because rows of
            # partitions that may not move yet count as well. Then this step would be empty.
            if any(ts > self.assembler.applied(p) for p, ts in capped.items()):
                return Rows(capped)
        # After a restart, applied rows may reach further than the watermark: the mark that covers them must
        # be read again, and DDLs of this ts may come before it. So the watermark must reach the ts as well.
        if ddl_ts is not None and self.reached(ddl_ts) and self.watermarks.lowest >= ddl_ts:
            return self._take_ddls(ddl_ts)
        return None

    def reached(self, ts: int) -> bool:
        """Whether all rows of every partition up to ts are handed out."""
        return all(self.assembler.applied(number) >= ts for number in self._at)

    def snapshot(self, after: int) -> int | None:
        """The ts, above `after`, at which the target's state can be named; None when it has no common ts."""
        ts = self.assembler.aligned
        if ts is None or ts <= after or self.ddl_waits_at(ts):
            return None
        # After a restart, a DDL of ts may be before a mark that must be read again.
        return ts if self.watermarks.lowest >= ts else None

    def named(self) -> None:
        """The snapshot is named: partitions may advance independently again."""
        self.align = None

    def meet(self) -> None:
        """Row mode: make partitions wait for each other, so that a snapshot can be named."""
        if self.align is None:
            # The largest one, because a partition may already be applied up to its own watermark.
            self.align = max(ts for _, ts in self.watermarks.items())

    def waiting(self) -> int:
        """About how many rows could be applied now."""
        allowed = self._meeting(
            bounds(self.watermarks, self.mode, Limits(until=self.until, align=self.align))
        )
        return self.assembler.pending(allowed)

    def ddl_waits_at(self, ts: int) -> bool:
        """Whether a DDL with finished_ts <= ts is not executed yet: then no snapshot can be named at ts."""
        return any(waiting.message.ts <= ts for waiting in self._ddls.values())

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
            copies = [o for w in self._ddls.values() for p, o in w.copies if p == number]
            copies += self._marks_ahead(number)
            offset = min([self.assembler.restart_offset(number, state.next_offset), *copies])
            passed = [mark for at, mark in state.marks if at < offset]
            # Marks up to what is applied add nothing: the stored watermark is at least that.
            state.marks = [(at, mark) for at, mark in state.marks if mark > applied]
            watermark = max([applied, *passed])
            waiting = [w.message.ts for w in self._ddls.values() if any(p == number for p, _ in w.copies)]
            # A restart must read this DDL again before its partition counts as resolved up to the DDL's ts.
            if waiting and min(waiting) <= applied:
                watermark = min(waiting) - 1
            partitions[number] = PartitionPosition(offset, applied, watermark)
        made = replace(self._base, ts=ts, mode=self.mode.value, partitions=partitions, definitions=None)
        done = tuple(self._ddls_done)
        switches = tuple(sorted(ts for ts in self._switches if not self.reached(ts)))
        return replace(made, ddl_ts=self._ddl_ts, ddls=done, epoch=self._epoch, switches=switches)

    def next_offsets(self) -> dict[int, int]:
        """The offset up to which each partition has been read; only used to show lag."""
        return {number: state.next_offset for number, state in self._at.items()}

    def _take_aligns(self, part: Fetched) -> None:
        if not part.aligns:
            return
        held = self._meetings.setdefault(topic_index(part.partition), {})
        for ts, offset in part.aligns:
            held.setdefault(ts, {}).setdefault(part.partition, offset)

    def _meeting(self, allowed: dict[int, int]) -> dict[int, int]:
        """Lower the bounds so that each topic's partitions pass its alignment marks together.

        `low` is the ts that all its partitions may reach now. Marks at or below `low` need no stop, because
        all partitions advance to `low` in one step, and a step is written as its net effect, deletes first,
        so the order within it does not matter. Above `low`, no partition reaches the first mark before all
        can. A partition whose watermark covers a mark has read that mark, so none can pass it unnoticed.
        """
        for topic in list(self._meetings):
            members = self._members[topic]
            if not self._pending(topic, min(map(self.assembler.applied, members))):
                continue
            first = min(self._meetings[topic])
            # docs/guarantees.md#with-the-dispatcher-conflict-no-unique-value-is-taken-before-it-is-free
            low = min(allowed[number] for number in members)
            cap = low if first <= low else first - 1
            allowed |= {number: min(allowed[number], cap) for number in members}
        return allowed

    def _pending(self, topic: int, applied: int) -> bool:
        """Forget a topic's marks that all its partitions have passed. Returns whether any are left."""
        meetings = self._meetings[topic]
        for ts in [ts for ts in meetings if ts <= applied]:
            del meetings[ts]
        if not meetings:
            del self._meetings[topic]
        return bool(meetings)

    def _marks_ahead(self, number: int) -> list[int]:
        """Offsets of alignment marks that a partition has read and not reached: a restart must read them."""
        applied, held = self.assembler.applied(number), self._meetings.get(topic_index(number), {})
        return [copies[number] for ts, copies in held.items() if ts > applied and number in copies]

    def _queue(self, partition: int, message: DdlMessage) -> None:
        name = identity(message)
        # docs/guarantees.md#a-ddl-takes-effect-at-a-target-once
        late = message.ts < self._ddl_ts or (message.ts == self._ddl_ts and name in self._ddls_done)
        # A topic that joins is read from its beginning: its DDLs may be older than those executed for others.
        if late and (partition not in self._joining or message.ts <= self.assembler.applied(partition)):
            return
        waiting = self._ddls.setdefault((message.ts, name), _Waiting(message, []))
        waiting.copies.append((partition, message.offset))

    def _take_ddls(self, ts: int) -> Ddls:
        due = {key: w for key, w in self._ddls.items() if key[0] == ts}
        for key in due:
            del self._ddls[key]
        # Identities matter only at the newest ts: `_queue` drops older DDLs by their ts alone. A DDL of a
        # topic that has just joined may be older than that; then what its topic has applied shows that it is
        # done.
        if ts > self._ddl_ts:
            self._ddl_ts, self._ddls_done = ts, {}
        if ts == self._ddl_ts:
            self._ddls_done |= dict.fromkeys(name for _, name in due)
        return Ddls(ts, tuple(waiting.message for waiting in due.values()))


def identity(message: DdlMessage) -> str:
    """A hash that distinguishes DDLs of one ts and is equal for copies: names, text, number in the job."""
    event = ddl_header.decode(message.header) if message.header is not None else None
    part = [event.job_id, event.seq] if event is not None else []
    what = [message.schema, message.table, message.query, *part]
    return hashlib.sha256(orjson.dumps(what)).hexdigest()[:16]
