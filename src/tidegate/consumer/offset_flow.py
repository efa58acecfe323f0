"""The consumer's state machine for topics without watermarks: row mode, offsets are the progress. Pure.

Nothing on such a topic says when a transaction is whole, so a change is applied as soon as it is read. What
stands in for a commit ts in `Assembler` is the *place* of a change: its offset + 1. A partition is applied up
to a place, and a restart reads on from there. A key's changes are in one partition, in their order.

A DDL still stands between the rows before it and those after it, or a TRUNCATE would remove new rows. The
producer sends a DDL when all rows up to its ts are acknowledged, and rows above it afterwards. From this
follows where it stands in each partition:

    on all partitions    at its own copy; it runs when every partition has come to its copy
    on partition 0       there at its message; elsewhere between the rows of its tables up to its ts and
                         those above it, once a partition is read to the end that it had after the DDL was
                         seen

For the second kind a partition must not run ahead of DDLs that are not read yet. Its rows are *confirmed*
when partition 0 has been read to the end that it had after those rows were visible.

The producer may send everything again since its checkpoint. A DDL that was executed is known by its ts and
identity. Rows are applied again: until they have caught up, a row may show an earlier value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.codec import ddl_header
from tidegate.codec.base import DdlMessage
from tidegate.consumer import ddl_plan
from tidegate.consumer.assembler import Assembler, Segment
from tidegate.consumer.fetched import Fetched
from tidegate.consumer.flow import MAX_WAITING_BYTES, MAX_WAITING_ROWS, Ddls, Rows, identity
from tidegate.consumer.position import PartitionPosition, Position
from tidegate.consumer.watermark import Mode, Watermarks

MAX_DONE: Final = 64
"""DDLs that are remembered as executed; an older one than the oldest of so many is dropped."""
Sides = Callable[[Segment, int], tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]]
"""Of a segment and the ts of a DDL: the offset of each row, and whether it was committed after the DDL."""


@dataclass(frozen=True, slots=True)
class Group:
    """The partitions of one topic."""

    partitions: tuple[int, ...]
    ddls_on: int | None = None
    """The only one that has DDLs; None: each has its copy."""


@dataclass(slots=True, eq=False)
class _Waiting:
    message: DdlMessage
    group: Group
    copies: dict[int, int] = field(default_factory=dict)
    """By partition, the offset of its first copy."""
    fences: dict[int, int] = field(default_factory=dict)
    """By partition without a copy, where it ended after the DDL was seen."""
    between: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition without a copy: all rows before the first place come before the DDL, and none from the
    second place on."""

    def lacks(self) -> list[int]:
        """Partitions of which it is not known where it stands."""
        known = self.copies.keys() | self.between.keys()
        return [number for number in self.group.partitions if number not in known]


@dataclass(frozen=True, slots=True)
class _Check:
    """When partition 0 has come to `goal`, the rows up to these places are confirmed."""

    goal: int
    places: Mapping[int, int]


