"""Many changefeeds on one capture: their cost, the start of a further one, and the effect of dead brokers.

    python -m benchmarks.feeds [--feeds 200] [--active 20] [--rows 500] [--seconds 30] [--dead 10]
                               [--closed 10] [--load-rows 600000] [--json FILE]
    python -m benchmarks.feeds --smoke

It uses a real capture, broker and embedded upstream. Each changefeed has its own table and topic. `--active`
changefeeds get `--rows` rows per second each, the others none. Then `--dead` changefeeds with a second broker
and `--closed` changefeeds with a third one get rows as well. The second broker is stopped (SIGSTOP), the
third one is killed. Meanwhile one more changefeed begins with an initial load of `--load-rows` rows, which
are read evenly over `--seconds`.

| figure | what it is |
|---|---|
| open s | until all have delivered beyond the time of their creation |
| idle % | CPU of all processes except upstream and broker, in per cent of a core, without rows |
| lag | from commit to readable, of the active ones together |
| memory | anonymous memory of all processes except upstream and broker |
| list | `GET changefeeds` and `tidegate changefeed list`, without rows and with them (`benchmarks.listing`) |
| further s | from `changefeed create` of one more until its first row is readable; `FURTHER` times |
| next to dead | the lag of the active ones with both brokers dead, during the initial load |
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from benchmarks.accounting import anonymous_mb, spent
from benchmarks.broker import broker_with_pid
from benchmarks.lag import Reader, percentiles
from benchmarks.listing import listed
from benchmarks.many import name_of
from benchmarks.many_tables import Many, Upstream
from benchmarks.rig import end_in_order, eventually
from benchmarks.show import Ticker, machine, short, table
from tools.processes import descendants

from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.tidb import keys

AT_ONCE: Final = 8
"""The number of changefeeds that are created at the same time."""
FURTHER: Final = 5
WRITES_A_S: Final = 5
"""Transactions per second for each table."""
LISTS: Final = 100
COMMANDS: Final = 10
SETTLE_S: Final = 10.0
WARM_S: Final = 20.0
"""The wait after the first rows, in which workers open their writers."""
PREFIX: Final = "feeds-"
FILL_ROWS: Final = 1_000
"""Rows in a transaction that fills the table to load."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run."""

    feeds: int = 200
    active: int = 20
    rows: int = 500
    """Rows per second for each active changefeed."""
    dead: int = 10
    closed: int = 10
    load_rows: int = 600_000
    seconds: float = 30.0

    @property
    def stopping(self) -> range:
        """The tables of the changefeeds whose broker is stopped."""
        return range(self.feeds + FURTHER, self.feeds + FURTHER + self.dead)

    @property
    def closing(self) -> range:
        """The tables of the changefeeds whose broker is killed."""
        return range(self.stopping.stop, self.stopping.stop + self.closed)

    @property
    def loaded(self) -> int:
        """The table with rows to load."""
        return self.closing.stop


SMOKE: Final = Sizes(4, 2, 50, 2, 1, 2_000, 4.0)


class Feeds(Many):
    """The capture, and its changefeeds of one table each."""

    def create(
        self, number: int = 0, bootstrap: str = "", start_ts: int = 0, settings: dict[str, Any] | None = None
    ) -> None:
        """Create the changefeed of the table with this number. `settings`: its section `[tidegate]`."""
        uri = f"kafka://{bootstrap or self.sink_uri}/{PREFIX}{number}?protocol=open-protocol&partition-num=1"
        body: dict[str, Any] = {"changefeed_id": f"f{number}", "sink_uri": uri, "start_ts": start_ts}
        body |= {"replica_config": {"filter": {"rules": [name_of(number)]}, "tidegate": settings or {}}}
        made = httpx.post(f"http://{self.address}/api/v2/changefeeds", json=body, timeout=300)
        if made.status_code != httpx.codes.OK:
            raise RuntimeError(made.text)

    def create_all(self, numbers: Sequence[int], bootstrap: str = "") -> float:
        """Create changefeeds, and wait until each has delivered. Returns the seconds."""
        began = time.monotonic()
        self.create(numbers[0], bootstrap)  # the first one makes the capture read upstream's catalogue
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for done in [threads.submit(self.create, number, bootstrap) for number in numbers[1:]]:
                done.result()
        with PdClient(self.pd) as pd:
            asked = pd.tso()
        names = {f"f{number}" for number in numbers}

        def passed() -> bool:
            for child in self.children.values():
                child.check()
            found = httpx.get(f"http://{self.address}/api/v2/changefeeds", timeout=60).json()["items"]
            reached = [int(one["checkpoint_tso"]) for one in found if one["id"] in names]
            return len(reached) == len(names) and min(reached) > asked

        eventually("all changefeeds", passed, 900, pause_s=0.5)
        return time.monotonic() - began

    def memory_mb(self) -> float:
        """The memory of all processes of the capture together."""
        root = self.children["server"].pid
        return sum(map(anonymous_mb, (root, *(pid for pid, _ in descendants(root)))))


