"""The cost of n changefeeds of one table each, compared with one changefeed of all tables.

    python -m benchmarks.tables --feeds 100 [--tables 10000] [--rows 500] [--seconds 20] [--total 230]
    python -m benchmarks.tables --smoke

It uses a real capture, its puller and the embedded upstream; `--rows` rows per second go to all tables in
turns. There is no JVM and no broker: one process, `player`, takes the place of the pipelines of all
changefeeds. For each changefeed it looks at the event store as the application does, encodes new rows to
messages, and reports to the control process over its socket. The owner's sink keeps nothing. So this measures
the cost of changefeeds without Spark.

First it measures one changefeed of all tables, then n of one table each, on separate captures, with rows in
both. Figures are per cent of a core by process, and the ratio of their sums. The one changefeed has its
tables in stripes; each of the n changefeeds has one span.

The n changefeeds want few of the rows of all tables. So their cost depends little on `--rows`, that of the
one changefeed grows with it, and fewer rows are the harder comparison. Figures are printed as they are found.
After `--total` seconds the run ends with those that it has, and exit code 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from benchmarks.accounting import Ledger, spent
from benchmarks.control_probe import between
from benchmarks.feeds_figures import Limit
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
ROWS_A_WRITER: Final = 1_000
"""So many rows per second one thread writes, each in another region, in transactions of ten."""
RATE_MISSED: Final = 0.9
"""Below this part of `--rows` a line says that the rate was not reached."""
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
    total_s: float = 230.0
    """The limit of the whole run."""


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

    def create_feeds(self, names: list[str], limit: Limit) -> None:
        """Create a changefeed of all tables, or one for each table in `names`."""

        def create(number: int, name: str) -> None:
            body: dict[str, Any] = {"changefeed_id": f"f{number}", "sink_uri": URI.format(f"t{number}")}
            body |= {"replica_config": {"filter": {"rules": [name]}}}
            limit.check()
            url = f"http://{self.address}/api/v2/changefeeds"
            made = httpx.post(url, json=body, timeout=limit.left_s + 1)
            if made.status_code != httpx.codes.OK:
                raise RuntimeError(made.text)

        wanted = list(enumerate(names or ["*.*"]))
        create(*wanted[0])  # the first one makes the capture read upstream's catalogue
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for done in [threads.submit(create, *one) for one in wanted[1:]]:
                done.result()

    def delivering(self, feeds: int, limit: Limit) -> None:
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

        eventually("all changefeeds", passed, limit.left_s, pause_s=0.5)


class InTurns(Writers):
    """Writes its part of the rows, which go into all tables in turns, at a rate."""

    def __init__(
        self, pd: PdClient, row: bytes, tables: int, a_second: float, part: int = 0, parts: int = 1
    ) -> None:
        """`a_second`: rows of this part. Part `part` of `parts` has each `parts`th row."""
        super().__init__(pd, row)
        self._tables, self._rate, self._part, self._parts = tables, a_second, part, parts

    def _run(self) -> None:
        began, stride = time.monotonic(), 7919  # consecutive rows are far apart in stripes and regions
        while not self._done.is_set():
            transaction = Transaction(self._pd)
            for one in range(self.rows, self.rows + ROWS_A_TXN):
                number = one * self._parts + self._part
                table = number * stride % self._tables
                transaction.put(keys.int_record(Upstream.id_of(table), 1 + number // self._tables), self._row)
            transaction.commit()
            self.rows += ROWS_A_TXN
            self._done.wait(max(0.0, began + self.rows / self._rate - time.monotonic()))


def writers_of(stack: ExitStack, pd: str, row: bytes, sizes: Sizes) -> list[InTurns]:
    """Begin to write rows, by as many threads as the rate needs."""
    parts = 1 + (sizes.rows - 1) // ROWS_A_WRITER
    return [
        stack.enter_context(
            InTurns(stack.enter_context(PdClient(pd)), row, sizes.tables, sizes.rows / parts, part, parts)
        )
        for part in range(parts)
    ]


def measure(sizes: Sizes, feeds: int, ticker: Ticker, limit: Limit) -> dict[str, Any]:
    """Measure one changefeed of all tables (`feeds` is 0), or `feeds` changefeeds of one table each.

    Raises TimeoutError at the limit.
    """
    tables = sizes.tables
    name = f"{feeds} changefeeds of a table" if feeds else f"one changefeed of {tables:,} tables"
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as temporary:
        folder = Path(temporary)
        with Capture(folder, Upstream(folder, tables, 10)) as capture:
            ticker(f"{name}: loading the catalogue")
            capture.begin()
            limit.check()
            ticker(f"{name}: opening")
            capture.create_feeds([name_of(tables * at // feeds) for at in range(feeds)], limit)
            capture.delivering(max(1, feeds), limit)
            ledger = capture.ledger
            assert ledger is not None
            with ExitStack() as stack:
                writers = writers_of(stack, capture.pd, capture.row(), sizes)
                ticker(f"{name}: rows flow")
                limit.sleep(sizes.settle_s)
                ticks = json.loads(capture.ticks_file.read_text())
                before, had, began = ledger.cpu(), sum(one.rows for one in writers), time.monotonic()
                limit.sleep(sizes.seconds)
                used, wall = spent(before, ledger.cpu()), time.monotonic() - began
                found: dict[str, Any] = {role: round(100 * used.get(role, 0.0) / wall, 1) for role in ROLES}
                found["ticks"] = between(ticks, json.loads(capture.ticks_file.read_text()), wall)
                found["rows_a_second"] = round((sum(one.rows for one in writers) - had) / wall)
            ticker(f"{name}: the last rows")
            capture.delivering(max(1, feeds), limit)
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


def run(sizes: Sizes, figures: Path | None) -> int:
    """Measure both, one after the other, and show the figures and their ratio. Returns the exit code."""
    # Compile kernels now, so that they are not compiled during a measurement.
    subprocess.run([sys.executable, "-m", "tidegate.kernel"], check=True, stdout=subprocess.DEVNULL)
    ticker, limit, found = Ticker(), Limit(sizes.total_s), list[dict[str, Any]]()
    late, ratio = "", None
    try:
        for feeds in (0, sizes.feeds):
            found.append(measure(sizes, feeds, ticker, limit))
            ticker.close()
            Console(width=120).print(shown(found[-1:]))
            if found[-1]["rows_a_second"] < RATE_MISSED * sizes.rows:
                print(f"only {found[-1]['rows_a_second']} of {sizes.rows} rows a second were written")
    except (TimeoutError, httpx.TimeoutException) as error:
        late = f"ended at the limit of {sizes.total_s:.0f} s: {error}"
        print(late)
    if not late:
        ratio = round(found[1]["all"] / found[0]["all"], 2)
        print(f"{sizes.feeds} changefeeds of a table cost {ratio:.2f} x one of {sizes.tables:,} tables")
    if figures:
        content = {"machine": machine(), "ratio": ratio, "late": late, "sizes": found}
        figures.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if late else 0
