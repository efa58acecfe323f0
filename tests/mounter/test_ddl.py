from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.codec.golden import lines
from tests.mounter.jobs import DDL_CASES, base_store, entries, finished
from tidegate.errors import Fatal, InvalidInput, TidegateError, Undecodable
from tidegate.model.ddl import DdlEvent
from tidegate.mounter import ddl
from tidegate.mounter.filter import TableFilter
from tidegate.mounter.schema_store import SchemaStore
from tidegate.tidb import keys
from tidegate.tidb.ddl_job import DdlJob

VIEWS = (21, 24)
RENAME_TABLE = 14
RENAME_TABLES = 47


def job_of(case: str, text: str) -> tuple[SchemaStore, DdlJob]:
    """The store just before the first job whose query begins so, and that job."""
    store = SchemaStore()
    for job, _ in finished(case):
        if job.query.startswith(text):
            return store, job
        store.apply(job)
    raise AssertionError(text)


@pytest.mark.parametrize("case", DDL_CASES)
def test_golden_jobs_tell_targets_what_ticdc_tells(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Counted, not compared: views, jobs TiCDC fails on, and where it judges renames by the last table."""
    store, seen = SchemaStore(), Counter[str]()
    for job, theirs in finished(case):
        try:
            events = store.apply(job)
        except Fatal:
            assert ddl.RULES[job.action].handling is ddl.Handling.REFUSE
            seen["refused"] += 1
            continue
        wanted = [_told(event) for event in theirs["events"] or []]
        ours = [(e.query, e.action, e.schema, e.table) for e in events]
        if job.action in VIEWS:
            seen["views"] += 1
            assert ours == []
        elif theirs["error"]:
            seen["error in TiCDC"] += 1
        elif job.action == RENAME_TABLES and ours != wanted:
            seen["renames judged one by one"] += 1
            assert "x_rand1" in job.query
        else:
            seen["same"] += 1
            assert ours == wanted, job.query
    with capsys.disabled():
        print(f" {case}: {dict(seen)}")


def _told(event: dict[str, Any]) -> tuple[str, int, str, str]:
    """Facts 14.9: TiCDC leaves a backtick inside a name as it is."""
    query = event["query"].replace("`t`1`", "`t``1`")
    return query, event["type"], event["table_info"]["schema"], event["table_info"]["table"]


@pytest.mark.parametrize("case", DDL_CASES)
def test_golden_jobs_leave_ticdcs_catalogue_behind(case: str) -> None:
    store = SchemaStore()
    known: set[int] = set()
    for job, theirs in finished(case):
        if ddl.RULES[job.action].handling is ddl.Handling.REFUSE:
            return
        store.apply(job)
        known |= {table.id for table in store.tables(job.finished_ts)}
        ours = {
            table.id: (table.schema, table.table, [(c.id, c.name) for c in table.columns])
            for table in store.tables(job.finished_ts)
        }
        assert ours == {
            t["id"]: (t["schema"], t["name"], _emitted(store, t))
            for t in theirs["snapshot"]["tables"] or []
            if t["id"] in known
        }


def _emitted(store: SchemaStore, theirs: dict[str, object]) -> list[tuple[int, str]]:
    """TiCDC's snapshot lists virtual columns too; ours are those that are emitted."""
    table = store.current(theirs["id"])  # type: ignore[arg-type]
    virtual = {c["id"] for c in table.info["cols"]} - {c.id for c in table.columns} if table else set()
    return [(c[0], c[1]) for c in theirs["columns"] if c[3] == "public" and c[0] not in virtual]  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", DDL_CASES)
def test_golden_filters_let_pass_what_ticdc_sends(case: str) -> None:
    """Left out: renames of tables without a handle key, which TiCDC sends when they leave the filter."""
    header = next(iter(lines(f"ddl/{case}")))
    for view in header["views"]:
        if view["force_replicate"]:
            continue
        rules, store = TableFilter(view["rules"]), SchemaStore()
        for job, theirs in finished(case):
            if ddl.RULES[job.action].handling is ddl.Handling.REFUSE:
                break
            wanted = next(v for v in theirs["views"] if v["view"] == view["view"])
            events = store.apply(job)
            if wanted.get("after_error"):
                break
            try:
                sent = [event.query for event in events if ddl.admit(event, rules)]
            except InvalidInput:
                assert wanted.get("error"), job.query
                continue
            keyless = job.action == RENAME_TABLE and not events
            if not wanted.get("error") and job.action not in (*VIEWS, RENAME_TABLES) and not keyless:
                assert sent == (wanted.get("queries") or []), job.query


def test_every_action_of_tidb_has_a_rule_and_every_refusal_a_way_out() -> None:
    assert set(range(1, 78)) - {66} == set(ddl.RULES)
    for rule in ddl.RULES.values():
        assert bool(rule.note) == (rule.handling in (ddl.Handling.IGNORE, ddl.Handling.REFUSE))


def test_an_unknown_action_is_refused() -> None:
    _, job = job_of("basic", "create database d1")
    with pytest.raises(Fatal, match="action 999"):
        ddl.transition(replace(job, action=999), SchemaStore())


def test_a_recovered_schema_is_refused_with_what_to_do() -> None:
    store, job = job_of("views_sequences", "flashback database")
    before = store.dump()
    with pytest.raises(Fatal, match="create it again"):
        store.apply(job)
    assert store.dump() == before


def test_truncate_swaps_the_physical_ids() -> None:
    store, job = job_of("basic", "truncate table t1")
    (event,) = store.apply(job)
    assert event.removed_ids == (event.before["id"],)  # type: ignore[index]
    assert event.added_ids == (event.after["id"],)  # type: ignore[index]


def test_exchange_partition_swaps_the_tables_of_two_ids() -> None:
    store, job = job_of("partitions", "alter table r exchange")
    plain, partition = job.table_id, job.args["partition_id"]
    (event,) = store.apply(job)
    assert (event.added_ids, event.removed_ids) == ((), ())
    now = job.finished_ts
    assert [store.table(i, now).table for i in (plain, partition)] == ["r", "ex"]  # type: ignore[union-attr]
    assert [store.table(i, now - 1).table for i in (plain, partition)] == ["ex", "r"]  # type: ignore[union-attr]


def test_arguments_of_old_jobs_are_lists() -> None:
    store, job = job_of("basic", "rename table t3r to t3a")
    old = job.args["rename_table_infos"]
    listed = [
        [item["old_schema_id"] for item in old],
        [item["new_schema_id"] for item in old],
        [item["new_table_name"] for item in old],
        [item["table_id"] for item in old],
        [item["old_schema_name"] for item in old],
        [item["old_table_name"] for item in old],
    ]
    assert ddl.transition(replace(job, args=listed), store) == ddl.transition(job, store)
    store, job = job_of("partitions", "alter table r exchange")
    args = [job.args[key] for key in ("partition_id", "pt_schema_id", "pt_table_id", "partition_name")]
    assert ddl.transition(replace(job, args=[*args, True]), store).tables == ddl.transition(job, store).tables


@pytest.mark.parametrize("args", [None, [], {}, {"rename_table_infos": [{}]}, 5])
def test_odd_arguments_are_undecodable(args: object) -> None:
    store, job = job_of("basic", "rename table t3r to t3a")
    with pytest.raises(Undecodable, match="rename tables"):
        ddl.transition(replace(job, args=args), store)


def test_a_batch_of_new_tables_is_split_into_one_event_each() -> None:
    store, first = job_of("basic", "create table t1")
    second = {**first.table_info, "id": 999, "name": {"O": "t;2", "L": "t;2"}}  # type: ignore[dict-item]
    query = "CREATE TABLE t1 (a int); create table `t;2` (b int) comment ';'"
    batch = replace(first, action=60, table_infos=(first.table_info, second), query=query)
    events = store.apply(batch)
    assert [(e.seq, e.action, e.table, e.query) for e in events] == [
        (0, 3, "t1", "CREATE TABLE t1 (a int);"),
        (1, 3, "t;2", "create table `t;2` (b int) comment ';'"),
    ]


def test_statements_are_split_outside_quotes_and_comments() -> None:
    assert ddl.split_queries('a \';\' ; b "\\";" /* ; */; `;`;') == ["a ';' ;", 'b "\\";" /* ; */;', "`;`;"]


def event_of(case: str, text: str) -> DdlEvent:
    store, job = job_of(case, text)
    return store.apply(job)[0]


def test_a_table_renamed_into_the_filter_stops_the_feed() -> None:
    event = event_of("basic", "rename table t1 to t1r")
    with pytest.raises(InvalidInput, match="renamed into the filter"):
        ddl.admit(event, TableFilter(["*.t1r"]))
    assert ddl.admit(event, TableFilter(["*.t1"]))
    assert not ddl.admit(event, TableFilter(["*.t2"]))


def test_a_table_that_loses_its_handle_key_stops_the_feed() -> None:
    event = event_of("rand1", "alter table x_rand1_a.t2 drop primary key")
    with pytest.raises(InvalidInput, match="lost its handle key"):
        ddl.admit(event, TableFilter())
    assert not ddl.admit(event, TableFilter(["other.*"]))


@pytest.mark.parametrize("log", ["bank", "narrow"])
def test_jobs_in_finds_the_jobs_of_a_change_log(log: str) -> None:
    table = base_store(log).table(keys.DDL_JOB_TABLE_ID, 1 << 62)
    assert table is not None
    found = [
        (job.finished_ts, job.id, job.query, job.schema_version)
        for line in lines(f"changelog/{log}_schema")
        if line["type"] == "txn"
        for job in ddl.jobs_in(entries(line), table)
    ]
    assert found == [
        (line["commit_ts"], line["job_id"], line["query"], line["schema_version"])
        for line in lines(f"changelog/{log}_schema")
        if line["type"] == "ddl"
    ]


def test_a_damaged_job_row_is_not_passed_over() -> None:
    table = base_store("bank").table(keys.DDL_JOB_TABLE_ID, 1 << 62)
    assert table is not None
    mutation = {"op": "put", "key": keys.int_record(table.id, 1).hex(), "value": "80ff"}
    with pytest.raises(Undecodable):
        ddl.jobs_in(entries({"commit_ts": 2, "start_ts": 1, "mutations": [mutation]}), table)


def test_what_any_job_json_may_hold_never_escapes_as_another_error() -> None:
    """Every recorded job with each of its members replaced by an odd value."""
    for case in ("basic", "partitions"):
        for job, _ in finished(case):
            for name in ("args", "table_info", "db_info", "table_infos"):
                for odd in ({}, {"id": 1}, {"id": 1, "name": {"O": "t"}}, {"id": 1, "cols": "x"}):
                    changed = replace(job, **{name: (odd,) if name == "table_infos" else odd})
                    with suppress(TidegateError):
                        ddl.transition(changed, SchemaStore())
