"""Key spans in, sealed spans in the event store out.

Who does what: - the *coordinator* thread owns range locks, region feeds and pauses. It takes commands and
what streams report
  from its inbox, asks PD for regions, registers them;
- each store's *stream* (`event_feed`) matches changes, appends them to the span's store, then raises the
  frontier's marks: so a mark never speaks of rows that are not appended;
- the *sealer* thread takes the frontier's minimum of each span, seals the span's store to it, and publishes;
  woken by each rise, at most every `seal_interval_s`;
- the *keeper* thread clears locks of dead transactions in spans that stand still.

A span resumes from what its store holds. A commit is published after the store's resolved ts passes it plus
one seal: a few tens of milliseconds. What Retryable stands for is retried for ever with pauses; Fatal ends
the puller: `failure` is set and `on_failure` called.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidegate.clock import Clock, SystemClock
from tidegate.config import RAW_MODE
from tidegate.disk import DiskFull
from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.log import event
from tidegate.model import timestamp
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.puller import region_feed as feed
from tidegate.puller.admission import Admission
from tidegate.puller.block_matcher import OPEN_BYTES_MAX, Happening, Matched, Note, Registration
from tidegate.puller.event_feed import Stream
from tidegate.puller.frontier import Frontier
from tidegate.puller.keeper import STUCK_S, Stuck, keep
from tidegate.puller.range_lock import Locked, RangeLock, Stale, Wait
from tidegate.puller.region_feed import History, Reason, RegionFeed, State
from tidegate.puller.room import Deed, Room
from tidegate.puller.sink import Sink, SpanSink
from tidegate.tidb.memcomparable import decode_bytes, encode_bytes

LOG: Final = logging.getLogger(__name__)

REGIONS_PER_CALL: Final = 1024
LEAVE_S: Final = 10.0
"""How long `unwatch` waits for the coordinator, which may be asking PD."""
SEAL_REST: Final = 4
SEAL_REST_S: Final = 0.25
"""After a seal the sealer rests `SEAL_REST` times as long as it took, at most SEAL_REST_S: under a flood the
segments become large enough that few are merged, and sealing takes about a fifth of a core."""
BACKLOG_BYTES: Final = 64 << 20
"""While more waits in memory and a seal can take some of it away, streams wait for the seal."""
BACKLOG_S: Final = 2.0
TEND_S: Final = 0.25
FULL_S: Final = 0.5
"""Between two attempts to seal on a full disk."""
SILENT_S: Final = 300.0
"""A registration that is silent for so long is made anew; a live lock costs a scan."""
KEEP_S: Final = 30.0
TORN_MS: Final = 30_000
"""Where a range is so far ahead of another one of its span, what it has is kept for a restart."""
URGENT_LAG_MS: Final = 600_000
"""Ranges that lag less behind the newest are scanned before the others."""


@dataclass(eq=False, slots=True)
class _Watched:
    """One span. `number` indexes the frontier's minima and the blocks of matchers."""

    number: int
    request_id: int
    span: Span
    sink: SpanSink
    lock: RangeLock
    free_mark: int
    gone: bool = False
    paused: bool = False
    """Given up for want of room; nothing of it is asked for."""
    rows: int = 0
    bytes: int = 0
    moved_at: float = 0.0
    feeds: set[_Held] = field(default_factory=set)
    request_ids: set[int] = field(default_factory=set)
    regions: Counter[int] = field(default_factory=Counter)
    """Registrations by region id: a second one needs a request id of its own."""
    errors: dict[Reason, int] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Held:
    """A locked range with its registration."""

    watched: _Watched
    feed: RegionFeed
    stream: Stream
    mark: int
    request_id: int
    resolved: Timestamp
    registration: Registration | None = None
    """None while it waits to be admitted."""
    moved_at: float = 0.0
    """When it was last heard of, as far as `_wake_silent` has looked."""


