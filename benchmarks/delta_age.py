"""The cost of a Delta target as it ages: commits, a restart and upkeep, by tables and by snapshots.

    python -m benchmarks.delta_age [--tables 10,100,400] [--snapshots 300,1000,3000] [--s3] [--json FILE]

It measures the target alone, without a topic and without Spark. Each commit changes ten rows of one table
(two inserts and then eight updates of existing rows) and names a snapshot. Snapshots are two seconds of the
source's time apart. `commit` is the median of the last 30; `recover` the time of a restart until the position
is known; `upkeep` one whole round of upkeep; `longest` the longest time for which upkeep blocks the loop.
There is also a round after every 300 snapshots, which is ten minutes. Before the last round all files are
dated two hours back, because young files are never deleted. `log` is the number of files in the log of the
table that changed most, before and after the round, and `open` the time to open it (from the disk). With
`--s3` the target is in an S3 server on this machine (`tools/services start s3`), which answers in a few
milliseconds: this measures the number of requests, not a network.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from benchmarks.show import machine, short, table
from deltalake import DeltaTable

from tidegate.consumer.applying.net_effect import Effect
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.ddl.ddl_steps import Create
from tidegate.consumer.delta.target import DeltaTarget
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.table.definition import Definition, from_info
from tidegate.model.timestamp import compose
from tidegate.sink.lakehouse.object_store import Bucket, ObjectStore
from tidegate.sink.lakehouse.store import Store
from tidegate.workload.definitions import NOT_NULL, PRIMARY, ColumnSpec, table_info

SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])
BIGINT: Final = 8
VARCHAR: Final = 15
STEP_MS: Final = 2_000
BEGIN_MS: Final = 1_700_000_000_000
SAMPLE: Final = 30
"""The number of timed commits."""
ROUND: Final = 300
"""The number of snapshots between two rounds of upkeep: ten minutes."""
FEW_TABLES: Final = 4
FEW_SNAPSHOTS: Final = 60
AGED_S: Final = 7_200.0
SERVICES: Final = Path(__file__).parents[1] / "tools" / "services"


class Aging:
    """One target that ages."""

    def __init__(self, root: Path, tables: int, store: Store | None = None) -> None:
        """`root`: the place of the files. `store`: the access to them; None for the disk."""
        self.root, self.snapshots = root, 0
        self.at: Path | Store = store or root
        self.target = DeltaTarget(self.at, consumer="bench")
        self.target.recover()
        self.made = [definition_of(f"t{number:05d}") for number in range(tables)]
        for made in self.made:
            self.target.execute(Create(made))
        self.position = position_of(0)

    def commit(self) -> float:
        """Change one table and name a snapshot. Returns the seconds. Every second commit changes the first
        table.
        """
        self.snapshots += 1
        at = 0 if self.snapshots % 2 else self.snapshots // 2 % len(self.made)
        rows, fresh = rows_of(self.snapshots)
        changes = TableChanges(self.made[at], Effect(rows, rows.select(["id"]).slice(0, 0), fresh))
        began = time.perf_counter()
        position = position_of(self.snapshots)
        self.target.write([partial(TableChanges, changes.definition, changes.effect)], position)
        self.position = self.target.commit(position)
        return time.perf_counter() - began

    def measure(self, snapshots: int) -> dict[str, Any]:
        """Grow to `snapshots` snapshots, then measure the figures described above."""
        commits: list[float] = []
        while self.snapshots < snapshots:
            commits.append(self.commit())
            if self.snapshots % ROUND == 0 and self.snapshots < snapshots:
                self._upkeep()
        commits = commits[-SAMPLE:]
        began = time.perf_counter()
        self.target.close()
        self.target = DeltaTarget(self.at, consumer="bench")
        self.target.recover()
        recover = time.perf_counter() - began
        found = {
            "tables": len(self.made),
            "snapshots": snapshots,
            "commit_ms": ms(statistics.median(commits)),
        }
        found |= {"recover_ms": ms(recover), **self._opened("before")}
        pieces = self._tidied()
        found |= {"upkeep_ms": ms(sum(pieces)), "longest_ms": ms(max(pieces)), **self._opened("after")}
        again = self._tidied()
        return found | {"again_ms": ms(sum(again))}

    def _tidied(self) -> list[float]:
        """The seconds of each piece of one round of upkeep."""
        for folder, _, names in os.walk(self.root):
            for name in names:
                then = time.time() - AGED_S
                os.utime(Path(folder) / name, (then, then))
        return self._upkeep()

    def _upkeep(self) -> list[float]:
        pieces = []
        done = False
        while not done:
            began = time.perf_counter()
            done = self.target.tidy(self.position)
            pieces.append(time.perf_counter() - began)
        return pieces

    def _opened(self, when: str) -> dict[str, Any]:
        path = self.root / "bench" / "t00000"
        began = time.perf_counter()
        DeltaTable(path)
        spent = time.perf_counter() - began
        return {f"log_{when}": len(list((path / "_delta_log").iterdir())), f"open_{when}_ms": ms(spent)}


def definition_of(name: str) -> Definition:
    """A table of two columns."""
    columns = [
        ColumnSpec("id", BIGINT, 20, flag=NOT_NULL | PRIMARY),
        ColumnSpec("name", VARCHAR, 40, text=True),
    ]
    return from_info("bench", table_info(1 + int(name[1:]), name, columns, ["id"]), 1)


def rows_of(number: int) -> tuple[pa.Table, np.ndarray[Any, Any]]:
    """Ten rows, and a mask of the new ones."""
    fresh = np.arange(10) < 2
    ids = np.where(fresh, 1_000 + 2 * number + np.arange(10), (number * 8 + np.arange(10)) % 1_000)
    return pa.table([ids, [f"value {number}"] * 10], schema=SCHEMA), fresh


def position_of(number: int) -> Position:
    """The position after `number` snapshots."""
    part = {0: PartitionPosition(number, number, number)}
    return Position(compose(BEGIN_MS + STEP_MS * number), "t", "open-protocol", "transaction", part)


def ms(seconds: float) -> float:
    """Milliseconds with one decimal."""
    return round(seconds * 1000, 1)


Place = Callable[[str], tuple[Path, Store | None]]
"""For the name of a target: the place of its files, and the access to them."""


@contextmanager
def places(s3: bool) -> Iterator[Place]:
    """A folder for targets, or an S3 server for them. It is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        if not s3:
            yield lambda name: (Path(folder) / name, None)
            return
        command = [str(SERVICES), "start", "s3", "--dir", folder, "--owner", str(os.getpid()), "--json"]
        held = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["s3"]
        os.environ |= {"AWS_ACCESS_KEY_ID": held["key"], "AWS_SECRET_ACCESS_KEY": held["secret"]}
        bucket, data = held["bucket"], Path(held["data"])
        try:
            yield lambda name: (data / bucket / name, ObjectStore(Bucket(bucket, name, held["endpoint"])))
        finally:
            subprocess.run([str(SERVICES), "stop", "--dir", folder], check=True)


def measure(tables: Sequence[int], snapshots: Sequence[int], place: Place) -> list[dict[str, Any]]:
    """Measure by the number of tables, with a target for each number, then by the number of snapshots."""
    found = []
    for count in tables:
        print(f"  {count} tables", file=sys.stderr)
        root, store = place(f"of-{count}")
        found.append(Aging(root, count, store).measure(FEW_SNAPSHOTS))
    for count in snapshots:
        print(f"  {count} snapshots", file=sys.stderr)
        root, store = place(f"aged-{count}")
        found.append(Aging(root, FEW_TABLES, store).measure(count))
    return found


def numbers(text: str) -> list[int]:
    """The numbers of a comma-separated list."""
    return [int(one) for one in text.split(",") if one]


def main() -> None:
    """Parse, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", type=numbers, default=[10, 100, 400])
    parser.add_argument("--snapshots", type=numbers, default=[300, 1_000, 3_000])
    parser.add_argument("--s3", action="store_true", help="in an S3 server on this machine")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with places(arguments.s3) as place:
        found = measure(arguments.tables, arguments.snapshots, place)
    print(table([tuple(found[0]), *(tuple(short(value) for value in one.values()) for one in found)]))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "rounds": found}))


if __name__ == "__main__":
    main()
