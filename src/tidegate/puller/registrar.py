"""Registers ranges at the stores that lead them, and locates them again when a registration ends.

The steps of a range: it is located at PD, locked in the span table, admitted (few scans at a time for each
store), and registered on its store's stream. `region_feed` decides how to react to an event, and this module
performs the effects. Only the coordinator thread calls it, so it needs no lock; other threads go through the
puller's inbox.

Two orders matter. A range is locked before it is registered, because two registrations of one key would
deliver its changes twice. A registration is stopped in the matcher before its range is unlocked, because
later rows would be added to a span that may already be sealed beyond them.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from tidegate.errors import TidegateError
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.log import event
from tidegate.model.span import Span
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.puller import region_feed as feed
from tidegate.puller.admission import Admission, Urgency
from tidegate.puller.cover import Found, Part, Uncovered, limits_of
from tidegate.puller.event_feed import Stream
from tidegate.puller.inbox import Inbox
from tidegate.puller.locator import Locator
from tidegate.puller.match.matched import Happening, Note, Registration
from tidegate.puller.range_lock import Locked, Stale, Wait
from tidegate.puller.region_feed import History, Reason, RegionFeed
from tidegate.puller.safe_points import SafePoints
from tidegate.puller.span_table import SpanTable
from tidegate.puller.watched_span import Locate, RegisteredRange, WatchedSpan

LOG: Final = logging.getLogger(__name__)


class Registrar:
    """The streams of a puller, and the ranges that are registered or wait for it."""

    def __init__(
        self,
        pd: PdClient,
        spans: SpanTable,
        safe_points: SafePoints,
        inbox: Inbox,
        open_stream: Callable[[int, str], Stream],
        chance: random.Random,
        on_failure: Callable[[TidegateError], None],
    ) -> None:
        """`chance`: makes pauses random. `on_failure`: called with the error if the locator ends."""
        self._pd, self._spans, self._safe_points, self._inbox = pd, spans, safe_points, inbox
        self._open_stream, self._random = open_stream, chance
        self.locator = Locator(pd, lambda found: inbox.put(lambda: self._located(found)), on_failure)
        self._numbers = itertools.count(1)
        self.streams: dict[int, Stream] = {}
        """The open streams, by store id."""
        self.registered: dict[Registration, RegisteredRange] = {}
        self.admission = Admission[RegisteredRange]()
        self._urgency = Urgency()
        self._refused: list[Locate] = []
        self._lost_why: dict[int, str] = {}
        """Why a store's stream was last lost, by store id: the same reason is logged only once. The entry is
        removed when a scan of the store ends."""

    def new_request_id(self) -> int:
        """A new request id, which no registration has used. Thread-safe."""
        return next(self._numbers)

    def close(self) -> None:
        """End all streams."""
        for stream in list(self.streams.values()):
            stream.close()
            stream.join(5)

    def locate(self, task: Locate) -> None:
        """Register a range at the leader that a store has named; otherwise ask PD for its regions."""
        if task.watched_span.gone or task.watched_span.paused:
            return
        region = task.region
        if region is not None and self._pd.known_address(region.leader_store_id) is not None:
            # PD may learn of a new leader seconds later than its store.
            self._register(task, task.bounds, region, limits_of(region))
        else:
            self.locator.ask(task)

    def _located(self, answers: list[tuple[Locate, list[Found]]]) -> None:
        """Register the parts that PD has located; locate the uncovered parts again later."""
        for task, parts in answers:
            # PD is asked in another thread, and the span may have been dropped or paused meanwhile.
            for found in parts if not (task.watched_span.gone or task.watched_span.paused) else ():
                match found:
                    case Part(bounds, region, limits):
                        self._register(task, bounds, region, limits)
                    case Uncovered(bounds):
                        self._again(Reason.PD, replace(task, bounds=bounds))

    def _again(self, reason: Reason, task: Locate) -> None:
        task.watched_span.errors[reason] += 1
        history = replace(task.history, attempts=task.history.attempts + 1)
        after = feed.pause_s(reason, task.history.attempts, self._random)
        # Without the region: the store's hint may be what was wrong, so PD is asked.
        self._inbox.after(after, lambda: self.locate(replace(task, history=history, region=None)))

    def _register(self, task: Locate, bounds: Span, region: RegionInfo, limits: Span) -> None:
        """Lock a region's part of the range, with adjacent free ranges, and queue it for its store."""
        watched_span, store_id = task.watched_span, region.leader_store_id
        stream = self._stream_to(store_id)
        # PD has named a store whose address it no longer knows; it will name another one.
        if stream is None:
            self._again(Reason.PD, replace(task, bounds=bounds))
            return
        answer, mark = self._spans.lock(watched_span, bounds, region, limits)
        match answer:
            case Locked(resolved, locked):
                # A store knows a registration by request and region, so a second one in a region needs its
                # own request id.
                fresh = task.fresh or region.id in watched_span.regions
                request_id = next(self._numbers) if fresh else watched_span.request_id
                watched_span.request_ids.add(request_id)
                watched_span.regions[region.id] += 1
                one = RegionFeed(locked, region, task.history, self._random)
                registered = RegisteredRange(watched_span, one, stream, mark, request_id, resolved)
                watched_span.feeds[mark] = registered
                watched_span.scanning.add(registered)
                self.admission.wait(store_id, registered, self._urgency.is_urgent(resolved))
                self._admit(store_id)
            case Stale(rest):
                for part in rest:
                    self._again(Reason.HELD, replace(task, bounds=part))
            case Wait():
                self._again(Reason.HELD, replace(task, bounds=bounds))

    def _admit(self, store_id: int) -> None:
        """Send the registrations that the store may scan now."""
        while (registered := self.admission.next(store_id)) is not None:
            # docs/guarantees.md#nothing-is-lost: below the safe point a scan could lack versions that GC has
            # removed.
            # As late as possible: the safe point may have risen while the range waited.
            if registered.watched_span.guarded and registered.resolved < self._safe_points.of(
                registered.watched_span.span
            ):
                self._refuse(registered)
                continue
            watched_span = registered.watched_span
            registered.registration = registered.stream.register(
                registered.feed.region,
                registered.request_id,
                watched_span.number,
                registered.mark,
                registered.feed.bounds,
                registered.resolved,
                records=watched_span.records,
            )
            self.registered[registered.registration] = registered

    def _refuse(self, registered: RegisteredRange) -> None:
        """Do not register a range whose scan could lack versions that GC has removed. Its span stops until
        `try_refused`.
        """
        # Not `release`, which would admit the next range from within `_admit`.
        self._give_back(registered)
        self.admission.done(registered.stream.store_id, registered)
        self._refused.append(Locate(registered.watched_span, registered.feed.bounds, History(), fresh=True))
        safe_point = self._safe_points.of(registered.watched_span.span)
        registered.watched_span.refused = (
            f"a safe point at or below {registered.resolved}: it is {safe_point}"
        )
        self._safe_points.refuse(registered.watched_span.span, registered.resolved)

    def try_refused(self) -> None:
        """Locate the refused ranges again: the safe point is lower, or a span is no longer guarded."""
        refused, self._refused = self._refused, []
        # For all of them first, because `locate` may refuse a range of the same span again at once.
        for task in refused:
            task.watched_span.refused = ""
        for task in refused:
            self.locate(task)

    def _stream_to(self, store_id: int) -> Stream | None:
        """The stream to a store, opened if needed; None if its address is no longer known."""
        stream, address = self.streams.get(store_id), self._pd.known_address(store_id)
        if stream is None and address is not None:
            stream = self._open_stream(store_id, address)
            self.streams[store_id] = stream
        return stream

    def noted(self, note: Note) -> None:
        """React to a stream's note about a registration."""
        registered = self.registered.get(note.registration)
        # The registration was released meanwhile, and its note is late.
        if registered is None:
            return
        match note.happening:
            case Happening.INITIALIZED:
                self._lost_why.pop(registered.stream.store_id, None)
                self.step(registered, feed.Initialized())
            case Happening.FAILED:
                self.step(registered, feed.Failed(cdcpb.Event.FromString(note.event).error))
            case Happening.VIOLATED:
                assert note.violation is not None
                self.step(registered, feed.Violated(note.violation, note.commit_ts))

    def step(self, registered: RegisteredRange, event: feed.Event) -> None:
        """Apply an event to a range's state machine. Raises the error of `Stop`, which ends the puller."""
        fresh = False
        effects = registered.feed.step(event)
        # Whatever the event is, the scan has ended, or failed and will be another registration's.
        registered.watched_span.scanning.discard(registered)
        if isinstance(event, feed.Initialized):
            # From here on silence means that the resolved ts does not rise, so it is measured from zero.
            registered.moved_at = 0.0
            self._ended_scan(registered)
        for effect in effects:
            match effect:
                case feed.Deregister():
                    registered.stream.deregister(registered.request_id, registered.feed.region.id)
                    fresh = True
                case feed.Relocate(reason, after_s, history, leader_store):
                    self.release(registered)
                    registered.watched_span.errors[reason] += 1
                    region = (
                        replace(registered.feed.region, leader_store_id=leader_store)
                        if leader_store
                        else None
                    )
                    task = Locate(registered.watched_span, registered.feed.bounds, history, region, fresh)
                    self._inbox.after(after_s, partial(self.locate, task))
                case feed.Stop(error):
                    raise error

    def _ended_scan(self, registered: RegisteredRange) -> None:
        self.admission.done(registered.stream.store_id, registered)
        self._admit(registered.stream.store_id)

    def release(self, registered: RegisteredRange) -> None:
        """Unlock the range at the ts that it has reached; another range may be scanned now."""
        self._give_back(registered)
        self._ended_scan(registered)

    def _give_back(self, registered: RegisteredRange) -> None:
        if registered.registration is not None:
            registered.stream.matcher.stop(registered.registration)
            del self.registered[registered.registration]
        registered.watched_span.feeds.pop(registered.mark, None)
        registered.watched_span.scanning.discard(registered)
        # After `stop`: rows that still arrive must not be added to a range that another registration may
        # lock.
        self._spans.unlock(registered)
        region = registered.feed.region
        registered.watched_span.regions[region.id] -= 1
        if not registered.watched_span.regions[region.id]:
            del registered.watched_span.regions[region.id]
        if registered.request_id != registered.watched_span.request_id:
            registered.watched_span.request_ids.discard(registered.request_id)

    def release_all(self, watched_span: WatchedSpan) -> None:
        """Unlock all ranges of a span, and ask the stores to end their registrations."""
        for registered in list(watched_span.feeds.values()):
            self.release(registered)
        for stream in self.streams.values():
            for request_id in watched_span.request_ids:
                stream.deregister(request_id)

    def leave(self, watched_span: WatchedSpan) -> None:
        """Release everything that belongs to a span that is no longer watched."""
        self.release_all(watched_span)
        self._spans.forget(watched_span)
        self._refused = [task for task in self._refused if task.watched_span is not watched_span]

    def stream_lost(self, stream: Stream, error: TidegateError | None, why: str) -> None:
        """Register the ranges of a lost stream again. Raises `error` if it is set."""
        if self.streams.get(stream.store_id) is stream:
            # First, so that the ranges below are registered on a new stream and not on this one.
            del self.streams[stream.store_id]
        # After a restart the store may have another address.
        self._pd.forget_store(stream.store_id)
        if error is not None:
            raise error
        if self._lost_why.get(stream.store_id) != why:
            self._lost_why[stream.store_id] = why
            event(LOG, logging.WARNING, "stream lost", store=stream.store_id, why=why)
        # Before the steps: each of them would otherwise admit the next waiting range on the dead stream.
        waiting = self.admission.drop(stream.store_id)
        for registered in [*waiting, *(h for h in self.registered.values() if h.stream is stream)]:
            self.step(registered, feed.StreamLost(why))
