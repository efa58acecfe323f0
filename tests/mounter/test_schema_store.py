import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden import lines
from tests.mounter.jobs import DDL_CASES, base_store, entries, finished
from tidegate.errors import Undecodable
from tidegate.model.schema import TableSchema
from tidegate.mounter.ddl import RULES, Handling, jobs_in
from tidegate.mounter.schema_store import SchemaStore
from tidegate.tidb import keys


def full_store(case: str) -> SchemaStore:
    store = SchemaStore()
    for job, _ in finished(case):
        if RULES[job.action].handling is not Handling.REFUSE:
            store.apply(job)
    return store


def seen(table: TableSchema | None) -> object:
    """A version's identity, to compare stores."""
    return table and (table.name, table.version, [c.id for c in table.columns], table.physical_ids)


@pytest.mark.parametrize("log", ["bank", "narrow"])
def test_a_store_advanced_by_a_change_logs_jobs_has_the_columns_of_every_snapshot(log: str) -> None:
    store, snapshots = base_store(log), 0
    for line in lines(f"changelog/{log}_schema"):
        if line["type"] == "txn":
            ddl_table = store.table(keys.DDL_JOB_TABLE_ID, line["commit_ts"])
            assert ddl_table is not None
            for job in jobs_in(entries(line), ddl_table):
                store.apply(job)
        elif line["type"] == "snapshot":
            ours = {table.name: [c.name for c in table.columns] for table in store.tables(line["ts"])}
            assert ours == {name: table["columns"] for name, table in line["tables"].items()}
            snapshots += 1
    assert snapshots in (14, 20)
    for line in lines(f"changelog/{log}_schema"):
        if line["type"] == "snapshot":
            later = {table.name: [c.name for c in table.columns] for table in store.tables(line["ts"])}
            assert later == {name: table["columns"] for name, table in line["tables"].items()}


def test_a_row_at_a_jobs_own_ts_has_the_schema_before() -> None:
    store = SchemaStore()
    for job, _ in finished("columns"):
        before = store.current(job.table_id)
        store.apply(job)
        commit_ts = job.finished_ts
        assert store.table(job.table_id, commit_ts - 1) is before
        if job.query == "alter table t add column c int":
            after = store.table(job.table_id, commit_ts)
            assert before is not None
            assert after is not None
            assert len(after.columns) == len(before.columns) + 1
            assert after.version == commit_ts
            return
    raise AssertionError("the case has no such job")


def test_versions_lists_what_is_in_force_within_a_range() -> None:
    store = full_store("columns")
    table = max(store.tables(store.resolved_ts), key=lambda t: t.version)
    everything = store.versions(table.id, 0, store.resolved_ts)
    starts = [start for start, _ in everything]
    assert starts == sorted(set(starts))
    assert len(starts) > 5
    assert store.versions(table.id, starts[2], starts[4]) == everything[2:5]
    assert store.versions(table.id, starts[2] + 1, starts[3] - 1) == everything[2:3]
    assert store.versions(table.id, starts[2] - 1, starts[2] - 1) == everything[1:2]
    assert store.versions(table.id, 0, starts[0] - 1) == []
    assert store.versions(-1, 0, starts[-1]) == []


def test_a_dropped_table_ends() -> None:
    store = SchemaStore()
    for job, _ in finished("basic"):
        store.apply(job)
        if job.query.startswith("drop table back"):
            assert store.table(job.table_id, job.finished_ts - 1) is not None
            assert store.table(job.table_id, job.finished_ts) is None
            assert store.versions(job.table_id, job.finished_ts, job.finished_ts)[-1][1] is None
            store.forget(job.finished_ts)
            assert store.versions(job.table_id, 0, job.finished_ts) == []


