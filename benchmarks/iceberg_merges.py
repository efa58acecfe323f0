"""The cost of updates in an Iceberg table as it grows, in both write modes: commits in turns, in one process.

    python -m benchmarks.iceberg_merges [--rows 1000000,5000000] [--changes 100000] [--commits 8]
        [--modes merge-on-read,copy-on-write]

It measures the target alone, without a topic. Each commit updates `--changes` rows anywhere in the table, and
compacts as before a snapshot. `CPU` is that of this process, `written` the size of the new data files and
delete files per commit, `read` the time of one scan by pyiceberg after the last commit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from benchmarks.show import short, table

from tidegate.consumer.iceberg.lake import IcebergLake
from tidegate.consumer.lakehouse.write_mode import WriteMode

SCHEMA: Final = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("name", pa.string())])
FILL: Final = 500_000
"""Rows of one append."""


class Filled:
    """A target with one table of `rows` rows."""

    def __init__(self, root: Path, mode: WriteMode, rows: int) -> None:
        self.mode, self.cpu, self.wall, self.written = mode, list[float](), list[float](), list[int]()
        root.mkdir()
        self.lake = IcebergLake(root, mode)
        self.lake.begin()
        self.path = self.lake.make("db", "t", SCHEMA)
        self._folder = root / self.path / "data"
        for begin in range(0, rows, FILL):
            self.lake.append(self.path, rows_of(np.arange(begin, min(begin + FILL, rows)), 0))
            self.lake.compact(self.path, ["id"])

    def commit(self, ids: npt.NDArray[np.int64], number: int) -> None:
        """Update these rows."""
        before = self._files()
        cpu, wall = time.process_time(), time.monotonic()
        deletes = pa.table({"id": pa.array([], pa.int64())})
        self.lake.merge(self.path, rows_of(ids, number), deletes, ["id"])
        self.lake.compact(self.path, ["id"])
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.monotonic() - wall)
        self.written.append(sum(size for name, size in self._files().items() if name not in before))

    def read(self) -> tuple[int, float]:
        """How many rows pyiceberg finds, and the seconds."""
        began = time.process_time()
        found = self.lake.tables.table(self.path).scan(selected_fields=("n",)).to_arrow()
        return found.num_rows, time.process_time() - began

    def _files(self) -> dict[str, int]:
        return {file.name: file.stat().st_size for file in self._folder.iterdir()}


def rows_of(ids: npt.NDArray[np.int64], number: int) -> pa.Table:
    """Rows of about 70 bytes."""
    names = pa.array((ids * 2_654_435_761 + number).astype(str))
    text = pc.binary_join_element_wise(names, names, names, "-")
    return pa.table([pa.array(ids), pa.array(np.full(len(ids), number)), text], schema=SCHEMA)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default="1000000,5000000")
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--commits", type=int, default=8)
    parser.add_argument("--modes", default=",".join(WriteMode))
    options = parser.parse_args()
    lines = [["rows", "mode", "rows per CPU-second", "rows/s", "slowest s", "written MB", "read CPU s"]]
    for rows in map(int, options.rows.split(",")):
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
            modes = map(WriteMode, options.modes.split(","))
            targets = [Filled(Path(folder) / mode, mode, rows) for mode in modes]
            some = np.random.default_rng(rows)
            for number in range(options.commits):
                ids = np.sort(some.choice(rows, min(options.changes, rows), replace=False))
                for target in targets:
                    target.commit(ids, number + 1)
            for target in targets:
                held, seconds = target.read()
                assert held == rows, held
                speeds = [options.changes / statistics.mean(used) for used in (target.cpu, target.wall)]
                shown = [short(speed) for speed in speeds]
                written = statistics.mean(target.written) / 1e6
                more = [f"{max(target.wall):.1f}", f"{written:.1f}", f"{seconds:.2f}"]
                lines.append([short(rows), target.mode, *shown, *more])
                target.lake.close()
    print(table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
