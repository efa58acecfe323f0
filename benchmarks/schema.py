"""The catalogue of a large cluster: the time to read, save and load it, and its memory.

    python -m benchmarks.schema [--tables N] [--columns narrow|wide] [--upstream] [--json]

Tables are copies of one that a real TiDB wrote (`narrow`: 5 columns, `wide`: 44), with new ids and names, in
100 schemas. Each part runs in its own process. Memory is the growth of resident memory up to its peak, so
mapped files count as far as they were read.

    build   SchemaStore.from_meta over the pairs under `m`, as a feed's creation does
    save    the image of it written as a base file
    load    that file loaded, as in the control process and in each worker of a pipeline
    ask     version_at and table for random tables, after load
    apply   add column to random tables, as DDL jobs
    pull    (--upstream) build, with the pairs read from the embedded PD and TiKV over gRPC

The goal is 100,000 tables in 20 s and 1 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from tidegate.disk import replace_file
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.mounter.schema_image import chunks, map_file
from tidegate.mounter.schema_store import SchemaStore
from tidegate.server.catalogue.schema_tracker import load_catalogue
from tidegate.tidb import ddl_job, keys
from tidegate.tidb.table_info import PUBLIC
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.changelog import Txn, read_log
from tidegate.workload.schema import bootstrap

LOGS: Final = Path(__file__).parents[1] / "tests" / "golden" / "changelog"
SCHEMAS: Final = 100
FIRST_ID: Final = 1_000
TS: Final = 1 << 60
ASKED: Final = 200_000
APPLIED: Final = 2_000
PARTS: Final = ("build", "save", "load", "ask", "apply")


def template(log: str) -> bytes:
    """The TableInfo of the log's table when it was first public. Id and name must be filled in."""
    for line in read_log(LOGS / f"{log}.jsonl.gz"):
        if not isinstance(line, Txn) or line.is_base:
            continue
        for mutation in line.mutations:
            if mutation.key[:1] == b"m" and b"Table:" in mutation.key and mutation.op == "put":
                info = orjson.loads(mutation.value)
                if info["state"] == PUBLIC:
                    name = {"O": "@name@", "L": "@name@"}
                    return orjson.dumps(info | {"id": 987654321, "name": name})
    raise SystemExit(f"no table definition in {log}")


def pairs(tables: int, log: str) -> Iterator[tuple[bytes, bytes]]:
    """The keys under `m` of `tables` tables, in the order of keys, in which `DBs` comes last."""
    text = template(log)
    for schema in range(SCHEMAS):
        name = b"DB:%d" % (FIRST_ID + schema)
        yield keys.meta_hash(name, b"TID:%d" % schema), b"1"
        for table in range(schema, tables, SCHEMAS):
            number = FIRST_ID + SCHEMAS + table
            info = text.replace(b"987654321", b"%d" % number).replace(b"@name@", b"table_%d" % table)
            yield keys.meta_hash(name, b"Table:%d" % number), info
    for schema in range(SCHEMAS):
        names = {"O": f"schema_{schema}", "L": f"schema_{schema}"}
        info = orjson.dumps({"id": FIRST_ID + schema, "db_name": names, "state": 5})
        yield keys.meta_hash(b"DBs", b"DB:%d" % (FIRST_ID + schema)), info
    for mutation in bootstrap():
        if mutation.key[:1] == b"m":
            yield mutation.key, mutation.value


def build(tables: int, log: str, path: Path) -> dict[str, Any]:
    """Build from pairs that are made meanwhile; the cost of making them is subtracted."""
    began = time.process_time()
    size = sum(len(value) for _, value in pairs(tables, log))
    making = time.process_time() - began
    with _Measured() as measured:
        store = SchemaStore.from_meta(pairs(tables, log), TS)
    assert len(store.entries(TS)) == tables
    replace_file(path, chunks(store.image(TS)))
    return measured.figures(tables, less=making) | {"json_mb": round(size / 1e6, 1)}


def save(tables: int, log: str, path: Path) -> dict[str, Any]:
    """Save a loaded catalogue, as the control process does."""
    store = SchemaStore.load(map_file(path))
    with _Measured() as measured:
        replace_file(path, chunks(store.image(TS)))
    return measured.figures(tables) | {"file_mb": round(path.stat().st_size / 1e6, 1)}


