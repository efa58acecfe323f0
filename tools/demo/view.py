"""The output of the demo: the live board, the closing table, and the page with plots."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from tools.demo import faults, page
from tools.demo.path import MainPath, Proof

from tidegate.model.timestamp import physical_ms, readable

SAMPLE_S = 0.5
FAULTS_TITLE = "what happened to captures, and how many ranges each delivered before → after"
STAGES = ("committed", "pulled", "delivered", "readable")


class Board:
    """Samples the main path twice a second, shown or not, and renders itself for `rich.live`."""

    def __init__(self, path: MainPath) -> None:
        self.path = path
        self.began = time.monotonic()
        self.first_change_s = 0.0
        self.rates: dict[str, list[tuple[float, float]]] = {name: [] for name in STAGES}
        self.lags: dict[str, list[tuple[float, float]]] = {"Kafka": [], path.target.name: []}
        self._last: tuple[float, dict[str, int]] = (0.0, dict.fromkeys(STAGES, 0))
        self._feed: dict[str, Any] = {}
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._keep_sampling, daemon=True)
        self._sampler.start()

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self._sampler.join()

    def run_for(self, seconds: float) -> None:
        """Show the path live for some time."""
        for _ in self._ticks(seconds):
            pass

    def drain(self, patience_s: float) -> None:
        """Stop the workload and wait until the target has its last commit."""
        last = self.path.end_workload()
        place = self.path.target.place
        self.path.stage = f"draining: waiting for the last commit in {place}"
        for _ in self._ticks(patience_s):
            if max(self.path.snapshots, default=0) >= last:
                return
        raise TimeoutError(f"The last commit {last} did not reach {place} within {patience_s:.0f} s.")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Panel(self._grid(), title="[b]tidegate demo[/b]", subtitle=self.path.stage, padding=(0, 1))

    def _ticks(self, seconds: float) -> Iterator[None]:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.path.check()
            yield
            time.sleep(0.2)

    def _keep_sampling(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        now = time.monotonic() - self.began
        before, counts = self._last
        self._feed = self.path.feed_now()
        own = self._feed.get("tidegate", {})
        found = {
            "committed": int(self.path.workload_now().get("rows", 0)),
            "pulled": int(own.get("puller", {}).get("rows", 0)),
            "delivered": int(own.get("rows", 0)),
            "readable": self.path.kafka_rows,
        }
        if self.path.kafka_rows and not self.first_change_s:
            self.first_change_s = now
        for name in STAGES:
            self.rates[name].append((now, max(0, found[name] - counts[name]) / (now - before)))
        for name, lag in (("Kafka", self.path.kafka_lag), (self.path.target.name, self.path.table_lag)):
            if lag.values:
                self.lags[name].append((now, lag.values[-1] / 1000))
        self._last = (now, found)

    def _grid(self) -> Table:
        grid = Table.grid(padding=(0, 3))
        for _ in range(4):
            grid.add_column(justify="left")
        grid.add_row(*(f"[b]{name}[/b]" for name in STAGES))
        grid.add_row(*(f"{self._last[1][name]:,} rows" for name in STAGES))
        grid.add_row(*(f"[cyan]{self._rate(name):,.0f}/s[/]" for name in STAGES))
        feed, workload = self._feed, self.path.workload_now()
        checkpoint = int(feed.get("checkpoint_ts", 0))
        behind = f"{time.time() - physical_ms(checkpoint) / 1000:.1f} s behind" if checkpoint else "-"
        lag = self.path.kafka_lag
        grid.add_row("")
        grid.add_row("checkpoint", behind, "feed", str(feed.get("state", "-")))
        grid.add_row(
            "commit to Kafka",
            f"p50 {lag.quantile(0.5):.0f} ms  p99 {lag.quantile(0.99):.0f} ms",
            "snapshots",
            str(len(self.path.snapshots)),
        )
        grid.add_row(
            "waiting for",
            str(feed.get("tidegate", {}).get("waiting_for", "") or "-"),
            "last DDL",
            Text(str(workload.get("last_ddl", "") or "-")[:48]),
        )
        if len(self.path.captures) > 1:
            pauses = [f"{one.name}: {one.paused}" for one in self.path.faults if one.pause_s is not None]
            grid.add_row("captures", str(len(self.path.addresses)), "pauses", "; ".join(pauses) or "-")
        return grid

    def _rate(self, name: str) -> float:
        recent = self.rates[name][-4:]
        return sum(rate for _, rate in recent) / len(recent) if recent else 0.0


def closing_table(board: Board, proof: Proof) -> Table:
    """The rows of each table at source and target, and the figures of the run."""
    table = Table(title=f"source and target at {proof.ts} ({readable(proof.ts)} UTC)", title_justify="left")
    for name in ("table", "rows at source", "rows at target", ""):
        table.add_column(name, justify="left" if name in ("table", "") else "right")
    for row in rows_of(proof):
        table.add_row(*row[:3], f"[green]{row[3]}[/]" if row[3] == "equal" else f"[bold red]{row[3]}[/]")
    table.add_section()
    for name, value in figures(board, proof):
        table.add_row(name, "", "", value)
    return table


def faults_table(path: MainPath) -> Table:
    """The faults of captures and their consequences."""
    table = Table(title=FAULTS_TITLE, title_justify="left")
    for name in faults.head_of(path.captures):
        table.add_column(name)
    for row in faults.rows_of(path.faults, path.captures):
        table.add_row(*row)
    return table


def rows_of(proof: Proof) -> list[list[str]]:
    """The comparison, with one row for each table."""
    return [
        [
            one["table"],
            f"{one['source_rows']:,}",
            f"{one['target_rows']:,}",
            "equal" if one["equal"] else "NOT EQUAL",
        ]
        for one in proof.tables
    ]


def figures(board: Board, proof: Proof) -> list[tuple[str, str]]:
    """The figures of the run."""
    kafka, tables = board.path.kafka_lag, board.path.table_lag
    wrong = [ts for ts, found in proof.sums.items() if found != proof.total]
    bank = f"{proof.total} in each of {len(proof.sums)} snapshots" if not wrong else f"WRONG at {wrong[:3]}"
    return [
        ("the bank's sum", bank),
        (
            "commit to readable on Kafka",
            f"p50 {kafka.quantile(0.5):.0f} ms, p99 {kafka.quantile(0.99):.0f} ms",
        ),
        (
            board.path.target.lag,
            f"p50 {tables.quantile(0.5):.0f} ms, p99 {tables.quantile(0.99):.0f} ms",
        ),
        ("row changes", f"{board.path.kafka_rows:,}"),
        ("first change on Kafka", f"{board.first_change_s:.0f} s after the start"),
    ]


def write_page(path: Path, board: Board, proof: Proof) -> Path:
    """The run as one HTML page."""
    head = faults.head_of(board.path.captures)
    happened = faults.rows_of(board.path.faults, board.path.captures)
    sections = [
        page.table(("table", "rows at source", "rows at target", ""), rows_of(proof)),
        page.table(("figure", "value"), figures(board, proof)),
        *([f"<p>{FAULTS_TITLE}</p>", page.table(head, happened)] if happened else []),
        page.plot(
            "Throughput", "rows a second", [page.Series(name, points) for name, points in board.rates.items()]
        ),
        page.plot(
            "Lag", "seconds from commit", [page.Series(name, points) for name, points in board.lags.items()]
        ),
    ]
    verdict = "equal" if proof.equal else "NOT EQUAL"
    subtitle = f"Source and target are {verdict} at {proof.ts} ({readable(proof.ts)} UTC)."
    path.write_text(page.render("Tidegate: one run of the main path", subtitle, sections))
    return path
