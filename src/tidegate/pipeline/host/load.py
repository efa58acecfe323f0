"""The application's part of an initial load: it gives out shares and takes reports until no range is left.

Each share is a piece of work for one worker. So a slow range does not delay the others, and each report goes
to the control process at once. The stream begins when the whole load is durable; until then, the puller
writes changes to the event store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tidegate.control.load import LoadPlan, LoadQueue, LoadRemainder, Pace
from tidegate.model.reports import Loaded
from tidegate.pipeline.exchange.beats import Beats
from tidegate.pipeline.exchange.feed import LOAD_FILE, FeedSpec
from tidegate.pipeline.exchange.work import COUNTS, Load, LoadedRange, LoadReport

PAUSE_S: Final = 1.0
"""The longest wait for the pace without a beat. Seconds."""


class InitialLoad:
    """The part of a load that one incarnation does. Call `run` once."""

    def __init__(
        self,
        spec: FeedSpec,
        cores: int,
        ask: Callable[[Load], Sequence[LoadReport]],
        send: Callable[[Loaded], None],
    ) -> None:
        """`ask`: has a worker do a piece of work; raises when the incarnation ends. `send`: sends a report to
        the control process.
        """
        self._spec, self._ask, self._send = spec, ask, send
        self._plan = LoadPlan.from_bytes((spec.feed_dir / LOAD_FILE).read_bytes())
        own = spec.config.tidegate
        self._pace = Pace(own.load_rows_per_second, own.load_bytes_per_second)
        self._changed = threading.Condition()
        self._failed = False
        self._tasks = min(spec.sink.describe().at_once(cores), spec.slots)
        self._beats = Beats(spec.beats_dir)

    def run(self, loaded: Iterable[LoadedRange]) -> None:
        """Load all that is not durable yet. On return the whole load is durable.

        `loaded`: how much of each range was durable, read from the sink's records after the fence.
        """
        self._queue = LoadQueue(self._plan, {one.id: (one.rows, one.left_from) for one in loaded})
        self._began = time.monotonic()
        self._report([], 0.0)
        with ThreadPoolExecutor(self._tasks, thread_name_prefix="load") as pool:
            for one in [pool.submit(self._work) for _ in range(self._tasks)]:
                one.result()

    def _work(self) -> None:
        """One task after another, until nothing is left or another thread has failed."""
        try:
            while share := self._take():
                began = time.monotonic()
                reports = self._run_task(share)
                with self._changed:
                    self._take_back(share, reports)
                    self._report(reports, time.monotonic() - began)
                    self._changed.notify_all()
        except BaseException:
            with self._changed:
                # The others may wait without a bound, so they must be woken.
                self._failed = True
                self._changed.notify_all()
            raise

    def _take(self) -> list[LoadRemainder]:
        """Wait for a share that the pace allows. Empty: no range is left, or another thread has failed."""
        with self._changed:
            while not self._failed:
                wait = self._pace.wait(time.monotonic())
                share = [] if wait else self._queue.take(self._tasks)
                if share or not (wait or self._queue.busy):
                    return share
                if wait and not self._queue.busy:
                    self._beats.beat()  # the load pauses on purpose, and must not count as hung
                # Without a bound only while another thread is busy. That thread notifies in any case, also
                # when it fails.
                self._changed.wait(min(wait, PAUSE_S) if wait else None)
            return []

    def _run_task(self, share: list[LoadRemainder]) -> Sequence[LoadReport]:
        rows_max, bytes_max = self._pace.share(self._tasks)
        return self._ask(
            Load(str(self._spec.path), self._plan.pd, self._plan.ts, tuple(share), rows_max, bytes_max)
        )

    def _take_back(self, share: list[LoadRemainder], reports: Sequence[LoadReport]) -> None:
        rows, size = sum(r.read_rows for r in reports), sum(r.read_bytes for r in reports)
        self._pace.spent(time.monotonic(), rows, size)
        self._queue.settle([(r.report.span, r.rows, r.left_from) for r in reports], share)

    def _report(self, reports: Sequence[LoadReport], task_s: float) -> None:
        """Report to the control process what is durable now."""
        state = self._queue.state(time.monotonic() - self._began)
        stats = {name: sum(getattr(r.report, name) for r in reports) for name in COUNTS}
        self._send(Loaded(state, stats | {"batch_ms": round(task_s * 1000)}))