@pytest.mark.parametrize("case", DDL_CASES)
def test_a_saved_store_answers_as_before(case: str) -> None:
    store = full_store(case)
    again = SchemaStore.load(store.dump())
    assert again.dump() == store.dump()
    assert again.resolved_ts == store.resolved_ts
    assert again.ignored == store.ignored
    for job, _ in finished(case):
        for ts in (job.finished_ts - 1, job.finished_ts):
            assert list(map(seen, again.tables(ts))) == list(map(seen, store.tables(ts)))


@pytest.mark.parametrize("case", ["basic", "partitions", "rand1"])
def test_a_store_saved_in_the_middle_goes_on_as_if_it_had_not_been(case: str) -> None:
    jobs = [job for job, _ in finished(case)]
    for cut in range(0, len(jobs), 7):
        whole, first = SchemaStore(), SchemaStore()
        for job in jobs[:cut]:
            assert first.apply(job) == whole.apply(job)
        resumed = SchemaStore.load(first.dump())
        for job in jobs:  # those before the cut come again
            ours, once = resumed.apply(job), whole.apply(job)
            assert [(e.query, e.before, e.after) for e in ours] == [
                (e.query, e.before, e.after) for e in once
            ]


@pytest.mark.parametrize("case", ["partitions", "rand2"])
def test_forgetting_keeps_all_that_later_rows_need(case: str) -> None:
    stamps = [job.finished_ts for job, _ in finished(case)]
    for horizon in stamps[::9]:
        store, cut = full_store(case), full_store(case)
        cut.forget(horizon)
        assert len(cut.dump()) <= len(store.dump())
        for ts in [ts for ts in stamps if ts >= horizon]:
            assert list(map(seen, cut.tables(ts))) == list(map(seen, store.tables(ts)))


def test_a_job_does_nothing_the_second_time() -> None:
    store = SchemaStore()
    job = next(job for job, _ in finished("basic"))
    assert store.apply(job)
    assert store.apply(job) == []
    assert store.ignored["the job has been applied before"] == 1


def test_ignored_jobs_are_counted_by_reason() -> None:
    store = full_store("views_sequences")
    assert store.ignored["create view: views hold no rows"] >= 1
    assert any(reason.startswith("create sequence") for reason in store.ignored)


def test_only_the_job_table_of_the_system_schemas_is_kept() -> None:
    store = base_store("bank")
    assert store.table(keys.DDL_JOB_TABLE_ID, store.resolved_ts) is not None
    assert store.tables(store.resolved_ts) == []
    assert store.schema_names() == ["test"]


@given(st.binary(max_size=40), st.integers(0, 100_000), st.integers(1, 255))
def test_a_damaged_blob_is_undecodable(noise: bytes, at: int, flip: int) -> None:
    with pytest.raises(Undecodable):
        SchemaStore.load(noise)
    blob = bytearray(BLOB)
    blob[at % len(blob)] ^= flip
    with pytest.raises(Undecodable):
        SchemaStore.load(bytes(blob))
    with pytest.raises(Undecodable):
        SchemaStore.load(BLOB[: at % len(BLOB)])


BLOB = full_store("basic").dump()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (keys.meta_hash(b"DBs", b"DB:1"), b"{}"),
        (keys.meta_hash(b"DBs", b"DB:1"), b"\xff"),
        (keys.meta_hash(b"DB:x", b"Table:1"), b'{"id":1}'),
        (keys.meta_hash(b"DB:1", b"Table:1"), b"[]"),
        (b"m\x01", b"x"),
    ],
)
def test_damaged_meta_is_undecodable(key: bytes, value: bytes) -> None:
    with pytest.raises(Undecodable):
        SchemaStore.from_meta([(key, value)], 1)


def test_a_cluster_without_any_meta_key_has_the_ddl_job_table_of_every_tidb() -> None:
    table = SchemaStore.from_meta([], 5).table(keys.DDL_JOB_TABLE_ID, 5)
    assert table is not None
    assert [(c.id, c.name) for c in table.columns if c.name == "job_meta"] == [(5, "job_meta")]
