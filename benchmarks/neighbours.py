"""How a changefeed in trouble affects the others: one that resumes far back, one that has stopped, one that
waits for a lock.

    python -m benchmarks.neighbours [--rows 300000] [--seconds 8] [--rounds 3] [--json FILE]
    python -m benchmarks.neighbours --only stopped [--seconds 8] [--rounds 3] [--stripe] [--json FILE]
    python -m benchmarks.neighbours --only locked [--locked 600] [--stripe] [--json FILE]

A table with `--rows` rows gets 10 transactions of 20 rows per second all the time. Its span was read up to
now and dropped from the store; then a changefeed needs it from its beginning. The figure is the lag of the
others: how far the greatest resolved ts that they have seen is behind PD's clock, sampled every 10 ms.

| figure | when |
|---|---|
| quiet | before that |
| missing | the missing part is pulled in addition to the part that the others read, as in a capture |
| again | the whole span is pulled again from its beginning: the same puller without `on_watch` |

Then it measures a table that others read and drop, while another table has a stopped reader and fills the
store's quota:

| figure | when |
|---|---|
| roomy | before the store is full |
| stopped | for `--seconds` from then on, at least 8 s; with no span given up early, all wait for 5 s |

With `--stripe` both tables are in one stripe. The control process is played with its own registry of spans
(`server.pulling.spans`): the changefeed that has stopped keeps everything in the stripe until the store fills
up, and then releases it for the other (`server.processor.space_release`). Later it is resumed where it was.

| figure | when |
|---|---|
| roomy | before the rows that fill the store |
| stopped | from their beginning until the stopped changefeed has released the stripe, and for 4 s more |
| resumed | until the stripe has again all that the resumed changefeed lacks |

With `--only locked` it measures a table that others read, while a transaction holds a lock in another table:

| figure | when |
|---|---|
| unlocked | for 2 minutes before the lock |
| locked | for `--locked` seconds while the lock is held; the resolved ts of the locked table waits for it |

With `--stripe` both tables are in one stripe here, too, in different regions of it.

The cases run in turns, in one process, on one upstream, which is a separate process, as the writers are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never

from benchmarks.growth import Upstream
from benchmarks.neighbour_writer import writing
from benchmarks.upstream import TABLE

from tidegate.control.metadata import FeedId
from tidegate.eventstore import kernels, store_view
from tidegate.eventstore.span_store import SpanStore
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.backoff import DEFAULT_BUDGET_MS, Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.model import timestamp
from tidegate.model.reports import DropBelow, Remove, SafePoint, Status, ToPuller, Unwatch, Watch
from tidegate.model.span import Span, span_id
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller
from tidegate.server.processor.space_release import SpaceRelease
from tidegate.server.pulling.backfill import Backfill
from tidegate.server.pulling.spans import SpanRegistry
from tidegate.tidb import keys

LOOK_S: Final = 0.01
SPAN: Final = keys.record_span(TABLE)
OTHER: Final = TABLE + 1
"""The table with readers, while the reader of the first table has stopped."""
QUOTA_BYTES: Final = 4 << 20
STRIPE_QUOTA_BYTES: Final = 32 << 20
"""The quota with `--stripe`. The puller reports that the store fills up from three quarters of the quota on,
and gives a span up at seven eighths. At the rate of `FAT_BYTES` 5 s are between the two."""
RELEASED_S: Final = 4.0
"""Rows continue for this long after the release. All since the start must fit the quota when it is pulled
again."""
CONTROL_S: Final = 1.0
"""How often the control process drops what everybody has read, and looks whether the store fills up."""
STUCK: Final = FeedId("default", "stuck")
LIVE: Final = FeedId("default", "live")
FAT_BYTES: Final = 4_000
STOPPED_S: Final = 8.0
UNLOCKED_S: Final = 120.0
BEFORE: Final = {
    "quiet": "quiet",
    "missing": "quiet",
    "again": "quiet",
    "roomy": "roomy",
    "stopped": "roomy",
    "resumed": "roomy",
    "unlocked": "unlocked",
    "locked": "unlocked",
}
"""For each figure, the one that it is compared with."""
SETTLE_S: Final = 3.0
WIDTH: Final = 64
"""Table ids in the stripe of `--stripe`."""
FULL_S: Final = 60.0
"""The store must be full within this time."""
RESUMED_S: Final = 120.0
"""The resumed changefeed must have what it lacks within this time."""


class Capture:
    """The puller's process: a puller, an event store, and the pull of earlier parts."""

    def __init__(
        self, address: str, folder: Path, *, missing: bool, span: Span = SPAN, disk_bytes: int = 0
    ) -> None:
        self.pd = PdClient(address)
        self.store = EventStore(folder, disk_bytes=disk_bytes)
        self._name = span
        self.resolved: Callable[[], int] = lambda: self.span.resolved
        """How far the healthy readers may read."""
        self.backfill = Backfill(self.pd, self.store, print)
        on_watch = self.backfill.want if missing else None
        self._seen = 0
        self.puller = Puller(self.pd, self.store, spill=folder / "spill", on_watch=on_watch)

    @property
    def span(self) -> SpanStore:
        """The span that the healthy readers use."""
        return self.store.open_span(self._name)

    def lags(self, until: Callable[[], bool], each: Callable[[], None] = lambda: None) -> list[float]:
        """Lags in ms, until `until` is true. `each`: called after each sample."""
        found = []
        while not until():
            self._seen = max(self._seen, self.resolved())
            behind = timestamp.physical_ms(self.pd.tso()) - timestamp.physical_ms(self._seen)
            found.append(float(behind))
            each()
            time.sleep(LOOK_S)
        return found

    def close(self) -> None:
        self.backfill.close()
        self.puller.close()
        self.store.close()
        self.pd.close()


