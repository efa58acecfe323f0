"""Changes a stopped changefeed: its settings, or the checkpoint from which it continues.

Each change ends as a new stored state of the feed. The progress at the sink counts as long as the feed's
`instance` is the same. So a change after which earlier progress must not count makes a new instance: another
checkpoint, or another place.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tidegate.config.kept_password import elsewhere
from tidegate.config.reading import with_secrets_of
from tidegate.control.changefeed import State
from tidegate.control.gc import creating_id
from tidegate.control.metadata import FeedStatus, Put, feed_key
from tidegate.errors import TidegateError
from tidegate.log import event
from tidegate.server.changefeeds.creation import FeedCreation
from tidegate.server.changefeeds.feeds import Feeds
from tidegate.server.changefeeds.held_history import HeldHistory
from tidegate.server.changefeeds.new_feed import (
    NewFeed,
    Refused,
    check_new,
    with_cuts,
    with_spans_of,
    with_width,
)
from tidegate.server.changefeeds.repartition import check_overwrite, check_update
from tidegate.server.node import Node
from tidegate.server.owner.feed import Feed
from tidegate.sink.registry import same_place

LOG: Final = logging.getLogger(__name__)

UPDATABLE: Final = (State.STOPPED, State.FAILED)
FIXED: Final = (
    "initial_load",
    "kv_mode",
    "keyspace",
    "keyspace_id",
    "start_key",
    "end_key",
    "key_prefix",
)
"""Settings of `[tidegate]` that cannot change after a feed's creation."""


