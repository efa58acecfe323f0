"""Checks the promises whenever a record becomes visible at the sink or a value is stored in etcd.

`docs/guarantees.md` has the promises in words. A check compares the sink and etcd with upstream. It knows
nothing about the machines.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidegate.control.grants import Grant, GrantedRange
from tidegate.model.timestamp import MAX, Timestamp
from tidegate.simulator.upstream import Table, Upstream, short

BEGAN_MAX: Final = 16
"""How many writers are kept: more than can be left over from earlier incarnations."""


class Violation(Exception):
    """A promise was broken. The text says which one."""


class Writer(NamedTuple):
    """A writer: an incarnation of a capture, with its ranges when it last read its grant."""

    capture: str
    incarnation: int
    token: tuple[int, int]
    ranges: tuple[GrantedRange, ...]

    def has(self, table: Table) -> bool:
        """Whether it may write rows of a table."""
        return any(one.id.covers(table.span) for one in self.ranges)

    def __str__(self) -> str:
        return f"{self.capture} (token {self.token[0]}.{self.token[1]}, incarnation {self.incarnation})"


class Checks:
    """Keeps what is downstream and what is stored, and checks each change."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._rows: dict[str, int] = {}
        """For each table with rows downstream, the number of these rows, including rows before the
        changefeed's start ts."""
        self._ddl = 0
        """The number of DDLs downstream."""
        self._resolved_ts = 0
        self.checkpoint_ts = upstream.start_ts
        self._owner_rev = 0
        self._began: deque[Writer] = deque(maxlen=BEGAN_MAX)
        """The last writers that have begun."""
        self.counts: Counter[str] = Counter()
        """The number of checks of each kind."""
        self.delivered = 0

    # --- what is downstream --------------------------------------------------------------------------

    def _next_row(self, table: Table) -> Timestamp:
        """The commit ts of the first row that is not downstream. MAX: there is none."""
        at = self._delivered(table)
        return table.rows[at] if at < len(table.rows) else MAX

    def _delivered(self, table: Table) -> int:
        """The number of its rows that are downstream or before the changefeed's start ts."""
        return self._rows.get(table.id) or bisect_right(table.rows, self._upstream.start_ts)

    def _next_ddl(self) -> Timestamp:
        found = self._upstream.batches
        return found[self._ddl].finished_ts if self._ddl < len(found) else MAX

    @property
    def durable_ts(self) -> Timestamp:
        """The ts up to which everything is downstream."""
        return min(min(map(self._next_row, self._upstream.tables.values())), self._next_ddl()) - 1

    @property
    def missing(self) -> str:
        """The first thing that is not downstream, in words."""
        first = self.durable_ts + 1
        found = (one.id for one in self._upstream.tables.values() if self._next_row(one) == first)
        return f"a row of {next(found, '')}" if first != self._next_ddl() else "a DDL"

    def row(self, table_id: str, ts: Timestamp, by: Writer | None) -> None:
        """A row becomes visible. Check that it comes once, in its table's order, in its place among DDL and
        Resolved, and from the only writer that may write the table.
        """
        self.counts["rows: once, and in order"] += 1
        table, name = self._upstream.tables[table_id], f"row {table_id}@{short(ts)}"
        wanted = self._next_row(table)
        # Each table's next missing row decides: a lower ts repeats a row or is before the start, a higher one
        # leaves a gap.
        if ts < wanted:
            raise Violation(f"{name} is written, and it is there already, or not wanted")
        if ts > wanted:
            raise Violation(f"{name} is written, and {table_id}@{short(wanted)} is missing")
        if ts <= self._resolved_ts:
            raise Violation(f"{name} comes after Resolved {short(self._resolved_ts)}")
        if ts > self._next_ddl():
            raise Violation(f"{name} comes before the DDL of {short(self._next_ddl())}")
        self.counts["rows: not by a fenced writer"] += 1
        # The ranges count as well as the token, because a later writer may begin other tables meanwhile.
        later = [one for one in self._began if by is not None and by.token < one.token and one.has(table)]
        if later:
            raise Violation(f"{name} is written by {by}, although {later[0]} has begun")
        self._rows[table_id] = self._delivered(table) + 1
        self.delivered += 1

    def resolved(self, ts: Timestamp) -> None:
        """A Resolved becomes visible. Check that everything up to it is visible, and that it rises."""
        self.counts["Resolved: complete, and rising"] += 1
        if ts > self.durable_ts:
            raise Violation(f"Resolved {short(ts)} is sent, and {self.missing} below it is missing")
        if ts <= self._resolved_ts:
            raise Violation(f"Resolved {short(ts)} is sent after Resolved {short(self._resolved_ts)}")
        self._resolved_ts = ts

    def ddl(self, ts: Timestamp) -> None:
        """A DDL becomes visible. Check that it comes once, in order, and after all rows below it."""
        self.counts["DDL: once, and in its place"] += 1
        wanted = self._next_ddl()
        if ts != wanted:
            what = "it is there already" if ts < wanted else f"that of {short(wanted)} is missing"
            raise Violation(f"the DDL of {short(ts)} is sent, and {what}")
        late = [one.id for one in self._upstream.tables.values() if self._next_row(one) <= ts]
        if late:
            raise Violation(f"the DDL of {short(ts)} comes before a row of {late[0]} below it")
        self._ddl += 1

    # --- who writes ----------------------------------------------------------------------------------

    def begins(self, writer: Writer, others: Iterable[Writer]) -> None:
        """A writer begins. Check that the sink accepts no other writer for its tables. `others`: all writers
        that the sink accepts.
        """
        self.counts["tables: one live writer"] += 1
        for table in self._upstream.there:
            if not writer.has(table):
                continue
            twin = next((one for one in others if one.has(table)), None)
            if twin is not None:
                raise Violation(f"the sink accepts {table.id} of {writer} and of {twin}")
        self._began.append(writer)

    def starts_at(self, who: str, starts: Iterable[tuple[str, Timestamp]]) -> None:
        """A writer begins each table at a ts. Check that no row at or below it is missing."""
        self.counts["starts: nothing below is missing"] += 1
        for name, ts in starts:
            if ts >= self._next_row(self._upstream.tables[name]):
                raise Violation(f"{who} begins {name} at {short(ts)}, above a row that is not downstream")

    # --- what is stored ------------------------------------------------------------------------------

    def grants(self, grants: Iterable[Grant], owner_rev: int) -> None:
        """Grants are stored. Check that no later owner has stored grants before."""
        self.counts["grants: tokens rise"] += 1
        if owner_rev < self._owner_rev:
            raise Violation(f"owner {owner_rev} stores grants over those of owner {self._owner_rev}")
        self._owner_rev = owner_rev
        for grant in grants:
            if grant.token[0] > owner_rev:
                raise Violation(f"owner {owner_rev} stores a grant of owner {grant.token[0]}")

    def stored(self, ts: Timestamp, owner_rev: int) -> None:
        """A checkpoint is stored. Check that it does not fall, that everything up to it is downstream, and
        that no earlier owner stores it after a later one.
        """
        self.counts["checkpoint: complete, and never back"] += 1
        if ts < self.checkpoint_ts:
            raise Violation(
                f"the stored checkpoint goes back from {short(self.checkpoint_ts)} to {short(ts)}"
            )
        if ts > self.durable_ts:
            raise Violation(f"checkpoint {short(ts)} is stored, and {self.missing} below it is missing")
        # `_owner_rev` rises when an owner stores grants. An earlier owner may store checkpoints until then.
        if owner_rev < self._owner_rev:
            raise Violation(f"owner {owner_rev} stores a checkpoint after owner {self._owner_rev}")
        self.checkpoint_ts = ts

    def behind(self, ts: Timestamp) -> int:
        """The number of rows at or below a ts that are not downstream."""
        found = self._upstream.tables.values()
        return sum(max(0, bisect_right(one.rows, ts) - self._delivered(one)) for one in found)
