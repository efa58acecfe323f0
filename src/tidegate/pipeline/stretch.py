"""Ranges of spans that a worker delivers as one, and how far it has come with them.

    written:  past, reports --keep--> durable
              ^------- take_back ------'

What is written becomes durable with a commit (`keep`). When the slot is lost before that, a stretch goes back
to the last commit (`take_back`), and the same rows are written again. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tidegate.dispatcher.conflict import SpanConflicts
from tidegate.model.position import Place, Position
from tidegate.pipeline.ranges import Range
from tidegate.pipeline.work import Report


@dataclass(slots=True)
class Stretch:
    """Ranges that are merged, mostly one: what of them went into transactions, and how much is durable."""

    ranges: tuple[Range, ...]
    past: Position | None
    """Everything up to here was written; None: nothing of the commit ts after that of the reports."""
    reports: list[Report]
    """One a range; the first also counts what was done for all."""
    durable: tuple[Position | None, list[Report]]
    """Both as of the last commit."""
    tables: list[int] | None = None
    """Only their rows are read; None: all that the spans hold."""
    conflicts: SpanConflicts | None = None
    """Of the rows that were written; None: no rule is by conflict, or nothing was written yet."""

    @classmethod
    def of(cls, ranges: Sequence[Range], past: Position | None) -> Stretch:
        """Ranges of which everything up to `past` is durable."""
        reports = [Report(one.span, one.after) for one in ranges]
        return cls(tuple(ranges), past, reports, (past, [replace(one) for one in reports]))

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return all(report.ts == one.upto for one, report in zip(self.ranges, self.reports, strict=True))

    @property
    def upto(self) -> int:
        """The last commit ts of all."""
        return max(one.upto for one in self.ranges)

    @property
    def name(self) -> str:
        """Where its entries come from, for people."""
        more = len(self.ranges) - 1
        return self.ranges[0].span + (f" and {more} more" if more else "")

    def spans(self, past: Place | None) -> list[tuple[str, int, int]]:
        """(id, after, upto) of what is left behind a place, as the event store is asked for it."""
        written = 0 if past is None else past[0] - 1
        since = (max(report.ts, written) for report in self.reports)
        left = zip(self.ranges, since, strict=True)
        return [(one.span, after, one.upto) for one, after in left if after < one.upto]

    def progress(self, ts: int) -> Iterator[tuple[Report, int]]:
        """How far each range is when everything up to a ts is written."""
        for one, report in zip(self.ranges, self.reports, strict=True):
            yield report, min(max(report.ts, ts), one.upto)

    def keep(self) -> None:
        """What was written is durable."""
        self.durable = self.past, [replace(one) for one in self.reports]

    def take_back(self) -> None:
        """What was written since the last commit is lost."""
        self.past, self.reports = self.durable[0], [replace(one) for one in self.durable[1]]
