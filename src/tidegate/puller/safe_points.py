"""The ts below which no range is registered, because upstream's GC may have removed the history there.

A scan from below the safe point may lack deletes that GC has removed, and nothing would show it. Therefore a
range that would start there is refused, and its span stops until the owner of the puller acts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tidegate.log import event
from tidegate.model.key_range import scope_of
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp

LOG: Final = logging.getLogger(__name__)

OnRefused = Callable[[Span, Timestamp, Timestamp], None]
"""Called with a span, the ts it was to start from, and the safe point."""


class SafePoints:
    """The safe points by keyspace. Any thread may read them."""

    def __init__(self, kv_mode: str, on_refused: OnRefused | None) -> None:
        self._kv_mode, self._on_refused = kv_mode, on_refused
        self._known: dict[int, Timestamp] = {}  # by keyspace, -1: all the others

    def put(self, safe_point: Timestamp, keyspace_id: int) -> bool:
        """Set the safe point of a keyspace, or (-1) of all others. Returns whether it became lower."""
        before = self._known.get(keyspace_id, 0)
        self._known[keyspace_id] = safe_point
        return safe_point < before

    def of(self, span: Span) -> Timestamp:
        """The safe point that applies to a span."""
        return self._known.get(scope_of(span, self._kv_mode), self._known.get(-1, 0))

    def refuse(self, span: Span, start_ts: Timestamp) -> None:
        """Report that a part of a span is not registered."""
        safe_point = self.of(span)
        event(
            LOG,
            logging.ERROR,
            "not registered: below the safe point",
            span=span_id(span, self._kv_mode),
            start_ts=start_ts,
            safe_point=safe_point,
        )
        if self._on_refused is not None:
            self._on_refused(span, start_ts, safe_point)
