"""DDL jobs, as TiDB stores them in `mysql.tidb_ddl_job` (column `job_meta`) and in the history.

TiDB rewrites a job's row at every step of the job. The write with state *done* means that the schema change
is complete, at that write's commit ts (TiCDC's FinishedTS). Source: TiDB `pkg/meta/model/job.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import orjson

from tidegate.errors import Undecodable


class JobState(IntEnum):
    """The states of a job; only `done` means that the schema has changed."""

    NONE = 0
    RUNNING = 1
    ROLLING_BACK = 2
    ROLLBACK_DONE = 3
    DONE = 4
    CANCELLED = 5
    SYNCED = 6
    CANCELLING = 7
    QUEUEING = 8
    PAUSED = 9
    PAUSING = 10


DELETE_ONLY: Final = 1
WRITE_REORGANIZATION: Final = 3
PUBLIC: Final = 5
"""Schema states (`schema_state`) of a running job, which show its progress."""


@dataclass(frozen=True, slots=True)
class DdlJob:
    """One write of a job. `start_ts` and `finished_ts` are those of the transaction that wrote it."""

    id: int
    action: int
    state: int
    start_ts: int
    finished_ts: int
    job_start_ts: int
    """When the job began; time defaults that it gave to older rows have this value."""
    schema_id: int
    table_id: int
    schema_name: str
    table_name: str
    query: str
    schema_version: int
    version: int
    """1: arguments are a list; 2: an object."""
    table_info: dict[str, Any] | None
    db_info: dict[str, Any] | None
    table_infos: tuple[dict[str, Any], ...]
    """For jobs over many tables: create tables, rename tables."""
    args: Any
    """`raw_args` as JSON, list or object."""
    multi: dict[str, Any] | None
    """`multi_schema_info` of a multi-schema change."""
    meta: dict[str, Any]
    """The whole job."""
    schema_state: int = 0
    """The progress of a running job, as TiDB's SchemaState; finished jobs have 0 or 5."""
    from_history: bool = False
    """Found in the history table. It may have been found in the job table before."""

    @property
    def is_done(self) -> bool:
        """Whether this write finished the job and changed a schema."""
        return self.state == JobState.DONE

    @property
    def time_zone(self) -> str:
        """The zone in which the job converts rows: a name, or seconds east of UTC as `+28800`; empty:
        unknown.
        """
        reorganisation = self.meta.get("reorg_meta")
        found = reorganisation.get("location") if isinstance(reorganisation, dict) else None
        if not isinstance(found, dict):
            return ""
        offset, name = int(found.get("offset") or 0), str(found.get("name") or "")
        return f"{offset:+d}" if offset else name or "UTC"

    @property
    def charset(self) -> str:
        """The character set of the session's strings; empty if the job does not contain it."""
        return str(self.meta.get("charset") or "")

    @property
    def sql_mode(self) -> int:
        """The session's sql_mode as TiDB's bits; 0 if the job does not contain it."""
        mode = self.meta.get("sql_mode")
        return mode if isinstance(mode, int) else 0


def _number(within: dict[str, Any], name: str, missing: int | None = None) -> int:
    found = within.get(name)
    if not found and missing is not None:
        return missing
    # `type`, not `isinstance`: JSON's true is an int in Python.
    if type(found) is not int or not 0 <= found < 1 << 63:
        raise ValueError(f"{name} is no number that TiDB writes")
    return found


def _object(within: dict[str, Any], name: str) -> dict[str, Any] | None:
    found = within.get(name)
    if found is not None and not isinstance(found, dict):
        raise TypeError(f"{name} is no object")
    return found


def _objects(within: dict[str, Any], name: str) -> tuple[dict[str, Any], ...]:
    found = within.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise TypeError(f"{name} is no list of objects")
    return tuple(found)


def _multi(meta: dict[str, Any]) -> dict[str, Any] | None:
    """The parts of a multi-schema change; checks that each has a kind and a state."""
    multi = _object(meta, "multi_schema_info")
    for part in _objects(multi or {}, "sub_jobs"):
        if type(part["type"]) is not int or type(part["schema_state"]) is not int:
            raise TypeError("a part of a multi-schema change has no kind or state")
    return multi


def parse(job_meta: bytes, start_ts: int, commit_ts: int) -> DdlJob:
    """Parse a job from its JSON, as written by the transaction (start_ts, commit_ts)."""
    try:
        meta = orjson.loads(job_meta)
        binlog = meta.get("binlog") or {}
        return DdlJob(
            id=_number(meta, "id"),
            action=_number(meta, "type"),
            state=_number(meta, "state"),
            start_ts=start_ts,
            finished_ts=commit_ts,
            job_start_ts=_number(meta, "start_ts", start_ts),
            schema_id=_number(meta, "schema_id", 0),
            table_id=_number(meta, "table_id", 0),
            schema_name=str(meta.get("schema_name") or ""),
            table_name=str(meta.get("table_name") or ""),
            query=str(meta.get("query") or ""),
            schema_version=_number(binlog, "SchemaVersion", 0),
            version=_number(meta, "version", 1),
            table_info=_object(binlog, "TableInfo"),
            db_info=_object(binlog, "DBInfo"),
            table_infos=_objects(binlog, "MultipleTableInfos"),
            args=meta.get("raw_args"),
            multi=_multi(meta),
            meta=meta,
            schema_state=_number(meta, "schema_state", 0),
        )
    except (
        orjson.JSONDecodeError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise Undecodable(
            "a DDL job is not as TiDB writes it",
            where=f"mysql.tidb_ddl_job, commit ts {commit_ts}",
            why=f"{type(error).__name__}: {error}",
        ) from None
