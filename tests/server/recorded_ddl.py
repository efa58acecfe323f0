"""Recorded DDL jobs with rows in between, for an embedded upstream: what TiDB wrote, what must come of it.

`Recorded` puts the transactions of golden DDL cases into one log, byte by byte and ts by ts, and writes a row
into every physical table there is right after each job and right before the next one is done.
Around jobs that move partitions it writes where TiDB's sessions do at that time: copies into the new
partitions of a reorganisation, first rows into those and into those of a truncation before the job is done,
last ones into what goes away. Whose
row it is, and whether it is to be delivered, is taken from TiCDC's own schema snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from tests.golden_folder import lines

from tidegate.tidb import keys
from tidegate.workload.changelog import LogMutation, Txn
from tidegate.workload.definitions import db_info
from tidegate.workload.schema import bootstrap

ROW: Final = bytes.fromhex("800000000000")
"""A row without columns; nobody decodes it here."""
TEST_SCHEMA_ID: Final = 114
COPYING: Final = frozenset({64, 71, 72})
"""Reorganize partition, partition by, remove partitioning: new partitions are filled before they are used."""
TRUNCATE_PARTITION: Final = 23
EARLY: Final = frozenset({20, TRUNCATE_PARTITION})
MODIFY_COLUMN: Final = 12
MULTI_SCHEMA_CHANGE: Final = 61
RUNNING: Final = 1
DELETE_ONLY: Final = 1
PUBLIC: Final = 5
RECOVER_SCHEMA: Final = 63

Tables = dict[int, tuple[str, bool]]
"""Physical id to table name and whether it has a key."""


@dataclass(slots=True)
class Row:
    """A row that was written."""

    ts: int
    physical_id: int
    key: bytes
    table: str
    """Whose it is; empty if it must not be delivered."""


class Recorded:
    """One log of several cases."""

    def __init__(self, cases: Sequence[str]) -> None:
        found = [record for case in cases for record in lines(f"ddl/{case}", ours=True)]
        writes = [r for r in found if r["kind"] in ("ddl_job_row", "ddl_history_row", "meta")]
        self._stamps = {r[name] for r in writes for name in ("commit_ts", "start_ts")}
        self._puts: dict[int, list[LogMutation]] = {}
        self.rows: list[Row] = []
        self.emitted: list[tuple[int, str]] = []
        """(FinishedTS, query) of every event, as TiCDC sends it; where a job takes effect early, that ts."""
        self.base = fresh_cluster(min(self._stamps) - 10)
        done = sorted((r for r in found if r["kind"] == "ddl_done"), key=lambda r: r["finished_ts"])
        self._write_rows(done, _steps(writes))
        rows = [Txn(ts - 1, ts, puts[0].key, tuple(puts)) for ts, puts in self._puts.items()]
        self.txns = sorted([*_transactions(writes), *rows], key=lambda txn: txn.commit_ts)

    def _write_rows(self, done: list[dict[str, Any]], steps: dict[int, int]) -> None:
        before: Tables = {}
        ours = {job["schema_id"] for job in done}
        kept: dict[int, Tables] = {}
        """The tables of each schema: TiCDC forgets a schema that is recovered."""
        for job in done:
            ts = job["finished_ts"]
            snapshot = [t for t in job["snapshot"]["tables"] or [] if t["schema_id"] in ours]
            after = _tables(snapshot)
            if job["type"] == RECOVER_SCHEMA:
                kept[0] = kept[job["schema_id"]]
            after |= kept.get(0, {})
            step = steps.get(job["job_id"], ts)
            near = _near(job, before, after)
            here = {i: before[i] for i in near if i in before}
            left = {i: after[i] for i in near if i in after}
            if job["type"] in COPYING and step < ts:
                self._copies(self._free(step - 1, -1), here, left)
            self._before(job, self._free(ts - 1, -1), here, left, took_effect=step < ts)
            self._after(self._free(ts + 1, 1), here, left)
            self.emitted += [(step, event["query"]) for event in job["events"] or []]
            before = after
            held: dict[int, Tables] = {}
            for table in snapshot:
                held.setdefault(table["schema_id"], {}).update(_tables([table]))
            kept |= held

    def _copies(self, ts: int, before: Tables, after: Tables) -> None:
        """Rows in both partitions, while every session still writes to the old ones: theirs count."""
        for physical_id in before.keys() ^ after.keys():
            name, keyed = before.get(physical_id, ("", False))
            self._row(ts, physical_id, name if keyed else "")

    def _before(
        self, job: dict[str, Any], ts: int, before: Tables, after: Tables, *, took_effect: bool
    ) -> None:
        """The last rows before a job is done."""
        for physical_id, (name, keyed) in before.items():
            ended = took_effect and physical_id not in after
            self._row(ts, physical_id, name if keyed and not ended else "")
        for physical_id, (name, keyed) in after.items():
            if physical_id not in before and job["type"] in COPYING | {TRUNCATE_PARTITION}:
                self._row(ts, physical_id, name if keyed else "")

    def _after(self, ts: int, before: Tables, after: Tables) -> None:
        """The first rows after it: in each table, and by a session that has not noticed in what has ended."""
        for physical_id, (name, keyed) in after.items():
            self._row(ts, physical_id, name if keyed else "")
        for physical_id in before.keys() - after.keys():
            self._row(ts, physical_id, "")

    def _free(self, ts: int, step: int) -> int:
        """The next ts that no recorded transaction has."""
        while ts in self._stamps:
            ts += step
        return ts

    def _row(self, ts: int, physical_id: int, table: str) -> None:
        key = keys.int_record(physical_id, len(self.rows))
        self.rows.append(Row(ts, physical_id, key, table))
        self._puts.setdefault(ts, []).append(LogMutation("put", key, ROW))


def fresh_cluster(ts: int) -> Txn:
    """Return the transaction that creates a fresh cluster's tables and the schema `test`."""
    found = [LogMutation("put", m.key, m.value) for m in bootstrap()]
    test = orjson.dumps(db_info(TEST_SCHEMA_ID, "test"))
    found.append(LogMutation("put", keys.meta_hash(b"DBs", b"DB:%d" % TEST_SCHEMA_ID), test))
    return Txn(ts - 1, ts, found[0].key, tuple(found), is_base=True)