class OffsetFlow:
    """One source without watermarks on its way to one target."""

    by_offset: Final = True
    until: Final = None

    def __init__(
        self,
        position: Position,
        groups: Iterable[Group],
        sides: Sides,
        begun: Mapping[int, int] | None = None,
        now_ts: Callable[[], int] = lambda: 0,
    ) -> None:
        """`position` names every partition; a fresh target's has the topic's first offsets.

        `begun`: by partition, the place up to which an interrupted write went. `now_ts`: the time, which
        names snapshots where changes tell no commit ts.
        """
        self._now_ts = now_ts
        self.mode = Mode.ROW
        self._base, self._sides, self._begun = position, sides, begun
        self._next = {number: part.offset for number, part in position.partitions.items()}
        self._confirmed = dict(self._next)
        self._checks: dict[int, _Check] = {}
        """By the partition that has the DDLs."""
        self.assembler = Assembler(dict(self._next))
        self.watermarks = Watermarks({number: p.watermark for number, p in position.partitions.items()})
        """The newest commit ts that was read of each partition; 0 where rows do not say it."""
        self._stamps: dict[int, list[tuple[int, int]]] = {number: [] for number in self._next}
        """Of each segment that is not begun, the place of its first row and its newest commit ts."""
        self._newest = {number: p.watermark for number, p in position.partitions.items()}
        """A commit ts above which nothing was applied."""
        self._ddls: dict[str, _Waiting] = {}
        self._done = dict.fromkeys(position.ddls)
        self._named: dict[int, int] = dict(self._next)
        self._groups: dict[int, Group] = {}
        self._place(groups)

    def join(self, numbers: Iterable[int], groups: Iterable[Group], ids: Mapping[str, str]) -> None:
        """Partitions of a topic that has come into being; all `groups` and the topics' `ids` with them."""
        self._base = replace(self._base, ids=dict(ids))
        for number in numbers:
            self._next[number] = self._confirmed[number] = self._named[number] = self._newest[number] = 0
            self._stamps[number] = []
            self.assembler.join(number)
            self.watermarks.join(number)
        self._place(groups)

    def wanted(self) -> dict[int, int]:
        """Where to read on, by partition."""
        held = self.assembler
        if held.rows <= MAX_WAITING_ROWS and held.bytes <= MAX_WAITING_BYTES:
            return dict(self._next)
        needed = {group.ddls_on for group in self._groups.values() if group.ddls_on is not None}
        needed |= {number for waiting in self._ddls.values() for number in waiting.lacks()}
        needed |= {number for number, place in (self._begun or {}).items() if self._next[number] < place}
        return {number: at for number, at in self._next.items() if number in needed}

    def asked(self) -> list[int]:
        """The partitions of which `take` needs the ends: where DDLs are on one partition only."""
        groups = {id(group): group for group in self._groups.values()}.values()
        alone = [g for g in groups if g.ddls_on is not None and len(g.partitions) > 1]
        return [number for group in alone for number in group.partitions]

    def take(self, fetched: Iterable[Fetched], ends: Mapping[int, int]) -> None:
        """Take what the tasks brought.

        `ends`: by partition in `asked`, the offset behind its last message, committed or not, as the broker
        said after what was taken before, and before this round was read.
        """
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
                    waiting.fences.setdefault(number, ends[number])
        for waiting in self._ddls.values():
            self._stand(waiting)

    def next_step(self, max_rows: int) -> Rows | Ddls | None:
        """What can be applied now: at most about max_rows rows and `STEP_BYTES`; None when nothing moves."""
        if self._begun is not None:
            return self._again(self._begun)
        limits = {number: self._limit(number) for number in self._next}
        if any(limit > self.assembler.applied(number) for number, limit in limits.items()):
            bounds = self.assembler.cut_each(limits, max_rows)
            for number, bound in bounds.items():
                self._passed(number, bound)
            return Rows(bounds)
        for name, waiting in self._ddls.items():
            if self._ready(waiting):
                del self._ddls[name]
                for number in waiting.group.partitions:
                    self._newest[number] = max(self._newest[number], waiting.message.ts)
                self._done[name] = None
                while len(self._done) > MAX_DONE:
                    del self._done[next(iter(self._done))]
                return Ddls(waiting.message.ts, (waiting.message,))
        return None

    def _again(self, begun: Mapping[int, int]) -> Rows | None:
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
        """Partitions on which the copy of a DDL is missing so far."""
        waiting = (w for w in self._ddls.values() if w.group.ddls_on is None)
        return sorted({number for one in waiting for number in one.lacks()})

    def snapshot(self, after: int) -> int | None:
        """The ts by which the target's state can be named now, above `after`; None: nothing has moved.

        No change above it was applied; some below may be missing.
        """
        if all(self.assembler.applied(number) == at for number, at in self._named.items()):
            return None
        newest = max(self._newest.values())
        return max(after + 1, newest or self._now_ts())

    def named(self) -> None:
        """The snapshot is named."""
        self._named = {number: self.assembler.applied(number) for number in self._next}

    def meet(self) -> None:
        """Partitions need not meet: every state can be named."""

    def position(self, ts: int) -> Position:
        """What to keep with the snapshot at ts."""
        partitions = {}
        for number in self._next:
            place = self.assembler.applied(number)
            partitions[number] = PartitionPosition(place, place, self._newest[number])
        made = replace(self._base, ts=ts, mode=self.mode.value, partitions=partitions, definitions=None)
        return replace(made, ddls=tuple(self._done), by_offset=True)

    def next_offsets(self) -> dict[int, int]:
        """Up to where each partition has been read; for showing lag only."""
        return dict(self._next)

    def _place(self, groups: Iterable[Group]) -> None:
        self._groups = {number: group for group in groups for number in group.partitions}
        for waiting in self._ddls.values():
            waiting.group = self._groups[next(iter(waiting.copies))]

    def _queue(self, partition: int, message: DdlMessage) -> None:
        name = f"{message.ts:020d}:{identity(message)}"
        forgotten = len(self._done) == MAX_DONE and name < next(iter(self._done))
        if name in self._done or forgotten:
            return
        waiting = self._ddls.setdefault(name, _Waiting(message, self._groups[partition]))
        waiting.copies.setdefault(partition, message.offset)

    def _confirm(self, group: Group, before: Mapping[int, int], ends: Mapping[int, int]) -> None:
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
        """Find where a DDL stands in partitions that have no copy and are read to its fence."""
        if waiting.group.ddls_on is None:
            return
        for number, fence in waiting.fences.items():
            if number in waiting.between or self._next[number] < fence:
                continue
            applied, ts = self.assembler.applied(number), waiting.message.ts
            touched = [s for s in self.assembler.waiting(number) if _touches(waiting.message, s)]
            sides = [self._sides(segment, ts) for segment in touched]
            last = min([fence, *(int(at[after].min()) for at, after in sides if after.any())])
            earlier = [at[~after & (at < last)] for at, after in sides]
            first = max([applied, *(int(at.max()) + 1 for at in earlier if len(at))])
            waiting.between[number] = (first, max(first, last))

    def _limit(self, number: int) -> int:
        """Up to which place a partition may be applied now."""
        group = self._groups[number]
        alone = group.ddls_on is None or group.ddls_on == number or len(group.partitions) == 1
        limit = self._next[number] if alone else self._confirmed[number]
        for waiting in self._ddls.values():
            if number in waiting.copies:
                limit = min(limit, waiting.copies[number])
            elif number in waiting.between:
                limit = min(limit, waiting.between[number][1])
            elif waiting.group.ddls_on is not None and number in waiting.group.partitions:
                limit = 0
        return max(limit, self.assembler.applied(number))

    def _ready(self, waiting: _Waiting) -> bool:
        if waiting.lacks():
            return False
        places = waiting.copies | {number: self._least(waiting, number) for number in waiting.between}
        return all(self.assembler.applied(number) >= place for number, place in places.items())

    def _least(self, waiting: _Waiting, number: int) -> int:
        """The place from which on a partition without a copy has all rows that come before a DDL.

        Rows that are sent again may lie behind those of a later DDL, which hold the partition back. They
        need not come first: those before the DDL were sent before the later DDL was.
        """
        known = list(self._ddls.values())
        later = known[known.index(waiting) + 1 :]  # they were seen in the order in which they were sent
        return min(
            [waiting.between[number][0], *(one.between[number][1] for one in later if number in one.between)]
        )

    def _passed(self, number: int, bound: int) -> None:
        stamps = self._stamps[number]
        self._newest[number] = max([self._newest[number], *(ts for begin, ts in stamps if begin <= bound)])
        self._stamps[number] = [(begin, ts) for begin, ts in stamps if begin > bound]


_DATABASE: Final = re.compile(r"\s*(?:create|drop|alter)\s+(?:database|schema)\b", re.IGNORECASE)


def _touches(message: DdlMessage, segment: Segment) -> bool:
    """Whether a segment has rows of a table that the DDL is about."""
    event = ddl_header.decode(message.header) if message.header is not None else None
    if not message.table or _DATABASE.match(message.query):
        return segment.schema == message.schema
    names = {(message.schema, message.table)}
    for old, new in ddl_plan.renamed(message.query):
        names |= {(old[0] or message.schema, old[1]), (new[0] or message.schema, new[1])}
    if event is not None:
        names |= {(event.schema, event.table), (event.old_schema, event.old_table)}
    return (segment.schema, segment.table) in names
