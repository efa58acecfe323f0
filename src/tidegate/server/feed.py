"""What a feed's owner does: grants, opens its side of the sink, announces, carries out what is due.

    meet processors -> open catalogue -> [share -> grant -> sink -> dispatch -> tick ...] -> back-off -> [...]

Everything runs in the control process's asyncio loop; what blocks goes to threads. A tick happens as soon as
a processor reports, floors have moved (`server.pulse`), a call has ended or something is due by time. The
life (`control.changefeed`) says whether to run, and the owner (`control.owner`) what to do; this file only
performs. Rows, spans and the pipeline are the processors' (`server.processor`), which are known here by their
messages alone, whatever captures they are on (`server.peers`). How the key space is shared among captures is
decided by `control.share`; when it is to be shared in another way, all incarnations end and others begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, assert_never

from tidegate import metrics
from tidegate.control import trace
from tidegate.control.barrier import Barrier, DdlBatch
from tidegate.control.changefeed import Life, State
from tidegate.control.gc import History
from tidegate.control.messages import (
    FromProcessor,
    Wish,
)
from tidegate.control.metadata import (
    FeedError,
    FeedId,
    FeedInfo,
    FeedStatus,
    Grant,
    Put,
    feed_key,
    writers_of,
)
from tidegate.control.owner import Effect, Finish, Owner, Persist, SendDdl, SendRepartition, SendResolved
from tidegate.disk import DiskFull
from tidegate.errors import Retryable, TidegateError
from tidegate.filter.tables import why_ineligible
from tidegate.log import event
from tidegate.model.ddl import DdlEvent
from tidegate.model.key_range import KeyRange
from tidegate.model.progress import span_key
from tidegate.model.reports import LoadState
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX, compose, physical_ms
from tidegate.pipeline.feed import rules_of
from tidegate.server import initial_load
from tidegate.server.feed_ddl import FeedDdl
from tidegate.server.feed_life import FeedLife, to_its_end, unexpected
from tidegate.server.feed_plan import FeedPlan
from tidegate.server.feed_watch import LOOK_S, SinkWatch
from tidegate.server.feed_words import (
    words_of_disagreement,
    words_of_first,
    words_of_history,
    words_of_load,
    words_of_owner,
    words_of_release,
)
from tidegate.server.membership import unreached
from tidegate.server.node import Node
from tidegate.server.owner_sink import OpenedSink, SinkThread, fence_writers, open_sink
from tidegate.server.peers import (
    Peer,
    Peers,
)
from tidegate.server.processor_link import ProcessorLink, Terms
from tidegate.server.processor_reports import (
    CannotPrepare,
    Finding,
    LoadDurable,
    MayHaveLeftovers,
    PartFailed,
    ProcessorReports,
    RangesRun,
    RecordsOver,
    Restarted,
)
from tidegate.server.schema_tracker import SchemaTracker
from tidegate.server.sharing import CAPTURES_S, Sharing
from tidegate.server.totals import Totals
from tidegate.sink.base import Description, Form

LOG: Final = logging.getLogger(__name__)

TICK_S: Final = 0.02
"""Between two ticks while DDL that has come waits for the catalogue, which another thread may have."""
FORGET_S: Final = 10.0
"""How often the progress of spans that have ended is deleted at the sink."""
PIPELINE_STARTS: Final = "pipeline"
"""What a feed waits for until its processors deliver."""
FULL_S: Final = 0.5
"""Between two attempts to store a checkpoint that must be stored, on a full disk."""
JOBS_S: Final = 2.0
"""How long calls under way are waited for when an incarnation ends."""
ALL_KEYS: Final = Span(b"", b"")


class Feed(FeedLife):
    """A changefeed on the node that owns it."""

    def __init__(self, node: Node, feed: FeedId, info: FeedInfo, status: FeedStatus) -> None:
        super().__init__(node, feed, info, status)
        self.captured = node.captured(self.config.tidegate.kv_mode)
        self.checkpoint = self.resolved_ts = status.checkpoint_ts
        """`checkpoint`: durable downstream; never below `persisted`."""
        self.loading = self.config.tidegate.initial_load and not status.loaded
        """Whether the rows there are at `checkpoint` are still to be delivered; nothing above it is then."""
        self.owner: Owner | None = None
        self._ddl: FeedDdl | None = None
        self._behind = False
        """Whether DDL has come that the catalogue did not hand out at the last tick."""
        self._disagrees = False
        """Whether it was logged that the processor knows other DDL."""
        self._sink: OpenedSink | None = None
        self._sink_thread: SinkThread | None = None
        self._watch: SinkWatch | None = None
        self._grant: Grant | None = None
        self._failure: TidegateError | None = None
        self._reached = self._repartitioned = False
        """Of this incarnation: whether it has nothing more to do, at the target or by another layout."""
        self._described: tuple[FeedInfo, Description] | None = None
        """What the sink says of itself, and by which settings."""
        self._reshare = ""
        """Why this incarnation is to end so that the key space is shared in another way; empty: it is not."""
        self._is_shared_out = False
        """Whether this owner has said once which capture has what."""
        self._wake = asyncio.Event()
        self._floors_moved = True
        """Whether more of the DDL span may have come than when it was looked at last."""
        self._looked_at = float("-inf")
        self._jobs: set[asyncio.Task[None]] = set()
        self._topics = frozenset[str]()
        """Where rows go by dispatch rules, beside the URI's own, at the stored checkpoint or later."""
        self._forgot_at = 0.0
        self._ended: dict[str, int] = {}
        """Spans whose progress is still kept at the sink, and the ts at which they ended."""
        self._storing = False
        """Whether that the initial load is durable is being stored."""
        self._settings = status.settings
        """Of the last incarnation: those by which it chose what to send."""
        self._status_turn = asyncio.Lock()
        self.peers = Peers()
        self._link = ProcessorLink(node, feed, self.peers, self._terms, self._take_message, self._wake.set)
        self.sharing = Sharing(
            node, self.wanted, self.peers, self._link.reachable, stays=not self.config.has_tables
        )
        self._reports = ProcessorReports(node.capture, self.peers, self._set_loads)

    @property
    def totals(self) -> Totals:
        """Of all captures since the control process started."""
        return self._reports.totals

    @property
    def load(self) -> LoadState:
        """How far the initial load is, or was."""
        return self._reports.load

    @property
    def last_synced_ts(self) -> int:
        """No row above this was delivered since the control process started; 0: none at all."""
        return self._reports.last_synced_ts

    def _set_loads(self, capture: str, loads: Mapping[str, int]) -> None:
        self.sharing.loads[capture] = loads

    @property
    def plan(self) -> FeedPlan:
        """What the incarnations have in common."""
        node = self.node
        paths = dataclasses.replace(node.paths, store=self.captured.store)
        return FeedPlan.of(node.cluster, self.id, self.info, paths, node.capture, node.shared)

    @property
    def wanted(self) -> Span:
        """The part of the key space that it follows."""
        return ALL_KEYS if self.config.has_tables else KeyRange.of(self.config).span

    def forget_grant(self) -> None:
        """The next incarnation runs under a token of its own; the feed must not run."""
        self._grant = None

    @property
    def needs(self) -> tuple[int, int]:
        """The least ts from which rows, and DDL, may still be read of upstream, were all that is stored gone.

        Upstream's history must be held from there on.
        """
        catalogues = self.captured.catalogues if self.config.has_tables else None
        base = catalogues.base_ts(self.persisted) if catalogues is not None else None
        return self.persisted, self.persisted if base is None else min(self.persisted, base)

    @property
    def scope(self) -> int:
        """The keyspace whose history it needs; -1: that of the cluster."""
        return self.config.tidegate.keyspace_id

    @property
    def history(self) -> History:
        """What PD keeps for us of what the feed follows."""
        return self.node.histories.get(self.scope, History())

    @property
    def retained(self) -> int:
        """How far behind the checkpoint, as a difference of ts, changes are kept."""
        return compose(round(self.config.tidegate.retention * 1000))

    async def _settle(self) -> None:
        while beside := [job for job in self._jobs if not job.done()]:
            await asyncio.wait(beside)

    async def _close(self, *, forget: bool = False) -> None:
        """Let go of catalogue and spans; the next start opens them at the stored checkpoint."""
        if self.owner is not None and self.owner.checkpoint > self.persisted and not forget:
            await self._store_last(self.owner.checkpoint)
        self.owner = self._ddl = None
        self.waiting_for = ""
        if forget:
            await self._meet()
        rest = Wish.DELETE if forget else Wish.REST
        await self._link.ask_to_end(
            rest, [peer for peer in self._link.reachable() if forget or peer.asked is not None]
        )
        mine = self.peers.get(self.node.capture)
        # What another capture still does is fenced; here it would write the same files as a successor.
        self.left_behind = mine is not None and mine.asked is not None and not mine.given_up.is_set()
        self.captured.spans.release(self.id, forget=forget)

    async def _store_last(self, checkpoint: int) -> None:
        """At a stop, so that the checkpoint people see is where an update begins.

        If it cannot be stored, the next start reads some rows again.
        """
        try:
            await self._store(checkpoint)
        except TidegateError as error:
            event(LOG, logging.WARNING, "checkpoint not stored", changefeed=str(self.id), error=str(error))

    def warn(self, error: FeedError) -> None:
        """Show a trouble that does not stop the pipeline."""
        if self.life.runs:
            self._spawn(self._show(error))

    async def _show(self, error: FeedError) -> None:
        await self._become_if_there_is_room(self.life.warned(error))

    async def _become_if_there_is_room(self, life: Life) -> None:
        """On a full disk the new state is shown, and not stored: a restart finds the one before."""
        before = self.life
        try:
            await self._become(life)
        except DiskFull:
            if self.life is before:
                self.life = life

    # --- replication ---------------------------------------------------------------------------------

    async def _replicate(self) -> None:
        self._failure, self._reached = None, False
        await self._meet()
        if self.owner is None or self._ddl is None or not self._ddl.is_open:
            await self._open()
        self.node.pulse.follow(self.captured.store, self.id, self._on_floors, first=True)
        self._floors_moved = True  # what has changed since it followed last
        try:
            while not self._reached:
                await self._start_incarnation()
                await self._deliver()
                if not self._reached:  # the next one has other shares, or another number of partitions
                    await to_its_end(self._end_incarnation())
        finally:
            self.node.pulse.leave(self.captured.store, self.id, self._on_floors)
            await to_its_end(self._end_incarnation())  # else a pause would save its process

    async def _deliver(self) -> None:
        """Go on until the incarnation has nothing more to do. Raises what it fails with."""
        while not (self._reached or self._repartitioned or self._reshare):
            self._tick()
            self._look_out()
            self._look_around()
            if self._failure is not None:
                raise self._failure
            await self._pause()

    def _on_floors(self) -> None:
        self._floors_moved = True
        self._wake.set()

    async def _pause(self) -> None:
        """Until the next tick: at once when something happened."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rest_s()):
                await self._wake.wait()
        self._wake.clear()

    def _rest_s(self) -> float:
        """How long nothing is to be done if nothing happens."""
        owner = self.owner
        if owner is None or self._behind:
            return TICK_S
        # A call that was only just spawned has not said yet what it is at.
        is_called = bool(self._jobs) or (self._sink_thread is not None and bool(self._sink_thread.at))
        rest_s = self.node.pulse.rest_s(self.captured.store, watched=is_called)
        if self.node.shared:
            # In a crowd less often, as all that is done for changefeeds without rows.
            rest_s = min(rest_s, max(CAPTURES_S, self.node.pulse.calmer_s(self.captured.store) / 2))
        return min(rest_s, owner.due_in(self.node.clock.monotonic()))

    async def _open(self) -> None:
        """Catalogue and owner at the stored checkpoint; the processors prepare meanwhile."""
        ddl = FeedDdl(self.node, self.plan, self._filter)
        ddl.check_held(self.persisted)
        if not self.node.others():  # else it is not known yet who gets what
            self._link.dispatch(self.peers[self.node.capture], Wish.PREPARE)

        def waits(what: str) -> None:
            self.waiting_for = what

        batches, known = await ddl.open(self.persisted, waits)
        barrier = Barrier(self.persisted, self.info.target_ts, held_at=self.persisted if self.loading else 0)
        interval = self.config.tidegate.resolved_interval
        self._topics = ddl.tracker.topics
        self._ddl = ddl
        self.sharing.begin(ddl.initial)
        self.owner = Owner(
            self.persisted,
            barrier,
            self.wanted,
            resolved_interval_s=interval,
            quiet_interval_s=self.node.pulse.calmer_s(self.captured.store),
        )
        self.node.follow(trace.OWNER, str(self.id), self.owner)
        self.owner.learn(batches, known)

    def _definitions(self) -> list[DdlEvent]:
        """What is told of the tables before their rows; keys need no telling."""
        assert self._ddl is not None
        tracker = self._ddl.tracker
        if not isinstance(tracker, SchemaTracker):
            return []
        return initial_load.definitions(tracker.followed(self.persisted), self._filter, self.persisted)

    async def _start_incarnation(self) -> None:
        """Shares, grants, sink, processors: in this order."""
        assert self.owner is not None
        self._failure, self._reached, self._repartitioned, self._reshare = None, False, False, ""
        self._wake.clear()
        node = self.node
        grants = await self._raise_grants(self.owner)
        # The owner's own writes are proven by the grant of any capture in this round.
        lead = node.capture if node.capture in grants else min(grants)
        plan, grant = dataclasses.replace(self.plan, capture=lead), grants[lead]
        self._grant = grant
        assert self._ddl is not None
        first = await self._ddl.run(self._definitions) if self.loading else []
        own = self.config.tidegate
        self._watch = SinkWatch(node.clock, own.stall_timeout, own.start_timeout)
        self._sink_thread = thread = SinkThread(self.id)
        self.waiting_for = "sink"
        async with self._watched_start():
            await self._fence_all(plan, grants, thread)
            self._sink = await open_sink(plan, grant, node.open_sink, thread, self._topics, first)
        if await self._adopt_settings(self._sink.delivered_to):
            await self._start_incarnation()
            return
        self.owner.sink_open(self._sink.resolved_journal, self._sink.ddl_journal)
        await self._take_up_repartition(self.owner, self._sink.partitions)
        self.waiting_for = PIPELINE_STARTS
        self.totals.starts += 1
        for name in grants:
            self._link.dispatch(self.peers[name], Wish.RUN)

    # --- who gets what -------------------------------------------------------------------------------

    async def _raise_grants(self, owner: Owner) -> dict[str, Grant]:
        """Share the key space among the captures that answer, and store what each may write."""
        node = self.node
        stored = await node.grants(self.id) if node.shared else {}
        before = {name: [one.id for one in grant.ranges] for name, grant in stored.items()}
        shares = self.sharing.divide(before, shared=self.may_be_shared and not self.loading)
        token = self._grant.token if self._grant and not node.shared else node.token()
        plan = self.plan
        slots = {name: plan.slots(self.peers[name].cores) for name in shares}
        grants = await node.share_out(self.id, self.info.instance, token, shares, slots)
        self._is_shared_out = True
        reachable = self._link.reachable()
        self._reports.begin()
        for peer in self.peers:
            if peer.capture in grants:
                continue
            peer.grant = None
            owner.grant(peer.capture, 0, ())
            if peer not in reachable:
                peer.asked = None
            elif not peer.rests:
                self._link.dispatch(peer, Wish.REST)
            else:
                self._link.end_leftover(peer)
        for name, grant in grants.items():
            self.peers[name].grant = grant
            owner.grant(name, grant.incarnation, grant.ranges)
        if len(grants) > 1 or node.capture not in grants:
            event(LOG, logging.INFO, "key space shared", changefeed=str(self.id), among=sorted(grants))
        return grants

    @property
    def may_be_shared(self) -> bool:
        """Whether several captures may write at once."""
        if not self.node.shared:
            return False
        if self._described is None or self._described[0] is not self.info:
            self._described = self.info, self.plan.sink.describe()
        sink = self._described[1]
        return sink.form is Form.MESSAGES and sink.at_once(MAX) == MAX

    def _look_around(self) -> None:
        """Notice captures that come and go, and loads that differ: then the key space is divided again."""
        node, now = self.node, self.node.clock.monotonic()
        if not node.shared or not self.sharing.is_due(now):
            return
        self._link.announce(now)
        away = [peer for peer in self.peers if not peer.runs and peer not in self._link.reachable()]
        for peer in away:  # a session that has ended, with all that it prepared
            peer.asked, peer.coming, peer.needs = None, (), MAX
        gone = [peer.capture for peer in away]
        self.peers.forget(gone, now)
        self.sharing.forget(gone)
        known = self.owner.barrier.resolved if self.owner is not None else None
        self._reshare = self._reshare or self.sharing.lost(now, known)
        if self.sharing.is_owner_cut_off:
            node.lost(unreached(self.id))
        if not self._reshare and self.waiting_for != PIPELINE_STARTS:
            shared = self.may_be_shared and not self.loading
            self._reshare, prepare = self.sharing.better(now, self.resolved_ts, shared=shared)
            for peer in prepare if not self._reshare else ():
                self._link.dispatch(peer, Wish.RUN if peer.runs else Wish.PREPARE)
            for peer in self.sharing.not_wanted() if not self._reshare else ():
                self._link.dispatch(peer, Wish.RUN if peer.runs else Wish.REST)
        if self._reshare:
            event(LOG, logging.INFO, "key space is divided again", changefeed=str(self.id), why=self._reshare)

    async def _fence_all(self, plan: FeedPlan, grants: dict[str, Grant], thread: SinkThread) -> None:
        """Stop every earlier writer on every capture before anybody begins, if several are to begin.

        Not the givers alone: one that keeps its ranges may have left a transaction open, and whoever reads
        progress meanwhile would not see what others have made durable behind it. A single capture fences
        its own earlier writers and its givers by itself (`Grant.givers`).
        """
        if len(grants) == 1:
            return
        stored = await self.node.grants(self.id)
        writers = writers_of(stored)
        fence = partial(
            fence_writers, dataclasses.replace(plan, grant=grants[plan.capture]), writers, thread.answered
        )
        await thread.call(f"the fence of {', '.join(sorted(writers))}", fence)
        settled = await self.node.settle(self.id, {**stored, **grants})
        for name in grants:
            self.peers[name].grant = settled[name]

    # --- changes of the layout -----------------------------------------------------------------------

    async def _take_up_repartition(self, owner: Owner, partitions: int) -> None:
        """Go on with a change of the number of partitions that was asked for, unless the sink has it."""
        assert self._sink is not None
        changed = partitions if self._sink.is_repartitioned else 0
        wanted = 0 if self.info.repartition == partitions else self.info.repartition
        if (wanted, changed) != (self.info.repartition, self.info.partitions):
            # Also if another number was asked for meanwhile: what guards the layout goes by the sink.
            event(LOG, logging.INFO, "repartitioned", changefeed=str(self.id), partitions=partitions)
            await self._store_repartition(wanted, changed)
        if wanted:
            owner.ask_repartition(wanted)

    async def repartition(self, partitions: int) -> None:
        """Spread rows over so many partitions as soon as all before are out; durable on return.

        Carried out by this incarnation or a later one. The number there is now takes an earlier request back.
        """
        owner, sink = self.owner, self._sink
        done = sink is not None and sink.partitions == partitions
        if owner is not None and sink is not None and done and not owner.repartitions:
            before = self.info.repartition
            owner.ask_repartition(0)  # before it is stored: a tick meanwhile would carry it out
            try:
                await self._store_repartition(0, self.info.partitions)
            except TidegateError:
                if before and sink is self._sink:
                    owner.ask_repartition(before)
                raise
            partitions = 0
        else:
            await self._store_repartition(partitions, self.info.partitions)
        # The incarnation may have ended meanwhile: the next one finds what is stored.
        if owner is not None and sink is not None and sink is self._sink:
            if partitions or not owner.repartitions:
                owner.ask_repartition(partitions)
            self._wake.set()

    async def _store_repartition(self, wanted: int, partitions: int) -> None:
        """Store what is asked for, and the number that was changed to last. Raises DiskFull."""
        before = self.info
        self.info = info = dataclasses.replace(before, repartition=wanted, partitions=partitions)
        try:
            await self.node.write(Put(feed_key(self.node.cluster, self.id, "info"), info.to_bytes()))
        except TidegateError:
            if self.info is info:
                self.info = before
            raise

    async def _adopt_settings(self, delivered_to: int) -> bool:
        """If the settings have changed since the last incarnation, begin at `delivered_to` at least.

        Everything up to there is in the sink, as the old settings chose it. If the new ones let more pass,
        rows from below would follow a Resolved that covers them, or an older row of a table a newer one.

        True: the feed has been opened again at that ts, above its checkpoint, and this incarnation is over.
        """
        settings = self.info.settings
        if self._settings == settings:
            return False
        begin = self.persisted if self.loading else max(self.persisted, delivered_to)
        again = begin > self.persisted
        await self._store(begin, settings=settings)
        if again:
            event(
                LOG, logging.INFO, "checkpoint raised to what the sink has", changefeed=str(self.id), ts=begin
            )
            try:
                await self._end_incarnation()
            finally:  # whatever fails: nothing goes on from below
                await self._close()
            self.check_ended()
            await self._open()
        return again

    @contextlib.asynccontextmanager
    async def _watched_start(self) -> AsyncIterator[None]:
        """Interrupts the start within when the sink stands still in it, and raises that."""
        loop = asyncio.get_running_loop()

        async def watch(limit: asyncio.Timeout) -> None:
            while self._failure is None:
                await asyncio.sleep(LOOK_S)
                self._look_out()
            limit.reschedule(loop.time())

        try:
            async with asyncio.timeout(None) as limit:
                watching = asyncio.create_task(watch(limit))
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError:
            if self._failure is None:
                raise
            raise self._failure from None

    def _look_out(self) -> None:
        """Notice when the sink stands still."""
        watch, thread = self._watch, self._sink_thread
        hung = watch.look(thread, opened=self._sink is not None) if watch and thread else None
        if hung is not None:
            metrics.restarts.labels("pipeline").inc()
            self._fail(hung)

    async def _end_incarnation(self) -> None:
        """Stop processor and sink. A sink call that does not end is left behind: the next sink fences it."""
        if self.owner is not None:
            self.owner.sink_lost()
        sink, self._sink = self._sink, None
        self._watch = self._sink_thread = None
        if self._jobs:
            _, late = await asyncio.wait(self._jobs, timeout=JOBS_S)
            for job in late:
                job.cancel()
        await self._link.ask_to_end(Wish.PREPARE, [peer for peer in self._link.reachable() if peer.runs])
        if sink is not None:
            await sink.close()

    def _fail(self, error: TidegateError) -> None:
        """The first failure of an incarnation is the one that is shown."""
        if self._failure is None:
            self._failure = error
        self._wake.set()

    # --- the processors ------------------------------------------------------------------------------

    def _terms(self) -> Terms:
        bound = self.owner.barrier.bound if self.owner is not None else self.persisted
        return Terms(self.info.instance, self.wanted, bound, self.persisted, self.loading, self.history)

    async def _meet(self) -> None:
        def waits() -> None:
            self.waiting_for = self.waiting_for or "processor"

        await self._link.meet(waits)
        if self.waiting_for == "processor":
            self.waiting_for = ""

    def _take_message(self, peer: Peer, message: FromProcessor) -> None:
        now = self.node.clock.monotonic()
        for finding in self._reports.take(peer, message, self.owner, now, loading=self.loading):
            self._act_on(finding)

    def _act_on(self, finding: Finding) -> None:
        """What a report means for the incarnation."""
        owner, sink = self.owner, self._sink
        match finding:
            case Restarted(capture):
                self._reshare = self._reshare or f"capture {capture} has started again"
            case PartFailed(error):
                self._fail(error)
            case CannotPrepare(peer):
                self._link.dispatch(peer, Wish.REST)
            case RangesRun():
                if self.waiting_for == PIPELINE_STARTS and owner is not None and owner.is_running:
                    self.waiting_for = ""
            case MayHaveLeftovers(peer):
                if sink is not None:  # before, grants are not raised: what it holds may be ours
                    self._link.end_leftover(peer)
            case RecordsOver(keys):
                if sink is not None:
                    self._spawn(sink.forget(keys))
            case LoadDurable():
                if owner is not None and not self._storing:
                    self._storing = True
                    self._spawn(self._end_load(owner))
            case _:
                assert_never(finding)

    async def _end_load(self, owner: Owner) -> None:
        """The load is durable downstream: store that, then let the stream go on."""
        ts = self.persisted
        try:
            await self._store(ts, loaded=True)
        finally:
            self._storing = False
        self.loading, self.waiting_for = False, ""
        owner.load_done()
        event(LOG, logging.INFO, "initial load done", changefeed=str(self.id), ts=ts, rows=self.load.rows)
        self._wake.set()

    # --- the tick ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Read what DDL has come, obey the owner, tell the processor its bound."""
        owner, ddl = self.owner, self._ddl
        assert owner is not None
        assert ddl is not None
        now = self.node.clock.monotonic()
        # One without rows has nothing to say between two wake-ups, and each Resolved is a transaction.
        owner.quiet_interval_s = self.node.pulse.calmer_s(self.captured.store)
        # Not at every tick: a further bound is a message to the processor, whose answer is the next tick. But
        # before anything is done with what a processor reports, its DDL is compared with ours (`Owner.lags`).
        rest_s = self.node.pulse.rest_s(self.captured.store)
        if self._floors_moved or self._behind or owner.lags or now - self._looked_at >= rest_s:
            self._floors_moved, self._looked_at = False, now
            resolved = ddl.resolved
            if resolved > owner.barrier.resolved:
                batches, known = ddl.look(resolved, len(owner.barrier.waiting))
                owner.learn(batches, known)
            self._behind = resolved > owner.barrier.resolved
        self._log_disagreement(owner)
        for effect in owner.tick(now):
            self._spawn(self._perform(owner, effect))
        self.checkpoint = owner.checkpoint
        self.resolved_ts = max(self.resolved_ts, min(owner.resolved, owner.barrier.resolved))
        self._link.repeat()
        self._forget(owner)

    def _log_disagreement(self, owner: Owner) -> None:
        """Log it once: `waits_for` shows it as long as it lasts."""
        words = words_of_disagreement(owner.disagreement)
        if words and not self._disagrees:
            event(LOG, logging.ERROR, "checkpoint held", changefeed=str(self.id), why=words)
        self._disagrees = bool(words)

    async def _perform(self, owner: Owner, effect: Effect) -> None:
        """Carry out one effect and tell the owner."""
        sink = self._sink
        assert sink is not None
        match effect:
            case SendDdl(batch):
                if batch.error is not None:
                    raise batch.error
                self._topics |= batch.topics  # whatever becomes of the call: the next incarnation makes them
                if batch.added and not batch.events:
                    # The sink's journal will have no trace of it. After a change of settings the feed must
                    # not begin below: older rows of a table would follow those that are sent from here on.
                    await self._store_when_there_is_room(owner.checkpoint)
                await sink.send_ddl(batch)
                self._keep_ended(owner, owner.ddl_done(batch.finished_ts))
                self._log_ddl(batch.finished_ts, [e.query for e in batch.events])
            case SendResolved(ts):
                await sink.send_resolved(ts)
                owner.resolved_done(ts)
                if not self.node.ballast.trouble:
                    await self._become_if_there_is_room(self.life.progressed())
            case SendRepartition(ts, partitions):
                await sink.repartition(ts, partitions)
                owner.repartition_done(ts)
                self._repartitioned = True  # what it is now is noted by the next incarnation
            case Persist(ts):
                await self._persist(owner, ts)
                if not owner.barrier.target_ts and owner.due_in(self.node.clock.monotonic()) > 0:
                    return  # nothing waits for it, and a tick costs as much as any other
            case Finish():
                self._reached = True
        self._wake.set()

    def _keep_ended(self, owner: Owner, batch: DdlBatch) -> None:
        """Spans have ended; a DDL that waits may bring one back (a table that is recovered).

        A stripe is brought back by any new table of it, of which nobody may know yet: its record stays.
        """
        self.sharing.passed(batch)
        rules = rules_of(self.config)
        if rules is None or rules.width > 1:
            return
        for task in batch.added:
            self._ended.pop(span_key(task.id, rules.digest), None)
        for name in batch.removed:
            if owner.barrier.start_of(name) is None:
                self._ended[span_key(name, rules.digest)] = batch.finished_ts

    def _log_ddl(self, ts: int, queries: list[str]) -> None:
        self.totals.ddl_events += len(queries)
        metrics.ddl_events.labels(self.id.namespace, self.id.name).inc(len(queries))
        event(LOG, logging.INFO, "ddl delivered", changefeed=str(self.id), finished_ts=ts, count=len(queries))

    async def _persist(self, owner: Owner, ts: int) -> None:
        try:
            await self._store(ts)
        except DiskFull:
            owner.persist_failed()  # and asks for it again
            return
        except Retryable:
            owner.persist_failed()
            raise
        owner.persisted(ts)

    async def _store_when_there_is_room(self, ts: int) -> None:
        while True:
            try:
                return await self._store(ts)
            except DiskFull:
                await asyncio.sleep(FULL_S)

    async def _store(self, ts: int, *, loaded: bool = False, settings: str = "") -> None:
        """Write the checkpoint durably, or the one that is stored if that is higher."""
        async with self._status_turn:
            loaded = loaded or (self.config.tidegate.initial_load and not self.loading)
            settings = settings or self._settings
            status = FeedStatus(max(ts, self.persisted), self.resolved_ts, loaded, settings)
            await self.node.write(Put(feed_key(self.node.cluster, self.id, "status"), status.to_bytes()))
            self.persisted, self._settings = status.checkpoint_ts, settings

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the loop; its failure is the incarnation's."""
        task = asyncio.create_task(self._guard(work))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _guard(self, work: Awaitable[None]) -> None:
        try:
            await work
        except TidegateError as error:
            self._fail(error)
        except Exception as error:
            LOG.exception("changefeed %s: unexpected error", self.id)
            self._fail(unexpected(error))

    def _forget(self, owner: Owner) -> None:
        """Now and then the progress of spans that a restart cannot want any more."""
        now = self.node.clock.monotonic()
        if now - self._forgot_at < FORGET_S:
            return
        self._forgot_at = now
        gone = [key for key, ts in self._ended.items() if ts <= owner.persisted_ts]
        if gone and self._sink is not None:
            for key in gone:
                del self._ended[key]
            self._spawn(self._sink.forget(gone))

    # --- for people ----------------------------------------------------------------------------------

    def waits_for(self) -> str:
        """What the checkpoint waits for, in words; empty when nothing is known."""
        if self.life.state in (State.STOPPED, State.FAILED):
            return self._words_of_history()
        if self.waiting_for == PIPELINE_STARTS:
            running = self.peers.running
            return words_of_first(running, among=len(running)) or self.waiting_for
        if self.waiting_for or self.owner is None:
            return self.waiting_for
        if self.loading:
            return words_of_load(self.load)
        return words_of_owner(self.owner, self.peers, self.info.repartition, self.partitions)

    def _words_of_history(self) -> str:
        if self.lost:
            return ""  # its error says so
        needed = min(self.needs)
        if self.released:
            return words_of_release(self.life.state, needed, self.node.gc_ttl_s)
        return words_of_history(needed, self.history)

    @property
    def partitions(self) -> int:
        """Over how many partitions of its topic rows are spread; 0: that is not known, or there are none."""
        return self._sink.partitions if self._sink is not None else 0

    def tables_of(self, peer: Peer) -> list[int]:
        """The tables and partitions whose rows a capture delivers now."""
        return self._tables_in(peer.grant) if peer.runs and peer.grant is not None else []

    def _tables_in(self, grant: Grant) -> list[int]:
        has_tables, ranges = self.config.has_tables, grant.ranges
        return sorted({t for one in ranges for t in self.sharing.tables_in(one.id)}) if has_tables else []

    def left_on(self, capture: str) -> int:
        """How many tables a capture delivers, or may deliver: 1 if that is not known yet."""
        peer = self.peers.get(capture)
        if self.sharing.stays and capture == self.node.capture:
            return 0  # it goes with the ownership
        if not self._is_shared_out:
            return 1  # what an earlier owner gave it, it may deliver still
        if peer is None or peer.grant is None or not peer.grant.ranges:
            return 0
        return max(1, len(self._tables_in(peer.grant)))

    def left_out(self, limit: int) -> tuple[int, list[tuple[str, str]]]:
        """Tables that pass the rules and cannot be replicated: how many, and of some (name, reason)."""
        tables = self._ddl.tracker.left_out if self._ddl is not None and self._ddl.is_open else ()
        return len(tables), [(table.name, why_ineligible(table)) for table in tables[:limit]]

    def lag_ms(self, now_ms: int) -> int:
        """PD's time minus the checkpoint's."""
        return max(0, now_ms - physical_ms(self.checkpoint))
