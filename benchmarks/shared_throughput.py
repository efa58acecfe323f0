"""The throughput of two captures that share a changefeed, as a share of what one of them delivers alone.

    python -m benchmarks.shared_throughput [--rows 400000] [--tables 8] [--rounds 3] [--cores N] [--json FILE]

Two `tidegate server` with a real etcd, the embedded upstream and a real Kafka broker, all on this machine.
The rows are committed once, spread evenly over the tables (copies of the narrow one, as in
`benchmarks.tables`). Then each run creates another changefeed that starts below them, so every run pulls and
delivers the same history. In a run with one capture the other one is drained: it runs, and works for nothing.
Runs with one and with two captures take turns, and every second round begins with two. One run before them
with both is not measured: it warms up JVMs, workers and kernels.

- rows/s: by the wall clock, from the first row that is reported until all are. So the start of the
  changefeed does not count; `from create` has it;
- rows per CPU-second: CPU of the captures and all their processes from `changefeed create` on. Upstream, etcd
  and broker do not count, but they use the same cores.

A share is two captures by one, of the medians; the goal is 0.85. On the cores of one machine it says what
sharing costs, and not how much faster two machines are. `busy` is how many cores the whole machine
used: if it is below the number of cores, the wall clock measures something that waits.

Everything takes less than 5 minutes with the defaults on two cores. `PATIENCE_S` bounds each run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from benchmarks.accounting import Ledger, busy_seconds, spent
from benchmarks.broker import delete_topic, new_topic, running_broker
from benchmarks.captures import SETTLE_S, Captures, running_etcd
from benchmarks.many_tables import Upstream
from benchmarks.product import tidegate
from benchmarks.rig import eventually
from benchmarks.show import Ticker, machine, short, table

from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.tidb import keys

GOAL: Final = 0.85
PATIENCE_S: Final = 120.0
"""The longest time of one run."""
LOOK_S: Final = 0.02
TXN_ROWS: Final = 1_000
NAMES: Final = "ab"
TTL_S: Final = 10


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one changefeed."""

    captures: int
    rows: int
    rows_per_s: float
    rows_per_s_from_create: float
    rows_per_cpu_s: float
    busy: float
    """How many cores the machine used, from the first row on."""
    cpu_s: dict[str, float]
    """CPU seconds by role, from `changefeed create` on."""


class Sharing(Captures):
    """Two captures, and one changefeed after the other."""

    def run(self, feed: str, uri: str, start_ts: int, rows: int, captures: int) -> Run:
        """Deliver the whole history to a topic, by so many captures."""
        assert self.ledger is not None
        command = tidegate("changefeed", "create", "--server", self.address, "-c", feed, "--sink-uri", uri)
        cpu, began = self.ledger.cpu(), time.monotonic()
        _run([*command, "--start-ts", str(start_ts)])
        first = eventually("the first row", lambda: self._rows(feed), PATIENCE_S, LOOK_S)
        flows_at, busy = time.monotonic(), busy_seconds()
        done = eventually("all rows", lambda: self._done(feed, rows), PATIENCE_S, LOOK_S)
        ended = time.monotonic()
        assert done == rows, f"{done} rows were delivered, and {rows} were committed"
        took, by_role = ended - flows_at, spent(cpu, self.ledger.cpu())
        working = self._delivering(feed)
        assert working == captures, f"{working} captures deliver, and not {captures}"
        return Run(
            captures,
            rows,
            round((rows - first) / took),
            round(rows / (ended - began)),
            round(rows / sum(by_role.values())),
            round((busy_seconds() - busy) / took, 2),
            by_role,
        )

    def remove(self, feed: str) -> None:
        """Remove a changefeed."""
        _run(tidegate("changefeed", "remove", "--server", self.address, "-c", feed))

    def drain(self, name: str, *, back: bool) -> None:
        """Give a capture no more ranges, or let it have some again."""
        url = f"http://{self.address}/api/v2/captures/{self.id_of(name)}/drain"
        httpx.request("DELETE" if back else "PUT", url, timeout=30, trust_env=False).raise_for_status()

    def _feed(self, feed: str) -> dict[str, Any]:
        """The members of a changefeed's answer that TiCDC does not have; empty while nothing answers."""
        for child in self.children.values():
            child.check()
        found: dict[str, Any] = {}
        with contextlib.suppress(httpx.HTTPError, ValueError):
            answer = self._client.get(f"http://{self.address}/api/v2/changefeeds/{feed}").json()
            found = answer.get("tidegate", {})
        return found

    def _rows(self, feed: str) -> int:
        return int(self._feed(feed).get("rows", 0))

    def _done(self, feed: str, rows: int) -> int:
        found = self._rows(feed)
        return found if found >= rows else 0

    def _delivering(self, feed: str) -> int:
        found = self._feed(feed).get("captures", [])
        return len({one["address"] for one in found if one["running"]})


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def write(pd: PdClient, row: bytes, tables: int, rows: int, progress: Callable[[str], None]) -> int:
    """Commit the rows, evenly in all tables. Returns how many."""
    each = rows // tables
    for number in range(tables):
        table_id = Upstream.id_of(number)
        for first in range(0, each, TXN_ROWS):
            transaction = Transaction(pd)
            for handle in range(first, min(first + TXN_ROWS, each)):
                transaction.put(keys.int_record(table_id, handle + 1), row)
            transaction.commit()
            progress(f"{number * each + first:,} rows")
    return each * tables


