"""Seals spans to the frontier's minima and publishes them, in its own thread.

Each rise of a mark wakes the sealer. After a seal it rests for a while: under high load the segments then
become large enough that few must be merged, and sealing takes about a fifth of a core. If no row has arrived
for a while, it rests longer. Floors of idle spans are published only four times a second, because each time
all readers must look at them. The first row ends that rest, so the mark that completes the row never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tidegate.clock import Clock
from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.model import timestamp
from tidegate.model.timestamp import Timestamp
from tidegate.puller.store_protocol import ChangeStore
from tidegate.puller.watched_span import WatchedSpan

SEAL_REST: Final = 4
SEAL_REST_S: Final = 0.25
"""After a seal the sealer rests `SEAL_REST` times as long as the seal took, at most SEAL_REST_S."""
QUIET_S: Final = 2.0
"""Without a row for this long, the sealer counts as quiet: floors rise only because time passes."""
QUIET_REST_S: Final = 0.25
"""The rest after a seal while quiet."""
BACKLOG_BYTES: Final = 64 << 20
"""If more bytes than this wait in memory and marks have risen, streams wait for a seal."""
BACKLOG_S: Final = 2.0
"""The longest that a stream waits for it."""
FULL_S: Final = 0.5
"""The pause between two attempts to seal on a full disk."""


class Sealer:
    """The sealer. `minima`: returns the spans, each with its smallest mark. `fail`: called with an error that
    ends the puller.
    """

    def __init__(
        self,
        store: ChangeStore,
        minima: Callable[[], list[tuple[WatchedSpan, Timestamp]]],
        interval_s: float,
        clock: Clock,
        closing: threading.Event,
        fail: Callable[[TidegateError], None],
    ) -> None:
        self.passing = threading.Lock()
        """Held while minima are taken and sealed; rows may be shed only under this lock."""
        self._store, self._minima, self._interval = store, minima, interval_s
        self._clock, self._closing, self._fail = clock, closing, fail
        self._moved = threading.Event()
        self._pressed = threading.Event()  # a stream waits: the sealer must not rest
        self._sealed = threading.Condition()
        self._seals = 0  # passes of the sealer
        self._row_at = clock.monotonic()

    def moved(self) -> None:
        """Wake the sealer: marks have risen, or spans were added."""
        self._moved.set()

    def stir(self) -> None:
        """End the quiet state: rows have arrived, or a caller waits for a new span. Each mark is sealed soon.

        No wake-up is lost. The time is written before the event is set, and `run` reads it before it rests.
        If it reads the earlier time, the event is set later and ends that rest. If the event is cleared
        right after a rest that has ended by itself, the next rest reads this time.
        """
        before, self._row_at = self._row_at, self._clock.monotonic()
        if self._row_at - before >= QUIET_S:
            self._pressed.set()

    def hold_back(self) -> None:
        """Called by a stream after each batch: wait for a seal if it can free much memory."""
        if self._store.held_bytes > BACKLOG_BYTES and self._moved.is_set():
            self._await_seal()

    def wake(self) -> None:
        """Wake the sealer so that it sees `closing`."""
        self._moved.set()
        self._pressed.set()

    def run(self) -> None:
        """The body of the sealer's thread; returns when `closing` is set."""
        try:
            while not self._closing.is_set():
                self._moved.wait()
                # Before the minima are taken, so that a mark that rises after them wakes the sealer once
                # more.
                self._moved.clear()
                began = self._clock.monotonic()
                try:
                    self._seal()
                except Retryable:
                    # If streams wait for room, no mark rises. The next attempt must not depend on one.
                    self._closing.wait(FULL_S)
                    self._moved.set()
                took = self._clock.monotonic() - began
                with self._sealed:
                    self._seals += 1
                    self._sealed.notify_all()
                # Never quiet while rows wait in memory: the next mark may complete them, however old they
                # are.
                quiet = self._clock.monotonic() - self._row_at >= QUIET_S and not self._store.held_bytes
                self._pressed.wait(
                    QUIET_REST_S if quiet else min(max(self._interval, SEAL_REST * took), SEAL_REST_S)
                )
                self._pressed.clear()
        except TidegateError as error:
            self._fail(error)
        except Exception as error:  # for example a broken disk: stop with the reason, never continue unsealed
            self._fail(
                Fatal(
                    "the event store cannot be written",
                    why=repr(error),
                    fix="free disk space, and restart the capture",
                )
            )

    def _seal(self) -> None:
        with self.passing:
            minima = self._minima()
            now = self._clock.monotonic()
            for watched_span, least in minima:
                # MAX is a span without marks. A seal to it would claim changes that were never pulled.
                if watched_span.changes.resolved < least < timestamp.MAX and not watched_span.gone:
                    watched_span.changes.seal(least)
                    watched_span.moved_at = now
            self._store.publish()

    def _await_seal(self) -> None:
        """Wait until the sealer has made two passes, because the first may have begun too early.

        Rows that they could not seal stay in memory, and are spilled later if necessary.
        """
        self._pressed.set()
        with self._sealed:
            target = self._seals + 2
            self._sealed.wait_for(lambda: self._seals >= target or not self._moved.is_set(), BACKLOG_S)
