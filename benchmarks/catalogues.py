"""The cost of the catalogue, by the number of changefeeds that read it.

    python -m benchmarks.catalogues [--tables 1000 10000] [--feeds 1 10 100] [--json FILE]
                                    [--rules equal | --rules distinct]

Changefeeds of all tables are opened one after another in one process, as in a capture's control process, with
a base file and a DDL span. Then one DDL job arrives, and each changefeed applies its filter to it. Tables are
those of `benchmarks.schema`. With `distinct` each changefeed has its own rule, so that no verdicts are
shared. Each size runs in its own process.

| figure | what it is |
|---|---|
| first ms, last ms | opening the first changefeed, and the last: base file, verdicts, spans |
| all s | opening all of them |
| DDL ms | one `ALTER TABLE`, from the event store to the batches of all |
| MB | growth of resident memory since before the first was opened, with mapped files |
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
from benchmarks.schema import FIRST_ID, SCHEMAS, TS, pairs, resident_mb, template
from benchmarks.show import machine
from rich.console import Console
from rich.table import Table

from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.eventstore.store import EventStore
from tidegate.filter.feed import FeedFilter
from tidegate.model.block import ENTRY_SCHEMA, OP_PUT
from tidegate.model.schema import Kind
from tidegate.mounter import bases
from tidegate.mounter.bases import Base
from tidegate.mounter.schema_store import SchemaStore
from tidegate.server.catalogue.catalogues import DDL_SPAN, Catalogues
from tidegate.server.catalogue.schema_tracker import SchemaTracker
from tidegate.tidb import keys, row

ADD_COLUMN: Final = 5
URI: Final = parse_sink_uri("kafka://127.0.0.1:1/t?protocol=open-protocol")


def measure(tables: int, feeds: int, *, distinct: bool) -> dict[str, Any]:
    """The figures of one size."""
    filters = [_filter(number if distinct else 0) for number in range(feeds)]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        _write(store, tables)
        before = resident_mb()
        catalogues = Catalogues(store, _from_upstream)
        took, opened = [], []
        for each in filters:
            began = time.perf_counter()
            tracker = SchemaTracker.open(catalogues, each, TS)
            tracker.begin(TS, TS)
            took.append(time.perf_counter() - began)
            opened.append(tracker)
        grown = resident_mb() - before
        began = time.perf_counter()
        batches = [tracker.catch_up(TS + 20)[0] for tracker in opened]
        reported = time.perf_counter() - began
        assert all(len(tracker.initial) == tables for tracker in opened)
        assert all(len(found) == 1 for found in batches)
        catalogues.close()
    return {
        "tables": tables,
        "feeds": feeds,
        "first_ms": round(1000 * took[0], 1),
        "last_ms": round(1000 * took[-1], 1),
        "all_s": round(sum(took), 2),
        "ddl_ms": round(1000 * reported, 1),
        "mb": round(grown, 1),
    }


def _filter(number: int) -> FeedFilter:
    rules = ["*.*", f"!none.t{number}"]
    return FeedFilter.of(merge_config({"filter": {"rules": rules}}, URI))


def _write(folder: Path, tables: int) -> None:
    """A base at TS, and a DDL span in which one column is added at TS + 10."""
    base = bases.folder_of(folder)
    base.mkdir(parents=True)
    (base / Base(TS, TS).name).write_bytes(SchemaStore.from_meta(pairs(tables, "narrow"), TS).dump())
    table_id = FIRST_ID + SCHEMAS
    name = {"O": "table_0", "L": "table_0"}
    info = orjson.loads(template("narrow")) | {"id": table_id, "name": name}
    job: dict[str, Any] = {
        "id": 9,
        "type": ADD_COLUMN,
        "state": 4,
        "schema_id": FIRST_ID,
        "table_id": table_id,
    }
    job |= {
        "query": "ALTER TABLE table_0 ADD COLUMN c INT",
        "schema_name": "schema_0",
        "table_name": "table_0",
    }
    meta = orjson.dumps(job | {"binlog": {"SchemaVersion": 1, "TableInfo": info}})
    cells: list[tuple[int, Kind, row.Stored]] = [(5, Kind.BYTES, meta)]
    entry: dict[str, Any] = {"commit_ts": TS + 10, "start_ts": TS + 9, "op": OP_PUT, "old_value": b""}
    entry |= {"key": keys.int_record(keys.DDL_JOB_TABLE_ID, 9), "value": row.encode_v1(cells)}
    store = EventStore(folder)
    span = store.open_span(DDL_SPAN)
    span.begin(TS)
    span.append(pa.RecordBatch.from_pylist([entry], schema=ENTRY_SCHEMA))
    span.seal(TS + 20)
    store.publish()
    store.close()


def _from_upstream(ts: int) -> SchemaStore:
    raise SystemExit("the base file was not used")


def shown(found: list[dict[str, Any]]) -> Table:
    """The figures as a table."""
    table = Table(title="Changefeeds over one catalogue")
    for name in ("tables", "feeds", "first ms", "last ms", "all s", "DDL ms", "MB"):
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(*(f"{value:,}" for value in one.values()))
    return table


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--feeds", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--rules", choices=("equal", "distinct"), default="equal")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        figures = measure(options.tables[0], options.feeds[0], distinct=options.rules == "distinct")
        print(json.dumps(figures))
        return
    found = []
    for tables in options.tables:
        for feeds in options.feeds:
            command = [sys.executable, "-m", "benchmarks.catalogues", "--one", "--rules", options.rules]
            command += ["--tables", str(tables), "--feeds", str(feeds)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found.append(json.loads(done.stdout))
    Console(width=100).print(shown(found))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "sizes": found}, indent=1))


if __name__ == "__main__":
    main()
