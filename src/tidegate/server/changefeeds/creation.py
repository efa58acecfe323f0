"""Creates a changefeed: checks it against upstream, holds its history, stores it, and only then starts it.

The order makes it safe to fail at any step. A short hold of its own covers the start ts before upstream is
read at that ts. Everything that the feed needs on disk is written before its key, because a starting capture
starts every feed that has a key. The lasting hold is taken before the short one is released, so that GC never
finds the history without a hold.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from tidegate.config.settings import ReplicaConfig
from tidegate.config.values import TABLE_MODE
from tidegate.control.changefeed import State
from tidegate.control.gc import creating_id
from tidegate.control.metadata import (
    Compare,
    FeedId,
    FeedInfo,
    FeedStatus,
    Put,
    feed_key,
)
from tidegate.errors import InvalidInput
from tidegate.filter.feed import FeedFilter
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.stores import check_versions
from tidegate.log import event
from tidegate.model.timestamp import readable
from tidegate.mounter.schema_store import SchemaStore
from tidegate.mounter.table_version import TableVersion
from tidegate.server.catalogue.schema_tracker import load_catalogue
from tidegate.server.changefeeds.feeds import Feeds
from tidegate.server.changefeeds.held_history import HeldHistory
from tidegate.server.changefeeds.new_feed import (
    NewFeed,
    Refused,
    check_keys,
    check_keyspace,
    check_shared,
    is_embedded,
    named_code,
    with_cuts,
    with_tables,
)
from tidegate.server.changefeeds.reader_history import begin_reader
from tidegate.server.delivery.plan import FeedPlan
from tidegate.server.node import Node
from tidegate.server.owner.feed import Feed
from tidegate.sink.reader.changes import Changes

LOG: Final = logging.getLogger(__name__)


def _with_spans(new: NewFeed, tables: Sequence[TableVersion], pd: PdClient) -> NewFeed:
    return with_cuts(with_tables(new, tables), tables, pd)


class FeedCreation:
    """Creates changefeeds. Its checks are also used for a feed that is changed (`updates`)."""

    def __init__(
        self,
        node: Node,
        feeds: Feeds,
        history: HeldHistory,
        clear: Callable[[FeedId], Awaitable[None]],
    ) -> None:
        """`clear`: removes the files of a changefeed that is not stored from this capture."""
        self.node, self._feeds, self._history, self._clear = node, feeds, history, clear
        self.creating: set[FeedId] = set()
        """Changefeeds that are being created and are not stored yet."""

    async def create(self, new: NewFeed) -> Feed:
        """Check a changefeed against upstream, hold its history, store it, start it."""
        if new.feed in self._feeds or new.feed in self._feeds.unreadable or new.feed in self.creating:
            raise Refused(
                "CDC:ErrChangeFeedAlreadyExists",
                f"[CDC:ErrChangeFeedAlreadyExists]changefeed already exists, {new.feed}",
                fix="choose another --changefeed-id, or remove the feed first",
            )
        # A second request for the same name may come during any of the waits below.
        self.creating.add(new.feed)
        try:
            return await self._create(new)
        finally:
            self.creating.discard(new.feed)

    async def _create(self, new: NewFeed) -> Feed:
        node = self.node
        self.check_sink(new)
        new, start_ts, stores = await asyncio.gather(
            self._in_keyspace(new), self.start_ts(new), asyncio.to_thread(node.pd.stores)
        )
        check_versions(stores)
        held = creating_id(node.cluster, node.holder, new.feed)
        scope = new.config.tidegate.keyspace_id
        # An initial load always needs the history, because its snapshot is read at the start ts.
        guarded = new.config.check_gc_safe_point or new.config.tidegate.initial_load
        if guarded:
            # Before upstream is read at the start ts, because GC might remove that history while the request
            # is checked.
            await self._history.hold(held, start_ts, scope)
        lasting = True
        try:
            tables, catalogue = await self._known_tables(new.config, start_ts), None
            if tables is None:
                catalogue = await self.catalogue(new, start_ts)
                tables = await asyncio.to_thread(catalogue.entries, start_ts) if catalogue is not None else []
            if new.config.has_tables:
                new = await asyncio.to_thread(_with_spans, new, tables, node.pd)
            feed = await self._store(new, start_ts, catalogue, tables)
            # Before the hold is renewed, which covers all of `_feeds`.
            self._feeds[feed.id] = feed
            lasting = await self._history.tend(force=True)
            # Last, because its first act is to read history, which PD must hold by then
            # (`FeedDdl.check_held`).
            feed.start()
        finally:
            if guarded and lasting:  # otherwise the short hold stays until it expires, as nothing replaces it
                await self._history.release(held, scope)
        event(LOG, logging.INFO, "changefeed created", changefeed=str(new.feed), start_ts=start_ts)
        return feed

    def check_sink(self, new: NewFeed) -> None:
        """Raises InvalidInput for a feed whose sink does not accept its keys; and, if captures share an etcd,
        for one that another capture could not take over.
        """
        node = self.node
        sink = FeedPlan.sink_of(node.cluster, new.feed, new.uri, new.config, node.paths).describe()
        check_keys(new, sink)
        if node.shared:
            check_shared(new, sink)

    async def _in_keyspace(self, new: NewFeed) -> NewFeed:
        """Add the id of the keyspace that it names. The id stays even if PD gives the name to another one."""
        own, pd = new.config.tidegate, self.node.pd
        if not own.keyspace:
            if own.keyspace_id >= 0:
                check_keyspace(await asyncio.to_thread(pd.keyspaces.of_id, own.keyspace_id))
            return new
        found = await asyncio.to_thread(pd.keyspaces.named, own.keyspace)
        if own.keyspace_id not in (-1, found.id):
            raise InvalidInput(
                f"keyspace '{own.keyspace}' has id {found.id}, not {own.keyspace_id}",
                where="changefeed configuration",
                fix="give keyspace or keyspace-id alone",
            )
        check_keyspace(found)
        return replace(new, config=replace(new.config, tidegate=replace(own, keyspace_id=found.id)))

    async def _known_tables(self, config: ReplicaConfig, ts: int) -> list[TableVersion] | None:
        """The tables at `ts` without asking upstream; None if they are not known, or there are none.

        With many feeds, reading all tables from upstream for each took longer than the rest of their start.
        """
        catalogues = self.node.captured(TABLE_MODE).catalogues
        if catalogues is None or not config.has_tables:
            return None
        with named_code():
            # Without tables upstream is asked, because `catalogue` refuses an upstream that has none at all.
            return await catalogues.tables_at(ts, FeedFilter.of(config)) or None

    async def catalogue(self, new: NewFeed, ts: int) -> SchemaStore | None:
        """Upstream's catalogue at `ts`; None for a feed of keys."""
        if not new.config.has_tables:
            return None
        catalogue = await asyncio.to_thread(load_catalogue, self.node.pd, ts)
        if not catalogue.schema_names() and not await asyncio.to_thread(is_embedded, self.node.pd):
            raise Refused(
                "CDC:ErrAPIInvalidParam",
                "upstream holds no tables of TiDB",
                where=f"PD at {self.node.pd.address}, ts {ts}",
                why="there are no keys of a catalogue; where TiDB runs with keyspaces it keeps them in these",
                fix="start TiDB on the cluster once before; to follow the keys of a keyspace set kv-mode and "
                "keyspace in [tidegate]",
            )
        return catalogue

    async def start_ts(self, new: NewFeed) -> int:
        """The ts where it begins: the requested one, or now. Raises Refused for a ts that is not possible."""
        now: int = await asyncio.to_thread(self.node.pd.tso)
        start_ts = new.start_ts or now
        if start_ts > now:
            raise Refused(
                "CDC:ErrAPIInvalidParam",
                f"start-ts {start_ts} is in the future",
                why=f"upstream's time is {now} ({readable(now)})",
                fix=f"use a start-ts up to {now}, or leave it out for now",
            )
        if new.target_ts and new.target_ts <= start_ts:
            raise Refused(
                "CDC:ErrTargetTsBeforeStartTs",
                f"target-ts {new.target_ts} is not above start-ts {start_ts}",
                fix="choose a later target-ts",
            )
        return start_ts

    async def _store(
        self, new: NewFeed, start_ts: int, catalogue: SchemaStore | None, tables: Sequence[TableVersion]
    ) -> Feed:
        node = self.node
        instance = uuid.uuid4().hex
        begun = begin_reader(new, tables, start_ts) if new.uri.is_reader else None
        # A creation that ended before its key was written, or a feed of this name in an earlier life, may
        # have left files.
        await self._clear(new.feed)
        if begun is not None:
            folder = node.paths.feed(new.feed)
            folder.mkdir(parents=True)
            changes = Changes(folder)
            await asyncio.to_thread(changes.begin, instance, start_ts, begun, node.clock.now_ms())
        if catalogue is not None:
            await self.offer(catalogue, start_ts, new.config)
        info = FeedInfo(
            sink_uri=new.uri.render(redact=False),
            config=new.config.to_json(),
            start_ts=start_ts,
            target_ts=new.target_ts,
            create_time_ms=node.clock.now_ms(),
            state=str(State.NORMAL),
            instance=instance,
            cuts_at_ms=node.now_ms() if (is_cut := bool(new.config.tidegate.table_cuts)) else 0,
            cuts_why="its creation" if is_cut else "",
        )
        key = feed_key(node.cluster, new.feed, "info")
        status = Put(feed_key(node.cluster, new.feed, "status"), FeedStatus(start_ts).to_bytes())
        absent = (Compare(key, mod_revision=0),)
        if not await node.write(Put(key, info.to_bytes()), status, guards=absent):
            raise Refused(
                "CDC:ErrChangeFeedAlreadyExists",
                f"changefeed {new.feed} exists already",
                fix="choose another --changefeed-id, or remove the feed first",
            )
        return Feed(node, new.feed, info, FeedStatus(start_ts))

    async def offer(self, catalogue: SchemaStore, ts: int, config: ReplicaConfig) -> None:
        """Save the catalogue that was read where a feed will begin, so that it is not read again."""
        catalogues = self.node.captured(TABLE_MODE).catalogues
        assert catalogues is not None
        await catalogues.run(catalogues.offer, catalogue, ts, FeedFilter.of(config))
