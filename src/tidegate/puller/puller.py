"""Key spans in, sealed spans in the event store out.

Who does what:

- the *coordinator* thread owns region feeds and pauses. It takes commands and what streams report from its
  inbox, registers ranges at the stores that lead them (`registrar`), and looks after all of it (`upkeep`);
- the *locator* thread asks PD which stores these are, for many ranges at a time, unless a store has said so;
- each store's *stream* (`event_feed`) matches changes, appends them to the span's store, then raises the
  frontier's marks (`span_table`): so a mark never speaks of rows that are not appended;
- the *sealer* thread (`sealer`) takes the frontier's minimum of each span, seals the span's store to it, and
  publishes; woken by each rise, at most every `seal_interval_s`;
- the *lock cleaner* thread clears locks of dead transactions in spans that stand still.

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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidegate.clock import Clock, SystemClock
from tidegate.config.values import RAW_MODE, TABLE_MODE, TXN_MODE
from tidegate.disk import DiskFull
from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.kvclient.pd import PdClient
from tidegate.log import event
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.event_feed import Stream
from tidegate.puller.inbox import Inbox
from tidegate.puller.lock_cleaner import STUCK_S, Behind, Stuck, clean
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.match.matched import Matched
from tidegate.puller.region_feed import History, State
from tidegate.puller.registrar import Registrar
from tidegate.puller.safe_points import OnRefused, SafePoints
from tidegate.puller.sealer import Sealer
from tidegate.puller.span_table import SpanTable
from tidegate.puller.store_protocol import Sink
from tidegate.puller.upkeep import Upkeep
from tidegate.puller.watched_span import Locate, RegisteredRange, Watched
from tidegate.tidb.keys import stripe_ids

LOG: Final = logging.getLogger(__name__)

LEAVE_S: Final = 10.0
"""How long `unwatch` waits for the coordinator."""
FULL_S: Final = 0.5
"""Between two attempts to spill on a full disk."""


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
        on_refused: OnRefused | None = None,
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
        self._held_up = ""  # why open transactions wait for the disk
        self._pd, self._store, self._kv_mode = pd, store, kv_mode
        self._clock = clock or SystemClock()
        self._on_failure, self._on_watch = on_failure, on_watch
        self.failure: TidegateError | None = None
        self._opened = itertools.count(1)
        self._closing = threading.Event()
        self._inbox = Inbox(self._clock)
        self._spans = SpanTable()
        self._safe_points = SafePoints(kv_mode, on_refused)
        self._registrar = Registrar(
            pd,
            self._spans,
            self._safe_points,
            self._inbox,
            self._open_stream,
            random.Random(seed),
            self._fail,
        )
        self._sealer = Sealer(
            store, self._spans.minima, seal_interval_s, self._clock, self._closing, self._fail
        )
        self._upkeep = Upkeep(
            store, self._spans, self._registrar, self._sealer, self._inbox, self._clock, kv_mode
        )
        locate = self._registrar.locator.run
        self._threads = [
            threading.Thread(target=self._coordinate, name="puller-coordinator", daemon=True),
            threading.Thread(target=self._sealer.run, name="puller-sealer", daemon=True),
            threading.Thread(target=locate, args=(self._closing,), name="puller-locator", daemon=True),
            threading.Thread(
                target=clean, args=(pd, self._stuck, self._closing), name="puller-lock-cleaner", daemon=True
            ),
        ]
        self._inbox.put(self._upkeep.tend)
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
        known = self._spans.find(span)
        if known is not None and known.guarded != guarded:
            known.guarded = guarded
            self._inbox.put(self._registrar.try_refused)
        if known is not None and known.sink.complete_from <= start_ts:
            if self._on_watch is not None:
                self._on_watch(span, start_ts)
            return
        sink = known.sink if known is not None else self._store.open_span(span)
        if (
            guarded
            and start_ts < self._safe_points.of(span)
            and not sink.complete_from <= start_ts <= sink.resolved
        ):
            self._safe_points.refuse(span, start_ts)
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
        watched = self._spans.add(
            span,
            sink,
            self._registrar.new_request_id(),
            records=self._kv_mode == TABLE_MODE and len(stripe_ids(span)) > 0,
            guarded=guarded,
            now=self._clock.monotonic(),
        )
        self._sealer.stir()
        self._sealer.moved()
        self._inbox.put(lambda: self._registrar.locate(Locate(watched, span, History())))

    def keep_above(self, safe_point: Timestamp, keyspace_id: int = -1) -> None:
        """Register nothing below but what is not guarded: upstream keeps its history from there.

        It goes for the spans of one keyspace, or (-1) for those of all that are not named.
        """
        if self._safe_points.put(safe_point, keyspace_id):
            self._inbox.put(self._registrar.try_refused)

    def unwatch(self, span: Span) -> None:
        """Stop pulling; what was sealed stays in the store. Unknown spans are ignored."""
        watched = self._spans.remove(span)
        if watched is None:
            return
        # Otherwise the next `watch` of the span would get the store that is about to be closed.
        left = threading.Event()
        self._inbox.put(lambda: self._leave(watched, left))
        left.wait(LEAVE_S)

    def _leave(self, watched: Watched, left: threading.Event) -> None:
        self._registrar.leave(watched)
        watched.sink.close()
        left.set()

    def status(self) -> list[dict[str, Any]]:
        """One line a span: id, bounds, resolved, rows, bytes, regions, errors by reason, waiting_for."""
        return self._spans.lines(self._kv_mode, self._waiting)

    def _waiting(self, watched: Watched) -> str:
        return (
            self._upkeep.backpressure.words
            if watched.paused or self._upkeep.backpressure.waits
            else self._held_up
        )

    def close(self) -> None:
        """End all threads and streams. The store is left open."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._sealer.wake()
        self._registrar.locator.close()
        self._inbox.put(None)
        for thread in self._threads:
            thread.join(10)
        self._upkeep.close()
        if self.failure is None:
            for watched in self._spans.all():
                self._upkeep.keep(watched)

    @property
    def trouble(self) -> str:
        """Why nothing is taken in at present, in words; empty when all is well."""
        return self._upkeep.backpressure.words or self._held_up

    # --- threads ---------------------------------------------------------------------------------------

    def _coordinate(self) -> None:
        try:
            while (task := self._inbox.take()) is not None:
                task()
        except TidegateError as error:
            self._fail(error)
        except Exception as error:  # a defect must stop the puller with its reason, not hang it
            self._fail(Fatal("the puller's coordinator failed", why=repr(error)))
        self._registrar.close()

    def _open_stream(self, store_id: int, address: str) -> Stream:
        # A folder of its own for each stream: the one before may not have removed its files yet.
        spill = self._spill / f"{store_id}-{next(self._opened)}" if self._spill is not None else None
        return Stream(
            store_id,
            self._pd.channels,
            address,
            self._pd.cluster_id,
            self,
            raw=self._kv_mode == RAW_MODE,
            trust_empty=self._kv_mode == TXN_MODE,
            memory=self._memory,
            spill_to=spill,
        )

    def _fail(self, error: TidegateError) -> None:
        if self.failure is None and not self._closing.is_set():
            self.failure = error
            if self._on_failure is not None:
                self._on_failure(error)
        self._closing.set()
        self._sealer.wake()
        self._inbox.put(None)

    # --- called by streams, in their loop ----------------------------------------------------------------

    @property
    def may_wait(self) -> bool:
        """While rows are spilled: they come when a mark lets them, and then there must be room for them."""
        return self._upkeep.spilled > 0

    def risen(self, marks: npt.NDArray[np.int64], resolved: npt.NDArray[np.uint64]) -> None:
        """Raise the frontier."""
        if len(marks):
            self._spans.advance(marks, resolved)
            self._sealer.moved()

    # --- called by streams, in their workers ---------------------------------------------------------

    def matched(self, stream: Stream, matched: Matched) -> None:
        """Append, then raise the frontier, then report to the coordinator. Waits while the store has no room.

        If a mark rose before its rows are appended, the sealer could publish a resolved ts without them: a
        reader would take the span for complete, and never read them. Notes come last because a failure gives
        its range back at the ts that the frontier has; before the rise that ts is lower, and more is scanned
        again.
        """
        takes_room = bool(matched.blocks) or self.may_wait
        while (
            takes_room
            and (self._store.pressure or self._upkeep.backpressure.waits)
            and not self._upkeep.backpressure.shedding
        ):
            if self._closing.wait(0.02):
                # To go on without these rows would let a later mark rise above them, and the last manifest
                # would say that they are stored. An error ends the stream, so nothing of it rises any more.
                raise Retryable("the puller closes", why="rows of a stream still waited for room")
        for number, block in matched.blocks:
            watched = self._spans.numbered(number)
            if watched is not None:
                watched.sink.append(block)
                watched.rows += block.num_rows
                watched.bytes += block.nbytes
        if matched.blocks:
            self._sealer.stir()
        if len(matched.marks):
            self._spans.advance(matched.marks, matched.resolved)
            self._sealer.moved()
        self._sealer.hold_back()
        for note in matched.notes:
            self._inbox.put(partial(self._registrar.noted, note))

    def held_up(self, stream: Stream, error: DiskFull | None) -> bool:
        """The stream waits, and its store with it."""
        words = f"{error.what}: {error.why}" if error is not None else ""
        if error is not None and not self._held_up:
            event(LOG, logging.WARNING, "puller waits", why=words, where=error.where)
        self._held_up = words
        return error is None or not self._closing.wait(FULL_S)

    def lost(self, stream: Stream, error: TidegateError | None, why: str) -> None:
        """The coordinator registers again what was on the stream."""
        self._inbox.put(lambda: self._registrar.stream_lost(stream, error, why))

    # --- for the lock cleaner ------------------------------------------------------------------------------

    def _stuck(self) -> list[Stuck]:
        """Spans that have not moved for STUCK_S; of raw keys none, which have no locks."""
        if self._kv_mode == RAW_MODE:
            return []
        spans = self._spans.all()
        now = self._clock.monotonic()
        return [
            Stuck(watched.sink.resolved, partial(self._behind, watched))
            for watched in spans
            if now - watched.moved_at >= STUCK_S
        ]

    def _behind(self, watched: Watched, target: Timestamp) -> list[Behind]:
        """The ranges of a span that are in step and below `target`."""
        live = [held for held in list(watched.feeds) if held.feed.state is State.LIVE]
        return [
            Behind(held.feed.bounds, ts, partial(self._lock_lives, held))
            for held, ts in self._spans.at(live)
            if ts < target
        ]

    def _lock_lives(self, held: RegisteredRange) -> None:
        held.locked_at = self._clock.monotonic()
