"""The changefeeds of a node: what a user may ask, what is stored, what upstream must keep.

The API calls these methods; each returns when its effect is durable. `Refused` carries TiCDC's error code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from tidegate import metrics
from tidegate.config.kept_password import elsewhere
from tidegate.config.reading import with_secrets_of
from tidegate.config.settings import ReplicaConfig
from tidegate.config.values import TABLE_MODE
from tidegate.control.changefeed import Command, State
from tidegate.control.gc import HELD, GcGuard, History, Hold, creating_id, earliest_start, service_id
from tidegate.control.metadata import (
    Compare,
    Delete,
    FeedError,
    FeedId,
    FeedInfo,
    FeedStatus,
    Put,
    feed_key,
    feed_of_key,
    holder_key,
)
from tidegate.errors import Fatal, InvalidInput, Retryable, TidegateError
from tidegate.etcd.election import drained_prefix
from tidegate.eventstore import outlook
from tidegate.filter.feed import FeedFilter
from tidegate.kvclient.stores import check_versions
from tidegate.log import event
from tidegate.model.timestamp import MAX, physical_ms, readable
from tidegate.mounter.schema_store import SchemaStore
from tidegate.mounter.table_version import TableVersion
from tidegate.server.clock_watch import ClockWatch
from tidegate.server.crew import Crew
from tidegate.server.feed import Feed
from tidegate.server.feed_plan import FeedPlan
from tidegate.server.new_feed import (
    NewFeed,
    Refused,
    check_keyspace,
    check_new,
    check_shared,
    is_embedded,
    named_code,
    split_tables,
    with_cuts,
    with_spans_of,
    with_tables,
)
from tidegate.server.node import Captured, Node
from tidegate.server.reader_history import begin_reader
from tidegate.server.repartition import check_overwrite, check_repartition, check_update
from tidegate.server.schema_tracker import load_catalogue
from tidegate.server.sharing import Plan
from tidegate.sink.reader.changes import Changes
from tidegate.sink.registry import same_place, widen

LOG: Final = logging.getLogger(__name__)

HOUSEKEEPING_S: Final = 1.0
SWEEP_S: Final = 30.0
"""How often files of spans that nobody follows are looked for."""
FORGET_S: Final = 5.0
PREDECESSORS_S: Final = 15.0
"""What earlier owners held at PD is held until the processors of other captures have said what they need."""
CREATING_TTL_S: Final = 3600
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
"""Settings of `[tidegate]` that a feed has for life."""
STATUS_CODES: Final = {state: code for code, state in enumerate(State)}


class Reactor:
    """All feeds of a node. One asyncio loop."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.feeds: dict[FeedId, Feed] = {}
        """Those that this capture owns."""
        self.crew = Crew(node)
        self.processors = self.crew.processors
        """Those that it works for."""
        node.ended = self._on_end
        self._gcs = {-1: GcGuard(node.gc_ttl_s)}
        self._gc_now = asyncio.Event()
        self._creating: set[FeedId] = set()
        self._resuming: set[FeedId] = set()
        self._released: set[FeedId] = set()
        self._swept_at = float("-inf")
        self._began_at, self._counted_at = 0.0, float("-inf")
        self._counted = Counter[str]()
        self._has_predecessors = bool(node.shared)
        """Whether owners before us may still hold history at PD."""
        self._tasks: list[asyncio.Task[None]] = []
        self.clock_watch = ClockWatch(node.pd, node.clock, self._gc_now.set)
        node.upstream_ms = self.clock_watch.now_ms
        self.gc_error = ""

    async def start(self) -> None:
        """Take up every stored feed where it was."""
        node, prefix = self.node, f"/tidegate/{self.node.cluster}/"
        self.crew.take_over()
        self._began_at = node.clock.monotonic()
        node.is_owner, node.checkpoints, node.burdens = True, self._checkpoints, self._burdens
        node.histories.clear()  # what the owner before us said
        stored = {kv.key: kv for kv in await self._on(node.disk, node.metadata.under, prefix)}
        for key, found in stored.items():
            named = feed_of_key(key)
            if named is None or named[1] != "info":
                continue
            info = FeedInfo.from_bytes(found.value)
            status = stored.get(feed_key(node.cluster, named[0], "status"))
            known = FeedStatus.from_bytes(status.value) if status else FeedStatus(info.start_ts)
            self.feeds[named[0]] = Feed(node, named[0], info, known)
        if node.shared:
            await node.write(Put(holder_key(node.cluster, node.term), b"{}"))
            await self._note_drained()
        # Before anything is registered: a hold that ran out while nothing ran here may have cost history.
        await self._tend_gc(force=True)
        for feed in self.feeds.values():
            feed.start()
        self._tasks = [
            asyncio.create_task(self._keep_house(), name="housekeeping"),
            asyncio.create_task(self.clock_watch.run(), name="clock watch"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_end)

    async def stop(self) -> None:
        """End all feeds; their stored state stays, and other captures go on with their part of them."""
        self.node.leaving = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for feed in self.feeds.values():
            metrics.forget_feed(feed.id.namespace, feed.id.name)  # another capture may have them from now on
        await asyncio.gather(*(feed.stop() for feed in self.feeds.values()))

    def _burdens(self) -> Counter[str]:
        """How many changefeeds each capture delivers for; at most a second old."""
        now = self.node.clock.monotonic()
        if now - self._counted_at >= HOUSEKEEPING_S:
            self._counted_at = now
            self._counted = Counter(p.capture for feed in self.feeds.values() for p in feed.peers.running)
        return self._counted

    async def resign(self, take_ownership: Callable[[], int]) -> None:
        """End all feeds, let ownership be taken anew, start the feeds again under it."""
        async with contextlib.AsyncExitStack() as turns:
            feeds = list(self.feeds.values())
            for feed in feeds:
                await turns.enter_async_context(feed.turn)
            await asyncio.gather(*(feed.stop() for feed in feeds))
            # The loop waits for it: a write in between, guarded by the old revision, would count as a loss.
            self.node.owner_rev = self.node.disk.submit(take_ownership).result()
            for feed in feeds:
                if self.feeds.get(feed.id) is feed:
                    feed.forget_grant()
                    feed.start()
        event(LOG, logging.INFO, "ownership taken anew", owner_rev=self.node.owner_rev)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """A defect must end the capture with its reason: else nothing would hold upstream's history."""
        if not task.cancelled() and (error := task.exception()) is not None:
            why = f"{type(error).__name__}: {error}"
            self.node.lost(
                Fatal(f"The capture's {task.get_name()} has failed.", why=why, fix="start it again")
            )

    # --- what a user may ask -------------------------------------------------------------------------

    def get(self, feed: FeedId) -> Feed:
        """A feed by name; raises Refused (CDC:ErrChangeFeedNotExists)."""
        found = self.feeds.get(feed)
        if found is None:
            raise Refused(
                "CDC:ErrChangeFeedNotExists",
                f"[CDC:ErrChangeFeedNotExists]changefeed not exists, {feed}",
                fix="`tidegate changefeed list` shows what there is",
            )
        return found

    async def create(self, new: NewFeed) -> Feed:
        """Check against upstream, hold its history, store the feed, start it."""
        if new.feed in self.feeds or new.feed in self._creating:
            raise Refused(
                "CDC:ErrChangeFeedAlreadyExists",
                f"[CDC:ErrChangeFeedAlreadyExists]changefeed already exists, {new.feed}",
                fix="choose another --changefeed-id, or remove the feed first",
            )
        self._creating.add(new.feed)
        try:
            return await self._create(new)
        finally:
            self._creating.discard(new.feed)

    async def _create(self, new: NewFeed) -> Feed:
        node = self.node
        self._check_shared(new)
        check_versions(await asyncio.to_thread(node.pd.stores))
        new = await self._in_keyspace(new)
        start_ts = await self._start_ts(new)
        held = creating_id(node.cluster, node.holder, new.feed)
        scope = new.config.tidegate.keyspace_id
        guarded = new.config.check_gc_safe_point or new.config.tidegate.initial_load
        if guarded:
            await self._hold(held, start_ts, scope)
        lasting = True
        try:
            tables, catalogue = await self._known_tables(new.config, start_ts), None
            if tables is None:
                catalogue = await self._catalogue(new, start_ts)
                tables = await asyncio.to_thread(catalogue.entries, start_ts) if catalogue is not None else []
            if new.config.has_tables:
                new = await asyncio.to_thread(with_tables, new, tables)
                new = await asyncio.to_thread(with_cuts, new, tables, node.pd)
            feed = await self._store(new, start_ts, catalogue, tables)
            self.feeds[feed.id] = feed
            lasting = await self._tend_gc(force=True)
            feed.start()
        finally:
            if guarded and lasting:  # else it stays until it expires: the lasting one is taken before
                await self._let_go(held, scope)
        event(LOG, logging.INFO, "changefeed created", changefeed=str(new.feed), start_ts=start_ts)
        return feed

    def _check_shared(self, new: NewFeed) -> None:
        """Where captures share an etcd, raises InvalidInput for a feed that another could not take over."""
        node = self.node
        if node.shared:
            sink = FeedPlan.sink_of(node.cluster, new.feed, new.uri, new.config, node.paths)
            check_shared(new, sink.describe())

    async def _in_keyspace(self, new: NewFeed) -> NewFeed:
        """With the id of the keyspace that it names; for life, whatever PD calls by that name later."""
        own, pd = new.config.tidegate, self.node.pd
        if not own.keyspace:
            if own.keyspace_id >= 0:
                check_keyspace(await asyncio.to_thread(pd.keyspace_of_id, own.keyspace_id))
            return new
        found = await asyncio.to_thread(pd.keyspace, own.keyspace)
        if own.keyspace_id not in (-1, found.id):
            raise InvalidInput(
                f"Keyspace '{own.keyspace}' has id {found.id}, not {own.keyspace_id}.",
                where="changefeed configuration",
                fix="give keyspace or keyspace-id alone",
            )
        check_keyspace(found)
        return replace(new, config=replace(new.config, tidegate=replace(own, keyspace_id=found.id)))

    async def _known_tables(self, config: ReplicaConfig, ts: int) -> list[TableVersion] | None:
        """The tables at `ts` without asking upstream; None where they are not known, or there are none.

        To read them all for each of many feeds took longer than everything else that these need to begin.
        """
        catalogues = self.node.captured(TABLE_MODE).catalogues
        if catalogues is None or not config.has_tables:
            return None
        with named_code():
            return await catalogues.tables_at(ts, FeedFilter.of(config)) or None

    async def _catalogue(self, new: NewFeed, ts: int) -> SchemaStore | None:
        """Upstream's catalogue at `ts`; None for a feed of keys."""
        if not new.config.has_tables:
            return None
        catalogue = await asyncio.to_thread(load_catalogue, self.node.pd, ts)
        if not catalogue.schema_names() and not await asyncio.to_thread(is_embedded, self.node.pd):
            raise Refused(
                "CDC:ErrAPIInvalidParam",
                "Upstream holds no tables of TiDB.",
                where=f"PD at {self.node.pd.address}, ts {ts}",
                why="there are no keys of a catalogue; where TiDB runs with keyspaces it keeps them in these",
                fix="start TiDB on the cluster once before; to follow the keys of a keyspace set kv-mode and "
                "keyspace in [tidegate]",
            )
        return catalogue

    async def _start_ts(self, new: NewFeed) -> int:
        now: int = await asyncio.to_thread(self.node.pd.tso)
        start_ts = new.start_ts or now
        if start_ts > now:
            raise Refused(
                "CDC:ErrAPIInvalidParam",
                f"start-ts {start_ts} lies in the future.",
                why=f"upstream's time is {now} ({readable(now)})",
                fix=f"use a start-ts up to {now}, or leave it out for now",
            )
        if new.target_ts and new.target_ts <= start_ts:
            raise Refused(
                "CDC:ErrTargetTsBeforeStartTs",
                f"target-ts {new.target_ts} is not above start-ts {start_ts}.",
                fix="choose a later target-ts",
            )
        return start_ts

    async def _hold(self, service: str, start_ts: int, scope: int) -> None:
        """Hold upstream's history from `start_ts` on, or refuse it with the least that is possible."""
        pd = self.node.pd
        least = await asyncio.to_thread(pd.hold_history, service, CREATING_TTL_S, start_ts - 1, scope)
        if least > start_ts - 1:
            await self._let_go(service, scope)
            possible = earliest_start(least)
            raise Refused(
                "CDC:ErrStartTsBeforeGC",
                f"[CDC:ErrStartTsBeforeGC]start-ts {start_ts} is not above the GC safepoint {least}.",
                why="upstream has dropped old versions that an initial scan would need",
                fix=f"use a start-ts of at least {possible} ({readable(possible)})",
            )

    async def _let_go(self, service: str, scope: int) -> bool:
        """False: PD did not answer, and the hold stays until it expires."""
        try:
            await asyncio.to_thread(self.node.pd.hold_history, service, 0, 0, scope)
        except TidegateError as error:
            event(LOG, logging.WARNING, "safepoint stays until it expires", service=service, error=str(error))
            return False
        return True

    async def _store(
        self, new: NewFeed, start_ts: int, catalogue: SchemaStore | None, tables: Sequence[TableVersion]
    ) -> Feed:
        node = self.node
        instance = uuid.uuid4().hex
        begun = begin_reader(new, tables, start_ts) if new.uri.is_reader else None
        folder = node.paths.feed(new.feed)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if begun is not None:
            changes = Changes(folder)
            await asyncio.to_thread(changes.begin, instance, start_ts, begun, node.clock.now_ms())
        if catalogue is not None:
            await self._offer(catalogue, start_ts, new.config)
        info = FeedInfo(
            sink_uri=new.uri.render(redact=False),
            config=new.config.to_json(),
            start_ts=start_ts,
            target_ts=new.target_ts,
            create_time_ms=node.clock.now_ms(),
            state=str(State.NORMAL),
            instance=instance,
        )
        key = feed_key(node.cluster, new.feed, "info")
        status = Put(feed_key(node.cluster, new.feed, "status"), FeedStatus(start_ts).to_bytes())
        absent = (Compare(key, mod_revision=0),)
        if not await node.write(Put(key, info.to_bytes()), status, guards=absent):
            raise Refused("CDC:ErrChangeFeedAlreadyExists", f"Changefeed {new.feed} exists already.")
        return Feed(node, new.feed, info, FeedStatus(start_ts))

    async def _offer(self, catalogue: SchemaStore, ts: int, config: ReplicaConfig) -> None:
        """Keep what was read of upstream where a feed will begin, so that it is not read once more."""
        catalogues = self.node.captured(TABLE_MODE).catalogues
        assert catalogues is not None
        await catalogues.run(catalogues.offer, catalogue, ts, FeedFilter.of(config))

    async def command(self, feed: FeedId, command: Command) -> None:
        """Pause or resume a feed."""
        async with self._in_turn(feed) as found, self._held_again(found):
            await found.command(command)
        self._gc_now.set()

    @contextlib.asynccontextmanager
    async def _held_again(self, feed: Feed) -> AsyncIterator[None]:
        """History that was released is asked for again before a feed is started, as far as PD has it."""
        if not feed.released:
            yield
            return
        self._resuming.add(feed.id)
        try:
            await self._tend_gc(force=True)
            yield
        finally:
            self._resuming.discard(feed.id)

    async def resume(self, feed: FeedId, overwrite_ts: int = 0) -> None:
        """Start a stopped or failed feed again, at `overwrite_ts` unless that is 0.

        Raises Refused for a ts that upstream has no history of, that lies in the future or at the target.
        """
        async with self._in_turn(feed) as found:
            if overwrite_ts:
                _refuse_reader(found, "its place is in its query's checkpoint")
                found = await self._moved(found, overwrite_ts)
            async with self._held_again(found):
                await found.command(Command.RESUME)
        self._gc_now.set()

    async def _moved(self, found: Feed, ts: int) -> Feed:
        """The feed at another checkpoint, as if it had been created there: nothing it has sent counts."""
        feed, info, node = found.id, found.info, self.node
        if found.life.state not in UPDATABLE:
            raise Refused(
                "CDC:ErrChangefeedUpdateRefused",
                f"[CDC:ErrChangefeedUpdateRefused]changefeed {feed} is {found.life.state}: "
                "its checkpoint can be overwritten only while it is stopped or failed.",
                fix=f"`tidegate changefeed pause -c {feed.name}` first",
            )
        if found.loading:
            raise Refused(
                "CDC:ErrAPIInvalidParam",
                "The checkpoint cannot be overwritten: the initial load is not complete.",
                fix="resume the changefeed as it is, or remove it and create it again",
            )
        check_overwrite(info)
        new = check_new(feed, info.sink_uri, info.config, ts, info.target_ts)
        await self._start_ts(new)
        held = creating_id(node.cluster, node.holder, feed)
        await self._hold(held, ts, found.scope)
        lasting = True
        try:
            catalogue = await self._catalogue(new, ts)
            await found.stop()
            found.check_ended()
            if catalogue is not None:
                await self._offer(catalogue, ts, new.config)
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
            self.feeds[feed] = moved = Feed(node, feed, info, status)
            lasting = await self._tend_gc(force=True)
        finally:
            if lasting:
                await self._let_go(held, found.scope)
        event(
            LOG, logging.INFO, "checkpoint overwritten", changefeed=str(feed), ts=ts, before=found.persisted
        )
        return moved

    @contextlib.asynccontextmanager
    async def _in_turn(self, feed: FeedId) -> AsyncIterator[Feed]:
        """A feed, for one request at a time: each sees what the one before has made of it.

        Raises Refused (CDC:ErrChangeFeedNotExists), also when an earlier request has removed it.
        """
        while True:
            found = self.get(feed)
            async with found.turn:
                if self.feeds.get(feed) is found:
                    yield found
                    return

    async def update(
        self, feed: FeedId, sink_uri: str = "", config: Mapping[str, Any] | None = None, target_ts: int = 0
    ) -> Feed:
        """Change a stopped or failed feed's settings; what is empty, None or 0 stays as it is.

        Raises Refused while it runs, for a target the feed has passed, and for what `create` refuses.
        """
        async with self._in_turn(feed) as found, self._held_again(found):
            await self._update_stopped(found, sink_uri, config, target_ts)
        event(LOG, logging.INFO, "changefeed updated", changefeed=str(feed))
        return found

    async def _update_stopped(
        self, found: Feed, sink_uri: str, config: Mapping[str, Any] | None, target_ts: int
    ) -> None:
        feed, info = found.id, found.info
        _refuse_reader(found, "what it reads is in its query's options")
        if found.life.state not in UPDATABLE:
            raise Refused(
                "CDC:ErrChangefeedUpdateRefused",
                f"[CDC:ErrChangefeedUpdateRefused]changefeed {feed} is {found.life.state}: "
                "it can be updated only while it is stopped or failed.",
                fix=f"`tidegate changefeed pause -c {feed.name}` first, and resume it afterwards",
            )
        if sink_uri in ("", found.uri.render()):
            sink_uri = info.sink_uri
        wanted = info.config if config is None else with_secrets_of(config, info.config)
        new = await asyncio.to_thread(
            check_new, feed, sink_uri, wanted, info.start_ts, target_ts or info.target_ts
        )
        changed = elsewhere((found.uri, found.config), (new.uri, new.config), config or {})
        if changed:
            raise Refused(
                "CDC:ErrChangefeedUpdateRefused",
                "[CDC:ErrChangefeedUpdateRefused]the password is not sent elsewhere unasked: "
                f"{', '.join(changed)} would change.",
                fix="give sasl-password again, in the sink URI or in the configuration",
            )
        new = replace(new, config=with_spans_of(found.config, new.config))
        own, kept = new.config.tidegate, found.config.tidegate
        for name in FIXED:
            if getattr(own, name) != getattr(kept, name):
                raise Refused(
                    "CDC:ErrChangefeedUpdateRefused",
                    f"[CDC:ErrChangefeedUpdateRefused]{name.replace('_', '-')} cannot be changed.",
                    why="where a changefeed begins, and the ranges of keys it follows, are decided when it "
                    "is created",
                    fix="leave it as it is, or create another changefeed",
                )
        if target_ts and target_ts <= found.checkpoint:
            raise Refused(
                "CDC:ErrTargetTsBeforeStartTs",
                f"target-ts {target_ts} is not above the checkpoint {found.checkpoint}.",
                fix="choose a later target-ts",
            )
        if found.config.check_gc_safe_point and found.persisted < found.history.safe_point:
            raise Refused(
                "CDC:ErrSnapshotLostByGC",
                f"[CDC:ErrSnapshotLostByGC]upstream's GC safepoint {found.history.safe_point} has passed "
                f"the checkpoint {found.persisted}.",
                why="the tables there were at the checkpoint cannot be looked up any more",
                fix="resume it as it is; or remove the changefeed and create it again from a later start-ts",
            )
        self._check_shared(new)
        catalogue = await self._catalogue(new, found.persisted)
        if catalogue is not None:
            tables = await asyncio.to_thread(catalogue.entries, found.persisted)
            new = await asyncio.to_thread(with_cuts, new, tables, self.node.pd)
        moved = await self._is_elsewhere(found, new)
        if not moved:
            check_update(info, found.config, new.config)
        await found.update(
            replace(
                info if not moved else replace(info, repartition=0, partitions=0),
                sink_uri=new.uri.render(redact=False),
                config=new.config.to_json(),
                target_ts=new.target_ts,
                # Another place has nothing of what the old one was sent above the checkpoint.
                instance=uuid.uuid4().hex if moved else info.instance,
            )
        )

    async def _is_elsewhere(self, found: Feed, new: NewFeed) -> bool:
        """Whether another place is meant than where the feed has written so far.

        Where that cannot be told, another one is taken for granted: rows above the checkpoint go out again.
        A feed that was re-partitioned is Refused then: its readers would not hear of it.
        """
        after = replace(found.plan, uri=new.uri, config=new.config).sink
        try:
            return not await asyncio.to_thread(same_place, found.plan.sink, after)
        except TidegateError as error:
            if found.info.partitions or found.info.repartition:
                raise Refused(
                    "CDC:ErrChangefeedUpdateRefused",
                    "[CDC:ErrChangefeedUpdateRefused]it cannot be told whether this is the same topic.",
                    where=new.uri.render(),
                    why=f"{error.what} {error.why}; and the changefeed was re-partitioned",
                    fix="try again when the broker answers",
                ) from error
            event(
                LOG,
                logging.WARNING,
                "sink taken for another one",
                changefeed=str(found.id),
                error=str(error),
            )
            return True

    async def repartition(self, feed: FeedId, partitions: int) -> Feed:
        """Spread a running feed's rows over so many partitions of its topic from some ts on.

        On return the topic has them, and the request is stored. Raises Refused as `check_repartition`, and
        what `widen` raises.
        """
        async with self._in_turn(feed) as found:
            _refuse_reader(found, "what it reads is in its query's options")
            check_repartition(found, partitions)
            await asyncio.to_thread(widen, found.plan.sink, partitions)
            await found.repartition(partitions)
        event(LOG, logging.INFO, "repartition asked for", changefeed=str(feed), partitions=partitions)
        return found

    async def rebalance(self, feed: FeedId, *, dry_run: bool) -> Plan:
        """Divide a changefeed's key space in the best way there is. `dry_run`: only say how."""
        async with self._in_turn(feed) as found:
            if not found.may_be_shared:
                raise Refused(
                    "CDC:ErrChangefeedUpdateRefused",
                    f"[CDC:ErrChangefeedUpdateRefused]{feed} is not shared by captures.",
                    why="the server runs without --etcd, or its sink takes one writer at a time",
                )
            plan = found.sharing.plan(shared=not found.loading)
            if not dry_run:
                found.sharing.ask()
            return plan

    async def move(self, feed: FeedId, tables: Sequence[str], capture: str) -> Plan:
        """Let a capture deliver some tables, with all that share a span with them.

        `tables`: as SCHEMA.TABLE, or ids of tables or partitions. Raises Refused.
        """
        async with self._in_turn(feed) as found:
            self._check_movable(found, capture)
            good, _ = await self.tables(found.config, found.checkpoint)
            ids = _ids_of(tables, good)
            try:
                plan = found.sharing.handed(ids, capture)
            except (KeyError, ValueError) as error:
                why = (
                    f"the changefeed does not deliver table {error.args[0]}"
                    if isinstance(error, KeyError)
                    else f"{error}: `tidegate changefeed rebalance` joins ranges"
                )
                raise _not_moved(feed, why) from error
            if plan.moves:
                found.sharing.hand(ids, capture)
            return plan

    def _check_movable(self, feed: Feed, capture: str) -> None:
        """Raises Refused."""
        if not feed.may_be_shared:
            why = "the server runs without --etcd, or the changefeed's sink takes one writer at a time"
        elif feed.loading:
            why = "one capture makes the initial load; try again when it is durable"
        elif not feed.peers.running or feed.waiting_for:
            why = f"the changefeed does not deliver now: {feed.waiting_for or feed.life.state}"
        elif capture not in feed.sharing.able():
            why = f"capture {capture} is drained, or does not answer, or has just failed or joined"
        else:
            return
        raise _not_moved(feed.id, why)

    async def drain(self, capture: str, *, again: bool = False) -> int:
        """Give a capture's ranges to others, and nothing to it any more; how many tables it still has.

        `again`: it is to be given ranges again. It is, too, once its process has started again.
        """
        node, key = self.node, drained_prefix(self.node.cluster) + capture
        if again:
            await node.write(Delete(key))
            node.drained.discard(capture)
        elif capture not in node.drained:
            await node.write(Put(key, node.ids()[capture].encode()))
            node.drained.add(capture)
            event(LOG, logging.INFO, "capture is drained", capture=capture)
        return self.left_on(capture)

    def tables_of(self, capture: str) -> int:
        """How many tables a capture delivers, of all changefeeds together."""
        peers = ((feed, feed.peers.get(capture)) for feed in self.feeds.values())
        return sum(len(feed.tables_of(peer)) for feed, peer in peers if peer is not None)

    def left_on(self, capture: str) -> int:
        """How many tables a capture delivers or may deliver; 0: it can be stopped without anybody waiting."""
        return sum(feed.left_on(capture) for feed in self.feeds.values() if feed.life.runs)

    async def _note_drained(self) -> None:
        """Which captures are drained, by what is stored; one that has started again is not."""
        node, front = self.node, drained_prefix(self.node.cluster)
        ids = node.ids()
        for kv in await self._on(node.disk, node.metadata.under, front):
            name = kv.key.removeprefix(front)
            if ids.get(name, kv.value.decode()) != kv.value.decode():
                await node.write(Delete(kv.key))
                node.drained.discard(name)
            else:
                node.drained.add(name)

    async def remove(self, feed: FeedId) -> None:
        """End a feed and delete what is kept of it; the grant stays: a leftover writer stays fenced."""
        node = self.node
        async with self._in_turn(feed) as found:
            await found.stop(forget=True)
            await node.write(
                Delete(feed_key(node.cluster, feed, "info")), Delete(feed_key(node.cluster, feed, "status"))
            )
            await self.crew.end(feed)
            await asyncio.to_thread(shutil.rmtree, node.paths.feed(feed), True)
            await self._forget_progress(found)
            # Last: a feed of the same name has folder and progress in the same place.
            del self.feeds[feed]
            node.post.owners.pop(str(feed), None)
        await self._tend_gc(force=True)
        event(LOG, logging.INFO, "changefeed removed", changefeed=str(feed))

    async def _forget_progress(self, feed: Feed) -> None:
        try:
            async with asyncio.timeout(FORGET_S):
                await asyncio.to_thread(feed.plan.sink.forget)
        except (TidegateError, TimeoutError) as error:
            event(LOG, logging.WARNING, "progress stays", changefeed=str(feed.id), error=str(error))

    async def tables(self, config: ReplicaConfig, ts: int) -> tuple[list[TableVersion], list[TableVersion]]:
        """Eligible and ineligible tables that pass the filter at `ts`; a feed of keys has none."""
        if not config.has_tables:
            return [], []
        catalogue = await asyncio.to_thread(load_catalogue, self.node.pd, ts)
        with named_code():
            return await asyncio.to_thread(lambda: split_tables(catalogue.entries(ts), config))

    async def now(self) -> int:
        """Upstream's time."""
        return await asyncio.to_thread(self.node.pd.tso)

    # --- housekeeping --------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOUSEKEEPING_S):
                    await self._gc_now.wait()
            force = self._gc_now.is_set()
            self._gc_now.clear()
            settled = self.node.clock.monotonic() - self._began_at >= PREDECESSORS_S
            if await self._tend_gc(force=force) and self._has_predecessors and settled:
                await self._let_go_of_predecessors()
            self._tell_needs()
            self._tend_catalogues()
            await self._end_drains()
            await self._look_at_disk()
            self.crew.let_go(self._captured(), self._owned_only())
            await self._sweep()
            self._measure()

    async def _end_drains(self) -> None:
        """A capture that was drained and has started again may be given ranges again."""
        if self.node.drained:
            try:
                await self._note_drained()
            except Retryable as error:
                event(LOG, logging.WARNING, "drained captures not read", error=str(error))

    async def _let_go_of_predecessors(self) -> None:
        """What earlier owners held is held by us now: let go of it, else PD keeps it until it runs out."""
        node, front = self.node, holder_key(self.node.cluster, "")
        try:
            for kv in await self._on(node.disk, node.metadata.under, front):
                if (term := kv.key.removeprefix(front)) == node.term:
                    continue
                for scope in {-1, *self._gcs}:
                    held = service_id(node.cluster, f"{node.identity}-{term}", scope)
                    if not await self._let_go(held, scope):
                        return
                await node.write(Delete(kv.key))
            self._has_predecessors = False
        except Retryable as error:
            event(LOG, logging.WARNING, "holds of earlier owners stay for now", error=str(error))

    def _owned_only(self) -> dict[FeedId, tuple[int, int]]:
        """The running changefeeds that other captures deliver: from where their DDL is still read here."""
        feeds = (feed for feed in self.feeds.values() if feed.owner is not None)
        return {f.id: (0, f.needs[1]) for f in feeds if (p := self.processors.get(f.id)) is None or p.is_idle}

    def _tend_catalogues(self) -> None:
        for captured in self._captured():
            if captured.catalogues is not None:
                running = [f.persisted for f in self.feeds.values() if f.owner and f.config.has_tables]
                captured.catalogues.tend(self._checkpoints(), running)

    def _checkpoints(self) -> list[int]:
        return [
            feed.persisted
            for feed in self.feeds.values()
            if feed.config.has_tables and feed.life.state in HELD
        ]

    async def _look_at_disk(self) -> None:
        """A full disk is a warning of every feed that runs, with the time since when."""
        ballast = self.node.ballast
        before = ballast.trouble
        trouble = await asyncio.to_thread(ballast.keep, self.node.clock.now_ms())
        if trouble != before:
            level = logging.WARNING if trouble else logging.INFO
            event(LOG, level, "disk full" if trouble else "disk has room again", why=trouble or before)
        if trouble:
            since = datetime.fromtimestamp(ballast.full_since_ms / 1000, UTC).isoformat(timespec="seconds")
            text = f"{trouble}, since {since}\n  to do: make room; everything waits and goes on by itself"
            error = FeedError(text, "CDC:ErrDiskFull", ballast.full_since_ms, self.node.address)
            for feed in self.feeds.values():
                feed.warn(error)

    async def _sweep(self) -> None:
        """Now and then remove the files of spans that no feed follows or will need: of dropped tables."""
        now = self.node.clock.monotonic()
        if now - self._swept_at < SWEEP_S:
            return
        self._swept_at = now
        floor = min((self._floor(f) for f in self.feeds.values() if self._is_held(f)), default=MAX)
        for captured in self._captured():
            held = captured.spans.held
            try:
                idle = await asyncio.to_thread(outlook.spans, captured.store, held)
            except (TidegateError, OSError) as error:
                event(LOG, logging.WARNING, "event store not swept", error=str(error))
                continue
            if not self._creating:
                for span in captured.spans.sweep(idle, floor):
                    self.node.manifests.pop(span, None)

    def _floor(self, feed: Feed) -> int:
        """What lies at or below this nobody needs for the feed any more, were a span's files to go at once.

        A feed that does not run needs what is above its checkpoint when it is resumed.
        """
        processor = self.processors.get(feed.id)
        done = processor.drop_below if processor is not None else None
        return done[0] if done is not None else max(0, feed.persisted - feed.retained)

    def _captured(self) -> list[Captured]:
        """The tables' event store, and those of other kv modes that feeds have."""
        return self.crew.captured(f.config.tidegate.kv_mode for f in self.feeds.values())

    async def _tend_gc(self, *, force: bool = False) -> bool:
        """Renew the safepoints when due, that of each keyspace in its own scope. False: PD is away."""
        self._note_released()
        for scope in {f.scope for f in self.feeds.values()} - self._gcs.keys():
            self._gcs[scope] = GcGuard(self.node.gc_ttl_s)
        self.gc_error, all_taken = "", True
        for scope, guard in list(self._gcs.items()):
            all_taken = await self._tend_scope(scope, guard, force=force) and all_taken
        return all_taken

    async def _tend_scope(self, scope: int, guard: GcGuard, *, force: bool) -> bool:
        taken = False
        while not taken:
            hold = guard.tick(self._needs(scope), self.node.clock.monotonic(), force=force)
            if hold is None:
                return True
            if hold.safe_point > self.node.histories.get(scope, History()).safe_point:
                # Before PD is asked: from then on what lies below may go at any moment.
                self._tell_needs()
                self._keep_above(scope, History(hold.needed, hold.safe_point))
            try:
                least = await asyncio.to_thread(self._update, scope, hold)
            except TidegateError as error:
                guard.failed()
                self.gc_error = error.what
                return False
            taken, force = guard.answered(hold, least), True
            if taken:
                self._keep_above(scope, History(hold.needed, hold.safe_point) if hold.ttl_s else History())
        return True

    def _keep_above(self, scope: int, history: History) -> None:
        """Let nothing be registered or read below what PD keeps for us."""
        self.node.histories[scope] = history
        for captured in self._captured():
            captured.spans.keep_above(history.safe_point, scope)

    def _tell_needs(self) -> None:
        needs = {f.id: self._needs_here(f) for f in self.feeds.values()}
        for captured in self._captured():
            captured.spans.needed(needs)

    def _needs(self, scope: int) -> dict[FeedId, int]:
        """From where on each feed of a keyspace may still read: those whose history is held."""
        behind: dict[FeedId, int] = {}
        for captured in self._captured():
            floors = outlook.read_frontier(captured.store)
            behind |= captured.spans.behind(floors, every=self.node.shared != "")
        feeds = (f for f in self.feeds.values() if f.scope == scope and self._is_held(f))
        now = self.node.clock.monotonic()
        return {f.id: min(*self._needs_here(f), behind.get(f.id, MAX), f.peers.needs(now)) for f in feeds}

    def _needs_here(self, feed: Feed) -> tuple[int, int]:
        """What this capture may still read of upstream, as owner and as one that prepares a share."""
        processor = self.processors.get(feed.id)
        if processor is None or not processor.prepares:
            return feed.needs
        (rows, ddl), (first, first_ddl) = feed.needs, processor.needs
        return min(rows, first), min(ddl, first_ddl)

    def _is_held(self, feed: Feed) -> bool:
        """Whether history is kept for a feed: not if it is finished, or stopped for longer than gc-ttl."""
        return feed.life.state in HELD and (not feed.released or feed.id in self._resuming)

    def _note_released(self) -> None:
        released = {f.id: f for f in self.feeds.values() if f.life.state in HELD and f.released}
        for name in released.keys() - self._released:
            event(LOG, logging.WARNING, "history released", changefeed=str(name), gc_ttl_s=self.node.gc_ttl_s)
        self._released = set(released)

    def _update(self, scope: int, hold: Hold) -> int:
        service, pd = service_id(self.node.cluster, self.node.holder, scope), self.node.pd
        if (over := self.node.over()) is not None:
            raise over
        least = pd.hold_history(service, hold.ttl_s, hold.safe_point, scope)
        if (over := self.node.over()) is not None:
            # The next owner may have let go of it already: then nobody else would do it again.
            pd.hold_history(service, 0, 0, scope)
            raise over
        return least

    def _measure(self) -> None:
        now_ms = self.clock_watch.now_ms()
        for feed in self.feeds.values():
            labels = (feed.id.namespace, feed.id.name)
            metrics.checkpoint_ts.labels(*labels).set(physical_ms(feed.checkpoint))
            metrics.checkpoint_lag_s.labels(*labels).set(feed.lag_ms(now_ms) / 1000)
            metrics.resolved_ts.labels(*labels).set(physical_ms(feed.resolved_ts))
            metrics.status.labels(*labels).set(STATUS_CODES[feed.life.state])

    def puller_error(self, error: FeedError) -> None:
        """The puller is in trouble: every running feed shows it until it moves again."""
        for feed in self.feeds.values():
            feed.warn(error)

    async def _on(self, executor: Executor, work: Any, *values: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(executor, work, *values)


def _not_moved(feed: FeedId, why: str) -> Refused:
    return Refused(
        "CDC:ErrChangefeedUpdateRefused",
        f"[CDC:ErrChangefeedUpdateRefused]the tables of {feed} cannot be moved.",
        why=why,
        fix="`tidegate capture list` and `tidegate changefeed query` show who delivers what",
    )


def _ids_of(wanted: Sequence[str], tables: Iterable[TableVersion]) -> set[int]:
    """The physical ids of tables given by name or id. Raises Refused."""
    by_name: dict[str, tuple[int, ...]] = {}
    for table in tables:
        by_name[f"{table.schema}.{table.table}".lower()] = by_name[str(table.id)] = table.physical_ids
        by_name |= {str(one): (one,) for one in table.physical_ids}
    found: set[int] = set()
    for name in wanted:
        if (ids := by_name.get(name.lower())) is None:
            raise Refused(
                "CDC:ErrTableIneligible",
                f"[CDC:ErrTableIneligible]the changefeed has no table '{name[:200]}'.",
                fix="write SCHEMA.TABLE, or the id of a table or partition",
            )
        found.update(ids)
    return found


def _refuse_reader(feed: Feed, why: str) -> None:
    if feed.uri.is_reader:
        raise Refused(
            "CDC:ErrChangefeedUpdateRefused",
            f"[CDC:ErrChangefeedUpdateRefused]{feed.id} is a reader: it is made and led by a Spark query.",
            why=why,
            fix="change the query; or remove the changefeed, and start the query with a new checkpoint",
        )
