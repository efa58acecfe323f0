"""One catalogue for many changefeeds: each gets what it would get alone, wherever the others stand."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
import threading
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.mounter.jobs import written
from tests.server.test_schema_tracker import DdlSpan, catalogues_of, of, rules_of, write_base

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.errors import Retryable, TidegateError
from tidegate.filter.feed import FeedFilter
from tidegate.mounter import bases, ddl, ddl_transition
from tidegate.mounter.bases import Base
from tidegate.mounter.catalogue import Catalogue
from tidegate.mounter.ddl_jobs import UnreadableJob
from tidegate.mounter.schema_store import SchemaStore
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.schemas import SchemaReader
from tidegate.server.catalogue import target_text
from tidegate.server.catalogue.catalogues import DDL_SPAN_ID, Catalogues, Shared
from tidegate.server.catalogue.schema_tracker import SchemaTracker, table_task
from tidegate.tidb import keys
from tidegate.tidb.ddl_job import DdlJob

DROP_SCHEMA, CREATE_TABLE, ADD_COLUMN, REPAIR_TABLE, RECOVER_SCHEMA = 2, 3, 5, 29, 63
RULES = (
    ("*.*",),
    ("*.*", "!*.t1"),
    ("d1.*",),
    ("d2.*", "d_part.*"),
    ("*.t*", "!d1.t2"),
    ("nothing.here",),
)
Job = DdlJob | UnreadableJob


class Alone:
    """The slow twin: a feed with a catalogue of its own, which looks at every table itself."""

    def __init__(self, store: SchemaStore, jobs: list[Job], feed_filter: FeedFilter, ts: int) -> None:
        self.store, self.place, self._filter = store, ts, feed_filter
        self._jobs = [job for job in jobs if job.finished_ts > ts]
        self._stopped = False
        tables = [table for table in store.entries(ts) if feed_filter.follows(table)]
        self.wanted = {i: table_task(i, ts) for table in tables for i in table.physical_ids}
        self.initial = tuple(self.wanted.values())

    @property
    def left_out(self) -> list[str]:
        return [t.name for t in self.store.entries(self.place) if self._filter.leaves_out(t)]

    def catch_up(self, resolved: int, room: int) -> tuple[list[DdlBatch], int]:
        found: list[DdlBatch] = []
        while (
            not self._stopped and len(found) < room and self._jobs and self._jobs[0].finished_ts <= resolved
        ):
            ts = self.place = self._jobs[0].finished_ts
            same = [job for job in self._jobs if job.finished_ts == ts]
            del self._jobs[: len(same)]
            found += self._batch(ts, [self.store.apply(job) for job in same])
            self.store.advance(ts)
        if not self._stopped and len(found) < room:
            self.place = max(self.place, resolved)
            self.store.advance(self.place)
        return found, self.place

    def _batch(self, ts: int, applied: list[Any]) -> list[DdlBatch]:
        sent, error = [], None
        try:
            for one in applied:
                if one.refusal is not None and self._filter.stopped_by(one.refusal):
                    raise one.refusal.error()
                events = (self._filter.sent(emitted) for emitted in one.emitted)
                sent += [
                    target_text.for_targets(e, one.charset, one.sql_mode) for e in events if e is not None
                ]
        except TidegateError as stop:
            error, self._stopped = stop, True
        added: list[SpanTask] = []
        removed = set()
        for physical_id in sorted(set().union(*(one.changed_ids for one in applied))):
            table = self.store.version_at(physical_id, ts)
            wanted = table is not None and self._filter.follows(table)
            if wanted and physical_id not in self.wanted:
                self.wanted[physical_id] = table_task(physical_id, ts)
                added.append(self.wanted[physical_id])
            elif not wanted and physical_id in self.wanted:
                removed.add(self.wanted.pop(physical_id))
        if not (sent or added or removed or error):
            return []
        gone = frozenset(task.id for task in removed)
        tables = frozenset(task.physical_id for task in removed)
        return [DdlBatch(ts, tuple(sent), tuple(added), gone, error, tables)]


class History:
    """Jobs in an event store; some cannot be read or replicated, and upstream knows what they did."""

    def __init__(self, folder: Path, jobs: list[DdlJob], spoilt: dict[int, str]) -> None:
        self.true = jobs
        writes = [of(job, **self._changed(job, spoilt.get(at, ""))) for at, job in enumerate(jobs)]
        self.stamps = [job.finished_ts for job in jobs]
        self.end = self.stamps[-1] + 10
        self.span = DdlSpan(folder / "store")
        for at in range(0, len(writes), 3):
            self.span.add(*writes[at : at + 3], upto=writes[at : at + 3][-1][0])
        self.span.add(upto=self.end)
        write_base(self.span.folder, SchemaStore(1), 1)
        self.read = 0
        """How often upstream's catalogue was read."""
        shared = Shared(Catalogue(SchemaStore(1), 1), self.span.folder)
        self.jobs = [job for _, same in shared._jobs(self.end) for job in same]

    @staticmethod
    def _changed(job: DdlJob, how: str) -> dict[str, Any]:
        if how == "refused":
            return {"type": REPAIR_TABLE, "query": "admin repair table"}
        return {"type": "x"} if how == "unreadable" else {}

    def catalogues(self, **more: Any) -> Catalogues:
        return Catalogues(self.span.folder, self.upstream, **more)

    def upstream(self, ts: int) -> SchemaStore:
        self.read += 1
        store = self.at(ts)
        store._schemas._dropped.clear()  # as what its keys do not tell
        return store

    def at(self, ts: int) -> SchemaStore:
        store = SchemaStore(1)
        for job in self.true:
            if job.finished_ts <= ts:
                store.apply(job)
        store.advance(ts)
        return store

    def alone(self, feed_filter: FeedFilter, ts: int) -> Alone:
        return Alone(self.at(ts), self.jobs, feed_filter, ts)


