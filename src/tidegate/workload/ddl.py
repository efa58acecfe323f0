"""A DDL as TiDB stores it: the three transactions that a finished one leaves. Pure.

1. *queue*: `NextGlobalID`, and the job into mysql.tidb_ddl_job with state queueing (8);
2. *done*: DBInfo and TableInfo under the meta keys, `SchemaVersionKey`, `Diff:<version>`, and the job with
   state done (4) and the binlog's TableInfo. Its commit_ts is the DDL's FinishedTS;
3. *history*: the job with state synced (6) under `DDLJobHistory` and into mysql.tidb_ddl_history; the job's
   row in tidb_ddl_job is deleted.

The rows of the two job tables have row format v1, as DDL sessions write them. Unlike in TiDB, a column change
takes one step: the intermediate states (delete-only, write-only, reorganisation) are left out.
Members and their order are those of TiDB's job version 2 (golden change logs).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

import orjson

from tidegate.kvclient.transaction import DEL, PUT, Mutation
from tidegate.model import timestamp
from tidegate.model.schema import Kind
from tidegate.tidb import keys, row
from tidegate.tidb.types import temporal


class Action(IntEnum):
    """TiDB's DDL action codes."""

    CREATE_SCHEMA = 1
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    TRUNCATE_TABLE = 11
    RENAME_TABLE = 14


