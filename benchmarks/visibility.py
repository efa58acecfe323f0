"""How long a watermark takes from its arrival in the topic until its rows are visible in MariaDB.

Mixed changes arrive at a steady rate, with a mark every `TICK_S`, in a topic that `tidegate consumer run`
reads. The messages are made beforehand, because making them would compete with the consumer. A mark has
arrived when the broker has acknowledged it in all partitions. It is visible when the position at the target
has reached it: the position moves after all lanes have committed. The position is read every `POLL_S`, so a
figure may be larger than the truth by this much. Marks of the first seconds do not count.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from benchmarks.accounting import busy_seconds
from benchmarks.database_topic import (
    PATIENCE_S,
    Services,
    Tables,
    Topic,
    consumer,
    mixed,
    position_of,
    wait_position,
)

from tidegate.consumer.mysql.session import MySqlServer

RATE: Final = 20_000
SECONDS: Final = 20.0
COMMIT_INTERVAL_S: Final = 0.1
TICK_S: Final = 0.1
WARM_UP_S: Final = 5.0
POLL_S: Final = 0.005


class Watcher:
    """Reads the position at the target again and again, in a thread of its own."""

    def __init__(self, server: MySqlServer, until: int) -> None:
        """Ends when the position is at `until`."""
        self._connection, self._until = server.connect(), until
        self.seen: list[tuple[float, int]] = []
        """When a position was read first, and its ts."""
        self.thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        at, ts = time.monotonic(), 0
        deadline = at + PATIENCE_S
        with self._connection.cursor() as cursor:
            while ts < self._until and at < deadline:
                found, at = position_of(cursor), time.monotonic()
                if found > ts:
                    ts = found
                    self.seen.append((at, ts))
                time.sleep(POLL_S)
        self._connection.close()

    def delays_ms(self, arrived: list[tuple[float, int]]) -> list[float]:
        """How long each mark took, given as (when it arrived, its ts)."""
        times, positions = (np.array(column) for column in zip(*self.seen, strict=True))
        places = np.searchsorted(positions, [ts for _, ts in arrived])
        assert places.max() < len(positions), "the target has not reached all marks"
        waited: list[float] = ((times[places] - [at for at, _ in arrived]) * 1000).tolist()
        return waited


def visibility(services: Services, tables: Tables, options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """The figures of one run, and the number of rows that are at the target then."""
    changes = int(options.rate * (options.visible_warm_up + options.seconds))
    there, parts = mixed(changes)
    topic = Topic(services.bootstrap, tables)
    topic.create_tables()
    warm = topic.fill(there)
    ticks = round((options.visible_warm_up + options.seconds) / TICK_S)
    # The generator pauses after each round, so `ts` is that round's mark.
    made = [(messages, topic.ts) for messages in topic.rounds(parts, ticks)]
    until = made[-1][1]
    more = ["--until", str(until), "--master", options.later_master]
    more += ["--commit-interval", str(options.commit_interval)]
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-", ignore_cleanup_errors=True) as folder,
        consumer(services, topic, Path(folder), more) as child,
    ):
        wait_position(services.server, warm, child)
        watcher, arrived = Watcher(services.server, until), list[tuple[float, int]]()
        began, busy = time.monotonic(), busy_seconds()
        for number, (messages, ts) in enumerate(made):
            time.sleep(max(0.0, began + number * TICK_S - time.monotonic()))
            topic.send(messages)
            arrived.append((time.monotonic(), ts))
        spent_s = time.monotonic() - began
        cores = (busy_seconds() - busy) / spent_s
        wait_position(services.server, until, child)
        watcher.thread.join(PATIENCE_S)
        child.wait(60)
    topic.delete()
    delays = watcher.delays_ms(arrived[round(options.visible_warm_up / TICK_S) :])
    p50, p99 = np.percentile(delays, [50, 99])
    return {
        "rate": changes / spent_s,
        "commit_interval_s": options.commit_interval,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "max_ms": max(delays),
        "marks": len(delays),
        "cores": round(cores, 2),
    }, changes - changes // 5
