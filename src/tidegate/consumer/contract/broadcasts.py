"""Messages that are on several partitions: Resolved and DDL, and what they promise about rows around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.codec.base import DdlMessage
from tidegate.codec.entry import DdlTo
from tidegate.consumer.contract.layouts import Layouts
from tidegate.consumer.contract.partition import Partition
from tidegate.consumer.contract.verdict import Rule, Unjudged, Verdict

DDLS: Final = 10_000
"""How many DDLs are remembered, so that a repeated one is not taken for a late one."""


class ResolvedMarks:
    """Checks that every Resolved is on every partition, and that Resolved never goes back on one."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        layouts: Layouts,
        floor: int,
        verdict: Verdict,
        *,
        strict: bool,
    ) -> None:
        """`floor`: messages at or below it may have been on a partition before the check began."""
        self._partitions, self._layouts, self._floor = partitions, layouts, floor
        self._verdict, self._strict = verdict, strict
        self.low = 0
        """The lowest Resolved over all partitions that are written, as far as it was checked."""
        self._joined: dict[str, int] = {}
        """The first Resolved of each topic: it does not have earlier ones of other topics."""
        self._marks: dict[int, set[int]] = {}
        """By the ts of a Resolved that some partition has not passed: the partitions that have it."""

    def take(self, state: Partition, ts: int, offset: int) -> None:
        """Take a Resolved of a partition."""
        self._verdict.resolved += 1
        if ts < state.resolved:
            if self._strict:
                why = f"Resolved {state.resolved} came before it"
                self._verdict.violated(Rule.RESOLVED_BACK, state, offset, ts, why)
            else:
                self._verdict.went_back += 1
            return
        state.resolved = ts
        self._joined[state.topic] = min(ts, self._joined.get(state.topic, ts))
        self._marks.setdefault(ts, set()).add(state.number)

    def check_passed(self) -> bool:
        """Check the Resolved that all partitions have passed. Returns False if there are no new ones."""
        # Partitions that are not written, as the producer has announced, hold nothing back.
        written = [
            one for one in self._partitions.values() if one.partition < self._layouts.written(one.topic)
        ]
        low = min(one.resolved for one in written)
        if low <= self.low:
            return False
        self.low = low
        for ts in [ts for ts in self._marks if ts < self.low]:
            there = self._marks.pop(ts)
            if ts > self._floor:
                for missing in sorted(self._partitions.keys() - there):
                    state = self._partitions[missing]
                    wanted = state.partition < self._layouts.marked(state.topic, ts, since=True)
                    if wanted and ts >= self._joined.get(state.topic, 0):
                        why = f"it is on {len(there)} of {len(self._partitions)} partitions"
                        self._verdict.violated(Rule.RESOLVED_MISSING, state, -1, ts, why)
        return True


@dataclass(slots=True)
class _Ddl:
    ts: int
    query: str
    topic: str
    place: tuple[int, int]
    """Partition and offset of its first message."""
    partitions: set[int] = field(default_factory=set)
    checked: bool = False
    """Whether all partitions have passed it, so that it is checked."""


class Ddls:
    """Checks that a DDL is on every partition where it belongs, after older rows and before its Resolved."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        layouts: Layouts,
        ddl_to: DdlTo,
        floor: int,
        verdict: Verdict,
        *,
        strict: bool,
    ) -> None:
        """`floor`: as in `ResolvedMarks`."""
        self._partitions, self._layouts, self._floor = partitions, layouts, floor
        self._ddl_to, self._verdict, self._strict = ddl_to, verdict, strict
        self._ddls: dict[tuple[int, str, str], _Ddl] = {}
        """The last DDLs, by ts, topic and text."""
        self._forgotten = 0
        """DDLs at or below this ts may be forgotten."""

    def take(self, state: Partition, ddl: DdlMessage) -> None:
        """Take a DDL of a partition."""
        # With the text, because several DDLs may have one ts.
        key = ddl.ts, state.topic, ddl.query
        known = self._ddls.get(key)
        if known is None:
            place = state.partition, ddl.offset
            known = self._ddls[key] = _Ddl(ddl.ts, ddl.query, state.topic, place)
            self._verdict.ddls += 1
        elif state.number in known.partitions:
            return  # repeated after a restart
        known.partitions.add(state.number)
        table = f"{ddl.schema}.{ddl.table}"
        if self._ddl_to is DdlTo.FIRST and state.partition != 0:
            why = "DDL of this protocol belongs on partition 0 alone"
            self._verdict.violated(Rule.DDL_MISSING, state, ddl.offset, ddl.ts, why, table)
        highest = state.highest if self._strict else state.table_highest.get(table, 0)
        # A DDL up to there may be the repetition of one that is not known here.
        sure = ddl.ts > max(state.began, self._forgotten)
        late = ddl.ts < state.resolved or (self._strict and ddl.ts == state.resolved)
        if not sure:
            self._verdict.unjudged[Unjudged.LATE_DDL] += late or highest > ddl.ts
        elif late:
            why = f"Resolved {state.resolved} came before it"
            self._verdict.violated(Rule.DDL_LATE, state, ddl.offset, ddl.ts, why, table)
        elif highest > ddl.ts:
            why = f"a row of {highest} came before it"
            self._verdict.violated(Rule.BEFORE_DDL, state, ddl.offset, ddl.ts, why, table)
        state.ddl = max(state.ddl, ddl.ts)
        if not self._strict:
            state.table_ddl[table] = max(state.table_ddl.get(table, 0), ddl.ts)

    def check_passed(self, low: int) -> None:
        """Check the DDLs below `low`; that of `low` may still come: TiCDC sends it after Resolved, too."""
        for ddl in self._ddls.values():
            if ddl.checked or ddl.ts >= low:
                continue
            ddl.checked = True
            if self._ddl_to is not DdlTo.ALL or ddl.ts <= self._floor:
                continue
            partition, offset = ddl.place
            why = f"it is on partition {partition} at offset {offset}: {ddl.query[:100]}"
            for number, state in sorted(self._partitions.items()):
                wanted = state.partition < self._layouts.marked(state.topic, ddl.ts, since=False)
                if wanted and state.topic == ddl.topic and number not in ddl.partitions:
                    self._verdict.violated(Rule.DDL_MISSING, state, -1, ddl.ts, why)
        if len(self._ddls) > DDLS:
            # Half at once, because looking for those that are checked costs a pass over all.
            for key in [key for key, ddl in self._ddls.items() if ddl.checked][: DDLS // 2]:
                self._forgotten = max(self._forgotten, key[0])
                del self._ddls[key]
