"""A feed's DDL from the DDL span: batches in order, bounded, and where it must stop."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from tests.mounter.jobs import OURS, written

from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.barrier import DdlBatch
from tidegate.control.ddl_log import DdlLog
from tidegate.errors import Fatal, InvalidInput, Retryable
from tidegate.eventstore import reader, store_view
from tidegate.eventstore.store import EventStore
from tidegate.filter.feed import FeedFilter
from tidegate.model.block import ENTRY_SCHEMA, OP_PUT
from tidegate.model.schema import Kind
from tidegate.mounter import bases
from tidegate.mounter.bases import Base
from tidegate.mounter.schema_store import SchemaStore
from tidegate.server.catalogue.catalogues import DDL_SPAN, DDL_SPAN_ID, Catalogues
from tidegate.server.catalogue.schema_tracker import SchemaTracker, table_task
from tidegate.server.catalogue.stripes import Stripes
from tidegate.tidb import keys, row
from tidegate.tidb.ddl_job import DdlJob
from tidegate.tidb.sql.restore import restore

OPENED = 8
"""About how many views of one case are opened."""
URI = parse_sink_uri("kafka://127.0.0.1:1/t?protocol=open-protocol")


def rules_of(*rules: str, **settings: Any) -> FeedFilter:
    return FeedFilter.of(merge_config({**settings, "filter": {"rules": list(rules) or ["*.*"]}}, URI))


class DdlSpan:
    """The DDL span of an event store, filled with jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = EventStore(folder)
        self._span = self._store.open_span(DDL_SPAN)
        self._span.begin(1)

    def add(self, *writes: tuple[int, dict[str, Any]], upto: int) -> None:
        """Writes of jobs, and nothing else up to a ts."""
        rows = [(ts, ts - 1, OP_PUT, _key(job), _value(job), b"") for ts, job in writes]
        columns = list(zip(*rows, strict=True)) if rows else [[] for _ in ENTRY_SCHEMA]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
        self._span.append(pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA))
        self._span.seal(upto)
        self._store.publish()


def _key(job: dict[str, Any]) -> bytes:
    return keys.int_record(keys.DDL_JOB_TABLE_ID, job["id"])


def _value(job: dict[str, Any]) -> bytes:
    cells: list[tuple[int, Kind, row.Stored]] = [(5, Kind.BYTES, orjson.dumps(job))]
    return row.encode_v1(cells)


def of(job: DdlJob, **changed: Any) -> tuple[int, dict[str, Any]]:
    return job.finished_ts, job.meta | changed


@pytest.fixture
def span(tmp_path: Path) -> DdlSpan:
    return DdlSpan(tmp_path / "store")


def from_upstream(ts: int) -> SchemaStore:
    raise AssertionError("upstream was asked for the catalogue")


def write_base(store: Path, tables: SchemaStore, ts: int) -> None:
    """A base file next to an event store."""
    folder = bases.folder_of(store)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / Base(ts, ts).name).write_bytes(tables.dump(ts))


def catalogues_of(span: DdlSpan, **more: Any) -> Catalogues:
    """A capture's, with a base at ts 1 that has no table."""
    if not bases.found(bases.folder_of(span.folder)):
        write_base(span.folder, SchemaStore(1), 1)
    return Catalogues(span.folder, from_upstream, **more)


def tracker(span: DdlSpan, feed_filter: FeedFilter, checkpoint: int = 1, **more: Any) -> SchemaTracker:
    """Open the tracker of a feed that is alone."""
    return SchemaTracker.open(catalogues_of(span), feed_filter, checkpoint, **more)


def queries(batches: list[DdlBatch]) -> list[str]:
    return [event.query for batch in batches for event in batch.events]


