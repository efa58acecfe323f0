"""Recorded DDL jobs of the golden cases and of the change logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tests.golden_folder import lines, names
from tidegate.model.block import ENTRY_SCHEMA, OP_PUT
from tidegate.mounter.schema_store import SchemaStore
from tidegate.tidb import ddl_job
from tidegate.tidb.ddl_job import DdlJob

DDL_CASES = names("ddl")
"""The cases of the golden folder in use."""
OURS = (
    "basic",
    "columns",
    "indexes",
    "multi_schema_change",
    "partitions",
    "rand1",
    "rand2",
    "rand3",
    "table_options",
    "views_sequences",
)
"""Those of this repository, for tests about one of them."""


def finished(case: str, *, ours: bool = False) -> Iterator[tuple[DdlJob, dict[str, Any]]]:
    """Each finished job of a case, and what TiCDC made of it; `ours`: of a case of this repository."""
    done: dict[int, DdlJob] = {}
    for record in lines(f"ddl/{case}", ours=ours):
        if record["kind"] == "ddl_job_row" and record.get("job_meta"):
            job = ddl_job.parse(record["job_meta"].encode(), record["start_ts"], record["commit_ts"])
            if job.is_done:
                done[job.id] = job
        elif record["kind"] == "ddl_done":
            yield done[record["job_id"]], record


def written(case: str) -> list[DdlJob]:
    """Every write of every job of one of our cases, in order."""
    return [
        ddl_job.parse(record["job_meta"].encode(), record["start_ts"], record["commit_ts"])
        for record in lines(f"ddl/{case}", ours=True)
        if record["kind"] == "ddl_job_row" and record.get("job_meta")
    ]


def entries(transaction: dict[str, Any]) -> pa.RecordBatch:
    """A recorded transaction's puts as a block of entries."""
    rows = [
        {
            "commit_ts": transaction["commit_ts"],
            "start_ts": transaction["start_ts"],
            "op": OP_PUT,
            "key": bytes.fromhex(mutation["key"]),
            "value": bytes.fromhex(mutation["value"]),
            "old_value": b"",
        }
        for mutation in transaction["mutations"]
        if mutation["op"] in ("put", "insert")
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ENTRY_SCHEMA)


def base_store(log: str) -> SchemaStore:
    """The store built from what a change log begins with."""
    base = next(line for line in lines(f"changelog/{log}_schema", ours=True) if line["type"] == "base")
    pairs = [(bytes.fromhex(m["key"]), bytes.fromhex(m["value"])) for m in base["mutations"]]
    return SchemaStore.from_meta(pairs, base["commit_ts"])
