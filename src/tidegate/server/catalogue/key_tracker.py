"""The span of a feed without tables: one fixed range of keys. It takes the place of a `SchemaTracker`.

There is no DDL, so the resolved ts of the range itself is used where otherwise that of the DDL span is.
"""

from __future__ import annotations

from typing import Final

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.model.span import Span, span_id
from tidegate.mounter.table_version import TableVersion

NO_TABLE: Final = 0
"""The physical id for keys that belong to no table."""


class KeyTracker:
    """The range of keys of one feed."""

    def __init__(self, span: Span, kv_mode: str, ts: int) -> None:
        self._span, self._kv_mode = span, kv_mode
        self.resolved_ts = ts
        self.initial: tuple[SpanTask, ...] = ()
        self.left_out: tuple[TableVersion, ...] = ()
        self.topics = frozenset[str]()
        """As `SchemaTracker.topics`; empty, because keys go to the URI's own topic."""
        self.broken = False
        """As `SchemaTracker.broken`."""

    def has_passed_over(self, ts: int) -> bool:
        """As `SchemaTracker.has_passed_over`: keys have no jobs."""
        return False

    def begin(self, checkpoint: int, resolved: int) -> tuple[list[DdlBatch], int]:
        """As `SchemaTracker.begin`."""
        name = span_id(self._span, self._kv_mode)
        self.initial = (SpanTask(name, self._span, NO_TABLE, checkpoint),)
        return self.catch_up(resolved)

    def catch_up(self, resolved: int, waiting: int = 0) -> tuple[list[DdlBatch], int]:
        """As `SchemaTracker.catch_up`."""
        self.resolved_ts = max(self.resolved_ts, resolved)
        return [], self.resolved_ts

    def name_of(self, physical_id: int) -> str:
        """The range in words."""
        return f"keys from {self._span.start.hex() or 'the first'} to {self._span.end.hex() or 'the last'}"
