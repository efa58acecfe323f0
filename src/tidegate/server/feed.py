"""One changefeed's loop: opens its catalogue, starts incarnations, ticks the owner, carries out its effects.

    open catalogue -> [grant -> barrier.json -> sink -> pipeline -> tick, tick, ...] -> back-off -> [...]

Everything runs in the control process's asyncio loop; what blocks goes to threads. A tick happens every
`TICK_S` and as soon as the pipeline reports. The life (`control.changefeed`) says whether to run, and the
owner (`control.owner`) what to do; this file only performs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import random
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidegate import metrics
from tidegate.clock import Clock
from tidegate.config import config_from_json, parse_sink_uri
from tidegate.control.barrier import Barrier
from tidegate.control.changefeed import Command, Life, State
from tidegate.control.load import LoadPlan, LoadState
from tidegate.control.metadata import (
    Compare,
    Delete,
    FeedError,
    FeedId,
    FeedInfo,
    FeedStatus,
    Grant,
    MetadataStore,
    Put,
    feed_key,
    owner_key,
)
from tidegate.control.owner import Effect, Finish, Owner, Persist, SendDdl, SendResolved
from tidegate.errors import Fatal, Fenced, Retryable, TidegateError
from tidegate.eventstore import outlook
from tidegate.eventstore.manifest import MANIFEST, Manifest
from tidegate.filter.feed import FeedFilter
from tidegate.filter.tables import why_ineligible
from tidegate.kvclient.pd import PdClient
from tidegate.log import event, redact
from tidegate.model.ddl import DdlEvent
from tidegate.model.key_range import KeyRange
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import compose, physical_ms
from tidegate.mounter.schema_image import Image
from tidegate.pipeline.feed import LOAD_FILE
from tidegate.server import initial_load, processor
from tidegate.server.key_tracker import KeyTracker
from tidegate.server.processor import BarrierFile, FeedPlan, Incarnation, OpenSink, Paths, PipelineCommand
from tidegate.server.schema_tracker import (
    DDL_SPAN,
    SNAPSHOT,
    SchemaTracker,
    load_catalogue,
    save_image,
)
from tidegate.server.spans import SpanRegistry
from tidegate.sink.load_progress import load_key

LOG: Final = logging.getLogger(__name__)

TICK_S: Final = 0.02
FLOOR_S: Final = 10.0
"""How often the barrier file's start ts and `schema.bin` follow the checkpoint, so that segments can go."""
SAVE_REST: Final = 50
"""A catalogue is saved again after so many times what saving it took, at the earliest."""
SAVE_IDLE_S: Final = 600.0
"""And after so long without DDL: should files be lost, DDL is pulled anew from the saved catalogue on."""
DROP_AFTER_S: Final = 60.0
"""Segments go this long after the barrier file has moved past them: no batch planned before still runs."""
STOP_S: Final = 2.0
"""Grace for a pipeline process; it has nothing to save."""
JOBS_S: Final = 2.0
"""How long calls under way are waited for when an incarnation ends."""
LAST_WORDS_S: Final = 0.5
"""How long the socket of a dead pipeline is still read for the reason."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What the puller of one kv mode is told, and where it keeps what it captures."""

    store: Path
    spans: SpanRegistry


