"""How many partitions of a topic the producer wrote at which time: the known changes of the number. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tidegate.codec.base import DecodedTable
from tidegate.consumer.contract.placement import Placement
from tidegate.dispatcher.router import Router
from tidegate.model.layout import Layout


class Layouts:
    """The known changes of each topic. They may be learned in any order."""

    def __init__(self, counts: Mapping[str, int], known: Mapping[str, Sequence[Layout]]) -> None:
        """`counts`: by topic, its number of partitions."""
        self._counts = dict(counts)
        self._known = {topic: list(known.get(topic, ())) for topic in counts}

    def of(self, topic: str) -> Sequence[Layout]:
        """The known changes of a topic, in order."""
        return self._known[topic]

    def learn(self, topic: str, layout: Layout) -> bool:
        """Add a change; False if it contradicts a known one."""
        known = self._known[topic]
        at = bisect_left([one.epoch for one in known], layout.epoch)
        if at < len(known) and known[at].epoch == layout.epoch:
            return known[at] == layout
        before, after = known[at - 1] if at else None, known[at] if at < len(known) else None
        # Epochs and their ts must rise together, otherwise rows between two changes would have two
        # placements.
        if (before is not None and before.ts > layout.ts) or (after is not None and after.ts < layout.ts):
            return False
        known.insert(at, layout)
        return True

    def epoch(self, topic: str, ts: int) -> int:
        """The epoch of a row with this commit ts, counted as in `Layout`; 0 while no change is known."""
        known = self._known[topic]
        if not known:
            return 0
        at = bisect_left([one.ts for one in known], ts)
        return known[at - 1].epoch if at else known[0].epoch - 1

    def rows_on(self, topic: str, epoch: int) -> int:
        """Over how many partitions the rows of an epoch are distributed; 0 when that is not known."""
        for one in self._known[topic]:
            if epoch in (one.epoch, one.epoch - 1):
                return one.new if epoch == one.epoch else one.old
        return 0 if self._known[topic] else self._counts[topic]

    def marked(self, topic: str, ts: int, *, since: bool) -> int:
        """How many partitions have a broadcast of this ts. `since`: at a change's own ts, count it as after
        it.
        """
        known = self._known[topic]
        if not known:
            return self._counts[topic]
        times = [one.ts for one in known]
        at = bisect_right(times, ts) if since else bisect_left(times, ts)
        # Before the first known change, which need not be the first of all, only `old` is known.
        return known[at - 1].all if at else known[0].old

    def written(self, topic: str) -> int:
        """How many partitions are written now; the others hold nothing back."""
        known = self._known[topic]
        return known[-1].all if known else self._counts[topic]

    def parts(self, topic: str, table: DecodedTable) -> Iterator[tuple[int, DecodedTable]]:
        """Split a table's rows by epoch."""
        if not self._known[topic]:
            yield 0, table
            return
        # `left`: rows at the change's own ts are still placed by the old number.
        edges = np.array([one.ts for one in self._known[topic]], np.uint64)
        at = np.searchsorted(edges, table.commit_ts, side="left")
        for found in np.unique(at).tolist():
            rows = np.flatnonzero(at == found)
            yield self.epoch(topic, int(table.commit_ts[rows[0]])), _taken(table, rows)


def _taken(table: DecodedTable, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> DecodedTable:
    if len(rows) == len(table):
        return table
    return replace(
        table,
        op=table.op[rows],
        commit_ts=table.commit_ts[rows],
        offset=table.offset[rows],
        seq=table.seq[rows],
        new=None if table.new is None else table.new.take(rows),
        old=None if table.old is None else table.old.take(rows),
    )


class Placements:
    """The placement of rows, by topic and epoch."""

    def __init__(self, layouts: Layouts, router: Router | None, *, strict_null: bool) -> None:
        self._layouts, self._router, self._strict_null = layouts, router, strict_null
        self._found: dict[tuple[str, int], Placement] = {}

    def of(self, topic: str, epoch: int, partitions: int) -> Placement:
        """The placement for an epoch in which rows are distributed over so many partitions."""
        key = (topic, epoch)
        if key not in self._found:
            self._found[key] = Placement(partitions, self._router, strict_null=self._strict_null)
        return self._found[key]

    def forget(self, topic: str) -> None:
        """Discard a topic's placements: they were found with a number of partitions that was wrong."""
        for key in [key for key in self._found if key[0] == topic]:
            del self._found[key]

    def may_move(self, topic: str, table: str, places: tuple[int, int]) -> bool:
        """Whether a table's dispatcher may put a row on one of two partitions and later on the other."""
        return any(one.may_move(table, places) for (of, _), one in self._found.items() if of == topic)

    def words(self) -> dict[str, str]:
        """The dispatcher of each table, in words, as found in its last epoch."""
        found: dict[str, str] = {}
        for key in sorted(self._found):
            found |= self._found[key].words()
        return found