def test_ddl_is_read_ahead_to_a_bound_and_the_rest_later(span: DdlSpan) -> None:
    jobs = [job for job in written("basic") if job.is_done]
    end = jobs[-1].finished_ts + 5
    span.add(*(of(job) for job in jobs), upto=end)
    whole, known = tracker(span, rules_of()).begin(1, end)
    assert known == end
    few = tracker(span, rules_of(), waiting_max=4)
    batches, known = few.begin(1, end)
    assert len(batches) == 4
    assert known == batches[-1].finished_ts == few.resolved_ts
    assert few.catch_up(end, waiting=4) == ([], known)
    while known < end:
        more, known = few.catch_up(end, waiting=1)
        assert len(more) <= 3
        batches += more
    assert batches == whole
    assert few.catch_up(end) == ([], end)


def test_ddl_at_or_below_the_checkpoint_is_history(span: DdlSpan) -> None:
    jobs = [job for job in written("basic") if job.is_done]
    end, cut = jobs[-1].finished_ts, jobs[9].finished_ts
    span.add(*(of(job) for job in jobs), upto=end)
    whole, _ = tracker(span, rules_of()).begin(1, end)
    later = tracker(span, rules_of())
    batches, _ = later.begin(cut, end)
    assert batches == [batch for batch in whole if batch.finished_ts > cut]
    wanted: set[str] = set()
    for batch in whole:
        if batch.finished_ts <= cut:
            wanted = (wanted | {task.id for task in batch.added}) - batch.removed
    assert {task.id for task in later.initial} == wanted
    assert all(task.start_ts == cut for task in later.initial)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("case", OURS)
