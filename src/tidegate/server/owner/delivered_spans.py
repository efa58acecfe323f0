"""The spans of one changefeed that are delivered at the checkpoint, and the load of each.

The key space may be cut only at the starts of these spans. Their loads say what a part of it weighs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.control.share import Piece
from tidegate.model.span import Span
from tidegate.server.catalogue.stripes import ids_of

IDLE_LOAD: Final = 512.0
"""The load that every span has in addition to its rows, in bytes per second."""
WORTH: Final = float(1 << 20)
"""Bytes per second of the whole changefeed below which every span counts the same, because there is
no load.
"""


class DeliveredSpans:
    """The spans as DDL changes them, and their loads as captures report them."""

    def __init__(self) -> None:
        self.tasks: dict[str, SpanTask] = {}
        """The spans that are delivered at the checkpoint."""
        self.loads: dict[str, Mapping[str, int]] = {}
        """By capture, the loads it has last reported, in bytes per second; only its spans with the most."""
        self.changes = 0
        """How often the spans have changed."""

    def begin(self, tasks: Iterable[SpanTask]) -> None:
        """Set the spans that are delivered at the stored checkpoint."""
        self.tasks = {task.id: task for task in tasks}
        self.changes += 1

    def passed(self, batch: DdlBatch) -> None:
        """Follow a DDL that the checkpoint has passed."""
        for name in batch.removed:
            self.tasks.pop(name, None)
        self.tasks |= {task.id: task for task in batch.added}
        self.changes += bool(batch.removed or batch.added)

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
    def pieces(self) -> tuple[list[Piece], bool]:
        """The pieces of the key space in key order, and whether their weights are bytes per second."""
        said = self._said()
        loads = {name: float(said.get(name, 0)) for name in self.tasks}
        in_bytes = sum(loads.values()) >= WORTH
        ordered = sorted(self.tasks.values(), key=lambda task: task.span.start)
        return [
            Piece(task.span, IDLE_LOAD + loads[task.id] if in_bytes else 1.0) for task in ordered
        ], in_bytes

    def tables_in(self, span: Span) -> list[int]:
        """The tables and partitions of a range whose rows are delivered at the checkpoint."""
        found = (task for task in self.tasks.values() if span.intersect(task.span) is not None)
        return sorted({table for task in found for table in ids_of(task)})
