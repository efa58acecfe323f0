"""(c) Lag from commit to readable: rows with the current time as commit ts, read by a read_committed
consumer.

    python -m benchmarks.lag [--rates 500 20000] [--seconds 60] [--first-rows 30] [--json FILE]

The feed server sends `rate` rows per second, every 10 ms the rows of that time, with the current time as
commit ts. The whole capture (server, puller, pipeline) delivers them. A consumer in this process reads every
message as soon as it is readable, and compares the times.

`--first-rows` measures the lag of single rows, each after QUIET_S or more without rows. It uses the embedded
upstream, because the feed server never pauses. To compare two commits, run this with the same arguments in
turns.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from benchmarks.accounting import spent
from benchmarks.broker import PARTITIONS, delete_topic, new_topic, running_broker
from benchmarks.many_tables import Many, Upstream
from benchmarks.product import Product
from benchmarks.rig import Rig, end_in_order, eventually
from benchmarks.show import Progress, Ticker, machine, table
from confluent_kafka import Consumer, Message, TopicPartition

from tidegate.codec import registry
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.model.timestamp import physical_ms
from tidegate.tidb import keys

WARM_UP_S: Final = 20.0
PATIENCE_S: Final = 300.0
"""How long to wait for a row. The first one waits for the start of JVM and workers."""
QUIET_S: Final = (2.5, 3.5)
"""The pause before each of `--first-rows`: longer than the time after which any part counts as quiet."""
FIRST: Final = 5
"""How many of these rows are not counted at first, while the JVM compiles."""
TS: Final = re.compile(rb'"(?:ts":(?=\d+,"scm":)|commitTs":)(\d{17,19})')
"""A row's commit ts, in an open-protocol key or a canal-json value (`ts` of 13 digits is its build time).
Resolved marks have no `scm`."""


@dataclass(slots=True)
class Reader:
    """Reads topics from their beginning and keeps the lag of each row."""

    bootstrap: str
    topics: Sequence[str]
    partitions: int = PARTITIONS
    look_ms: int = 2
    """The longest pause between two looks. A row's lag may come out longer by this much and `fetch_ms`."""
    fetch_ms: int = 5
    """How long the broker waits for `fetch_bytes` before it answers."""
    fetch_bytes: int = 1
    lags: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    _done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Read until `stop`."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "lag", "enable.auto.commit": False}
        settings |= {"isolation.level": "read_committed", "fetch.wait.max.ms": self.fetch_ms}
        settings |= {"fetch.min.bytes": self.fetch_bytes, "fetch.queue.backoff.ms": 5}
        consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
        places = [TopicPartition(topic, p, 0) for topic in self.topics for p in range(self.partitions)]
        consumer.assign(places)
        while not self._done.is_set():
            # Take what has arrived, or wait a moment, but never wait for a full batch.
            messages = consumer.consume(1000, timeout=self.look_ms / 1000)
            now, stamp = time.time() * 1000, time.monotonic()
            for message in messages:
                if message.error() is None:
                    self._take(message, now, stamp)
        consumer.close()

    def stop(self) -> None:
        """End `run`."""
        self._done.set()

    def wait(self, rows: int) -> None:
        """Wait until `rows` rows were read."""
        eventually(f"{rows} rows read", lambda: len(self.lags) >= rows, PATIENCE_S, pause_s=0.05)

    def _take(self, message: Message, now: float, stamp: float) -> None:
        for committed_ms in committed(message):
            self.lags.append(now - committed_ms)
            self.arrived.append(stamp)


