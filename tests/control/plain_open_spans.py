"""`control.open_spans` span by span, as its oracle: plain steps instead of arrays."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.control.barrier import SpanTask
from tidegate.model.span import Span
from tidegate.tidb.keys import stripe_ids


@dataclass(slots=True)
class OpenSpan:
    """An open span, and the ts up to which it is durable."""

    task: SpanTask
    checkpoint: int


class PlainOpenSpans:
    """The open spans of one feed on one capture. Not thread-safe, no I/O."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether the spans at the checkpoint are known."""
        self.resolved = 0
        """The ts up to which all spans were received and all DDL is known (`resolve`)."""
        self._spans: dict[str, OpenSpan] = {}
        self._reported: dict[str, int] = {}
        """The reports under the present goal, also about spans that a DDL will add later."""

    def open(self, checkpoint: int, tasks: Iterable[SpanTask]) -> None:
        """Begin with the spans that are wanted at a checkpoint."""
        self.is_open, self.resolved = True, 0
        self._reported.clear()
        self._spans = {task.id: OpenSpan(task, max(checkpoint, task.start_ts)) for task in tasks}

    def close(self) -> None:
        """Forget all spans."""
        self.is_open, self.resolved, self._spans = False, 0, {}

    def forget_reports(self) -> None:
        """Forget the reports about spans that are not open yet. Open ones keep what is durable."""
        self._reported.clear()

    # --- progress ------------------------------------------------------------------------------------

    def raise_to(self, checkpoint: int) -> None:
        """Raise all spans: they are durable up to there, by whichever capture."""
        for progress in self._spans.values():
            progress.checkpoint = max(checkpoint, progress.checkpoint)

    def take(self, reports: Mapping[str, int]) -> None:
        """Each of some spans is durable downstream up to a ts. One that is not open yet begins there."""
        for name, ts in reports.items():
            self._reported[name] = max(ts, self._reported.get(name, 0))
            if (progress := self._spans.get(name)) is not None:
                progress.checkpoint = max(ts, progress.checkpoint)

    def idle(self, name: str, after: int, upto: int) -> None:
        """Advance a span that has no row in (after, upto]; only if it is durable up to `after`."""
        # The range was looked at outside this class. If the checkpoint was replaced by a lower one
        # meanwhile, rows between the two were not looked for.
        if (progress := self._spans.get(name)) is not None and after <= progress.checkpoint:
            progress.checkpoint = max(upto, progress.checkpoint)

    def resolve(self, frontier: Mapping[str, int], lacking: Container[str], known: int) -> None:
        """Raise the resolved ts to what was received. `known`: the DDL up to there is known. `lacking`: spans
        whose rows do not begin early enough yet, so that only what is durable counts.
        """
        reached = (
            one.checkpoint if name in lacking else frontier.get(name, 0) for name, one in self._spans.items()
        )
        # Rows above the known DDL may be of tables that are not known yet. It never falls, although a DDL may
        # add spans that have received less.
        self.resolved = max(self.resolved, min(known, min(reached, default=known)))

    def add(self, task: SpanTask) -> None:
        """Begin with a span that a DDL adds."""
        held = self._spans.get(task.id)
        if held is not None:  # a stripe, of which other tables are wanted from now on
            held.task = task
        else:
            # The pipeline may have reported the span before the DDL was passed here.
            start_ts = max(task.start_ts, self._reported.get(task.id, 0))
            self._spans[task.id] = OpenSpan(task, start_ts)

    def remove(self, name: str) -> None:
        """End a span that a DDL removes."""
        self._spans.pop(name, None)

    # --- what is known -------------------------------------------------------------------------------

    @property
    def tasks(self) -> dict[str, SpanTask]:
        """The spans by id; the `start_ts` of each is the ts up to which it is durable."""
        return {
            name: SpanTask(name, p.task.span, p.task.physical_id, p.checkpoint, p.task.wanted)
            for name, p in self._spans.items()
        }

    @property
    def stripes(self) -> dict[str, tuple[int, int]]:
        """For each span of several tables its first id, and which tables are wanted (`SpanTask.wanted`)."""
        tasks = (one.task for one in self._spans.values() if one.task.wanted)
        return {task.id: (stripe_ids(task.span).start, task.wanted) for task in tasks}

    def slowest(self) -> SpanTask | None:
        """The span with the least durable ts; None: there are no spans."""
        found = min(self._spans.values(), key=lambda p: p.checkpoint, default=None)
        return found.task if found is not None else None

    def beyond(self, frontier: Mapping[str, int], bound: int) -> list[tuple[str, int, int]]:
        """(span, after, upto) of spans that have received more than is durable, up to a bound."""
        found = []
        for name, progress in self._spans.items():
            upto = min(frontier.get(name, 0), bound)
            if upto > progress.checkpoint:
                found.append((name, progress.checkpoint, upto))
        return found

    def durable_in(self, ranges: Sequence[Span], otherwise: int) -> list[int]:
        """For each of some ranges without overlaps, the ts up to which all spans in it are durable; without
        one, `otherwise`.
        """
        return [
            min(
                (one.checkpoint for one in self._spans.values() if span.intersect(one.task.span) is not None),
                default=otherwise,
            )
            for span in ranges
        ]