def settle(capture: Capture, ts: int) -> None:
    """Wait until the span has reached `ts`, and then for what follows the opening of a span."""
    while capture.span.resolved < ts:
        time.sleep(LOOK_S)
    time.sleep(SETTLE_S)


def measure(upstream: Upstream, folder: Path, seconds: float, *, missing: bool) -> tuple[list[float], ...]:
    """The lags before the beginning is needed again, and while it is pulled."""
    capture = Capture(upstream.address, folder, missing=missing)
    start = 1
    capture.puller.watch(SPAN, start)
    with writing(upstream.address, TABLE):
        settle(capture, capture.pd.tso())
        end = time.monotonic() + seconds
        quiet = capture.lags(lambda: time.monotonic() > end)
        capture.span.drop_below(capture.span.resolved)
        assert capture.span.complete_from > start
        asked = capture.pd.tso()
        capture.puller.watch(SPAN, start)
        again = capture.lags(lambda: capture.span.complete_from == start and capture.span.resolved >= asked)
    capture.close()
    return quiet, again


def measure_stopped(upstream: Upstream, folder: Path, seconds: float) -> tuple[list[float], list[float]]:
    """The lags of a table with readers, before and after a table without readers has filled the quota."""
    other = keys.record_span(OTHER)
    capture = Capture(upstream.address, folder, missing=True, span=other, disk_bytes=QUOTA_BYTES)
    start = capture.pd.tso()
    for span in (SPAN, other):
        capture.puller.watch(span, start)

    def release() -> None:
        capture.span.drop_below(capture.span.resolved)

    with writing(upstream.address, OTHER):
        settle(capture, start)
        end = time.monotonic() + seconds
        roomy = capture.lags(lambda: time.monotonic() > end, release)
        with writing(upstream.address, TABLE, FAT_BYTES):
            full = time.monotonic() + FULL_S
            while not capture.store.crowded:
                assert time.monotonic() < full, "the store was not crowded"
                release()
                time.sleep(LOOK_S)
            end = time.monotonic() + max(seconds, STOPPED_S)
            stopped = capture.lags(lambda: time.monotonic() > end, release)
    capture.close()
    return roomy, stopped