@contextmanager
def writing(pd_address: str, tables: Sequence[int], rows: int, row: bytes) -> Iterator[None]:
    """Commit `rows` rows per second to each table during the `with` block."""
    done = threading.Event()
    size = max(1, rows // WRITES_A_S)

    def write(number: int) -> None:
        with PdClient(pd_address) as pd:
            due, first = time.monotonic() + number / len(tables) / WRITES_A_S, 1
            while not done.wait(max(0.0, due - time.monotonic())):
                due += 1 / WRITES_A_S
                transaction = Transaction(pd)
                for handle in range(first, first + size):
                    transaction.put(keys.int_record(Upstream.id_of(tables[number]), handle), row)
                first += size
                transaction.commit()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(tables))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


@contextmanager
def reading(bootstrap: str, numbers: Sequence[int]) -> Iterator[Reader]:
    """One reader of their topics for the whole run, because a new one would have to catch up first."""
    reader = Reader(bootstrap, [f"{PREFIX}{number}" for number in numbers], partitions=1)
    thread = threading.Thread(target=reader.run, name="lag-reader", daemon=True)
    thread.start()
    try:
        yield reader
    finally:
        reader.stop()
        thread.join()


def lags(reader: Reader, seconds: float, warm_s: float) -> dict[str, int]:
    """The lag from commit to readable, of rows that arrive within `seconds` after a warm-up."""
    time.sleep(warm_s)
    first = len(reader.arrived)
    time.sleep(seconds)
    kept = np.array(reader.lags[first : len(reader.arrived)])
    if len(kept) == 0:
        raise RuntimeError("no row was read")
    return percentiles(kept)


def further(product: Feeds, bootstrap: str, numbers: Sequence[int]) -> list[float]:
    """Create changefeeds one after another. Returns the seconds from each creation to its first row."""
    found = []
    with PdClient(product.pd) as pd:
        for number in numbers:
            start_ts = pd.tso()
            transaction = Transaction(pd)
            transaction.put(keys.int_record(Upstream.id_of(number), 1), product.row())
            transaction.commit()
            began = time.monotonic()
            product.create(number, bootstrap, start_ts)
            reader = Reader(bootstrap, [f"{PREFIX}{number}"], partitions=1)
            thread = threading.Thread(target=reader.run, name="first-reader", daemon=True)
            thread.start()
            reader.wait(1)
            found.append(reader.arrived[0] - began)
            reader.stop()
            thread.join()
    return found


def measure(sizes: Sizes, progress: Ticker) -> dict[str, Any]:
    """All figures."""
    found: dict[str, Any] = {}
    all_tables = sizes.loaded + 1
    active = range(sizes.active)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-bench-")))
        bootstrap, _ = stack.enter_context(broker_with_pid())
        product = stack.enter_context(Feeds(folder, Upstream(folder, all_tables, 10), bootstrap))
        progress("starting")
        product.begin()
        assert product.ledger is not None
        progress(f"opening {sizes.feeds} changefeeds")
        found["open_s"] = round(product.create_all(range(sizes.feeds)), 1)
        progress("idle")
        time.sleep(SETTLE_S)
        before, began = product.ledger.cpu(), time.monotonic()
        time.sleep(sizes.seconds)
        roles = spent(before, product.ledger.cpu())
        wall = time.monotonic() - began
        found["idle_percent"] = {role: round(100 * cpu / wall, 1) for role, cpu in roles.items()}
        found["idle_all_percent"] = round(100 * sum(roles.values()) / wall, 1)
        found["list_idle"] = listed(product.address, LISTS, COMMANDS)
        row = product.row()
        with reading(bootstrap, active) as reader, writing(product.pd, active, sizes.rows, row):
            progress(f"{sizes.active} with rows")
            before, began = product.ledger.cpu(), time.monotonic()
            found["active"] = lags(reader, sizes.seconds, WARM_S)
            roles = spent(before, product.ledger.cpu())
            found["active_cores"] = round(sum(roles.values()) / (time.monotonic() - began), 2)
            found["list_active"] = listed(product.address, LISTS, COMMANDS)
            progress("further ones")
            took = further(product, bootstrap, range(sizes.feeds, sizes.feeds + FURTHER))
            found["further_s"] = round(statistics.median(took), 2)
            found["further_max_s"] = round(max(took), 2)
            found["memory_mb"] = round(product.memory_mb())
            if sizes.dead:
                found |= _next_to_dead(product, sizes, reader, progress)
        progress("the end")
    return found


