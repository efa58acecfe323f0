"""The event store alone: sealing many spans in a tick, writing and reading one span, and one table among
many.

    python -m benchmarks.store [--against CHECKOUT] [--rounds N] [--json FILE]

| figure | what runs |
|---|---|
| seal_ms | a tick that seals 1,000 spans with one row each, and publishes: milliseconds, median |
| idle_ms | the same without rows, 10,000 spans |
| look_ms | one look at the floors of 10,000 spans |
| write | rows/s of one table, appended in blocks and sealed every 200,000 rows |
| mixed | the same, rows of 10,000 tables in one span |
| read | rows/s of reading the rows of `write` |
| one_ms | reading one of the 10,000 tables |

Times are CPU time of this process. With `--against`, a checkout of another commit runs in turns with this
one, and its figures come first. If that version cannot read one table alone, it filters all rows.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.eventstore import kernels, reader, store_view
from tidegate.eventstore.store import EventStore
from tidegate.model.block import ENTRY_SCHEMA, OP_PUT
from tidegate.model.span import Span
from tidegate.tidb.keys import int_record, record_prefix, record_span

ROOT: Final = Path(__file__).parents[1]
ROWS: Final = 2_000_000
BLOCK: Final = 20_000
SEAL: Final = 200_000
TABLES: Final = 10_000
SPANS: Final = 1_000
TICKS: Final = 20


def blocks(tables: int) -> Iterator[pa.RecordBatch]:
    """ROWS rows of about 150 bytes, ten for each commit ts, of random tables below `tables`."""
    generator = np.random.default_rng(7)
    prefixes = np.array([int_record(table, 0)[:11] for table in range(tables)])
    values = pa.array([b"v" * 90] * BLOCK, pa.binary())
    olds = pa.array([b"" if n % 3 else b"o" * 90 for n in range(BLOCK)], pa.binary())
    for first in range(0, ROWS, BLOCK):
        chosen = prefixes[generator.integers(0, tables, BLOCK)].tobytes()
        keys = [chosen[11 * n : 11 * n + 11] + (first + n).to_bytes(8, "big") for n in range(BLOCK)]
        commits = np.arange(first, first + BLOCK, dtype=np.uint64) // 10 + 2
        generator.shuffle(commits)
        numbers = [pa.array(c) for c in (commits, commits - 1, np.full(BLOCK, OP_PUT, np.uint8))]
        columns = [*numbers, pa.array(keys, pa.binary()), values, olds]
        yield pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)


def throughput(folder: Path, tables: int) -> dict[str, float]:
    """Rows/s written and read, and milliseconds for one table."""
    made = list(blocks(tables))
    store = EventStore(folder, memory_bytes=1 << 40)
    span = store.open_span(Span(b"t", b"u"))
    span.begin(1)
    began = time.process_time()
    for number, block in enumerate(made, 1):
        span.append(block)
        if number * BLOCK % SEAL == 0:
            span.seal(number * BLOCK // 10 + 1)
            store.publish()
    written = time.process_time() - began
    upto = ROWS // 10 + 1
    began = time.process_time()
    rows = sum(block.num_rows for block in reader.read(folder, span.id, 1, upto))
    taken = time.process_time() - began
    assert rows == ROWS
    began = time.process_time()
    count = one_table(folder, span.id, upto, tables // 2)
    one = time.process_time() - began
    assert 0 < count <= ROWS
    store.close()
    return {"write": ROWS / written, "read": ROWS / taken, "one_ms": one * 1000}


def one_table(folder: Path, span: str, upto: int, table: int) -> int:
    """The number of rows of a table, read in the best way that this version has."""
    if "tables" in inspect.signature(reader.read).parameters:
        named: dict[str, Any] = {"tables": [table]}
        return sum(block.num_rows for block in reader.read(folder, span, 1, upto, **named))
    prefix = record_prefix(table)
    found = 0
    for block in reader.read(folder, span, 1, upto):
        found += block.filter(pc.starts_with(block.column(3), prefix)).num_rows
    return found


def ticks(folder: Path) -> dict[str, float]:
    """Milliseconds of a tick with rows, of a tick without rows, and of a look."""
    store = EventStore(folder)
    spans = [store.open_span(record_span(table)) for table in range(SPANS)]
    for span in spans:
        span.begin(1)
    with_rows, without, looks = [], [], []
    for tick in range(TICKS):
        ts = 10 + tick
        columns: list[Any] = [[ts], [ts - 1], [OP_PUT], [b""], [b"v" * 90], [b""]]
        for table, span in enumerate(spans):
            columns[3] = [int_record(table, tick)]
            arrays = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
            span.append(pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA))
        began = time.process_time()
        for span in spans:
            span.seal(ts)
        store.publish()
        with_rows.append(time.process_time() - began)
    spans += [store.open_span(record_span(table)) for table in range(SPANS, TABLES)]
    for span in spans[SPANS:]:
        span.begin(1)
    for tick in range(TICKS):
        began = time.process_time()
        for span in spans:
            span.seal(100 + tick)
        store.publish()
        without.append(time.process_time() - began)
        began = time.process_time()
        assert store_view.read_frontier(folder)[spans[-1].id] == 100 + tick
        looks.append(time.process_time() - began)
    store.close()
    return {
        "seal_ms": median(with_rows) * 1000,
        "idle_ms": median(without) * 1000,
        "look_ms": median(looks) * 1000,
    }


def measure() -> dict[str, float]:
    """All figures of this checkout."""
    kernels.warm()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        figures |= ticks(Path(folder) / "ticks")
        alone = throughput(Path(folder) / "alone", 1)
        mixed = throughput(Path(folder) / "mixed", TABLES)
    figures |= {"write": alone["write"], "read": alone["read"]}
    return figures | {"mixed": mixed["write"], "one_ms": mixed["one_ms"]}


def child(checkout: Path) -> dict[str, float]:
    """The figures of a checkout, measured by this program in a separate process."""
    path = os.pathsep.join([str(checkout / "src"), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.store", "--child"]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure()))
        return
    sides = [*([options.against] if options.against else []), ROOT]
    runs: list[list[dict[str, float]]] = [[] for _ in sides]
    for _ in range(options.rounds):
        for side, checkout in enumerate(sides):
            runs[side].append(child(checkout.resolve()))
    for name in runs[0][0]:
        print(f"{name:10}", *(f"{median(run[name] for run in side):14,.2f}" for side in runs), end="   ")
        print("|", *(" ".join(f"{run[name]:,.1f}" for run in side) + " |" for side in runs))
    if options.json:
        options.json.write_text(json.dumps(runs, indent=2) + "\n")


if __name__ == "__main__":
    main()