class Holders:
    """The control process's part: two changefeeds hold one stripe, and one of them makes no progress."""

    def __init__(self, capture: Capture, span: Span, start: int) -> None:
        self._capture, self._span, self._start = capture, span, start
        self._spans, self._release = SpanRegistry(), SpaceRelease(STUCK)
        self._looked_at = float("-inf")
        self.has_released = False
        """Whether the changefeed without progress has released the stripe."""
        orders: Any = self  # in place of the connection to the puller's process
        self._spans.connect(orders)
        for feed in (STUCK, LIVE):
            self._spans.hold(feed, span, start)

    def send(self, order: ToPuller) -> None:
        """Perform an order of the registry, as the puller's process does."""
        puller, store = self._capture.puller, self._capture.store
        match order:
            case SafePoint():
                pass  # PD holds everything
            case Watch(span, start_ts, _):
                puller.watch(span, start_ts)
            case DropBelow(span, ts):
                store.open_span(span).drop_below(ts)
            case Unwatch(span) | Remove(span):
                puller.unwatch(span)
            case _:
                assert_never(order)

    def look(self) -> None:
        """Once a second: drop what all holders have read; let the stuck one make way if it must."""
        now = time.monotonic()
        if now - self._looked_at < CONTROL_S:
            return
        self._looked_at = now
        spans, reached = self._spans, self._capture.span.resolved
        spans.receive_status(Status([], filling=self._capture.store.filling))
        spans.note_progress(LIVE, now)
        spans.needed(LIVE, reached, reached)
        if not self.has_released and self._release.look(now, spans, self._start, {}, loads=False) is not None:
            spans.release(STUCK)
            self._release.done()
            self.has_released = True
        spans.drop_below({STUCK: (self._start, self._start), LIVE: (reached, reached)})

    def resume(self) -> None:
        """The stuck changefeed begins again where it was."""
        assert self._capture.span.complete_from > self._start, "nothing was dropped"
        self._spans.hold(STUCK, self._span, self._start)


def measure_stopped_in_stripe(
    upstream: Upstream, folder: Path, seconds: float
) -> tuple[list[float], list[float], list[float]]:
    """The lags of a changefeed while another one of the same stripe has stopped, and when it is resumed."""
    assert TABLE // WIDTH == OTHER // WIDTH, "neighbours"
    stripe = keys.stripe_span(TABLE - TABLE % WIDTH, WIDTH)
    capture = Capture(upstream.address, folder, missing=True, span=stripe, disk_bytes=STRIPE_QUOTA_BYTES)
    start = capture.pd.tso()
    capture.puller.watch(keys.ddl_span(), start)
    holders = Holders(capture, stripe, start)
    with writing(upstream.address, OTHER):
        settle(capture, start)
        end = time.monotonic() + seconds
        roomy = capture.lags(lambda: time.monotonic() > end, holders.look)
        with writing(upstream.address, TABLE, FAT_BYTES):
            full = time.monotonic() + FULL_S

            def released() -> bool:
                assert time.monotonic() < full, "the stopped changefeed did not release the stripe"
                return holders.has_released

            stopped = capture.lags(released, holders.look)
            end = time.monotonic() + RELEASED_S
            stopped += capture.lags(lambda: time.monotonic() > end, holders.look)
        limit = time.monotonic() + RESUMED_S

        def whole() -> bool:
            assert time.monotonic() < limit, "the resumed changefeed did not get what it lacks"
            return capture.span.complete_from <= start

        holders.resume()
        resumed = capture.lags(whole, holders.look)
    capture.close()
    return roomy, stopped, resumed


