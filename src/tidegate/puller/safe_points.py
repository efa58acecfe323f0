"""Below which ts nothing is registered: what upstream keeps of its history for us.

A scan from below the safe point may lack deletes that GC has taken, without any sign of it. So a range that
would begin there is refused, and its span stands still until the owner of the puller does something.
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
"""Called with a span, where it was to begin, and the safe point."""


class SafePoints:
    """The safe points by keyspace. Any thread may ask."""

    def __init__(self, kv_mode: str, on_refused: OnRefused | None) -> None:
        self._kv_mode, self._on_refused = kv_mode, on_refused
        self._known: dict[int, Timestamp] = {}  # by keyspace, -1: all the others

    def put(self, safe_point: Timestamp, keyspace_id: int) -> bool:
        """Take a keyspace's safe point, or (-1) that of all that are not named. Whether it fell."""
        before = self._known.get(keyspace_id, 0)
        self._known[keyspace_id] = safe_point
        return safe_point < before

    def of(self, span: Span) -> Timestamp:
        """The safe point that counts for a span."""
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
