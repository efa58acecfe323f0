"""The spans of one changefeed that are delivered at the checkpoint, and the load of each.

The key space may be cut only at the starts of these spans. Their loads say what a part of it weighs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.share import Piece
from tidegate.model.span import Span
from tidegate.model.spans_in_order import SpansInOrder
from tidegate.server.catalogue.stripes import ids_of

IDLE_LOAD: Final = 512.0
"""The load that every span has in addition to its rows, in bytes per second."""
WORTH: Final = float(1 << 20)
"""Bytes per second of the whole changefeed below which every span counts the same, because there is
no load.
"""


class _InOrder(NamedTuple):
    """The spans in key order. They are sorted once for each change, not for each question."""

    tasks: Sequence[SpanTask]
    spans: SpansInOrder
    equal: Sequence[Piece]
    """The pieces while there is no load."""

    @classmethod
    def of(cls, tasks: Iterable[SpanTask]) -> _InOrder:
        ordered = sorted(tasks, key=lambda task: task.span.start)
        pieces = [Piece(task.span, 1.0) for task in ordered]
        return cls(ordered, SpansInOrder(task.span for task in ordered), pieces)


class DeliveredSpans:
    """The spans as DDL changes them, and their loads as captures report them."""

    def __init__(self) -> None:
        self.tasks: dict[str, SpanTask] = {}
        """The spans that are delivered at the checkpoint."""
        self.loads: dict[str, Mapping[str, int]] = {}
        """By capture, the loads it has last reported, in bytes per second; only its spans with the most."""
        self.changes = 0
        """How often the spans have changed."""
        self._in_order: _InOrder | None = None
        """`tasks` in order; None: they have changed."""

    def begin(self, tasks: Iterable[SpanTask]) -> None:
        """Set the spans that are delivered at the stored checkpoint."""
        self.tasks = {task.id: task for task in tasks}
        self.changes += 1
        self._in_order = None

    def passed(self, batch: DdlBatch) -> None:
        """Follow a DDL that the checkpoint has passed."""
        for name in batch.removed:
            self.tasks.pop(name, None)
        self.tasks |= {task.id: task for task in batch.added}
        if batch.removed or batch.added:
            self.changes += 1
            self._in_order = None

    def forget(self, captures: Iterable[str]) -> None:
        """Forget the loads of captures that are gone."""
        for capture in captures:
            self.loads.pop(capture, None)

    def _said(self) -> dict[str, int]:
        """The reported loads of all captures, by span."""
        return {name: load for one in self.loads.values() for name, load in one.items()}

    @property
    def with_load(self) -> dict[Span, int]:
        """The spans for which captures have reported a load, in bytes per second."""
        said = self._said()
        return {self.tasks[name].span: load for name, load in said.items() if name in self.tasks}

    @property
    def tables_with_load(self) -> list[tuple[int, Span, int]]:
        """(table or partition, span, load) of the spans of single tables for which any load is reported."""
        said = self._said()
        alone = [task for task in self.tasks.values() if not task.wanted]
        busy = {task.physical_id for task in alone if task.id in said}
        return [
            (task.physical_id, task.span, said.get(task.id, 0)) for task in alone if task.physical_id in busy
        ]

    @property
    def in_order(self) -> Sequence[SpanTask]:
        """The spans in key order, as `pieces` has them."""
        return self._ordered().tasks

    def _ordered(self) -> _InOrder:
        if self._in_order is None:
            self._in_order = _InOrder.of(self.tasks.values())
        return self._in_order

    @property
    def pieces(self) -> tuple[Sequence[Piece], bool]:
        """The pieces of the key space in key order, and whether their weights are bytes per second."""
        said = {name: load for name, load in self._said().items() if name in self.tasks}
        tasks, _, equal = self._ordered()
        if sum(said.values()) < WORTH:
            return equal, False
        return [Piece(task.span, IDLE_LOAD + said.get(task.id, 0)) for task in tasks], True

    def tables_in(self, span: Span) -> list[int]:
        """The tables and partitions of a range whose rows are delivered at the checkpoint."""
        tasks, spans, _ = self._ordered()
        return sorted({table for place in spans.met_by(span) for table in ids_of(tasks[place])})
