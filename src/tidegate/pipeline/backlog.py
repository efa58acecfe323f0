"""What of a feed waits in the event store, handed out as workers become free.

    floors, manifests, barrier.json  ->  Backlog.take  ->  shares of (span, after, upto), one a worker
                                         Backlog.done  <-  those that are durable

Lives in the driver of the feed's pipeline. It reads no rows and opens no segment: whoever gets a range does.
With the puller and the control process it shares only files, read anew at every look. Of a span one range is
out at a time: its rows are written in order, whoever writes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tidegate.eventstore import outlook
from tidegate.eventstore.manifest import Manifest, ManifestReader
from tidegate.pipeline.feed import Barrier, FeedSpec
from tidegate.pipeline.ranges import Range, bound, due, share, waits

LOOK_AGAIN_S: Final = 0.1
GLANCE_S: Final = 0.01
"""Between two glances at whether anything was told since the last look."""
QUIET_S: Final = 2.0
QUIET_GLANCE_S: Final = 0.02
"""The same when nothing was due for QUIET_S."""
REST_S: Final = 0.5
"""Between two looks at most: nothing waits longer, were a change not seen."""
KEPT: Final = 2
"""Manifests that are remembered, for each span that is followed."""


class Backlog:
    """One incarnation's. `take` is for one thread, `done` and `stir` for any."""

    def __init__(self, spec: FeedSpec, begun: Mapping[str, int], free: Callable[[], int]) -> None:
        """`begun`: up to where each span is durable. `free`: how many may be given work now; it may wait,
        and what it raises ends `take`.
        """
        self._spec = spec
        self._begun = dict(begun)
        """How far each span was taken."""
        self._free = free
        self._out: set[str] = set()
        """Spans of which a worker has a range."""
        self._stirred = threading.Event()
        self._taken_at = float("-inf")
        self._spans: tuple[str, ...] = ()
        """Those that the barrier file named at the last look."""
        self._manifests: dict[str, ManifestReader] = {}
        """Of spans that were looked at: only what was appended is read again."""

    def take(self) -> list[list[Range]]:
        """What is due, shared among those that are free; waits until there is something.

        Each look costs a reading of the barrier file and a pass over the spans, so between two of them it
        only glances at whether anything was told. Under heavy load it waits for more at once (`waits`).
        """
        while True:
            self._free()
            # Before the look: what is told while it looks differs from this, and is looked at next.
            self._stirred.clear()
            mark = self.mark()
            found, sizes, waiting = self.look()
            now = time.monotonic()
            if not found:
                self._rest(mark, now + REST_S)
            elif waits(waiting, self._spec.config.tidegate.max_batch_bytes, now - self._taken_at):
                time.sleep(LOOK_AGAIN_S)
            else:
                self._taken_at = now
                return self._hand_out(found, sizes)

    def taken(self) -> list[list[Range]]:
        """What is due now, in shares; empty if nothing is."""
        found, sizes, _ = self.look()
        return self._hand_out(found, sizes)

    def done(self, ranges: Iterable[Range]) -> None:
        """They are durable: what comes after them may be taken."""
        self._out.difference_update([one.span for one in ranges])
        self.stir()

    def stir(self) -> None:
        """Look again: something has changed that `take` cannot see."""
        self._stirred.set()

    def _hand_out(self, found: list[Range], sizes: Mapping[str, int]) -> list[list[Range]]:
        self._begun |= {one.span: one.upto for one in found}
        self._out.update([one.span for one in found])
        return share(found, sizes, self._free())

    def _rest(self, mark: object, until: float) -> None:
        """Until something else was told than `mark`, `stir`, or it is late enough (`until`, monotonic)."""
        quiet = time.monotonic() - self._taken_at > QUIET_S
        while self.mark() == mark and time.monotonic() < until:
            if self._stirred.wait(QUIET_GLANCE_S if quiet else GLANCE_S):
                return

    def mark(self) -> object:
        """What was told last: rows come to light with another manifest of their span, as far as the barrier
        file says. Floors that rise with time alone bring none, and those of other feeds' spans neither.
        """
        barrier = (self._spec.feed_dir / "barrier.json").stat()  # each is another file
        return barrier.st_ino, barrier.st_mtime_ns, outlook.versions(self._spec.store_dir, self._spans)

    def look(self) -> tuple[list[Range], dict[str, int], int]:
        """The ranges that are due now, about how many bytes each has, and how many wait in all."""
        barrier = Barrier.load(self._spec.feed_dir / "barrier.json")
        self._spans = tuple(barrier.spans)
        # The frontier first: every row below it is in a manifest by then.
        floors = outlook.read_frontier(self._spec.store_dir)
        ddl = floors.get(barrier.ddl_span, 0)
        frontier = outlook.lifted(floors, barrier.wanted, ddl, self._manifest)
        if len(self._manifests) > KEPT * len(barrier.spans):
            self._manifests.clear()  # tables come and go
        if len(self._begun) > KEPT * len(barrier.spans):
            self._begun = {span: ts for span, ts in self._begun.items() if span in barrier.spans}
        sizes = self._sizes(barrier, frontier)
        budget = self._spec.config.tidegate.max_batch_bytes // max(1, len(sizes))

        def cut(span: str, since: int, upto: int) -> int:
            if span not in sizes:
                return since
            return outlook.cut(self._manifest(span), since, upto, budget)

        found = due(self._begun, barrier, frontier, cut)
        return found, {span: min(size, budget) for span, size in sizes.items()}, sum(sizes.values())

    def _sizes(self, barrier: Barrier, frontier: Mapping[str, int]) -> dict[str, int]:
        """Bytes that wait per span, of the spans that have rows to deliver and are with nobody."""
        found = {}
        for span, start_ts in barrier.spans.items():
            if span in self._out:
                continue
            after, upto = max(self._begun.get(span, 0), start_ts), bound(barrier, frontier, span)
            size = self._pending(span, after, upto, barrier) if upto > after else 0
            if size:
                found[span] = size
        return found

    def _manifest(self, span: str) -> Manifest:
        known = self._manifests.get(span)
        if known is None:
            known = self._manifests[span] = ManifestReader(self._spec.store_dir / span)
        return outlook.read_manifest(self._spec.store_dir, span, known)

    def _pending(self, span: str, after: int, upto: int, barrier: Barrier) -> int:
        """Bytes in (after, upto]; 0: no row there is of a table that is wanted."""
        manifest = self._manifest(span)
        if manifest.dropped_to > after:
            return 0  # the puller was told to begin the span anew, from `after` or before, and has not yet
        rows, size, _, _ = outlook.pending(manifest, after, upto)
        if rows and span in barrier.wanted:
            folder = self._spec.store_dir / span
            rows = outlook.has_any(folder, manifest, after, upto, *barrier.wanted[span])
        return max(size, 1) if rows else 0
