"""Range lock and frontier of the capture client with many regions, without network or rows.

    python -m benchmarks.frontier [--regions 100000] [--json FILE]

- lock, unlock: lock every region of one span; then unlock all and lock them again, in random order, as after
  the loss of a store;
- tick: raise every region's resolved ts once, in messages of 8, 32, 128, ... regions, as TiKV groups them;
  after every 1,000 updates read the minimum, as the sealer does at most every 10 ms;
- single: raise one region's ts, then read the minimum, without batching;
- worst: the same, always for a region that has the minimum, so that each update needs a whole pass.

Figures are by the wall clock on one core, in microseconds for one region's update.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Final

import numpy as np

from tidegate.model.span import Span
from tidegate.puller.frontier import Frontier
from tidegate.puller.range_lock import Locked, RangeLock

GROUPS: Final = (8, 32, 128, 512, 2048)
PASS: Final = 1000
SINGLE: Final = 2000


def _key(number: int) -> bytes:
    return b"t" + number.to_bytes(8, "big")


def measure(regions: int) -> dict[str, float]:
    """Microseconds for an update, by figure."""
    found: dict[str, float] = {}
    rng = np.random.default_rng(1)
    bounds = [Span(_key(i), _key(i + 1)) for i in range(regions)]
    lock = RangeLock(Span(_key(0), _key(regions)), 1)
    began = time.perf_counter()
    for i, span in enumerate(bounds):
        assert isinstance(lock.lock(span, i, 1), Locked)
    for i in rng.permutation(regions).tolist():
        lock.unlock(bounds[i], i, 1, 5)
        assert lock.free_resolved is not None
    for i in rng.permutation(regions).tolist():
        assert isinstance(lock.lock(bounds[i], i, 2), Locked)
    found["lock, unlock"] = (time.perf_counter() - began) / (3 * regions) * 1e6

    frontier = Frontier()
    marks = np.array([frontier.hold(0, 1) for _ in range(regions)], dtype=np.int64)
    order = rng.permutation(marks)
    began = time.perf_counter()
    at = since = group = 0
    while at < regions:
        some = order[at : at + GROUPS[group % len(GROUPS)]]
        frontier.advance(some, np.full(len(some), 10, dtype=np.uint64))
        at, since, group = at + len(some), since + len(some), group + 1
        if since >= PASS:
            frontier.minima(1)
            since = 0
    assert frontier.minima(1).tolist() == [10]
    found["tick"] = (time.perf_counter() - began) / regions * 1e6

    lag = frontier.hold(0, 5)
    began = time.perf_counter()
    for i in range(SINGLE):
        frontier.advance(order[i : i + 1], np.array([20 + i], dtype=np.uint64))
        assert frontier.minima(1)[0] == 5
    found["single"] = (time.perf_counter() - began) / SINGLE * 1e6
    frontier.release(lag)
    began = time.perf_counter()
    for i in range(SINGLE, 2 * SINGLE):
        frontier.advance(order[i : i + 1], np.array([1 << 40], dtype=np.uint64))
        frontier.minima(1)
    found["worst"] = (time.perf_counter() - began) / SINGLE * 1e6
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--regions", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.regions)
    for name, micros in found.items():
        print(f"{name:14} {micros:10.3f} us an update   ({options.regions:,} regions)")
    if options.json:
        options.json.write_text(json.dumps({"regions": options.regions, "us_per_update": found}))


if __name__ == "__main__":
    main()
