"""Pulls key spans from TiKV and seals their changes in the event store.

The threads:

- the *coordinator* owns region feeds and pauses. It takes commands and the streams' reports from its inbox,
  registers ranges at the stores that lead them (`registrar`), and does periodic work (`upkeep`);
- the *locator* asks PD which stores lead the regions, for many ranges at a time. It is not needed if a store
  has already named the leader;
- each TiKV store's *stream* (`event_feed`) matches changes, appends them to the span's event store, and then
  raises the frontier's marks (`span_table`); a mark therefore never covers rows that are not appended;
- the *sealer* (`sealer`) takes the frontier's minimum of each span, seals the span to it, and publishes. Each
  rise of a mark wakes it, at most every `seal_interval_s`;
- the *lock cleaner* clears locks of dead transactions in spans that do not move.

A span resumes from the ts that its event store holds. A commit is published once TiKV's resolved ts passes
it, after one more seal: a few tens of milliseconds. Retryable errors are retried for ever, with pauses; Fatal
ends the puller: `failure` is set and `on_failure` called.
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
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.clock import Clock, SystemClock
from tidegate.config.values import RAW_MODE, TABLE_MODE, TXN_MODE
from tidegate.disk import DiskFull
from tidegate.errors import DEFECT, Fatal, Retryable, TidegateError
from tidegate.kvclient.pd import PdClient
from tidegate.log import event
from tidegate.model.reports import SpanStatus
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.event_feed import Stream
from tidegate.puller.inbox import Inbox
from tidegate.puller.lock_cleaner import Stuck, clean
from tidegate.puller.match.budget import StreamMemory
from tidegate.puller.match.matched import Matched
from tidegate.puller.region_feed import History
from tidegate.puller.registrar import Registrar
from tidegate.puller.safe_points import OnRefused, SafePoints
from tidegate.puller.sealer import Sealer
from tidegate.puller.span_table import SpanTable
from tidegate.puller.store_protocol import ChangeStore
from tidegate.puller.stuck_spans import StuckSpans
from tidegate.puller.upkeep import Upkeep
from tidegate.puller.watched_span import Locate, WatchedSpan
from tidegate.tidb.keys import stripe_ids

LOG: Final = logging.getLogger(__name__)

LEAVE_S: Final = 10.0
"""How long `unwatch` waits for the coordinator."""
FULL_S: Final = 0.5
"""The pause between two attempts to spill on a full disk."""


class Puller:
    """Pulls the watched spans until `close`. One per event store."""

    def __init__(
        self,
        pd: PdClient,
        store: ChangeStore,
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
        """Start the threads.

        `memory`: shared by all streams of the process, including those of other pullers. `spill`: a folder,
        emptied now, for open transactions that do not fit in `memory`. Without it, these transactions are
        forgotten, and their regions are scanned again once they are committed.

        `on_watch` is called with each span that is watched and the ts from which it is wanted. With it, the
        part of the span that the store has is kept, although it may begin later: the callee provides what is
        missing. Without it, such a span is pulled again completely from the wanted ts.
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
        stuck: Callable[[], list[Stuck]] = StuckSpans(self._spans, self._clock)
        if kv_mode == RAW_MODE:
            stuck = list  # raw keys have no locks
        self._threads = [
            threading.Thread(target=self._coordinate, name="puller-coordinator", daemon=True),
            threading.Thread(target=self._sealer.run, name="puller-sealer", daemon=True),
            threading.Thread(target=locate, args=(self._closing,), name="puller-locator", daemon=True),
            threading.Thread(
                target=clean, args=(pd, stuck, self._closing), name="puller-lock-cleaner", daemon=True
            ),
        ]
        self._inbox.put(self._upkeep.tend)
        for thread in self._threads:
            thread.start()

    # --- called by the owner -------------------------------------------------------------------------

    def watch(self, span: Span, start_ts: Timestamp, *, guarded: bool = True) -> None:
        """Pull the changes of `span` above start_ts, or above the ts up to which the store already has them.

        Watching a span again does nothing, unless start_ts is below the ts from which the store is complete:
        then `on_watch` provides the missing changes, or the span is pulled again. If `guarded`, a start that
        the store does not hold and that is below the safe point is refused, and the span stays as it is.
        Raises Fatal if the span's files are corrupt.
        """
        known = self._spans.find(span)
        if known is not None and known.guarded != guarded:
            known.guarded = guarded
            self._inbox.put(self._registrar.try_refused)
        if known is not None and known.changes.complete_from <= start_ts:
            if self._on_watch is not None:
                self._on_watch(span, start_ts)
            return
        changes = known.changes if known is not None else self._store.open_span(span)
        if (
            # docs/guarantees.md#nothing-is-lost: GC may have removed versions above such a start. A start
            # that the store covers is no danger: pulling continues at the store's resolved ts.
            guarded
            and start_ts < self._safe_points.of(span)
            and not changes.complete_from <= start_ts <= changes.resolved
        ):
            self._safe_points.refuse(span, start_ts)
            return
        begin = start_ts
        if self._on_watch is not None and start_ts < changes.complete_from < changes.resolved:
            # Continue with the part that the store has, because other feeds read it and would have to wait if
            # the span were pulled again from the beginning.
            if known is not None:
                self._on_watch(span, start_ts)
                return
            begin = changes.resolved
        self.unwatch(span)
        # Opened again, because `unwatch` has closed the one that was known.
        changes = self._store.open_span(span)
        changes.begin(begin)
        if self._on_watch is not None:
            # Called even if nothing is missing, because it replaces the ts that an earlier `watch` wanted.
            self._on_watch(span, start_ts)
        watched_span = self._spans.add(
            span,
            changes,
            self._registrar.new_request_id(),
            records=self._kv_mode == TABLE_MODE and len(stripe_ids(span)) > 0,
            guarded=guarded,
            now=self._clock.monotonic(),
        )
        self._sealer.stir()
        self._sealer.moved()
        self._inbox.put(lambda: self._registrar.locate(Locate(watched_span, span, History())))

    def keep_above(self, safe_point: Timestamp, keyspace_id: int = -1) -> None:
        """Set the safe point. Upstream may have no history below it, so no guarded range starts there.

        It applies to the spans of one keyspace, or (-1) to the spans of all keyspaces without their own.
        """
        if self._safe_points.put(safe_point, keyspace_id):
            self._inbox.put(self._registrar.try_refused)

    def unwatch(self, span: Span) -> None:
        """Stop pulling a span; sealed changes stay in the store. Unknown spans are ignored."""
        watched_span = self._spans.remove(span)
        if watched_span is None:
            return
        # Wait for the coordinator; otherwise the next `watch` could get the span store that is being closed.
        left = threading.Event()
        self._inbox.put(lambda: self._leave(watched_span, left))
        # With a bound, because a coordinator that has failed runs no task any more.
        left.wait(LEAVE_S)

    def _leave(self, watched_span: WatchedSpan, left: threading.Event) -> None:
        self._registrar.leave(watched_span)
        watched_span.changes.close()
        left.set()

    def status(self) -> list[SpanStatus]:
        """The status of each span."""
        return self._spans.status(self._kv_mode, self._waiting)

    def _waiting(self, watched_span: WatchedSpan) -> str:
        return (
            self._upkeep.backpressure.words
            if watched_span.paused or self._upkeep.backpressure.waits
            else self._held_up
        )

    def close(self) -> None:
        """End all threads and streams. The store is left open."""
        if self._closing.is_set():
            return
        self._closing.set()
        # After the flag: a thread that wakes up before it would only wait again.
        self._sealer.wake()
        self._registrar.locator.close()
        self._inbox.put(None)
        for thread in self._threads:
            thread.join(10)
        self._upkeep.close()
        if self.failure is None:
            for watched_span in self._spans.all():
                self._upkeep.keep(watched_span)

    @property
    def streams(self) -> list[Stream]:
        """The streams that are open now, one for each store."""
        return list(self._registrar.streams.values())

    @property
    def trouble(self) -> str:
        """The reason why the puller takes no rows in now; empty if it does."""
        return self._upkeep.backpressure.words or self._held_up

    # --- threads ---------------------------------------------------------------------------------------

    def _coordinate(self) -> None:
        try:
            while (task := self._inbox.take()) is not None:
                task()
        except TidegateError as error:
            self._fail(error)
        except Exception as error:  # a defect must stop the puller with its reason, not hang it
            self._fail(Fatal("the puller's coordinator failed", why=repr(error), fix=DEFECT))
        self._registrar.close()

    def _open_stream(self, store_id: int, address: str) -> Stream:
        # Each stream has its own folder, because the store's last stream may not have removed its files yet.
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
        # The first failure counts. Errors while it closes are consequences.
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
        """True while rows are spilled: a mark may emit spilled rows, which then need room in the store."""
        return self._upkeep.spilled > 0

    def risen(self, marks: npt.NDArray[np.int64], resolved: npt.NDArray[np.uint64]) -> None:
        """Raise the frontier."""
        if len(marks):
            self._spans.advance(marks, resolved)
            self._announce()

    def _announce(self) -> None:
        self._sealer.moved()
        self._upkeep.slow_ranges.risen()

    # --- called by streams, in their workers ---------------------------------------------------------

    def matched(self, stream: Stream, matched: Matched) -> None:
        """Append, then raise the frontier, then report to the coordinator. Waits while the store has no room.

        Rows come before marks: if a mark rose before its rows are appended, the sealer could publish a
        resolved ts without them, and a reader would assume the span complete and never read them. Notes come
        last: if a registration fails, its range is unlocked at the frontier's ts, and before the marks rise
        that ts is lower, so more would be scanned again.
        """
        takes_room = bool(matched.blocks) or self.may_wait
        while (
            takes_room
            and (self._store.pressure or self._upkeep.backpressure.waits)
            and not self._upkeep.backpressure.shedding
        ):
            if self._closing.wait(0.02):
                # If the stream continued without these rows, a later mark would rise above them, and the last
                # manifest would claim that they are stored. The error ends the stream, so no mark rises.
                raise Retryable("the puller closes", why="rows of a stream still waited for room")
        # docs/guarantees.md#a-resolved-ts-of-the-event-store-is-complete: rows are appended before the marks
        # below rise.
        for number, block in matched.blocks:
            watched_span = self._spans.numbered(number)
            if watched_span is not None:
                watched_span.changes.append(block)
                watched_span.rows += block.num_rows
                watched_span.bytes += block.nbytes
        if matched.blocks:
            self._sealer.stir()
        if len(matched.marks):
            self._spans.advance(matched.marks, matched.resolved)
            self._announce()
        self._sealer.hold_back()
        for note in matched.notes:
            self._inbox.put(partial(self._registrar.noted, note))

    def held_up(self, stream: Stream, error: DiskFull | None) -> bool:
        """Wait while the disk is full; HTTP/2 flow control then makes the TiKV store wait, too."""
        words = f"{error.what}: {error.why}" if error is not None else ""
        if error is not None and not self._held_up:
            event(LOG, logging.WARNING, "puller waits", why=words, where=error.where)
        self._held_up = words
        return error is None or not self._closing.wait(FULL_S)

    def lost(self, stream: Stream, error: TidegateError | None, why: str) -> None:
        """Let the coordinator register the stream's ranges again."""
        self._inbox.put(lambda: self._registrar.stream_lost(stream, error, why))
