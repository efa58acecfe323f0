"""The cost of n changefeeds of one table each, compared with one changefeed of all tables.

    python -m benchmarks.tables --feeds 100 [--tables 10000] [--rows 500] [--seconds 20] [--json FILE]
    python -m benchmarks.tables --smoke

It uses a real capture, its puller and the embedded upstream; `--rows` rows per second go to all tables in
turns. There is no JVM and no broker: one process, `player`, takes the place of the pipelines of all
changefeeds. For each changefeed it looks at the event store as the application does, encodes new rows to
messages, and reports to the control process over its socket. The owner's sink keeps nothing. So this measures
the cost of changefeeds without Spark.

First it measures one changefeed of all tables, then n of one table each, on separate captures, with rows in
both. Figures are per cent of a core by process, and the ratio of their sums. The one changefeed has its
tables in stripes; each of the n changefeeds has one span.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from benchmarks.accounting import Ledger, spent
from benchmarks.control_probe import between
from benchmarks.many_tables import Many, Upstream, Writers
from benchmarks.rig import READY_S, eventually
from benchmarks.schema import SCHEMAS
from benchmarks.show import Ticker, machine
from rich.console import Console
from rich.table import Table

from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.tidb import keys

ROWS_A_TXN: Final = 10
AT_ONCE: Final = 8
"""The number of changefeeds that are created at the same time."""
ROLES: Final = ("control", "puller", "player")
KINDS: Final = ("owner", "processor")
URI: Final = "kafka://127.0.0.1:1/{}?protocol=open-protocol"


def name_of(table: int) -> str:
    """`schema.table` of a table by its number (`benchmarks.schema`)."""
    return f"schema_{table % SCHEMAS}.table_{table}"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run."""

    tables: int = 10_000
    feeds: int = 100
    rows: int = 500
    """Rows per second, over all tables."""
    seconds: float = 20.0
    settle_s: float = 10.0


SMOKE: Final = Sizes(50, 5, 50, 2.0, 1.0)


class Capture(Many):
    """A capture over an upstream of many tables, with `player` in place of its pipelines and sinks."""

    def __init__(self, folder: Path, upstream: Upstream) -> None:
        super().__init__(folder, upstream, "")

    def serve(self, pd: str) -> None:
        """Start the capture and the player."""
        probe = [sys.executable, "-m", "benchmarks.control_probe", str(self.ticks_file), "--played", "server"]
        command = [*probe, "--pd", pd, "--data-dir", str(self.folder / "data"), "--json"]
        server = self._child("server", [*command, "--addr", "127.0.0.1:0", "--log-level", "warn"])
        self.address = server.wait_line(lambda line: "addr" in line, READY_S)["addr"]
        player = self._child("player", [sys.executable, "-m", "benchmarks.player", str(self.folder / "data")])
        self.ledger = Ledger([server.pid, player.pid])

    def create_feeds(self, names: list[str]) -> None:
        """Create a changefeed of all tables, or one for each table in `names`."""

        def create(number: int, name: str) -> None:
            body: dict[str, Any] = {"changefeed_id": f"f{number}", "sink_uri": URI.format(f"t{number}")}
            body |= {"replica_config": {"filter": {"rules": [name]}}}
            made = httpx.post(f"http://{self.address}/api/v2/changefeeds", json=body, timeout=300)
            if made.status_code != httpx.codes.OK:
                raise RuntimeError(made.text)

        wanted = list(enumerate(names or ["*.*"]))
        create(*wanted[0])  # the first one makes the capture read upstream's catalogue
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for done in [threads.submit(create, *one) for one in wanted[1:]]:
                done.result()

    def delivering(self, feeds: int) -> None:
        """Wait until every changefeed has delivered beyond now."""
        with PdClient(self.pd) as pd:
            asked = pd.tso()

        def passed() -> bool:
            for child in self.children.values():
                child.check()
            found = httpx.get(f"http://{self.address}/api/v2/changefeeds", timeout=60).json()["items"]
            if errors := [one["error"] for one in found if one["error"]]:
                raise RuntimeError(str(errors[0]))
            return len(found) == feeds and min(int(one["checkpoint_tso"]) for one in found) > asked

        eventually("all changefeeds", passed, 600, pause_s=0.5)