def catch_up(tracker: SchemaTracker, resolved: int, waiting: int) -> tuple[list[DdlBatch], int]:
    """Return its answer once it has found another catalogue, if it needs one."""
    answer = tracker.catch_up(resolved, waiting)
    if tracker._moving is not None:
        assert answer == ([], tracker.resolved_ts)
        wait([tracker._moving])
        answer = tracker.catch_up(resolved, waiting)
    return answer


def checkpoint_of(tracker: SchemaTracker) -> int:
    """The highest that it may have: below a job that stops the feed."""
    return tracker.resolved_ts - tracker._stopped


def shown(batches: list[DdlBatch]) -> list[Any]:
    """Without the names in an error: who has read upstream since a job was refused knows more of them."""
    return [(b.finished_ts, b.events, b.added, b.removed, b.error and b.error.what) for b in batches]


@pytest.mark.slow
@settings(max_examples=40, deadline=None, phases=[Phase.generate], report_multiple_bugs=False)
@given(st.data())
def test_many_feeds_over_one_catalogue_get_what_each_would_get_alone(data: st.DataObject) -> None:
    """At different checkpoints, with equal and other filters, started again, while bases come and go."""
    jobs = [
        job for job in written(data.draw(st.sampled_from(["basic", "partitions", "rand1"]))) if job.is_done
    ]
    left = data.draw(st.sets(st.integers(0, len(jobs) - 1), max_size=5))
    jobs = [job for at, job in enumerate(jobs) if at not in left]
    plain = [at for at, job in enumerate(jobs) if job.action in (CREATE_TABLE, ADD_COLUMN)]
    kinds = st.sampled_from(["refused", "unreadable"])
    spoilt = data.draw(st.dictionaries(st.sampled_from(plain), kinds, max_size=2))
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder), jobs, spoilt)
        catalogues = history.catalogues(steps_max=data.draw(st.sampled_from([1, 4, 512])))
        some_ts = st.sampled_from([1, *history.stamps, *(ts + 1 for ts in history.stamps)])
        feeds: list[tuple[FeedFilter, SchemaTracker, Alone]] = []
        served: list[int] = []
        for _ in range(data.draw(st.integers(4, 30))):
            deed = data.draw(st.sampled_from(["open", "read", "read", "read", "tend", "again"]))
            if deed == "open" or not feeds:
                # A table whose creation was refused elsewhere may be renamed to where a filter follows it:
                # what is known of it then depends on when its feed began. So all are concerned, or none.
                rules = data.draw(st.sampled_from((RULES[0], RULES[-1]) if spoilt else RULES))
                feed_filter = rules_of(*rules, force_replicate=data.draw(st.booleans()))
                checkpoint = data.draw(some_ts)
                feeds.append(begun(history, catalogues, feed_filter, checkpoint, data))
                served.append(catalogues.base_ts(checkpoint) or 0)
                continue
            at = data.draw(st.integers(0, len(feeds) - 1))
            feed_filter, tracker, alone = feeds[at]
            if deed == "tend":
                catalogues._write_at = catalogues._rename_at = 0.0
                checkpoints = [checkpoint_of(tracker) for _, tracker, _ in feeds]
                catalogues.tend(checkpoints, [ts for ts in checkpoints if data.draw(st.booleans())])
                assert catalogues._keeping is not None
                catalogues._keeping.result()
            elif deed == "again":
                read = history.read
                feeds[at] = begun(history, catalogues, feed_filter, checkpoint_of(tracker), data)
                assert spoilt or history.read == read, "a base serves each feed that begins again"
            else:
                resolved, room = data.draw(some_ts), data.draw(st.integers(1, 20))
                found, known = catch_up(tracker, resolved, 512 - room)
                expected, place = alone.catch_up(resolved, room)
                assert (shown(found), known) == (shown(expected), place)
                assert [table.name for table in tracker.left_out] == alone.left_out
            for i, (_, each, _) in enumerate(feeds):
                # From where upstream's history is held for it only ever moves up.
                now = catalogues.base_ts(checkpoint_of(each))
                assert now is not None
                assert min(now, checkpoint_of(each)) >= min(served[i], checkpoint_of(each))
                served[i] = now
        for feed_filter, tracker, alone in feeds:
            check_worker(history, catalogues, feed_filter, checkpoint_of(tracker), alone)
        catalogues.close()