def measure_locked(
    upstream: Upstream, folder: Path, locked_s: float, *, stripe: bool
) -> tuple[list[float], list[float]]:
    """The lags of a table with readers, before and while another table has a lock.

    The lock is in a region of its own: TiKV's resolved ts waits for the locks of a region. `stripe`: both
    tables are in one span.
    """
    assert TABLE // WIDTH == OTHER // WIDTH, "neighbours"
    locked_span, other = SPAN, keys.record_span(OTHER)
    first = TABLE - TABLE % WIDTH
    if stripe:
        locked_span = other = keys.stripe_span(first, WIDTH)
    capture = Capture(upstream.address, folder, missing=True, span=other)
    start = capture.pd.tso()
    for span in {locked_span, other, keys.ddl_span()}:
        capture.puller.watch(span, start)
    if stripe:
        name, wanted = span_id(other), (first, 1 << OTHER - first)

        def reach() -> int:  # as the control process: `server.delivery` looks at the frontier so
            frontier = store_view.read_frontier(folder)
            now = frontier.get(span_id(keys.ddl_span()), 0)
            manifest = partial(store_view.read_manifest, folder)
            return store_view.lifted(frontier, {name: wanted}, now, manifest).get(name, 0)

        capture.resolved = reach

    def drop_read() -> None:
        capture.span.drop_below(capture.span.resolved)

    def lags(seconds: float) -> list[float]:
        end = time.monotonic() + seconds
        return capture.lags(lambda: time.monotonic() > end, drop_read)

    with writing(upstream.address, OTHER):
        settle(capture, start)
        unlocked = lags(min(locked_s, UNLOCKED_S))
        key = keys.int_record(TABLE, 0)
        holder = TwoPhase(capture.pd, capture.pd.tso(), key, ttl_ms=round(1000 * (locked_s + 60)))
        holder.prewrite([Mutation(PUT, key, b"x")], Backoff(DEFAULT_BUDGET_MS))
        # The resolved ts may have passed `start_ts` before the lock was there, but never passes this one.
        locked_at = capture.pd.tso()
        locked = lags(locked_s)
        held = capture.store.open_span(locked_span).resolved
        assert held < locked_at, f"the locked table's resolved ts {held} did not wait for its lock"
        holder.commit([key], capture.pd.tso(), Backoff(DEFAULT_BUDGET_MS))
        while capture.store.open_span(locked_span).resolved < locked_at:
            time.sleep(LOOK_S)
    capture.close()
    return unlocked, locked


def shown(lags: list[float]) -> dict[str, float]:
    """Percentiles, and the duration."""
    ordered = sorted(lags)
    return {"p50": statistics.median(ordered), "p99": ordered[int(len(ordered) * 0.99)], "max": ordered[-1]}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["stopped", "locked"], help="one part alone")
    parser.add_argument("--locked", type=float, default=600.0, help="seconds that the lock is held")
    parser.add_argument("--stripe", action="store_true", help="with `--only`: both tables in one stripe")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.stripe and not options.only:
        parser.error("--stripe needs --only stopped or --only locked")
    block_matcher.warm()
    kernels.warm()
    lags: dict[str, list[float]] = {name: [] for name in BEFORE}
    with tempfile.TemporaryDirectory() as base, closing(Upstream(Path(base) / "upstream", 10)) as upstream:
        upstream.load(0 if options.only else options.rows)
        if options.only == "locked":
            found = measure_locked(upstream, Path(base) / "locked", options.locked, stripe=options.stripe)
            lags["unlocked"], lags["locked"] = found
        for number in () if options.only == "locked" else range(options.rounds):
            for name in () if options.only else ("missing", "again"):
                where = Path(base) / f"{name}-{number}"
                quiet, after = measure(upstream, where, options.seconds, missing=name == "missing")
                lags["quiet"] += quiet
                lags[name] += after
                print(f"  round {number + 1}, {name}: {shown(after)}, before {shown(quiet)}", flush=True)
            where = Path(base) / f"stopped-{number}"
            names = ("roomy", "stopped", "resumed") if options.stripe else ("roomy", "stopped")
            work = measure_stopped_in_stripe if options.stripe else measure_stopped
            for name, measured in zip(names, work(upstream, where, options.seconds), strict=True):
                lags[name] += measured
                print(f"  round {number + 1}, {name}: {shown(measured)}", flush=True)
    figures = {name: shown(found) for name, found in lags.items() if found}
    print(f"{'lag of the others, ms':24}{'p50':>8}{'p99':>8}{'max':>8}{'p99 to before':>14}")
    for name, one in figures.items():
        before = figures[BEFORE[name]]
        ratio = one["p99"] / before["p99"]
        print(f"{name:24}{one['p50']:8.0f}{one['p99']:8.0f}{one['max']:8.0f}{ratio:14.1f}")
    if options.json:
        options.json.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
