"""(c) Lag from commit to readable: rows stamped with the present time, seen by a read_committed consumer.

The feed server sends `rate` rows a second, every 10 ms the rows of that time, and stamps them with the
present time; the whole capture (server, puller, pipeline) delivers them; a consumer in this process reads
every message as it becomes readable and compares.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from benchmarks.accounting import spent
from benchmarks.broker import PARTITIONS, delete_topic, new_topic
from benchmarks.product import Product
from benchmarks.rig import Rig
from benchmarks.show import Progress
from confluent_kafka import Consumer, TopicPartition

from tidegate.codec import registry
from tidegate.model.timestamp import physical_ms

WARM_UP_S: Final = 20.0
TS: Final = re.compile(rb'"(?:ts|commitTs)":(\d{17,19})')
"""Commit ts in an open-protocol key or a canal-json value (13 digits there are `ts`, its build time)."""


@dataclass(slots=True)
class Reader:
    """Reads a topic from its end and keeps the lag of each row."""

    bootstrap: str
    topic: str
    lags: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    _done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until `stop`."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "lag", "enable.auto.commit": False}
        settings |= {"isolation.level": "read_committed", "fetch.wait.max.ms": 5, "fetch.queue.backoff.ms": 5}
        consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(self.topic, p, 0) for p in range(PARTITIONS)])
        while not self._done.is_set():
            # What has come, or at most 2 ms more: never waits for a full batch.
            messages = consumer.consume(1000, timeout=0.002)
            now, stamp = time.time() * 1000, time.monotonic()
            for message in messages:
                if message.error() is None:
                    self._take(message.key() or b"", message.value() or b"", now, stamp)
        consumer.close()

    def stop(self) -> None:
        """End `run`."""
        self._done.set()

    def _take(self, key: bytes, value: bytes, now: float, stamp: float) -> None:
        # open-protocol: the timestamps are in the key; canal-json: in the value.
        for text in TS.findall(key) or TS.findall(value[-200:]):
            self.lags.append(now - physical_ms(int(text)))
            self.arrived.append(stamp)


def measure(
    bootstrap: str,
    progress: Progress,
    *,
    rate: int = 20_000,
    seconds: float = 60.0,
    warm_up_s: float = WARM_UP_S,
    protocol: str = "open-protocol",
    pipeline: tuple[str, ...] = (),
) -> dict[str, Any]:
    """One run of the whole capture; lags in ms, of rows that arrive `warm_up_s` after the first one.

    `pipeline`: run the rig with these arguments for the pipeline process instead (for A/B runs).
    """
    topic = new_topic(bootstrap)
    rows = int(rate * (seconds + warm_up_s))
    unmarked = registry.codec(protocol).unmarked
    options = f"&{unmarked.option}" if unmarked is not None else ""
    uri = f"kafka://{bootstrap}/{topic}?protocol={protocol}{options}"
    name = f"lag at {rate:,} rows/s, {protocol}"
    reader = Reader(bootstrap, topic)
    thread = threading.Thread(target=reader.run, name="lag-reader", daemon=True)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        setup: Rig | Product
        if pipeline:
            setup = Rig(Path(folder), "narrow", rows, uri, live=rate)
        else:
            setup = Product(Path(folder), "narrow", rows, uri, live=rate)
        with setup:
            progress(f"{name}: starting")
            thread.start()
            if isinstance(setup, Rig):
                setup.start(pipeline, timed=False)
                setup.flow()
            else:
                setup.start()
            assert setup.ledger is not None
            before, began = setup.ledger.cpu(), time.monotonic()
            setup.wait_rows(
                rows,
                2 * (seconds + warm_up_s) + 120,
                lambda n: progress(f"{name}: {n:,} of {rows:,} rows"),
            )
            time.sleep(0.5)  # the last transaction's way to the reader
            wall, roles = time.monotonic() - began, spent(before, setup.ledger.cpu())
            peaks = setup.ledger.peaks()
            reader.stop()
            thread.join()
    delete_topic(bootstrap, topic)
    figures = {"protocol": protocol, "rate": rate, "rows": rows, "rows_read": len(reader.lags)}
    return (
        figures
        | distribution(reader, warm_up_s)
        | {"cores_used": round(sum(roles.values()) / wall, 2), "cpu_s_by_process": roles, "peak_mb": peaks}
    )


def distribution(reader: Reader, warm_up_s: float) -> dict[str, int]:
    """Percentiles of the lag after warm-up, in ms."""
    lags, arrived = np.array(reader.lags), np.array(reader.arrived)
    kept = lags[arrived >= arrived[0] + warm_up_s] if len(arrived) else lags
    if len(kept) == 0:
        raise RuntimeError(f"no row was read after warm-up ({len(lags)} before)")
    p50, p99 = np.percentile(kept, [50, 99])
    return {
        "rows_counted": len(kept),
        "p50_ms": round(float(p50)),
        "p99_ms": round(float(p99)),
        "max_ms": round(float(kept.max())),
    }