def measure(options: argparse.Namespace, progress: Callable[[str], None]) -> list[Run]:
    """All measured runs, in the order in which they were made."""
    found: list[Run] = []
    with (
        running_broker() as bootstrap,
        running_etcd() as etcd,
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as temporary,
    ):
        folder = Path(temporary)
        upstream = Upstream(folder, options.tables, options.tables)
        with Sharing(folder, upstream, "", etcd, NAMES, TTL_S, cores=options.cores) as captures:
            progress("starting upstream and captures")
            captures.begin()
            with PdClient(captures.pd) as pd:
                start_ts = pd.tso()
                rows = write(pd, captures.row(), options.tables, options.rows, progress)
            owner = captures.owner()
            captures.address = captures.addresses[owner]
            other = NAMES.replace(owner, "")
            captures.ledger = Ledger([captures.children[name].pid for name in NAMES])
            for number, count in enumerate(turns(options.rounds)):
                progress(f"run {number} of {2 * options.rounds}: {count} of two captures")
                captures.drain(other, back=count == 2)
                time.sleep(SETTLE_S)
                feed, topic = f"run-{number}", new_topic(bootstrap)
                uri = f"kafka://{bootstrap}/{topic}?protocol=open-protocol"
                found.append(captures.run(feed, uri, start_ts, rows, count))
                captures.remove(feed)
                delete_topic(bootstrap, topic)
    return found[1:]


def turns(rounds: int) -> list[int]:
    """How many captures each run has. The first run only warms both up."""
    return [2, *(count for number in range(rounds) for count in ((1, 2) if number % 2 == 0 else (2, 1)))]


def shares_of(runs: Sequence[Run]) -> dict[str, float]:
    """Two captures by one, of the medians of each figure."""

    def share(figure: Callable[[Run], float]) -> float:
        one, two = (statistics.median(figure(run) for run in runs if run.captures == n) for n in (1, 2))
        return round(two / one, 3)

    return {
        "rows_per_s": share(lambda run: run.rows_per_s),
        "rows_per_s_from_create": share(lambda run: run.rows_per_s_from_create),
        "rows_per_cpu_s": share(lambda run: run.rows_per_cpu_s),
    }


def report(runs: Sequence[Run]) -> str:
    """The table for people."""
    roles = list(dict.fromkeys(role for run in runs for role in run.cpu_s))
    lines = [["captures", "rows/s", "from create", "rows per CPU-s", "busy", *(f"{r} s" for r in roles)]]
    for run in runs:
        cpu = [f"{run.cpu_s.get(role, 0.0):.1f}" for role in roles]
        figures = run.rows_per_s, run.rows_per_s_from_create, run.rows_per_cpu_s
        lines.append([str(run.captures), *map(short, figures), f"{run.busy:.2f}", *cpu])
    shares = shares_of(runs)
    lines.append(["share", *(f"{share:.2f}" for share in shares.values()), "", *[""] * len(roles)])
    verdict = "met" if shares["rows_per_s"] >= GOAL else "MISSED"
    return f"{table(lines)}\ngoal: a share of rows/s of at least {GOAL}: {verdict}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400_000, help="of each run")
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="runs with one capture, and with two")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="of each capture's Spark")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    facts, ticker = machine(), Ticker()
    runs = measure(options, ticker)
    ticker.close()
    print(report(runs))
    if options.json:
        found = {"machine": facts, "runs": [asdict(run) for run in runs], "shares": shares_of(runs)}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
