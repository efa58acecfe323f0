"""Whether topics keep the contract between their producer and its readers. Pure.

    decoded messages of a partition, in order --take--> TopicCheck --finish--> Verdict

The contract (docs/formats/contract.md): a row is always on one partition, and its changes appear first in
commit order; Resolved and DDL are broadcast; what they say of earlier and later rows holds; a change comes
again at most on its own partition. The seed of it is TiCDC's MQ design of 2020; `Producer` says in what the
real TiCDC differs from it.

The number of partitions may change at a ts T (docs/repartition.md). A row is on one partition up to T, and on
one above it: what is promised of a row's place and order holds within such an epoch. Resolved from T on names
the change, before any row above T, so that each partition itself tells what its rows are to be judged by.

Several topics of one changefeed are judged together: their partitions are numbered as `places` says. Resolved
is in all of them from a topic's first one on; a DDL is in one.

Partitions may be taken in any order, in pieces of any size. Everything above the lowest Resolved of all
partitions is remembered, and of what is below it as much as `remember` leaves room for: it tells a change
that comes again from one that comes late. What cannot be judged for want of memory, or because the topic's
beginning is gone, is counted, and never taken for a violation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from tidegate.codec.base import DdlMessage, Decoded, DecodedTable
from tidegate.codec.entry import DdlTo
from tidegate.consumer.layouts import Layouts, Placements
from tidegate.consumer.mark_headers import Alignment, MarkHeaders
from tidegate.consumer.places import place_of
from tidegate.dispatcher.router import Router
from tidegate.model.cells import DELETE
from tidegate.model.layout import Layout

REMEMBER: Final = 500_000
"""Changes that are remembered, about 250 bytes each."""
DDLS: Final = 10_000
"""So many DDLs are remembered, so that one that comes again is not taken for a late one."""
HOME_BITS: Final = 32
"""A ts and a partition in one number, the partition (with its topic) in so many bits."""
HOME_MASK: Final = (1 << HOME_BITS) - 1
ALIGNMENTS: Final = 1_000
"""So many epochs of a table's alignment marks are remembered."""
NO_HEADERS: Final = MarkHeaders()
SHOWN: Final = 20
"""Violations that are kept whole; of the others there is a count."""


class Producer(StrEnum):
    """Whose promises a topic is held to."""

    TIDEGATE = "tidegate"
    TICDC = "ticdc"
    """After Resolved R a row of exactly R may come, and a DDL of R; a DDL speaks of the rows of its own table
    alone; after a restart Resolved may go back."""


class Rule(StrEnum):
    """What a topic can break."""

    MOVED = "a row is always on one partition"
    PLACED = "a row is in the topic and on the partition that its dispatcher computes"
    ORDER = "the changes of a row appear first in commit order"
    AFTER_RESOLVED = "after Resolved no row at or below it appears for the first time"
    RESOLVED_BACK = "Resolved never goes back"
    RESOLVED_MISSING = "every Resolved is on every partition"
    DDL_MISSING = "a DDL is on every partition it belongs to"
    DDL_LATE = "a DDL comes before the Resolved of its ts"
    BEFORE_DDL = "no row above a DDL comes before it"
    AFTER_DDL = "after a DDL no row at or below it appears for the first time"
    LAYOUT = "every partition says the same of a change of the number of partitions"
    ALIGNED = "an alignment mark is on every partition, behind the table's older rows, and its epochs rise"
    DECODABLE = "every message can be decoded"