def load(tables: int, log: str, path: Path) -> dict[str, Any]:
    """Load the index. Definitions stay in the file."""
    with _Measured() as measured:
        store = SchemaStore.load(map_file(path))
    assert len(store.entries(TS)) == tables
    return measured.figures(tables)


def ask(tables: int, log: str, path: Path) -> dict[str, Any]:
    """Look up versions of random tables, then parse them."""
    store = SchemaStore.load(map_file(path))
    ids = _ids(tables, ASKED)
    with _Measured() as light:
        for table_id in ids:
            assert store.version_at(table_id, TS) is not None
    few = ids[: ASKED // 20]
    with _Measured() as parsed:
        for table_id in few:
            assert store.table(table_id, TS) is not None
    return light.figures(len(ids)) | {"parsed_per_s": parsed.figures(len(few))["per_s"]}


def apply(tables: int, log: str, path: Path) -> dict[str, Any]:
    """Apply jobs that replace definitions, as `add column` does, and make the image after them."""
    store = SchemaStore.load(map_file(path))
    info = orjson.loads(template(log))
    jobs = []
    for at, table_id in enumerate(_ids(tables, APPLIED)):
        name = f"table_{table_id}"
        binlog = {
            "SchemaVersion": at + 1,
            "TableInfo": info | {"id": table_id, "name": {"O": name, "L": name}},
        }
        sent = {"id": at, "type": 5, "state": 4, "schema_id": FIRST_ID, "table_id": table_id}
        jobs.append(ddl_job.parse(orjson.dumps(sent | {"binlog": binlog}), TS + at, TS + at + 1))
    with _Measured() as measured:
        for job in jobs:
            assert store.apply(replace(job, query="alter table")).emitted
        store.forget(TS + APPLIED)
    return measured.figures(len(jobs))


def pull(tables: int, log: str, path: Path) -> dict[str, Any]:
    """The whole work at a feed's creation: pairs scanned over gRPC, page by page."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedUpstream(Path(folder), regions=3) as upstream,
        PdClient(upstream.pd_addr) as pd,
    ):
        found = pairs(tables, log)
        while batch := list(islice(found, 500)):
            transaction = Transaction(pd)
            for key, value in batch:
                transaction.put(key, value)
            transaction.commit()
        with _Measured() as measured:
            store = load_catalogue(pd, pd.tso())
    assert len(store.entries(TS)) == tables
    return measured.figures(tables)


def _ids(tables: int, count: int) -> list[int]:
    chance = random.Random(1)
    return [FIRST_ID + SCHEMAS + chance.randrange(tables) for _ in range(count)]


class _Measured:
    """Measures seconds and peak memory of a block, whose peak must be the largest of its process so far."""

    def __enter__(self) -> _Measured:
        self._before = resident_mb()
        self._wall, self._cpu = time.monotonic(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.wall = time.monotonic() - self._wall
        self.cpu = time.process_time() - self._cpu
        self.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - self._before

    def figures(self, count: int, *, less: float = 0.0) -> dict[str, Any]:
        """The figures for `count` things. `less`: CPU seconds to subtract."""
        seconds = max(self.cpu - less, 1e-9)
        return {
            "seconds": round(self.wall - less, 2),
            "cpu_s": round(seconds, 2),
            "per_s": round(count / seconds),
            "peak_mb": round(self.peak_mb, 1),
        }


def resident_mb() -> float:
    """Resident memory of this process, including mapped files."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


MEASURES: Final[dict[str, Callable[[int, str, Path], dict[str, Any]]]] = {
    "build": build,
    "save": save,
    "load": load,
    "ask": ask,
    "apply": apply,
    "pull": pull,
}


def main() -> None:
    """Run each part in its own process, and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=100_000)
    parser.add_argument("--columns", choices=("narrow", "wide"), default="narrow")
    parser.add_argument("--upstream", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", choices=sorted(MEASURES), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(MEASURES[options.part](options.tables, options.columns, options.file)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for part in (*PARTS, "pull") if options.upstream else PARTS:
            command = [sys.executable, "-m", "benchmarks.schema", "--tables", str(options.tables)]
            command += ["--columns", options.columns, "--part", part, "--file", f"{folder}/base.bin"]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[part] = json.loads(done.stdout)
            if not options.json:
                print(f"{part:6}", found[part], flush=True)
    if options.json:
        print(json.dumps({"tables": options.tables, "columns": options.columns, "parts": found}))


if __name__ == "__main__":
    main()
