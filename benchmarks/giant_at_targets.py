"""The memory that the consumer needs to apply one transaction of 2 GB to a target.

    python -m benchmarks.giant_at_targets [--mb N] [--kind insert|update] [--target mariadb|delta|iceberg]
        [--keyless]

Messages are canal-json of about 440 bytes, with DDL headers, in a real Kafka. The real `tidegate consumer
run` writes to a real MariaDB, or to Delta or Iceberg tables. First it applies ordinary transactions: the peak
memory of all its processes together is the base. Then it applies one transaction with N MB of messages over
four tables. Memory is anonymous memory, without the pages of mapped files (see `accounting`). With `update`
the transaction changes every existing row; with `insert` all its rows are new. With `--keyless` the tables
have no key, and each row is there several hundred times; then only `insert` can be measured, because an
update of all rows would have nearly no net effect.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from benchmarks.accounting import anonymous_mb, role_of
from benchmarks.broker import broker_with_pid
from benchmarks.database_topic import PATIENCE_S, Part, Tables, Topic, running_mariadb
from benchmarks.show import Ticker, machine, table
from benchmarks.to_delta import READY_S
from tools.processes import Child, descendants

from tidegate.consumer.mysql.atomicity import LANES
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.model.timestamp import compose

MESSAGE_BYTES: Final = 442
WARM_UP: Final = 400_000
GOAL_MB: Final = 600
FILES: Final = ("delta", "iceberg")
"""Targets of files."""
SAMPLE_S: Final = 0.2


class Memory:
    """Samples the anonymous memory of a process tree: the peak of the sum, and its parts by role."""

    def __init__(self, pid: int) -> None:
        self._pid, self._done = pid, threading.Event()
        self.peak, self.roles = 0.0, dict[str, float]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin_again(self) -> tuple[float, dict[str, float]]:
        """Return the peak so far and reset it."""
        found = self.peak, self.roles
        self.peak = 0.0
        return found

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            roles = dict[str, float]()
            for pid, command in [(self._pid, "tidegate consumer"), *descendants(self._pid)]:
                roles[role_of(command)] = roles.get(role_of(command), 0.0) + anonymous_mb(pid)
            if sum(roles.values()) > self.peak:
                self.peak, self.roles = sum(roles.values()), roles


def measure(
    mb: int, kind: str, target: str, progress: Callable[[str], None], *, keyed: bool = True
) -> dict[str, Any]:
    """One run."""
    rows = mb * 1_000_000 // MESSAGE_BYTES
    tables = Tables(LANES, keyed=keyed)
    with broker_with_pid() as (bootstrap, _), tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        topic = Topic(bootstrap, tables)
        topic.create_tables()
        progress("filling the topic")
        base = rows if kind == "update" else WARM_UP
        warm = topic.fill([Part("insert", np.arange(base))])
        with _target(target, Path(folder)) as (uri, server):
            until = warm + compose(3_600_000)
            command = [sys.executable, "-m", "tidegate", "consumer", "run", "--source", topic.uri, "--json"]
            command += ["--target", uri, "--name", "bench"] if server else ["--target", uri]
            command += ["--folder", f"{folder}/own"] if server else []
            child = Child("consumer", [*command, "--until", str(until)], Path(folder) / "consumer.log")
            try:
                child.wait_line(lambda line: line.get("event") == "ready", READY_S)
                memory = Memory(child.pid)
                progress("ordinary transactions")
                _until(child, warm)
                before, roles_before = memory.begin_again()
                begun = topic.bytes
                progress(f"one transaction of {mb:,} MB")
                first = 0 if kind == "update" else base
                topic.fill_one(Part(kind, np.arange(first, first + rows)))
                topic.ts = until - 2
                topic.mark()
                began = time.monotonic()
                progress("the consumer applies it")
                child.wait_line(lambda line: line.get("event") == "stopped", PATIENCE_S)
                wall = time.monotonic() - began
                memory.close()
                child.wait(60)
            finally:
                child.end()
            found = _count(server, uri, tables)
    expected = rows if kind == "update" else base + rows
    assert found == expected, f"{found} rows are there, not {expected}"
    return {
        "rows": rows,
        "mb": (topic.bytes - begun) / 1e6,
        "base_mb": before,
        "base_by_process": roles_before,
        "peak_mb": memory.peak,
        "peak_by_process": memory.roles,
        "above_mb": memory.peak - before,
        "wall_s": wall,  # from the end of the topic on; before, it was read and staged
    }


@contextmanager
def _target(name: str, folder: Path) -> Iterator[tuple[str, MySqlServer | None]]:
    if name in FILES:
        yield f"{name}://{folder}/lake", None
        return
    with running_mariadb() as (server, _):
        yield str(server), server


def _until(child: Child, ts: int) -> None:
    """Wait until the consumer reports the snapshot at `ts`."""
    child.wait_line(lambda line: int(line.get("ts", 0)) >= ts, PATIENCE_S)


def _count(server: MySqlServer | None, uri: str, tables: Tables) -> int:
    if uri.startswith("iceberg:"):
        from tidegate.consumer.iceberg import snapshots as iceberg

        column = ["name"]
        return sum(one.to_arrow(column).num_rows for one in iceberg.open_snapshot(uri).tables.values())
    if server is None:
        from tidegate.consumer.snapshots import open_snapshot

        return sum(int(one.dataset().count_rows()) for one in open_snapshot(uri).tables.values())
    connection, found = server.connect(), 0
    with connection.cursor() as cursor:
        for name in tables.names:
            cursor.execute(f"SELECT COUNT(*) FROM bench.{name}")
            found += cursor.fetchall()[0][0]
    connection.close()
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mb", type=int, default=2048)
    parser.add_argument("--kind", choices=("insert", "update"), default="insert")
    parser.add_argument("--target", choices=("mariadb", *FILES), default="mariadb")
    parser.add_argument("--keyless", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.keyless and options.kind != "insert":
        parser.error("--keyless measures inserts only")
    ticker = Ticker()
    found = measure(options.mb, options.kind, options.target, ticker, keyed=not options.keyless)
    ticker.close()
    title = f"{options.kind} of {found['rows']:,} rows, {found['mb']:,.0f} MB, to {options.target}"
    title += ", without a key" if options.keyless else ""
    roles = sorted(found["base_by_process"].keys() | found["peak_by_process"].keys(), key=str.lower)
    lines = [
        (
            role,
            f"{found['base_by_process'].get(role, 0):,.0f}",
            f"{found['peak_by_process'].get(role, 0):,.0f}",
        )
        for role in roles
    ]
    print(
        table(
            [
                (title, "base MB", "peak MB"),
                *lines,
                ("all", *(f"{found[k]:,.0f}" for k in ("base_mb", "peak_mb"))),
            ]
        )
    )
    print(f"above the base: {found['above_mb']:,.0f} MB (goal {GOAL_MB}); applied in {found['wall_s']:.0f} s")
    if options.json:
        reported = {"machine": machine(), "command": sys.argv[1:], "cores": os.cpu_count(), "found": found}
        options.json.write_text(json.dumps(reported, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
