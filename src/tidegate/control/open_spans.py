"""The spans of a processor's ranges while they are open: which tables each has, and how far it is durable.

    open at a checkpoint --> take reports, advance idle ones --> add and remove as DDL says --> close

`control.processor` decides what may be delivered. This part only keeps the progress. A span's durable ts
never falls while it is open. There may be a thousand spans, and a tick passes over all of them. So the
durable ts are an array in the order of the spans, and a tick calls nothing for each span.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tidegate.control.barrier import SpanTask
from tidegate.model.span import Span
from tidegate.model.spans_in_order import SpansInOrder
from tidegate.model.ts_by_span import Places, SpanOrder, TsArray, ts_of
from tidegate.tidb.keys import stripe_ids


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """Spans that have received more than is durable. Iterates as (span, after, upto)."""

    order: SpanOrder
    places: Places
    """[some]: the place of each span in the order."""
    after: TsArray
    """[some]: the ts up to which each is durable."""
    upto: TsArray
    """[some]: the ts up to which each is received, up to a bound."""

    @classmethod
    def of(cls, order: SpanOrder, found: Sequence[tuple[int, int, int]]) -> Received:
        """From (place, after, upto) of each."""
        places, after, upto = zip(*found, strict=True) if found else ((), (), ())
        return cls(order, np.array(places, np.intp), np.array(after, np.uint64), np.array(upto, np.uint64))

    @classmethod
    def by_name(cls, found: Iterable[tuple[str, int, int]]) -> Received:
        """From (span, after, upto) of each, in an order of their own."""
        rows = list(found)
        return cls.of(SpanOrder(name for name, _, _ in rows), [(at, *one[1:]) for at, one in enumerate(rows)])

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        names = self.order.names
        found = zip(self.places.tolist(), self.after.tolist(), self.upto.tolist(), strict=True)
        return ((names[place], after, upto) for place, after, upto in found)

    def only(self, mask: npt.NDArray[np.bool_]) -> Received:
        """Those for which `mask` ([some]) is true."""
        return replace(self, places=self.places[mask], after=self.after[mask], upto=self.upto[mask])


@dataclass(frozen=True, slots=True, eq=False)
class _Met:
    """Which spans have keys of some ranges."""

    ranges: tuple[Span, ...]
    having: tuple[int, ...]
    """The ranges that have spans, as places in `ranges`."""
    spans: Places
    """[pairs]: the places of the spans in each of `having`, one range after the other."""
    starts: Places
    """[having]: where each range begins in `spans`."""

    @classmethod
    def of(cls, ranges: tuple[Span, ...], tasks: Iterable[SpanTask]) -> _Met:
        """For ranges without overlaps, and spans in order."""
        held = SpansInOrder(ranges)
        place_of = {one: place for place, one in enumerate(ranges)}
        meeting: list[list[int]] = [[] for _ in ranges]
        for at, task in enumerate(tasks):
            for place in held.met_by(task.span):
                meeting[place_of[held.spans[place]]].append(at)
        having = tuple(place for place, spans in enumerate(meeting) if spans)
        starts = np.cumsum([0, *(len(meeting[place]) for place in having)], dtype=np.intp)[:-1]
        return cls(ranges, having, np.array([at for spans in meeting for at in spans], np.intp), starts)

    def least(self, durable: TsArray, otherwise: int) -> list[int]:
        """The least ts of each range's spans; `otherwise` for a range without one. `durable`: [spans]."""
        found = [otherwise] * len(self.ranges)
        if self.having:
            least = np.minimum.reduceat(durable[self.spans], self.starts)
            for place, ts in zip(self.having, least.tolist(), strict=True):
                found[place] = ts
        return found


@dataclass(slots=True, eq=False)
class _Shown:
    """Everything that follows from the spans and their wanted tables alone, until one of them changes."""

    order: SpanOrder
    stripes: Mapping[str, tuple[int, int]]
    met: _Met
    """For the ranges for which it was last looked up."""


