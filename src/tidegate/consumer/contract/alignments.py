"""Alignment marks of tables: on every partition, after the table's older rows, with epochs that rise."""

from __future__ import annotations

from typing import Final

from tidegate.consumer.contract.layouts import Layouts
from tidegate.consumer.contract.partition import Partition
from tidegate.consumer.contract.verdict import Rule, Verdict
from tidegate.consumer.reading.mark_headers import Alignment

ALIGNMENTS: Final = 1_000
"""How many epochs of a table's alignment marks are remembered."""


class Alignments:
    """Checks the marks themselves; `Changes` checks the rows that follow one."""

    def __init__(self, layouts: Layouts, verdict: Verdict) -> None:
        self._layouts, self._verdict = layouts, verdict
        self._aligned: dict[str, dict[int, tuple[str, int]]] = {}
        """By table, the last ALIGNMENTS epochs of its alignment marks, each with id and ts."""

    def take(self, state: Partition, ts: int, mark: Alignment, offset: int) -> None:
        """Check a mark of a partition. It must not contradict earlier epochs there, or other partitions."""
        known = self._aligned.setdefault(mark.table, {})
        before = state.epochs.get(mark.table)
        if before == mark.epoch and known.get(mark.epoch) == (mark.id, ts):
            return  # repeated after a restart
        if before is not None and mark.epoch <= before:
            why = f"the mark of epoch {before} came before the one of epoch {mark.epoch}"
            self._verdict.violated(Rule.ALIGNED, state, offset, ts, why, mark.table)
            return
        other = known.setdefault(mark.epoch, (mark.id, ts))
        if other != (mark.id, ts):
            why = f"another partition has {other[0]!r} at {other[1]} as epoch {mark.epoch}"
            self._verdict.violated(Rule.ALIGNED, state, offset, ts, why, mark.table)
        for epoch in known:
            # Without an earlier mark here, those of lower epochs may have come before the check began.
            expected = before is not None and before < epoch < mark.epoch
            if expected and self._has_rows(state, epoch):
                why = f"the mark of epoch {epoch} is on another partition alone"
                self._verdict.violated(Rule.ALIGNED, state, -1, known[epoch][1], why, mark.table)
        state.epochs[mark.table] = mark.epoch
        while len(known) > ALIGNMENTS:
            del known[min(known)]

    def _has_rows(self, state: Partition, ts: int) -> bool:
        """Whether rows of this commit ts may be on a partition; False when that is not known."""
        return state.partition < self._layouts.rows_on(state.topic, self._layouts.epoch(state.topic, ts))
