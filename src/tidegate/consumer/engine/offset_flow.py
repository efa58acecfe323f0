"""The consumer's state machine for topics without watermarks: row mode, offsets are the progress. Pure.

Nothing on such a topic says when a transaction is complete, so a change is applied as soon as it is read.
`Assembler` gets the *place* of a change, its offset + 1, in place of a commit ts. A partition is applied up
to a place, and a restart resumes reading there. All changes of a key are in one partition, in their order.

A DDL must still run between the rows before it and those after it: otherwise a TRUNCATE would remove new
rows. The producer sends a DDL after all rows up to its ts are acknowledged, and only then the rows above its
ts. This determines the place of the DDL in each partition:

    DDLs on all partitions   at its own copy; it runs when every partition has reached its copy
    DDLs on partition 0      there at its message; elsewhere between the rows of its tables up to its ts and
                             those above it, which is known once a partition is read to the end that it had
                             after the DDL was seen

For the second kind a partition must not be applied past DDLs that are not read yet. Its rows are *confirmed*
when partition 0 has been read to the end that it had after those rows were visible.

The producer may send everything since its checkpoint again. An executed DDL is recognized by its ts and
identity. Rows are applied again, so a row may show an earlier value until the repeated rows have caught up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.codec.base import DdlMessage
from tidegate.codec.formats import ddl_header
from tidegate.consumer.ddl import ddl_text, sql_replay
from tidegate.consumer.engine.assembler import Assembler, StagedRun
from tidegate.consumer.engine.ddl_queue import identity
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.flow import MAX_WAITING_BYTES, MAX_WAITING_ROWS, Ddls, Rows
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.engine.watermark import Mode, Watermarks

MAX_DONE: Final = 64
"""Executed DDLs that are remembered. Once there are so many, an older DDL counts as executed."""
Sides = Callable[[StagedRun, int], tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]]
"""From a segment and the ts of a DDL: the offset of each row, and whether it was committed after the DDL."""


@dataclass(frozen=True, slots=True)
class Group:
    """The partitions of one topic."""

    partitions: tuple[int, ...]
    ddls_on: int | None = None
    """The only partition that has DDLs; None: each partition has its copy."""


@dataclass(slots=True, eq=False)
class _Waiting:
    message: DdlMessage
    group: Group
    copies: dict[int, int] = field(default_factory=dict)
    """The offset of its first copy, by partition."""
    fences: dict[int, int] = field(default_factory=dict)
    """For each partition without a copy, the end that it had after the DDL was seen."""
    between: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each partition without a copy, two places: rows before the first come before the DDL, and rows from
    the second on come after it."""

    def lacks(self) -> list[int]:
        """Partitions in which the DDL's place is not known yet."""
        known = self.copies.keys() | self.between.keys()
        return [number for number in self.group.partitions if number not in known]


@dataclass(frozen=True, slots=True)
class _Check:
    """Once partition 0 has been read to `goal`, the rows up to these places are confirmed."""

    goal: int
    places: Mapping[int, int]


