"""The initial load of a feed: its ranges, the rest of each, its pace and its progress. Pure.

The plan is made once and kept in `load.json`. It is made from the tables at the load's ts (or from the keys
that the feed follows) and the regions of that moment. If the file is lost, a new plan is made from the
current regions; it can be used if it contains all ranges of which something is durable. A range is a piece of
key space. It is read from the regions that hold it at that time, so the plan stays valid when regions split,
merge or move. The sink keeps how much of each range is durable, together with its rows. `LoadQueue` begins
with these records, gives out shares of the rest, and takes back what a task has not done.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tidegate.errors import Fatal, Undecodable
from tidegate.model.reports import LoadState
from tidegate.model.span import Span, span_id

SHARE_MAX: Final = 64
"""The most ranges in one share. Small tables have one range each, and there may be many."""


@dataclass(frozen=True, slots=True)
class LoadRange:
    """A piece of one physical table's record keys, or of the keys of a feed without tables
    (physical id 0).
    """

    id: str
    physical_id: int
    span: Span

    @classmethod
    def of(cls, physical_id: int, span: Span) -> LoadRange:
        """A range whose id is made from its bounds."""
        return cls(span_id(span), physical_id, span)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The ranges to load, the ts of the snapshot, and the address of PD."""

    ts: int
    pd: str
    ranges: tuple[LoadRange, ...]

    def to_bytes(self) -> bytes:
        """The content of `load.json`."""
        ranges = [[r.physical_id, r.span.start.hex(), r.span.end.hex()] for r in self.ranges]
        return json.dumps({"format": 1, "ts": self.ts, "pd": self.pd, "ranges": ranges}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LoadPlan:
        """From the content of `load.json`. Raises Undecodable if it is not a plan."""
        try:
            found = json.loads(data)
            ranges = (
                LoadRange.of(table, Span(bytes.fromhex(start), bytes.fromhex(end)))
                for table, start, end in found["ranges"]
            )
            return cls(int(found["ts"]), found["pd"], tuple(ranges))
        except (ValueError, KeyError, TypeError) as error:
            raise Undecodable("the plan of an initial load is damaged", why=repr(error)[:200]) from error


@dataclass(frozen=True, slots=True)
class LoadRemainder:
    """The rest of a range."""

    id: str
    span: Span
    rows: int
    """Entries of the range that are durable already."""


class LoadQueue:
    """The rest of a load, and its progress. Not thread-safe."""

    def __init__(self, plan: LoadPlan, begun: Mapping[str, tuple[int, str | None]]) -> None:
        """`begun`: for each range id, the entries that are durable, and the key where the rest begins (hex;
        None: the range is done).

        Raises Fatal if a range has begun that the plan does not contain: its rows would be sent twice.
        """
        # docs/guarantees.md#an-initial-load-is-joined-exactly: an id is made from the range's bounds, so a
        # range that is cut in another way has another id.
        if lost := begun.keys() - {one.id for one in plan.ranges}:
            raise Fatal(
                "the plan of the initial load was lost, and the one made in its place has other ranges",
                where=f"load at {plan.ts}",
                why=f"{len(lost)} of {len(begun)} ranges with rows on the topic are not among its "
                f"{len(plan.ranges)}: regions have split or merged since",
                fix="remove the changefeed and create it again, best with a new topic: all is loaded then",
            )
        self._ranges = len(plan.ranges)
        self._left: deque[LoadRemainder] = deque()
        self._out: dict[str, LoadRemainder] = {}
        self._rows: dict[str, int] = {}
        self._done: set[str] = set()
        self._before = 0
        for one in plan.ranges:
            rows, left_from = begun.get(one.id, (0, one.span.start.hex()))
            self._before += rows
            self._rows[one.id] = rows
            if left_from is None:
                self._done.add(one.id)
            else:
                self._left.append(LoadRemainder(one.id, Span(bytes.fromhex(left_from), one.span.end), rows))

    def take(self, tasks: int) -> list[LoadRemainder]:
        """A share for one of `tasks` tasks. Empty: no range is left to give out."""
        # Rounded up: the last ranges must go out even if there are fewer of them than tasks.
        count = min(SHARE_MAX, -(-len(self._left) // max(tasks, 1)))
        share = [self._left.popleft() for _ in range(count)]
        self._out |= {one.id: one for one in share}
        return share

    @property
    def busy(self) -> bool:
        """Whether a share is out, of which a part may come back."""
        return bool(self._out)

    def settle(self, outcome: Iterable[tuple[str, int, str | None]], share: Iterable[LoadRemainder]) -> None:
        """Take back a share. `outcome`: (range id, entries durable in all, key where the rest begins) of each
        range that was begun.
        """
        settled = {name: (rows, left_from) for name, rows, left_from in outcome}
        for one in share:
            held = self._out.pop(one.id)
            # A range that the outcome does not name was not begun, or its worker died: nothing more of it is
            # durable.
            rows, left_from = settled.get(one.id, (held.rows, held.span.start.hex()))
            self._rows[one.id] = rows
            if left_from is None:
                self._done.add(one.id)
            else:
                rest = replace(held, span=Span(bytes.fromhex(left_from), held.span.end), rows=rows)
                # To the front, so that a range that has begun ends before others begin.
                self._left.appendleft(rest)

    def state(self, seconds: float) -> LoadState:
        """The progress of the load, `seconds` after this incarnation began it."""
        rows, done = sum(self._rows.values()), len(self._done)
        expected = 0
        if done:
            # By the ranges that are done, because those under way would look too small.
            expected = max(rows, sum(self._rows[name] for name in self._done) * self._ranges // done)
        # Without the rows of earlier incarnations, which took their time before.
        rate = (rows - self._before) / seconds if seconds > 0 else 0.0
        return LoadState(self._ranges, done, rows, rate, expected)


class Pace:
    """Limits the rows and bytes per second that all tasks of a load read. 0: no limit. The caller gives the
    time.
    """

    def __init__(self, rows_per_second: int, bytes_per_second: int) -> None:
        self._rates = (rows_per_second, bytes_per_second)
        self._free_at = 0.0

    def spent(self, now: float, rows: int, size: int) -> None:
        """Note that a task has read this much."""
        spent = zip((rows, size), self._rates, strict=True)
        cost = max(amount / rate if rate else 0.0 for amount, rate in spent)
        # At most one second of unused rate is saved up, so a pause is not followed by a burst.
        self._free_at = max(self._free_at, now - 1.0) + cost

    def wait(self, now: float) -> float:
        """Seconds until more may be read."""
        return max(0.0, self._free_at - now)

    def share(self, tasks: int) -> tuple[int, int]:
        """Rows and bytes that one of `tasks` tasks may read at a time: about half a second's. 0: no limit."""
        rows, size = (rate and max(1, rate // (2 * max(tasks, 1))) for rate in self._rates)
        return rows, size
