"""How fast a capture lists its changefeeds: the request, and the command that a user types.

    python -m benchmarks.listing [--feeds 200] [--requests 200] [--commands 20] [--json FILE]

It uses a real capture with changefeeds of one table each, its puller and the embedded upstream, but neither
JVM nor broker (`benchmarks.many` says how). The list is asked for with one changefeed and with all of them,
while `--rows` rows per second go to all tables in turns. So the difference is the cost of the further ones.

| figure | what it is |
|---|---|
| request | `GET /api/v2/changefeeds` over an open connection, until the whole answer is read |
| command | `tidegate changefeed list`, from the start of the process to its end |
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from benchmarks.feeds_figures import Limit
from benchmarks.many import Capture, InTurns, name_of
from benchmarks.many_tables import Upstream
from benchmarks.product import tidegate
from benchmarks.rig import end_in_order
from benchmarks.show import Ticker, machine, short, table

from tidegate.kvclient.pd import PdClient

OPEN_S: Final = 600.0
"""All changefeeds must be open within this time."""
SETTLE_S: Final = 5.0
PATH: Final = "/api/v2/changefeeds"


def listed(address: str, requests: int, commands: int, patience_s: float = inf) -> dict[str, Any]:
    """Milliseconds of the request and of the command, and the bytes of the answer.

    After `patience_s` it makes no further requests, and calls no further commands.
    """
    until = time.monotonic() + patience_s
    with httpx.Client(base_url=f"http://{address}", timeout=60, trust_env=False) as client:
        found: dict[str, Any] = {"bytes": len(client.get(PATH).raise_for_status().content)}
        found["request_ms"] = _percentiles(requests, lambda: client.get(PATH).raise_for_status(), until)
    command = tidegate("changefeed", "list", "--server", address)
    run = lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: E731
    return found | {"command_ms": _percentiles(commands, run, until)}


def _percentiles(count: int, call: Callable[[], object], until: float) -> dict[str, float]:
    took = list[float]()
    while len(took) < count and not (took and time.monotonic() > until):
        began = time.perf_counter()
        call()
        took.append(1000 * (time.perf_counter() - began))
    p50, p99 = np.percentile(took, (50, 99))
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2), "max": round(max(took), 2)}


def measure(feeds: int, rows: int, requests: int, commands: int, progress: Ticker) -> list[dict[str, Any]]:
    """The figures with one changefeed, and with `feeds`."""
    found = []
    for count in dict.fromkeys((1, feeds)):
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as temporary:
            folder = Path(temporary)
            with Capture(folder, Upstream(folder, feeds, 10)) as capture:
                progress(f"{count} changefeeds: opening")
                capture.begin()
                limit = Limit(OPEN_S)
                capture.create_feeds([name_of(number) for number in range(count)], limit)
                capture.delivering(count, limit)
                with PdClient(capture.pd) as pd, InTurns(pd, capture.row(), feeds, rows):
                    time.sleep(SETTLE_S)
                    progress(f"{count} changefeeds: listing")
                    found.append({"feeds": count, **listed(capture.address, requests, commands)})
    return found


def shown(found: list[dict[str, Any]]) -> str:
    """The figures as a table."""
    lines = [["changefeeds", "answer, bytes", "request ms: p50, p99, max", "command ms: p50, p99, max"]]
    for one in found:
        times = (", ".join(short(ms) for ms in one[what].values()) for what in ("request_ms", "command_ms"))
        lines.append([str(one["feeds"]), f"{one['bytes']:,}", *times])
    return table(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--feeds", type=int, default=200)
    parser.add_argument("--rows", type=int, default=500, help="a second over all tables")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--commands", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    end_in_order()
    ticker, described = Ticker(), machine()
    found = measure(options.feeds, options.rows, options.requests, options.commands, ticker)
    ticker.close()
    print(shown(found))
    if options.json:
        options.json.write_text(json.dumps({"machine": described, "sizes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