def _next_to_dead(product: Feeds, sizes: Sizes, reader: Reader, progress: Ticker) -> dict[str, Any]:
    """The lag of the active changefeeds while the brokers of others are dead, and another one is loaded."""
    progress(f"{sizes.load_rows:,} rows to load")
    fill(product, sizes.loaded, sizes.load_rows)
    with ExitStack() as stack:
        bootstrap, pid = stack.enter_context(broker_with_pid())
        closed = stack.enter_context(broker_with_pid()) if sizes.closed else None
        doomed = [*sizes.stopping, *sizes.closing]
        stack.enter_context(writing(product.pd, doomed, sizes.rows, product.row()))
        progress(f"{len(doomed)} at other brokers")
        product.create_all(sizes.stopping, bootstrap)
        if closed is not None:
            product.create_all(sizes.closing, closed[0])
        time.sleep(SETTLE_S)
        os.kill(pid, signal.SIGSTOP)
        try:
            if closed is not None:
                os.kill(closed[1], signal.SIGKILL)
            progress("which are dead")
            rate = round(sizes.load_rows / sizes.seconds)
            settings = {"initial_load": True, "load_rows_per_second": rate}
            product.create(sizes.loaded, settings=settings)
            found = lags(reader, sizes.seconds, 0.0)
        finally:
            os.kill(pid, signal.SIGCONT)
    return {"next_to_dead": found}


def fill(product: Feeds, number: int, rows: int) -> None:
    """Commit rows to a table."""
    row, table_id = product.row(), Upstream.id_of(number)
    with PdClient(product.pd) as pd:
        for first in range(0, rows, FILL_ROWS):
            transaction = Transaction(pd)
            for handle in range(first, min(rows, first + FILL_ROWS)):
                transaction.put(keys.int_record(table_id, handle), row)
            transaction.commit()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    own = Sizes()
    counts = ("feeds", "active", "rows", "dead", "closed", "load_rows")
    for name in counts:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(own, name))
    parser.add_argument("--seconds", type=float, default=own.seconds)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = {name: getattr(options, name) for name in counts}
    sizes = SMOKE if options.smoke else replace(own, seconds=options.seconds, **chosen)
    end_in_order()
    ticker = Ticker()
    found = measure(sizes, ticker)
    ticker.close()
    lines = [["open, s", found["open_s"]], ["idle, % of a core", found["idle_all_percent"]]]
    lines += [["memory, MB", found["memory_mb"]], ["cores used", found["active_cores"]]]
    lines += [["first row of a further one, s", f"{found['further_s']} (max {found['further_max_s']})"]]
    for name in ("list_idle", "list_active"):
        for what in ("request", "command"):
            took = found[name][f"{what}_ms"]
            lines.append([f"{name.replace('_', ' ')}, {what}, p50 / p99 / max ms"])
            lines[-1].append(" / ".join(short(ms) for ms in took.values()))
    for name in ("active", "next_to_dead"):
        if one := found.get(name):
            lines.append([f"lag {name.replace('_', ' ')}, p50 / p99 / max ms"])
            lines[-1].append(f"{one['p50_ms']} / {one['p99_ms']} / {one['max_ms']}")
    print(
        table([[f"{sizes.feeds} changefeeds, {sizes.active} active", ""], *([a, str(b)] for a, b in lines)])
    )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
