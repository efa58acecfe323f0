from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import lines
from tests.mounter.jobs import OURS, base_store, entries, finished
from tidegate.errors import Undecodable
from tidegate.model.schema import TableSchema
from tidegate.mounter.ddl_jobs import jobs_in
from tidegate.mounter.schema_image import FORMAT, map_file
from tidegate.mounter.schema_store import JOBS_REMEMBERED, SchemaStore
from tidegate.mounter.table_version import Parsed, TableVersion, pack, unpack
from tidegate.tidb import keys

DROP_SCHEMA, RECOVER_SCHEMA = 2, 63


def full_store(case: str) -> SchemaStore:
    store = SchemaStore()
    for job, _ in finished(case, ours=True):
        store.apply(job)
    return store


def seen(table: TableSchema | None) -> object:
    """A version's identity, to compare stores."""
    return table and (table.name, table.version, [c.id for c in table.columns], table.physical_ids)


@pytest.mark.parametrize("log", ["bank", "narrow"])
def test_a_store_advanced_by_logged_jobs_has_the_columns_of_each_snapshot(log: str) -> None:
    store, snapshots = base_store(log), 0
    for line in lines(f"changelog/{log}_schema", ours=True):
        if line["type"] == "txn":
            for job in jobs_in(entries(line), store.job_meta_columns()):
                store.apply(job)
        elif line["type"] == "snapshot":
            ours = {table.name: [c.name for c in table.columns] for table in store.tables(line["ts"])}
            assert ours == {name: table["columns"] for name, table in line["tables"].items()}
            snapshots += 1
    assert snapshots in (14, 20)
    for line in lines(f"changelog/{log}_schema", ours=True):
        if line["type"] == "snapshot":
            later = {table.name: [c.name for c in table.columns] for table in store.tables(line["ts"])}
            assert later == {name: table["columns"] for name, table in line["tables"].items()}


def test_a_row_at_a_jobs_own_ts_has_the_schema_before() -> None:
    store = SchemaStore()
    for job, _ in finished("columns", ours=True):
        known = store.current(job.table_id)
        before = known.parsed() if known else None
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
    for job, _ in finished("basic", ours=True):
        store.apply(job)
        if job.query.startswith("drop table back"):
            assert store.table(job.table_id, job.finished_ts - 1) is not None
            assert store.table(job.table_id, job.finished_ts) is None
            assert store.versions(job.table_id, job.finished_ts, job.finished_ts)[-1][1] is None
            store.forget(job.finished_ts)
            assert store.versions(job.table_id, 0, job.finished_ts) == []


@pytest.mark.parametrize("case", OURS)
def test_a_store_saved_at_any_ts_answers_as_the_whole_one_from_there_on(case: str, tmp_path: Path) -> None:
    """A restart: the catalogue at a checkpoint before jobs that were read already, and those once more."""
    jobs = [job for job, _ in finished(case, ours=True)]
    whole = full_store(case)
    for cut in jobs[::7]:
        path = tmp_path / "schema.bin"
        path.write_bytes(whole.dump(cut.finished_ts))
        again = SchemaStore.load(map_file(path))
        assert again.resolved_ts == cut.finished_ts
        path.unlink()
        once = SchemaStore()
        for job in jobs:
            events = once.apply(job).events
            assert again.apply(job).events == (events if job.finished_ts > cut.finished_ts else [])
        for job in jobs:
            if job.finished_ts >= cut.finished_ts:
                ts = job.finished_ts
                assert list(map(seen, again.tables(ts))) == list(map(seen, whole.tables(ts)))
        assert again.schema_names() == whole.schema_names()


@pytest.mark.parametrize("case", ["partitions", "rand2", "views_sequences"])
def test_forgetting_keeps_all_that_later_rows_need(case: str) -> None:
    stamps = [job.finished_ts for job, _ in finished(case, ours=True)]
    for horizon in stamps[::9]:
        store, cut = full_store(case), full_store(case)
        cut.forget(horizon)
        for ts in [ts for ts in stamps if ts >= horizon]:
            assert list(map(seen, cut.tables(ts))) == list(map(seen, store.tables(ts)))
        assert cut.dump(horizon) == store.dump(horizon)


