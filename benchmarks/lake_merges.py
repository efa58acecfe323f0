"""The cost of updates in a Delta or Iceberg table as it grows, in both write modes, with commits in turns.

    python -m benchmarks.lake_merges [--targets delta,iceberg] [--rows 1000000,5000000] [--changes 100000]
        [--commits 8] [--modes merge-on-read,copy-on-write]

It measures the target alone, without a topic. Each commit updates `--changes` rows anywhere in the table, and
compacts as before a snapshot. `CPU` is that of this process, `written` the size of the new data files and
files of deleted rows per commit, `read` the time of one scan after the last commit, by delta-rs or pyiceberg.
`peak` is the most memory that the process has had so far.
"""

from __future__ import annotations

import argparse
import resource
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
from deltalake import DeltaTable

from tidegate.consumer.delta.lake import DeltaLake
from tidegate.consumer.iceberg.lake import IcebergLake
from tidegate.consumer.lakehouse.write_mode import WriteMode

SCHEMA: Final = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("name", pa.string())])
FILL: Final = 500_000
"""Rows of one append."""
TARGETS: Final = ("delta", "iceberg")


class Filled:
    """A target with one table of `rows` rows."""

    def __init__(self, root: Path, kind: str, mode: WriteMode, rows: int) -> None:
        self.kind, self.mode = kind, mode
        self.cpu, self.wall, self.written = list[float](), list[float](), list[int]()
        root.mkdir()
        self.lake = DeltaLake(root, mode=mode) if kind == "delta" else IcebergLake(root, mode)
        self.lake.begin()
        self.path = self.lake.make("db", "t", SCHEMA)
        self._folder = root / self.path
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
        """How many rows a library finds that knows nothing of Tidegate, and the seconds."""
        began = time.process_time()
        if isinstance(self.lake, DeltaLake):
            reader = DeltaTable(str(self._folder)).scan(columns=["n"])
            rows = sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(reader))
        else:
            rows = self.lake.tables.table(self.path).scan(selected_fields=("n",)).to_arrow().num_rows
        return rows, time.process_time() - began

    def close(self) -> None:
        if isinstance(self.lake, IcebergLake):
            self.lake.close()

    def _files(self) -> dict[Path, int]:
        """Without the log, whose checkpoints are Parquet files too, and the metadata."""
        files = (file for file in self._folder.rglob("*") if file.is_file())
        return {
            file: file.stat().st_size
            for file in files
            if file.suffix in (".parquet", ".bin") and "_delta_log" not in file.parts
        }


def rows_of(ids: npt.NDArray[np.int64], number: int) -> pa.Table:
    """Rows of about 70 bytes."""
    names = pa.array((ids * 2_654_435_761 + number).astype(str))
    text = pc.binary_join_element_wise(names, names, names, "-")
    return pa.table([pa.array(ids), pa.array(np.full(len(ids), number)), text], schema=SCHEMA)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--rows", default="1000000,5000000")
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--commits", type=int, default=8)
    parser.add_argument("--modes", default=",".join(WriteMode))
    options = parser.parse_args()
    costs = ["rows per CPU-second", "rows/s", "slowest s", "written MB", "read CPU s", "peak MB"]
    lines = [["rows", "target", "mode", *costs]]
    for rows in map(int, options.rows.split(",")):
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
            modes = [WriteMode(mode) for mode in options.modes.split(",")]
            kinds = [(kind, mode) for kind in options.targets.split(",") for mode in modes]
            targets = [Filled(Path(folder) / f"{kind}-{mode}", kind, mode, rows) for kind, mode in kinds]
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
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                more = [f"{max(target.wall):.1f}", f"{written:.1f}", f"{seconds:.2f}", f"{peak:.0f}"]
                lines.append([short(rows), target.kind, target.mode, *shown, *more])
                target.close()
    print(table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