class Unjudged(StrEnum):
    """What could not be judged, and why."""

    NO_MARKS = "there is no Resolved: what comes late, and whether DDL was broadcast, cannot be told"
    BEGINNING = "rows whose first appearance may lie before the oldest message that is left"
    FORGOTTEN = "rows that may be duplicates of forgotten ones: raise --remember"
    LATE_DDL = "DDLs that may have come before, as a restart repeats them"
    UNTIMED = "rows whose messages do not say when they were committed"
    UNDEFINED = "rows of tables whose definition was told in a message that is not there any more"
    KEYLESS = "rows of tables without a key: which of them are the same row nobody can tell"
    REDUCED = "rows that the producer left out because they were too large"
    REPARTITIONED = (
        "rows after the producer has said that it changes the number of partitions: where they are"
    )
    PLACE = "rows whose partition cannot be computed from what the message has"


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where the contract is broken."""

    rule: Rule
    partition: int
    offset: int
    """-1: nothing is where something should be."""
    ts: int
    why: str
    table: str = ""
    """`schema.table`."""
    topic: str = ""


@dataclass(slots=True)
class Verdict:
    """What became of a check."""

    rows: int = 0
    again: int = 0
    """Changes that came once more, on their own partition."""
    resolved: int = 0
    """Messages, each partition's counted."""
    went_back: int = 0
    """Resolved that were below an earlier one, where that is allowed."""
    ddls: int = 0
    """Different ones."""
    lowest_resolved: int = 0
    """Of all partitions: up to here the topic is complete."""
    violations: list[Violation] = field(default_factory=list)
    """The first ones, in the order in which they were found."""
    counts: Counter[Rule] = field(default_factory=Counter)
    unjudged: Counter[Unjudged] = field(default_factory=Counter)
    tables: dict[str, int] = field(default_factory=dict)
    """Rows of each table."""
    dispatchers: dict[str, str] = field(default_factory=dict)
    """What the partitions of a table's rows say about its dispatcher, in words."""

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.counts


@dataclass(slots=True)
class _Partition:
    number: int
    topic: str
    partition: int
    began: int
    """What is at or below it may have appeared before we began."""
    resolved: int = 0
    ddl: int = 0
    table_ddl: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    """By table the epoch of its last alignment mark."""
    highest: int = 0
    """Of rows at their first appearance."""
    table_highest: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Ddl:
    ts: int
    query: str
    topic: str
    place: tuple[int, int]
    """Partition and offset of its first message."""
    partitions: set[int] = field(default_factory=set)
    settled: bool = False
    """Whether all partitions have passed it."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a piece of one partition, by place."""

    offset: list[int]
    ts: list[int]
    op: list[int]
    row: list[int | None]
    """A hash of table and key; None: the table has no key."""
    table: list[str]


