"""The search over embedded upstream, Spark tasks and Delta: what was planted is named, nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.small_tables import CODE, ID, SmallTables, number, text
from tidegate.consumer.snapshots import open_snapshot
from tidegate.consumer.table.definition import ROWID
from tidegate.errors import InvalidInput
from tidegate.kvclient.pd import PdClient
from tidegate.sink.lakehouse.snapshot_rows import SnapshotRow
from tidegate.sink.lakehouse.tables import Lakehouse, table_path
from tidegate.tables.catalogue import history_held, tables_at
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.verify.job import SearchLimits, Verdict, Verification
from tidegate.verify.repair import apply
from tidegate.verify.side import Shape

pytestmark = pytest.mark.integration

ROWS = 3000
SMALL = SearchLimits(ranges=16, range_rows=20, window_rows=150, window_marks=600)
Row = tuple[Any, ...]


class Pair:
    """A schema `shop` at the source, and a target that can be given any rows."""

    def __init__(self, pd: PdClient, root: Path, spark: SparkSession) -> None:
        self.pd, self.root, self.spark = pd, root, spark
        self.source = SmallTables(
            pd,
            "shop",
            {
                "acc": [ID, number("n"), text("t")],
                "codes": [CODE, number("n")],
                "log": [number("a"), text("b")],
            },
        )
        self.rows: dict[str, dict[int, Row]] = {
            "acc": {i: (i, i % 97, b"t%d" % i) for i in range(-ROWS // 2, ROWS // 2)},
            "codes": {i: (b"c%05d" % i, i) for i in range(ROWS)},
            "log": {i: (i % 700, None if i % 3 else b"x") for i in range(1, ROWS)},
        }
        self.ts = max(self.source.put(name, rows) for name, rows in self.rows.items())

    def fill(self, change: Callable[[str, dict[int, Row]], None] = lambda name, rows: None) -> None:
        """Make the target what the source has, but for `change` of the rows of each table."""
        lake, named = Lakehouse(self.root), []
        for name, rows in self.rows.items():
            held = dict(rows)
            change(name, held)
            table = self.source.tables[name]
            columns = {
                column.name: [v.decode() if isinstance(v := row[at], bytes) else v for row in held.values()]
                for at, column in enumerate(table.columns)
            }
            types = {"id": pa.int64(), "n": pa.int32(), "a": pa.int32()}
            arrays = [pa.array(values, types.get(c, pa.string())) for c, values in columns.items()]
            made = pa.table(arrays, names=list(columns))
            if name == "log":
                made = made.append_column(ROWID, pa.array([str(i) for i in held], pa.string()))
            path = table_path("shop", name)
            lake.create(path, made.schema)
            for at in range(0, len(made), 700):
                lake.append(path, made.slice(at, 700))
            named.append(SnapshotRow(self.ts, "shop", name, table.id, path, lake.version(path)))
        if lake.snapshots.rows():
            lake.snapshots.republish(self.ts, named)
        else:
            lake.snapshots.publish(self.ts, named, "{}")

    def search(self, name: str, bounds: SearchLimits = SMALL, keys: tuple[int, int] | None = None) -> Verdict:
        full = f"shop.{name}"
        found = tables_at(self.pd, self.ts, [full])[full]
        held = open_snapshot(self.root, self.ts).tables[full]
        return Verification(self.spark, self.pd, found, held, bounds, keys).run()


@pytest.fixture
def pair(upstream: EmbeddedUpstream, pd: PdClient, tmp_path: Path, spark: SparkSession) -> Pair:
    return Pair(pd, tmp_path / "lake", spark)


def plant(name: str, rows: dict[int, Row]) -> None:
    """One row changed, one missing, one too many."""
    numbers = sorted(rows)
    rows[numbers[5]] = (*rows[numbers[5]][:1], *(None for _ in rows[numbers[5]][1:]))
    del rows[numbers[1700]]
    rows[10_000] = {"acc": (10_000, 1, b"new"), "codes": (b"c99999", 1), "log": (10_000, b"new")}[name]


def reported(verdict: Verdict, key: str) -> set[tuple[str, Any]]:
    return {(found.kind, found.key[key]) for found in verdict.differences}


def test_planted_differences_are_named_and_nothing_else(pair: Pair) -> None:
    pair.fill()
    for name in pair.rows:
        verdict = pair.search(name)
        assert verdict.equal, verdict
        assert (verdict.source_rows, verdict.target_rows) == (len(pair.rows[name]),) * 2
        assert verdict.ranges > 1
    pair.fill(plant)
    by_key = pair.search("acc")
    assert reported(by_key, "id") == {("changed", 5 - ROWS // 2), ("missing", 200), ("extra", 10_000)}
    assert by_key.differing_ranges <= 3
    assert not by_key.equal
    assert pair.search("acc", SearchLimits()).differences == by_key.differences
    assert [d.columns for d in by_key.differences if d.kind == "changed"] == [["n", "t"]]
    by_code = pair.search("codes")
    assert reported(by_code, "code") == {("changed", "c00005"), ("missing", "c01700"), ("extra", "c99999")}
    bag = {(d.key["a"], d.key["b"], len(d.source) - len(d.target)) for d in pair.search("log").differences}
    assert bag == {(6, "x", 1), (6, None, -1), (1701 % 700, "x", 1), (10_000, "new", -1)}


@pytest.mark.slow
def test_many_differences_are_named_all(pair: Pair) -> None:
    def thin(name: str, rows: dict[int, Row]) -> None:
        for at in sorted(rows)[::7]:
            del rows[at]

    pair.fill(thin)
    gone = {name: sorted(rows)[::7] for name, rows in pair.rows.items()}
    assert reported(pair.search("acc"), "id") == {("missing", at) for at in gone["acc"]}
    many = SearchLimits(window_rows=150)
    assert reported(pair.search("codes", many), "code") == {("missing", f"c{at:05d}") for at in gone["codes"]}
    lacking = sum(len(d.source) - len(d.target) for d in pair.search("log", SearchLimits()).differences)
    assert lacking == len(gone["log"])


def test_ranges_of_keys_bounds_and_what_cannot_be_compared(pair: Pair) -> None:
    pair.fill(plant)
    assert reported(pair.search("acc", keys=(100, 300)), "id") == {("missing", 200)}
    assert pair.search("acc", keys=(-100, 100)).equal
    assert pair.search("acc", keys=(-100, 100)).source_rows == 200
    few = pair.search(
        "acc", SearchLimits(ranges=16, range_rows=20, window_rows=2, window_marks=2, differences=1)
    )
    assert (len(few.differences), few.complete, few.equal) == (1, False, False)
    with pytest.raises(InvalidInput, match=r"shop\.codes has no ranges of keys to choose from"):
        pair.search("codes", keys=(0, 1))
    with pytest.raises(InvalidInput, match=r"the source has no table shop\.none"):
        tables_at(pair.pd, pair.ts, ["shop.acc", "shop.none"])
    lake = Lakehouse(pair.root)
    (row,) = [row for row in lake.snapshots.rows() if row.table == "codes"]
    lake.create(row.path, lake.dataset(row.path).schema, ["n"])
    lake.snapshots.republish(pair.ts, [replace(row, version=lake.version(row.path))])
    lake.append(row.path, pa.table({"code": ["c00001", "c00002"], "n": pa.array([1, 3], pa.int32())}))
    lake.snapshots.republish(pair.ts, [replace(row, version=lake.version(row.path))])
    parted = pair.search("codes", SearchLimits(differences=ROWS))
    assert ("changed", "c00002") in reported(parted, "code")
    assert (parted.target_rows, len(parted.differences)) == (2, ROWS - 1)
    pair.pd.update_service_gc_safepoint("gc_worker", 1 << 40, pair.ts + 1)
    with pytest.raises(InvalidInput, match="has no history at ts"), history_held(pair.pd, pair.ts):
        pass


@pytest.mark.slow
def test_the_command_names_and_repairs(pair: Pair, tmp_path: Path, upstream: EmbeddedUpstream) -> None:
    pair.fill(plant)
    command = [
        sys.executable,
        "-m",
        "tidegate",
        "verify",
        "--pd",
        upstream.pd_addr,
        "--target",
        f"delta://{pair.root}",
    ]
    done = subprocess.run(
        [
            *command,
            "--table",
            "shop.acc",
            "--table",
            "shop.codes",
            "--repair",
            "apply",
            "--json",
            "--master",
            "local[2]",
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert not outcome["equal"]
    assert [(t["table"], t["differing"], t["repaired"]) for t in outcome["tables"]] == [
        ("shop.acc", 3, True),
        ("shop.codes", 3, True),
    ]
    now = open_snapshot(pair.root)
    assert now.ts == pair.ts
    stale = replace(now.tables["shop.acc"], version=now.tables["shop.acc"].version - 1)
    with pytest.raises(InvalidInput, match="the target has moved on since it was compared"):
        apply(pair.root, pair.ts, stale, Shape.of(pair.source.tables["acc"]), [])
    assert pair.search("acc").equal
    assert pair.search("codes").equal
    assert not pair.search("log").equal
    refused = subprocess.run([*command, "--table", "shop.x"], capture_output=True, text=True, timeout=240)
    assert refused.returncode == 2
    assert "the target has no table shop.x" in refused.stderr
