"""Finds DDL jobs among the changes of the DDL span.

Jobs are read from the job table: the write that finishes a job, or for kinds that take effect earlier
(`ddl_early.takes_effect`) the write of that step. New tables are read from the job history as well, because
TiDB 8.2 with fast table creation writes such a job only there (docs/formats/ddl.md#where-jobs-are-found). The
catalogue ignores a job that it has applied already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from tidegate.errors import Undecodable
from tidegate.model.block import OP_PUT
from tidegate.mounter.ddl_early import takes_effect
from tidegate.tidb import ddl_job, keys, row
from tidegate.tidb.datum import Datum
from tidegate.tidb.ddl_job import DdlJob, JobState

_NEW_TABLES: Final = (3, 60)
"""Create table, create tables."""


@dataclass(frozen=True, slots=True)
class UnreadableJob:
    """A job whose row cannot be read. Without it, later rows could be decoded with a wrong schema."""

    finished_ts: int
    error: Undecodable


def jobs_in(block: pa.RecordBatch, meta_columns: Mapping[int, int]) -> list[DdlJob | UnreadableJob]:
    """The jobs among entries of the DDL span that may take effect, in order of commit ts.

    `meta_columns`: the id of column `job_meta` by table id (`SchemaStore.job_meta_columns`). Entries of other
    tables are skipped. Reads rows of both row formats.
    """
    if keys.DDL_JOB_TABLE_ID not in meta_columns:
        raise Undecodable("mysql.tidb_ddl_job has no column job_meta")
    prefixes = {keys.record_prefix(table_id): table_id for table_id in meta_columns}
    size = len(keys.record_prefix(keys.DDL_JOB_TABLE_ID))
    jobs: list[DdlJob | UnreadableJob] = []
    for entry in block.select(["commit_ts", "start_ts", "op", "key", "value"]).to_pylist():
        table_id = prefixes.get(entry["key"][:size])
        if entry["op"] != OP_PUT or table_id is None:
            continue
        try:
            meta = _job_meta(entry["value"], meta_columns[table_id])
            job = ddl_job.parse(meta, entry["start_ts"], entry["commit_ts"]) if meta is not None else None
        # Not dropped and not raised: whether a feed must stop at it depends on the tables that it follows.
        except Undecodable as error:
            jobs.append(UnreadableJob(entry["commit_ts"], error))
            continue
        if job is not None and table_id == keys.DDL_HISTORY_TABLE_ID:
            job = _from_history(job)
        if job is not None and takes_effect(job) and (job.schema_version or not job.is_done):
            jobs.append(job)
    return sorted(jobs, key=lambda job: job.finished_ts)


def _from_history(job: DdlJob) -> DdlJob:
    """A job from the history. Only jobs that made new tables count: *synced* there means *done* here."""
    if job.action in _NEW_TABLES and job.state == JobState.SYNCED:
        return replace(job, state=JobState.DONE, from_history=True)
    return replace(job, state=JobState.SYNCED)


def _job_meta(value: bytes, column_id: int) -> bytes | None:
    cell = row.split(value).cells.get(column_id)
    data = cell.value if isinstance(cell, Datum) else cell
    return data if isinstance(data, bytes) else None
