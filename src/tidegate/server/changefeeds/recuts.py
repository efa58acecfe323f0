"""Cuts the spans of changefeeds that have become too hot for one capture, while the changefeeds run.

    every LOOK_S: hot spans --> samples of their keys --> cuts (`catalogue.hot_cuts`)
        --> the changefeed ends, its new cuts are stored, it starts again (`Feed.recut`)

One write of the changefeed's info changes the cuts. Before it the old ones hold, after it the new ones, and
the stored state is that of a running changefeed at each moment. So if this owner dies anywhere, the next one
continues with either. The next incarnation begins as after an update while it is paused: it leaves out what
was sent ahead of the checkpoint (docs/stripes.md#a-hot-table-is-cut-by-itself).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections.abc import Sequence
from typing import Final

from tidegate.config.reading import config_from_json
from tidegate.config.settings import ReplicaConfig
from tidegate.control.barrier import SpanTask
from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedInfo, Put, feed_key
from tidegate.errors import TidegateError
from tidegate.eventstore.key_loads import KeyLoads
from tidegate.log import event
from tidegate.model.timestamp import physical_ms
from tidegate.server.catalogue.hot_cuts import (
    LOOK_S,
    Choice,
    chosen,
    cool_down_s,
    in_a_row,
    kept_cuts,
    pieces_of,
)
from tidegate.server.catalogue.stripes import ids_of
from tidegate.server.changefeeds.feeds import Feeds
from tidegate.server.changefeeds.hot_spans import Hottest, cuts_itself, hottest, summary
from tidegate.server.node import Node, check_size
from tidegate.server.owner.feed import Feed
from tidegate.server.supervision.jobs import to_its_end
from tidegate.tidb import memcomparable

LOG: Final = logging.getLogger(__name__)

RECEIVED_S: Final = 60.0
"""While changes are received later than this, loads are those of the past, and nothing is cut."""


class Recuts:
    """The automatic cuts of all changefeeds of a node while it is the owner. Lives in one asyncio loop."""

    def __init__(self, node: Node, feeds: Feeds) -> None:
        self.node, self._feeds = node, feeds

    async def run(self) -> None:
        """Run until cancelled. A changefeed that cannot be cut, even because of a defect, keeps its cuts."""
        while True:
            await asyncio.sleep(LOOK_S)
            for feed in list(self._feeds.values()):
                try:
                    await self._look(feed)
                except Exception as error:
                    if not isinstance(error, TidegateError):
                        LOG.exception("changefeed %s: unexpected error", feed.id)
                    event(LOG, logging.WARNING, "tables not cut", changefeed=str(feed.id), why=str(error))
                    feed.hot_watch.failed(self.node.clock.monotonic(), _words(error))

    async def _look(self, feed: Feed) -> None:
        watch, now, config = feed.hot_watch, self.node.clock.monotonic(), feed.record.config
        hot = hottest(feed) if cuts_itself(config) else Hottest()
        found = {task.id: (task, load) for task, load in hot.spans}
        if found and (why := self._why_not(feed)):
            watch.cannot(found, why)
            return
        for name in watch.look(found):
            watch.sampled(name, *await self._sampled(feed, found[name][0]))
        due = watch.due(now)
        if not due:
            return
        # Chosen together, so that several hot spans cost one restart.
        tables = {table for task in _delivered(feed) for table in ids_of(task)}
        kept, fresh = kept_cuts(config.tidegate.cuts, tables), list[bytes]()
        cut = list[tuple[SpanTask, float]]()
        for name, first in due.items():
            task, load = found[name]
            choice = await self._chosen(feed, task, first, load / hot.mean, [*kept, *fresh])
            watch.words.pop(name, None)
            if choice.cuts:
                fresh += choice.cuts
                cut.append(found[name])
            if why := choice.why_not:
                watch.words[name] = f"it was not cut by itself: {why}; this is tried again every 10 minutes"
                event(LOG, logging.INFO, "hot span not cut", changefeed=str(feed.id), span=name, why=why)
        watch.done(now)
        if fresh:
            await self._recut(feed, config, sorted({*kept, *fresh}), summary(feed, cut, hot.mean))
            watch.failures = 0

    async def _sampled(self, feed: Feed, task: SpanTask) -> tuple[KeyLoads, str]:
        """The keys of a span that have changed; if its capture does not say them, none, and the reason."""
        try:
            return await self.node.key_loads(_holder(feed, task), task.id), ""
        except TidegateError as error:
            return KeyLoads(), _words(error)

    async def _chosen(
        self, feed: Feed, task: SpanTask, first: KeyLoads, times_mean: float, cuts: Sequence[bytes]
    ) -> Choice:
        """The cuts of one span. `cuts`: those that there will be already."""
        tables, regions = ids_of(task), self.node.pd.regions
        if (pieces := pieces_of(times_mean, cuts, tables)) < 2:
            return Choice(why_not="there are as many pieces as there may be")
        last, why_not = await self._sampled(feed, task)
        if why_not:
            return Choice(why_not=why_not)
        regions.clear()  # cached regions may be old

        def near(key: bytes) -> Sequence[bytes]:
            region = regions.locate(key)
            edges = [memcomparable.decode_bytes(end)[0] for end in (region.start_key, region.end_key) if end]
            return [edge for edge in edges if task.span.contains(edge)]

        return await asyncio.to_thread(chosen, first, last, pieces, tables, near)

    def _why_not(self, feed: Feed) -> str:
        """Why a changefeed's tables cannot be cut now; empty: they can."""
        record, replication = feed.record, feed.replication
        sharing = replication.shares.sharing
        if record.life.state is not State.NORMAL or record.loading or record.info.repartition:
            return "the changefeed does not run as usual, or its partitions are about to change"
        if replication.owner is None or replication.waiting_for or replication.shares.reason:
            return "the changefeed starts, or its keys are divided"
        if sum(replication.peers[name].ready for name in sharing.captures.able()) < 2:
            return "there is only one capture that could take a piece"
        if sharing.is_by_hand:
            return "tables were moved by hand; `tidegate changefeed rebalance` ends that"
        if self.node.now_ms() - physical_ms(record.resolved_ts) > RECEIVED_S * 1000:
            return f"changes are received more than {RECEIVED_S:.0f} s late, so the load is that of the past"
        if (rest_s := self._rest_s(record.info)) > 0:
            return f"after the last cuts none are chosen for another {math.ceil(rest_s / 60):,} min"
        return ""

    def _rest_s(self, info: FeedInfo) -> float:
        """How long no cuts are chosen, after the last ones of this owner, an earlier one or an update."""
        age_s = (self.node.now_ms() - info.cuts_at_ms) / 1000
        # A choice in the future is one that an owner stored whose clock was wrong. It is not waited for.
        return cool_down_s(info.recuts) - age_s if age_s >= 0 else 0.0

    async def _recut(self, feed: Feed, config: ReplicaConfig, cuts: Sequence[bytes], why: str) -> None:
        """Store the cuts, unless the changefeed is not as it was when they were chosen. `config`: as then."""

        def changed(info: FeedInfo) -> FeedInfo:
            # The other settings stay as they are stored, possibly by a capture of another version.
            own = {**info.config["tidegate"], "table_cuts": [cut.hex() for cut in cuts]}
            after = {**info.config, "tidegate": own}
            now = self.node.now_ms()
            recuts = in_a_row(info.recuts, (now - info.cuts_at_ms) / 1000)
            return dataclasses.replace(info, config=after, cuts_at_ms=now, cuts_why=why, recuts=recuts)

        async with self._feeds.in_turn(feed.id) as found:
            if found is not feed or found.record.config is not config or self._why_not(found):
                return
            # Before it ends: afterwards a refusal would have cost a restart for nothing.
            info = changed(found.record.info)
            config_from_json(info.config)
            check_size([Put(feed_key(self.node.cluster, found.id, "info"), info.to_bytes())])
            event(LOG, logging.INFO, "tables are cut", changefeed=str(found.id), cuts=len(cuts), why=why)
            # A stop of this capture must not leave it ended and not started.
            await to_its_end(found.recut(changed))


def _words(error: Exception) -> str:
    """An error in one line, for people."""
    if isinstance(error, TidegateError):
        return ": ".join(filter(None, (error.what, error.why)))
    return f"an unexpected error, which is in the owner's log ({type(error).__name__})"


def _delivered(feed: Feed) -> Sequence[SpanTask]:
    return feed.replication.shares.sharing.spans.in_order


def _holder(feed: Feed, task: SpanTask) -> str:
    """The capture that delivers a span; empty: none does now."""
    now = feed.replication.shares.sharing.now.items()
    return next((name for name, ranges in now if any(one.covers(task.span) for one in ranges)), "")
