"""Key spans in, sealed spans in the event store out.

Who does what:

- the *coordinator* thread owns range locks, region feeds and pauses. It takes commands and what streams
  report from its inbox, and registers ranges at the stores that lead them;
- the *locator* thread asks PD which stores these are, for many ranges at a time, unless a store has said so;
- each store's *stream* (`event_feed`) matches changes, appends them to the span's store, then raises the
  frontier's marks: so a mark never speaks of rows that are not appended;
- the *sealer* thread (`sealer`) takes the frontier's minimum of each span, seals the span's store to it, and
  publishes; woken by each rise, at most every `seal_interval_s`;
- the *keeper* thread clears locks of dead transactions in spans that stand still.

A span resumes from what its store holds. A commit is published after the store's resolved ts passes it plus
one seal: a few tens of milliseconds. What Retryable stands for is retried for ever with pauses; Fatal ends
the puller: `failure` is set and `on_failure` called.
"""

from __future__ import annotations

import itertools
import logging
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidegate.clock import Clock, SystemClock
from tidegate.config.values import RAW_MODE, TABLE_MODE, TXN_MODE
from tidegate.disk import DiskFull
from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.log import event
from tidegate.model import timestamp
from tidegate.model.key_range import scope_of
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.puller import region_feed as feed
from tidegate.puller import silence
from tidegate.puller.admission import Admission, Urgency
from tidegate.puller.cover import Found, Part, Uncovered, limits_of
from tidegate.puller.event_feed import Stream
from tidegate.puller.frontier import Frontier
from tidegate.puller.inbox import Inbox
from tidegate.puller.keeper import STUCK_S, Behind, Stuck, keep
from tidegate.puller.locator import Locator
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.match.matched import Happening, Matched, Note, Registration
from tidegate.puller.range_lock import Locked, RangeLock, Stale, Wait
from tidegate.puller.region_feed import History, Reason, RegionFeed, State
from tidegate.puller.room import Deed, Room, greediest
from tidegate.puller.sealer import Sealer
from tidegate.puller.sink import Sink
from tidegate.puller.watched import Held, Locate, Watched
from tidegate.tidb.keys import stripe_ids

LOG: Final = logging.getLogger(__name__)

LEAVE_S: Final = 10.0
"""How long `unwatch` waits for the coordinator."""
TEND_S: Final = 0.25
FULL_S: Final = 0.5
"""Between two attempts to spill on a full disk."""
KEEP_S: Final = 30.0
TORN_MS: Final = 30_000
"""Where a range is so far ahead of another one of its span, what it has is kept for a restart."""
BEHIND_S: Final = 0.5
"""How often ranges are looked for that hold back a span of several tables."""
BEHIND_MS: Final = 1_000
BEHIND_MAX: Final = 64
"""With more ranges than these so far behind it is not one table's trouble: all wait for them."""