def test_a_view_knows_the_same_of_ddl_whenever_it_was_opened(span: DdlSpan, case: str, width: int) -> None:
    """Captures open their views at different checkpoints. If they differed, the checkpoint would stay."""
    jobs = [job for job in written(case) if job.is_done]
    end = jobs[-1].finished_ts
    span.add(*(of(job) for job in jobs), upto=end)
    first = log_of(span, 1, end, width)
    for job in jobs[:: 1 + len(jobs) // OPENED]:
        if job.finished_ts <= first.said.upto:  # it stops at a job that is refused
            assert first.agrees(log_of(span, job.finished_ts, end, width).said), job.query


def log_of(span: DdlSpan, checkpoint: int, end: int, width: int) -> DdlLog:
    """The digest of a view that was opened at a checkpoint."""
    view, stripes = tracker(span, rules_of(), checkpoint), Stripes(width)
    batches, known = view.begin(checkpoint, end)
    found = DdlLog(checkpoint, stripes.begin(view.initial))
    found.learn(stripes.follow(batches), known)
    return found


def test_topics_of_new_and_renamed_tables_come_with_their_ddl(span: DdlSpan) -> None:
    """Also where nothing is sent and no span changes: rows behind it go elsewhere all the same."""
    jobs = [job for job in written("basic") if job.is_done]
    end = jobs[-1].finished_ts
    span.add(*(of(job) for job in jobs), upto=end)
    sink = {"dispatchers": [{"matcher": ["d1.*"], "topic": "{schema}_{table}"}]}
    quiet = {"event-filters": [{"matcher": ["*.*"], "ignore-event": ["rename table"]}]}
    feeds = [rules_of(sink=sink)]
    feeds += [FeedFilter.of(merge_config({"filter": {"rules": ["*.*"]} | quiet, "sink": sink}, URI))]
    for feed_filter in feeds:
        batches, _ = tracker(span, feed_filter).begin(1, end)
        renamed = next(job for job in jobs if job.query == "rename table t1 to t1r")
        status = next(batch for batch in batches if batch.finished_ts == renamed.finished_ts)
        assert (status.topics, status.added, status.removed) == ({"d1_t1r"}, (), frozenset())
        assert bool(status.events) == (feed_filter is feeds[0])
    known: set[str] = set()
    for batch in batches:
        known |= batch.topics
        later = tracker(span, feeds[0])
        later.begin(batch.finished_ts, end)
        assert later.topics <= known, "the topics at any checkpoint have been reported until there"
    assert {"d1_t1", "d1_t1r", "d1_back"} <= known
    assert not any(topic.startswith("d2") for topic in known), "these go to the URI's own"
    batches, _ = tracker(span, rules_of()).begin(1, end)
    assert not any(batch.topics for batch in batches)


def test_spans_follow_the_filter(span: DdlSpan) -> None:
    jobs = [job for job in written("partitions") if job.is_done]
    end = jobs[-1].finished_ts
    span.add(*(of(job) for job in jobs), upto=end)
    batches, _ = tracker(span, rules_of("d_part.h")).begin(1, end)
    created = next(job for job in jobs if job.query.startswith("create table h"))
    ids = [d["id"] for d in created.table_info["partition"]["definitions"]]  # type: ignore[index]
    first = next(batch for batch in batches if batch.added)
    assert first.added == tuple(table_task(i, created.finished_ts) for i in ids)
    live: set[str] = set()
    for batch in batches:
        live = (live - batch.removed) | {task.id for task in batch.added}
        assert batch.error is None
    assert not live, "the table was dropped in the end"


def test_a_refused_job_stops_the_feed_behind_all_before_it_and_nobody_else(span: DdlSpan) -> None:
    jobs = [job for job in written("basic") if job.is_done]
    creates = [job for job in jobs if job.action == 3 and job.schema_name == "d1"][:2]
    between = creates[0].finished_ts + 1
    end = creates[1].finished_ts
    repair = creates[0].meta | {"id": 9999, "type": 29, "query": "admin repair table t1"}
    span.add(of(jobs[0]), of(creates[0]), (between, repair), of(creates[1]), upto=end)
    mine = tracker(span, rules_of())
    batches, known = mine.begin(1, end)
    assert known == between
    assert queries(batches) == [restore(jobs[0].query), restore(creates[0].query)]
    error = batches[-1].error
    assert isinstance(error, Fatal)
    assert "repair table" in str(error)
    assert "create it again with a start-ts after this job" in str(error)
    assert mine.catch_up(end) == ([], between)
    others = tracker(span, rules_of("d2.*"))
    assert others.begin(1, end) == ([], end)
    start_ts = creates[0].job_start_ts
    past = FeedFilter.of(merge_config({"filter": {"rules": ["*.*"], "ignore-txn-start-ts": [start_ts]}}, URI))
    batches, known = tracker(span, past).begin(1, end)
    assert known == end
    assert [batch.error for batch in batches] == [None] * len(batches)


def test_a_job_that_cannot_be_read_stops_the_feed_in_its_turn(span: DdlSpan) -> None:
    first, second = [job for job in written("basic") if job.is_done][:2]
    span.add(of(first), (first.finished_ts + 1, {"id": 5, "type": "x"}), of(second), upto=second.finished_ts)
    batches, known = tracker(span, rules_of("d1.*")).begin(1, second.finished_ts)
    assert known == first.finished_ts + 1
    assert queries(batches) == [restore(first.query)]
    assert "not as TiDB writes it" in str(batches[-1].error)


def test_a_rename_into_the_filter_stops_the_feed_in_its_turn(span: DdlSpan) -> None:
    jobs = [job for job in written("basic") if job.is_done]
    rename = next(job for job in jobs if job.query.startswith("rename table t1 to t1r"))
    before = [job for job in jobs if job.finished_ts <= rename.finished_ts]
    span.add(*(of(job) for job in before), upto=rename.finished_ts)
    batches, known = tracker(span, rules_of("*.t1r")).begin(1, rename.finished_ts)
    assert known == rename.finished_ts
    assert isinstance(batches[-1].error, InvalidInput)
    assert "renamed into the filter" in str(batches[-1].error)


def test_tables_without_a_key_are_followed_only_when_forced(span: DdlSpan) -> None:
    jobs = [job for job in written("basic") if job.is_done]
    keyless = next(job for job in jobs if job.query.startswith("create table t2 (a int, b int)"))
    span.add(of(jobs[0]), of(keyless), upto=keyless.finished_ts)
    followed = tracker(span, rules_of("d1.t2"))
    batches, _ = followed.begin(1, keyless.finished_ts)
    assert [batch.added for batch in batches] == [()]
    assert [table.name for table in followed.left_out] == ["d1.t2"]
    followed = tracker(span, rules_of("d1.t2"))
    followed.begin(keyless.finished_ts, keyless.finished_ts)
    assert [table.name for table in followed.left_out] == ["d1.t2"]
    elsewhere = tracker(span, rules_of("d1.other"))
    elsewhere.begin(1, keyless.finished_ts)
    assert elsewhere.left_out == ()
    forced = tracker(span, rules_of("d1.t2", force_replicate=True))
    batches, _ = forced.begin(1, keyless.finished_ts)
    assert batches[-1].added == (table_task(keyless.table_id, keyless.finished_ts),)
    assert forced.left_out == ()


def test_a_table_without_a_key_is_named_until_it_is_dropped(span: DdlSpan) -> None:
    jobs = [job for job in written("basic") if job.is_done]
    dropped = next(job for job in jobs if job.query == "drop table t2, t4a")
    span.add(*(of(job) for job in jobs), upto=jobs[-1].finished_ts)
    followed = tracker(span, rules_of("d1.t2"))
    followed.begin(1, dropped.finished_ts - 1)
    assert [table.name for table in followed.left_out] == ["d1.t2"]
    followed.catch_up(jobs[-1].finished_ts)
    assert followed.left_out == ()


def test_a_saved_catalogue_is_that_of_the_checkpoint_though_ddl_is_ahead(span: DdlSpan) -> None:
    jobs = [job for job in written("basic") if job.is_done]
    end, cut = jobs[-1].finished_ts, jobs[6].finished_ts
    span.add(*(of(job) for job in jobs), upto=end)
    catalogues = catalogues_of(span)
    first = SchemaTracker.open(catalogues, rules_of(), 1)
    whole, _ = first.begin(1, end)
    catalogues.keep([cut])
    begun = Base(1, jobs[0].finished_ts - 1)
    assert bases.found(catalogues.folder) == [begun, Base(cut, jobs[7].finished_ts - 1)]
    again = tracker(span, rules_of(), cut)
    batches, _ = again.begin(cut, end)
    assert batches == [batch for batch in whole if batch.finished_ts > cut]


def test_what_was_read_before_reading_failed_is_handed_out_with_the_rest(
    span: DdlSpan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged segment in the middle: the DDLs before it have been applied, the tracker is used again."""
    monkeypatch.setattr(reader, "read", partial(reader.read, max_rows=4))  # as if the jobs were large
    jobs = [job for job in written("basic") if job.is_done]
    half, end = len(jobs) // 2, jobs[-1].finished_ts
    span.add(*(of(job) for job in jobs[:half]), upto=jobs[half - 1].finished_ts)
    span.add(*(of(job) for job in jobs[half:]), upto=end)
    whole, _ = tracker(span, rules_of()).begin(1, end)
    reading = tracker(span, rules_of())
    reading.begin(1, 1)
    damaged = store_view.read_manifest(span.folder, DDL_SPAN_ID).segments[1]
    second, at = span.folder / DDL_SPAN_ID / damaged.file, damaged.blocks[0].at + damaged.blocks[0].bytes // 2
    sound = second.read_bytes()
    second.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
    with pytest.raises(Retryable):
        reading.catch_up(end)
    assert reading.resolved_ts == 1
    second.write_bytes(sound)
    batches, known = reading.catch_up(end)
    assert known == end
    assert queries(batches) == queries(whole)
    assert batches == whole
    assert not reading.broken


def test_a_tracker_that_failed_between_two_jobs_is_known_to_be_broken(
    span: DdlSpan, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job for job in written("basic") if job.is_done][:3]
    span.add(*(of(job) for job in jobs), upto=jobs[-1].finished_ts)
    reading = tracker(span, rules_of())
    reading.begin(1, 1)

    def defect(job: DdlJob, catalogue: SchemaStore) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tidegate.mounter.ddl.transition", defect)
    with pytest.raises(ZeroDivisionError):
        reading.catch_up(jobs[-1].finished_ts)
    assert reading.broken