def test_forgetting_leaves_one_version_a_table_and_nothing_of_what_is_gone() -> None:
    store = full_store("rand1")
    store.forget(store.resolved_ts)
    lines_left = list(store._timelines._lines.values())
    assert all(len(line.versions) == 1 and line.versions[0] is not None for line in lines_left)
    assert not store._timelines._ended
    assert all(len(line) == 1 and line[0][1] is not None for line in store._schemas._names.values())


def test_a_store_saved_in_another_format_is_refused() -> None:
    """Under another name of the mark of `ddl_early`, a DDL would be emitted a second time."""
    other = bytearray(SchemaStore().dump())
    other[4:8] = (FORMAT - 1).to_bytes(4, "little")
    with pytest.raises(Undecodable, match="unknown format") as caught:
        SchemaStore.load(bytes(other))
    assert "remove the folder catalogue" in caught.value.fix


def test_a_job_does_nothing_the_second_time() -> None:
    store = SchemaStore()
    jobs = [job for job, _ in finished("basic", ours=True)][:3]
    assert [bool(store.apply(job).emitted) for job in jobs] == [True] * 3
    again = [replace(job, finished_ts=job.finished_ts + 10**12) for job in jobs]
    assert [bool(store.apply(job).emitted) for job in (*jobs, *again)] == [False] * 6
    assert store.ignored["the job has been applied before"] == 6
    assert not SchemaStore.load(store.dump()).apply(again[0]).emitted


def test_as_many_jobs_are_remembered_as_promised() -> None:
    store = SchemaStore()
    job = next(job for job, _ in finished("basic", ours=True))
    for n in range(2 * JOBS_REMEMBERED):
        store.apply(replace(job, id=n, schema_id=n, finished_ts=n + 1))
        store.forget(n + 1)
    assert len(store._done) == len(store.image(store.resolved_ts).done) == JOBS_REMEMBERED


def test_a_catalogue_saved_behind_later_jobs_remembers_those_before_it() -> None:
    store = SchemaStore()
    job = next(job for job, _ in finished("basic", ours=True))
    for n in range(2 * JOBS_REMEMBERED):
        store.apply(replace(job, id=n, schema_id=n, finished_ts=n + 1))
    again = SchemaStore.load(store.dump(10))
    assert not again.apply(replace(job, id=9, schema_id=9, finished_ts=11)).emitted


def test_a_catalogue_saved_before_a_second_drop_knows_the_schemas_tables() -> None:
    jobs = [job for job, _ in finished("views_sequences", ours=True)]
    recover = next(job for job in jobs if job.action == RECOVER_SCHEMA)
    drop = next(job for job in jobs if job.action == DROP_SCHEMA and job.schema_id == recover.schema_id)
    store = SchemaStore()
    for job in jobs[: jobs.index(recover) + 1]:
        store.apply(job)
    store.apply(replace(drop, id=1 << 30, finished_ts=recover.finished_ts + 5))
    store.forget(drop.finished_ts)
    saved = SchemaStore.load(store.dump(recover.finished_ts - 1))
    assert saved.apply(recover).refusal is None
    store.forget(store.resolved_ts)
    assert [len(line) for line in store._schemas._dropped.values()] == [1]


def test_ignored_jobs_are_counted_by_reason() -> None:
    store = full_store("views_sequences")
    assert any(reason.startswith("create sequence") for reason in store.ignored)


def test_only_the_job_tables_of_the_system_schemas_are_kept() -> None:
    store = base_store("bank")
    assert store.table(keys.DDL_JOB_TABLE_ID, store.resolved_ts) is not None
    assert store.table(keys.DDL_HISTORY_TABLE_ID, store.resolved_ts) is not None
    assert store.tables(store.resolved_ts) == []
    assert store.schema_names() == ["test"]


BLOB = full_store("basic").dump()


def use_all(blob: bytes) -> None:
    store = SchemaStore.load(blob)
    dropped = [table for line in store._schemas._dropped.values() for entry in line for table in entry.tables]
    for table in (*store._tables.values(), *dropped):
        unpack(table.packed)