def begun(
    history: History, catalogues: Catalogues, feed_filter: FeedFilter, ts: int, data: st.DataObject
) -> tuple[FeedFilter, SchemaTracker, Alone]:
    """A feed and its twin, begun at `ts`."""
    tracker, alone = SchemaTracker.open(catalogues, feed_filter, ts), history.alone(feed_filter, ts)
    resolved = max(ts, data.draw(st.sampled_from([1, *history.stamps])))
    batches, known = tracker.begin(ts, resolved)
    expected, place = alone.catch_up(resolved, 512)
    assert tracker.initial == alone.initial
    assert (shown(batches), known) == (shown(expected), place)
    assert [table.name for table in tracker.left_out] == alone.left_out
    return feed_filter, tracker, alone


def check_worker(
    history: History, catalogues: Catalogues, feed_filter: FeedFilter, ts: int, alone: Alone
) -> None:
    """A worker that starts now has the schemas of what it decodes, from a base and the DDL span."""
    tables = bases.load_for(catalogues.folder, ts)
    for _ in Shared(Catalogue(tables, tables.resolved_ts), history.span.folder).read(ts):
        pass
    mine = {t.name: t.info() for t in tables.entries(ts) if feed_filter.follows(t)}
    assert mine == {t.name: t.info() for t in alone.store.entries(ts) if feed_filter.follows(t)}


@pytest.fixture
def plain(tmp_path: Path) -> History:
    return History(tmp_path, [job for job in written("basic") if job.is_done], {})


@pytest.fixture
def refused(tmp_path: Path) -> tuple[History, DdlJob]:
    """A history in which the creation of a table is refused, and that job."""
    jobs = [job for job in written("basic") if job.is_done]
    at = next(at for at, job in enumerate(jobs) if job.action == CREATE_TABLE and job.schema_name == "d1")
    return History(tmp_path, jobs, {at: "refused"}), jobs[at]