@dataclass(slots=True)
class Node:
    """What all feeds of a capture share."""

    cluster: int
    address: str
    owner_rev: int
    paths: Paths
    pd: PdClient
    metadata: MetadataStore
    captured: Callable[[str], Captured]
    """By kv mode; the first call for a mode starts its puller."""
    clock: Clock
    disk: Executor
    """One thread for the metadata store."""
    pipeline_command: PipelineCommand
    open_sink: OpenSink
    lost: Callable[[TidegateError], None]
    """Called when another control process has taken over."""
    next_grant: int = 1
    manifests: dict[str, tuple[tuple[int, int], Manifest]] = field(default_factory=dict)

    def token(self) -> tuple[int, int]:
        """A token above all earlier ones."""
        self.next_grant += 1
        return self.owner_rev, self.next_grant - 1

    async def write(self, *writes: Put | Delete, guards: tuple[Compare, ...] = ()) -> bool:
        """Write durably while we are the owner, else raise Fenced. False: another guard failed."""
        mine = Compare(owner_key(self.cluster), mod_revision=self.owner_rev)
        loop = asyncio.get_running_loop()
        outcome = await loop.run_in_executor(self.disk, self.metadata.transact, (mine, *guards), writes)
        if not outcome.succeeded:
            held = await loop.run_in_executor(self.disk, self.metadata.get, mine.key)
            if held is None or held.mod_revision != self.owner_rev:
                error = Fenced("Another control process owns this cluster's changefeeds now.", where=mine.key)
                self.lost(error)
                raise error
        return outcome.succeeded

    def manifest(self, store: Path, span: str) -> Manifest | None:
        """A span's manifest, read again only when the file was replaced; None while there is none."""
        try:
            status = (store / span / MANIFEST).stat()
        except FileNotFoundError:
            return None
        signature = (status.st_mtime_ns, status.st_ino)
        known = self.manifests.get(span)
        if known is None or known[0] != signature:
            known = (signature, outlook.read_manifest(store, span))
            self.manifests[span] = known
        return known[1]


@dataclass(slots=True)
class Totals:
    """What the pipeline has reported since the control process started."""

    rows: int = 0
    messages: int = 0
    bytes: int = 0
    quarantined: int = 0
    matched: int = 0
    """Images of rows that are what their checksum says; the next three: that carry none, old ones that
    may differ after a DDL, and damaged ones (mounter.integrity.Tally)."""
    unchecked: int = 0
    excused: int = 0
    mismatched: int = 0
    batches: int = 0
    batch_ms: int = 0
    lag_ms: int = 0
    ddl_events: int = 0
    starts: int = 0
    """Pipeline processes started."""


