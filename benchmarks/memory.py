"""(e) Peak memory of each process over a run and over one ten times as long: it should be flat.

The whole capture delivers recorded rows into a real broker at full speed, so that every buffer fills up.
Memory is anonymous memory (see `accounting`): what a process allocated, without the pages of mapped segments.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.broker import delete_topic, new_topic
from benchmarks.product import Product
from benchmarks.rows import Source
from benchmarks.show import Progress
from benchmarks.to_delta import consume, fill

from tidegate.model.timestamp import compose

LONGER: Final = 10
ALLOWED: Final = 1.25
"""A process is flat if ten times the rows take at most a quarter more memory."""
SLACK_MB: Final = 32.0


def measure(bootstrap: str, rows: int, consumer_rows: int, progress: Progress) -> dict[str, Any]:
    """Peaks in MB by process for `rows` and for ten times as many; the consumer's for `consumer_rows`."""
    once, longer = _capture(bootstrap, rows, progress), _capture(bootstrap, LONGER * rows, progress)
    once |= _consumer(bootstrap, consumer_rows, progress)
    longer |= _consumer(bootstrap, LONGER * consumer_rows, progress)
    found = {}
    for role, peak in once.items():
        more = longer.get(role, 0.0)
        found[role] = {"once_mb": peak, "longer_mb": more, "flat": more <= ALLOWED * peak + SLACK_MB}
    return {"rows": rows, "consumer_rows": consumer_rows, "longer": LONGER, "peaks": found}


def _capture(bootstrap: str, rows: int, progress: Progress) -> dict[str, float]:
    topic = new_topic(bootstrap)
    uri = f"kafka://{bootstrap}/{topic}?protocol=open-protocol"
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
        Product(Path(folder), "narrow", rows, uri) as product,
    ):
        progress(f"memory: {rows:,} rows, starting")
        product.start()
        patience_s = 240 + rows / 10_000
        product.wait_rows(rows, patience_s, lambda n: progress(f"memory: {n:,} of {rows:,} rows"))
        assert product.ledger is not None
        peaks = product.ledger.peaks()
    delete_topic(bootstrap, topic)
    return peaks


def _consumer(bootstrap: str, rows: int, progress: Progress) -> dict[str, float]:
    topic = new_topic(bootstrap)
    progress(f"memory: the consumer, {rows:,} rows")
    begin = compose(int(time.time() * 1000) - 3_600_000)
    end = fill(bootstrap, topic, Source.read(), rows, begin, updates=False)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        uri = f"kafka://{bootstrap}/{topic}?protocol=open-protocol"
        peaks = consume(uri, Path(folder), end, rows)["peak_mb"]
    delete_topic(bootstrap, topic)
    return {f"consumer's {role}" if role != "consumer" else role: peak for role, peak in peaks.items()}
