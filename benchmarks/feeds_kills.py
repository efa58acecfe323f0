"""Phases of `benchmarks.feeds` in which processes are killed: workers (`crash`), the application (`death`).

Each figure is the time from a kill until every active changefeed has delivered a row that was committed after
it. `usual_s` is the same without a kill; `costs_s` is the longest after a kill, less the usual.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Final

from benchmarks.accounting import cpu_seconds
from benchmarks.feeds_capture import FeedReader, Feeds
from benchmarks.feeds_figures import Figures, Limit

USUAL: Final = 5
"""How many times the same is measured without a kill."""
CRASHES: Final = 10
"""Workers killed one after another. Not each of them has work at that moment."""
DEATHS: Final = 2
BUSY_S: Final = 0.5
"""The worker that used most CPU in this time is killed: it probably has work."""
PAUSE_S: Final = 1.0
"""Between two measurements, for the backlog of the last one."""


def crash(product: Feeds, reader: FeedReader, figures: Figures, limit: Limit) -> None:
    """Kill one worker after another."""
    usual = list[float]()
    for _ in range(USUAL):
        limit.sleep(PAUSE_S)
        usual.append(_delivered_s(reader, limit))
    figures.add("usual_s", usual)
    took, with_work = list[float](), list[float]()
    try:
        for _ in range(CRASHES):
            limit.sleep(PAUSE_S)
            before = product.lost_workers()
            seconds = _delivered_s(reader, limit, partial(_kill, _busiest(product, limit)))
            took.append(seconds)
            if product.lost_workers() > before:
                with_work.append(seconds)
    finally:
        figures.add("crashes_s", took)
        # These kills have hit the work of a changefeed. The others cost it a writer.
        figures.add("with_work", len(with_work))
        if with_work:
            figures.add("costs_s", round(max(0.0, max(with_work) - median(usual)), 2))


def death(product: Feeds, reader: FeedReader, figures: Figures, limit: Limit) -> None:
    """Kill the application, with its JVM and its workers."""
    took = list[float]()
    try:
        for _ in range(DEATHS):
            # Its children end with it: each is bound to its parent's life.
            limit.sleep(PAUSE_S)
            took.append(_delivered_s(reader, limit, partial(_kill, product.application())))
    finally:
        figures.add("deaths_s", took)
        if took:
            figures.add("again_s", max(took))


def _delivered_s(reader: FeedReader, limit: Limit, kill: Callable[[], None] = lambda: None) -> float:
    """Seconds from a kill until each topic has a row that was committed after it."""
    began = time.monotonic()
    kill()
    reader.watch()
    limit.wait(reader.first_rows, 0.01)
    found = reader.first_rows()
    assert found is not None
    return round(max(found) - began, 2)


def _kill(pid: int) -> None:
    # It may have ended by itself since it was chosen; then this kill hits nothing.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _busiest(product: Feeds, limit: Limit) -> int:
    """The worker that uses most CPU."""
    before = {pid: cpu_seconds(pid) or 0.0 for pid in product.workers()}
    limit.sleep(BUSY_S)
    used = {pid: (cpu_seconds(pid) or 0.0) - cpu_s for pid, cpu_s in before.items()}
    if not used:
        raise TimeoutError("the application has no workers")
    return max(used, key=lambda pid: used[pid])
