"""The cost of a capture, by the number of tables that it follows.

    python -m benchmarks.tables [--tables 1000 10000] [--regions 10 | --regions each] [--active 100]
                                [--seconds 20] [--ids-per-stripe 0] [--server-src OTHER/src] [--json FILE]
    python -m benchmarks.tables --feeds 100 [--tables 10000] [--rows 500] [--seconds 20] [--total 230]

It measures one changefeed of all tables with the whole product: `tidegate server`, its puller and its Spark
application, with the embedded upstream and a real broker, all on this machine. Tables are copies of the
narrow one of `benchmarks.schema`, in 100 schemas, empty at the start. `--regions` is the number of regions
(`each`: one region for each table).

| figure | what it is |
|---|---|
| open s | from `changefeed create` until the pipeline runs and the checkpoint has passed that call |
| idle % | per cent of a core, by process and together, while no rows come |
| active % | the same while `--active` tables get one row per second each |
| owner, processor | CPU of one tick of the control process, in ms, idle and active; ticks per second |
| look | CPU of one look of the pipeline at new rows, in ms, idle and active |
| memory | the peak of anonymous memory, of control process and puller |
| files | the number of files in the capture's data folder |

Only work that is done once for each table may grow with the number of tables. `--ids-per-stripe` is the
changefeed's setting (0: the server chooses, 1: a span a table): with several widths each size is measured
with each width.

`--server-src` compares with another commit: each size is measured with this source tree, with the other one,
and with this one again. Only the capture runs from the other tree, with its default of stripes; it has no
figures of ticks and looks.

`--feeds` measures something else: the cost of n changefeeds of one table each, compared with one of all
tables (`benchmarks.many`). `--smoke` is a small trial of it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import many
from benchmarks.accounting import Ledger, spent
from benchmarks.broker import delete_topic, new_topic, running_broker
from benchmarks.many_tables import Many, Upstream, Writers
from benchmarks.show import Ticker, machine
from rich.console import Console
from rich.table import Table

from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.tidb import keys

SETTLE_S: Final = 5.0
OPENED_S: Final = 10.0
"""The wait after a feed has opened, in which the rest of its start is done."""
OURS: Final = ("control", "puller", "driver", "JVM", "workers")


class OfActive(Writers):
    """Writes one row per second into each of some tables."""

    def __init__(self, pd: PdClient, row: bytes, tables: int, active: int) -> None:
        super().__init__(pd, row)
        self._ids = [Upstream.id_of(tables * at // active) for at in range(active)]

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
    server_src: Path | None = None,
) -> dict[str, Any]:
    """Measure one size, with stripes of one width."""
    topic = new_topic(bootstrap)
    name = f"{tables:,} tables in {regions:,} regions" + (f", {width} ids a stripe" if width else "")
    name += f", {server_src}" if server_src else ""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as temporary:
        folder = Path(temporary)
        upstream = Upstream(folder, tables, regions)
        sink_uri = f"kafka://{bootstrap}/{topic}?protocol=open-protocol"
        with Many(folder, upstream, sink_uri, server_src) as product:
            if width and server_src is None:
                settings = folder / "feed.toml"
                settings.write_text(f"[tidegate]\nids-per-stripe = {width}\n")
                product.options = ["--config", str(settings)]
            progress(f"{name}: loading the catalogue")
            product.begin()
            progress(f"{name}: opening the feed")
            found: dict[str, Any] = {"tables": tables, "regions": regions, "width": width}
            found["source"] = "this tree" if server_src is None else str(server_src)
            found["open_s"] = product.open()
            assert product.ledger is not None
            progress(f"{name}: idle")
            time.sleep(OPENED_S)
            found["idle"] = share(product.ledger, seconds)
            found["idle_ticks"] = product.ticks(seconds / 2)
            found["idle_look_ms"] = product.look_ms()
            progress(f"{name}: {active} active tables")
            with PdClient(product.pd) as pd, OfActive(pd, product.row(), tables, active) as writers:
                time.sleep(SETTLE_S)
                found["active"] = share(product.ledger, seconds)
                found["active_ticks"] = product.ticks(seconds / 2)
                found["active_look_ms"] = product.look_ms()
            if server_src is None:  # another commit may name its metrics otherwise
                product.wait_rows(writers.rows, 120, lambda rows: None)
            found["rows"] = writers.rows
            peaks = product.ledger.peaks()
            found["peak_mb"] = {role: peaks[role] for role in ("control", "puller") if role in peaks}
            found["files"] = sum(len(files) for _, _, files in os.walk(folder / "data"))
    delete_topic(bootstrap, topic)
    return found


def share(ledger: Ledger, seconds: float) -> dict[str, float]:
    """Per cent of a core that each process uses over some seconds, and the sum."""
    before, began = ledger.cpu(), time.monotonic()
    time.sleep(seconds)
    used, wall = spent(before, ledger.cpu()), time.monotonic() - began
    found = {role: round(100 * used.get(role, 0.0) / wall, 1) for role in OURS}
    return found | {"all": round(100 * sum(used.values()) / wall, 1)}


def shown(found: list[dict[str, Any]]) -> Table:
    """The figures as a table."""
    table = Table(title="A changefeed of all tables")
    roles = ("control", "puller", "driver")
    measures = ("open s", "idle %", *roles, "active %", "MB", "files")
    for name in ("tables", "regions", "stripe", *measures, "source"):
        table.add_column(name, justify="right")
    for one in found:
        idle, active, peaks = one["idle"], one["active"], one["peak_mb"]
        table.add_row(
            f"{one['tables']:,}",
            f"{one['regions']:,}",
            f"{one['width'] or 'chosen'}",
            f"{one['open_s']:.0f}",
            f"{idle['all']:.0f}",
            *(f"{idle[role]:.1f}" for role in roles),
            f"{active['all']:.0f}",
            f"{sum(peaks.values()):.0f}",
            f"{one['files']:,}",
            one["source"],
        )
    return table


def ticks_shown(found: list[dict[str, Any]]) -> Table:
    """The cost of ticks and looks as a table."""
    table = Table(title="CPU of a tick, of a look (ms), and ticks a second: idle, active")
    for name in ("tables", "regions", "stripe", "owner", "processor", "look"):
        table.add_column(name, justify="right")
    for one in found:
        idle, active = one["idle_ticks"], one["active_ticks"]
        if not idle:
            continue
        kinds = [
            ", ".join(
                f"{ticks[kind]['ms']:.2f} ({ticks[kind]['a_second']:.0f}/s)" for ticks in (idle, active)
            )
            for kind in ("owner", "processor")
        ]
        looks = f"{one['idle_look_ms']:.2f}, {one['active_look_ms']:.2f}"
        sizes = (f"{one[name]:,}" for name in ("tables", "regions"))
        table.add_row(*sizes, f"{one['width'] or 'chosen'}", *kinds, looks)
    return table


def main() -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--regions", default="10", help="a number, or `each`: a region a table")
    parser.add_argument("--active", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--ids-per-stripe", type=int, nargs="+", default=[0])
    parser.add_argument("--server-src", type=Path, help="another tree, in turns with this one")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--feeds", type=int, default=0, help="of a table each, in addition to one of all tables"
    )
    parser.add_argument("--rows", type=int, default=500, help="a second over all tables, with --feeds")
    parser.add_argument("--total", type=float, default=230.0, help="limit in seconds, with --feeds")
    parser.add_argument("--smoke", action="store_true", help="with --feeds: small; does it complete?")
    options = parser.parse_args()
    if options.feeds or options.smoke:
        sizes = many.Sizes(
            options.tables[-1], options.feeds, options.rows, options.seconds, total_s=options.total
        )
        return many.run(many.SMOKE if options.smoke else sizes, options.json)
    ticker, found = Ticker(), list[dict[str, Any]]()
    with running_broker() as bootstrap:
        for tables in options.tables:
            regions = tables if options.regions == "each" else int(options.regions)
            active = min(options.active, tables)
            for width in options.ids_per_stripe:
                for src in (None, options.server_src, None) if options.server_src else (None,):
                    found.append(
                        measure(bootstrap, tables, regions, width, active, options.seconds, ticker, src)
                    )
                    ticker.close()
    Console(width=100).print(shown(found))
    Console(width=100).print(ticks_shown(found))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "sizes": found}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