class OpenSpans:
    """The open spans of one feed on one capture. Not thread-safe, no I/O."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether the spans at the checkpoint are known."""
        self.resolved = 0
        """The ts up to which all spans were received and all DDL is known (`resolve`)."""
        self._tasks: dict[str, SpanTask] = {}
        self._places: dict[str, int] = {}
        """The place of each span in the order, which is that of `_tasks`."""
        self._durable: TsArray = np.empty(0, np.uint64)
        self._shown: _Shown | None = None
        self._reported: dict[str, int] = {}
        """The reports under the present goal, also about spans that a DDL will add later."""

    def open(self, checkpoint: int, tasks: Iterable[SpanTask]) -> None:
        """Begin with the spans that are wanted at a checkpoint."""
        self.is_open, self.resolved = True, 0
        self._reported.clear()
        self._begin({task.id: task for task in tasks}, {}, checkpoint)

    def close(self) -> None:
        """Forget all spans."""
        self.is_open, self.resolved = False, 0
        self._begin({}, {})

    def _begin(self, tasks: dict[str, SpanTask], durable: Mapping[str, int], otherwise: int = 0) -> None:
        """Have these spans from now on. `durable`: how far each is; one that is missing there is durable up
        to its start, or up to `otherwise` if that is higher.
        """
        at = (durable.get(name, max(otherwise, task.start_ts)) for name, task in tasks.items())
        self._tasks, self._durable = tasks, np.fromiter(at, np.uint64, len(tasks))
        self._places, self._shown = {name: place for place, name in enumerate(tasks)}, None

    def forget_reports(self) -> None:
        """Forget the reports about spans that are not open yet. Open ones keep what is durable."""
        self._reported.clear()

    # --- progress ------------------------------------------------------------------------------------

    def raise_to(self, checkpoint: int) -> None:
        """Raise all spans: they are durable up to there, by whichever capture."""
        np.maximum(self._durable, np.uint64(checkpoint), out=self._durable)

    def take(self, reports: Mapping[str, int]) -> None:
        """Each of some spans is durable downstream up to a ts. One that is not open yet begins there."""
        for name, ts in reports.items():
            self._reported[name] = max(ts, self._reported.get(name, 0))
            if (place := self._places.get(name)) is not None and ts > self._durable[place]:
                self._durable[place] = ts

    def idle(self, spans: Received) -> None:
        """Advance spans that have no row in (after, upto]; only those that are durable up to `after`."""
        if spans.order is not self.order:  # some were added or have ended since
            places = self._places
            known = [(places[name], after, upto) for name, after, upto in spans if name in places]
            spans = Received.of(self.order, known)
        # The ranges were looked at outside this class. If the checkpoint was replaced by a lower one
        # meanwhile, rows between the two were not looked for.
        durable = self._durable[spans.places]
        rises = (spans.after <= durable) & (durable < spans.upto)
        self._durable[spans.places[rises]] = spans.upto[rises]

    def resolve(self, frontier: Mapping[str, int], lacking: Container[str], known: int) -> None:
        """Raise the resolved ts to what was received. `known`: the DDL up to there is known. `lacking`: spans
        whose rows do not begin early enough yet, so that only what is durable counts.
        """
        reached = ts_of(frontier, self.order)
        if lacking:
            late = [place for name, place in self._places.items() if name in lacking]
            reached[late] = self._durable[late]
        # Rows above the known DDL may be of tables that are not known yet. It never falls, although a DDL may
        # add spans that have received less.
        received = int(reached.min()) if len(reached) else known
        self.resolved = max(self.resolved, min(known, received))

    def change(self, ddls: Iterable[tuple[Collection[str], Iterable[SpanTask]]]) -> None:
        """For each of some DDLs, in order, end the spans that it removes, then begin with those that it adds.

        Hundreds of DDLs may wait, and most concern no span here. So the spans are arranged once for all of
        them, and not at all if none ends or is added.
        """
        tasks, durable = dict[str, SpanTask](), dict[str, int]()
        has_changed = False
        for removed, added in ddls:
            fresh = list(added)
            if not has_changed:
                if not fresh and self._tasks.keys().isdisjoint(removed):
                    continue
                has_changed, tasks, durable = True, dict(self._tasks), self._durable_now
            for name in removed:
                tasks.pop(name, None)
                durable.pop(name, None)
            for task in fresh:
                # One that is open is a stripe of which other tables are wanted from now on.
                tasks[task.id] = task
                # The pipeline may have reported a span before the DDL was passed here.
                durable.setdefault(task.id, max(task.start_ts, self._reported.get(task.id, 0)))
        if has_changed:
            self._begin(tasks, durable)

    # --- what is known -------------------------------------------------------------------------------

    @property
    def ids(self) -> Set[str]:
        """The ids of the spans, as a view."""
        return self._tasks.keys()

    @property
    def order(self) -> SpanOrder:
        """The ids of the spans in order. Another object if a span was added or has ended, or if other tables
        of one are wanted; the same one as long as nothing of that has changed, whatever DDL was passed.
        """
        return self._shown_now.order

    @property
    def tasks(self) -> dict[str, SpanTask]:
        """The spans by id; the `start_ts` of each is the ts up to which it is durable."""
        return {
            name: SpanTask(name, task.span, task.physical_id, ts, task.wanted)
            for (name, task), ts in zip(self._tasks.items(), self._durable.tolist(), strict=True)
        }

    @property
    def stripes(self) -> Mapping[str, tuple[int, int]]:
        """For each span of several tables its first id, and which tables are wanted (`SpanTask.wanted`)."""
        return self._shown_now.stripes

    @property
    def _shown_now(self) -> _Shown:
        if self._shown is None:
            stripes = (task for task in self._tasks.values() if task.wanted)
            firsts = {task.id: (stripe_ids(task.span).start, task.wanted) for task in stripes}
            self._shown = _Shown(SpanOrder(self._tasks), firsts, _Met.of((), ()))
        return self._shown

    @property
    def _durable_now(self) -> dict[str, int]:
        return dict(zip(self._tasks, self._durable.tolist(), strict=True))

    def task(self, name: str) -> SpanTask:
        """A span as it was added: its `start_ts` is where it began."""
        return self._tasks[name]

    def wanted(self, name: str) -> tuple[Span, int]:
        """A span, and which of its tables are wanted (as in `SpanTask.wanted`)."""
        task = self._tasks[name]
        return task.span, task.wanted

    def durable(self, name: str) -> int:
        """The ts up to which a span is durable."""
        return int(self._durable[self._places[name]])

    @property
    def durable_ts(self) -> list[int]:
        """The ts up to which each span is durable, in `order`."""
        found: list[int] = self._durable.tolist()
        return found

    def slowest(self) -> SpanTask | None:
        """The span with the least durable ts; None: there are no spans."""
        if not self._tasks:
            return None
        return self._tasks[self.order.names[int(self._durable.argmin())]]

    def beyond(self, frontier: Mapping[str, int], bound: int) -> Received:
        """The spans that have received more than is durable, up to a bound."""
        order = self.order
        upto = np.minimum(ts_of(frontier, order), np.uint64(bound))
        places = np.flatnonzero(upto > self._durable)
        return Received(order, places, self._durable[places], upto[places])

    def durable_in(self, ranges: Sequence[Span], otherwise: int) -> list[int]:
        """For each of some ranges without overlaps, the ts up to which all spans in it are durable; without
        one, `otherwise`.
        """
        shown = self._shown_now
        if shown.met.ranges != (wanted := tuple(ranges)):
            shown.met = _Met.of(wanted, self._tasks.values())
        return shown.met.least(self._durable, otherwise)