@dataclass(frozen=True, slots=True)
class Ddl:
    """One DDL, ready to be written: methods make its three transactions from their start timestamps."""

    job_id: int
    action: Action
    query: str
    schema_id: int
    schema: str
    table_id: int
    table: str
    version: int
    last_global_id: int
    raw_args: dict[str, Any]
    meta: tuple[Mutation, ...]
    """Writes of the *done* transaction to meta keys, except TableInfo."""
    info: dict[str, Any] | None = None
    """The table after the DDL (for drop table: before it)."""
    info_key: bytes | None = None
    """The key of `info`; None for drop table."""
    db_info: dict[str, Any] | None = None
    table_ids: str = ""
    new_schema_id: int = 0
    diff: dict[str, Any] = field(default_factory=dict)
    added_column: str | None = None

    def queue(self, start_ts: int) -> list[Mutation]:
        """The transaction that queues the job; its start_ts becomes the job's."""
        job = self._job(start_ts, 0, state=8, schema_state=0)
        return [put_text(keys.meta_string(b"NextGlobalID"), str(self.last_global_id)), self._job_row(job)]

    def done(self, job_start_ts: int, start_ts: int) -> list[Mutation]:
        """The transaction that makes the schema change; its commit_ts is FinishedTS."""
        info = self.info_at(job_start_ts, start_ts)
        writes = list(self.meta)
        if self.info_key is not None:
            assert info is not None
            writes.append(put_json(self.info_key, info))
        writes.append(put_text(keys.meta_string(b"SchemaVersionKey"), str(self.version)))
        writes.append(put_json(keys.meta_string(b"Diff:%d" % self.version), self._diff()))
        job = self._job(job_start_ts, start_ts, state=4, schema_state=5)
        job["binlog"] |= {"SchemaVersion": self.version, "DBInfo": self.db_info, "TableInfo": info}
        writes.append(self._job_row(job))
        return writes

    def history(self, job_start_ts: int, done_start_ts: int, start_ts: int) -> list[Mutation]:
        """The transaction that moves the job into the history."""
        job = self._job(job_start_ts, done_start_ts, state=6, schema_state=5)
        info = self.info_at(job_start_ts, done_start_ts)
        job["binlog"] |= {
            "SchemaVersion": self.version,
            "DBInfo": self.db_info,
            "TableInfo": info,
            "FinishedTS": start_ts,
        }
        job["raw_args"] = None
        meta = orjson.dumps(job)
        created = temporal.pack(temporal.parse(_time_text(job_start_ts, 0)))
        cells: list[tuple[int, Kind, row.Stored]] = [
            (2, Kind.BYTES, meta),
            (3, Kind.STRING, self.schema.encode()),
            (4, Kind.STRING, self.table.encode()),
            (5, Kind.STRING, str(self.schema_id).encode()),
            (6, Kind.STRING, (self.table_ids or str(self.table_id)).encode()),
            (7, Kind.DATETIME, created),
        ]
        history_row = keys.int_record(keys.DDL_HISTORY_TABLE_ID, self.job_id)
        return [
            Mutation(PUT, keys.meta_hash(b"DDLJobHistory", self.job_id.to_bytes(8, "big")), meta),
            Mutation(PUT, history_row, row.encode_v1(cells)),
            Mutation(DEL, self._job_key()),
        ]

    def info_at(self, job_start_ts: int, start_ts: int) -> dict[str, Any] | None:
        """The table's definition with the timestamps of this run."""
        if self.info is None or self.action is Action.DROP_TABLE:
            return self.info
        info = copy.deepcopy(self.info)
        info["update_timestamp"] = start_ts
        for column in info["cols"]:
            if column["name"]["O"] == self.added_column and column["default"] == "CURRENT_TIMESTAMP":
                column["origin_default"] = _time_text(job_start_ts, column["type"]["Decimal"])
        return info

    def _job(self, job_start_ts: int, real_start_ts: int, *, state: int, schema_state: int) -> dict[str, Any]:
        return {
            "id": self.job_id,
            "type": int(self.action),
            "schema_id": self.schema_id,
            "table_id": self.table_id,
            "schema_name": self.schema,
            "table_name": self.table,
            "state": state,
            "warning": None,
            "err": None,
            "err_count": 0,
            "row_count": 0,
            "raw_args": self.raw_args,
            "schema_state": schema_state,
            "snapshot_ver": 0,
            "real_start_ts": real_start_ts,
            "start_ts": job_start_ts,
            "dependency_id": 0,
            "query": self.query,
            "binlog": {
                "SchemaVersion": 0,
                "DBInfo": None,
                "TableInfo": None,
                "FinishedTS": 0,
                "MultipleTableInfos": None,
            },
            "version": 2,
            "reorg_meta": None,
            "multi_schema_info": None,
            "priority": 0,
            "seq_num": 0,
            "charset": "utf8mb4",
            "collate": "utf8mb4_bin",
            "admin_operator": 0,
            "trace_info": None,
            "bdr_role": "",
            "cdc_write_source": 0,
            "local_mode": False,
            "sql_mode": 1436549152,
            "last_schema_version": self.version if state != 8 else 0,
        }

    def _job_key(self) -> bytes:
        return keys.int_record(keys.DDL_JOB_TABLE_ID, self.job_id)

    def _job_row(self, job: dict[str, Any]) -> Mutation:
        cells: list[tuple[int, Kind, row.Stored]] = [
            (2, Kind.INT, 0),
            (3, Kind.STRING, str(self.schema_id).encode()),
            (4, Kind.STRING, (self.table_ids or str(self.table_id)).encode()),
            (5, Kind.BYTES, orjson.dumps(job)),
            (6, Kind.INT, int(self.action)),
            (7, Kind.INT, 0),
        ]
        return Mutation(PUT, self._job_key(), row.encode_v1(cells))

    def _diff(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "type": int(self.action),
            "schema_id": self.schema_id,
            "table_id": self.table_id,
            "old_table_id": 0,
            "old_schema_id": 0,
            "regenerate_schema_map": False,
            "affected_options": None,
        } | self.diff


def put_text(key: bytes, text: str) -> Mutation:
    """Write a text."""
    return Mutation(PUT, key, text.encode())


def put_json(key: bytes, value: dict[str, Any]) -> Mutation:
    """Write an object as JSON."""
    return Mutation(PUT, key, orjson.dumps(value))


def _time_text(ts: int, fsp: int) -> str:
    """The physical time of a ts in UTC with `fsp` digits of a second, as TiDB stores a temporal default."""
    milliseconds = timestamp.physical_ms(ts)
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{f'{milliseconds % 1000:03d}000'[:fsp]}" if fsp else text
