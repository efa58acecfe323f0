"""The consumer's state machine: what was fetched goes in, what to apply and where to stand comes out. Pure.

    join(partitions) -> of a topic that comes into being, or that are written from some ts on
    take(fetched)  ->  watermarks, waiting rows, waiting DDLs
    next_step()    ->  Rows(bounds) until everything below the next DDL is applied, then Ddls(ts), ...
    position(ts)   ->  what to keep with the target so that a restart loses and doubles nothing

In row mode, partitions of one topic meet at its alignment marks (docs/formats/contract.md). In transaction
mode they are together everywhere.

Where a target was interrupted in the middle of a write, `begun` comes first: the very rows up to its bounds,
so that what is written again is what was written then. After Resolved a partition brings nothing new below
it, so the bounds alone say which rows those are.

A DDL may be read several times: from each partition of a broadcast, after a restart, and because its producer
sent it again. It is executed once: what lies below the newest executed DDL is dropped, and at that ts what is
known by its identity, which is kept with the position. On TiCDC's topics a DDL may follow Resolved of its own
ts, and several DDLs share one (RENAME TABLES), so the ts alone says nothing.

Where the number of partitions changes (docs/repartition.md) rows of one key go on in another partition. So no
partition passes that ts before all have reached it. Each later Resolved names it, also after a restart.

A restart begins at the first offset still needed and with the largest Resolved mark *before* it: a mark
behind it must be read again, together with the rows it covers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from tidegate.codec import ddl_header
from tidegate.codec.base import DdlMessage
from tidegate.consumer.assembler import Assembler
from tidegate.consumer.fetched import Fetched
from tidegate.consumer.places import topic_index
from tidegate.consumer.position import PartitionPosition, Position
from tidegate.consumer.watermark import Limits, Mode, Watermarks, bounds

MAX_WAITING_ROWS: Final = 20_000_000
"""Above this only the partitions that hold the watermark back are read on."""
MAX_WAITING_BYTES: Final = 16 << 30
"""Likewise, of their staging files. One transaction that is larger is read to its end all the same."""
MAX_MEETINGS: Final = 10_000
"""Likewise, of alignment marks that partitions have not reached."""
MAX_MARKS: Final = 4096
"""Resolved marks remembered per partition; every second one is forgotten when there are more."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Apply each partition's rows up to its bound."""

    bounds: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Ddls:
    """Execute these, in order: all partitions have reached their FinishedTS."""

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
    """One source on its way to one target."""

    by_offset: Final = False

    def __init__(
        self,
        position: Position,
        mode: Mode,
        ddl_places: tuple[tuple[int, ...], ...],
        until: int | None,
        begun: Mapping[int, int] | None = None,
    ) -> None:
        """`position` names every partition; a fresh target's has ts 0 and the topic's first offsets.

        One of which nothing is applied, beside others that have come further, belongs to a topic that is read
        from now on. `ddl_places`: as `Limits`. `begun`: by partition, the ts up to which an interrupted
        write went.
        """
        self.mode, self.until = mode, until
        self.align: int | None = None
        """Row mode: where all partitions must meet, when a snapshot is due."""
        self._base, self._begun = position, begun
        self._ddl_places = ddl_places
        self._joining = {number for number, p in position.partitions.items() if position.ts and not p.applied}
        self._ddl_ts, self._ddls_done = position.ddl_ts, dict.fromkeys(position.ddls)
        # What was known before `offset` is not read again, so it is carried on as a mark that stands there.
        self._at = {
            number: _Partition(p.offset, [(p.offset - 1, p.watermark)])
            for number, p in position.partitions.items()
        }
        self.watermarks = Watermarks({number: p.watermark for number, p in position.partitions.items()})
        self.assembler = Assembler({number: p.applied for number, p in position.partitions.items()})
        self._ddls: dict[tuple[int, str], _Waiting] = {}
        self._meetings: dict[int, dict[int, dict[int, int]]] = {}
        """Row mode: by topic and commit ts the alignment marks that its partitions have not passed, each with
        the offset of its first copy in each partition. A topic without any is not there."""
        self._epoch = position.epoch
        self._switches = set(position.switches)
        """Where the number of partitions changes and not all partitions are."""
        self._spoken: set[int] = set()
        """Topics of which one partition has brought two Resolved."""
        self._members: dict[int, list[int]] = {}
        """By topic, its partitions."""
        for number in self._at:
            self._members.setdefault(topic_index(number), []).append(number)

    def join(
        self, numbers: Iterable[int], ddl_places: tuple[tuple[int, ...], ...], ids: Mapping[str, str]
    ) -> None:
        """Partitions that are read from now on, with `ddl_places` and the topics' `ids`: of a topic that has
        come into being, or those that a topic's changefeed writes, too, from some ts on.

        Call it before marks are taken that may be behind their first rows: the producer makes a topic before
        it sends a Resolved that covers any, and the first Resolved that does names new partitions.
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
        """The partitions that may `leave` if nothing was ever written to them, committed or not.

        Nothing came from them, and their topic has two Resolved in another partition. A producer sends the
        second when the first is on every partition that it writes.
        """
        if self._begun is not None:
            return []
        return [
            number
            for number, state in self._at.items()
            if not state.next_offset
            and not self.watermarks.of(number)
            and topic_index(number) in self._spoken
        ]

    def leave(self, numbers: Iterable[int], ddl_places: tuple[tuple[int, ...], ...]) -> None:
        """Partitions of `asked` that nothing is on are not read, with `ddl_places` of the others. They may
        join later.
        """
        self._ddl_places = ddl_places
        for number in numbers:
            del self._at[number]
            self._members[topic_index(number)].remove(number)
            self._joining.discard(number)
            self.watermarks.leave(number)
            self.assembler.leave(number)

    def wanted(self) -> dict[int, int]:
        """Where to read on, by partition.

        Above the limits, the partitions at the lowest watermark are read on all the same. Waiting marks and
        rows go when these partitions pass them, so a stop here would never end. What one such partition can
        add is what stands before its next Resolved.
        """
        held = self.assembler
        meetings = sum(map(len, self._meetings.values()))
        crowded = held.rows > MAX_WAITING_ROWS or held.bytes > MAX_WAITING_BYTES or meetings > MAX_MEETINGS
        numbers = self.watermarks.laggards() if crowded else list(self._at)
        return {number: self._at[number].next_offset for number in numbers}

    def take(self, fetched: Iterable[Fetched]) -> None:
        """Take what the tasks brought."""
        for part in fetched:
            state = self._at[part.partition]
            state.next_offset = max(state.next_offset, part.next_offset)
            self.assembler.add(part.segments)
            for ts, offset in part.resolved:
                if 0 < self.watermarks.of(part.partition) < ts:
                    self._spoken.add(topic_index(part.partition))
                if self.watermarks.advance(part.partition, ts):
                    state.marks.append((offset, ts))
            if len(state.marks) > MAX_MARKS:
                state.marks = state.marks[1::2]
            for message in part.ddls:
                self._queue(part.partition, message)
            for layout in part.layouts:
                self._epoch = max(self._epoch, layout.epoch)
                if not self.reached(layout.ts):
                    self._switches.add(layout.ts)
            if self.mode is Mode.ROW:
                self._take_aligns(part)

    def next_step(self, max_rows: int) -> Rows | Ddls | None:
        """What can be applied now: at most about max_rows rows and `STEP_BYTES`; None when nothing moves.

        A ts is never split, however much it holds.
        """
        if self._begun is not None:
            # Partitions that had just joined are read only when something is found on them.
            if any(number not in self._at for number in self._begun):
                return None
            if any(self.watermarks.of(number) < ts for number, ts in self._begun.items()):
                return None
            begun, self._begun = self._begun, None
            return Rows(begun)
        ddl_ts = min((waiting.message.ts for waiting in self._ddls.values()), default=None)
        self._switches = {ts for ts in self._switches if not self.reached(ts)}
        limits = Limits(
            ddl_ts=ddl_ts,
            switch_ts=min(self._switches, default=None),
            until=self.until,
            ddl_places=self._ddl_places,
            align=self.align,
        )
        allowed = self._meeting(bounds(self.watermarks, self.mode, limits))
        moves = {p: ts for p, ts in allowed.items() if ts > self.assembler.applied(p)}
        if moves:
            cut = self.assembler.cut(max(moves.values()), max_rows)
            capped = {p: min(ts, max(cut, self.assembler.applied(p))) for p, ts in allowed.items()}
            if any(ts > self.assembler.applied(p) for p, ts in capped.items()):
                return Rows(capped)
        # After a restart rows can be in of which the mark is still to be read again, with DDLs before it.
        if ddl_ts is not None and self.reached(ddl_ts) and self.watermarks.lowest >= ddl_ts:
            return self._take_ddls(ddl_ts)
        return None

    def reached(self, ts: int) -> bool:
        """Whether every partition has handed out all its rows up to ts."""
        return all(self.assembler.applied(number) >= ts for number in self._at)

    def snapshot(self, after: int) -> int | None:
        """The ts at which the target's state can be named now, above `after`; None: it is at no ts."""
        ts = self.assembler.aligned
        if ts is None or ts <= after or self.ddl_waits_at(ts):
            return None
        # After a restart a DDL of ts may stand before a mark that is to be read again.
        return ts if self.watermarks.lowest >= ts else None

    def named(self) -> None:
        """The snapshot is named: partitions may run apart again."""
        self.align = None

    def meet(self) -> None:
        """Row mode: let partitions wait for each other, so that a snapshot can be named."""
        if self.align is None:
            self.align = max(ts for _, ts in self.watermarks.items())

    def waiting(self) -> int:
        """About how many rows could be applied now."""
        allowed = self._meeting(
            bounds(self.watermarks, self.mode, Limits(until=self.until, align=self.align))
        )
        return self.assembler.pending(allowed)

    def ddl_waits_at(self, ts: int) -> bool:
        """Whether a DDL with finished_ts <= ts is not executed yet: then ts is no snapshot."""
        return any(waiting.message.ts <= ts for waiting in self._ddls.values())

    @property
    def ddls_waiting(self) -> int:
        """How many DDLs wait for the partitions to reach them."""
        return len(self._ddls)

    def position(self, ts: int) -> Position:
        """What to keep with the snapshot at ts."""
        partitions = {}
        for number, state in self._at.items():
            applied = self.assembler.applied(number)
            copies = [o for w in self._ddls.values() for p, o in w.copies if p == number]
            copies += self._marks_ahead(number)
            offset = min([self.assembler.restart_offset(number, state.next_offset), *copies])
            passed = [mark for at, mark in state.marks if at < offset]
            state.marks = [(at, mark) for at, mark in state.marks if mark > applied]
            watermark = max([applied, *passed])
            waiting = [w.message.ts for w in self._ddls.values() if any(p == number for p, _ in w.copies)]
            if waiting and min(waiting) <= applied:  # a restart must read that DDL before it stands there
                watermark = min(waiting) - 1
            partitions[number] = PartitionPosition(offset, applied, watermark)
        made = replace(self._base, ts=ts, mode=self.mode.value, partitions=partitions, definitions=None)
        done = tuple(self._ddls_done)
        switches = tuple(sorted(ts for ts in self._switches if not self.reached(ts)))
        return replace(made, ddl_ts=self._ddl_ts, ddls=done, epoch=self._epoch, switches=switches)

    def next_offsets(self) -> dict[int, int]:
        """Up to where each partition has been read; for showing lag only."""
        return {number: state.next_offset for number, state in self._at.items()}

    def _take_aligns(self, part: Fetched) -> None:
        if not part.aligns:
            return
        held = self._meetings.setdefault(topic_index(part.partition), {})
        for ts, offset in part.aligns:
            held.setdefault(ts, {}).setdefault(part.partition, offset)

    def _meeting(self, allowed: dict[int, int]) -> dict[int, int]:
        """Bounds that let each topic's partitions pass its alignment marks together.

        Marks at or below `low`, up to where all of them may go, need no stop: all go to `low` in one step.
        A step is written by its net effect, its deletes first, so the order within it does not matter. No
        partition reaches the first mark above `low` before all can. A partition whose watermark covers a mark
        has brought it, so none can pass it unseen.
        """
        for topic in list(self._meetings):
            members = self._members[topic]
            if not self._pending(topic, min(map(self.assembler.applied, members))):
                continue
            first = min(self._meetings[topic])
            low = min(allowed[number] for number in members)
            cap = low if first <= low else first - 1
            allowed |= {number: min(allowed[number], cap) for number in members}
        return allowed

    def _pending(self, topic: int, applied: int) -> bool:
        """Forget a topic's marks that all its partitions have passed; whether any are left."""
        meetings = self._meetings[topic]
        for ts in [ts for ts in meetings if ts <= applied]:
            del meetings[ts]
        if not meetings:
            del self._meetings[topic]
        return bool(meetings)

    def _marks_ahead(self, number: int) -> list[int]:
        """The offsets of alignment marks that a partition has not reached: a restart must read them again."""
        applied, held = self.assembler.applied(number), self._meetings.get(topic_index(number), {})
        return [copies[number] for ts, copies in held.items() if ts > applied and number in copies]

    def _queue(self, partition: int, message: DdlMessage) -> None:
        name = identity(message)
        late = message.ts < self._ddl_ts or (message.ts == self._ddl_ts and name in self._ddls_done)
        # What is new of a topic that joins lies before what was executed for the others.
        if late and (partition not in self._joining or message.ts <= self.assembler.applied(partition)):
            return
        waiting = self._ddls.setdefault((message.ts, name), _Waiting(message, []))
        waiting.copies.append((partition, message.offset))

    def _take_ddls(self, ts: int) -> Ddls:
        due = {key: w for key, w in self._ddls.items() if key[0] == ts}
        for key in due:
            del self._ddls[key]
        if ts > self._ddl_ts:
            self._ddl_ts, self._ddls_done = ts, {}
        if ts == self._ddl_ts:
            self._ddls_done |= dict.fromkeys(name for _, name in due)
        return Ddls(ts, tuple(waiting.message for waiting in due.values()))


def identity(message: DdlMessage) -> str:
    """What tells a DDL from others of its ts, however often it is sent: names, text, number in its job."""
    event = ddl_header.decode(message.header) if message.header is not None else None
    part = [event.job_id, event.seq] if event is not None else []
    what = [message.schema, message.table, message.query, *part]
    return hashlib.sha256(orjson.dumps(what)).hexdigest()[:16]
