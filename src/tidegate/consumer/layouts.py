"""Of topics how many partitions were written when: the changes of their numbers that are known. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tidegate.codec.base import DecodedTable
from tidegate.consumer.placement import Placement
from tidegate.dispatcher.router import Router
from tidegate.model.layout import Layout


class Layouts:
    """What is known of each topic's changes, which are learned in any order."""

    def __init__(self, counts: Mapping[str, int], known: Mapping[str, Sequence[Layout]]) -> None:
        """`counts`: by topic, how many partitions there are."""
        self._counts = dict(counts)
        self._known = {topic: list(known.get(topic, ())) for topic in counts}

    def of(self, topic: str) -> Sequence[Layout]:
        """In their order."""
        return self._known[topic]

    def learn(self, topic: str, layout: Layout) -> bool:
        """One more; False if it contradicts another."""
        known = self._known[topic]
        at = bisect_left([one.epoch for one in known], layout.epoch)
        if at < len(known) and known[at].epoch == layout.epoch:
            return known[at] == layout
        before, after = known[at - 1] if at else None, known[at] if at < len(known) else None
        if (before is not None and before.ts > layout.ts) or (after is not None and after.ts < layout.ts):
            return False
        known.insert(at, layout)
        return True

    def epoch(self, topic: str, ts: int) -> int:
        """Of a row of this commit ts, as its layout counts; 0 where nothing is known of any change."""
        known = self._known[topic]
        if not known:
            return 0
        at = bisect_left([one.ts for one in known], ts)
        return known[at - 1].epoch if at else known[0].epoch - 1

    def rows_on(self, topic: str, epoch: int) -> int:
        """Over how many partitions rows of an epoch are spread; 0: that is not known."""
        for one in self._known[topic]:
            if epoch in (one.epoch, one.epoch - 1):
                return one.new if epoch == one.epoch else one.old
        return 0 if self._known[topic] else self._counts[topic]

    def marked(self, topic: str, ts: int, *, since: bool) -> int:
        """On how many partitions a broadcast of this ts is. `since`: at a change's own ts it is behind it."""
        known = self._known[topic]
        if not known:
            return self._counts[topic]
        times = [one.ts for one in known]
        at = bisect_right(times, ts) if since else bisect_left(times, ts)
        # Of the first change it is not said how many were written before it, if it is not the first of all.
        return known[at - 1].all if at else known[0].old

    def written(self, topic: str) -> int:
        """How many partitions are written; others hold nothing back."""
        known = self._known[topic]
        return known[-1].all if known else self._counts[topic]

    def parts(self, topic: str, table: DecodedTable) -> Iterator[tuple[int, DecodedTable]]:
        """The rows of each epoch."""
        if not self._known[topic]:
            yield 0, table
            return
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
    """Where rows belong, by topic and epoch."""

    def __init__(self, layouts: Layouts, router: Router | None, *, strict_null: bool) -> None:
        self._layouts, self._router, self._strict_null = layouts, router, strict_null
        self._found: dict[tuple[str, int], Placement] = {}

    def of(self, topic: str, epoch: int, partitions: int) -> Placement:
        """That of an epoch in which rows are spread over so many partitions."""
        key = (topic, epoch)
        if key not in self._found:
            self._found[key] = Placement(partitions, self._router, strict_null=self._strict_null)
        return self._found[key]

    def forget(self, topic: str) -> None:
        """What was found so far was by a number of partitions that there was not."""
        for key in [key for key in self._found if key[0] == topic]:
            del self._found[key]

    def may_move(self, topic: str, table: str, places: tuple[int, int]) -> bool:
        """Whether the dispatcher of a table may put a row on one of two partitions and then on the other."""
        return any(one.may_move(table, places) for (of, _), one in self._found.items() if of == topic)

    def words(self) -> dict[str, str]:
        """What is known of each table's dispatcher, by its last epoch."""
        found: dict[str, str] = {}
        for key in sorted(self._found):
            found |= self._found[key].words()
        return found
