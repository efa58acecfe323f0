"""The initial load of a feed: its ranges, what is left of them, how fast it may go, how far it is. Pure.

The plan is made once, of the tables at the load's ts (or of the keys that the feed follows) and the regions
there are then, and kept in `load.json`. If that is lost, another is made of the regions there are by then; it
serves if it has all ranges of which something is durable. A range is a piece of key space, read from whatever
regions hold it when it is read, so a plan stays right when regions split, merge or move. What of a range is
durable lies with its rows at the sink; `LoadQueue` begins with that, hands out shares of what is left, and
takes back what a task has not done.
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
"""Ranges that one task is given at most: small tables are many."""


@dataclass(frozen=True, slots=True)
class LoadRange:
    """A piece of one physical table's record keys, or of the keys that a feed without tables follows (0)."""

    id: str
    physical_id: int
    span: Span

    @classmethod
    def of(cls, physical_id: int, span: Span) -> LoadRange:
        """Named by its bounds."""
        return cls(span_id(span), physical_id, span)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is loaded, as of which ts, from where."""

    ts: int
    pd: str
    ranges: tuple[LoadRange, ...]

    def to_bytes(self) -> bytes:
        """`load.json`."""
        ranges = [[r.physical_id, r.span.start.hex(), r.span.end.hex()] for r in self.ranges]
        return json.dumps({"format": 1, "ts": self.ts, "pd": self.pd, "ranges": ranges}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LoadPlan:
        """Raises Undecodable when it is not a plan."""
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
class Left:
    """What is left of a range."""

    id: str
    span: Span
    rows: int
    """Entries read before."""


class LoadQueue:
    """What is left of a load, and what was done. Not thread-safe."""

    def __init__(self, plan: LoadPlan, begun: Mapping[str, tuple[int, str | None]]) -> None:
        """`begun`: per range id the entries that are durable, and the key to go on from (hex; None: done).

        Raises Fatal when a range has begun that the plan does not have: its rows would be sent twice.
        """
        if lost := begun.keys() - {one.id for one in plan.ranges}:
            raise Fatal(
                "The plan of the initial load was lost, and the one made in its place has other ranges.",
                where=f"load at {plan.ts}",
                why=f"{len(lost)} of {len(begun)} ranges with rows on the topic are not among its "
                f"{len(plan.ranges)}: regions have split or merged since",
                fix="remove the changefeed and create it again, best with a new topic: all is loaded then",
            )
        self._ranges = len(plan.ranges)
        self._left: deque[Left] = deque()
        self._out: dict[str, Left] = {}
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
                self._left.append(Left(one.id, Span(bytes.fromhex(left_from), one.span.end), rows))

    def take(self, tasks: int) -> list[Left]:
        """A share for one of so many tasks; empty: nothing is left to begin."""
        count = min(SHARE_MAX, -(-len(self._left) // max(tasks, 1)))
        share = [self._left.popleft() for _ in range(count)]
        self._out |= {one.id: one for one in share}
        return share

    @property
    def busy(self) -> bool:
        """Whether a share is out, of which something may come back."""
        return bool(self._out)

    def settle(self, outcome: Iterable[tuple[str, int, str | None]], share: Iterable[Left]) -> None:
        """What became of a share: (range id, entries durable in all, key to go on from) of those begun."""
        settled = {name: (rows, left_from) for name, rows, left_from in outcome}
        for one in share:
            held = self._out.pop(one.id)
            rows, left_from = settled.get(one.id, (held.rows, held.span.start.hex()))
            self._rows[one.id] = rows
            if left_from is None:
                self._done.add(one.id)
            else:
                rest = replace(held, span=Span(bytes.fromhex(left_from), held.span.end), rows=rows)
                self._left.appendleft(rest)

    def state(self, seconds: float) -> LoadState:
        """How far it is, `seconds` after it began here."""
        rows, done = sum(self._rows.values()), len(self._done)
        expected = 0
        if done:
            expected = max(rows, sum(self._rows[name] for name in self._done) * self._ranges // done)
        rate = (rows - self._before) / seconds if seconds > 0 else 0.0
        return LoadState(self._ranges, done, rows, rate, expected)


class Pace:
    """Rows and bytes a second that all tasks of a load may read; 0: no limit. Seconds are the caller's."""

    def __init__(self, rows_per_second: int, bytes_per_second: int) -> None:
        self._rates = (rows_per_second, bytes_per_second)
        self._free_at = 0.0

    def spent(self, now: float, rows: int, size: int) -> None:
        """So much was read."""
        spent = zip((rows, size), self._rates, strict=True)
        cost = max(amount / rate if rate else 0.0 for amount, rate in spent)
        self._free_at = max(self._free_at, now - 1.0) + cost

    def wait(self, now: float) -> float:
        """Seconds until more may be read."""
        return max(0.0, self._free_at - now)

    def share(self, tasks: int) -> tuple[int, int]:
        """Rows and bytes that one of so many tasks may read at a time, about half a second's; 0: no limit."""
        rows, size = (rate and max(1, rate // (2 * max(tasks, 1))) for rate in self._rates)
        return rows, size