class OffsetFlow:
    """The flow from one source without watermarks to one target."""

    by_offset: Final = True
    apart: Final = False
    until: Final = None

    def __init__(
        self,
        position: Position,
        groups: Iterable[Group],
        sides: Sides,
        begun: Mapping[int, int] | None = None,
        now_ts: Callable[[], int] = lambda: 0,
    ) -> None:
        """`position` names every partition; that of a fresh target has the topic's first offsets.

        `begun`: by partition, the place up to which an interrupted write went. `now_ts`: the current time as
        a ts; it names snapshots if changes carry no commit ts.
        """
        self._now_ts = now_ts
        self.mode = Mode.ROW
        self._base, self._sides, self._begun = position, sides, begun
        self._next = {number: part.offset for number, part in position.partitions.items()}
        self._confirmed = dict(self._next)
        self._checks: dict[int, _Check] = {}
        """By the number of the partition that has the DDLs."""
        self.assembler = Assembler(dict(self._next))
        self.watermarks = Watermarks({number: p.watermark for number, p in position.partitions.items()})
        """The newest commit ts that was read from each partition; 0 if rows do not carry one."""
        self._stamps: dict[int, list[tuple[int, int]]] = {number: [] for number in self._next}
        """For each segment of which nothing is applied: the place of its first row, its newest commit ts."""
        self._newest = {number: p.watermark for number, p in position.partitions.items()}
        """By partition, a commit ts above which nothing was applied."""
        self._ddls: dict[str, _Waiting] = {}
        self._done = dict.fromkeys(position.ddls)
        self._named: dict[int, int] = dict(self._next)
        self._groups: dict[int, Group] = {}
        self._place(groups)

    def join(self, numbers: Iterable[int], groups: Iterable[Group], ids: Mapping[str, str]) -> None:
        """Add the partitions of a new topic; `groups` and `ids` are those of all topics."""
        self._base = replace(self._base, ids=dict(ids))
        for number in numbers:
            self._next[number] = self._confirmed[number] = self._named[number] = self._newest[number] = 0
            self._stamps[number] = []
            self.assembler.join(number)
            self.watermarks.join(number)
        self._place(groups)

    def wanted(self) -> dict[int, int]:
        """Where to continue reading, by partition. Above the limits, only where waiting rows need it."""
        held = self.assembler
        if held.rows <= MAX_WAITING_ROWS and held.bytes <= MAX_WAITING_BYTES:
            return dict(self._next)
        # Rows wait until these partitions are read. If they were not read either, nothing could ever be
        # applied and memory would stay full.
        needed = {group.ddls_on for group in self._groups.values() if group.ddls_on is not None}
        needed |= {number for waiting in self._ddls.values() for number in waiting.lacks()}
        needed |= {number for number, place in (self._begun or {}).items() if self._next[number] < place}
        return {number: at for number, at in self._next.items() if number in needed}

    def asked(self) -> list[int]:
        """The partitions whose ends `take` needs: those of topics that have DDLs on one partition only."""
        groups = {id(group): group for group in self._groups.values()}.values()
        alone = [g for g in groups if g.ddls_on is not None and len(g.partitions) > 1]
        return [number for group in alone for number in group.partitions]

    def take(self, fetched: Iterable[Fetched], ends: Mapping[int, int]) -> None:
        """Take the results of fetch tasks.

        `ends`: for each partition in `asked`, the offset after its last message, committed or not. The broker
        must have reported it after the previous call of `take`, and before this round was read.
        """
        # `ends` was reported before this round was read. So it says something only about what was known
        # before.
        before, seen = dict(self._next), list(self._ddls.values())
        for part in fetched:
            self._next[part.partition] = max(self._next[part.partition], part.next_offset)
            self.assembler.add(part.segments)
            for segment in part.segments:
                self._stamps[part.partition].append((segment.min_ts, segment.commit_ts))
                self.watermarks.advance(part.partition, segment.commit_ts)
            for message in part.ddls:
                self._queue(part.partition, message)
        for group in {id(group): group for group in self._groups.values()}.values():
            self._confirm(group, before, ends)
        for waiting in seen:
            for number in waiting.lacks():
                if number in ends:
                    # The first end after the DDL was seen suffices. A later one would put the DDL off with
                    # each new row.
                    waiting.fences.setdefault(number, ends[number])
        for waiting in self._ddls.values():
            self._stand(waiting)

    def next_step(self, max_rows: int) -> Rows | Ddls | None:
        """The next step that can be applied: about `max_rows` rows or `STEP_BYTES` at most; or None."""
        if self._begun is not None:
            return self._again(self._begun)
        limits = {number: self._limit(number) for number in self._next}
        # Rows first: no limit is behind a DDL that waits, so these rows come before it.
        if any(limit > self.assembler.applied(number) for number, limit in limits.items()):
            bounds = self.assembler.cut_each(limits, max_rows)
            for number, bound in bounds.items():
                self._passed(number, bound)
            return Rows(bounds)
        for name, waiting in self._ddls.items():
            if self._ready(waiting):
                del self._ddls[name]
                for number in waiting.group.partitions:
                    # A snapshot that shows the DDL must not have a name below the DDL's ts.
                    self._newest[number] = max(self._newest[number], waiting.message.ts)
                self._done[name] = None
                while len(self._done) > MAX_DONE:
                    del self._done[next(iter(self._done))]
                return Ddls(waiting.message.ts, (waiting.message,))
        return None

    def _again(self, begun: Mapping[int, int]) -> Rows | None:
        # The write is repeated only when all its rows are read, because the repetition must hold exactly the
        # same ones.
        if any(self._next[number] < place for number, place in begun.items()):
            return None
        self._begun = None
        for number, place in begun.items():
            self._passed(number, place)
        return Rows(begun)

    def waiting(self) -> int:
        """About how many rows could be applied now."""
        return self.assembler.pending({number: self._limit(number) for number in self._next})

    @property
    def ddls_waiting(self) -> int:
        """How many DDLs wait for the partitions to reach them."""
        return len(self._ddls)

    def lacking(self) -> list[int]:
        """Partitions in which the copy of a DDL has not been found yet."""
        waiting = (w for w in self._ddls.values() if w.group.ddls_on is None)
        return sorted({number for one in waiting for number in one.lacks()})

    def snapshot(self, after: int) -> int | None:
        """The ts, above `after`, that names the target's current state; None when nothing was applied since.

        No change above it was applied, but some below it may be missing.
        """
        if all(self.assembler.applied(number) == at for number, at in self._named.items()):
            return None
        # The producer may send rows again with their old commit ts, while names of snapshots must rise.
        newest = max(self._newest.values())
        return max(after + 1, newest or self._now_ts())

    def named(self) -> None:
        """The snapshot is named: remember what it holds."""
        self._named = {number: self.assembler.applied(number) for number in self._next}

    def meet(self) -> None:
        """Does nothing: every state can be named, so partitions need not meet."""

    def position(self, ts: int) -> Position:
        """The position to store with the snapshot at ts."""
        partitions = {}
        for number in self._next:
            place = self.assembler.applied(number)
            # Everything before `place` is applied and nothing after it, so reading resumes exactly there.
            # Rows that wait in staging files come after it.
            partitions[number] = PartitionPosition(place, place, self._newest[number])
        made = replace(self._base, ts=ts, mode=self.mode.value, partitions=partitions, definitions=None)
        return replace(made, ddls=tuple(self._done), by_offset=True)

    def next_offsets(self) -> dict[int, int]:
        """The offset up to which each partition has been read; only used to show lag."""
        return dict(self._next)

    def _place(self, groups: Iterable[Group]) -> None:
        self._groups = {number: group for group in groups for number in group.partitions}
        for waiting in self._ddls.values():
            waiting.group = self._groups[next(iter(waiting.copies))]

    def _queue(self, partition: int, message: DdlMessage) -> None:
        name = f"{message.ts:020d}:{identity(message)}"
        # Names begin with the ts. One below the oldest name that is kept was done, and evicted since.
        forgotten = len(self._done) == MAX_DONE and name < next(iter(self._done))
        if name in self._done or forgotten:
            return
        waiting = self._ddls.setdefault(name, _Waiting(message, self._groups[partition]))
        waiting.copies.setdefault(partition, message.offset)

    def _confirm(self, group: Group, before: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Confirm rows that no unread DDL can precede.

        A row above a DDL's ts becomes visible only after the DDL is acknowledged in partition 0. So once
        partition 0 is read to an end that was asked after some rows were read, all DDLs before these rows are
        known. One check is under way per topic; its rows are those read before its end was asked.
        """
        place = group.ddls_on
        if place is None or len(group.partitions) == 1:
            return
        check = self._checks.get(place)
        if check is None and place in ends:
            check = _Check(ends[place], {number: before[number] for number in group.partitions})
            self._checks[place] = check
        if check is not None and self._next[place] >= check.goal:
            for number, at in check.places.items():
                self._confirmed[number] = max(self._confirmed[number], at)
            del self._checks[place]

    def _stand(self, waiting: _Waiting) -> None:
        """Find the DDL's place in partitions that have no copy and are read up to its fence."""
        if waiting.group.ddls_on is None:
            return
        for number, fence in waiting.fences.items():
            if number in waiting.between or self._next[number] < fence:
                continue
            applied, ts = self.assembler.applied(number), waiting.message.ts
            touched = [s for s in self.assembler.waiting(number) if _touches(waiting.message, s)]
            # `last`: the first row that was committed after the DDL, or the fence if there is none. `first`:
            # the place after the last earlier row before that. Rows in between are of other tables.
            sides = [self._sides(segment, ts) for segment in touched]
            last = min([fence, *(int(at[after].min()) for at, after in sides if after.any())])
            earlier = [at[~after & (at < last)] for at, after in sides]
            first = max([applied, *(int(at.max()) + 1 for at in earlier if len(at))])
            waiting.between[number] = (first, max(first, last))

    def _limit(self, number: int) -> int:
        """The place up to which a partition may be applied now."""
        group = self._groups[number]
        alone = group.ddls_on is None or group.ddls_on == number or len(group.partitions) == 1
        # If a partition has its own copies of DDLs, or is the one that has all of them, every DDL before its
        # rows has been read together with them.
        limit = self._next[number] if alone else self._confirmed[number]
        for waiting in self._ddls.values():
            if number in waiting.copies:
                limit = min(limit, waiting.copies[number])
            elif number in waiting.between:
                limit = min(limit, waiting.between[number][1])
            elif waiting.group.ddls_on is not None and number in waiting.group.partitions:
                # The DDL's place in this partition is not known yet, so no row of it may go.
                limit = 0
        # Never below what is applied: the limit 0 only means that nothing more may be applied now.
        return max(limit, self.assembler.applied(number))

    def _ready(self, waiting: _Waiting) -> bool:
        if waiting.lacks():
            return False
        places = waiting.copies | {number: self._least(waiting, number) for number in waiting.between}
        return all(self.assembler.applied(number) >= place for number, place in places.items())

    def _least(self, waiting: _Waiting, number: int) -> int:
        """The place up to which a partition without a copy must be applied before a DDL can run.

        Rows that are sent again may come after rows of a later DDL, which hold the partition back. They need
        not be applied first, because the rows before this DDL were already sent once before the later DDL.
        """
        known = list(self._ddls.values())
        later = known[known.index(waiting) + 1 :]  # DDLs are queued in the order in which they were sent
        return min(
            [waiting.between[number][0], *(one.between[number][1] for one in later if number in one.between)]
        )

    def _passed(self, number: int, bound: int) -> None:
        stamps = self._stamps[number]
        self._newest[number] = max([self._newest[number], *(ts for begin, ts in stamps if begin <= bound)])
        self._stamps[number] = [(begin, ts) for begin, ts in stamps if begin > bound]


_DATABASE: Final = re.compile(r"\s*(?:create|drop|alter)\s+(?:database|schema)\b", re.IGNORECASE)


def _touches(message: DdlMessage, segment: StagedRun) -> bool:
    """Whether a segment has rows of a table that the DDL concerns."""
    event = ddl_header.decode(message.header) if message.header is not None else None
    if not message.table or _DATABASE.match(message.query):
        return segment.schema == message.schema
    names = {(message.schema, message.table)}
    for old, new in ddl_text.renamed(message.query):
        names |= {(old[0] or message.schema, old[1]), (new[0] or message.schema, new[1])}
    if event is not None:
        names |= {(event.schema, event.table), (event.old_schema, event.old_table)}
    elif "EXCHANGE" in message.query.upper():  # parsed only then, because this runs for each segment
        exchanged = sql_replay.read(message.query, message.schema)
        # The message names one table, and rows of both move. A later row of the other one must not be there
        # before: it would move too.
        if isinstance(exchanged, sql_replay.ExchangePartition):
            names |= set(sql_replay.tables(exchanged))
    return (segment.schema, segment.table) in names
