"""A model of upstream: tables with rows at commit ts, an advancing resolved ts, DDL that adds and drops
tables.

    rows and DDL at PD's time --> resolved ts, every TICK_S --> each capture's `View`, a little later

A view is the state of a capture's puller and catalogue: the ts up to which each table was received.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.model.ddl import DdlEvent
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp, compose, logical, physical_ms

EPOCH_MS: Final = 1_750_000_000_000
"""PD's time when a simulation begins, in ms since 1970."""
TICK_S: Final = 0.5
"""How often the resolved ts advances."""
SCAN_S: Final = (0.05, 0.8)
"""How long the scan of a table takes that the puller did not pull before, at least and at most."""
CREATE_TABLE: Final = 3
DROP_TABLE: Final = 4
"""TiDB's action codes."""


def at(now: float) -> Timestamp:
    """The timestamp of a virtual time in seconds."""
    return compose(EPOCH_MS + int(now * 1000))


def seconds(ts: Timestamp) -> float:
    """The virtual time of a timestamp."""
    return (physical_ms(ts) - EPOCH_MS) / 1000


def short(ts: Timestamp) -> str:
    """A timestamp for people: virtual seconds, and the logical part if there is one."""
    counter = logical(ts)
    return f"{seconds(ts):.3f}" + (f"+{counter}" if counter else "")


@dataclass(slots=True)
class Table:
    """One table and its history."""

    number: int
    created_ts: Timestamp
    dropped_ts: Timestamp = 0
    """0: it is not dropped."""
    rows: list[Timestamp] = field(default_factory=list)
    """The commit ts of its rows, rising."""
    load: int = 0
    """Bytes of changes per second, as captures measure them."""
    id: str = field(init=False)
    """Its name, which is also the id of its span. No name begins with another one."""
    span: Span = field(init=False)
    """Its keys."""
    task: SpanTask = field(init=False)
    """The task to deliver it from its creation on."""

    def __post_init__(self) -> None:
        self.id = f"t{self.number:02d}" if self.number < 100 else f"u{self.number:06d}"
        self.span = Span(self.id.encode(), self.id.encode() + b"\xff")
        self.task = SpanTask(self.id, self.span, self.number, self.created_ts)

    def first_after(self, ts: Timestamp) -> Timestamp:
        """The commit ts of the first row above a ts. 0: there is none."""
        at = bisect_right(self.rows, ts)
        return self.rows[at] if at < len(self.rows) else 0

    def between(self, after: Timestamp, upto: Timestamp) -> list[Timestamp]:
        """The rows in (after, upto]."""
        return self.rows[bisect_right(self.rows, after) : bisect_right(self.rows, upto)]


class Upstream:
    """All tables, and PD's time."""

    def __init__(self, rng: random.Random, tables: int) -> None:
        self._rng = rng
        self.last_ts = compose(EPOCH_MS)
        self.start_ts = self.last_ts
        """The start ts of the changefeed. Each table has one row before it."""
        self.resolved_ts = self.last_ts
        self.tables: dict[str, Table] = {}
        self.batches: list[DdlBatch] = []
        """All DDL, in order of finished ts."""
        self.rows = 0
        for _ in range(tables):
            # The row below the start ts must never be delivered: a writer that begins at 0 would send it.
            self._add(self.start_ts).rows.append(self.start_ts - 1)

    def tso(self, now: float) -> Timestamp:
        """The next timestamp. `now`: virtual seconds."""
        # Several timestamps may be asked for in one virtual millisecond. They must differ and rise.
        self.last_ts = max(self.last_ts + 1, at(now))
        return self.last_ts

    def _add(self, created_ts: Timestamp) -> Table:
        table = Table(len(self.tables), created_ts, load=self._rng.randrange(0, 1 << 20))
        self.tables[table.id] = table
        return table

    @property
    def there(self) -> list[Table]:
        """The tables that are not dropped."""
        return [table for table in self.tables.values() if not table.dropped_ts]

    def commit(self, now: float) -> None:
        """Commit one transaction with rows of one to three tables."""
        ts = self.tso(now)
        for table in self._rng.sample(self.there, k=min(len(self.there), self._rng.randint(1, 3))):
            table.rows.append(ts)
            self.rows += 1

    def create(self, now: float) -> str:
        """Create a table. Returns its name."""
        ts = self.tso(now)
        table = self._add(ts)
        self._log(ts, CREATE_TABLE, "create", table, added=(table.task,))
        return table.id

    def drop(self, now: float) -> str:
        """Drop a table. Returns its name, or an empty text if there are too few tables."""
        if len(self.there) < 3:
            return ""
        table, ts = self._rng.choice(self.there), self.tso(now)
        table.dropped_ts = ts
        self._log(ts, DROP_TABLE, "drop", table, removed=frozenset({table.id}))
        return table.id

    def _log(
        self,
        ts: Timestamp,
        action: int,
        verb: str,
        table: Table,
        added: tuple[SpanTask, ...] = (),
        removed: frozenset[str] = frozenset(),
    ) -> None:
        name, query = table.id, f"{verb} table {table.id}"
        came, went = ((table.number,), ()) if added else ((), (table.number,))
        ddl = DdlEvent(
            len(self.batches), 0, ts - 1, ts, action, query, "s", name, "s", name, 1, None, None, came, went
        )
        self.batches.append(DdlBatch(ts, (ddl,), added, removed, removed_tables=frozenset(went)))

    def shift_loads(self) -> None:
        """Give all tables new random loads."""
        for table in self.there:
            table.load = self._rng.choice((0, 1 << 16, 1 << 20, 1 << 23))

    def ddl(self, after: Timestamp, upto: Timestamp) -> list[DdlBatch]:
        """The DDL finished in (after, upto]."""
        return [batch for batch in self.batches if after < batch.finished_ts <= upto]

    def tasks_at(self, checkpoint: Timestamp) -> list[SpanTask]:
        """The tables that are wanted at a checkpoint."""
        return [
            table.task
            for table in self.tables.values()
            if table.created_ts <= checkpoint and not 0 < table.dropped_ts <= checkpoint
        ]


@dataclass(slots=True)
class View:
    """The state of one capture's puller."""

    upstream: Upstream
    resolved_ts: Timestamp
    stalled: dict[str, Timestamp] = field(default_factory=dict)
    """Tables whose resolved ts does not advance beyond a ts, because one of their regions is stalled."""
    ready_at: dict[str, float] = field(default_factory=dict)
    """For each table that is pulled, the time at which its scan is done."""

    def hold(self, tables: Iterable[str], now: float, rng: random.Random) -> None:
        """Pull these tables, and no others."""
        wanted = dict.fromkeys(tables)
        self.ready_at = {
            name: self.ready_at[name] if name in self.ready_at else now + rng.uniform(*SCAN_S)
            for name in wanted
        }

    def frontier(self, now: float) -> dict[str, Timestamp]:
        """The resolved ts of each table that is pulled. Tables whose scan is not done are left out."""
        return {name: self.reach(name) for name, ready in self.ready_at.items() if ready <= now}

    def reach(self, table: str) -> Timestamp:
        """The ts up to which a table was received."""
        return min(self.resolved_ts, self.stalled.get(table, self.resolved_ts))
