"""Seals spans to the frontier's minima and publishes them, in a thread of its own.

Woken by each rise of a mark. After a seal it rests for a while, so that under a flood the segments become
large enough that few are merged, and sealing takes about a fifth of a core. When no row has come for a
while, it rests longer: floors that rise with time alone are published four times a second, since each time
costs all their readers a look. The first row ends that rest, so the mark that completes it never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tidegate.clock import Clock
from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.model import timestamp
from tidegate.model.timestamp import Timestamp
from tidegate.puller.store_protocol import Sink
from tidegate.puller.watched_span import Watched

SEAL_REST: Final = 4
SEAL_REST_S: Final = 0.25
"""After a seal the sealer rests `SEAL_REST` times as long as it took, at most SEAL_REST_S."""
QUIET_S: Final = 2.0
"""After so long without a row, floors rise with time alone."""
QUIET_REST_S: Final = 0.25
"""Then it rests for so long after a seal."""
BACKLOG_BYTES: Final = 64 << 20
"""While more waits in memory and a seal can take some of it away, streams wait for the seal."""
BACKLOG_S: Final = 2.0
FULL_S: Final = 0.5
"""Between two attempts to seal on a full disk."""


class Sealer:
    """`minima`: the spans with the least ts of each, now. `fail` is told what ends the puller."""

    def __init__(
        self,
        store: Sink,
        minima: Callable[[], list[tuple[Watched, Timestamp]]],
        interval_s: float,
        clock: Clock,
        closing: threading.Event,
        fail: Callable[[TidegateError], None],
    ) -> None:
        self.passing = threading.Lock()
        """While minima are taken and sealed, nothing may be shed."""
        self._store, self._minima, self._interval = store, minima, interval_s
        self._clock, self._closing, self._fail = clock, closing, fail
        self._moved = threading.Event()
        self._pressed = threading.Event()  # a stream waits: the sealer must not rest
        self._sealed = threading.Condition()
        self._seals = 0  # passes of the sealer
        self._row_at = clock.monotonic()

    def moved(self) -> None:
        """Marks have risen, or spans have come."""
        self._moved.set()

    def stir(self) -> None:
        """Rows have come, or somebody waits for a span to begin: rise at every mark for a while.

        No wake-up is lost. The time is written before the event is set, and `run` reads it before it rests.
        If it reads the earlier time, the event is set later and ends that rest. If the event is cleared
        right after a rest that has ended by itself, the next rest reads this time.
        """
        before, self._row_at = self._row_at, self._clock.monotonic()
        if self._row_at - before >= QUIET_S:
            self._pressed.set()

    def hold_back(self) -> None:
        """Called by a stream after each batch: wait while much waits that a seal can take."""
        if self._store.held_bytes > BACKLOG_BYTES and self._moved.is_set():
            self._await_seal()

    def wake(self) -> None:
        """Look at `closing` now."""
        self._moved.set()
        self._pressed.set()

    def run(self) -> None:
        """Until `closing` is set."""
        try:
            while not self._closing.is_set():
                self._moved.wait()
                self._moved.clear()
                began = self._clock.monotonic()
                try:
                    self._seal()
                except Retryable:
                    self._closing.wait(FULL_S)
                    self._moved.set()
                took = self._clock.monotonic() - began
                with self._sealed:
                    self._seals += 1
                    self._sealed.notify_all()
                # Rows that a mark may complete are nobody's to keep, however long ago they came.
                quiet = self._clock.monotonic() - self._row_at >= QUIET_S and not self._store.held_bytes
                self._pressed.wait(
                    QUIET_REST_S if quiet else min(max(self._interval, SEAL_REST * took), SEAL_REST_S)
                )
                self._pressed.clear()
        except TidegateError as error:
            self._fail(error)
        except Exception as error:  # a broken disk, for one: say so and stop, never go on unsealed
            self._fail(Fatal("the event store cannot be written", why=repr(error), fix="make room, restart"))

    def _seal(self) -> None:
        with self.passing:
            minima = self._minima()
            now = self._clock.monotonic()
            for watched, least in minima:
                if watched.sink.resolved < least < timestamp.MAX and not watched.gone:
                    watched.sink.seal(least)
                    watched.moved_at = now
            self._store.publish()

    def _await_seal(self) -> None:
        """Until the sealer has passed twice, so once from its start; what it cannot take is spilled later."""
        self._pressed.set()
        with self._sealed:
            target = self._seals + 2
            self._sealed.wait_for(lambda: self._seals >= target or not self._moved.is_set(), BACKLOG_S)