class TopicCheck:
    """Takes what is on a topic, partition by partition, and judges it. Not thread-safe, no I/O."""

    def __init__(
        self,
        partitions: Sequence[int],
        *,
        producer: Producer = Producer.TIDEGATE,
        ddl_to: DdlTo = DdlTo.ALL,
        router: Router | None = None,
        begun: Mapping[int, int] = MappingProxyType({}),
        remember: int = REMEMBER,
        topics: Sequence[str] = ("",),
        layouts: Mapping[str, Sequence[Layout]] = MappingProxyType({}),
    ) -> None:
        """`partitions`: all of the topics', by number. `router`: the producer's dispatch rules, if known.

        `begun`: of partitions whose first messages are not taken the greatest ts that any of them may have.
        `layouts`: by topic the changes of its number of partitions that are known beforehand, in order.
        Others are learned; rows up to the first of them are then not compared with their dispatcher.
        """
        self._partitions = {n: _Partition(n, *place_of(topics, n), begun.get(n, 0)) for n in partitions}
        self._floor = max((one.began for one in self._partitions.values()), default=0)
        self._strict = producer is Producer.TIDEGATE
        self._ddl_to, self._remember = ddl_to, remember
        # By the greatest number, because whoever reads what there is does not bring empty partitions.
        counts: dict[str, int] = {}
        for one in self._partitions.values():
            counts[one.topic] = max(counts.get(one.topic, 0), one.partition + 1)
        self._router = router
        self._layouts = Layouts(counts, layouts)
        self._placements = Placements(self._layouts, router, strict_null=self._strict)
        self._topics = len(counts)
        self._compared: Counter[str] = Counter()
        """By topic, how many rows were compared with their dispatcher."""
        self._misplaced: Counter[str] = Counter()
        """And how many of them were elsewhere."""
        self._joined: dict[str, int] = {}
        """By topic its first Resolved: the earlier ones of others are not there."""
        self._homes: dict[int, int] = {}
        """By change (row, ts, operation): its ts and the partition where it appeared."""
        self._newest: dict[int, int] = {}
        """By row: the greatest ts that has appeared, and where."""
        self._forgotten = 0
        """Changes at or below it may be forgotten."""
        self._low = 0
        self._marks: dict[int, set[int]] = {}
        """By ts of a Resolved that some partition has not passed: where it is."""
        self._ddls: dict[tuple[int, str, str], _Ddl] = {}
        """The last ones, by ts, topic and text."""
        self._ddls_forgotten = 0
        """A DDL at or below it may be forgotten."""
        self._moves = False
        """Whether the producer has changed the number of partitions."""
        self._epochs: set[int] = set()
        """What Resolved say of how often the number of partitions has changed; 0: nothing."""
        self._aligned: dict[str, dict[int, tuple[str, int]]] = {}
        """By table the last ALIGNMENTS epochs of its alignment marks: id and ts."""
        self._found = Verdict()

    @property
    def verdict(self) -> Verdict:
        """What was found so far."""
        return self._found

    @property
    def pressed(self) -> bool:
        """Whether partitions that are ahead had better wait for the others."""
        return len(self._homes) > self._remember // 2

    def ahead(self, partition: int) -> bool:
        """Whether a partition has a higher Resolved than the lowest."""
        return self._partitions[partition].resolved > self._low

    # --- taking ---------------------------------------------------------------------------------------

    def take(self, partition: int, decoded: Decoded, headers: MarkHeaders = NO_HEADERS) -> None:
        """What the next messages of a partition held, and what their headers say.

        Changes of the number of partitions are learned first: rows of the same piece may lie behind the
        Resolved that names one, and their place is judged by it. Then rows and marks are taken in the order
        of their offsets, because nearly every rule is about what came before what.
        """
        state = self._partitions[partition]
        for layout in headers.layouts.values():
            self._learn(state, layout)
        self._place(state, decoded.rows)
        rows, at = self._rows(decoded.rows), 0
        for offset, what in _controls(decoded):
            upto = bisect_left(rows.offset, offset)
            self._take_rows(state, rows, at, upto)
            at = upto
            match what:
                case int():
                    if offset not in headers.layouts:
                        self._take_epoch(state, headers.epochs.get(offset, 0))
                    alignment = headers.alignments.get(offset)
                    if alignment is not None:
                        self._take_alignment(state, what, alignment, offset)
                    # An alignment mark, even an unreadable one, may be a Resolved that was there before.
                    is_mark = alignment is not None or offset in headers.unsound
                    if not is_mark or what > state.resolved:
                        self._take_resolved(state, what, offset)
                case DdlMessage():
                    self._take_ddl(state, what)
                case _:
                    self._moves |= offset not in headers.layouts
        self._take_rows(state, rows, at, len(rows.offset))
        for offset, why in headers.unsound.items():
            self._violated(Rule.DECODABLE, state, offset, 0, why)
        for bad in decoded.bad:
            if bad.reduced_ts is not None:
                self._found.unjudged[Unjudged.REDUCED] += 1
            elif bad.unknown is not None and state.began:
                self._found.unjudged[Unjudged.UNDEFINED] += 1
            else:
                self._violated(Rule.DECODABLE, state, bad.offset, 0, bad.why)
        self._settle()

    def finish(self) -> Verdict:
        """The verdict, when there is nothing more to take."""
        found = self._found
        if not found.resolved and found.rows:
            found.unjudged[Unjudged.NO_MARKS] = found.rows
        found.lowest_resolved = self._low
        found.dispatchers |= self._placements.words()
        return found

    def _rows(self, tables: Sequence[DecodedTable]) -> _Rows:
        if not tables:
            return _Rows([], [], [], [], [])
        offset = np.concatenate([table.offset for table in tables])
        seq = np.concatenate([table.seq for table in tables])
        order = np.lexsort((seq, offset)).tolist()
        times = np.concatenate([table.commit_ts for table in tables]).tolist()
        ops = np.concatenate([table.op for table in tables]).tolist()
        names: list[str] = []
        rows: list[int | None] = []
        for table in tables:
            name = f"{table.schema}.{table.table}"
            self._found.tables[name] = self._found.tables.get(name, 0) + len(table)
            names += [name] * len(table)
            rows += _row_hashes(name, table)
        return _Rows(
            offset[order].tolist(),
            [times[i] for i in order],
            [ops[i] for i in order],
            [rows[i] for i in order],
            [names[i] for i in order],
        )

    def _take_rows(self, state: _Partition, rows: _Rows, first: int, end: int) -> None:
        """Rows between two marks of a partition.

        A change that is known comes again, and only its partition is judged: a producer that restarts repeats
        whole stretches, so neither order nor Resolved binds it. TiCDC may send a row of exactly R after
        Resolved R, hence its limit of one less.
        """
        homes, newest, found = self._homes, self._newest, self._found
        here, began, forgotten = state.number, state.began, self._forgotten
        limit = state.resolved if self._strict else state.resolved - 1
        unsure = max(forgotten, began)
        found.rows += end - first
        for i in range(first, end):
            ts, row = rows.ts[i], rows.row[i]
            if row is None or not ts:
                found.unjudged[Unjudged.KEYLESS if ts else Unjudged.UNTIMED] += 1
                continue
            change = hash((row, ts, rows.op[i]))
            home = homes.get(change)
            if home is not None:
                found.again += 1
                if home & HOME_MASK != here and not self._moves:
                    why = f"it appeared on {self._at(home & HOME_MASK)} before"
                    self._violated(Rule.MOVED, state, rows.offset[i], ts, why, rows.table[i])
                continue
            place = homes[change] = ts << HOME_BITS | here
            epoch = self._layouts.epoch(state.topic, ts)
            row = hash((row, epoch)) if epoch else row  # its place and order are promised within an epoch
            known = newest.get(row, 0)
            if ts >= known >> HOME_BITS:
                newest[row] = place
            if known and known & HOME_MASK != here:
                self._judge_move(state, rows, i, known)
            if ts <= unsure:
                if ts <= limit or ts < known >> HOME_BITS:
                    why_not = Unjudged.FORGOTTEN if ts <= forgotten else Unjudged.BEGINNING
                    found.unjudged[why_not] += 1
            else:
                self._judge_order(state, rows, i, known >> HOME_BITS, limit)
            state.highest = max(state.highest, ts)
            if not self._strict:
                table = rows.table[i]
                state.table_highest[table] = max(state.table_highest.get(table, 0), ts)

    def _judge_move(self, state: _Partition, rows: _Rows, i: int, known: int) -> None:
        """A row that was on another partition before."""
        places = state.partition, self._partitions[known & HOME_MASK].partition
        if not self._moves and not self._placements.may_move(state.topic, rows.table[i], places):
            why = f"the row's change of {known >> HOME_BITS} is on {self._at(known & HOME_MASK)}"
            self._violated(Rule.MOVED, state, rows.offset[i], rows.ts[i], why, rows.table[i])

    def _at(self, number: int) -> str:
        """A partition in words; with its topic where there are several."""
        one = self._partitions[number]
        return f"partition {one.partition}" + (f" of {one.topic}" if self._topics > 1 else "")

    def _judge_order(self, state: _Partition, rows: _Rows, i: int, known: int, limit: int) -> None:
        """A change that appears for the first time; `known`: the greatest ts of its row so far."""
        ts, offset, table = rows.ts[i], rows.offset[i], rows.table[i]
        if ts <= limit:
            why = f"Resolved {state.resolved} came before it"
            self._violated(Rule.AFTER_RESOLVED, state, offset, ts, why, table)
        if ts < known:
            why = f"the row's change of {known} appeared before it"
            self._violated(Rule.ORDER, state, offset, ts, why, table)
        if ts < state.epochs.get(table, 0):
            why = f"the table's alignment mark of {state.epochs[table]} came before it"
            self._violated(Rule.ALIGNED, state, offset, ts, why, table)
        ddl = state.ddl if self._strict else state.table_ddl.get(table, 0)
        if ts < ddl or (self._strict and ts == ddl):
            why = f"a DDL of {ddl} came before it"
            self._violated(Rule.AFTER_DDL, state, offset, ts, why, table)

    def _take_resolved(self, state: _Partition, ts: int, offset: int) -> None:
        self._found.resolved += 1
        if ts < state.resolved:
            if self._strict:
                why = f"Resolved {state.resolved} came before it"
                self._violated(Rule.RESOLVED_BACK, state, offset, ts, why)
            else:
                self._found.went_back += 1
            return
        state.resolved = ts
        self._joined[state.topic] = min(ts, self._joined.get(state.topic, ts))
        self._marks.setdefault(ts, set()).add(state.number)

    def _take_epoch(self, state: _Partition, epoch: int) -> None:
        """A row is on one partition within an epoch: with a second one, of which nothing more is said, rows
        may have moved.
        """
        if epoch or not self._layouts.of(state.topic):
            self._epochs.add(epoch)
            self._moves |= len(self._epochs) > 1

    def _learn(self, state: _Partition, layout: Layout) -> None:
        """A change of the number of partitions, as one Resolved tells it."""
        before = list(self._layouts.of(state.topic))
        if not self._layouts.learn(state.topic, layout):
            why = f"it says {layout}, and another one said {before[-1]}"
            self._violated(Rule.LAYOUT, state, -1, layout.ts, why)
        elif not before and layout.old != sum(one.topic == state.topic for one in self._partitions.values()):
            self._unplace(state.topic)

    def _unplace(self, topic: str) -> None:
        """What was compared with the dispatcher so far was not by the number there was."""
        found, wrong = self._found, self._misplaced.pop(topic, 0)
        found.counts = +(found.counts - Counter({Rule.PLACED: wrong}))
        found.violations = [one for one in found.violations if (one.rule, one.topic) != (Rule.PLACED, topic)]
        found.unjudged[Unjudged.REPARTITIONED] += self._compared.pop(topic, 0)
        self._placements.forget(topic)

    def _take_alignment(self, state: _Partition, ts: int, mark: Alignment, offset: int) -> None:
        known = self._aligned.setdefault(mark.table, {})
        before = state.epochs.get(mark.table)
        if before == mark.epoch and known.get(mark.epoch) == (mark.id, ts):
            return  # once more, after a restart
        if before is not None and mark.epoch <= before:
            why = f"the mark of epoch {before} came before the one of epoch {mark.epoch}"
            self._violated(Rule.ALIGNED, state, offset, ts, why, mark.table)
            return
        other = known.setdefault(mark.epoch, (mark.id, ts))
        if other != (mark.id, ts):
            why = f"another partition has {other[0]!r} at {other[1]} as epoch {mark.epoch}"
            self._violated(Rule.ALIGNED, state, offset, ts, why, mark.table)
        for epoch in known:
            expected = before is not None and before < epoch < mark.epoch
            if expected and self._has_rows(state, epoch):
                why = f"the mark of epoch {epoch} is on another partition alone"
                self._violated(Rule.ALIGNED, state, -1, known[epoch][1], why, mark.table)
        state.epochs[mark.table] = mark.epoch
        while len(known) > ALIGNMENTS:
            del known[min(known)]

    def _has_rows(self, state: _Partition, ts: int) -> bool:
        """Whether rows of this commit ts may be on a partition; False where that is not known."""
        return state.partition < self._layouts.rows_on(state.topic, self._layouts.epoch(state.topic, ts))

    def _take_ddl(self, state: _Partition, ddl: DdlMessage) -> None:
        key = ddl.ts, state.topic, ddl.query
        known = self._ddls.get(key)
        if known is None:
            place = state.partition, ddl.offset
            known = self._ddls[key] = _Ddl(ddl.ts, ddl.query, state.topic, place)
            self._found.ddls += 1
        elif state.number in known.partitions:
            return  # once more, after a restart
        known.partitions.add(state.number)
        table = f"{ddl.schema}.{ddl.table}"
        if self._ddl_to is DdlTo.FIRST and state.partition != 0:
            why = "DDL of this protocol belongs on partition 0 alone"
            self._violated(Rule.DDL_MISSING, state, ddl.offset, ddl.ts, why, table)
        highest = state.highest if self._strict else state.table_highest.get(table, 0)
        sure = ddl.ts > max(state.began, self._ddls_forgotten)
        late = ddl.ts < state.resolved or (self._strict and ddl.ts == state.resolved)
        if not sure:
            self._found.unjudged[Unjudged.LATE_DDL] += late or highest > ddl.ts
        elif late:
            why = f"Resolved {state.resolved} came before it"
            self._violated(Rule.DDL_LATE, state, ddl.offset, ddl.ts, why, table)
        elif highest > ddl.ts:
            why = f"a row of {highest} came before it"
            self._violated(Rule.BEFORE_DDL, state, ddl.offset, ddl.ts, why, table)
        state.ddl = max(state.ddl, ddl.ts)
        if not self._strict:
            state.table_ddl[table] = max(state.table_ddl.get(table, 0), ddl.ts)

    def _place(self, state: _Partition, tables: Sequence[DecodedTable]) -> None:
        """Compare where rows are with what their dispatcher computes."""
        if self._moves:
            self._found.unjudged[Unjudged.REPARTITIONED] += sum(map(len, tables))
            return
        for table in tables:
            if self._router is not None and self._router.rule_of(table.schema, table.table).topic:
                self._judge_topic(state, table, self._router.topic_of(table.schema, table.table))
            for epoch, rows in self._layouts.parts(state.topic, table):
                self._place_rows(state, rows, epoch)

    def _place_rows(self, state: _Partition, table: DecodedTable, epoch: int) -> None:
        """Rows of a table and of one epoch."""
        partitions = self._layouts.rows_on(state.topic, epoch)
        if not partitions:
            self._found.unjudged[Unjudged.REPARTITIONED] += len(table)
            return
        self._compared[state.topic] += len(table)
        if state.partition >= partitions:
            why = f"rows of its time are on the first {partitions} partitions"
            for i in range(len(table)):
                self._misplace(state, table, i, why)
            return
        placement = self._placements.of(state.topic, epoch, partitions)
        wrong, unknown, rule = placement.look(table, state.partition)
        if unknown:
            self._found.unjudged[Unjudged.PLACE] += unknown
        for i, expected in wrong:
            self._misplace(state, table, i, f"dispatcher '{rule}' puts it on partition {expected}")

    def _misplace(self, state: _Partition, table: DecodedTable, i: int, why: str) -> None:
        self._misplaced[state.topic] += 1
        name, ts = f"{table.schema}.{table.table}", int(table.commit_ts[i])
        self._violated(Rule.PLACED, state, int(table.offset[i]), ts, why, name)

    def _judge_topic(self, state: _Partition, table: DecodedTable, expected: str) -> None:
        """Rows of a table whose rule names a topic."""
        if expected != state.topic:
            why = f"its {len(table)} rows there belong into topic {expected}"
            name, ts = f"{table.schema}.{table.table}", int(table.commit_ts[0])
            self._violated(Rule.PLACED, state, int(table.offset[0]), ts, why, name)

    # --- what all partitions have passed --------------------------------------------------------------

    def _settle(self) -> None:
        # Partitions that nothing was ever written to, as the producer says, hold nothing back.
        written = [
            one for one in self._partitions.values() if one.partition < self._layouts.written(one.topic)
        ]
        low = min(one.resolved for one in written)
        if low > self._low:
            self._low = low
            self._settle_marks()
            self._settle_ddls()
        if len(self._homes) > self._remember:
            self._forget()

    def _settle_marks(self) -> None:
        for ts in [ts for ts in self._marks if ts < self._low]:
            there = self._marks.pop(ts)
            if ts > self._floor:
                for missing in sorted(self._partitions.keys() - there):
                    state = self._partitions[missing]
                    wanted = state.partition < self._layouts.marked(state.topic, ts, since=True)
                    if wanted and ts >= self._joined.get(state.topic, 0):
                        why = f"it is on {len(there)} of {len(self._partitions)} partitions"
                        self._violated(Rule.RESOLVED_MISSING, state, -1, ts, why)

    def _settle_ddls(self) -> None:
        """DDL below the lowest Resolved; of TiCDC one may stand behind the Resolved of its own ts."""
        for ddl in self._ddls.values():
            if ddl.settled or ddl.ts >= self._low:
                continue
            ddl.settled = True
            if self._ddl_to is not DdlTo.ALL or ddl.ts <= self._floor:
                continue
            partition, offset = ddl.place
            why = f"it is on partition {partition} at offset {offset}: {ddl.query[:100]}"
            for number, state in sorted(self._partitions.items()):
                wanted = state.partition < self._layouts.marked(state.topic, ddl.ts, since=False)
                if wanted and state.topic == ddl.topic and number not in ddl.partitions:
                    self._violated(Rule.DDL_MISSING, state, -1, ddl.ts, why)
        if len(self._ddls) > DDLS:
            for key in [key for key, ddl in self._ddls.items() if ddl.settled][: DDLS // 2]:
                self._ddls_forgotten = max(self._ddls_forgotten, key[0])
                del self._ddls[key]

    def _forget(self) -> None:
        """A quarter at least: what is below the lowest Resolved if that is so much, else the oldest half.

        Above the lowest Resolved changes may still appear for the first time, so what is remembered there
        decides between a violation and a repetition. Below it only repetitions may come. The order is by ts
        across all partitions, so that one number says what is forgotten.
        """
        ordered = sorted(self._homes.values())
        upto = ordered[len(ordered) // 2] >> HOME_BITS
        below = bisect_left(ordered, (self._low + 1) << HOME_BITS)
        if below > len(ordered) // 4:
            upto = min(upto, self._low)
        self._forgotten = max(self._forgotten, upto)
        end = (upto + 1) << HOME_BITS
        self._homes = {change: home for change, home in self._homes.items() if home >= end}
        self._newest = {row: known for row, known in self._newest.items() if known >= end}

    def _violated(
        self, rule: Rule, state: _Partition, offset: int, ts: int, why: str, table: str = ""
    ) -> None:
        self._found.counts[rule] += 1
        if len(self._found.violations) < SHOWN:
            place = state.partition, offset
            self._found.violations.append(Violation(rule, *place, ts, why, table, state.topic))


def _controls(decoded: Decoded) -> Iterator[tuple[int, Any]]:
    """Marks (their ts), DDLs and changes of the number of partitions (None), by offset."""
    found: list[tuple[int, Any]] = [(offset, ts) for ts, offset in decoded.resolved]
    found += [(ddl.offset, ddl) for ddl in decoded.ddls]
    found += [(offset, None) for _, offset in decoded.repartitions]
    yield from sorted(found, key=lambda one: one[0])


def _row_hashes(name: str, table: DecodedTable) -> list[int | None]:
    """Of each row a hash of its table and key: of the new image, or of the one there is."""
    keys = [column.name for column in table.columns if column.key]
    if not keys:
        return [None] * len(table)
    new = _cells(table.new, keys, len(table))
    old = _cells(table.old, keys, len(table))
    deleted = (table.op == DELETE).tolist()
    return [hash((name, *(old[i] if gone else new[i]))) for i, gone in enumerate(deleted)]


def _cells(image: Any, names: list[str], rows: int) -> list[tuple[Any, ...]]:
    if image is None:
        return [()] * rows
    return list(zip(*(image.column(name).to_pylist() for name in names), strict=True))