class InTurns(Writers):
    """Writes rows into all tables in turns, at a rate."""

    def __init__(self, pd: PdClient, row: bytes, tables: int, a_second: int) -> None:
        super().__init__(pd, row)
        self._tables, self._rate = tables, a_second

    def _run(self) -> None:
        began, stride = time.monotonic(), 7919  # consecutive rows are far apart in stripes and regions
        while not self._done.is_set():
            transaction = Transaction(self._pd)
            for number in range(self.rows, self.rows + ROWS_A_TXN):
                table = number * stride % self._tables
                transaction.put(keys.int_record(Upstream.id_of(table), 1 + number // self._tables), self._row)
            transaction.commit()
            self.rows += ROWS_A_TXN
            self._done.wait(max(0.0, began + self.rows / self._rate - time.monotonic()))


def measure(sizes: Sizes, feeds: int, ticker: Ticker) -> dict[str, Any]:
    """Measure one changefeed of all tables (`feeds` is 0), or `feeds` changefeeds of one table each."""
    tables = sizes.tables
    name = f"{feeds} changefeeds of a table" if feeds else f"one changefeed of {tables:,} tables"
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as temporary:
        folder = Path(temporary)
        with Capture(folder, Upstream(folder, tables, 10)) as capture:
            ticker(f"{name}: loading the catalogue")
            capture.begin()
            ticker(f"{name}: opening")
            capture.create_feeds([name_of(tables * at // feeds) for at in range(feeds)])
            capture.delivering(max(1, feeds))
            ledger = capture.ledger
            assert ledger is not None
            with PdClient(capture.pd) as pd, InTurns(pd, capture.row(), tables, sizes.rows) as writers:
                ticker(f"{name}: rows flow")
                time.sleep(sizes.settle_s)
                ticks = json.loads(capture.ticks_file.read_text())
                before, had, began = ledger.cpu(), writers.rows, time.monotonic()
                time.sleep(sizes.seconds)
                used, wall = spent(before, ledger.cpu()), time.monotonic() - began
                found: dict[str, Any] = {role: round(100 * used.get(role, 0.0) / wall, 1) for role in ROLES}
                found["ticks"] = between(ticks, json.loads(capture.ticks_file.read_text()), wall)
                found["rows_a_second"] = round((writers.rows - had) / wall)
            capture.delivering(max(1, feeds))
    return {"feeds": feeds or 1, "all": round(sum(found[role] for role in ROLES), 1), **found}


def shown(found: list[dict[str, Any]]) -> Table:
    """The figures as a table."""
    table = Table(title="Per cent of a core")
    for name in ("changefeeds", "rows/s", *ROLES, "together", "owners", "processors"):
        table.add_column(name, justify="right")
    for one in found:
        ticks = ("{ms:.2f} ms x {a_second:.0f}/s".format(**one["ticks"][kind]) for kind in KINDS)
        roles = (str(one[role]) for role in ROLES)
        table.add_row(str(one["feeds"]), str(one["rows_a_second"]), *roles, str(one["all"]), *ticks)
    return table


def run(sizes: Sizes, figures: Path | None) -> None:
    """Measure both, one after the other, and show the figures and their ratio."""
    # Compile kernels now, so that they are not compiled during a measurement.
    subprocess.run([sys.executable, "-m", "tidegate.kernel"], check=True, stdout=subprocess.DEVNULL)
    ticker = Ticker()
    found = [measure(sizes, feeds, ticker) for feeds in (0, sizes.feeds)]
    ticker.close()
    Console(width=120).print(shown(found))
    ratio = round(found[1]["all"] / found[0]["all"], 2)
    print(f"{sizes.feeds} changefeeds of a table cost {ratio:.2f} x one of {sizes.tables:,} tables")
    if figures:
        figures.write_text(
            json.dumps({"machine": machine(), "ratio": ratio, "sizes": found}, indent=1) + "\n"
        )
