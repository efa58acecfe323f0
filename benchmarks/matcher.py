"""The matcher alone: prewrites and commits of one stream as messages, matched and gathered into blocks.

    python -m benchmarks.matcher [--open 10000] [--events 4000000] [--json FILE]

Rows have 200 bytes (key 32, value 140, old value 28), in messages of 1,000 rows and transactions of 20 rows
over 64 regions. `--open` rows are prewritten before the first is committed, and that number stays open all
the time. An event is a prewrite or a commit. Messages are made beforehand. Figures are CPU seconds of the one
thread: for the whole way to Arrow blocks, and for the kernels that scan the wire format and match, without
the copies.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from tidegate.model.span import Span
from tidegate.proto import cdcpb_pb2 as cdcpb
from tidegate.puller.match import block_matcher, match_kernels, scan_kernels
from tidegate.puller.match.block_matcher import BlockMatcher

REGIONS: Final = 64
ROWS: Final = 1000
TRANSACTION: Final = 20
BATCH: Final = 8


def _message(kind: int, first: int) -> bytes:
    """ROWS rows of one region, from row number `first` on."""
    event = cdcpb.Event(region_id=1 + first // ROWS % REGIONS, request_id=7)
    for number in range(first, first + ROWS):
        start = 1000 + number // TRANSACTION
        row = event.entries.entries.add(type=kind, start_ts=start, op_type=cdcpb.Event.Row.PUT)
        row.key = b"t%031d" % number
        if kind == cdcpb.Event.PREWRITE:
            row.value, row.old_value = b"v" * 140, b"o" * 28
        else:
            row.commit_ts = start + 1_000_000_000
    return bytes(cdcpb.ChangeDataEvent(events=[event]).SerializeToString())


def measure(open_rows: int, events: int, clock: KernelClock) -> dict[str, float]:
    """Events per CPU second while `open_rows` rows are open."""
    matcher = BlockMatcher()
    for region in range(1, REGIONS + 1):
        matcher.register(7, region, 0, region, Span(b"", b""), 1)
        event = cdcpb.Event(region_id=region, request_id=7)
        event.entries.entries.add(type=cdcpb.Event.INITIALIZED)
        matcher.feed([cdcpb.ChangeDataEvent(events=[event]).SerializeToString()])
    lead = max(ROWS, open_rows // ROWS * ROWS)
    for first in range(0, lead, ROWS):
        matcher.feed([_message(cdcpb.Event.PREWRITE, first)])
    at = cpu = done = changes = 0.0
    rng = np.random.default_rng(1)
    commits = list(range(0, lead, ROWS))
    clock.cpu = 0.0
    while done < events:
        batch = []
        for _ in range(BATCH):
            prewritten = int(lead + at)
            batch.append(_message(cdcpb.Event.PREWRITE, prewritten))
            commits.append(prewritten)
            batch.append(_message(cdcpb.Event.COMMIT, commits.pop(int(rng.integers(len(commits))))))
            at += ROWS
        began = time.thread_time()
        changes += matcher.feed(batch).changes
        matcher.relieve()
        cpu += time.thread_time() - began
        done += 2 * ROWS * BATCH
    assert changes == done / 2
    return {
        "open": open_rows,
        "events": done,
        "events_per_cpu_s": round(done / cpu),
        "matched_per_cpu_s": round(done / clock.cpu),
    }


class KernelClock:
    """The CPU time of the kernels that scan and match."""

    KERNELS = ((scan_kernels, "scan"), (match_kernels, "locate"), (match_kernels, "match"))

    def __init__(self) -> None:
        self.cpu = 0.0
        for module, name in self.KERNELS:
            setattr(module, name, self._timed(getattr(module, name)))

    def _timed(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(kernel)
        def run(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return kernel(*arguments)
            finally:
                self.cpu += time.thread_time() - began

        return run


def main() -> None:
    """Print one line for each number of open rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--open", type=int, nargs="+", default=[1000, 10_000, 200_000])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    block_matcher.warm()
    clock = KernelClock()
    figures = [measure(rows, options.events, clock) for rows in options.open]
    for found in figures:
        whole, matched = found["events_per_cpu_s"] / 1e6, found["matched_per_cpu_s"] / 1e6
        print(f"{found['open']:>10,.0f} rows open   {whole:8.1f} M events per CPU-second to blocks", end="")
        print(f"   {matched:8.1f} M scanned and matched")
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