def _transactions(writes: Iterable[dict[str, Any]]) -> Iterator[Txn]:
    groups: dict[tuple[int, int], list[LogMutation]] = {}
    for record in writes:
        value = record.get("value") or ""
        op = "put" if value else "delete"
        mutation = LogMutation(op, bytes.fromhex(record["key"]), bytes.fromhex(value))
        groups.setdefault((record["start_ts"], record["commit_ts"]), []).append(mutation)
    for (start_ts, commit_ts), mutations in groups.items():
        yield Txn(start_ts, commit_ts, mutations[0].key, tuple(mutations))


def _near(job: dict[str, Any], before: Tables, after: Tables) -> list[int]:
    """The tables of the job's schema, and what else it has changed."""
    schema = f"{job['schema_name']}.".lower()
    return [
        physical_id
        for physical_id in sorted(before.keys() | after.keys())
        if before.get(physical_id) != after.get(physical_id)
        or after[physical_id][0].lower().startswith(schema)
    ]


def _tables(snapshot: Iterable[dict[str, Any]]) -> Tables:
    return {
        physical_id: (f"{table['schema']}.{table['name']}", table["eligible"])
        for table in snapshot
        for physical_id in table.get("partitions") or [table["id"]]
        if any(column[2] for column in table["columns"])  # those of a view have no type
    }


def _steps(writes: Iterable[dict[str, Any]]) -> dict[int, int]:
    """Job id to the ts from which sessions use partitions and columns as the job will leave them."""
    found = {}
    for record in writes:
        if record["kind"] == "ddl_job_row" and record.get("job_meta"):
            job = orjson.loads(record["job_meta"])
            if job["type"] in EARLY and job["schema_state"] == DELETE_ONLY:
                found[job["id"]] = record["commit_ts"]
            if job["state"] == RUNNING and (_copied(job) or _converted(job)):
                found.setdefault(job["id"], record["commit_ts"])
    return found


def _copied(job: dict[str, Any]) -> bool:
    """Whether a running reorganisation has filled its partitions: some sessions write to those alone."""
    return job["type"] in COPYING and job["schema_state"] == PUBLIC


def _converted(job: dict[str, Any]) -> bool:
    """Whether a running job has made a column public that holds converted data."""
    parts = [job]
    if job["type"] == MULTI_SCHEMA_CHANGE:
        parts = job["multi_schema_info"]["sub_jobs"] if job["binlog"]["TableInfo"] else []
    return any(
        part["type"] == MODIFY_COLUMN and part["schema_state"] == PUBLIC and _gets_new_data(part["raw_args"])
        for part in parts
    )


def _gets_new_data(args: Any) -> bool:
    return isinstance(args, dict) and args.get("changing_column") is not None
