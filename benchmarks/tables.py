"""What a capture costs by the number of tables it follows.

    python -m benchmarks.tables [--tables 1000 10000] [--regions 10 | --regions each] [--active 100]
                                [--seconds 20] [--ids-per-stripe 1] [--json FILE]

One changefeed of all tables, on the whole product: `tidegate server`, its puller and its Spark application,
over the embedded upstream and a real broker, all on this machine. Tables are copies of the narrow one of
`benchmarks.schema`, in 100 schemas, empty at the start; `--regions` is in how many regions they lie (`each`:
a region a table).

| figure | what it is |
|---|---|
| open s | from `changefeed create` until the pipeline runs and the checkpoint has passed that call |
| idle % | of a core, by process and together, while no row comes |
| active % | the same while `--active` tables get a row a second each |
| memory | the most anonymous memory, of control process and puller |
| files | in the capture's data folder |

Nothing of it may grow with tables but what is said of them once. `--ids-per-stripe` is the changefeed's
setting: with several widths each size is measured with each. Ratios against another commit: run this with
`--json` on both in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import httpx
from benchmarks.accounting import Ledger, spent
from benchmarks.broker import delete_topic, new_topic, running_broker
from benchmarks.product import FEED, Product
from benchmarks.rig import READY_S, eventually
from benchmarks.rows import LOGS
from benchmarks.schema import FIRST_ID, SCHEMAS, pairs
from benchmarks.show import Ticker, machine
from rich.console import Console
from rich.table import Table

from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.kvclient.upstream_control import UpstreamControl
from tidegate.tidb import keys
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.workload.changelog import Txn, read_log

BATCH: Final = 500
"""Keys of a transaction that loads the catalogue."""
SETTLE_S: Final = 5.0
SYSTEM_ID: Final = 1 << 40
"""From here on the ids of TiDB's own tables."""
OURS: Final = ("control", "puller", "driver", "JVM", "source", "workers", "planners")


class Upstream:
    """The embedded upstream in a process of its own, with so many empty tables; use it as a context."""

    def __init__(self, folder: Path, tables: int, regions: int) -> None:
        self.tables = tables
        self.command = [sys.executable, "-m", "tidegate", "upstream", "run", "--json"]
        self.command += ["--data-dir", str(folder / "upstream"), "--pd", "127.0.0.1:0"]
        self._regions = regions

    def load(self, pd: PdClient) -> None:
        """Write the catalogue, and cut the tables into regions."""
        found = pairs(self.tables, "narrow")
        while batch := list(islice(found, BATCH)):
            transaction = Transaction(pd)
            for key, value in batch:
                transaction.put(key, value)
            transaction.commit()
        step = self.tables / self._regions
        edges = [keys.record_span(self.id_of(round(step * at))).start for at in range(self._regions)]
        control = UpstreamControl(pd)
        for first in range(0, len(edges), BATCH):
            control.split(0, [encode_bytes(edge) for edge in edges[first : first + BATCH]])

    @staticmethod
    def id_of(table: int) -> int:
        """The id of a table by its number."""
        return FIRST_ID + SCHEMAS + table


