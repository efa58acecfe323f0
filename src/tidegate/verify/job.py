"""The search for rows that differ.

    cuts := everything
    repeat: sums of the source, sums of the target over the cuts          two Spark jobs, or one
            cuts := finer ranges within those that differ                 until they are small
    groups of differing ranges: their rows from both sides, compared one by one; for a group with many rows
    first their fingerprints, and then the rows of the keys whose fingerprints differ

For a table clustered on an integer, the source makes the ranges, of some thousands of rows each, while tasks
scan it along its regions. Later rounds read only the ranges that differ, on both sides. For other tables
every round reads the whole table again, but a second round of sums is rare, because their ranges are fine
from the start. The driver gets a count and a sum for each range, and at the end the rows of the few that
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from tidegate.consumer.snapshots import TableSnapshot
from tidegate.errors import Fatal, InvalidInput, TidegateError
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.tables.catalogue import SourceTable
from tidegate.tables.reader import spans_of
from tidegate.tidb import keys
from tidegate.verify import source, target
from tidegate.verify.differences import Difference, differences
from tidegate.verify.ranges import END, Bools, Cuts, I64s, Sums, U64s, differing_words, tiled, windows
from tidegate.verify.side import Shape, rows_of
from tidegate.verify.source import Found

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

DAEMON: Final = "tidegate.verify.daemon"
ROUNDS_MAX: Final = 12
"""Rounds of sums. After the last one, the differing ranges are compared row by row, whatever their size."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The limits of one run."""

    ranges: int = 65_536
    """Ranges in one round."""
    range_rows: int = 4096
    """About how many rows a range has, if nothing else limits it. A differing range is cut again if it has
    more than four times as many."""
    window_rows: int = 65_536
    """Rows of both sides that are in the driver at a time."""
    window_marks: int = 8_000_000
    """Fingerprints of both sides that are in the driver at a time: 16 bytes each."""
    differences: int = 10_000
    """The search ends once it has named so many differing keys."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one table."""

    table: str
    ts: int
    source_rows: int
    target_rows: int
    ranges: int
    """Ranges in the first round."""
    differing_ranges: int
    differences: tuple[Difference, ...]
    complete: bool
    """Whether every differing range was searched."""
    undecodable: int
    """Rows of the source that cannot be decoded."""
    note: str = ""
    """Why it was not compared; empty when it was."""

    @property
    def equal(self) -> bool:
        """Whether both sides are the same."""
        return not (self.differences or self.note or self.undecodable) and self.complete