def test_a_job_is_applied_once_however_many_feeds_there_are(
    plain: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[int] = []
    apply = SchemaStore.apply

    def counted(store: SchemaStore, job: Job) -> Any:
        applied.append(job.finished_ts)
        return apply(store, job)

    monkeypatch.setattr(SchemaStore, "apply", counted)
    catalogues = plain.catalogues()
    trackers = [SchemaTracker.open(catalogues, rules_of(*rules), 1) for rules in RULES]
    for tracker in trackers:
        tracker.begin(1, plain.stamps[5])
    for tracker in trackers:
        tracker.catch_up(plain.end)
    assert applied == [job.finished_ts for job in plain.jobs]


def tables_at(catalogues: Catalogues, ts: int, *rules: str) -> dict[str, Any] | None:
    """Name and definition of each."""
    found = asyncio.run(catalogues.tables_at(ts, rules_of(*rules)))
    return None if found is None else {table.name: table.info() for table in found}


def test_tables_at_the_start_of_a_feed_come_from_catalogues_of_other_feeds(plain: History) -> None:
    catalogues = plain.catalogues()
    running = SchemaTracker.open(catalogues, rules_of("d1.*"), 1)
    running.begin(1, 1)
    for ts in (*plain.stamps, plain.end):
        expected = {table.name: table.info() for table in plain.at(ts).entries(ts)}
        assert tables_at(catalogues, ts, "d2.*") == expected
        SchemaTracker.open(catalogues, rules_of("d2.*"), ts).begin(ts, ts)
    assert plain.read == 0
    assert running.catch_up(plain.end)[0], "what was read for another is still handed out"


def test_of_tables_that_nobody_has_at_hand_upstream_is_asked(
    plain: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.server.catalogue.catalogues.SOON_S", 0.0)
    catalogues, ts = plain.catalogues(steps_max=1), plain.stamps[-1]
    assert tables_at(catalogues, ts) is None, "no catalogue is open"
    running = SchemaTracker.open(catalogues, rules_of(), ts)
    running.begin(ts, ts)
    assert tables_at(catalogues, ts) is not None
    assert tables_at(catalogues, plain.end + 1) is None, "the DDL span is not there yet"
    assert tables_at(catalogues, plain.stamps[0]) is None, "it was forgotten"
    assert running.resolved_ts == ts
    catalogues._remove(catalogues._bases)
    assert tables_at(catalogues, ts) is None, "no base serves a feed that begins there"


def test_tables_that_are_soon_at_hand_are_waited_for(plain: History) -> None:
    catalogues, ts = plain.catalogues(), plain.end + 5
    running = SchemaTracker.open(catalogues, rules_of(), 1)
    running.begin(1, 1)

    async def both() -> bool:
        asked = asyncio.create_task(catalogues.tables_at(ts, rules_of()))
        await asyncio.sleep(0)
        catalogues.submit(lambda: None).result()
        plain.span.add(upto=ts)
        return await asked is not None

    assert asyncio.run(both())


def test_after_a_refused_job_the_tables_are_read_from_upstream(
    refused: tuple[History, DdlJob],
) -> None:
    history, job = refused
    catalogues, ts = history.catalogues(), job.finished_ts
    stopped = SchemaTracker.open(catalogues, rules_of(), 1)
    stopped.begin(1, 1)
    assert tables_at(catalogues, ts - 1) is not None
    assert tables_at(catalogues, ts) is None
    assert tables_at(catalogues, ts, "d2.*") is not None, "the job does not concern it"


def test_a_feed_started_after_a_refused_job_sees_its_effect(
    refused: tuple[History, DdlJob],
) -> None:
    """The other feeds are left alone."""
    history, job = refused
    catalogues, ts = history.catalogues(), job.finished_ts
    stopped = SchemaTracker.open(catalogues, rules_of(), 1)
    batches, known = stopped.begin(1, history.end)
    assert (known, batches[-1].error is None) == (ts, False)
    elsewhere = SchemaTracker.open(catalogues, rules_of("d2.*"), 1)
    elsewhere.begin(1, ts + 1)
    assert SchemaTracker.open(catalogues, rules_of("d2.*"), ts + 1)._shared is elsewhere._shared
    assert history.read == 0

    behind = SchemaTracker.open(catalogues, rules_of(), ts + 1)
    behind.begin(ts + 1, ts + 1)
    assert history.read == 1
    assert job.table_id in {task.physical_id for task in behind.initial}
    worker = bases.load_for(catalogues.folder, ts + 1)
    assert worker.version_at(job.table_id, ts + 1) is not None
    alone = history.alone(rules_of(), ts + 1)
    elsewhere.catch_up(history.end)
    assert shown(behind.catch_up(history.end)[0]) == shown(alone.catch_up(history.end, 512)[0])
    assert behind._shared is not elsewhere._shared, "which lacks the table"
    wider = SchemaTracker.open(catalogues, rules_of("d2.*", "d1.*"), ts + 1)
    wider.begin(ts + 1, ts + 1)
    assert wider.initial == behind.initial, "as if its filter had not concerned the job before"
    again = SchemaTracker.open(catalogues, rules_of(), ts - 1)
    assert again.begin(ts - 1, history.end)[0][-1].error is not None


def test_no_base_is_made_of_a_catalogue_that_could_not_take_in_a_job(refused: tuple[History, DdlJob]) -> None:
    history, job = refused
    catalogues, ts = history.catalogues(), job.finished_ts
    running = SchemaTracker.open(catalogues, rules_of("d2.*"), 1)
    running.begin(1, history.end)
    catalogues.keep([ts + 1])
    assert history.read == 1
    base = bases.serving(bases.found(catalogues.folder), ts + 1)
    assert base == Base(ts + 1, ts + 1)
    assert bases.load(catalogues.folder, base).version_at(job.table_id, ts + 1) is not None


def test_a_catalogue_read_upstream_knows_the_tables_of_a_recovered_schema(
    tmp_path: Path,
) -> None:
    jobs = [job for job in written("views_sequences") if job.is_done]
    recover = next(at for at, job in enumerate(jobs) if job.action == RECOVER_SCHEMA)
    drop = max(at for at, job in enumerate(jobs[:recover]) if job.action == DROP_SCHEMA)
    extra = next(job for job in written("basic") if job.action == CREATE_TABLE and job.is_done)
    ts = jobs[drop].finished_ts + 1
    assert ts < jobs[recover].finished_ts
    jobs.insert(drop + 1, dataclasses.replace(extra, id=1 << 30, finished_ts=ts, query="create table x"))
    history = History(tmp_path, jobs, {drop + 1: "refused"})
    catalogues = history.catalogues()
    elsewhere = SchemaTracker.open(catalogues, rules_of("*.*", "!d1.*"), 1)
    elsewhere.begin(1, ts)
    behind = SchemaTracker.open(catalogues, rules_of(), ts)
    behind.begin(ts, ts)
    assert history.read == 1
    batches, known = behind.catch_up(history.end)
    assert [str(batch.error) for batch in batches if batch.error is not None] == []
    assert known == history.end


def test_a_stopped_feed_keeps_its_base_and_holds_back_nobody_elses(plain: History) -> None:
    catalogues, tracker = plain.catalogues(), None
    stopped = plain.stamps[3]
    for ts in plain.stamps[4::3]:
        tracker = tracker or SchemaTracker.open(catalogues, rules_of(), 1)
        tracker.begin(1, ts) if tracker.resolved_ts == 0 else tracker.catch_up(ts)
        catalogues._write_at = catalogues._rename_at = 0.0
        catalogues.tend([stopped, ts], [ts])
        catalogues._keeping.result()  # type: ignore[union-attr]
        assert catalogues.base_ts(ts) == ts
        assert catalogues.base_ts(stopped) == plain.stamps[0] - 1
    catalogues.tend([ts], [ts])
    catalogues._keeping.result()  # type: ignore[union-attr]
    assert bases.found(catalogues.folder) == [Base(ts, ts)]


def test_without_ddl_a_base_is_renamed_and_serves_every_checkpoint_since(plain: History) -> None:
    catalogues, last = plain.catalogues(), plain.stamps[-1]
    tracker = SchemaTracker.open(catalogues, rules_of(), 1)
    tracker.begin(1, last)
    catalogues.keep([last])
    (written_once,) = (path for path in catalogues.folder.iterdir() if path.name.startswith(str(last)))
    inode = written_once.stat().st_ino
    tracker.catch_up(plain.end)
    catalogues._rename_at = 0.0
    catalogues.keep([last])
    renamed = catalogues.folder / Base(last, plain.end).name
    assert renamed.stat().st_ino == inode
    assert catalogues.base_ts(last) == catalogues.base_ts(plain.end) == plain.end
    again = SchemaTracker.open(plain.catalogues(), rules_of(), last)
    assert again.begin(last, plain.end) == ([], plain.end)


def test_a_base_whose_ddl_can_not_be_had_any_more_is_not_used(plain: History) -> None:
    catalogues, ts = plain.catalogues(), plain.stamps[4]
    assert catalogues.serves(ts, safe_point=1)
    assert catalogues.serves(ts, safe_point=ts), "the event store has it"
    span = plain.span._span
    span.drop_below(plain.stamps[2])
    plain.span._store.publish()
    assert catalogues.serves(ts, safe_point=1), "upstream has it"
    assert not catalogues.serves(ts, safe_point=ts)
    SchemaTracker.open(catalogues, rules_of(), ts, ts, [ts - 1, ts + 5]).begin(ts, plain.end)
    assert bases.found(catalogues.folder) == [Base(1, 1), Base(ts, ts)], "ts - 1 is gone, too"


def test_a_damaged_base_is_read_again(plain: History) -> None:
    catalogues, ts = plain.catalogues(), plain.stamps[4]
    path = catalogues.folder / Base(1, 1).name
    path.write_bytes(path.read_bytes()[:-1])
    tracker = SchemaTracker.open(catalogues, rules_of(), ts)
    tracker.begin(ts, ts)
    assert tracker.initial == plain.alone(rules_of(), ts).initial
    assert bases.found(catalogues.folder) == [Base(ts, ts)]


def test_a_base_of_another_format_is_removed_before_a_worker_chooses_it(plain: History) -> None:
    folder, ts = plain.catalogues().folder, plain.stamps[4]
    ours = (folder / Base(1, 1).name).read_bytes()
    for base, content in ((Base(ts, ts + 1), ours[:4] + b"\2\0\0\0" + ours[8:]), (Base(ts + 2, ts + 2), b"")):
        (folder / base.name).write_bytes(content)
    plain.catalogues()
    assert bases.found(folder) == [Base(1, 1)]


def test_nobody_waits_for_a_catalogue_in_use_and_nothing_is_lost(plain: History) -> None:
    tracker = SchemaTracker.open(plain.catalogues(), rules_of(), 1)
    tracker.begin(1, 1)
    with tracker._shared.lock:
        assert tracker.catch_up(plain.end) == ([], 1)
        assert tracker.name_of(keys.DDL_JOB_TABLE_ID) == ""
    assert tracker.catch_up(plain.end)[1] == plain.end


def test_a_lagging_feed_uses_a_catalogue_of_its_own_and_then_returns(
    plain: History,
) -> None:
    catalogues = plain.catalogues(steps_max=2)
    slow, quick = (SchemaTracker.open(catalogues, rules_of(), 1) for _ in range(2))
    slow.begin(1, 1)
    quick.begin(1, plain.end)
    assert slow._shared is quick._shared
    shared = quick._shared
    whole, _ = plain.alone(rules_of(), 1).catch_up(plain.end, 512)
    batches: list[DdlBatch] = []
    apart = 0
    while slow.resolved_ts < plain.end:
        found, _ = catch_up(slow, plain.end, 511)
        batches += found
        apart += slow._shared is not shared
    assert batches == whole
    assert apart > 1
    assert slow._shared is shared
    assert catalogues.alone, "its own is given up"


def test_a_feed_does_not_go_over_to_a_catalogue_that_has_not_come_as_far(plain: History) -> None:
    """Otherwise batches that it has handed out already would come again."""
    catalogues, place = plain.catalogues(steps_max=8), plain.stamps[3]
    slow, quick = (SchemaTracker.open(catalogues, rules_of(), 1) for _ in range(2))
    slow.begin(1, place)
    quick.begin(1, plain.end)
    assert slow._shared is quick._shared
    early = SchemaTracker.open(catalogues, rules_of(), 1)
    assert early._shared.catalogue.resolved_ts < place < quick._shared.catalogue.since
    whole, _ = plain.alone(rules_of(), 1).catch_up(plain.end, 512)
    batches, _ = catch_up(slow, plain.end, 0)
    assert batches == [batch for batch in whole if batch.finished_ts > place]


def test_what_comes_next_may_be_forgotten_in_the_moment_it_is_asked_for(
    plain: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what another thread reads, once the feed has found its catalogue good and before it has the lock."""
    catalogues = plain.catalogues(steps_max=2)
    slow, quick = (SchemaTracker.open(catalogues, rules_of(), 1) for _ in range(2))
    slow.begin(1, 1)
    settle = slow._has_next_steps

    def just_before() -> bool:
        found = settle()
        quick.begin(1, plain.end)
        return found

    monkeypatch.setattr(slow, "_has_next_steps", just_before)
    assert slow.catch_up(plain.end) == ([], 1)
    monkeypatch.undo()
    assert catch_up(slow, plain.end, 0) == plain.alone(rules_of(), 1).catch_up(plain.end, 512)


def test_a_catalogue_that_is_broken_is_opened_again_by_all(
    plain: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogues = plain.catalogues()
    trackers = [SchemaTracker.open(catalogues, rules_of(), 1) for _ in range(2)]
    for tracker in trackers:
        tracker.begin(1, 1)

    def defect(job: DdlJob, catalogue: SchemaStore) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tidegate.mounter.ddl.transition", defect)
    with pytest.raises(ZeroDivisionError):
        trackers[0].catch_up(plain.end)
    monkeypatch.undo()
    assert all(tracker.broken for tracker in trackers)
    with pytest.raises(Retryable, match="opened again"):
        trackers[1].catch_up(plain.end)
    again = SchemaTracker.open(catalogues, rules_of(), 1)
    assert again.begin(1, plain.end)[1] == plain.end
    assert not again.broken


def test_no_base_reaches_over_a_job_that_was_applied_by_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [job for job in written("basic") if job.is_done][:2]
    ts, span = first.finished_ts, DdlSpan(tmp_path / "store")
    span.add((ts, first.meta), (ts, second.meta), upto=ts + 5)
    catalogues = catalogues_of(span)
    tracker = SchemaTracker.open(catalogues, rules_of(), 1)
    tracker.begin(1, 1)
    transition = ddl.transition

    def defect(job: DdlJob, catalogue: SchemaStore) -> ddl_transition.Transition:
        if job.id == second.id:
            raise ZeroDivisionError
        return transition(job, catalogue)

    monkeypatch.setattr(ddl, "transition", defect)
    with pytest.raises(ZeroDivisionError):
        tracker.catch_up(ts)
    catalogues.keep([1])
    assert bases.found(catalogues.folder) == [Base(1, 1)]


def test_what_cannot_be_saved_is_saved_later_and_what_is_needed_stays(plain: History) -> None:
    catalogues, last = plain.catalogues(), plain.stamps[-1]
    tracker = SchemaTracker.open(catalogues, rules_of(), 1)
    tracker.begin(1, last)
    catalogues.folder.rename(catalogues.folder.with_name("away"))
    catalogues.folder.write_text("in the way")
    catalogues.keep([last])
    assert catalogues.base_ts(last) == 1, "history is held from the ts of the base before"
    catalogues.folder.unlink()
    catalogues.folder.with_name("away").rename(catalogues.folder)
    catalogues._write_at = catalogues._rename_at = 0.0
    catalogues.keep([last])
    assert catalogues.base_ts(last) == last


def test_a_worker_finds_a_base_during_renames_writes_and_removals(plain: History) -> None:
    catalogues = plain.catalogues()
    tracker = SchemaTracker.open(catalogues, rules_of(), 1)
    tracker.begin(1, 1)
    checkpoint, done = 1, threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not done.is_set():
                # A worker's start may lie below the checkpoint, never above it.
                start = checkpoint
                tables = bases.load_for(catalogues.folder, start)
                assert tables.version_at(keys.DDL_JOB_TABLE_ID, start) or tables.resolved_ts >= 1
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for ts in plain.stamps:
        tracker.catch_up(ts + 1)
        for _ in range(3):
            checkpoint = ts
            catalogues._write_at = catalogues._rename_at = 0.0
            catalogues.tend([ts], [ts])
            catalogues._keeping.result()  # type: ignore[union-attr]
    done.set()
    for worker in workers:
        worker.join()
    assert failures == []


def test_a_worker_that_was_idle_begins_with_a_later_base(plain: History, tmp_path: Path) -> None:
    """The jobs it has not read are gone from the DDL span."""
    catalogues, end = plain.catalogues(), plain.stamps[-1]
    (tmp_path / "bounds.json").write_text(
        json.dumps({"bound": 1, "ddl_span": DDL_SPAN_ID, "spans": {"a": {"start_ts": 1}}})
    )
    spec: Any = SimpleNamespace(store_dir=plain.span.folder, feed_dir=tmp_path, path=tmp_path)
    idle = SchemaReader(LocalAccess(spec, lambda: None))
    tracker = SchemaTracker.open(catalogues, rules_of(), 1)
    tracker.begin(1, end)
    catalogues.keep([end])
    plain.span._span.drop_below(catalogues.base_ts(end) or 0)
    plain.span._store.publish()
    (tmp_path / "bounds.json").write_text(
        json.dumps({"bound": end, "ddl_span": DDL_SPAN_ID, "spans": {"a": {"start_ts": end}}})
    )
    names = {table.name for table in idle.upto(end).entries(end)}
    assert names == {table.name for table in plain.at(end).entries(end)}
