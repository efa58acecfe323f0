"""Many changefeeds on one capture: their cost, the start of a further one, and the effect of dead brokers.

    python -m benchmarks.feeds [--changefeeds 200] [--active 20] [--rows 500] [--seconds 20] [--dead 10]
        [--closed 10] [--names 10] [--dead-rows 50] [--load-rows 200000] [--only PHASE ...] [--total 480]
        [--server-src OTHER/src] [--json FILE]
    python -m benchmarks.feeds --smoke

It uses a real capture, broker and embedded upstream. Each changefeed has its own table and topic. To leave
the cores to the capture, the brokers' JVMs have no optimising compiler, and the writer commits in one phase.
The phases follow one another; each has a limit, at which it ends with what it has found. `--total` bounds all
of them together. A figure is printed when it is found, and the file is written after each phase.

| phase | what happens | figures |
|---|---|---|
| start | broker, upstream and capture start | |
| open | the changefeeds are created; all deliver beyond the time of the last creation | seconds, memory |
| idle | nothing is written | CPU; ticks of the control process |
| further | changefeeds are created one after another | from the request to the first row that is readable |
| active | `--active` changefeeds get `--rows` rows per second each from now on | lag to readable; pieces |
| list | `GET changefeeds` and `tidegate changefeed list` (`benchmarks.listing`) | milliseconds |
| busy | as `further`, while rows flow | as `further` |
| crash | workers are killed while rows flow | how long the active ones pause (`benchmarks.feeds_kills`) |
| death | the application is killed, twice | the same |
| dead | see below | lag of the active ones after 10 s, and how many times that of `active` it is |

In `dead`, `--dead` changefeeds with a second broker and `--closed` with a third one get `--dead-rows` rows
per second each as well. Each of them names its broker in another way (`127.1`, `localhost`), up to `--names`
ways, so that the capture takes it for a broker of its own: twenty real ones need more memory than most
machines have. While they are created and the table to load is filled, no rows flow. Once rows
flow again and the lag has settled, the second broker is stopped (SIGSTOP), and the third one is killed.
Then one more changefeed begins with an initial load of `--load-rows` rows, which are read evenly until the
end. In the first 10 s workers that wait for dead brokers are found out, and others start in their place: the
lag of that time is printed apart. After it the lag is measured for `--seconds`.

`active`, `crash`, `death` and `dead` first wait until the lag falls no longer, for at most 40 s, and print
how long that took. Until then workers start and open their writers.

Rows are committed five times a second for each table, those of five tables in one transaction. The reader
waits up to 20 ms for more rows, and so does the broker before it answers. So a lag may come out 40 ms longer.

CPU is that of control process, puller and Spark application. That of upstream, broker, benchmark and the
whole machine is printed apart. Memory is anonymous memory of the same processes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from benchmarks import feeds_kills
from benchmarks.broker import broker_with_pid
from benchmarks.control_probe import between
from benchmarks.feeds_capture import (
    NAMES,
    FeedReader,
    Feeds,
    Meter,
    RowWriters,
    by_other_names,
    fill,
    first_row_s,
    lags,
    reading,
    settle,
)
from benchmarks.feeds_figures import Figures, Goal, Limit, Phase, chosen, run_phases
from benchmarks.listing import listed
from benchmarks.many_tables import Upstream
from benchmarks.rig import end_in_order
from benchmarks.show import Ticker, machine

FURTHER: Final = 3
LISTS: Final = 100
COMMANDS: Final = 5
SETTLE_S: Final = 20.0
"""A changefeed ticks less often when it had no rows for ten seconds; its start counts as rows for two."""
REACTION_S: Final = 10.0
"""Seconds after the death of brokers in which their workers are found out and replaced."""
WARM_MAX_S: Final = 40.0
"""The longest wait after the first rows, in which workers start and open their writers, until the lag has
settled.
"""
PROGRESS_S: Final = 5.0
GOALS: Final = {
    ("open", "memory_mb"): Goal(6144, "MB"),
    ("idle", "percent"): Goal(30, "% of a core"),
    ("further", "first_row_s"): Goal(3, "s"),
    ("busy", "first_row_s"): Goal(3, "s"),
    ("active", "p99_ms"): Goal(2000, "ms"),
    ("active", "memory_mb"): Goal(6144, "MB"),
    ("crash", "costs_s"): Goal(2, "s"),
    ("death", "again_s"): Goal(20, "s"),
    ("dead", "times"): Goal(2, "times"),
    ("dead", "memory_mb"): Goal(6144, "MB"),
}
"""Those of 200 changefeeds, 20 of them with 500 rows per second each."""
ALWAYS: Final = ("start", "open")
TOTAL_S: Final = 480.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run."""

    changefeeds: int = 200
    active: int = 20
    rows: int = 500
    """Rows per second for each active changefeed."""
    dead: int = 10
    closed: int = 10
    names: int = len(NAMES)
    """The names of each dead broker. For the capture, each name is another broker."""
    dead_rows: int = 50
    """Rows per second for each changefeed with a dead broker. Few, because on two cores the writing of as
    many as for the active ones would take most of the time, and the silence of a broker costs the same.
    """
    load_rows: int = 200_000
    seconds: float = 20.0

    @property
    def further(self) -> range:
        """The tables of the changefeeds that are created while nothing is written."""
        return range(self.changefeeds, self.changefeeds + FURTHER)

    @property
    def busy(self) -> range:
        """The tables of those that are created while rows flow."""
        return range(self.further.stop, self.further.stop + FURTHER)

    @property
    def stopping(self) -> range:
        """The tables of the changefeeds whose broker is stopped."""
        return range(self.busy.stop, self.busy.stop + self.dead)

    @property
    def closing(self) -> range:
        """The tables of the changefeeds whose broker is killed."""
        return range(self.stopping.stop, self.stopping.stop + self.closed)

    @property
    def loaded(self) -> int:
        """The table with rows to load."""
        return self.closing.stop


