"""Pulls the earlier part of a span that a changefeed needs and the event store no longer has.

A changefeed may be resumed or created below what is stored, because the other changefeeds have read further
and the older segments were dropped. If the span were restarted from there, the other changefeeds would wait
for a scan of everything written since. So the stored part stays and keeps growing. A separate puller writes
the earlier part into a separate store. When that part is complete, it is put in front of the span, and
readers find a span that begins earlier than before.

This is a thread of the puller process. It pulls all wanted spans at the same time. If the process ends, its
unfinished work is lost; the next process gets all requests again and starts from the beginning. Two promises:
 - the live part of a span never goes back, whatever is requested;
 - the manifest says that a span is complete from an earlier ts only when it has every commit since then.

Bounds: these streams may use a quarter of the memory that the streams of live spans may use. The pulled data
may use the disk space that the quota leaves. If that is not enough for all spans, they are pulled one by one,
because otherwise each would hold a part of the space and none would become complete. If the space is not
enough for one span, that span waits until live segments are dropped, and after TURN_S the next span tries.
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
"""How often the progress of the pulled spans is checked."""
RETRY_S: Final = 1.0
FOLDER: Final = "backfill"
"""A folder inside the event store's folder. The event store removes it when it starts."""
SHARE: Final = 4
MEMORY_BYTES: Final = 64 << 20
"""Memory for changes that wait for their resolved ts."""
TURN_S: Final = 30.0
"""How long a span without disk space keeps its turn while others wait."""
NOTICE_S: Final = 10.0
"""The least time between two notices."""
ROOM_MIN: Final = 1 << 20
"""The least quota of the separate store, because a quota of 0 means no quota."""


@dataclass(slots=True)
class _Job:
    """A span that is being pulled: its commits in (after, upto]."""

    after: Timestamp
    upto: Timestamp
    pulled: SpanStore
    began_at: float


class Backfill:
    """Serves requests (`want`) in its own thread until `close`."""

    def __init__(self, pd: PdClient, store: EventStore, notice: Callable[[Retryable], None]) -> None:
        """`notice` is called in the thread, when there is no disk space and when pulling fails."""
        self._pd, self._store, self._notice = pd, store, notice
        self._lock = threading.Lock()
        self._wanted: dict[Span, Timestamp] = {}
        self._asked = threading.Event()
        self._closing = threading.Event()
        self.filled = 0
        """How many spans have been given an earlier beginning."""
        self._noticed_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="backfill", daemon=True)
        self._thread.start()

    def want(self, span: Span, start_ts: Timestamp) -> None:
        """Request an open span of the store from `start_ts` on. Replaces an earlier request for the span."""
        with self._lock:
            self._wanted[span] = start_ts
        self._asked.set()

    @property
    def waiting(self) -> dict[Span, Timestamp]:
        """The requests that are not fulfilled yet."""
        with self._lock:
            return dict(self._wanted)

    def close(self) -> None:
        """End the thread. Unfinished spans are pulled from their beginning when they are requested again."""
        self._closing.set()
        self._asked.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._asked.wait()
            # Before the requests are read, so that one that comes meanwhile is not missed.
            self._asked.clear()
            # Most watched spans lack nothing. Do not make a puller for them.
            while self._still_wanted() and not self._closing.is_set():
                try:
                    self._pull()
                except (TidegateError, OSError) as error:
                    event(LOG, logging.WARNING, "backfill restarts", error=str(error))
                    self._say(
                        Retryable(
                            "earlier changes that a changefeed needs could not be pulled; retrying",
                            where=str(self._store.folder / FOLDER),
                            why=str(error),
                        )
                    )
                    self._closing.wait(RETRY_S)

    def _pull(self) -> None:
        """Pull until nothing is wanted any more or something fails."""
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
                # At each look, because live spans use more or less of the quota meanwhile.
                self._make_room(aside)
                for span in jobs.keys() - wanted.keys():
                    self._end(jobs.pop(span), span, aside, puller)
                if aside.pressure:
                    # It stays so until nothing is wanted any more: there was no space for all spans at once.
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
                        # First, because `prepend` takes the files of a store to which nothing is appended.
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
        """The open spans that begin too late. Requests for other spans are removed."""
        live = {span.span: span for span in self._store.open_spans()}
        with self._lock:
            for span, start_ts in list(self._wanted.items()):
                if span not in live or live[span].complete_from <= start_ts:
                    del self._wanted[span]
            return {span: (live[span], start_ts) for span, start_ts in self._wanted.items()}

    def _given_up(self, jobs: Mapping[Span, _Job], wanted: int) -> list[Span]:
        """The spans that free their disk space: all but the first; or a single one that has used up its turn
        while others wait.
        """
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
        # docs/guarantees.md#changefeeds-share-one-event-store-each-at-its-own-place: all of it or nothing, so
        # the beginning that others see never rises.
        if live.prepend(job.pulled, job.after, job.upto):
            self.filled += 1
            event(LOG, logging.INFO, "span begins earlier now", span=live.id, after=job.after, upto=job.upto)

    def _end(self, job: _Job, span: Span, aside: EventStore, puller: Puller) -> None:
        puller.unwatch(span)
        aside.remove_span(span)

    def _fits(self, job: _Job) -> bool:
        """Whether the quota has room for it. Otherwise parts that other changefeeds read would be dropped."""
        quota = self._store.disk_bytes
        return not quota or self._store.used_bytes + job.pulled.disk_bytes <= quota

    def _make_room(self, aside: EventStore) -> None:
        """Let the pulled data use what the quota leaves. Without free space, pulling waits."""
        quota = self._store.disk_bytes
        if quota:
            aside.disk_bytes = max(quota - self._store.used_bytes, ROOM_MIN)
        if aside.pressure:
            self._say(
                Retryable(
                    "earlier changes that a changefeed needs must wait: the event store is full",
                    where=str(aside.folder),
                    why=aside.pressure,
                    fix="free disk space, raise --event-store-quota, or let the slowest changefeed catch up",
                )
            )

    def _say(self, notice: Retryable) -> None:
        """Send a notice, at most every NOTICE_S."""
        if time.monotonic() - self._noticed_at >= NOTICE_S:
            self._noticed_at = time.monotonic()
            self._notice(notice)
