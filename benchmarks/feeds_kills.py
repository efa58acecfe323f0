"""Phases of `benchmarks.feeds` in which processes are killed: workers (`crash`), the application (`death`).

Each figure is the time from a kill until every active changefeed has delivered a row that was committed after
it. `usual_s` is the same without a kill; `costs_s` is the longest after a kill, less the usual.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
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
    usual = [_delivered_s(reader, limit) for _ in range(USUAL)]
    figures.add("usual_s", usual)
    before, took = product.lost_workers(), list[float]()
    try:
        for _ in range(CRASHES):
            kill = partial(os.kill, _busiest(product, limit), signal.SIGKILL)
            took.append(_delivered_s(reader, limit, kill))
    finally:
        figures.add("crashes_s", took)
        # The kills that are counted here have hit the work of a changefeed. The others cost it a writer.
        figures.add("with_work", product.lost_workers() - before)
        if took:
            figures.add("costs_s", round(max(0.0, max(took) - median(usual)), 2))


def death(product: Feeds, reader: FeedReader, figures: Figures, limit: Limit) -> None:
    """Kill the application, with its JVM and its workers."""
    took = list[float]()
    try:
        for _ in range(DEATHS):
            # Its children end with it: each is bound to its parent's life.
            took.append(_delivered_s(reader, limit, lambda: os.kill(product.application(), signal.SIGKILL)))
    finally:
        figures.add("deaths_s", took)
        if took:
            figures.add("again_s", max(took))


def _delivered_s(reader: FeedReader, limit: Limit, kill: Callable[[], None] = lambda: None) -> float:
    """Seconds from a kill until each topic has a row that was committed after it."""
    limit.sleep(PAUSE_S)
    began = time.monotonic()
    kill()
    reader.watch()
    limit.wait(reader.first_rows, 0.01)
    found = reader.first_rows()
    assert found is not None
    return round(max(found) - began, 2)


def _busiest(product: Feeds, limit: Limit) -> int:
    """The worker that uses most CPU."""
    before = {pid: cpu_seconds(pid) or 0.0 for pid in product.workers()}
    limit.sleep(BUSY_S)
    used = {pid: (cpu_seconds(pid) or 0.0) - cpu_s for pid, cpu_s in before.items()}
    if not used:
        raise TimeoutError("the application has no workers")
    return max(used, key=lambda pid: used[pid])