@given(st.binary(max_size=40), st.integers(0, 100_000), st.integers(1, 255))
def test_a_damaged_image_is_undecodable_at_load_or_when_the_table_is_used(
    noise: bytes, at: int, flip: int
) -> None:
    with pytest.raises(Undecodable):
        SchemaStore.load(noise)
    blob = bytearray(BLOB)
    blob[at % len(blob)] ^= flip
    with pytest.raises(Undecodable):
        use_all(bytes(blob))
    with pytest.raises(Undecodable):
        SchemaStore.load(BLOB[: at % len(BLOB)])


@given(st.binary(max_size=200))
def test_a_packed_definition_comes_out_whole_or_not_at_all(noise: bytes) -> None:
    assert unpack(pack(noise)) == noise
    with pytest.raises(Undecodable):
        unpack(noise)


def test_few_tables_are_held_parsed_at_a_time() -> None:
    cache, tables = Parsed(3), []
    for job, _ in finished("rand1", ours=True):
        if job.action == 3 and job.table_info is not None:
            tables.append(TableVersion.of(1, "s", job.table_info, 5, cache))
    assert len(tables) > 4
    for table in tables:
        assert table.parsed() is table.parsed()
    held = [table for table in tables if table._parsed is not None]
    assert held == tables[-3:]


def test_a_definition_is_returned_although_another_thread_evicts_it() -> None:
    job = next(job for job, _ in finished("rand1", ours=True) if job.action == 3 and job.table_info)
    assert job.table_info is not None
    table = TableVersion.of(1, "s", job.table_info, 5, Parsed(0))
    assert table.parsed().name == table.name


def test_what_is_at_hand_is_what_the_parsed_table_says() -> None:
    for case in OURS:
        for job, _ in finished(case, ours=True):
            info = job.table_info
            if info is None or info.get("view") or info.get("sequence"):
                continue
            table = TableVersion.of(1, "s", info, 5, Parsed())
            parsed = table.parsed()
            assert (table.name, table.id, table.eligible) == (parsed.name, parsed.id, parsed.eligible)
            assert (table.physical_ids, table.is_partitioned) == (
                parsed.physical_ids,
                bool(parsed.partitions),
            )
            assert table.info() == info


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


def test_a_cluster_without_meta_keys_has_the_ddl_job_table_of_every_tidb() -> None:
    store = SchemaStore.from_meta([], 5)
    assert store.version_at(keys.DDL_JOB_TABLE_ID, 5) is not None
    assert store.job_meta_columns() == {keys.DDL_JOB_TABLE_ID: 5, keys.DDL_HISTORY_TABLE_ID: 2}
    assert SchemaStore.load(store.dump()).job_meta_columns() == store.job_meta_columns()


def test_the_catalogue_is_in_a_small_part_of_the_meta_keys() -> None:
    base = next(line for line in lines("changelog/bank_schema", ours=True) if line["type"] == "base")
    pairs = [(bytes.fromhex(m["key"]), bytes.fromhex(m["value"])) for m in base["mutations"]]
    span = keys.catalogue_span()
    within = [(key, value) for key, value in pairs if span.start <= key < span.end]
    assert 0 < len(within) < len(pairs)
    ts = base["commit_ts"]
    assert SchemaStore.from_meta(within, ts).dump() == SchemaStore.from_meta(pairs, ts).dump()


def test_what_is_followed_is_identified_by_version_and_by_id() -> None:
    store = full_store("columns")
    tables = [table for table in store.entries(store.resolved_ts) if table.table == "t"]
    table = tables[0]
    first, last = store.versions(table.id, 0, store.resolved_ts), store.resolved_ts
    assert len(first) > 1
    newest = store.version_at(table.id, last)
    assert newest is not None

    def follows(version: TableVersion) -> bool:
        return version is newest

    assert store.versions(table.id, 0, last, follows)[-1][1] is newest.parsed()
    assert all(schema is None for _, schema in store.versions(table.id, 0, last, follows)[:-1])
    # As an id it is wanted where any version in force is, and not alone where another is not.
    unknown = 1 << 40
    assert store.among([table.id, unknown], 0, last, follows) == ([table.id], False)
    assert store.among([table.id, unknown], last, last, follows) == ([table.id], True)
    assert store.among([table.id], 0, newest.valid_from - 1, follows) == ([], False)