@dataclass(frozen=True, slots=True)
class _Locate:
    """A range to be found at PD. `hint`: (region id, store id) of a leader PD may not know yet.

    `fresh`: under a request id of its own, because a store may still send for its last registration.
    """

    watched: _Watched
    bounds: Span
    history: History
    hint: tuple[int, int] = (0, 0)
    fresh: bool = False


class Puller:
    """Pulls the watched spans until `close`. One per event store."""

    def __init__(
        self,
        pd: PdClient,
        store: Sink,
        *,
        seal_interval_s: float = 0.01,
        spill: Path | None = None,
        open_bytes_max: int = OPEN_BYTES_MAX,
        kv_mode: str = "tidb",
        clock: Clock | None = None,
        seed: int | None = None,
        on_failure: Callable[[TidegateError], None] | None = None,
    ) -> None:
        """Start. `spill`: a folder, emptied now, for open transactions of more than `open_bytes_max` a
        stream.

        Without it those are forgotten and scanned again once they are committed.
        """
        if spill is not None:
            shutil.rmtree(spill, ignore_errors=True)
        self._spill, self._open_bytes_max = spill, open_bytes_max
        self._spilled = 0  # bytes of open transactions on disk, as the store was charged
        self._held_up = ""  # why open transactions wait for the disk
        self._pd, self._store, self._kv_mode = pd, store, kv_mode
        self._interval, self._clock = seal_interval_s, clock or SystemClock()
        self._random = random.Random(seed)
        self._on_failure = on_failure
        self.failure: TidegateError | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._kept_at = self._looked_at = self._clock.monotonic()
        self._newest = 0  # the newest ts a range was registered from
        self._state = threading.Lock()  # guards _spans, _watched, frontier
        self._frontier = Frontier()
        self._spans: list[_Watched | None] = []
        self._watched: dict[Span, _Watched] = {}
        self._streams: dict[int, Stream] = {}  # coordinator only
        self._held: dict[Registration, _Held] = {}  # coordinator only
        self._admission = Admission[_Held]()  # coordinator only
        self._room = Room()  # coordinator; streams read `waits`
        self._passing = threading.Lock()  # while minima are taken and sealed, nothing is shed
        self._moved = threading.Event()
        self._pressed = threading.Event()  # a stream waits: the sealer must not rest
        self._sealed = threading.Condition()
        self._seals = 0  # passes of the sealer
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._coordinate, name="puller-coordinator", daemon=True),
            threading.Thread(target=self._seal_loop, name="puller-sealer", daemon=True),
            threading.Thread(
                target=keep, args=(pd, self._stuck, self._closing), name="puller-keeper", daemon=True
            ),
        ]
        self._inbox.put(self._tend)
        for thread in self._threads:
            thread.start()

    # --- called by the owner -------------------------------------------------------------------------

    def watch(self, span: Span, start_ts: Timestamp) -> None:
        """Pull `span` above start_ts, or above what the store already holds.

        Watching it again does nothing, unless start_ts lies below what the store is complete from: then
        the span is pulled anew from there. Raises Fatal when the span's files are corrupt.
        """
        with self._state:
            known = self._watched.get(span)
        if known is not None and known.sink.complete_from <= start_ts:
            return
        self.unwatch(span)
        sink = self._store.open_span(span)
        sink.begin(start_ts)
        with self._state:
            number = len(self._spans)  # never used twice: a stream may still hold rows of an older one
            free_mark = self._frontier.hold(number, sink.resolved)
            lock = RangeLock(span, sink.ranges)
            watched = _Watched(number, next(self._numbers), span, sink, lock, free_mark)
            watched.request_ids.add(watched.request_id)
            watched.moved_at = self._clock.monotonic()
            self._spans.append(watched)
            self._watched[span] = watched
        self._moved.set()
        self._inbox.put(lambda: self._locate(_Locate(watched, span, History())))

    def unwatch(self, span: Span) -> None:
        """Stop pulling; what was sealed stays in the store. Unknown spans are ignored."""
        with self._state:
            watched = self._watched.pop(span, None)
            if watched is None:
                return
            watched.gone = True
            self._spans[watched.number] = None
        # Else the next `watch` of the span would get the very store that is about to be closed.
        left = threading.Event()
        self._inbox.put(lambda: self._leave(watched, left))
        left.wait(LEAVE_S)

    def status(self) -> list[dict[str, Any]]:
        """One line a span: id, bounds, resolved, rows, bytes, regions, errors by reason, waiting_for."""
        with self._state:
            return [self._line(w) for w in self._watched.values()]

    def close(self) -> None:
        """End all threads and streams. The store is left open."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._moved.set()
        self._pressed.set()
        self._inbox.put(None)
        for thread in self._threads:
            thread.join(10)
        self._store.charge(disk=-self._spilled)
        if self.failure is None:
            for watched in list(self._watched.values()):
                self._keep(watched)

    @property
    def trouble(self) -> str:
        """Why nothing is taken in at present, in words; empty when all is well."""
        return self._room.words or self._held_up

    def _line(self, watched: _Watched) -> dict[str, Any]:
        scanning = sum(1 for h in list(watched.feeds) if h.feed.state is State.SCANNING)
        holes = watched.lock.holes
        waiting = self._room.words if watched.paused or self._room.waits else self._held_up
        waiting = waiting or (f"{holes} ranges without a region" if holes else "")
        waiting = waiting or (f"{scanning} regions being scanned" if scanning else "")
        return {
            "span": span_id(watched.span, self._kv_mode),
            "start": watched.span.start.hex(),
            "end": watched.span.end.hex(),
            "resolved": watched.sink.resolved,
            "rows": watched.rows,
            "bytes": watched.bytes,
            "regions": len(watched.feeds),
            "errors": {str(reason): count for reason, count in watched.errors.items()},
            "waiting_for": waiting or "the upstream's resolved ts",
        }

    # --- the coordinator -----------------------------------------------------------------------------

    def _coordinate(self) -> None:
        try:
            while (task := self._next_task()) is not None:
                task()
        except TidegateError as error:
            self._fail(error)
        except Exception as error:  # a defect must stop the puller with its reason, not hang it
            self._fail(Fatal("the puller's coordinator failed", why=repr(error)))
        for stream in list(self._streams.values()):
            stream.close()
            stream.join(5)

    def _next_task(self) -> Callable[[], None] | None:
        """The next thing to do; None when the puller closes."""
        while True:
            wait = None
            if self._timers:
                wait = self._timers[0][0] - self._clock.monotonic()
                if wait <= 0:
                    return heapq.heappop(self._timers)[2]
            try:
                return self._inbox.get(timeout=wait)
            except queue.Empty:
                continue

    def _after(self, seconds: float, task: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self._clock.monotonic() + seconds, next(self._numbers), task))

    def _locate(self, task: _Locate) -> None:
        """Find the regions of a range and register each; what PD does not cover is asked again later."""
        if task.watched.gone or task.watched.paused:
            return
        at = task.bounds
        while True:
            try:
                regions = self._pd.scan_regions(_encoded(at.start), _encoded(at.end), REGIONS_PER_CALL)
            except Retryable:
                self._again(Reason.PD, _Locate(task.watched, at, task.history))
                return
            rest: Span | None = at
            for region in regions:
                limits = _region_span(region)
                part = at.intersect(limits)
                if rest is None or part is None or part.start != rest.start or not region.leader_store_id:
                    break
                self._register(task, part, region, limits)
                rest = _after(rest, part)
            if rest is None:
                return
            if rest == at:
                self._again(Reason.PD, _Locate(task.watched, at, task.history))
                return
            at = rest

    def _again(self, reason: Reason, task: _Locate) -> None:
        errors = task.watched.errors
        errors[reason] = errors.get(reason, 0) + 1
        history = replace(task.history, attempts=task.history.attempts + 1)
        after = feed.pause_s(reason, task.history.attempts, self._random)
        self._after(after, lambda: self._locate(_Locate(task.watched, task.bounds, history)))

    def _register(self, task: _Locate, bounds: Span, region: RegionInfo, limits: Span) -> None:
        """Lock a region's part of the range, with what is free beside it, and ask its store for it."""
        watched = task.watched
        store_id = task.hint[1] if task.hint[0] == region.id else region.leader_store_id
        try:
            stream = self._stream(store_id)
        except Retryable:
            self._again(Reason.PD, _Locate(watched, bounds, task.history))
            return
        with self._state:
            answer = watched.lock.lock(bounds, region.id, region.epoch_version, limits)
            if isinstance(answer, Locked):
                mark = self._frontier.hold(watched.number, answer.resolved)
                self._frontier.put(watched.free_mark, watched.lock.free_resolved)
        match answer:
            case Locked(resolved, locked):
                fresh = task.fresh or region.id in watched.regions
                request_id = next(self._numbers) if fresh else watched.request_id
                watched.request_ids.add(request_id)
                watched.regions[region.id] += 1
                one = RegionFeed(locked, region, task.history, self._random)
                held = _Held(watched, one, stream, mark, request_id, resolved)
                watched.feeds.add(held)
                self._admission.wait(store_id, held, self._is_urgent(resolved))
                self._admit(store_id)
            case Stale(rest):
                for part in rest:
                    self._again(Reason.HELD, _Locate(watched, part, task.history))
            case Wait():
                self._again(Reason.HELD, _Locate(watched, bounds, task.history))

    def _is_urgent(self, resolved: Timestamp) -> bool:
        """Whether a range is close behind the newest: it goes before those that lag far."""
        newest = max(self._newest, resolved)
        self._newest = newest
        return timestamp.physical_ms(newest) - timestamp.physical_ms(resolved) <= URGENT_LAG_MS

    def _admit(self, store_id: int) -> None:
        """Send what may be scanned now."""
        while (held := self._admission.next(store_id)) is not None:
            watched = held.watched
            held.registration = held.stream.register(
                held.feed.region, held.request_id, watched.number, held.mark, held.feed.bounds, held.resolved
            )
            self._held[held.registration] = held

    def _stream(self, store_id: int) -> Stream:
        stream = self._streams.get(store_id)
        if stream is None:
            channel = self._pd.channels.get(self._pd.store_address(store_id))
            spill = self._spill / f"{store_id}-{next(self._numbers)}" if self._spill is not None else None
            stream = Stream(
                store_id,
                channel,
                self._pd.cluster_id,
                self,
                raw=self._kv_mode == RAW_MODE,
                open_bytes_max=self._open_bytes_max,
                spill_to=spill,
            )
            self._streams[store_id] = stream
        return stream

    def _noted(self, note: Note) -> None:
        held = self._held.get(note.registration)
        if held is None:
            return
        match note.happening:
            case Happening.INITIALIZED:
                self._step(held, feed.Initialized())
            case Happening.FAILED:
                self._step(held, feed.Failed(cdcpb.Event.FromString(note.event).error))
            case Happening.VIOLATED:
                assert note.violation is not None
                self._step(held, feed.Violated(note.violation, note.commit_ts))

    def _step(self, held: _Held, event: feed.Event) -> None:
        fresh = False
        effects = held.feed.step(event)
        if isinstance(event, feed.Initialized):
            held.moved_at = 0.0
            self._ended_scan(held)
        for effect in effects:
            match effect:
                case feed.Deregister():
                    held.stream.deregister(held.request_id, held.feed.region.id)
                    fresh = True
                case feed.Relocate(reason, after_s, history, leader_store):
                    self._release(held)
                    errors = held.watched.errors
                    errors[reason] = errors.get(reason, 0) + 1
                    hint = (held.feed.region.id, leader_store) if leader_store else (0, 0)
                    task = _Locate(held.watched, held.feed.bounds, history, hint, fresh)
                    self._after(after_s, lambda task=task: self._locate(task))  # type: ignore[misc]
                case feed.Stop(error):
                    raise error

    def _ended_scan(self, held: _Held) -> None:
        self._admission.done(held.stream.store_id, held)
        self._admit(held.stream.store_id)

    def _release(self, held: _Held) -> None:
        """Give the range back with the ts it has reached."""
        if held.registration is not None:
            held.stream.matcher.stop(held.registration)
            del self._held[held.registration]
        held.watched.feeds.discard(held)
        region = held.feed.region
        with self._state:
            resolved = self._frontier.at(held.mark)
            held.watched.lock.unlock(held.feed.bounds, region.id, region.epoch_version, resolved)
            free = None if held.watched.gone else held.watched.lock.free_resolved
            self._frontier.put(held.watched.free_mark, free)
            self._frontier.release(held.mark)
        held.watched.regions[region.id] -= 1
        if not held.watched.regions[region.id]:
            del held.watched.regions[region.id]
        if held.request_id != held.watched.request_id:
            held.watched.request_ids.discard(held.request_id)
        self._ended_scan(held)

    def _leave(self, watched: _Watched, left: threading.Event) -> None:
        for held in list(watched.feeds):
            self._release(held)
        for stream in self._streams.values():
            for request_id in watched.request_ids:
                stream.deregister(request_id)
        with self._state:
            self._frontier.release(watched.free_mark)
        watched.sink.close()
        left.set()

    def _stream_lost(self, stream: Stream, error: TidegateError | None, why: str) -> None:
        if self._streams.get(stream.store_id) is stream:
            del self._streams[stream.store_id]
        self._pd.forget_store(stream.store_id)
        if error is not None:
            raise error
        waiting = self._admission.drop(stream.store_id)
        for held in [*waiting, *(h for h in self._held.values() if h.stream is stream)]:
            self._step(held, feed.StreamLost(why))

    # --- room on the store's disk, and what outlives a restart ---------------------------------------

    def _tend(self) -> None:
        """Every TEND_S: look whether the store has room; now and then keep what lies far ahead."""
        store, before = self._store, self._room.words
        if store.pressure:
            store.recover()
        spilled = self._count_spilled()
        deed = self._room.look(
            store.pressure,
            has_room=store.has_room,
            over_quota=store.over_quota,
            used=store.used_bytes,
            now=self._clock.monotonic(),
        )
        if self._room.words and not before:
            event(LOG, logging.WARNING, "puller waits", why=self._room.words)
        elif before and not self._room.words:
            event(LOG, logging.INFO, "puller goes on", after=before)
        spans = list(self._watched.values())
        if deed is Deed.SHED:
            running = (w for w in spans if not w.paused)
            most = max(running, key=lambda w: w.sink.disk_bytes + spilled[w], default=None)
            if most is not None:
                self._give_up(most)
        elif deed is Deed.RESUME:
            for watched in spans:
                if watched.paused:
                    watched.paused = False
                    self._locate(_Locate(watched, watched.span, History(), fresh=True))
        if self._clock.monotonic() - self._looked_at >= SILENT_S / 10:
            self._looked_at = self._clock.monotonic()
            self._wake_silent()
        if self._clock.monotonic() - self._kept_at >= KEEP_S:
            self._kept_at = self._clock.monotonic()
            for watched in spans:
                if self._is_torn(watched):
                    self._keep(watched)
        self._after(TEND_S, self._tend)

    def _count_spilled(self) -> Counter[_Watched]:
        """What open transactions of each span take on disk; their sum counts towards the store's quota."""
        by_stream = {stream: stream.spilled() for stream in self._streams.values()}
        found: Counter[_Watched] = Counter()
        if any(by_stream.values()):
            for registration, held in self._held.items():
                found[held.watched] += by_stream.get(held.stream, {}).get(registration.slot, 0)
        before, self._spilled = self._spilled, found.total()
        self._store.charge(disk=self._spilled - before)
        return found

    def _wake_silent(self) -> None:
        """Register anew what has been silent for long on a living stream: its store may have forgotten it.

        Silent is a live registration whose resolved ts stands, and one being scanned for which nothing comes.
        While a stream's own worker is behind, for instance because the store of events has no room, nobody
        on it is judged.
        """
        now = self._clock.monotonic()
        busy = {stream for stream in self._streams.values() if not stream.keeps_up()}
        doubted: dict[Stream, list[Registration]] = {stream: [] for stream in self._streams.values()}
        with self._state:
            seen = [(held, self._frontier.at(held.mark)) for held in self._held.values()]
        for held, ts in seen:
            assert held.registration is not None
            scanning = held.feed.state is State.SCANNING
            patience = held.feed.patience_s(SILENT_S)
            heard = held.stream.hears(held.registration) if scanning else ts != held.resolved
            if heard or not held.moved_at or held.stream in busy:
                held.resolved, held.moved_at = ts, now
            elif now - held.moved_at >= patience:
                self._wake(held, now - held.moved_at)
                continue
            if scanning and now - held.moved_at >= patience / 2 and held.stream in doubted:
                doubted[held.stream].append(held.registration)
        for stream, registrations in doubted.items():
            stream.doubt(registrations)

    def _wake(self, held: _Held, silent_s: float) -> None:
        event(
            LOG,
            logging.WARNING,
            "silent region is registered anew",
            region=held.feed.region.id,
            store=held.stream.store_id,
            state=str(held.feed.state),
            silent_s=round(silent_s),
        )
        self._step(held, feed.Silent())

    def _give_up(self, watched: _Watched) -> None:
        """Ask nothing more for a span, and forget what it holds beyond its resolved ts."""
        event(
            LOG,
            logging.WARNING,
            "span given up until there is room",
            span=span_id(watched.span, self._kv_mode),
        )
        watched.paused = True
        with self._passing:
            for held in list(watched.feeds):
                self._release(held)
            for stream in self._streams.values():
                for request_id in watched.request_ids:
                    stream.deregister(request_id)
            with self._state:
                watched.lock = RangeLock(watched.span, watched.sink.resolved)
                self._frontier.put(watched.free_mark, watched.sink.resolved)
            try:
                watched.sink.shed()
            except Retryable as error:
                event(LOG, logging.WARNING, "nothing was freed", error=error.what)

    def _ranges(self, watched: _Watched) -> list[tuple[Span, Timestamp]]:
        """How far each part of a span is, in key order."""
        with self._state:
            held = [(h.feed.bounds, self._frontier.at(h.mark)) for h in watched.feeds]
            return sorted([*held, *watched.lock.free])

    def _is_torn(self, watched: _Watched) -> bool:
        """Whether a part of a span is far ahead of another: a crash would cost all of that."""
        times = [ts for _, ts in self._ranges(watched)]
        return timestamp.physical_ms(max(times)) - timestamp.physical_ms(min(times)) > TORN_MS

    def _keep(self, watched: _Watched) -> None:
        """Let a restart go on where each range is now."""
        try:
            watched.sink.keep(self._ranges(watched))
        except Retryable as error:
            event(LOG, logging.WARNING, "a restart will pull more than it must", error=error.what)

    # --- called by streams, in their workers ---------------------------------------------------------

    def matched(self, stream: Stream, matched: Matched) -> None:
        """Append, then raise the frontier, then tell the coordinator. Waits while the store has no room."""
        takes_room = bool(matched.blocks) or self._spilled > 0
        while takes_room and (self._store.pressure or self._room.waits) and not self._room.shedding:
            if self._closing.wait(0.02):
                return
        for number, block in matched.blocks:
            watched = self._spans[number]
            if watched is not None:
                watched.sink.append(block)
                watched.rows += block.num_rows
                watched.bytes += block.nbytes
        if len(matched.marks):
            with self._state:
                self._frontier.advance(matched.marks, matched.resolved)
            self._moved.set()
        if self._store.held_bytes > BACKLOG_BYTES and self._moved.is_set():
            self._await_seal()
        for note in matched.notes:
            self._inbox.put(lambda note=note: self._noted(note))  # type: ignore[misc]

    def _await_seal(self) -> None:
        """Until the sealer has passed twice, so once from its start; what it cannot take is spilled later."""
        self._pressed.set()
        with self._sealed:
            target = self._seals + 2
            self._sealed.wait_for(lambda: self._seals >= target or not self._moved.is_set(), BACKLOG_S)

    def held_up(self, stream: Stream, error: DiskFull | None) -> bool:
        """The stream waits, and its store with it."""
        words = f"{error.what}: {error.why}" if error is not None else ""
        if error is not None and not self._held_up:
            event(LOG, logging.WARNING, "puller waits", why=words, where=error.where)
        self._held_up = words
        return error is None or not self._closing.wait(FULL_S)

    def lost(self, stream: Stream, error: TidegateError | None, why: str) -> None:
        """The coordinator registers again what was on the stream."""
        self._inbox.put(lambda: self._stream_lost(stream, error, why))

    # --- sealer and keeper ---------------------------------------------------------------------------

    def _seal_loop(self) -> None:
        try:
            while not self._closing.is_set():
                self._moved.wait()
                self._moved.clear()
                began = self._clock.monotonic()
                try:
                    self._seal()
                except Retryable:
                    self._closing.wait(FULL_S)
                    self._moved.set()
                took = self._clock.monotonic() - began
                with self._sealed:
                    self._seals += 1
                    self._sealed.notify_all()
                self._pressed.wait(min(max(self._interval, SEAL_REST * took), SEAL_REST_S))
                self._pressed.clear()
        except TidegateError as error:
            self._fail(error)
        except Exception as error:  # a broken disk, for one: say so and stop, never go on unsealed
            self._fail(Fatal("the event store cannot be written", why=repr(error), fix="make room, restart"))

    def _seal(self) -> None:
        with self._passing:
            with self._state:
                spans = [w for w in self._spans if w is not None]
                minima = self._frontier.minima(len(self._spans)).tolist()
            now = self._clock.monotonic()
            for watched in spans:
                least = minima[watched.number]
                if watched.sink.resolved < least < timestamp.MAX and not watched.gone:
                    watched.sink.seal(least)
                    watched.moved_at = now
            self._store.publish()

    def _stuck(self) -> list[Stuck]:
        """Spans that have not moved for STUCK_S; of raw keys none, which have no locks."""
        if self._kv_mode == RAW_MODE:
            return []
        with self._state:
            spans = list(self._watched.values())
        now = self._clock.monotonic()
        return [
            Stuck(watched.sink.resolved, partial(self._behind, watched))
            for watched in spans
            if now - watched.moved_at >= STUCK_S
        ]

    def _behind(self, watched: _Watched, target: Timestamp) -> list[Span]:
        """The ranges of a span that are in step and below `target`."""
        live = [held for held in list(watched.feeds) if held.feed.state is State.LIVE]
        with self._state:
            return [held.feed.bounds for held in live if self._frontier.at(held.mark) < target]

    def _fail(self, error: TidegateError) -> None:
        if self.failure is None and not self._closing.is_set():
            self.failure = error
            if self._on_failure is not None:
                self._on_failure(error)
        self._closing.set()
        self._moved.set()
        self._pressed.set()
        self._inbox.put(None)


def _encoded(key: bytes) -> bytes:
    return encode_bytes(key) if key else b""


def _region_span(region: RegionInfo) -> Span:
    start, end = region.start_key, region.end_key
    return Span(decode_bytes(start)[0] if start else b"", decode_bytes(end)[0] if end else b"")


def _after(rest: Span, part: Span) -> Span | None:
    """What remains of `rest` behind `part`, which begins where it begins."""
    if part.end == b"" or part.end == rest.end:
        return None
    return Span(part.end, rest.end)
