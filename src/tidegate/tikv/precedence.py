"""Lets scans pause while clients wait for something else: requests, and ticks of the resolved ts.

    a request arrives, is durable, is answered | a tick begins --> SERVED.mark --> scans pause for SERVED_S

TiKV scans in other threads than it serves, on other cores. Here all threads share one interpreter. A thread
that serves would get it only in turns with a scan that computes, and a commit passes through many threads.
Its locks hold the resolved ts back meanwhile, so every changefeed of the region would wait for the scan of
one that was resumed far back (`python -m benchmarks.neighbours`), or for the pages of an initial load
(`txn.read_calls`).

PD's timestamps make no scan pause: one is served in microseconds, and clients ask for many.

Bound: however many requests there are, scans compute for about a third of the time (`PAUSE_SHARE`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

SERVED_S: Final = 0.002
"""How long scans pause for a step of a request. It is as long as a step takes, with the client's part between
an answer and its next request, so that few steps begin while a scan computes. If it were longer, scans would
be slower for nothing: with ten commits and twenty ticks a second they pause for about a fifth of the time.
"""
PAUSE_SHARE: Final = 2.0
"""A scan pauses at most this many times as long as it computes."""
PAUSE_MAX_S: Final = 0.02
"""The longest pause, in which a whole commit fits: of a scan that did not pause before."""
PAUSE_MIN_S: Final = 0.0001
"""A shorter rest is left out: the system's timer takes half as long already."""
ENTRIES: Final = 64
"""A scan looks once in so many entries of the engine, which take about a fifth of a millisecond, whether they
have rows to send or not."""


class Served:
    """When a step of a request began last. Any thread may call `mark`, several times for a request."""

    __slots__ = ("_monotonic", "until")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.until = 0.0
        """Scans pause until then, in monotonic seconds."""

    def mark(self) -> None:
        """Note that a step begins for which a client waits."""
        # A single store, without a lock: of two at the same time any may win.
        self.until = self._monotonic() + SERVED_S


SERVED: Final = Served()
"""One for the process, as the interpreter is: the stores of an upstream share both."""


class Pauses:
    """The pauses of one scan. For one thread."""

    def __init__(
        self,
        served: Served = SERVED,
        monotonic: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`monotonic`: the clock of `served`. `cpu`: the CPU seconds of this thread."""
        self._served, self._monotonic, self._cpu, self._sleep = served, monotonic, cpu, sleep
        self._cpu_s = cpu()
        self._left_s = PAUSE_MAX_S
        """How long the scan may pause by the bound, in seconds."""

    def pause(self) -> None:
        """Pause while clients wait for something else, if the bound allows it."""
        # By CPU: a scan that waits, for its client or for another scan, does not compute.
        before, self._cpu_s = self._cpu_s, self._cpu()
        self._left_s = min(PAUSE_MAX_S, self._left_s + PAUSE_SHARE * (self._cpu_s - before))
        now = self._monotonic()
        # Again after each sleep: the request may have taken another step meanwhile.
        while (rest_s := min(self._served.until - now, self._left_s)) >= PAUSE_MIN_S:
            self._sleep(rest_s)
            began, now = now, self._monotonic()
            self._left_s -= now - began


def pausing(entries: Iterator[T], pauses: Pauses) -> Iterator[T]:
    """The same entries, with a look at `pauses` once in `ENTRIES` of them.

    Reads no entry in advance, because those of raw keys have whole values.
    """
    for number, entry in enumerate(entries, 1):
        yield entry
        if number % ENTRIES == 0:
            pauses.pause()