class Puller:
    """Pulls the watched spans until `close`. One per event store."""

    def __init__(
        self,
        pd: PdClient,
        store: Sink,
        *,
        seal_interval_s: float = 0.01,
        spill: Path | None = None,
        memory: StreamMemory | None = None,
        kv_mode: str = "tidb",
        clock: Clock | None = None,
        seed: int | None = None,
        on_failure: Callable[[TidegateError], None] | None = None,
        on_refused: Callable[[Span, Timestamp, Timestamp], None] | None = None,
        on_watch: Callable[[Span, Timestamp], None] | None = None,
    ) -> None:
        """Start. `memory`: what all streams of the process share, those of other pullers as well. `spill`:
        a folder, emptied now, for open transactions beyond it. `on_watch` is told from where each span that
        the store has a part of is wanted; the part is kept then, although it may begin later.

        Without the folder those are forgotten and scanned again once they are committed. Without `on_watch`
        a span that is wanted from before its part is pulled again from there, all of it.
        """
        if spill is not None:
            shutil.rmtree(spill, ignore_errors=True)
        self._spill, self._memory = spill, memory or StreamMemory()
        self._spilled = 0  # bytes of open transactions on disk, as the store was charged
        self._held_up = ""  # why open transactions wait for the disk
        self._lost_why: dict[int, str] = {}  # by store, since a scan of it last ended; coordinator only
        self._pd, self._store, self._kv_mode = pd, store, kv_mode
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)
        self._on_failure, self._on_refused, self._on_watch = on_failure, on_refused, on_watch
        self._safe_points: dict[int, Timestamp] = {}  # by keyspace, -1: all the others
        self._refused: list[Locate] = []  # coordinator only
        self.failure: TidegateError | None = None
        self._inbox = Inbox(self._clock)
        self._numbers = itertools.count(1)
        self._kept_at = self._looked_at = self._clock.monotonic()
        self._parted_at = float("-inf")
        self._urgency = Urgency()  # coordinator only
        self._state = threading.Lock()  # guards _spans, _watched, frontier
        self._frontier = Frontier()
        self._spans: list[Watched | None] = []
        self._watched: dict[Span, Watched] = {}
        self._streams: dict[int, Stream] = {}  # coordinator only
        self._held: dict[Registration, Held] = {}  # coordinator only
        self._admission = Admission[Held]()  # coordinator only
        self._room = Room()  # coordinator; streams read `waits`
        self._closing = threading.Event()
        self._sealer = Sealer(store, self._minima, seal_interval_s, self._clock, self._closing, self._fail)
        self._locator = Locator(pd, lambda found: self._inbox.put(lambda: self._located(found)), self._fail)
        self._threads = [
            threading.Thread(target=self._coordinate, name="puller-coordinator", daemon=True),
            threading.Thread(target=self._sealer.run, name="puller-sealer", daemon=True),
            threading.Thread(
                target=self._locator.run, args=(self._closing,), name="puller-locator", daemon=True
            ),
            threading.Thread(
                target=keep, args=(pd, self._stuck, self._closing), name="puller-keeper", daemon=True
            ),
        ]
        self._inbox.put(self._tend)
        for thread in self._threads:
            thread.start()

    # --- called by the owner -------------------------------------------------------------------------

    def watch(self, span: Span, start_ts: Timestamp, *, guarded: bool = True) -> None:
        """Pull `span` above start_ts, or above what the store already holds.

        Watching it again does nothing, unless start_ts lies below what the store is complete from: then what
        is missing is left to `on_watch`, or all of it is pulled again. A start that the store does not hold
        and that lies below the safe point is refused, and the span left as it is, unless it is not `guarded`.
        Raises Fatal when the span's files are corrupt.
        """
        with self._state:
            known = self._watched.get(span)
        if known is not None and known.guarded != guarded:
            known.guarded = guarded
            self._inbox.put(self._try_refused)
        if known is not None and known.sink.complete_from <= start_ts:
            if self._on_watch is not None:
                self._on_watch(span, start_ts)
            return
        sink = known.sink if known is not None else self._store.open_span(span)
        if (
            guarded
            and start_ts < self._safe_point(span)
            and not sink.complete_from <= start_ts <= sink.resolved
        ):
            self._tell_refused(span, start_ts)
            return
        begin = start_ts
        if self._on_watch is not None and start_ts < sink.complete_from < sink.resolved:
            # The part continues, because others read it: if all of it were pulled again, they would wait.
            if known is not None:
                self._on_watch(span, start_ts)
                return
            begin = sink.resolved
        self.unwatch(span)
        sink = self._store.open_span(span)
        sink.begin(begin)
        if self._on_watch is not None:
            # Also where nothing is missing: what was wanted when it was watched before is no longer wanted.
            self._on_watch(span, start_ts)
        with self._state:
            number = len(self._spans)  # never used twice: a stream may still hold rows of an older one
            free_mark = self._frontier.hold(number, sink.resolved)
            lock = RangeLock(span, sink.ranges)
            records = self._kv_mode == TABLE_MODE and len(stripe_ids(span)) > 0
            watched = Watched(
                number, next(self._numbers), span, sink, lock, free_mark, records=records, guarded=guarded
            )
            watched.request_ids.add(watched.request_id)
            watched.moved_at = self._clock.monotonic()
            self._spans.append(watched)
            self._watched[span] = watched
        self._sealer.stir()
        self._sealer.moved()
        self._inbox.put(lambda: self._locate(Locate(watched, span, History())))

    def keep_above(self, safe_point: Timestamp, keyspace_id: int = -1) -> None:
        """Register nothing below but what is not guarded: upstream keeps its history from there.

        It goes for the spans of one keyspace, or (-1) for those of all that are not named.
        """
        before = self._safe_points.get(keyspace_id, 0)
        self._safe_points[keyspace_id] = safe_point
        if safe_point < before:
            self._inbox.put(self._try_refused)

    def _safe_point(self, span: Span) -> Timestamp:
        known = self._safe_points
        return known.get(scope_of(span, self._kv_mode), known.get(-1, 0))

    def unwatch(self, span: Span) -> None:
        """Stop pulling; what was sealed stays in the store. Unknown spans are ignored."""
        with self._state:
            watched = self._watched.pop(span, None)
            if watched is None:
                return
            watched.gone = True
            self._spans[watched.number] = None
        # Otherwise the next `watch` of the span would get the store that is about to be closed.
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
        self._sealer.wake()
        self._locator.close()
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

    def _line(self, watched: Watched) -> dict[str, Any]:
        waiting = self._room.words if watched.paused or self._room.waits else self._held_up
        return watched.line(self._kv_mode, waiting)

    # --- the coordinator -----------------------------------------------------------------------------

    def _coordinate(self) -> None:
        try:
            while (task := self._inbox.take()) is not None:
                task()
        except TidegateError as error:
            self._fail(error)
        except Exception as error:  # a defect must stop the puller with its reason, not hang it
            self._fail(Fatal("the puller's coordinator failed", why=repr(error)))
        for stream in list(self._streams.values()):
            stream.close()
            stream.join(5)

    def _locate(self, task: Locate) -> None:
        """Register a range where its store said that its leader is; else ask PD for its regions."""
        if task.watched.gone or task.watched.paused:
            return
        region = task.region
        if region is not None and self._pd.known_address(region.leader_store_id) is not None:
            self._register(task, task.bounds, region, limits_of(region))
        else:
            self._locator.ask(task)

    def _located(self, answers: list[tuple[Locate, list[Found]]]) -> None:
        """PD has said where ranges are; what it does not cover is asked again later."""
        for task, parts in answers:
            for found in parts if not (task.watched.gone or task.watched.paused) else ():
                match found:
                    case Part(bounds, region, limits):
                        self._register(task, bounds, region, limits)
                    case Uncovered(bounds):
                        self._again(Reason.PD, replace(task, bounds=bounds))

    def _again(self, reason: Reason, task: Locate) -> None:
        task.watched.errors[reason] += 1
        history = replace(task.history, attempts=task.history.attempts + 1)
        after = feed.pause_s(reason, task.history.attempts, self._random)
        self._inbox.after(after, lambda: self._locate(replace(task, history=history, region=None)))

    def _register(self, task: Locate, bounds: Span, region: RegionInfo, limits: Span) -> None:
        """Lock a region's part of the range, with what is free beside it, and ask its store for it."""
        watched, store_id = task.watched, region.leader_store_id
        stream = self._stream(store_id)
        if stream is None:
            self._again(Reason.PD, replace(task, bounds=bounds))
            return
        # In one step, and the new mark before the old one rises: otherwise the sealer could see the span's
        # minimum without this range, and seal beyond what was pulled of it.
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
                held = Held(watched, one, stream, mark, request_id, resolved)
                watched.feeds.add(held)
                self._admission.wait(store_id, held, self._urgency.is_urgent(resolved))
                self._admit(store_id)
            case Stale(rest):
                for part in rest:
                    self._again(Reason.HELD, replace(task, bounds=part))
            case Wait():
                self._again(Reason.HELD, replace(task, bounds=bounds))

    def _admit(self, store_id: int) -> None:
        """Send what may be scanned now."""
        while (held := self._admission.next(store_id)) is not None:
            if held.watched.guarded and held.resolved < self._safe_point(held.watched.span):
                self._refuse(held)
                continue
            watched = held.watched
            held.registration = held.stream.register(
                held.feed.region,
                held.request_id,
                watched.number,
                held.mark,
                held.feed.bounds,
                held.resolved,
                records=watched.records,
            )
            self._held[held.registration] = held

    def _refuse(self, held: Held) -> None:
        """Ask nothing for a range whose scan could lack what GC has taken; its span stands still."""
        self._give_back(held)
        self._admission.done(held.stream.store_id, held)
        self._refused.append(Locate(held.watched, held.feed.bounds, History(), fresh=True))
        safe_point = self._safe_point(held.watched.span)
        held.watched.refused = f"a safe point at or below {held.resolved}: it is {safe_point}"
        self._tell_refused(held.watched.span, held.resolved)

    def _tell_refused(self, span: Span, start_ts: Timestamp) -> None:
        safe_point = self._safe_point(span)
        event(
            LOG,
            logging.ERROR,
            "not registered: below the safe point",
            span=span_id(span, self._kv_mode),
            start_ts=start_ts,
            safe_point=safe_point,
        )
        if self._on_refused is not None:
            self._on_refused(span, start_ts, safe_point)

    def _try_refused(self) -> None:
        """The safe point is lower than before, or something is guarded no longer."""
        refused, self._refused = self._refused, []
        for task in refused:
            task.watched.refused = ""
        for task in refused:
            self._locate(task)

    def _stream(self, store_id: int) -> Stream | None:
        """A store's stream; None when its address is not known any more."""
        stream, address = self._streams.get(store_id), self._pd.known_address(store_id)
        if stream is None and address is not None:
            channel = self._pd.channels.get(address)
            spill = self._spill / f"{store_id}-{next(self._numbers)}" if self._spill is not None else None
            stream = Stream(
                store_id,
                channel,
                self._pd.cluster_id,
                self,
                raw=self._kv_mode == RAW_MODE,
                trust_empty=self._kv_mode == TXN_MODE,
                memory=self._memory,
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
                self._lost_why.pop(held.stream.store_id, None)
                self._step(held, feed.Initialized())
            case Happening.FAILED:
                self._step(held, feed.Failed(cdcpb.Event.FromString(note.event).error))
            case Happening.VIOLATED:
                assert note.violation is not None
                self._step(held, feed.Violated(note.violation, note.commit_ts))

    def _step(self, held: Held, event: feed.Event) -> None:
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
                    held.watched.errors[reason] += 1
                    region = replace(held.feed.region, leader_store_id=leader_store) if leader_store else None
                    task = Locate(held.watched, held.feed.bounds, history, region, fresh)
                    self._inbox.after(after_s, partial(self._locate, task))
                case feed.Stop(error):
                    raise error

    def _ended_scan(self, held: Held) -> None:
        self._admission.done(held.stream.store_id, held)
        self._admit(held.stream.store_id)

    def _release(self, held: Held) -> None:
        """Give the range back with the ts it has reached; another one may be scanned now."""
        self._give_back(held)
        self._ended_scan(held)

    def _give_back(self, held: Held) -> None:
        if held.registration is not None:
            held.stream.matcher.stop(held.registration)
            del self._held[held.registration]
        held.watched.feeds.discard(held)
        region = held.feed.region
        # In one step, and the mark is released last: until the free ranges' mark covers the range, its own
        # mark must hold the span's minimum down.
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

    def _leave(self, watched: Watched, left: threading.Event) -> None:
        for held in list(watched.feeds):
            self._release(held)
        for stream in self._streams.values():
            for request_id in watched.request_ids:
                stream.deregister(request_id)
        with self._state:
            self._frontier.release(watched.free_mark)
        self._refused = [task for task in self._refused if task.watched is not watched]
        watched.sink.close()
        left.set()

    def _stream_lost(self, stream: Stream, error: TidegateError | None, why: str) -> None:
        if self._streams.get(stream.store_id) is stream:
            del self._streams[stream.store_id]
        self._pd.forget_store(stream.store_id)
        if error is not None:
            raise error
        if self._lost_why.get(stream.store_id) != why:
            self._lost_why[stream.store_id] = why
            event(LOG, logging.WARNING, "stream lost", store=stream.store_id, why=why)
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
        spans = list(self._watched.values())
        taken = {w: w.sink.disk_bytes + spilled[w] for w in spans if not w.paused}
        deed = self._room.look(
            store.pressure,
            crowded=store.crowded if len(taken) > 1 else "",
            has_room=store.has_room,
            over_quota=store.over_quota,
            used=store.used_bytes,
            now=self._clock.monotonic(),
        )
        if self._room.waits and not before:
            event(LOG, logging.WARNING, "puller waits", why=self._room.words)
        elif before and not self._room.words:
            event(LOG, logging.INFO, "puller goes on", after=before)
        if deed is Deed.SHED:
            most = greediest(taken, store.disk_bytes, len(spans))
            if most is not None:
                self._give_up(most)
        elif deed is Deed.RESUME:
            for watched in spans:
                if watched.paused:
                    watched.paused = False
                    self._locate(Locate(watched, watched.span, History(), fresh=True))
        if self._clock.monotonic() - self._looked_at >= silence.SILENT_S / silence.LOOK_SHARE:
            self._looked_at = self._clock.monotonic()
            self._wake_silent()
        if self._clock.monotonic() - self._parted_at >= BEHIND_S:
            self._parted_at = self._clock.monotonic()
            if not store.pressure:
                self._part_from_those_behind(spans)
        if self._clock.monotonic() - self._kept_at >= KEEP_S:
            self._kept_at = self._clock.monotonic()
            for watched in spans:
                if self._is_torn(watched):
                    self._keep(watched)
        self._inbox.after(TEND_S, self._tend)

    def _count_spilled(self) -> Counter[Watched]:
        """What open transactions of each span take on disk; their sum counts towards the store's quota."""
        by_stream = {stream: stream.spilled() for stream in self._streams.values()}
        found: Counter[Watched] = Counter()
        if any(by_stream.values()):
            for registration, held in self._held.items():
                found[held.watched] += by_stream.get(held.stream, {}).get(registration.slot, 0)
        before, self._spilled = self._spilled, found.total()
        self._store.charge(disk=self._spilled - before)
        return found

    def _wake_silent(self) -> None:
        """Register anew what has been silent for long on a living stream."""
        with self._state:
            seen = [(held, self._frontier.at(held.mark)) for held in self._held.values()]
        for held, silent_s in silence.look(seen, self._streams.values(), self._clock.monotonic()):
            self._wake(held, silent_s)

    def _wake(self, held: Held, silent_s: float) -> None:
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

    def _give_up(self, watched: Watched) -> None:
        """Stop pulling a span, and discard what it holds beyond its resolved ts.

        Under the sealer's lock: a pass that took its minima before could otherwise seal the span to a ts
        whose rows are discarded here.
        """
        event(
            LOG,
            logging.WARNING,
            "span given up until there is room",
            span=span_id(watched.span, self._kv_mode),
        )
        watched.paused = True
        with self._sealer.passing:
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

    def _ranges(self, watched: Watched) -> list[tuple[Span, Timestamp]]:
        """How far each part of a span is, in key order."""
        with self._state:
            held = [(h.feed.bounds, self._frontier.at(h.mark)) for h in watched.feeds]
            return sorted([*held, *watched.lock.free])

    def _is_torn(self, watched: Watched) -> bool:
        """Whether a part of a span is far ahead of another: a crash would cost all of that."""
        times = [ts for _, ts in self._ranges(watched)]
        return timestamp.physical_ms(max(times)) - timestamp.physical_ms(min(times)) > TORN_MS

    def _part_from_those_behind(self, spans: list[Watched]) -> None:
        """Keep what the other ranges of a stripe have, and record it in the manifest, so that readers who
        want no table of the slow ranges can go on.

        The span of DDL, which every feed of tables follows, shows how far upstream is.
        """
        limit = max((w.sink.resolved for w in spans), default=0) - timestamp.compose(BEHIND_MS)
        for watched in spans:
            if not watched.records or watched.paused or watched.sink.resolved >= limit:
                continue
            ranges = self._ranges(watched)
            near = [ts for _, ts in ranges if ts >= limit]
            if near and len(ranges) - len(near) <= BEHIND_MAX:
                least = min(near)
                self._keep(watched, [(span, least if ts >= limit else ts) for span, ts in ranges])
                self._sealer.moved()  # the page names the manifest: its readers need not wait for a mark

    def _keep(self, watched: Watched, ranges: list[tuple[Span, Timestamp]] | None = None) -> None:
        """Let a restart go on where each range is now, or as given."""
        try:
            watched.sink.keep(ranges or self._ranges(watched))
        except Retryable as error:
            event(LOG, logging.WARNING, "a restart will pull more than it must", error=error.what)

    # --- called by streams, in their workers ---------------------------------------------------------

    def matched(self, stream: Stream, matched: Matched) -> None:
        """Append, then raise the frontier, then report to the coordinator. Waits while the store has no room.

        If a mark rose before its rows are appended, the sealer could publish a resolved ts without them: a
        reader would take the span for complete, and never read them. Notes come last because a failure gives
        its range back at the ts that the frontier has; before the rise that ts is lower, and more is scanned
        again.
        """
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
        if matched.blocks:
            self._sealer.stir()
        if len(matched.marks):
            with self._state:
                self._frontier.advance(matched.marks, matched.resolved)
            self._sealer.moved()
        self._sealer.hold_back()
        for note in matched.notes:
            self._inbox.put(partial(self._noted, note))

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

    # --- for sealer and keeper -----------------------------------------------------------------------

    def _minima(self) -> list[tuple[Watched, Timestamp]]:
        """All spans, each with the least of its marks."""
        with self._state:
            spans = [w for w in self._spans if w is not None]
            minima = self._frontier.minima(len(self._spans)).tolist()
        return [(watched, minima[watched.number]) for watched in spans]

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

    def _behind(self, watched: Watched, target: Timestamp) -> list[Behind]:
        """The ranges of a span that are in step and below `target`."""
        live = [held for held in list(watched.feeds) if held.feed.state is State.LIVE]
        with self._state:
            at = [(held, self._frontier.at(held.mark)) for held in live]
        return [
            Behind(held.feed.bounds, ts, partial(self._lock_lives, held)) for held, ts in at if ts < target
        ]

    def _lock_lives(self, held: Held) -> None:
        held.locked_at = self._clock.monotonic()

    def _fail(self, error: TidegateError) -> None:
        if self.failure is None and not self._closing.is_set():
            self.failure = error
            if self._on_failure is not None:
                self._on_failure(error)
        self._closing.set()
        self._sealer.wake()
        self._inbox.put(None)