class Writers:
    """A row a second into each of some tables, from a thread of this process, until the context ends."""

    def __init__(self, pd: PdClient, row: bytes, tables: int, active: int) -> None:
        self._pd, self._row = pd, row
        self._ids = [Upstream.id_of(tables * at // active) for at in range(active)]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writers", daemon=True)
        self.rows = 0

    def __enter__(self) -> Writers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        handle = 0
        while not self._done.is_set():
            began, handle = time.monotonic(), handle + 1
            for first in range(0, len(self._ids), 5):
                transaction = Transaction(self._pd)
                for table in self._ids[first : first + 5]:
                    transaction.put(keys.int_record(table, handle), self._row)
                    self.rows += 1
                transaction.commit()
                self._done.wait(max(0.0, began + first / len(self._ids) - time.monotonic()))
            self._done.wait(max(0.0, began + 1 - time.monotonic()))


def measure(
    bootstrap: str,
    tables: int,
    regions: int,
    width: int,
    active: int,
    seconds: float,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """One size, with stripes of one width."""
    topic = new_topic(bootstrap)
    name = f"{tables:,} tables in {regions:,} regions, {width} ids a stripe"
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as temporary:
        folder = Path(temporary)
        upstream = Upstream(folder, tables, regions)
        with Many(folder, upstream, f"kafka://{bootstrap}/{topic}?protocol=open-protocol") as product:
            if width > 1:
                settings = folder / "feed.toml"
                settings.write_text(f"[tidegate]\nids-per-stripe = {width}\n")
                product.options = ["--config", str(settings)]
            progress(f"{name}: loading the catalogue")
            product.begin()
            progress(f"{name}: opening the feed")
            found: dict[str, Any] = {"tables": tables, "regions": regions, "width": width}
            found["open_s"] = product.open()
            assert product.ledger is not None
            progress(f"{name}: idle")
            time.sleep(SETTLE_S)
            found["idle"] = share(product.ledger, seconds)
            progress(f"{name}: {active} active tables")
            with PdClient(product.pd) as pd, Writers(pd, product.row(), tables, active) as writers:
                time.sleep(SETTLE_S)
                found["active"] = share(product.ledger, seconds)
            product.wait_rows(writers.rows, 120, lambda rows: None)
            found["rows"] = writers.rows
            peaks = product.ledger.peaks()
            found["peak_mb"] = {role: peaks[role] for role in ("control", "puller") if role in peaks}
            found["files"] = sum(len(files) for _, _, files in os.walk(folder / "data"))
    delete_topic(bootstrap, topic)
    return found


class Many(Product):
    """The product over an upstream of many tables."""

    def __init__(self, folder: Path, upstream: Upstream, sink_uri: str) -> None:
        super().__init__(folder, "narrow", 0, sink_uri)
        self._upstream = upstream

    def begin(self) -> None:
        """Start upstream and capture; the catalogue is there on return."""
        ready = self._child("feed", self._upstream.command).wait_line(lambda line: "pd" in line, READY_S)
        self.pd = ready["pd"]
        with PdClient(self.pd) as pd:
            self._upstream.load(pd)
        self.serve(self.pd)

    def open(self) -> float:
        """Create the feed and wait until its checkpoint has passed the time of the call; seconds."""
        began = time.monotonic()
        self.create()
        with PdClient(self.pd) as pd:
            asked = pd.tso()
        url = f"http://{self.address}/api/v2/changefeeds/{FEED}"

        def passed() -> bool:
            for child in self.children.values():
                child.check()
            with contextlib.suppress(httpx.HTTPError):
                told = httpx.get(url, timeout=30).json()
                if told.get("error"):
                    raise RuntimeError(str(told["error"]))
                started = told.get("tidegate", {}).get("resolved_sent", 0) > asked
                return bool(started) and int(told["checkpoint_ts"]) > asked
            return False

        eventually("the checkpoint", passed, 1800, pause_s=0.2)
        return round(time.monotonic() - began, 1)

    def row(self) -> bytes:
        """A row that the narrow table takes."""
        return next(_rows())


def _rows() -> Iterator[bytes]:
    for line in read_log(LOGS / "narrow.jsonl.gz"):
        if isinstance(line, Txn) and not line.is_base:
            puts = (m for m in line.mutations if m.op in ("put", "insert") and keys.is_record(m.key))
            yield from (m.value for m in puts if keys.parse_record(m.key).table_id < SYSTEM_ID)


def share(ledger: Ledger, seconds: float) -> dict[str, float]:
    """Per cent of a core that each process takes over some seconds, and all of them."""
    before, began = ledger.cpu(), time.monotonic()
    time.sleep(seconds)
    used, wall = spent(before, ledger.cpu()), time.monotonic() - began
    found = {role: round(100 * used.get(role, 0.0) / wall, 1) for role in OURS}
    return found | {"all": round(100 * sum(used.values()) / wall, 1)}


def shown(found: list[dict[str, Any]]) -> Table:
    """The figures as a table."""
    table = Table(title="A changefeed of all tables")
    roles = ("control", "puller", "source")
    for name in ("tables", "regions", "stripe", "open s", "idle %", *roles, "active %", "MB", "files"):
        table.add_column(name, justify="right")
    for one in found:
        idle, active, peaks = one["idle"], one["active"], one["peak_mb"]
        table.add_row(
            f"{one['tables']:,}",
            f"{one['regions']:,}",
            f"{one['width']:,}",
            f"{one['open_s']:.0f}",
            f"{idle['all']:.0f}",
            *(f"{idle[role]:.1f}" for role in roles),
            f"{active['all']:.0f}",
            f"{sum(peaks.values()):.0f}",
            f"{one['files']:,}",
        )
    return table


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--regions", default="10", help="a number, or `each`: a region a table")
    parser.add_argument("--active", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--ids-per-stripe", type=int, nargs="+", default=[1])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ticker, found = Ticker(), list[dict[str, Any]]()
    with running_broker() as bootstrap:
        for tables in options.tables:
            regions = tables if options.regions == "each" else int(options.regions)
            active = min(options.active, tables)
            for width in options.ids_per_stripe:
                found.append(measure(bootstrap, tables, regions, width, active, options.seconds, ticker))
                ticker.close()
    Console(width=100).print(shown(found))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "sizes": found}, indent=1))


if __name__ == "__main__":
    main()
