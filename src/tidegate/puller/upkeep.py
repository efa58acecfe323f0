"""The puller's periodic work: disk space, silent ranges, and data kept for a restart.

The coordinator thread does all of it, from `tend`, so no range is registered or unlocked meanwhile.
`backpressure` decides when to wait and when to give a span up; this module performs it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from tidegate.clock import Clock
from tidegate.errors import Retryable
from tidegate.log import event
from tidegate.model import timestamp
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import Timestamp
from tidegate.puller import region_feed as feed
from tidegate.puller import silence
from tidegate.puller.backpressure import Action, Backpressure, greediest
from tidegate.puller.inbox import Inbox
from tidegate.puller.region_feed import History
from tidegate.puller.registrar import Registrar
from tidegate.puller.sealer import Sealer
from tidegate.puller.slow_ranges import SlowRanges
from tidegate.puller.span_table import SpanTable
from tidegate.puller.store_protocol import ChangeStore
from tidegate.puller.watched_span import Locate, RegisteredRange, WatchedSpan

LOG: Final = logging.getLogger(__name__)

TEND_S: Final = 0.25
KEEP_S: Final = 30.0
TORN_MS: Final = 30_000
"""If a range is this far ahead of another range of its span, its changes are kept for a restart."""


class Upkeep:
    """The periodic work for all spans. Only the coordinator calls it; streams read `backpressure`."""

    def __init__(
        self,
        store: ChangeStore,
        spans: SpanTable,
        registrar: Registrar,
        sealer: Sealer,
        inbox: Inbox,
        clock: Clock,
        kv_mode: str,
    ) -> None:
        self._store, self._spans, self._registrar = store, spans, registrar
        self._sealer, self._inbox, self._clock, self._kv_mode = sealer, inbox, clock, kv_mode
        self.backpressure = Backpressure()
        self.spilled = 0
        """The bytes of spilled open transactions that the store was charged with."""
        self._kept_at = self._looked_at = clock.monotonic()
        self.slow_ranges = SlowRanges(store, spans, inbox, clock, self.keep)

    def close(self) -> None:
        """Remove the charge for spilled transactions, whose files are deleted with the streams."""
        self._store.charge(disk=-self.spilled)

    def tend(self) -> None:
        """Run every TEND_S: tend the store, apply backpressure; at longer intervals check ranges that are
        silent, slow or torn.
        """
        store, before = self._store, self.backpressure.words
        store.tend()
        if store.pressure:
            store.recover()
        spilled = self._count_spilled()
        spans = self._spans.all()
        # A paused span uses space, too, but giving it up once more frees none.
        taken = {w: w.changes.disk_bytes + spilled[w] for w in spans if not w.paused}
        action = self.backpressure.look(
            store.pressure,
            # A single span that is given up early helps no other span.
            crowded=store.crowded if len(taken) > 1 else "",
            has_room=store.has_room,
            over_quota=store.over_quota,
            used=store.used_bytes,
            now=self._clock.monotonic(),
        )
        if self.backpressure.waits and not before:
            event(LOG, logging.WARNING, "puller waits", why=self.backpressure.words)
        elif before and not self.backpressure.words:
            event(LOG, logging.INFO, "puller continues", after=before)
        if action is Action.SHED:
            most = greediest(taken, store.disk_bytes, len(spans))
            if most is not None:
                self._give_up(most)
        elif action is Action.RESUME:
            for watched_span in spans:
                if watched_span.paused:
                    watched_span.paused = False
                    self._registrar.locate(Locate(watched_span, watched_span.span, History(), fresh=True))
        if self._clock.monotonic() - self._looked_at >= silence.SILENT_S / silence.LOOK_SHARE:
            self._looked_at = self._clock.monotonic()
            self._wake_silent()
        self.slow_ranges.tend()
        if self._clock.monotonic() - self._kept_at >= KEEP_S:
            self._kept_at = self._clock.monotonic()
            for watched_span in spans:
                if self._is_torn(watched_span):
                    self.keep(watched_span)
        # Last, so that a slow round does not make the next one due at once.
        self._inbox.after(TEND_S, self.tend)

    def _count_spilled(self) -> Counter[WatchedSpan]:
        """The bytes of spilled open transactions of each span; their sum counts towards the store's quota."""
        by_stream = {stream: stream.spilled() for stream in self._registrar.streams.values()}
        found: Counter[WatchedSpan] = Counter()
        # Usually nothing is spilled, and a walk through 100,000 registrations four times a second would take
        # a part of a core.
        if any(by_stream.values()):
            for registration, registered in self._registrar.registered.items():
                found[registered.watched_span] += by_stream.get(registered.stream, {}).get(
                    registration.number, 0
                )
        before, self.spilled = self.spilled, found.total()
        self._store.charge(disk=self.spilled - before)
        return found

    def _wake_silent(self) -> None:
        """Register ranges again that have been silent for long on a live stream."""
        seen = self._spans.at(self._registrar.registered.values())
        for registered, silent_s in silence.look(
            seen, self._registrar.streams.values(), self._clock.monotonic()
        ):
            self._wake(registered, silent_s)

    def _wake(self, registered: RegisteredRange, silent_s: float) -> None:
        event(
            LOG,
            logging.WARNING,
            "silent region is registered again",
            region=registered.feed.region.id,
            store=registered.stream.store_id,
            state=str(registered.feed.state),
            silent_s=round(silent_s),
        )
        self._registrar.step(registered, feed.Silent())

    def _give_up(self, watched_span: WatchedSpan) -> None:
        """Stop pulling a span, and discard its changes above its resolved ts.

        This holds the sealer's lock. Otherwise a pass that has already taken its minima could seal the span
        to a ts whose rows are discarded here.
        """
        event(
            LOG,
            logging.WARNING,
            "span given up until there is room",
            span=span_id(watched_span.span, self._kv_mode),
        )
        # First: what the locator has found for this span meanwhile must not be registered.
        watched_span.paused = True
        with self._sealer.passing:
            self._registrar.release_all(watched_span)
            self._spans.restart(watched_span)
            try:
                watched_span.changes.shed()
            except Retryable as error:
                event(LOG, logging.WARNING, "a span's data was not discarded", error=error.what)

    def _is_torn(self, watched_span: WatchedSpan) -> bool:
        """Whether a part of a span is far ahead of another; after a crash that part would be pulled again."""
        times = [ts for _, ts in self._spans.ranges(watched_span)]
        return timestamp.physical_ms(max(times)) - timestamp.physical_ms(min(times)) > TORN_MS

    def keep(self, watched_span: WatchedSpan, ranges: Sequence[tuple[Span, Timestamp]] | None = None) -> None:
        """Store the changes and ts of each range (or of `ranges`), so that a restart resumes from there."""
        try:
            watched_span.changes.keep(ranges or self._spans.ranges(watched_span))
        except Retryable as error:
            event(LOG, logging.WARNING, "a restart will pull more than necessary", error=error.what)
