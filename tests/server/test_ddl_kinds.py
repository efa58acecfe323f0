"""Kinds of DDL jobs that no recording holds, through a whole capture: written as TiDB writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.mounter.jobs import written
from tests.server.recorded_ddl import ROW, fresh_cluster
from tests.server.test_capture import Running, check_order

from tidegate.kvclient.pd import PdClient
from tidegate.model.schema import Kind
from tidegate.mounter.ddl_rules import RULES, DdlOutcome
from tidegate.tidb import keys, row
from tidegate.tidb.sql.restore import outgoing
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.changelog import LogMutation, Txn
from tidegate.workload.load import Loader

pytestmark = pytest.mark.integration

SYNCED, RUNNING, WRITE_REORGANIZATION = 6, 1, 3
BASE_TS = 1 << 40
FLASHBACK_CLUSTER = 62
SETTINGS = {"ignore_ineligible_table": True, "filter": {"rules": ["*.*", "!elsewhere.*"]}}


class Script:
    """Jobs and rows, one after the other, each at a ts of its own."""

    def __init__(self) -> None:
        self.ts = BASE_TS
        self.txns: list[Txn] = []
        self.emitted: list[tuple[int, str]] = []
        self.rows: dict[str, str] = {}
        """Key of each row that counts, and its table."""
        done = [job.meta for job in written("basic") if job.is_done]
        self._schema, self._table = done[0], next(job for job in done if job["type"] == 3)
        self._jobs = 5000

    def job(
        self, action: int, query: str = "", *, emitted: str = "", history: bool = False, **more: Any
    ) -> int:
        """Write a job; `emitted`: the statement that targets get. Returns the ts."""
        self.ts, self._jobs = self.ts + 10, self._jobs + 1
        model = self._schema if action in (1, 2, 26) else self._table
        binlog = model["binlog"] | {"SchemaVersion": self._jobs} | more.pop("binlog", {})
        job = model | {"id": self._jobs, "type": action, "query": query, "binlog": binlog, **more}
        table_id = keys.DDL_HISTORY_TABLE_ID if history else keys.DDL_JOB_TABLE_ID
        cells: list[tuple[int, Kind, row.Stored]] = [(2 if history else 5, Kind.BYTES, orjson.dumps(job))]
        self._put(keys.int_record(table_id, self._jobs), row.encode_v1(cells))
        self.emitted += [(self.ts, emitted)] if emitted else []
        return self.ts

    def row(self, physical_id: int, table: str = "") -> None:
        """Write a row; of a table that is followed, unless that is empty."""
        self.ts += 10
        key = keys.int_record(physical_id, self.ts)
        self._put(key, ROW)
        if table:
            self.rows[key.hex()] = table

    def info(self, table_id: int, name: str) -> dict[str, Any]:
        """A definition like that of table t1."""
        found: dict[str, Any] = self._table["binlog"]["TableInfo"] | {"id": table_id}
        return found | {"name": {"O": name, "L": name}}

    @property
    def table_id(self) -> int:
        """Table t1's."""
        return int(self._table["table_id"])

    def _put(self, key: bytes, value: bytes) -> None:
        self.txns.append(Txn(self.ts - 1, self.ts, key, (LogMutation("put", key, value),)))


@pytest.fixture
def capture(manual_upstream: EmbeddedUpstream, tmp_path: Path) -> Iterator[Running]:
    running = Running(manual_upstream.pd_addr, tmp_path / "capture", tmp_path / "out")
    yield running
    running.stop()


def script() -> tuple[Script, int]:
    """Write every kind that is ignored, those sent that are not recorded, and a refusal. Returns its ts."""
    made = Script()
    made.job(1, "create database d1", emitted="create database d1")
    made.job(3, "create table t1", emitted="create table t1")
    made.row(made.table_id, "d1.t1")
    for action, rule in RULES.items():
        if rule.handling.outcome is DdlOutcome.IGNORED:
            made.job(action, f"{rule.name}, which is nothing to targets")
            made.row(made.table_id, "d1.t1")
    for action in (9, 10, 37, 38, 48):
        made.job(action, f"alter {action}", emitted=f"alter {action}")
        made.row(made.table_id, "d1.t1")
    many = {"TableInfo": None, "MultipleTableInfos": [made.info(901, "a"), made.info(902, "b")]}
    ts = made.job(60, "create table a (id int); create table b (id int);", table_id=0, binlog=many)
    made.emitted += [(ts, "create table a (id int);"), (ts, "create table b (id int);")]
    made.row(901, "d1.a")
    made.row(902, "d1.b")
    fast: dict[str, Any] = {"table_id": 903, "state": SYNCED, "binlog": {"TableInfo": made.info(903, "fast")}}
    made.job(3, "create table fast", emitted="create table fast", history=True, **fast)
    made.row(903, "d1.fast")
    made.job(3, "create table t1", history=True, state=SYNCED)  # t1 is known
    made.job(29, "admin repair table x", schema_id=77, schema_name="elsewhere", table_name="x")
    made.job(99, "a kind of tomorrow", schema_id=77, schema_name="elsewhere", table_name="x")
    made.row(903, "d1.fast")
    everywhere: dict[str, Any] = {"schema_id": 0, "table_id": 0, "schema_name": "", "table_name": ""}
    everywhere |= {"state": RUNNING, "binlog": {"SchemaVersion": 0, "TableInfo": None}}
    made.job(FLASHBACK_CLUSTER, schema_state=2, **everywhere)
    made.row(903, "d1.fast")
    at = made.job(FLASHBACK_CLUSTER, schema_state=WRITE_REORGANIZATION, **everywhere)
    made.row(903)
    return made, at


def test_kinds_that_no_recording_holds(capture: Running, manual_pd: PdClient) -> None:
    made, refused_at = script()
    Loader(manual_pd).load([fresh_cluster(BASE_TS)])
    assert capture.create("one", start_ts=BASE_TS, replica_config=SETTINGS)["http"] == 200
    Loader(manual_pd).load(made.txns)
    shown = capture.wait_state("one", "failed")
    assert "flashback cluster" in shown["error"]["message"]
    assert "create it again with a start-ts after this job" in shown["error"]["message"]
    assert shown["checkpoint_ts"] == refused_at - 1
    delivered = capture.lines("one")
    check_order(delivered)
    emitted = [(ts, outgoing(query).text) for ts, query in made.emitted]
    assert [(line["ddl"], line["query"]) for line in delivered if "ddl" in line] == emitted
    assert {line["key"]: line["table"] for line in delivered if "row" in line} == made.rows
