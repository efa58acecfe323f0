"""A changefeed that 1 to 100 captures share, simulated: how long a change takes, and how even it gets.

    python -m benchmarks.many_captures [--seed 0] [--tables 300] [--captures 1 3 10 30 100] [--json FILE]

Machines, messages, grants and divisions are the product's; network, etcd, upstream and sink are modelled
(docs/internals/simulator.md). Times are virtual seconds, so that they do not depend on this machine: the same
seed gives the same table. Only the last line has real seconds. The session's TTL is 10 s.

- took: until exactly the captures that live deliver, loads are even, and a checkpoint above the time of the
  event is stored;
- halted: the longest time without a higher stored checkpoint, which is stored twice a second at most;
- rounds: how often the key space was divided, and all incarnations began;
- load: the greatest load as a multiple of the mean, right after the event and at its end. It cannot be below
  `least`, because a table is never cut;
- moved: the share of bytes that changed its capture;
- messages: per second, between captures, while nothing happens.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.show import machine, table

from tidegate.simulator.growth import Event, Growth

SIZES: Final = (1, 3, 10, 30, 100)
HEADINGS: Final = (
    "event", "captures", "took s", "halted s", "rounds", "ranges", "load before", "load after", "least",
    "moved", "messages/s",
)  # fmt: skip


def cells(event: Event) -> list[str]:
    """One line of the table."""
    loads = event.load_before, event.load_after, event.load_least
    return [
        event.what, str(event.captures), f"{event.took_s:.1f}", f"{event.halted_s:.1f}", str(event.rounds),
        str(event.ranges), *(f"{load:.2f}" if load else "-" for load in loads), f"{100 * event.moved:.1f} %",
        f"{event.messages_s:.0f}",
    ]  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--captures", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    growth = Growth(options.seed, tables=options.tables, sizes=options.captures)
    events = growth.grow(lambda event: print(f"{event.what} ...", file=sys.stderr))
    print(table([HEADINGS, *map(cells, events)]))
    virtual_s, took_s = growth.world.time.now, time.monotonic() - began
    print(
        f"{options.tables:,} tables, seed {options.seed}: {virtual_s:,.0f} virtual seconds in {took_s:.0f} s"
    )
    if options.json:
        found = {"machine": machine(), "events": [asdict(event) for event in events]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
