"""Compares two ways of running the pipeline in turns A B A B ..., so that drift of the machine cancels out.

    python -m benchmarks.ab unix-sockets --rounds 4 --seconds 30
    python -m benchmarks.ab --set spark.python.unix.domain.socket.enabled=false

Measures (c), the lag at a rate, on a rig without the control process. A is the product, B is the product with
the change. Adopt a change only if all runs of B are better than those of A, by 15 % or more.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import broker, lag
from benchmarks.rig import ROOT, end_in_order, use_repository
from benchmarks.show import Ticker, machine, table

CHANGES: Final[dict[str, tuple[str, ...]]] = {
    "unix-sockets": ("--set", "spark.python.unix.domain.socket.enabled=false"),
}
"""The settings of B: no Unix sockets between the JVM and its workers."""
PROBE: Final = ("-m", "benchmarks.pipeline_probe")


def measure(
    name: str, change: tuple[str, ...], rounds: int, rate: int, seconds: float, ticker: Ticker
) -> list[dict[str, Any]]:
    """The runs of one comparison, in the order in which they were made."""
    found = []
    with broker.running_broker() as bootstrap:
        for number in range(2 * rounds):
            side, extra = ("A", ()) if number % 2 == 0 else ("B", change)
            ticker(f"{name}: run {number + 1} of {2 * rounds}, {side}")
            run = lag.measure(bootstrap, ticker, rate=rate, seconds=seconds, pipeline=(*PROBE, *extra))
            found.append({"change": name, "side": side, **run})
    return found


def verdict(runs: list[dict[str, Any]], key: str) -> str:
    """Medians of both sides, the gain, and whether the sides overlap."""
    a, b = ([run[key] for run in runs if run["side"] == side] for side in "AB")
    gain = 1 - median(b) / median(a)
    apart = max(b) < min(a) or max(a) < min(b)
    return f"{median(a):g} -> {median(b):g} ({gain:+.0%}, {'apart' if apart else 'overlapping'})"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("changes", nargs="*", choices=[[], *CHANGES], help="which to try; default all")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="B is this setting")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run, after 20 s of warm-up")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "ab.json")
    options = parser.parse_args()
    wanted = {name: CHANGES[name] for name in options.changes or ([] if options.set else CHANGES)}
    if options.set:
        wanted["; ".join(options.set)] = tuple(part for pair in options.set for part in ("--set", pair))
    use_repository()
    end_in_order()
    facts, ticker = machine(), Ticker()
    runs, lines = [], [["B is", "p50 ms", "p99 ms", "cores"]]
    for name, change in wanted.items():
        found = measure(name, change, options.rounds, options.rate, options.seconds, ticker)
        runs += found
        lines.append([name, *(verdict(found, key) for key in ("p50_ms", "p99_ms", "cores_used"))])
    ticker.close()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": facts, "runs": runs}, indent=1) + "\n")
    print(table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
