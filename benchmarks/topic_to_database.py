"""From a topic into MariaDB: rows/s of the consumer, compared with a loader of the same rows.

    python -m benchmarks.topic_to_database [--rows N] [--changes N] [--rate N] [--rounds N] [--json FILE]

Messages are canal-json of about 440 bytes, written by our encoder, with DDL headers, in a real Kafka. It runs
the real `tidegate consumer run --until` with a real MariaDB. There are as many tables as lanes, one in each.
In turns:

    inserts  the consumer: new rows
    loader   no topic, no Spark: one process renders the same rows and sends INSERTs of many rows through
             the same driver, over as many connections as there are lanes, with a thread for each
    bare     the same loader with one thread and one connection
    sender   the loader with the statements made beforehand: the throughput of the server
    mixed    the consumer: two fifths inserts, two fifths updates and one fifth deletes, of random rows
    visible  the consumer: mixed changes at a steady rate; how long each watermark takes from the topic to
             the target (`visibility`)

The consumer is warm when it is measured: first it applies the DDLs and some rows. Then the topic is filled
behind an open transaction, so that a reader of committed messages does not see the messages, and the
transaction is committed. The rate is from the end of the first write to the end of the last one. `from the
first` counts from that commit on, and includes the first fetch, during which nothing is written.

The cores by process and the seconds by stage are of this whole time. Workers and driver work in parallel, and
so do the driver's threads, so the sum of the stages is more than the whole.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pymysql
from benchmarks.accounting import Ledger, busy_seconds, spent
from benchmarks.broker import broker_with_pid
from benchmarks.database_topic import (
    BLOCK,
    SCHEMA,
    Ints,
    Part,
    Services,
    Tables,
    Topic,
    clocks_of,
    consumer,
    mixed,
    running_mariadb,
    wait_position,
)
from benchmarks.show import Progress, Ticker, machine, table
from benchmarks.to_database import NoDigest, emptied
from benchmarks.visibility import COMMIT_INTERVAL_S, RATE, SECONDS, WARM_UP_S, visibility

from tidegate.consumer.mysql.atomicity import LANES
from tidegate.consumer.mysql.literals import inserts
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.tables import create_table, qualified
from tidegate.model.timestamp import compose

WARM_UP: Final = 200_000
"""Changes that the consumer has applied before it is measured."""
KINDS: Final = ("inserts", "loader", "bare", "sender", "mixed", "visible")
GOALS: Final = {"ratio": 0.7, "mixed": 40_000, "visible_ms": 500}


def by_consumer(
    services: Services, tables: Tables, base: Sequence[Part], parts: Sequence[Part], master: str
) -> dict[str, Any]:
    """Apply `base` without measurement, then measure `parts`."""
    topic, server = Topic(services.bootstrap, tables), services.server
    topic.create_tables()
    warm = topic.fill(base)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        # The consumer must know its end ts before the topic contains it.
        until = warm + compose(600_000)
        with consumer(services, topic, folder, ["--until", str(until), "--master", master]) as child:
            wait_position(server, warm, child)
            topic.messages = topic.bytes = 0
            with topic.hidden():
                topic.fill(parts)
                topic.ts = until - 2
                topic.mark()
                time.sleep(1.0)  # until the broker and the page cache are idle
                ledger = Ledger([child.pid, services.broker_pid, services.server_pid])
                before, busy, began = ledger.cpu(), busy_seconds(), time.time()
            # Sample often, because a process's account is lost when the process ends.
            cpu = wait_position(server, until, child, ledger.cpu)
            ended, busy = time.time(), busy_seconds() - busy
            ledger.close()
            child.wait(60)
        calls = read_clocks(clocks_of(folder), began, ended)
    topic.delete()
    changes = sum(len(part.handles) for part in parts)
    assert topic.messages == changes, f"{topic.messages} messages for {changes} changes"
    whole = changes / (ended - began)
    return {
        "rate": steady(calls) or whole,
        "rate_from_the_first": whole,
        "wall_s": ended - began,
        "cpu_s": spent(before, cpu) | {"all of the machine": round(busy, 2)},
        "bytes_a_message": topic.bytes / topic.messages,
        "stages": by_stage(calls, changes),
    }


def read_clocks(folder: Path, began: float, ended: float) -> list[dict[str, Any]]:
    """The calls that ended within the measured time, in the order of their ends."""
    lines = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted((one for one in lines if began <= one["at"] <= ended), key=lambda one: one["at"])


def steady(calls: Sequence[dict[str, Any]]) -> float:
    """Rows per second from the end of the first write to that of the last. 0 if there was only one write."""
    ends = [one["at"] for one in calls if one["stage"] == "write"]
    if len(ends) < 2:
        return 0.0
    rows = sum(one["rows"] for one in calls if one["stage"] == "convert" and one["at"] > ends[0])
    return float(rows / (ends[-1] - ends[0]))


def by_stage(calls: Sequence[dict[str, Any]], changes: int) -> dict[str, dict[str, float]]:
    """Seconds for 100,000 changes, and the number of calls, by stage."""
    total: dict[str, dict[str, float]] = {}
    for one in calls:
        of = total.setdefault(one["stage"], {"wall": 0.0, "cpu": 0.0, "calls": 0})
        of["wall"] += one["wall"] * 100_000 / changes
        of["cpu"] += one["cpu"] * 100_000 / changes
        of["calls"] += 1
    return total


def by_loader(
    server: MySqlServer, tables: Tables, base: Sequence[Part], part: Part, *, ready: bool, bare: bool
) -> dict[str, Any]:
    """Load the same rows by threads that do nothing else. `ready`: make statements before the clock runs.
    `bare`: by one thread over one connection, table after table.
    """
    lanes = len(tables.names)
    connections = [server.connect() for _ in range(lanes)]
    for made, connection in zip(tables.made, connections, strict=True):
        connection.query(create_table(made).encode())

    def blocks(handles: Ints, number: int) -> Iterator[list[bytes]]:
        """Statements of one table: a list for each transaction, which has as many rows as a block."""
        mine = tables.of(number, handles)
        for at in range(0, len(mine), BLOCK):
            yield _statements(tables, number, mine[at : at + BLOCK])

    def send(connection: pymysql.connections.Connection[Any], found: Iterator[list[bytes]]) -> None:
        for statements in found:
            connection.begin()
            for text in statements:
                connection.query(text)
            connection.commit()

    for one in base:
        for number, connection in enumerate(connections):
            send(connection, blocks(one.handles, number))
    work: list[Any] = [blocks(part.handles, number) for number in range(lanes)]
    work = [iter(list(found)) for found in work] if ready else work
    pairs = [(connections[0], chain(*work))] if bare else zip(connections, work, strict=True)
    threads = [threading.Thread(target=send, args=pair) for pair in pairs]
    began = time.time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.time() - began
    for connection in connections:
        connection.close()
    return {"rate": len(part.handles) / spent, "wall_s": spent}


def _statements(tables: Tables, number: int, handles: Ints) -> list[bytes]:
    made = tables.made[number]
    name = qualified(made.schema, made.table)
    return list(inserts(made.columns, tables.rows(handles), name, NoDigest()))


def check(server: MySqlServer, tables: Tables, rows: int) -> None:
    """Check that all rows have arrived."""
    connection = server.connect()
    with connection.cursor() as cursor:
        found = 0
        for name in tables.names:
            cursor.execute(f"SELECT COUNT(*) FROM {qualified(SCHEMA, name)}")
            found += cursor.fetchall()[0][0]
    connection.close()
    assert found == rows, f"{found} rows are there, not {rows}"


def measure(options: argparse.Namespace, progress: Progress) -> dict[str, list[dict[str, Any]]]:
    """Measure all kinds in turns."""
    tables, warm_up, rounds = Tables(options.lanes), options.warm_up, options.rounds
    fresh = Part("insert", np.arange(warm_up, warm_up + options.rows))
    base = [Part("insert", np.arange(warm_up))]
    there, parts = mixed(options.changes)
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    with broker_with_pid() as broker, running_mariadb() as (server, server_pid):
        services = Services(*broker, server, server_pid)
        for number in range(rounds):
            for name, made in found.items():
                progress(f"round {number + 1} of {rounds}: {name}")
                emptied(server)
                end = warm_up + options.rows
                if name == "inserts":
                    made.append(by_consumer(services, tables, base, [fresh], options.master))
                elif name == "mixed":
                    made.append(by_consumer(services, tables, there, parts, options.later_master))
                    end = options.changes - options.changes // 5
                elif name == "visible":
                    run, end = visibility(services, tables, options)
                    made.append(run)
                else:
                    made.append(
                        by_loader(server, tables, base, fresh, ready=name == "sender", bare=name == "bare")
                    )
                check(server, tables, end)
    return found


def _processes(name: str, runs: Sequence[dict[str, Any]]) -> str:
    """Cores by process, over the runs."""
    wall = sum(run["wall_s"] for run in runs)
    roles = sorted({role for run in runs for role in run["cpu_s"]}, key=str.lower)
    cores = [(role, sum(run["cpu_s"].get(role, 0.0) for run in runs) / wall) for role in roles]
    return table([(f"{name}: cores", f"of {os.cpu_count()}"), *((role, f"{of:.2f}") for role, of in cores)])


def report(found: Mapping[str, list[dict[str, Any]]]) -> tuple[str, dict[str, float]]:
    """The tables for people, and the figures in them."""
    rates = {name: [run["rate"] for run in runs] for name, runs in found.items() if name != "visible"}
    figures = {name: statistics.median(of) for name, of in rates.items()}
    for source in ("bare", "loader", "sender"):
        pairs = zip(rates["inserts"], rates[source], strict=True)
        figures[f"inserts / {source}"] = statistics.median(one / other for one, other in pairs)
    for name in ("inserts", "mixed"):
        figures[f"{name}, from the first"] = statistics.median(
            run["rate_from_the_first"] for run in found[name]
        )
    lines = [(name, f"{rate:,.0f} rows/s") for name, rate in figures.items() if "/" not in name]
    lines += [(name, f"{share:.2f}") for name, share in figures.items() if "/" in name]
    size = found["inserts"][0]["bytes_a_message"]
    parts = [table([(f"topic to MariaDB, {size:.0f} bytes a message", "median"), *lines])]
    for name in ("inserts", "mixed"):
        parts.append(_processes(name, found[name]))
        shown = [(f"{name}: ms of 100,000 changes", "wall", "CPU", "calls")]
        stages = sorted({stage for run in found[name] for stage in run["stages"]})
        for stage in stages:
            of = [run["stages"].get(stage, {"wall": 0.0, "cpu": 0.0, "calls": 0}) for run in found[name]]
            wall, cpu, calls = (
                statistics.median(one[kind] for one in of) for kind in ("wall", "cpu", "calls")
            )
            shown.append((stage, f"{1000 * wall:.0f}", f"{1000 * cpu:.0f}", f"{calls:.0f}"))
        parts.append(table(shown))
    for name in ("p50_ms", "p99_ms", "max_ms"):
        figures[f"visible {name}"] = statistics.median(run[name] for run in found["visible"])
    parts.append(_visible(found["visible"]))
    return "\n\n".join(parts), figures


def _visible(runs: Sequence[dict[str, Any]]) -> str:
    """How long a watermark took to become visible, run by run."""
    lines = [
        (
            f"{run['rate']:,.0f} rows/s, a commit every {run['commit_interval_s']} s",
            *(f"{run[name]:.0f}" for name in ("p50_ms", "p99_ms", "max_ms")),
            f"{run['cores']:.2f}",
        )
        for run in runs
    ]
    return table([("visible: ms from watermark to MariaDB", "p50", "p99", "max", "cores"), *lines])


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the inserts")
    parser.add_argument("--changes", type=int, default=1_000_000, help="of the mixed part")
    parser.add_argument("--rate", type=int, default=RATE, help="of the visible part, in changes/s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the visible part")
    parser.add_argument(
        "--commit-interval",
        type=float,
        default=COMMIT_INTERVAL_S,
        help="of the visible part, as for `consumer run`",
    )
    parser.add_argument("--lanes", type=int, default=LANES)
    parser.add_argument("--master", default="local[2]", help="as for `consumer run`")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="everything small; checks rows, not speed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.warm_up, options.visible_warm_up, options.later_master = WARM_UP, WARM_UP_S, options.master
    if options.smoke:
        options.rows, options.changes, options.rounds, options.warm_up = 5_000, 2_000, 1, 1_000
        options.rate, options.seconds, options.visible_warm_up = 1_000, 1.0, 0.5
        options.later_master = "workers[1]"  # starts without a JVM; the first part has one
    subprocess.run([sys.executable, "-m", "tidegate.kernel"], check=True, stdout=subprocess.DEVNULL)
    facts, ticker = machine(), Ticker()
    found = measure(options, ticker)
    ticker.close()
    text, figures = report(found)
    print(text)
    if options.json:
        reported = {
            "machine": facts,
            "command": sys.argv[1:],
            "figures": figures,
            "goals": GOALS,
            "runs": found,
        }
        options.json.write_text(json.dumps(reported, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
