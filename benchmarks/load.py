"""An initial load into a real Kafka broker: rows per second, and its cost.

    python -m benchmarks.load [--rows 4000000] [--regions 8] [--protocol open-protocol] [--json FILE]

The source is `scan_server`: a separate process in place of PD and TiKV, which serves the recorded table
`narrow` (5 columns, 200 bytes) under new handles. Its CPU is not counted, though it uses the same cores. It
measures the whole capture from the first durable rows to the last, without the start of Spark and its first
tasks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import httpx
from benchmarks.accounting import spent
from benchmarks.broker import new_topic, running_broker
from benchmarks.product import FEED, Product
from benchmarks.rows import LOGS
from benchmarks.show import Ticker

LOG: Final = "narrow"
LOOK_S: Final = 0.2
PATIENCE_S: Final = 600.0


def measure(rows: int, regions: int, protocol: str, progress: Ticker) -> dict[str, Any]:
    """One run."""
    with running_broker() as bootstrap, tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        uri = f"kafka://{bootstrap}/{new_topic(bootstrap)}?protocol={protocol}&max-message-bytes=10485760"
        product = Product(Path(folder), LOG, rows, uri)
        product.source = [sys.executable, "-m", "benchmarks.scan_server", str(LOGS / f"{LOG}.jsonl.gz")]
        product.source += ["--rows", str(rows), "--regions", str(regions)]
        product.options = ["--initial-load"]
        with product:
            product.start()
            return _watch(product, progress)


def _watch(product: Product, progress: Ticker) -> dict[str, Any]:
    assert product.ledger is not None
    deadline = time.monotonic() + PATIENCE_S
    first: tuple[float, int, dict[str, float]] | None = None
    while time.monotonic() < deadline:
        for child in product.children.values():
            child.check()
        load = _load(product)
        progress(f"load: {load['rows']:,} rows")
        if first is None and load["rows"]:
            first = time.monotonic(), load["rows"], product.ledger.cpu()
        if load["state"] == "done":
            assert first is not None, "the load was over before it was seen: give it more rows"
            wall, rows = time.monotonic() - first[0], load["rows"] - first[1]
            roles = spent(first[2], product.ledger.cpu())
            return {
                "rows": load["rows"],
                "measured_rows": rows,
                "wall_s": round(wall, 1),
                "rows_per_s": round(rows / wall),
                "rows_per_cpu_s": round(rows / sum(roles.values())),
                "cpu_s_by_process": roles,
            }
        time.sleep(LOOK_S)
    raise TimeoutError(f"the load was not done within {PATIENCE_S:.0f} s")


def _load(product: Product) -> dict[str, Any]:
    feed = httpx.get(f"http://{product.address}/api/v2/changefeeds/{FEED}", timeout=10).json()
    found: dict[str, Any] = feed["tidegate"]["initial_load"]
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--regions", type=int, default=8)
    parser.add_argument("--protocol", default="open-protocol")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    progress = Ticker()
    found = measure(options.rows, options.regions, options.protocol, progress)
    progress.close()
    print(
        f"{found['measured_rows']:,} of {found['rows']:,} rows in {found['wall_s']} s: "
        f"{found['rows_per_s']:,} rows/s, {found['rows_per_cpu_s']:,} per CPU-second"
    )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