SMOKE: Final = Sizes(4, 2, 50, 2, 1, 2, 10, 2_000, 4.0)


class Run:
    """One run. Its methods are the phases; `stack` ends what they start."""

    def __init__(
        self,
        sizes: Sizes,
        figures: Figures,
        stack: ExitStack,
        progress: Ticker,
        server_src: Path | None = None,
    ) -> None:
        """`server_src`: the source tree that the capture runs from, if it is not this one."""
        self._server_src = server_src
        self._sizes, self._figures, self._stack, self._ticker = sizes, figures, stack, progress
        self._shown_at = float("-inf")
        self._flow: tuple[FeedReader, RowWriters] | None = None
        self._bootstrap, self._others = "", dict[str, int]()

    @property
    def phases(self) -> list[Phase]:
        """All phases in their order, with their limits."""
        return [
            Phase("start", self.start, 90),
            Phase("open", self.open, 150),
            Phase("idle", self.idle, 20 + SETTLE_S + self._sizes.seconds),
            Phase("further", self.further, 25),
            Phase("active", self.active, 20 + WARM_MAX_S + self._sizes.seconds),
            Phase("list", self.listing, 25),
            Phase("busy", self.busy, 25),
            Phase("crash", self.crash, 90),
            Phase("death", self.death, 90),
            Phase("dead", self.dead, 80 + WARM_MAX_S + REACTION_S + self._sizes.seconds),
        ]

    def start(self, limit: Limit) -> None:
        """Start broker, upstream and capture."""
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-bench-")))
        self._bootstrap, broker = self._stack.enter_context(broker_with_pid(optimised=False))
        upstream = Upstream(folder, self._sizes.loaded + 1, 10)
        self._product = self._stack.enter_context(Feeds(folder, upstream, self._bootstrap, self._server_src))
        self._product.begin()
        self._others = {"upstream": self._product.children["feed"].pid, "broker": broker}
        self._figures.add("server_pid", self._product.children["server"].pid)

    def open(self, limit: Limit) -> None:
        """Create all changefeeds."""
        meter, count = Meter(self._product, self._others), self._sizes.changefeeds
        creation = self._product.create_all(range(count), limit)
        try:
            self._product.open_all(creation, limit, self._progress)
            self._figures.add("open_s", round(limit.seconds - limit.left_s, 1))
        finally:
            p50, p99 = np.percentile(creation.took, (50, 99))
            self._figures.add("created", len(creation.took))
            self._figures.add("request_s", [round(float(one), 2) for one in (p50, p99, max(creation.took))])
            self._add_used(meter)

    def idle(self, limit: Limit) -> None:
        """Write nothing."""
        limit.sleep(SETTLE_S)
        meter, ticks, began = Meter(self._product, self._others), self._ticks(), time.monotonic()
        limit.sleep(self._sizes.seconds)
        used, found = meter.read(), between(ticks, self._ticks(), time.monotonic() - began)
        self._figures.add("percent", round(100 * used.cores, 1))
        self._figures.add("by_process", used.percent())
        self._figures.add("ms_a_changefeed_and_second", used.ms_a_feed(self._sizes.changefeeds))
        self._figures.add("ticks", found)
        self._figures.add("others_percent", used.others_percent())

    def further(self, limit: Limit) -> None:
        """Create further changefeeds while nothing is written."""
        self._add_further(self._sizes.further, limit)

    def active(self, limit: Limit) -> None:
        """Write to the active changefeeds, from now on."""
        reader, _ = self._rows_flow()
        self._warm_up(reader, limit)
        meter, pieces, resolved = Meter(self._product, self._others), self._product.pieces(), reader.resolved
        try:
            found, a_second = lags(reader, self._sizes.seconds, limit)
            used, pieces = meter.read(), self._product.pieces() - pieces
            self._add_lags(found)
            self._figures.add("rows_per_s", a_second)
            self._figures.add("pieces_per_s", round(pieces / used.wall_s, 1))
            self._figures.add("resolved_per_s", round((reader.resolved - resolved) / used.wall_s, 1))
            self._figures.add("ms_a_thousand_rows", used.ms_a_thousand_rows(a_second * used.wall_s))
        finally:
            self._add_used(meter)

    def listing(self, limit: Limit) -> None:
        """List the changefeeds."""
        for name, found in listed(self._product.address, LISTS, COMMANDS, limit.left_s).items():
            self._figures.add(name, found)

    def busy(self, limit: Limit) -> None:
        """Create further changefeeds while rows flow."""
        self._rows_flow()
        self._add_further(self._sizes.busy, limit)

    def crash(self, limit: Limit) -> None:
        """Kill workers while rows flow."""
        feeds_kills.crash(self._product, self._steady_flow(limit), self._figures, limit)

    def death(self, limit: Limit) -> None:
        """Kill the application while rows flow."""
        feeds_kills.death(self._product, self._steady_flow(limit), self._figures, limit)

    def dead(self, limit: Limit) -> None:
        """Measure the active changefeeds while the brokers of others are dead, and another one is loaded."""
        sizes, product, figures = self._sizes, self._product, self._figures
        reader, writers = self._rows_flow()
        with ExitStack() as stack:
            # Two JVMs, twenty changefeeds and a table begin here. While rows flow on two full cores, that
            # alone takes longer than the phase. The measurement begins with the death of the brokers.
            writers.pause()
            stack.callback(writers.resume)
            pool = stack.enter_context(ThreadPoolExecutor(2))
            makers = [pool.submit(stack.enter_context, broker_with_pid(optimised=False)) for _ in range(2)]
            (stopped, stopped_pid), (closed, closed_pid) = (one.result() for one in makers)
            filling = pool.submit(fill, product, sizes.loaded, sizes.load_rows, limit)
            for numbers, bootstrap in ((sizes.stopping, stopped), (sizes.closing, closed)):
                if numbers:
                    names = by_other_names(bootstrap, sizes.names)
                    product.open_all(product.create_all(numbers, limit, names), limit, self._progress)
            rows = filling.result()
            figures.add("rows_to_load", rows)
            figures.add("ready_s", round(limit.seconds - limit.left_s, 1))
            doomed = [*sizes.stopping, *sizes.closing]
            stack.enter_context(RowWriters(product.pd, doomed, sizes.dead_rows, product.row()))
            writers.resume()
            self._warm_up(reader, limit)
            meter = Meter(product, self._others)
            os.kill(stopped_pid, signal.SIGSTOP)
            # A stopped process does not end by SIGTERM.
            stack.callback(os.kill, stopped_pid, signal.SIGCONT)
            os.kill(closed_pid, signal.SIGKILL)
            load_s = sizes.seconds + REACTION_S
            settings = {"initial_load": True, "load_rows_per_second": max(1, round(rows / load_s))}
            product.create_feed(sizes.loaded, settings=settings, patience_s=limit.left_s)
            reaction, _ = lags(reader, REACTION_S, limit)
            figures.add("reaction_p99_ms", reaction["p99_ms"])
            figures.add("reaction_p99_by_s", reaction["p99_by_s"])
            found, a_second = lags(reader, sizes.seconds, limit)
            self._add_lags(found)
            figures.add("rows_per_s", a_second)
            figures.add("rows_loaded", product.rows_loaded(sizes.loaded))
            if before := figures.get("active", "p99_ms"):
                figures.add("times", round(found["p99_ms"] / before, 2))
            self._add_used(meter)

    # --- parts of phases -----------------------------------------------------------------------------

    def _rows_flow(self) -> tuple[FeedReader, RowWriters]:
        """Have the active changefeeds written to and read until the end of the run."""
        if self._flow is None:
            product, tables = self._product, range(min(self._sizes.active, self._sizes.changefeeds))
            reader = self._stack.enter_context(reading(self._bootstrap, tables))
            writers = RowWriters(product.pd, tables, self._sizes.rows, product.row())
            self._flow = reader, self._stack.enter_context(writers)
        return self._flow

    def _steady_flow(self, limit: Limit) -> FeedReader:
        """The reader of the active changefeeds, once all deliver and workers have opened their writers."""
        is_new = self._flow is None
        reader, _ = self._rows_flow()
        if is_new:
            reader.watch()
            limit.wait(reader.first_rows)
            self._warm_up(reader, limit)
        return reader

    def _warm_up(self, reader: FeedReader, limit: Limit) -> None:
        self._figures.add("warm_up", settle(reader, WARM_MAX_S, limit))

    def _add_further(self, numbers: Sequence[int], limit: Limit) -> None:
        requests, rows = list[float](), list[float]()
        try:
            for number in numbers:
                took_s, row_s = first_row_s(self._product, self._bootstrap, number, limit)
                requests.append(round(took_s, 2))
                rows.append(round(row_s, 2))
                self._figures.add("requests_s", requests)
                self._figures.add("first_rows_s", rows)
        finally:
            if rows:
                self._figures.add("first_row_s", sorted(rows)[len(rows) // 2])

    def _add_lags(self, found: dict[str, Any]) -> None:
        for name in ("p50_ms", "p99_ms", "max_ms", "p99_by_s"):
            self._figures.add(name, found[name])

    def _add_used(self, meter: Meter) -> None:
        """Add CPU since the meter was made, and the memory now."""
        used = meter.read()
        self._figures.add("cores", used.cores)
        self._figures.add("by_process_percent", used.percent())
        self._figures.add("others_percent", used.others_percent())
        self._figures.add("memory_mb", round(self._product.memory_mb()))
        self._figures.add("memory_by_process_mb", self._product.memory_by_role())

    def _ticks(self) -> dict[str, Any]:
        if self._server_src is not None:
            return {}  # its ticks have no clock around them
        found: dict[str, Any] = json.loads(self._product.ticks_file.read_text())
        return found

    def _progress(self, text: str) -> None:
        if time.monotonic() - self._shown_at >= PROGRESS_S:
            self._shown_at = time.monotonic()
            self._ticker(f"{self._figures.phase}: {text}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    own = Sizes()
    names = [one.name for one in fields(Sizes)]
    for name in names:
        default = getattr(own, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--only", nargs="+", metavar="PHASE", default=[])
    parser.add_argument("--total", type=float, default=TOTAL_S, help="seconds for all phases together")
    parser.add_argument("--server-src", type=Path, help="compare with the capture of another source tree")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = SMOKE if options.smoke else replace(own, **{name: getattr(options, name) for name in names})
    end_in_order()
    figures = Figures({"machine": machine(), "sizes": asdict(sizes)}, options.json, GOALS)
    ticker = Ticker()
    with ExitStack() as stack:
        run = Run(sizes, figures, stack, ticker, options.server_src)
        try:
            phases = chosen(run.phases, options.only, ALWAYS)
        except ValueError as error:
            parser.error(str(error))
        run_phases(phases, figures, options.total)
        print("ending", flush=True)
    ticker.close()


if __name__ == "__main__":
    main()
