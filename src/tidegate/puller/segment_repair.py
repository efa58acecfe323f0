"""Pulls ranges of commits again, because their segment is damaged or they were dropped.

TiKV can scan from any ts above its GC safe point, so the result is exactly what was there before. A separate
puller with its own streams follows the span until every commit up to `upto` has arrived.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import Retryable
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.puller import Puller
from tidegate.puller.store_protocol import ChangeStore, SpanChanges

LOOK_S: Final = 0.02


def repair_segment(
    pd: PdClient,
    span: Span,
    upto: Timestamp,
    store: ChangeStore,
    closing: threading.Event,
    kv_mode: str,
    memory: StreamMemory | None = None,
) -> None:
    """Pull a span's commits up to `upto` into a new `store`, from the resolved ts that it has for the span.

    `memory`: shared by its streams with others. Raises Retryable if `closing` is set before it is done, or
    the error that ended the puller.
    """
    bounded = Bounded(store)
    # Before `watch`, which opens the span through `bounded`.
    bounded.upto[span] = upto
    target = store.open_span(span)
    puller = Puller(pd, bounded, kv_mode=kv_mode, memory=memory)
    try:
        puller.watch(span, target.resolved)
        while target.resolved < upto:
            if puller.failure is not None:
                raise puller.failure
            if closing.wait(LOOK_S):
                raise Retryable("pulling a range again was cut off", why="the puller ends")
    finally:
        puller.close()


class _UpTo:
    """The changes of a span without rows above a ts."""

    def __init__(self, changes: SpanChanges, upto: Timestamp) -> None:
        self._changes, self._upto = changes, upto

    @property
    def resolved(self) -> Timestamp:
        return self._changes.resolved

    @property
    def ranges(self) -> Sequence[tuple[Span, Timestamp]]:
        return self._changes.ranges

    @property
    def disk_bytes(self) -> int:
        return self._changes.disk_bytes

    @property
    def complete_from(self) -> Timestamp:
        return self._changes.complete_from

    def begin(self, start_ts: Timestamp) -> None:
        self._changes.begin(start_ts)

    def append(self, block: pa.RecordBatch) -> None:
        # The store has the rows above in other segments.
        wanted = pc.less_equal(block.column(0), pa.scalar(self._upto, pa.uint64()))
        self._changes.append(block.filter(wanted))

    def seal(self, resolved: Timestamp) -> None:
        self._changes.seal(resolved)

    def keep(self, ranges: Sequence[tuple[Span, Timestamp]]) -> None:
        """Do nothing: after a restart the range is pulled from the beginning."""

    def shed(self) -> None:
        self._changes.shed()

    def close(self) -> None:
        """Do nothing: the caller reads them afterwards."""


class Bounded:
    """A store whose spans ignore rows above a ts each; otherwise it delegates to the given store."""

    def __init__(self, store: ChangeStore) -> None:
        self._store = store
        self.upto: dict[Span, Timestamp] = {}
        """The largest commit_ts of each span; set before the span is watched."""

    @property
    def held_bytes(self) -> int:
        return self._store.held_bytes

    @property
    def pressure(self) -> str:
        return self._store.pressure

    @property
    def disk_bytes(self) -> int:
        return self._store.disk_bytes

    @property
    def over_quota(self) -> bool:
        """Always False: giving a span up to free space would only mean pulling it once more."""
        return False

    @property
    def crowded(self) -> str:
        """Always empty, for the same reason."""
        return ""

    @property
    def used_bytes(self) -> int:
        return self._store.used_bytes

    @property
    def has_room(self) -> bool:
        return self._store.has_room

    def charge(self, memory: int = 0, disk: int = 0) -> None:
        self._store.charge(memory, disk)

    def tend(self) -> None:
        self._store.tend()

    def recover(self) -> None:
        self._store.recover()

    def open_span(self, span: Span) -> SpanChanges:
        return _UpTo(self._store.open_span(span), self.upto[span])

    def publish(self) -> None:
        self._store.publish()
