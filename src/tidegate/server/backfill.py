"""Pulls what a changefeed needs of a span from before the event store's part of it, and puts it in front.

A changefeed may be resumed, or created, below what is kept, because others have read on and let it go. If
the span were begun again from there, the others would wait for a scan of everything written since. So what is
kept stays and goes on. The part before it comes through a puller of its own, into a store of its own, and
becomes the beginning of the span once it is complete: readers find a span that begins earlier than it did.

A thread of the puller's process. It pulls all spans that are wanted at the same time. What it has pulled is
lost when the process ends; the next process is told of all spans again, and starts again. Two promises:
 - the live part of a span never goes back, whatever is asked for;
 - a span says that it is complete from an earlier ts only when its manifest has every commit since.

Bounds: the streams hold a quarter of what those of live spans may. What is pulled takes the room that the
quota leaves. If that is not enough for all spans, they are pulled one by one: together each would hold a part
of the room, and none would ever be whole. If it is not enough for one, it waits until live segments go, and
lets the next one try after TURN_S.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.errors import Retryable, TidegateError
from tidegate.eventstore.span_store import SpanStore
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.log import event
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.puller.match.budget import OPEN_BYTES_MAX, QUEUE_BYTES_MAX, StreamMemory
from tidegate.puller.puller import Puller
from tidegate.puller.segment_repair import Bounded

LOG: Final = logging.getLogger(__name__)

LOOK_S: Final = 0.05
"""How often what is being pulled is looked at."""
RETRY_S: Final = 1.0
FOLDER: Final = "backfill"
"""In the event store's, which removes it at a start."""
SHARE: Final = 4
MEMORY_BYTES: Final = 64 << 20
"""Of changes that wait for their resolved ts."""
TURN_S: Final = 30.0
"""How long a span that has no room waits before the next one has its turn."""
NOTICE_S: Final = 10.0
"""How often it is said again what is wrong."""
ROOM_MIN: Final = 1 << 20
"""A quota of 0 would mean that there is none."""


@dataclass(slots=True)
class _Job:
    """A span that is being pulled: its commits in (after, upto]."""

    after: Timestamp
    upto: Timestamp
    pulled: SpanStore
    began_at: float