class FeedUpdates:
    """Changes feeds that do not run. The caller holds the feed's turn (`Feeds.in_turn`)."""

    def __init__(self, node: Node, feeds: Feeds, history: HeldHistory, creation: FeedCreation) -> None:
        self.node, self._feeds, self._history, self._creation = node, feeds, history, creation

    async def move_checkpoint(self, found: Feed, ts: int) -> Feed:
        """Move a feed to another checkpoint, as if it had been created there: no progress counts."""
        feed, record, info, node = found.id, found.record, found.record.info, self.node
        if record.life.state not in UPDATABLE:
            raise Refused(
                "CDC:ErrChangefeedUpdateRefused",
                f"[CDC:ErrChangefeedUpdateRefused]changefeed {feed} is {record.life.state}: "
                "its checkpoint can be overwritten only while it is stopped or failed",
                fix=f"run `tidegate changefeed pause -c {feed.name}` first",
            )
        if record.loading:
            raise Refused(
                "CDC:ErrAPIInvalidParam",
                "the checkpoint cannot be overwritten: the initial load is not complete",
                fix="resume the changefeed as it is, or remove it and create it again",
            )
        check_overwrite(info)
        new = check_new(feed, info.sink_uri, info.config, ts, info.target_ts)
        await self._creation.start_ts(new)
        held = creating_id(node.cluster, node.holder, feed)
        await self._history.hold(held, ts, record.scope)
        lasting = True
        try:
            # Before the feed is stopped, so that it stays as it is if upstream cannot be read there.
            catalogue = await self._creation.catalogue(new, ts)
            await found.stop()
            found.replication.check_ended()
            if catalogue is not None:
                await self._creation.offer(catalogue, ts, new.config)
            # The load was delivered before, which is checked above. At another checkpoint it is not repeated.
            status = FeedStatus(ts, loaded=new.config.tidegate.initial_load)
            # Under the old instance, the progress in the sink would count.
            info = replace(
                info,
                instance=uuid.uuid4().hex,
                state=str(State.STOPPED),
                error=None,
                ended_ms=node.now_ms(),
            )
            await node.write(
                Put(feed_key(node.cluster, feed, "info"), info.to_bytes()),
                Put(feed_key(node.cluster, feed, "status"), status.to_bytes()),
            )
            # Before the hold is renewed, which covers all of `_feeds`.
            self._feeds[feed] = moved = Feed(node, feed, info, status)
            lasting = await self._history.tend(force=True)
        finally:
            if lasting:
                await self._history.release(held, record.scope)
        event(
            LOG, logging.INFO, "checkpoint overwritten", changefeed=str(feed), ts=ts, before=record.persisted
        )
        return moved

    async def update(
        self, found: Feed, sink_uri: str, config: Mapping[str, Any] | None, target_ts: int
    ) -> None:
        """Store other settings; `Reactor.update` says which are kept and which are Refused."""
        feed, record, info = found.id, found.record, found.record.info
        refuse_reader(found, "what it reads is in its query's options")
        if record.life.state not in UPDATABLE:
            raise Refused(
                "CDC:ErrChangefeedUpdateRefused",
                f"[CDC:ErrChangefeedUpdateRefused]changefeed {feed} is {record.life.state}: "
                "it can be updated only while it is stopped or failed",
                fix=f"run `tidegate changefeed pause -c {feed.name}` first, and resume it afterwards",
            )
        if sink_uri in ("", record.uri.render()):
            sink_uri = info.sink_uri
        wanted = info.config if config is None else with_secrets_of(config, info.config)
        new = await asyncio.to_thread(
            check_new, feed, sink_uri, wanted, info.start_ts, target_ts or info.target_ts
        )
        changed = elsewhere((record.uri, record.config), (new.uri, new.config), config or {})
        if changed:
            raise Refused(
                "CDC:ErrChangefeedUpdateRefused",
                "[CDC:ErrChangefeedUpdateRefused]the stored password is not sent to another place: "
                f"{', '.join(changed)} would change",
                fix="give sasl-password again, in the sink URI or in the configuration",
            )
        new = replace(new, config=with_spans_of(record.config, new.config))
        own, kept = new.config.tidegate, record.config.tidegate
        for name in FIXED:
            if getattr(own, name) != getattr(kept, name):
                raise Refused(
                    "CDC:ErrChangefeedUpdateRefused",
                    f"[CDC:ErrChangefeedUpdateRefused]{name.replace('_', '-')} cannot be changed",
                    why="where a changefeed begins, and the ranges of keys it follows, are decided when it "
                    "is created",
                    fix="leave it as it is, or create another changefeed",
                )
        if target_ts and target_ts <= found.replication.checkpoint:
            raise Refused(
                "CDC:ErrTargetTsBeforeStartTs",
                f"target-ts {target_ts} is not above the checkpoint {found.replication.checkpoint}",
                fix="choose a later target-ts",
            )
        if record.config.check_gc_safe_point and record.persisted < record.history.safe_point:
            raise Refused(
                "CDC:ErrSnapshotLostByGC",
                f"[CDC:ErrSnapshotLostByGC]upstream's GC safepoint {record.history.safe_point} has passed "
                f"the checkpoint {record.persisted}",
                why="the tables there were at the checkpoint cannot be looked up any more",
                fix="resume it as it is; or remove the changefeed and create it again from a later start-ts",
            )
        self._creation.check_sink(new)
        catalogue = await self._creation.catalogue(new, record.persisted)
        if catalogue is not None:
            tables = await asyncio.to_thread(catalogue.entries, record.persisted)
            new = await asyncio.to_thread(with_width, new, record.config, tables)
            new = await asyncio.to_thread(with_cuts, new, tables, self.node.pd)
        moved = await self._is_elsewhere(found, new)
        if not moved:
            check_update(info, record.config, new.config)
        if new.config.tidegate.table_cuts != record.config.tidegate.table_cuts:
            info = replace(info, cuts_at_ms=self.node.now_ms(), cuts_why="an update", recuts=0)
        await found.update(
            replace(
                # A new place has partitions of its own, whose number nobody has changed yet.
                info if not moved else replace(info, repartition=0, partitions=0),
                sink_uri=new.uri.render(redact=False),
                config=new.config.to_json(),
                target_ts=new.target_ts,
                # A new place has received nothing above the checkpoint.
                instance=uuid.uuid4().hex if moved else info.instance,
            )
        )

    async def _is_elsewhere(self, found: Feed, new: NewFeed) -> bool:
        """Whether the new settings mean another place than the one the feed has written to.

        If that cannot be determined, it is assumed, and rows above the checkpoint are sent again. If the feed
        was re-partitioned, the update is Refused instead, because its readers would not learn of that.
        """
        record = found.record
        after = replace(record.plan, uri=new.uri, config=new.config).sink
        try:
            return not await asyncio.to_thread(same_place, record.plan.sink, after)
        except TidegateError as error:
            if record.info.partitions or record.info.repartition:
                raise Refused(
                    "CDC:ErrChangefeedUpdateRefused",
                    "[CDC:ErrChangefeedUpdateRefused]it is not known whether this is the same topic",
                    where=new.uri.render(),
                    why=f"{error.what}: {error.why}; and the changefeed was re-partitioned",
                    fix="try again when the broker answers",
                ) from error
            event(
                LOG,
                logging.WARNING,
                "sink assumed to be another place",
                changefeed=str(found.id),
                error=str(error),
            )
            return True


def refuse_reader(feed: Feed, why: str) -> None:
    """Raises Refused for a changefeed that belongs to a Spark query."""
    if feed.record.uri.is_reader:
        raise Refused(
            "CDC:ErrChangefeedUpdateRefused",
            f"[CDC:ErrChangefeedUpdateRefused]{feed.id} is a reader: it is made and led by a Spark query",
            why=why,
            fix="change the query; or remove the changefeed, and start the query with a new checkpoint",
        )
