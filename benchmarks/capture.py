"""The capture without a pipeline: feed server -> gRPC -> scan -> match -> sort -> segments -> read.

    python -m benchmarks.capture LOG [--rows N] [--json FILE]

The feed server is a separate process and is not counted. CPU seconds are taken for each thread from /proc, so
that the bottleneck is visible: `receive` is gRPC's threads and the reader, `match` the stream's worker (scan,
match, gather, append), `seal` the sealer (sort, gather, CRC, write). `read` is this program, which reads the
segments like the pipeline does and drops the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tidegate.eventstore import kernels as store_kernels
from tidegate.eventstore import reader, store_view
from tidegate.eventstore.store import EventStore
from tidegate.kvclient.pd import PdClient
from tidegate.model.span import Span, span_id
from tidegate.puller.match import block_matcher
from tidegate.puller.puller import Puller

SIGN = 1 << 63


def table_span(table_id: int) -> Span:
    """The record span of a table."""
    prefix = b"t" + (table_id ^ SIGN).to_bytes(8, "big") + b"_"
    return Span(prefix + b"r", prefix + b"s")


def cpu_by_thread() -> dict[str, float]:
    """CPU seconds of this process so far, by stage."""
    names = {str(t.native_id): t.name for t in threading.enumerate()}
    tick = os.sysconf("SC_CLK_TCK")
    stages: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        stage = _stage(names.get(task.name, "grpc"))
        stages[stage] = stages.get(stage, 0.0) + (int(fields[11]) + int(fields[12])) / tick
    return stages


def _stage(thread: str) -> str:
    if thread.endswith("-work"):
        return "match"
    if thread == "puller-sealer":
        return "seal"
    if thread == "MainThread":
        return "read"
    return "receive"


def measure(log: Path, rows: int, folder: Path) -> dict[str, Any]:
    """One run; figures by name."""
    command = [sys.executable, "-m", "benchmarks.feed_server", str(log), "--rows", str(rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        try:
            return _run(ready, rows, folder)
        finally:
            server.terminate()


def _run(ready: dict[str, Any], rows: int, folder: Path) -> dict[str, Any]:
    pd, store = PdClient(ready["pd"]), EventStore(folder)
    puller = Puller(pd, store)
    span, start_ts = table_span(ready["table_id"]), pd.tso()
    before, began = cpu_by_thread(), time.monotonic()
    puller.watch(span, start_ts)
    read = size = 0
    after = start_ts
    while read < rows and puller.failure is None:
        upto = store_view.read_frontier(folder).get(span_id(span), start_ts)
        for block in reader.read(folder, span_id(span), after, upto):
            read, size = read + block.num_rows, size + block.nbytes
        if upto == after:
            time.sleep(0.005)
        after = upto
        # Drop what was read at once: on a virtual machine fresh pages would cost more than everything else.
        store.open_span(span).drop_below(after)
    wall, now = time.monotonic() - began, cpu_by_thread()
    puller.close()
    store.close()
    pd.close()
    stages = {name: round(now[name] - before.get(name, 0.0), 3) for name in now}
    return {
        "rows": read,
        "bytes_per_row": round(size / max(1, read)),
        "wall_s": round(wall, 3),
        "rows_per_s": round(read / wall),
        "cpu_s": stages,
        "us_per_row": {name: round(cpu / read * 1e6, 3) for name, cpu in stages.items()},
        "rows_per_cpu_s": round(read / sum(stages.values())),
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    block_matcher.warm()
    store_kernels.warm()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options.log, options.rows, Path(folder))
    for name, value in figures.items():
        print(f"{name:22} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
