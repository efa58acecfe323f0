"""The owner's side of the sink, from incarnation to incarnation: opened, watched while called, released.

    begin: a new thread, watched --> open --> calls ... --> release: the caller closes it

Only the topics to which rows may go outlive the sink, because the next incarnation must know them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate import metrics
from tidegate.control.grants import Grant
from tidegate.errors import Retryable
from tidegate.model.ddl import DdlEvent
from tidegate.server.delivery.plan import FeedPlan
from tidegate.server.delivery.sink_thread import OpenedSink, SinkThread, open_sink
from tidegate.server.delivery.watch import SinkWatch
from tidegate.server.node import Node
from tidegate.server.owner.record import FeedRecord


class SinkLifetime:
    """The owner's sink of one changefeed. Lives in one asyncio loop."""

    def __init__(self, node: Node, record: FeedRecord) -> None:
        self._node, self._record = node, record
        self.opened: OpenedSink | None = None
        """The sink of the current incarnation, once it is open."""
        self.topics: frozenset[str] = frozenset()
        """The topics, besides the URI's own, that get rows at the stored checkpoint or later."""
        self._thread: SinkThread | None = None
        self._watch: SinkWatch | None = None

    @property
    def is_called(self) -> bool:
        """Whether a call is under way."""
        return self._thread is not None and bool(self._thread.at)

    @property
    def partitions(self) -> int:
        """The number of partitions over which its topic's rows are spread; 0: not known, or no partitions."""
        return self.opened.partitions if self.opened is not None else 0

    def begin(self) -> SinkThread:
        """Begin to watch a new thread, in which the incarnation's sink is called."""
        own = self._record.config.tidegate
        self._watch = SinkWatch(self._node.clock, own.stall_timeout, own.start_timeout)
        self._thread = thread = SinkThread(self._record.id)
        return thread

    async def open(
        self, plan: FeedPlan, grant: Grant, thread: SinkThread, first: Sequence[DdlEvent]
    ) -> OpenedSink:
        """Open the sink under a stored grant, and send the DDL in `first`. Raises as `open_sink`."""
        self.opened = opened = await open_sink(plan, grant, self._node.open_sink, thread, self.topics, first)
        return opened

    def look(self) -> Retryable | None:
        """The failure if a call hangs, or None."""
        watch, thread = self._watch, self._thread
        hung = watch.look(thread, opened=self.opened is not None) if watch and thread else None
        if hung is not None:
            metrics.restarts.labels("pipeline").inc()
        return hung

    def release(self) -> OpenedSink | None:
        """Stop watching and calling the sink; the caller closes the returned one."""
        opened, self.opened = self.opened, None
        self._watch = self._thread = None
        return opened
