"""Ranges of spans that a worker delivers together, and how far it has written them.

    written:  past, reports --keep--> durable
              ^------- take_back ------'

Written rows become durable with a commit (`keep`). If the slot is lost before the commit, the stretch returns
to the last commit (`take_back`), and the worker writes the same rows again. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tidegate.dispatcher.conflict import SpanConflicts
from tidegate.model.position import Place, Position
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import Report


@dataclass(slots=True)
class Stretch:
    """Ranges that are merged, usually one: how far they were written, and how far they are durable."""

    ranges: tuple[Range, ...]
    past: Position | None
    """Everything up to this position was written. None: the ts of the reports say all that was written."""
    reports: list[Report]
    """One report for each range. The first one also has the counts of all ranges together."""
    durable: tuple[Position | None, list[Report]]
    """`past` and `reports` at the last commit."""
    tables: list[int] | None = None
    """The tables whose rows are read. None: all rows of the spans."""
    conflicts: SpanConflicts | None = None
    """Conflicts among the written rows. None: no rule dispatches by conflict, or nothing was written yet."""

    @classmethod
    def of(cls, ranges: Sequence[Range], past: Position | None) -> Stretch:
        """A stretch of ranges of which everything up to `past` is durable."""
        reports = [Report(one.span, one.after) for one in ranges]
        return cls(tuple(ranges), past, reports, (past, [replace(one) for one in reports]))

    @property
    def is_done(self) -> bool:
        """Whether all ranges are written to their ends."""
        return all(report.ts == one.upto for one, report in zip(self.ranges, self.reports, strict=True))

    @property
    def upto(self) -> int:
        """The last commit ts of all ranges."""
        return max(one.upto for one in self.ranges)

    @property
    def name(self) -> str:
        """Where its entries come from, for people."""
        more = len(self.ranges) - 1
        return self.ranges[0].span + (f" and {more} more" if more else "")

    def spans(self, past: Place | None) -> list[tuple[str, int, int]]:
        """(id, after, upto) of the parts that are left after a place, as the event store takes them."""
        # One below the place: its commit ts may have more rows behind it.
        written = 0 if past is None else past[0] - 1
        since = (max(report.ts, written) for report in self.reports)
        left = zip(self.ranges, since, strict=True)
        return [(one.span, after, one.upto) for one, after in left if after < one.upto]

    def progress(self, ts: int) -> Iterator[tuple[Report, int]]:
        """For each range, its report and its new ts when everything up to `ts` is written."""
        for one, report in zip(self.ranges, self.reports, strict=True):
            yield report, min(max(report.ts, ts), one.upto)

    def keep(self) -> None:
        """Everything that was written is durable now."""
        self.durable = self.past, [replace(one) for one in self.reports]

    def take_back(self) -> None:
        """Everything written since the last commit is lost: return to it."""
        self.past, self.reports = self.durable[0], [replace(one) for one in self.durable[1]]