class Feed:
    """A changefeed on this node."""

    def __init__(self, node: Node, feed: FeedId, info: FeedInfo, status: FeedStatus) -> None:
        self.node, self.id, self.info = node, feed, info
        self.uri = parse_sink_uri(info.sink_uri)
        self.config = config_from_json(info.config)
        self.captured = node.captured(self.config.tidegate.kv_mode)
        self.life = Life.restored(info.state, info.error)
        self.checkpoint = checkpoint = status.checkpoint_ts
        """Durable downstream."""
        self.persisted = checkpoint
        """Durable in the metadata store: where a restart begins; never above `checkpoint`."""
        self.resolved_ts = checkpoint
        self.loading = self.config.tidegate.initial_load and not status.loaded
        """Whether the rows there are at `checkpoint` are still to be delivered; nothing above it is then."""
        self.load = LoadState()
        """How far that is, or was."""
        self._load_plan: LoadPlan | None = None
        self.waiting_for = ""
        self.totals = Totals()
        self.owner: Owner | None = None
        self._drop_rows = self._drop_ddl = 0
        self._filter = FeedFilter.of(self.config)
        self._tracker: SchemaTracker | KeyTracker | None = None
        self._barrier: BarrierFile | None = None
        self._incarnation: Incarnation | None = None
        self._grant: Grant | None = None
        self._failure: TidegateError | None = None
        self._reached = False
        self._wake = asyncio.Event()
        self._jobs: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._floors: list[tuple[float, int, int]] = []
        self._floor_at = 0.0
        self._catalogue_to = 0
        self._ended: dict[str, int] = {}
        """Spans whose progress is still kept at the sink, and the ts at which they ended."""
        self._saving: asyncio.Task[None] | None = None
        self._save_at = 0.0
        self._gone = asyncio.Event()

    # --- life ----------------------------------------------------------------------------------------

    @property
    def plan(self) -> FeedPlan:
        """What the incarnations have in common."""
        node, info = self.node, self.info
        paths = dataclasses.replace(node.paths, store=self.captured.store)
        return FeedPlan(node.cluster, self.id, self.uri, self.config, info.instance, paths, self.loading)

    @property
    def _ddl_span(self) -> Span:
        """Whose resolved ts bounds all others': that of DDL, or of a feed of keys the only one there is."""
        return DDL_SPAN if self.config.has_tables else KeyRange.of(self.config).span

    @property
    def _ddl_span_id(self) -> str:
        return span_id(self._ddl_span, self.config.tidegate.kv_mode)

    def start(self) -> None:
        """Run the loop, unless the feed's life has ended or it runs already."""
        if not self.life.ended and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(), name=f"feed {self.id}")

    async def stop(self, *, forget: bool = False) -> None:
        """End the loop and everything it started; the stored state stays. `forget`: for ever."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._saving is not None:
            await asyncio.wait([self._saving])
        self._close(forget=forget)

    def _close(self, *, forget: bool = False) -> None:
        """Let go of catalogue and spans; the next start opens them at the stored checkpoint."""
        self.captured.spans.release(self.id, forget=forget)
        self.owner = self._tracker = self._barrier = None
        self.waiting_for = ""

    async def command(self, command: Command) -> None:
        """Pause or resume, durably. Raises InvalidInput when the feed's state does not allow it."""
        life = self.life.commanded(command)
        if life is self.life:
            return
        if life.ended:
            await self.stop()
        await self._become(life)
        self.start()

    async def update(self, info: FeedInfo) -> None:
        """Take on other settings, durably; the feed must not run. They are in force when it is resumed."""
        await self.stop()
        await self.node.write(Put(feed_key(self.node.cluster, self.id, "info"), info.to_bytes()))
        self.info, self.uri = info, parse_sink_uri(info.sink_uri)
        self.config = config_from_json(info.config)
        self._filter = FeedFilter.of(self.config)

    def warn(self, error: FeedError) -> None:
        """Show a trouble that does not stop the pipeline."""
        if self.life.runs:
            self._spawn(self._become(self.life.warned(error)))

    async def lose_history(self, safe_point: int) -> None:
        """Upstream no longer has what the feed would need: it cannot go on."""
        if self.life.ended and self.life.state is not State.STOPPED:
            return
        await self.stop()
        error = Fatal(
            f"[CDC:ErrSnapshotLostByGC]upstream's GC safepoint {safe_point} has passed the checkpoint.",
            where=f"changefeed {self.id}, checkpoint {self.persisted}",
            fix="remove the changefeed and create it again from a later start-ts",
        )
        await self._become(Life(State.FAILED, self._feed_error(error)))

    async def _become(self, life: Life) -> None:
        """Take on a new life; state and error are stored when they changed."""
        changed = (life.state, life.error) != (self.life.state, self.life.error)
        before, self.life = self.life.state, life
        if changed:
            if before is not life.state:
                event(LOG, logging.INFO, "changefeed state", changefeed=str(self.id), state=str(life.state))
            self.info = dataclasses.replace(self.info, state=str(life.state), error=life.error)
            key = feed_key(self.node.cluster, self.id, "info")
            await self.node.write(Put(key, self.info.to_bytes()))

    async def _run(self) -> None:
        try:
            while not self.life.ended:
                try:
                    if self.life.runs:
                        await self._try()
                    await self._back_off()
                except Retryable as error:
                    event(
                        LOG, logging.ERROR, "metadata store failed", changefeed=str(self.id), error=str(error)
                    )
                    await asyncio.sleep(1.0)
        except Fenced:
            event(LOG, logging.ERROR, "changefeed stops: not the owner", changefeed=str(self.id))
        finally:
            if self.life.ended:
                self._close()

    async def _back_off(self) -> None:
        while self.life.state is State.PENDING:
            self.waiting_for = "back-off"
            await asyncio.sleep(max(0.0, self.life.retry_at - self.node.clock.monotonic()))
            await self._become(self.life.ticked(self.node.clock.monotonic()))

    async def _try(self) -> None:
        """Replicate until something fails or the target is reached."""
        try:
            await self._replicate()
            await self._become(self.life.finished())
        except Exception as error:
            shown = error if isinstance(error, TidegateError) else _unexpected(error)
            event(LOG, logging.WARNING, "changefeed failed", changefeed=str(self.id), error=str(shown))
            await self._become(
                self.life.failed(
                    self._feed_error(shown),
                    retry=isinstance(shown, Retryable | Fenced),
                    now=self.node.clock.monotonic(),
                    stuck_s=self.config.error_stuck_s,
                    jitter=random.random(),
                )
            )

    def _feed_error(self, error: TidegateError) -> FeedError:
        code = {Retryable: "CDC:ErrRetryable", Fatal: "CDC:ErrFatal"}.get(type(error), "CDC:ErrChangefeed")
        named = re.match(r"\[(CDC:\w+)\]", error.what)
        code = named[1] if named else code
        return FeedError(redact(str(error)), code, self.node.clock.now_ms(), self.node.address)

    # --- replication ---------------------------------------------------------------------------------

    async def _replicate(self) -> None:
        if self.owner is None:
            await self._open()
        if self.loading:
            await self._plan_load()
        try:
            await self._start_incarnation()
            while not self._reached:
                self._tick()
                if self._failure is not None:
                    raise self._failure
                await self._pause()
        finally:
            await self._end_incarnation()

    async def _pause(self) -> None:
        """Until the next tick: at once when something happened, else TICK_S."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), TICK_S)
        self._wake.clear()

    async def _open(self) -> None:
        """Catalogue, spans and owner at the stored checkpoint."""
        tracker = await self._open_tracker()
        ddl_span = self._ddl_span_id
        self._catalogue_to = tracker.resolved_ts
        self.captured.spans.hold(self.id, self._ddl_span, tracker.resolved_ts)
        self.waiting_for = "DDL puller" if self.config.has_tables else "puller"
        while self._frontier().get(ddl_span, 0) < max(self.persisted, tracker.resolved_ts):
            await asyncio.sleep(TICK_S)
        resolved = self._frontier()[ddl_span]
        batches, known = await asyncio.to_thread(tracker.begin, self.persisted, resolved)
        barrier = Barrier(self.persisted, self.info.target_ts, held_at=self.persisted if self.loading else 0)
        barrier.learn(batches, known)
        self._tracker, self._save_at = tracker, self.node.clock.monotonic()
        interval = self.config.tidegate.resolved_interval
        self.owner = Owner(self.persisted, tracker.initial, barrier, resolved_interval_s=interval)
        for task in (*tracker.initial, *(task for batch in batches for task in batch.added)):
            self.captured.spans.hold(self.id, task.span, task.start_ts)

    async def _open_tracker(self) -> SchemaTracker | KeyTracker:
        if not self.config.has_tables:
            return KeyTracker(self._ddl_span, self.config.tidegate.kv_mode, self.persisted)
        snapshot = self.plan.folder / SNAPSHOT
        self.waiting_for = "catalogue from upstream"
        if not snapshot.exists():
            await asyncio.to_thread(save_catalogue, self.node.pd, self.persisted, snapshot)
        return await asyncio.to_thread(SchemaTracker.load, snapshot, self.captured.store, self._filter)

    async def _plan_load(self) -> None:
        """The ranges of the initial load, of the tables there are at the checkpoint."""
        assert self._tracker is not None
        self.waiting_for = "regions from PD"
        tables = self._tracker.initial
        self._load_plan = await asyncio.to_thread(
            initial_load.plan_load, self.node.pd, self.persisted, tables, self.plan.folder
        )
        self.load = dataclasses.replace(self.load, ranges=len(self._load_plan.ranges))

    def _definitions(self) -> list[DdlEvent]:
        """What is told of the tables before their rows."""
        assert isinstance(self._tracker, SchemaTracker)
        return initial_load.definitions(self._tracker.followed(self.persisted), self._filter, self.persisted)

    def _frontier(self) -> dict[str, int]:
        return outlook.read_frontier(self.captured.store)

    async def _start_incarnation(self) -> None:
        """Grant, files, sink, process: in this order."""
        assert self.owner is not None
        self._failure, self._reached = None, False
        self._wake.clear()
        self._gone.clear()
        self._grant = grant = await self._raise_grant()
        self.owner.granted(grant.token, grant.incarnation)
        path = self.plan.folder / "barrier.json"
        self._barrier = BarrierFile(path, grant.token, self.info.target_ts, self._ddl_span_id)
        self._barrier.write(self.owner.barrier.bound, self.owner.spans)
        first = await asyncio.to_thread(self._definitions) if self.loading else []
        self.waiting_for = "sink"
        self._incarnation = await processor.start(
            self.plan, grant, self.node.pipeline_command, self.node.open_sink, first
        )
        self.waiting_for = "pipeline process"
        self._incarnation.ended.add_done_callback(self._on_exit)
        self.totals.starts += 1

    async def _raise_grant(self) -> Grant:
        """The next incarnation's grant, durable before anything acts under it."""
        key = feed_key(self.node.cluster, self.id, "grant")
        loop = asyncio.get_running_loop()
        stored = await loop.run_in_executor(self.node.disk, self.node.metadata.get, key)
        old = Grant.from_bytes(stored.value) if stored else None
        token = self._grant.token if self._grant else self.node.token()
        grant = Grant(
            token,
            (old.incarnation if old else 0) + 1,
            max(self.plan.slots, old.slots if old else 0),
        )
        await self.node.write(Put(key, grant.to_bytes()))
        return grant

    async def _end_incarnation(self) -> None:
        """Stop process and sink. A sink call that does not end is left behind: the next sink fences it."""
        if self.owner is not None:
            self.owner.sink_lost()
        incarnation, self._incarnation = self._incarnation, None
        if self._jobs:
            _, late = await asyncio.wait(self._jobs, timeout=JOBS_S)
            for job in late:
                job.cancel()
        if incarnation is not None:
            await incarnation.stop(STOP_S)

    def _on_exit(self, ended: asyncio.Task[int]) -> None:
        """The process is gone: its last words tell why, else its exit code does."""
        if self._incarnation is not None and self._incarnation.ended is ended and not ended.cancelled():
            self._spawn(self._hear_last_words(ended.result()))

    async def _hear_last_words(self, code: int) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), LAST_WORDS_S)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._fail(Retryable("The pipeline process has ended.", where=str(self.plan.folder / "log"), why=how))

    def _fail(self, error: TidegateError) -> None:
        """The first failure of an incarnation is the one that is shown."""
        if self._failure is None:
            self._failure = error
        self._wake.set()

    # --- what the pipeline says ----------------------------------------------------------------------

    def hear(self, message: Mapping[str, Any]) -> None:
        """A message of a pipeline process of this feed; one of an old incarnation changes nothing."""
        owner, grant, incarnation = self.owner, self._grant, self._incarnation
        if owner is None or grant is None or message.get("incarnation") != grant.incarnation:
            return
        match message["type"]:
            case "started":
                if incarnation is not None:
                    owner.report(grant.token, grant.incarnation, self._first_offsets(message))
                    owner.sink_open(incarnation.resolved_journal)
                    self.waiting_for = ""
                    event(LOG, logging.INFO, "pipeline started", changefeed=str(self.id))
            case "checkpoint":
                first, second = message["token"]
                owner.report((first, second), message["incarnation"], message["spans"])
                self._count(message.get("stats", {}))
            case "load":
                self._count(message["stats"])
                self._hear_load(owner, initial_load.told_state(message["state"]))
            case "error":
                kind = Retryable if message.get("retry", True) else Fatal
                parts = {name: str(message.get(name, "")) for name in ("where", "why", "fix")}
                self._fail(kind(str(message.get("what", "The pipeline failed.")), **parts))
            case "gone":
                self._gone.set()
        self._wake.set()

    def _hear_load(self, owner: Owner, state: LoadState) -> None:
        self.load = state
        if self.loading and state.finished:
            self._spawn(self._end_load(owner))

    async def _end_load(self, owner: Owner) -> None:
        """The load is durable downstream: store that, then let the stream go on."""
        ts, plan = self.persisted, self._load_plan
        assert plan is not None
        status = FeedStatus(ts, self.resolved_ts, loaded=True)
        await self.node.write(Put(feed_key(self.node.cluster, self.id, "status"), status.to_bytes()))
        self.loading, self.waiting_for = False, ""
        owner.load_done()
        event(LOG, logging.INFO, "initial load done", changefeed=str(self.id), ts=ts, rows=self.load.rows)
        (self.plan.folder / LOAD_FILE).unlink(missing_ok=True)
        if self._incarnation is not None:
            await self._incarnation.forget(load_key(one.id) for one in plan.ranges)

    def _first_offsets(self, message: Mapping[str, Any]) -> Mapping[str, int]:
        """Where the incarnation begins: the sink's own progress, which may be ahead of what was reported.

        In the message, or in the `start.json` that the pipeline wrote before it.
        """
        spans: Mapping[str, int] | None = message.get("spans")
        if spans is None:
            found = json.loads((self.plan.folder / "start.json").read_text())
            spans = {name: int(ts) for name, ts in found.items() if name != "token"}
        return spans

    def _count(self, stats: Mapping[str, int]) -> None:
        totals, labels = self.totals, (self.id.namespace, self.id.name)
        for name, counter in (
            ("rows", metrics.rows),
            ("messages", metrics.messages),
            ("bytes", metrics.sink_bytes),
        ):
            amount = stats.get(name, 0)
            setattr(totals, name, getattr(totals, name) + amount)
            counter.labels(*labels).inc(amount)
        totals.quarantined += stats.get("quarantined", 0)
        for name in metrics.INTEGRITY_OUTCOMES:
            amount = stats.get(name, 0)
            setattr(totals, name, getattr(totals, name) + amount)
            metrics.integrity_images.labels(*labels, name).inc(amount)
        if stats.get("mismatched", 0):
            event(
                LOG,
                logging.WARNING,
                "rows do not match their checksums",
                changefeed=str(self.id),
                images=stats["mismatched"],
                quarantine=str(self.plan.folder / "quarantine.jsonl"),
            )
        totals.batches += 1
        totals.batch_ms, totals.lag_ms = stats.get("batch_ms", 0), stats.get("lag_ms", 0)
        metrics.batch_s.labels(*labels).observe(totals.batch_ms / 1000)

    # --- the tick ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Read what has arrived, advance what is idle, obey the owner, tell the pipeline its bound."""
        owner, tracker, barrier = self.owner, self._tracker, self._barrier
        assert owner is not None
        assert tracker is not None
        assert barrier is not None
        frontier = self._frontier()
        ddl_resolved = frontier.get(self._ddl_span_id, 0)
        if ddl_resolved > owner.barrier.resolved:
            batches, known = tracker.catch_up(ddl_resolved, len(owner.barrier.waiting))
            owner.barrier.learn(batches, known)
            for batch in batches:
                # Pulled from now on, delivered from the DDL on.
                for task in batch.added:
                    self.captured.spans.hold(self.id, task.span, task.start_ts)
        self._advance_idle(owner, frontier)
        for effect in owner.tick(self.node.clock.monotonic()):
            self._spawn(self._perform(owner, effect))
        self.checkpoint = owner.checkpoint
        self._move_floor(owner, tracker, barrier)
        barrier.write(owner.barrier.bound, owner.spans)
        self._note(owner, frontier)

    def _advance_idle(self, owner: Owner, frontier: Mapping[str, int]) -> None:
        for span, after, upto in owner.idle_ranges(frontier):
            manifest = self.node.manifest(self.captured.store, span)
            if manifest is not None and not outlook.pending(manifest, after, upto)[0]:
                owner.idle(span, after, upto)

    def _note(self, owner: Owner, frontier: Mapping[str, int]) -> None:
        resolved = min((frontier.get(name, 0) for name in owner.spans), default=owner.barrier.resolved)
        self.resolved_ts = max(self.resolved_ts, min(resolved, owner.barrier.resolved))

    async def _perform(self, owner: Owner, effect: Effect) -> None:
        """Carry out one effect and tell the owner."""
        incarnation = self._incarnation
        assert incarnation is not None
        match effect:
            case SendDdl(batch):
                if batch.error is not None:
                    raise batch.error
                await incarnation.send_ddl(batch)
                _, removed = owner.ddl_done(batch.finished_ts)
                for name in removed:
                    self._let_go(owner, name, batch.finished_ts)
                self._log_ddl(batch.finished_ts, [e.query for e in batch.events])
            case SendResolved(ts):
                await incarnation.send_resolved(ts)
                owner.resolved_done(ts)
                await self._become(self.life.progressed())
            case Persist(ts):
                await self._persist(owner, ts)
            case Finish():
                self._reached = True
        self._wake.set()

    def _let_go(self, owner: Owner, span: str, ended: int) -> None:
        """A span has ended; a DDL that waits may bring it back (a table that is recovered)."""
        again = owner.barrier.start_of(span)
        self.captured.spans.drop(self.id, span, again_from=again)
        if again is None:
            self._ended[span] = ended

    def _log_ddl(self, ts: int, queries: list[str]) -> None:
        self.totals.ddl_events += len(queries)
        metrics.ddl_events.labels(self.id.namespace, self.id.name).inc(len(queries))
        event(LOG, logging.INFO, "ddl delivered", changefeed=str(self.id), finished_ts=ts, count=len(queries))

    async def _persist(self, owner: Owner, ts: int) -> None:
        loaded = self.config.tidegate.initial_load and not self.loading
        status = FeedStatus(ts, self.resolved_ts, loaded)
        try:
            await self.node.write(Put(feed_key(self.node.cluster, self.id, "status"), status.to_bytes()))
        except Retryable:
            owner.persist_failed()
            raise
        owner.persisted(ts)
        self.persisted = ts

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
            self._fail(_unexpected(error))

    # --- letting go of old segments ------------------------------------------------------------------

    def _move_floor(self, owner: Owner, tracker: SchemaTracker | KeyTracker, barrier: BarrierFile) -> None:
        """Now and then move what readers start from, so that old segments can be dropped a while later."""
        now = self.node.clock.monotonic()
        if now - self._floor_at < FLOOR_S:
            return
        self._floor_at = now
        if self._save_due(owner.persisted_ts, now):
            image = tracker.image(owner.persisted_ts)
            self._saving = asyncio.create_task(self._save(image), name=f"catalogue of {self.id}")
        self._forget_progress(owner.persisted_ts)
        barrier.write(owner.barrier.bound, owner.spans, raise_starts=True)
        self._floors.append((now, owner.persisted_ts, self._catalogue_to))
        while self._floors and now - self._floors[0][0] >= DROP_AFTER_S:
            _, self._drop_rows, self._drop_ddl = self._floors.pop(0)

    def _forget_progress(self, checkpoint: int) -> None:
        """Of spans that a restart cannot want any more."""
        incarnation, gone = self._incarnation, [s for s, ts in self._ended.items() if ts <= checkpoint]
        if gone and incarnation is not None:
            for span in gone:
                del self._ended[span]
            self._spawn(incarnation.forget(gone))

    def _save_due(self, checkpoint: int, now: float) -> bool:
        """When DDL has passed the checkpoint; else seldom, so that the catalogue is not far behind."""
        if not self.config.has_tables or (self._saving is not None and not self._saving.done()):
            return False
        ddl = self.node.manifest(self.captured.store, self._ddl_span_id)
        passed = ddl is not None and outlook.pending(ddl, self._catalogue_to, checkpoint)[0] > 0
        return now >= (self._save_at if passed else self._save_at + SAVE_IDLE_S)

    async def _save(self, image: Image) -> None:
        """Write `schema.bin` beside the loop; the larger it is, the longer the rest after it."""
        clock = self.node.clock
        began = clock.monotonic()
        try:
            await asyncio.to_thread(save_image, self.plan.folder / SNAPSHOT, image)
        except OSError as error:
            self._fail(
                Retryable("The catalogue cannot be saved.", where=str(self.plan.folder), why=str(error))
            )
            return
        self._catalogue_to = image.ts
        self._save_at = clock.monotonic() + SAVE_REST * (clock.monotonic() - began)

    @property
    def floor(self) -> int:
        """What lies at or below this nobody needs for the feed any more, were a span's files to go at once.

        A feed that does not run needs what is above its checkpoint when it is resumed.
        """
        return self.drop_below[0] if self.owner is not None else max(0, self.persisted - self._retained)

    @property
    def drop_below(self) -> tuple[int, int]:
        """Up to where rows, and DDL entries, may go: delivered, past every reader, not retained."""
        kept = self._retained
        return max(0, self._drop_rows - kept), max(0, self._drop_ddl - kept)

    @property
    def _retained(self) -> int:
        return compose(round(self.config.tidegate.retention * 1000))

    # --- for people ----------------------------------------------------------------------------------

    @property
    def shown_state(self) -> State:
        """As TiCDC shows it: waiting for a retry is a warning."""
        return State.WARNING if self.life.state is State.PENDING else self.life.state

    def waits_for(self) -> str:
        """What the checkpoint waits for, in words; empty when nothing is known."""
        if self.waiting_for or self.owner is None or self._tracker is None:
            return self.waiting_for
        if self.loading:
            return f"initial load: {self.load.done} of {self.load.ranges} ranges"
        batch = self.owner.barrier.next
        slowest = self.owner.slowest()
        if batch is not None and batch.events:
            return f"DDL at {batch.finished_ts}: {batch.events[0].query[:80]}"
        if slowest is None or self.owner.durable(slowest.id) >= self.owner.barrier.bound:
            return "resolved ts of the DDL span"
        name = self._tracker.name_of(slowest.physical_id) or f"table id {slowest.physical_id}"
        return f"span {slowest.id} ({name})"

    def left_out(self, limit: int) -> tuple[int, list[tuple[str, str]]]:
        """Tables that pass the rules and cannot be replicated: how many, and of some (name, reason)."""
        tables = self._tracker.left_out if self._tracker else ()
        return len(tables), [(table.name, why_ineligible(table)) for table in tables[:limit]]

    def lag_ms(self, now_ms: int) -> int:
        """PD's time minus the checkpoint's."""
        return max(0, now_ms - physical_ms(self.checkpoint))


def save_catalogue(pd: PdClient, ts: int, path: Path) -> None:
    """Read upstream's catalogue at `ts` and keep it as `schema.bin`."""
    save_image(path, load_catalogue(pd, ts).image(ts))


def _unexpected(error: Exception) -> TidegateError:
    return Retryable("An unexpected error stopped the changefeed.", why=f"{type(error).__name__}: {error}")
