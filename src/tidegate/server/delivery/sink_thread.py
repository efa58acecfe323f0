"""The owner's side of a feed's sink: Resolved, DDL and its journal, called in one thread, in order.

The owner raises the grant in the metadata store before it opens the sink. Therefore the sink refuses anything
that an earlier owner still sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from tidegate.codec.registry import marks, options_of
from tidegate.control.barrier import DdlBatch
from tidegate.control.grants import Grant
from tidegate.control.metadata import FeedId
from tidegate.dispatcher.router import Router
from tidegate.model.ddl import DdlEvent
from tidegate.pipeline.exchange.feed import prove
from tidegate.server.delivery.plan import FeedPlan
from tidegate.sink.base import Form, OpenTransactions, OwnerSink, PartitionedOwner, SharedSink

T = TypeVar("T")

CLOSE_S: Final = 2.0
"""How long closing waits for the sink's last call."""


class SinkThread:
    """The one thread that calls an incarnation's sink, in order; it shows the current call."""

    def __init__(self, feed: FeedId) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"sink-{feed.name}")
        self.at = ""
        """The current call in words; empty: there is none."""
        self.answers = 0
        """The number of messages and calls that the sink has answered."""

    def call(self, what: str, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run a call after all earlier ones."""
        return asyncio.get_running_loop().run_in_executor(self._pool, self._run, what, work)

    def send(
        self, sink: OwnerSink, router: Router, events: Iterable[DdlEvent], topics: Iterable[str] = ()
    ) -> asyncio.Future[None]:
        """Make sure that topics are in use, then deliver in order the events that the journal lacks.

        The order matters: once the events are sent, rows may go to the topics, and Resolved must.
        """
        to = [_placed(router, event) for event in events]

        def work() -> None:
            self.at = "the topics"
            sink.use(dict.fromkeys([*topics, *(topic for topic, _ in to)]))
            self.answers += 1
            for topic, event in to:
                self.at = f"a DDL of ts {event.finished_ts}"
                sink.send_ddl(event, _now_ms(), topic)
                self.answers += 1

        return self.call("DDL", work)

    def end(self) -> None:
        """Accept no more calls. A running one may continue in its thread; nothing waits for it."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def answered(self) -> None:
        """Count a finished part of the current call, so that a long call does not look hung. Called by it."""
        self.answers += 1

    def _run(self, what: str, work: Callable[[], T]) -> T:
        self.at = what
        try:
            return work()
        finally:
            self.at = ""
            self.answers += 1


class OpenedSink:
    """The owner's sink of one incarnation. Made by `open_sink`, ended by `close`, never reused."""

    def __init__(self, sink: OwnerSink, thread: SinkThread, router: Router) -> None:
        self._sink, self._thread, self._router = sink, thread, router

    @property
    def resolved_journal(self) -> int:
        """The last Resolved in the sink's journal."""
        return self._sink.journal.resolved_ts

    @property
    def ddl_journal(self) -> int:
        """The ts of the last DDL in the sink's journal."""
        return self._sink.journal.ddl_ts

    @property
    def delivered_to(self) -> int:
        """The sink has everything up to here by its journal: a DDL is sent after all rows up to it."""
        return max(self._sink.journal.resolved_ts, self._sink.journal.ddl_ts - 1)

    async def send_ddl(self, batch: DdlBatch) -> None:
        """Deliver a batch's events in order, after the topics of its tables are in use."""
        await self._thread.send(self._sink, self._router, batch.events, batch.topics)

    async def send_resolved(self, ts: int) -> None:
        """Send a Resolved to all partitions."""
        await self._thread.call(f"Resolved {ts}", lambda: self._sink.send_resolved(ts, _now_ms()))

    @property
    def partitions(self) -> int:
        """The number of partitions over which the feed's own topic is spread; 0: the sink has none."""
        return self._sink.partitions if isinstance(self._sink, PartitionedOwner) else 0

    @property
    def is_repartitioned(self) -> bool:
        """Whether the number of partitions was ever changed."""
        return isinstance(self._sink, PartitionedOwner) and self._sink.is_repartitioned

    async def repartition(self, ts: int, partitions: int) -> None:
        """Spread rows above `ts` over this many partitions; one transaction with Resolved `ts`."""
        sink = self._sink
        assert isinstance(sink, PartitionedOwner), "a request for another sink is refused"
        await self._thread.call(
            f"{partitions} partitions from {ts} on", lambda: sink.repartition(ts, partitions, _now_ms())
        )

    async def forget(self, records: Iterable[str]) -> None:
        """Delete records of progress that are not needed any more."""
        # Safe to do late, or not at all: a record that stays is true, and only costs space.
        await self._thread.call("the end of spans", lambda: self._sink.forget(records))

    async def close(self) -> None:
        """Close the sink. If it does not answer within `CLOSE_S`, its call is abandoned; the next sink fences
        whatever that call still does.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._thread.call("the end", self._sink.close)
        self._thread.end()


def _placed(router: Router, event: DdlEvent) -> tuple[str, DdlEvent]:
    """The topic of a DDL, and the event; it names the topic of its table's later rows if that differs."""
    topic = router.topic_of_ddl(event)
    after = router.topic_of(event.schema, event.table) if event.table else topic
    return topic, event if after == topic else replace(event, moved_to=after)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def fence_writers(
    plan: FeedPlan, sink: SharedSink, writers: Mapping[str, int], alive: Callable[[], None]
) -> None:
    """Stop all writers of a feed on some captures, with the given numbers of slots. Blocks; raises as
    `Sink.fence`.

    `alive` is called after each fenced writer.
    """
    grant = plan.grant
    assert grant is not None

    def still_ours() -> None:
        prove(plan.metadata, plan.cluster, plan.feed, plan.capture, grant)

    still_ours()  # an owner that wakes up long after must not fence the writers of its successor
    sink.fence_only(writers, still_ours, alive)


OpenSink = Callable[[FeedPlan], OwnerSink]
"""Opens the owner's side of a feed's sink; blocks; raises TidegateError."""


def open_owner(plan: FeedPlan) -> OwnerSink:
    """The owner's side of the sink in the feed's URI. Raises Fenced if the plan's grant is not the current
    one.
    """
    feed, grant = plan.feed, plan.grant
    assert grant is not None

    def still_ours() -> None:
        prove(plan.metadata, plan.cluster, feed, plan.capture, grant)

    sink = plan.sink
    in_messages = sink.describe().form is Form.MESSAGES
    mark_options = marks(options_of(plan.config)) if in_messages else None
    try:
        return sink.open_owner(mark_options, still_ours)
    except OpenTransactions:
        # They are of an earlier incarnation, and the next pipeline would fence them too late for this call.
        sink.fence({**grant.givers, plan.capture: grant.slots}, still_ours)
        return sink.open_owner(mark_options, still_ours)


async def open_sink(
    plan: FeedPlan,
    grant: Grant,
    opener: OpenSink,
    thread: SinkThread,
    topics: Iterable[str] = (),
    first: Sequence[DdlEvent] = (),
) -> OpenedSink:
    """Open the sink and send the DDL in `first`. The grant must already be durable; `thread` is new.

    `topics`: those of all tables whose rows may be delivered. Raises TidegateError if the sink cannot be
    opened, so that a wrong topic is noticed before any process is started.
    """
    router = Router.of(plan.config, plan.uri.topic)
    opening = thread.call("its opening", lambda: opener(replace(plan, grant=grant)))
    try:
        # Without the shield, a cancelled start would also cancel the future. The sink would then be opened
        # in its thread and never closed.
        sink = await asyncio.shield(opening)
        await thread.send(sink, router, first, topics)
    except BaseException:
        opening.add_done_callback(_close_opened)
        thread.end()
        raise
    return OpenedSink(sink, thread, router)


def _close_opened(opening: asyncio.Future[OwnerSink]) -> None:
    """Close a sink whose incarnation was cancelled before it was open."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