class Verification:
    """One table's comparison; call `run` once."""

    def __init__(
        self,
        spark: SparkSession,
        pd: PdClient,
        at_source: SourceTable,
        at_target: TableSnapshot,
        bounds: SearchLimits | None = None,
        handles: tuple[int, int] | None = None,
    ) -> None:
        """`handles`: only rows with low <= integer key < end; InvalidInput if there is no such key."""
        self._spark, self._source, self._target = spark, at_source, at_target
        self._bounds = bounds or SearchLimits()
        table = at_source.parsed()
        self.name = table.name
        self.shape = Shape.of(table)
        self._prefix = keys.record_prefix(table.id)
        self._spans = spans_of(pd, table)
        self._region_words = source.words_at([span.start for span in self._spans[1:]], self._prefix)
        self._pieces = target.pieces_of(
            *(at_target.data_files(), self.shape, at_target.partition_values(), at_target.deleted_rows())
        )
        self._undecodable = 0
        self._cuts = self._everything(handles)

    def run(self) -> Verdict:
        """Search until every differing row is named, or as many as the limits allow."""
        note = self._unlike()
        if note:
            return Verdict(self.name, self._source.ts, 0, 0, 0, 0, (), True, 0, note)
        cuts, here, there = self._sums(self._cuts)
        # The first round's size: it reads all that is compared. Later rounds read some rows again.
        rows, ranges = (int(here.counts.sum()), int(there.counts.sum())), int(cuts.wanted.sum())
        undecodable = self._undecodable
        differing = here.differs(there)
        first = int(differing.sum())
        for _ in range(ROUNDS_MAX):
            sizes = np.maximum(here.counts, there.counts)
            large = differing & (sizes > 4 * self._bounds.range_rows) & _divisible(cuts)
            # Each differing range needs at least two in the next round, which has no more than `ranges`.
            if not large.any() or 2 * int(differing.sum()) > self._bounds.ranges:
                break
            cuts, here, there = self._sums(cuts.only(differing))
            differing = here.differs(there)
        found, complete = self._named(cuts, differing, here.counts + there.counts)
        return Verdict(self.name, self._source.ts, *rows, ranges, first, tuple(found), complete, undecodable)

    def _named(self, cuts: Cuts, differing: Bools, sizes: I64s) -> tuple[list[Difference], bool]:
        """The differences in the differing ranges, and whether these are all."""
        found: list[Difference] = []
        for window in windows(differing, sizes, self._bounds.window_marks):
            for exact in self._exact(cuts, window, sizes):
                if len(found) >= self._bounds.differences:
                    return found, False
                found += self._compared(exact)
        return found, True

    def _exact(self, cuts: Cuts, window: Bools, sizes: I64s) -> Iterator[Cuts]:
        """Cuts with few rows each, which together cover all differences in a window of ranges."""
        if int(sizes[window].sum()) <= self._bounds.window_rows:
            yield cuts.only(window)
            return
        differing = self._differing_words(cuts.only(window))
        # Half as many, because a word may have a row on both sides.
        step = max(self._bounds.window_rows // 2, 1)
        for at in range(0, len(differing), step):
            yield Cuts.around(differing[at : at + step])

    def _everything(self, handles: tuple[int, int] | None) -> Cuts:
        """The cuts to begin with: all words, or those of the integer keys in `handles`.

        A word is the key with its sign bit flipped, as in TiKV's record keys.
        """
        if handles is None:
            return Cuts.whole()
        if not self.shape.ordered:
            raise InvalidInput(
                f"{self.name} has no ranges of keys to choose from",
                why="it is not clustered on one integer column, or it is partitioned",
                fix="leave --keys out",
            )
        low, end = (handle + (1 << 63) if handle < 1 << 63 else handle - (1 << 63) for handle in handles)
        if low >= end:
            raise InvalidInput(
                "--keys crosses the limit of signed integers",
                why="TiKV keeps unsigned keys from 2**63 on before the others",
                fix="ask for the keys below 2**63 and for those above in two runs",
            )
        return Cuts.whole(low, end)

    def _unlike(self) -> str:
        """How the columns of the two sides differ; empty if they do not."""
        here = set(self.shape.schema.names)
        there = {name for name in self._target.columns.names if not name.startswith("_tidegate_")}
        if here == there:
            return ""
        only = [f"{name} at the source only" for name in self.shape.schema.names if name not in there]
        only += [f"{name} at the target only" for name in sorted(there - here)]
        return "columns differ: " + ", ".join(only)

    # --- rounds --------------------------------------------------------------------------------------

    def _sums(self, cuts: Cuts) -> tuple[Cuts, Sums, Sums]:
        """Finer ranges within the wanted ones, and the sums of both sides over them."""
        if self.shape.ordered:
            cuts, here = self._in_order(cuts)
            return cuts, here, self._target_sums(cuts)
        # One job for both sides, because the ranges are known before either is read. Those of an ordered
        # table come from the scan of its source.
        cuts = cuts.split(max(self._ranges() // int(cuts.wanted.sum()), 2))
        at_source, shape = self._source, self.shape
        work: list[partial[Any]] = [
            partial(source.sums, at_source, cuts, part) for part in self._shared(self._spans)
        ]
        work += [partial(target.sums, shape, cuts, part) for part in self._near(cuts)]
        here, there = Sums.zero(len(cuts)), Sums.zero(len(cuts))
        for answer in self._spread(work):
            if isinstance(answer, Found):
                here += self._of_source(answer)
            else:
                there += answer
        return cuts, here, there

    def _ranges(self) -> int:
        """How many ranges a table of this size has in the first round."""
        rows = sum(piece.rows for piece in self._pieces)
        return min(max(rows // self._bounds.range_rows, 1), self._bounds.ranges)

    def _in_order(self, cuts: Cuts) -> tuple[Cuts, Sums]:
        at_source = self._source
        pieces = source.pieces_of(cuts.runs(), self._region_words)
        answers = self._spread(
            [
                partial(source.ordered_sums, at_source, self._bounds.range_rows, part)
                for part in self._shared(pieces)
            ]
        )
        made = [ordered for answer in answers for ordered in self._of_source(answer)]
        return tiled(made, self._bounds.ranges)

    def _target_sums(self, cuts: Cuts) -> Sums:
        work = [partial(target.sums, self.shape, cuts, part) for part in self._near(cuts)]
        return sum(self._spread(work), Sums.zero(len(cuts)))

    def _differing_words(self, cuts: Cuts) -> U64s:
        """The words in the wanted ranges for which the sides differ."""
        at_source, shape = self._source, self.shape
        work: list[partial[Any]] = [
            partial(source.fingerprints, at_source, cuts, part) for part in self._shared(self._spans_of(cuts))
        ]
        work += [partial(target.fingerprints, shape, cuts, part) for part in self._near(cuts)]
        answers = self._spread(work)
        here = [self._of_source(answer) for answer in answers if isinstance(answer, Found)]
        there = [answer for answer in answers if not isinstance(answer, Found)]
        return differing_words(_joined(here), _joined(there))

    def _spans_of(self, cuts: Cuts) -> list[Span]:
        """The spans in which the source has the rows of the wanted ranges."""
        if not self.shape.ordered:
            return self._spans
        pieces = source.pieces_of(cuts.runs(), self._region_words)
        return [source.span_of(self._prefix, low, end) for low, end in pieces]

    def _compared(self, cuts: Cuts) -> list[Difference]:
        """The differences in the wanted ranges, row by row."""
        at_source, shape, spans = self._source, self.shape, self._spans_of(cuts)
        work: list[partial[Any]] = [
            partial(source.rows, at_source, cuts, part) for part in self._shared(spans)
        ]
        work += [partial(target.rows, shape, cuts, part) for part in self._near(cuts)]
        answers = self._spread(work)
        here = rows_of([self._of_source(a) for a in answers if isinstance(a, Found)], shape.schema)
        there = rows_of([a for a in answers if not isinstance(a, Found)], shape.schema)
        return differences(here, there, shape.key)

    # --- tasks ---------------------------------------------------------------------------------------

    def _of_source(self, answer: Found) -> Any:
        self._undecodable += answer.undecodable
        return answer.value

    def _near(self, cuts: Cuts) -> list[list[target.RowGroup]]:
        return self._shared(target.near(self._pieces, cuts.runs()))

    def _shared(self, parts: Sequence[T]) -> list[list[T]]:
        """The parts in order, divided into about four lists for each core."""
        tasks = 4 * self._spark.sparkContext.defaultParallelism
        size = max(-(-len(parts) // tasks), 1)
        return [list(parts[at : at + size]) for at in range(0, len(parts), size)]

    def _spread(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run each piece of work as a Spark task. Raises the first error that a task returned."""
        if not work:
            return []
        try:
            answers = self._spark.sparkContext.parallelize(work, len(work)).map(_guarded).collect()
        except Exception as error:  # of a worker or the JVM
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise Fatal(
                "Spark cannot compare the table",
                where=self.name,
                why=f"{type(error).__name__}: {' '.join(lines[:3])[:500]}",
                fix="start the comparison again; if it fails again, see Spark's log",
            ) from error
        for answer in answers:
            if isinstance(answer, _Failed):
                raise answer.error()
        return list(answers)


@dataclass(frozen=True, slots=True)
class _Failed:
    """An error of ours, as a task returns it: pickling it would lose its keyword arguments."""

    kind: type[TidegateError]
    what: str
    where: str
    why: str
    fix: str

    def error(self) -> TidegateError:
        return self.kind(self.what, where=self.where, why=self.why, fix=self.fix)


def _guarded(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except TidegateError as error:
        return _Failed(type(error), error.what, error.where, error.why, error.fix)


def _joined(parts: Sequence[tuple[U64s, U64s]]) -> tuple[U64s, U64s]:
    empty = np.empty(0, np.uint64)
    words, marks = (np.concatenate([empty, *(part[at] for part in parts)]) for at in (0, 1))
    return words, marks


def _divisible(cuts: Cuts) -> Bools:
    """Which ranges have more than one word."""
    # END does not fit into 64 bits. With one less, a last range of two words counts as one, which does no
    # harm.
    ends = np.append(cuts.starts[1:], np.uint64(END - 1))
    found: Bools = ends - cuts.starts > 1
    return found
