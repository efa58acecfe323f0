"""`tidegate verify` on a large table with three planted differences: its time, and whether it finds only
these.

    python -m benchmarks.verify [--rows 10000000] [--cores 2] [--regions 8] [--json FILE]

The source is `scan_server`: a separate process in place of PD and TiKV, which serves 50,000 rows of the
recorded table `narrow` (5 columns, 200 bytes) repeatedly under new handles. Its CPU is not counted, though it
uses the same cores. The target is a Delta table with the same rows, written by the benchmark, except that one
row has another value, one is missing, and one is too many. It measures the whole command, including Spark's
start.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from benchmarks.accounting import Ledger, spent
from benchmarks.product import tidegate
from benchmarks.rows import BLOCK, LOGS, Source
from benchmarks.show import Ticker
from tools.processes import Child

from tidegate.model.timestamp import compose
from tidegate.mounter.columns import to_arrow
from tidegate.mounter.decode import MountOptions, mount
from tidegate.sink.lakehouse.snapshot_rows import SnapshotRow
from tidegate.sink.lakehouse.tables import Lakehouse, table_path

LOG: Final = "narrow"
READY_S: Final = 120.0
COMMIT_BLOCKS: Final = 20
"""The number of blocks written in one commit: about a million rows in each file."""


def planted(rows: int) -> dict[str, int]:
    """The numbers of the changed row, the missing row, and the additional row."""
    return {"changed": rows // 3, "missing": rows * 2 // 3, "extra": rows}


def fill(root: Path, source: Source, rows: int, ts: int) -> str:
    """Make the target. Returns the table's name."""
    table = source.store.version_at(source.table_id, ts)
    assert table is not None
    lake, path = Lakehouse(root), table_path(table.schema, table.table)
    blocks = _blocks(source, rows)
    first = next(blocks)
    lake.create(path, first.schema)
    waiting = [first]
    for block in blocks:
        waiting.append(block)
        if len(waiting) == COMMIT_BLOCKS:
            lake.append(path, pa.Table.from_batches(waiting))
            waiting = []
    if waiting:
        lake.append(path, pa.Table.from_batches(waiting))
    lake.snapshots.publish(
        ts, [SnapshotRow(ts, table.schema, table.table, table.id, path, lake.version(path))], "{}"
    )
    return table.name


def _blocks(source: Source, rows: int) -> Iterator[pa.RecordBatch]:
    """The rows in the target's types, with the planted differences."""
    odd = planted(rows)
    for first in range(0, rows, BLOCK):
        count = min(BLOCK, rows - first)
        (mounted,), bad = mount(source.block(first, count, 100, False), source.store, MountOptions())
        assert not bad, bad[0].why
        made = to_arrow(mounted)
        ids = made.column("id")
        if first <= odd["changed"] < first + count:
            k = pc.if_else(pc.equal(ids, odd["changed"]), pa.scalar(-1, pa.int32()), made.column("k"))
            made = made.set_column(made.schema.get_field_index("k"), "k", k)
        if first <= odd["missing"] < first + count:
            made = made.filter(pc.not_equal(ids, odd["missing"]))
        if first + count == rows:
            last = made.slice(made.num_rows - 1)
            extra = last.set_column(0, "id", pa.array([odd["extra"]], pa.int32()))
            made = pa.Table.from_batches([made, extra]).combine_chunks().to_batches()[0]
        yield made


def measure(rows: int, cores: int, regions: int, progress: Ticker) -> dict[str, Any]:
    """One run of the command. Returns what it found and its time."""
    source = Source.read(LOG)
    ts = compose(int(time.time() * 1000))
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        root = Path(folder) / "lake"
        progress(f"verify: writing a target of {rows:,} rows")
        name = fill(root, source, rows, ts)
        command = [sys.executable, "-m", "benchmarks.scan_server", str(LOGS / f"{LOG}.jsonl.gz")]
        command += ["--rows", str(rows), "--regions", str(regions)]
        server = Child("scan server", command, Path(folder) / "server.log")
        try:
            pd = server.wait_line(lambda line: "pd" in line, READY_S)["pd"]
            progress(f"verify: comparing {rows:,} rows")
            return {"rows": rows, "cores": cores, **_run(Path(folder), pd, root, name, cores)}
        finally:
            server.end()


def _run(folder: Path, pd: str, root: Path, name: str, cores: int) -> dict[str, Any]:
    command = tidegate("verify", "--pd", pd, "--target", f"delta://{root}", "--table", name, "--json")
    began = time.monotonic()
    child = Child("verify", [*command, "--master", f"local[{cores}]"], folder / "verify.log")
    try:
        ledger = Ledger([child.pid])
        cpu = before = ledger.cpu()
        while not (answered := _answer(child)):
            # Sample often: workers end before the answer comes, and their accounts are lost then.
            now = ledger.cpu()
            cpu = {role: max(cpu.get(role, 0.0), seconds) for role, seconds in now.items()}
            time.sleep(0.05)
        wall = time.monotonic() - began
        peaks = ledger.peaks()
        ledger.close()
    finally:
        child.end()
    found = answered[0]["tables"][0]
    roles = spent(before, cpu)
    return {
        "wall_s": round(wall, 1),
        "cpu_s": round(sum(roles.values()), 1),
        "cpu_s_by_process": roles,
        "peak_mb": peaks,
        "source_rows": found["source_rows"],
        "target_rows": found["target_rows"],
        "differing_ranges": found["differing_ranges"],
        "found": {d["kind"]: d["key"]["id"] for d in found["differences"]},
        "differences": len(found["differences"]),
    }


def _answer(child: Child) -> list[dict[str, Any]]:
    """Wait for the command's JSON output. Fails if the command ends without it."""
    ended = child.ended
    found = [line for line in child.lines if "tables" in line]
    if ended and not found:
        child.wait_line(lambda line: "tables" in line, 1)
    return found


def main() -> None:
    """The command line. Exit code 1 if it finds anything else than the planted differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--regions", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    progress = Ticker()
    found = measure(options.rows, options.cores, options.regions, progress)
    progress.close()
    good = found["found"] == planted(options.rows) and found["differences"] == len(planted(options.rows))
    verdict = "as planted" if good else "NOT what was planted"
    print(
        f"{found['rows']:,} rows a side, {found['cores']} cores: {found['wall_s']} s, CPU {found['cpu_s']} s"
    )
    print(f"{found['differences']} differing rows named, {verdict}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