class Backfill:
    """Serves `want` in a thread, until `close`."""

    def __init__(self, pd: PdClient, store: EventStore, notice: Callable[[Retryable], None]) -> None:
        """`notice` is told when there is no room, and of failures, in the thread."""
        self._pd, self._store, self._notice = pd, store, notice
        self._lock = threading.Lock()
        self._wanted: dict[Span, Timestamp] = {}
        self._asked = threading.Event()
        self._closing = threading.Event()
        self.filled = 0
        """How many spans begin earlier now than they did."""
        self._noticed_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="backfill", daemon=True)
        self._thread.start()

    def want(self, span: Span, start_ts: Timestamp) -> None:
        """An open span of the store is wanted from `start_ts` on, and no longer from what was said before."""
        with self._lock:
            self._wanted[span] = start_ts
        self._asked.set()

    @property
    def waiting(self) -> dict[Span, Timestamp]:
        """What was asked for and is not there yet."""
        with self._lock:
            return dict(self._wanted)

    def close(self) -> None:
        """End the thread; what it was pulling is pulled again when it is asked for again."""
        self._closing.set()
        self._asked.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._asked.wait()
            self._asked.clear()
            # Most spans that are watched lack nothing: no puller is made for them.
            while self._still_wanted() and not self._closing.is_set():
                try:
                    self._pull()
                except (TidegateError, OSError) as error:
                    event(LOG, logging.WARNING, "backfill begins again", error=str(error))
                    self._say(
                        Retryable(
                            "Earlier changes that a changefeed needs could not be pulled; retrying.",
                            where=str(self._store.folder / FOLDER),
                            why=str(error),
                        )
                    )
                    self._closing.wait(RETRY_S)

    def _pull(self) -> None:
        """Until nothing is wanted any more, or something fails."""
        folder = self._store.folder / FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        aside = EventStore(
            folder,
            durable=self._store.durable,
            memory_bytes=MEMORY_BYTES,
            kv_mode=self._store.kv_mode,
            keep_free=self._store.keep_free,
        )
        bounded = Bounded(aside)
        memory = StreamMemory(OPEN_BYTES_MAX // SHARE, QUEUE_BYTES_MAX // SHARE)
        puller = Puller(self._pd, bounded, spill=folder / "spill", memory=memory, kv_mode=self._store.kv_mode)
        try:
            jobs: dict[Span, _Job] = {}
            one_by_one = False
            while (wanted := self._still_wanted()) and not self._closing.wait(LOOK_S):
                self._make_room(aside)
                for span in jobs.keys() - wanted.keys():
                    self._end(jobs.pop(span), span, aside, puller)
                if aside.pressure:
                    one_by_one = True
                    for span in self._given_up(jobs, len(wanted)):
                        self._end(jobs.pop(span), span, aside, puller)
                    wanted = self._still_wanted()  # in another order now
                for span, (live, start_ts) in wanted.items():
                    job = jobs.get(span)
                    if job is None and one_by_one and jobs:
                        continue
                    if job is None:
                        jobs[span] = self._begin(live, start_ts, aside, bounded, puller)
                    elif job.pulled.resolved >= job.upto and self._fits(job):
                        puller.unwatch(span)
                        self._fill(live, job)
                        self._end(jobs.pop(span), span, aside, puller)
                if puller.failure is not None:
                    raise puller.failure
        finally:
            puller.close()
            aside.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _still_wanted(self) -> dict[Span, tuple[SpanStore, Timestamp]]:
        """The open spans that begin too late; the others are forgotten."""
        live = {span.span: span for span in self._store.open_spans()}
        with self._lock:
            for span, start_ts in list(self._wanted.items()):
                if span not in live or live[span].complete_from <= start_ts:
                    del self._wanted[span]
            return {span: (live[span], start_ts) for span, start_ts in self._wanted.items()}

    def _given_up(self, jobs: Mapping[Span, _Job], wanted: int) -> list[Span]:
        """The spans that give their room back: all but the first; or that one, if others wait for a turn."""
        if len(jobs) > 1:
            return list(jobs)[1:]
        late = [span for span, job in jobs.items() if time.monotonic() - job.began_at >= TURN_S]
        if not late or wanted == 1:
            return []
        with self._lock:
            for span in late:
                if span in self._wanted:  # to the end of the queue
                    self._wanted[span] = self._wanted.pop(span)
        return late

    def _begin(
        self, live: SpanStore, start_ts: Timestamp, aside: EventStore, bounded: Bounded, puller: Puller
    ) -> _Job:
        span, upto = live.span, live.complete_from
        event(LOG, logging.INFO, "span is pulled from earlier", span=live.id, after=start_ts, upto=upto)
        pulled = aside.open_span(span)
        pulled.begin(start_ts)
        bounded.upto[span] = upto
        puller.watch(span, start_ts)
        return _Job(start_ts, upto, pulled, time.monotonic())

    def _fill(self, live: SpanStore, job: _Job) -> None:
        if live.prepend(job.pulled, job.after, job.upto):
            self.filled += 1
            event(LOG, logging.INFO, "span begins earlier now", span=live.id, after=job.after, upto=job.upto)

    def _end(self, job: _Job, span: Span, aside: EventStore, puller: Puller) -> None:
        puller.unwatch(span)
        aside.remove_span(span)

    def _fits(self, job: _Job) -> bool:
        """Whether the quota has room for it; without that, parts that others read would be given up."""
        quota = self._store.disk_bytes
        return not quota or self._store.used_bytes + job.pulled.disk_bytes <= quota

    def _make_room(self, aside: EventStore) -> None:
        """What is pulled may take what the quota leaves; when that is used up, it waits."""
        quota = self._store.disk_bytes
        if quota:
            aside.disk_bytes = max(quota - self._store.used_bytes, ROOM_MIN)
        if aside.pressure:
            self._say(
                Retryable(
                    "Earlier changes that a changefeed needs must wait: the event store is full.",
                    where=str(aside.folder),
                    why=aside.pressure,
                    fix="free disk space, raise --event-store-quota, or let the slowest changefeed catch up",
                )
            )

    def _say(self, notice: Retryable) -> None:
        """Now and then."""
        if time.monotonic() - self._noticed_at >= NOTICE_S:
            self._noticed_at = time.monotonic()
            self._notice(notice)