def committed(message: Message) -> list[int]:
    """The times at which the rows of a message were committed, in ms of Unix time."""
    # open-protocol: the timestamps are in the key; canal-json: in the value.
    found = TS.findall(message.key() or b"") or TS.findall((message.value() or b"")[-200:])
    return [physical_ms(int(text)) for text in found]


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
    """One run of the whole capture. Lags are in ms, of rows that arrive `warm_up_s` after the first one or
    later.

    `pipeline`: run the rig with these arguments for the pipeline process instead (for A/B runs).
    """
    topic = new_topic(bootstrap)
    rows = int(rate * (seconds + warm_up_s))
    uri = sink_uri(bootstrap, topic, protocol)
    name = f"lag at {rate:,} rows/s, {protocol}"
    reader = Reader(bootstrap, [topic])
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
            time.sleep(0.5)  # until the last transaction reaches the reader
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


def sink_uri(bootstrap: str, topic: str, protocol: str) -> str:
    """A URI for a topic that contains only rows, if the protocol can leave marks out."""
    unmarked = registry.codec(protocol).unmarked
    options = f"&{unmarked.option}" if unmarked is not None else ""
    return f"kafka://{bootstrap}/{topic}?protocol={protocol}{options}"


def distribution(reader: Reader, warm_up_s: float) -> dict[str, int]:
    """Percentiles of the lag after warm-up, in ms."""
    lags, arrived = np.array(reader.lags), np.array(reader.arrived)
    kept = lags[arrived >= arrived[0] + warm_up_s] if len(arrived) else lags
    if len(kept) == 0:
        raise RuntimeError(f"no row was read after warm-up ({len(lags)} before)")
    return percentiles(kept)


def percentiles(kept: npt.NDArray[np.float64]) -> dict[str, int]:
    """Percentiles of lags, in ms."""
    p50, p99 = np.percentile(kept, [50, 99])
    return {
        "rows_counted": len(kept),
        "p50_ms": round(float(p50)),
        "p99_ms": round(float(p99)),
        "max_ms": round(float(kept.max())),
    }


def measure_first(bootstrap: str, progress: Progress, rows: int) -> dict[str, Any]:
    """Lags of single rows, each after a pause, in ms."""
    topic = new_topic(bootstrap)
    reader, pauses = Reader(bootstrap, [topic]), random.Random(1)
    thread = threading.Thread(target=reader.run, name="lag-reader", daemon=True)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as temporary:
        folder = Path(temporary)
        uri = sink_uri(bootstrap, topic, "open-protocol")
        with Many(folder, Upstream(folder, 1, 1), uri) as product:
            progress("first rows: starting")
            product.begin()
            product.open()
            thread.start()
            with PdClient(product.pd) as pd:
                row = product.row()
                for number in range(1, FIRST + rows + 1):
                    progress(f"first rows: {number} of {FIRST + rows} rows")
                    time.sleep(pauses.uniform(*QUIET_S))
                    transaction = Transaction(pd)
                    transaction.put(keys.int_record(Upstream.id_of(0), number), row)
                    transaction.commit()
                    reader.wait(number)
            reader.stop()
            thread.join()
    delete_topic(bootstrap, topic)
    return {"rows_read": len(reader.lags), "rows": FIRST + rows} | percentiles(np.array(reader.lags[FIRST:]))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", type=int, nargs="*", default=[500, 20_000], help="rows a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first-rows", type=int, default=30, help="0: none")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    end_in_order()
    # Compile kernels now, so that they are not compiled during a measurement.
    subprocess.run([sys.executable, "-m", "tidegate.kernel"], check=True, stdout=subprocess.DEVNULL)
    ticker, found = Ticker(), dict[str, dict[str, Any]]()
    with running_broker() as bootstrap:
        if options.first_rows:
            found["first rows"] = measure_first(bootstrap, ticker, options.first_rows)
        for rate in options.rates:
            found[f"{rate:,} rows/s"] = measure(bootstrap, ticker, rate=rate, seconds=options.seconds)
    ticker.close()
    names = ("rows_counted", "p50_ms", "p99_ms", "max_ms", "cores_used")
    lines = [[name, *(str(one.get(figure, "")) for figure in names)] for name, one in found.items()]
    print(table([["lag", *names], *lines]))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
