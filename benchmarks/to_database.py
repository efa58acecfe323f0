"""Rows into MariaDB: the throughput of the consumer's target, compared with a plain loader.

    python -m benchmarks.to_database [--rows N] [--rounds N] [--json FILE]

It starts a real MariaDB. In turns, on one connection each, two programs write into an empty table of five
columns: the target (note, digests, guard, rows, position: everything for exactly-once), and a loader that
sends the same INSERT statements in one transaction. Both include rendering, neither includes the topic and
Spark. `mixed` is the target alone: half of the rows exist and change, with a delete and an insert each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from benchmarks.show import machine, table

from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying.net_effect import Effect
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.ddl.ddl_steps import Create
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.mysql.digest import Digest
from tidegate.consumer.mysql.literals import inserts
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.tables import create_table, qualified
from tidegate.consumer.mysql.target import MySqlTarget
from tidegate.consumer.mysql.texts import Texts
from tidegate.consumer.table.definition import Definition, from_info

SERVICES: Final = Path(__file__).parents[1] / "tools" / "services"
BATCH: Final = 50_000
TEXT: Final = 15
COLUMNS: Final = (("id", 8, 3, 20, 0), ("name", TEXT, 0, 40, -1), ("x", 5, 0, 22, -1), ("at", 12, 0, 26, 6))


class NoDigest(Digest):
    """A digest that does nothing, for the loader."""

    def add(self, what: bytes, texts: Texts) -> None:
        """Does nothing."""


def info_of(name: str) -> dict[str, Any]:
    """TiDB's description of the table."""
    columns = [
        {
            "id": at + 1,
            "name": {"O": column, "L": column},
            "offset": at,
            "state": 5,
            "version": 2,
            "type": {
                "Tp": kind,
                "Flag": flag,
                "Flen": flen,
                "Decimal": decimal,
                "Charset": "utf8mb4" if kind == TEXT else "binary",
                "Collate": "utf8mb4_bin" if kind == TEXT else "binary",
            },
        }
        for at, (column, kind, flag, flen, decimal) in enumerate((*COLUMNS, ("m", 246, 0, 12, 2)))
    ]
    return {"id": 1, "name": {"O": name, "L": name}, "cols": columns, "pk_is_handle": True, "state": 5}


def rows_of(begin: int, count: int) -> pa.Table:
    """Rows with ids from `begin` on, in the target's types."""
    ids = np.arange(begin, begin + count)
    names = pa.array([b"a name of some length, number %d" % one for one in ids.tolist()], pa.binary())
    return pa.table(
        {
            "id": ids,
            "name": names,
            "x": ids * 1.25,
            "at": pa.array(["2024-02-29 12:34:56.123456"] * count),
            "m": pa.array([f"{one % 100_000}.25" for one in ids.tolist()]),
        }
    )


def position(ts: int) -> Position:
    """The position with one partition at `ts`."""
    return Position(ts, "t", "open-protocol", "transaction", {0: PartitionPosition(ts, ts, ts)})


def into_target(server: MySqlServer, made: Definition, batches: list[tuple[pa.Table, bool]]) -> float:
    """Seconds to write the batches. Each batch has a flag that says whether its rows are new."""
    target = MySqlTarget(server, "bench", lanes=1)
    target.recover()
    message = DdlMessage(1, "create table", 3, made.schema, made.table, None, 0)
    target.intend(message, [Create(made)])
    target.execute(Create(made))
    target.advance(position(1))
    no_keys = batches[0][0].select(["id"]).slice(0, 0)
    began = time.perf_counter()
    for at, (rows, fresh) in enumerate(batches, 2):
        effect = Effect(rows, no_keys, np.full(rows.num_rows, fresh))
        target.write([partial(TableChanges, made, effect)], position(at))
    spent = time.perf_counter() - began
    target.close()
    return spent


def by_loader(server: MySqlServer, made: Definition, batches: list[tuple[pa.Table, bool]]) -> float:
    """Seconds of a loader that only inserts, with a transaction for each batch."""
    connection = server.connect()
    connection.query(create_table(made).encode())
    began = time.perf_counter()
    for rows, _ in batches:
        connection.begin()
        for text in inserts(made.columns, rows, qualified(made.schema, made.table), NoDigest()):
            connection.query(text)
        connection.commit()
    spent = time.perf_counter() - began
    connection.close()
    return spent


def emptied(server: MySqlServer) -> None:
    """Empty the server, as if nothing had been written."""
    connection = server.connect()
    for schema in ("bench", "tidegate"):
        connection.query(f"DROP DATABASE IF EXISTS {schema}")
    connection.query("CREATE DATABASE bench")
    connection.close()


def main() -> None:
    """Parse, measure in turns, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    made = from_info("bench", info_of("t"), 1)
    fresh = [(rows_of(at, min(BATCH, arguments.rows - at)), True) for at in range(0, arguments.rows, BATCH)]
    half = max(1, len(fresh) // 2)
    mixed = [*fresh[:half], *((rows, False) for rows, _ in fresh[:half])]
    took: dict[str, list[float]] = {"loader": [], "target": [], "mixed": []}
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        command = [str(SERVICES), "start", "mariadb", "--dir", folder, "--owner", str(os.getpid()), "--json"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        server = MySqlServer("127.0.0.1", int(json.loads(done.stdout)["mariadb"]["port"]), "root", "")
        for number in range(arguments.rounds):
            print(f"  round {number + 1} of {arguments.rounds}", file=sys.stderr)
            for name, run, batches in (
                ("loader", by_loader, fresh),
                ("target", into_target, fresh),
                ("mixed", into_target, mixed),
            ):
                emptied(server)
                took[name].append(sum(rows.num_rows for rows, _ in batches) / run(server, made, batches))
        subprocess.run([str(SERVICES), "stop", "--dir", folder], check=True)
    rates = {name: statistics.median(found) for name, found in took.items()}
    ratio = statistics.median(t / b for t, b in zip(took["target"], took["loader"], strict=True))
    lines = [(name, f"{rate:,.0f} rows/s") for name, rate in rates.items()]
    print(table([("into MariaDB", "median"), *lines, ("target / loader", f"{ratio:.2f}")]))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "rates": took, "ratio": ratio}))


if __name__ == "__main__":
    main()
