from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.golden_folder import count, lines, plain_name
from tests.mounter import job_fuzz
from tests.mounter.golden_ddl import Forgotten, chained, described, recorded, renames_as_ticdc, unescaped
from tests.mounter.jobs import DDL_CASES, OURS, base_store, entries, finished, written
from tidegate.errors import InvalidInput, TidegateError, Undecodable
from tidegate.mounter import ddl, ddl_early, ddl_events
from tidegate.mounter.ddl_admission import admit, concerned
from tidegate.mounter.ddl_jobs import UnreadableJob, jobs_in
from tidegate.mounter.ddl_partitions import REORGANISATIONS
from tidegate.mounter.ddl_rules import EARLY, EMITTED_BY_TICDC, RULES, DdlOutcome, Handling, Spans
from tidegate.mounter.ddl_transition import EmittedDdl
from tidegate.mounter.schema_store import Applied, SchemaStore
from tidegate.tidb import keys, table_info
from tidegate.tidb.ddl_job import DdlJob, JobState
from tidegate.tidb.table_filter import TableFilter

VIEWS = (21, 24)
DROP_PARTITION, TRUNCATE_PARTITION, FLASHBACK_CLUSTER = 20, 23, 62


def job_of(case: str, text: str) -> tuple[SchemaStore, DdlJob]:
    """The store just before the first job whose query begins so, and that job."""
    store = SchemaStore()
    for job, _ in finished(case, ours=True):
        if job.query.startswith(text):
            return store, job
        store.apply(job)
    raise AssertionError(text)


def sent(applied: Applied, rules: TableFilter, *, force: bool = False) -> tuple[list[EmittedDdl], str]:
    """Return the DDL that a changefeed sends, and why it stops."""
    try:
        return [emitted for emitted in applied.emitted if admit(emitted, rules, force_replicate=force)], ""
    except InvalidInput as error:
        return [], str(error)


@pytest.mark.golden
@pytest.mark.parametrize("case", DDL_CASES)
def test_golden_jobs_tell_targets_what_ticdc_tells(case: str) -> None:
    """Query, kind, both sides with their columns; where TiCDC is known to err, exactly that."""
    store, forgotten = SchemaStore(), Forgotten()
    for job, theirs in finished(case):
        applied = store.apply(job)
        emitted, stopped = sent(applied, TableFilter())
        wanted = theirs["events"] or []
        if forgotten.explains(job, theirs):
            assert emitted
            assert wanted == []
            count("ddl", "jobs: TiCDC forgets a recovered schema, ours does not")
            continue
        if chained(job, applied.emitted):
            assert emitted
            count("ddl", "cases cut short: TiCDC cannot follow a chain of renames, ours does")
            return
        queries = [unescaped(event["query"]) for event in wanted]
        ours = [unescaped(t.event.query) for t in emitted]
        if queries != ours:
            assert queries in [
                [unescaped(q) for q in other]
                for other in renames_as_ticdc(job, applied.emitted, TableFilter())
            ], job.query
            count("ddl", "jobs: TiCDC judges many renames by one table")
            continue
        assert bool(theirs["error"]) == bool(stopped), job.query
        for one, event in zip(emitted, wanted, strict=True):
            assert (one.event.action, one.event.seq) == (event["type"], event["seq"])
            assert (one.event.finished_ts, job.start_ts) == (event["commit_ts"], event["start_ts"])
            assert described(one.event, before=False, version=job.finished_ts) == recorded(
                event["table_info"], event["type"]
            ), job.query
            version = (one.partner or one.before).valid_from if one.before else 0  # type: ignore[union-attr]
            assert described(one.event, before=True, version=version) == recorded(
                event["pre_table_info"], event["type"]
            )
        count("ddl", "jobs: both stop" if stopped else "jobs: sent as TiCDC sends them")


@pytest.mark.golden
@pytest.mark.parametrize("case", DDL_CASES)
def test_golden_jobs_leave_ticdcs_catalogue_behind(case: str) -> None:
    store, forgotten = SchemaStore(), Forgotten()
    known: set[int] = set()
    renamed: set[int] = set()
    for job, theirs in finished(case):
        applied = store.apply(job)
        if chained(job, applied.emitted):
            count("ddl", "catalogues cut short: TiCDC cannot follow a chain of renames, ours does")
            return
        if forgotten.explains(job, theirs):
            return
        renamed |= {job.table_id} if job.action == 14 else set()
        tables = store.entries(job.finished_ts)
        known |= {table.id for table in tables}
        ours = {
            t.id: (
                _schema(t.schema, t.id, renamed),
                t.table,
                t.physical_ids,
                [(c.id, c.name) for c in t.parsed().columns],
            )
            for t in tables
        }
        assert ours == {
            t["id"]: (
                _schema(t["schema"], t["id"], renamed),
                plain_name(t["name"]),
                tuple(t.get("partitions") or [t["id"]]),
                _emitted(store, t),
            )
            for t in theirs["snapshot"]["tables"] or []
            if t["id"] in known
        }
        count("ddl", "catalogues after a job")


def _schema(name: str, table_id: int, renamed: set[int]) -> str:
    """Classic TiCDC has it in lower case: docs/formats/ddl.md#where-we-differ-from-ticdc."""
    return plain_name(name).lower() if table_id in renamed else plain_name(name)


def _emitted(store: SchemaStore, theirs: dict[str, Any]) -> list[tuple[int, str]]:
    """TiCDC's snapshot lists virtual columns too; ours are those that are emitted."""
    table = store.current(theirs["id"])
    hidden = (
        {c["id"] for c in table.info()["cols"]} - {c.id for c in table.parsed().columns} if table else set()
    )
    return [(c[0], plain_name(c[1])) for c in theirs["columns"] if c[3] == "public" and c[0] not in hidden]


@pytest.mark.golden
@pytest.mark.parametrize("case", DDL_CASES)
def test_golden_filters_let_pass_what_ticdc_sends(case: str) -> None:
    """Up to the first error, after which a real changefeed would have stopped."""
    header = next(iter(lines(f"ddl/{case}")))
    for view in header["views"]:
        rules, store, forgotten = TableFilter(view["rules"]), SchemaStore(), Forgotten()
        for job, theirs in finished(case):
            wanted = next(v for v in theirs["views"] if v["view"] == view["view"])
            applied = store.apply(job)
            emitted, stopped = sent(applied, rules, force=view["force_replicate"])
            if wanted.get("after_error"):
                break
            if chained(job, applied.emitted):
                count("ddl", "views cut short: TiCDC cannot follow a chain of renames, ours does")
                break
            if forgotten.explains(job, wanted):
                count("ddl", "jobs, filtered: TiCDC forgets a recovered schema")
                continue
            ours = [unescaped(t.event.query) for t in emitted]
            theirs_sent = [unescaped(query) for query in wanted.get("queries") or []]
            if ours == theirs_sent and bool(stopped) == bool(wanted.get("error")):
                count("ddl", "jobs, filtered: both stop" if stopped else "jobs, filtered: sent as TiCDC does")
            elif job.action == 47 and "not found in schema snapshot" in (wanted.get("error") or ""):
                # A table leaves for a schema outside the filter, which TiCDC has not kept.
                assert any(not rules.matches_schema(t.event.schema) for t in applied.emitted)
                count("ddl", "jobs, filtered: TiCDC fails on a rename out of the filter")
            else:
                assert theirs_sent in renames_as_ticdc(job, applied.emitted, rules), job.query
                count("ddl", "jobs, filtered: TiCDC judges renames otherwise")


# --- the rules ------------------------------------------------------------------------------------------


def test_every_action_of_tidb_has_a_rule_and_every_refusal_a_way_out() -> None:
    assert set(range(1, 79)) - {66} == set(RULES)
    for rule in RULES.values():
        assert bool(rule.note) == (rule.handling.outcome is not DdlOutcome.EVENT)


@pytest.mark.golden
def test_targets_get_the_kinds_that_ticdc_sends_and_two_more() -> None:
    for line in lines("filters/event_filters"):
        if line["kind"] == "ddl_types":
            _compare_kinds(line)
            count("ddl", "kinds of jobs, sent or not", len(line["answers"]))


def _compare_kinds(types: dict[str, Any]) -> None:
    emitted = {action for action, discarded, _ in types["answers"] if not discarded}
    assert emitted == EMITTED_BY_TICDC
    ours = {action for action, rule in RULES.items() if rule.handling.outcome is DdlOutcome.EVENT}
    assert ours - emitted == {48, 63}
    assert emitted <= ours
    assert all(discarded for action, discarded, _ in types["answers"] if action not in RULES)
    schema_kinds = {action for action, _, is_schema in types["answers"] if is_schema}
    handled = {Handling.CREATE_SCHEMA, Handling.DROP_SCHEMA, Handling.ALTER_SCHEMA}
    assert schema_kinds == {action for action, rule in RULES.items() if rule.handling in handled}


def test_the_spans_of_every_recorded_event_are_what_its_rule_says() -> None:
    seen = set()
    for case in OURS:
        store = SchemaStore()
        for job, _ in finished(case, ours=True):
            for emitted in store.apply(job).emitted:
                added, removed = bool(emitted.event.added_ids), bool(emitted.event.removed_ids)
                spans = RULES[job.action].spans
                seen.add(spans)
                match spans:
                    case Spans.SAME | Spans.BY_NAME | Spans.SWAPPED:
                        assert (added, removed) == (False, False)
                    case Spans.NEW | Spans.PARTS_NEW | Spans.BACK:
                        assert not removed
                        assert added
                    case Spans.GONE | Spans.PARTS_GONE:
                        assert not added
                        assert removed or job.action == 2
                    case Spans.REPLACED | Spans.PARTS_REPLACED | Spans.PARTS_MOVED:
                        assert (added, removed) == (True, True)
    assert seen == set(Spans)


# --- refusals -------------------------------------------------------------------------------------------


def test_an_unknown_action_is_refused_by_feeds_that_it_concerns() -> None:
    _, job = job_of("basic", "create table t1")
    refusal = ddl.transition(replace(job, action=999), SchemaStore()).refusal
    assert refusal is not None
    assert "action 999" in str(refusal.error())
    assert "use a Tidegate that knows" in str(refusal.error())
    assert f"ignore-txn-start-ts = [{job.job_start_ts}]" in str(refusal.error())
    assert concerned(refusal, TableFilter(["d1.*"]))
    assert not concerned(refusal, TableFilter(["d2.*"]))
    assert not concerned(refusal, TableFilter(["d1.other"]))


def test_a_flashback_of_the_cluster_concerns_everybody() -> None:
    store, job = job_of("basic", "create table t1")
    done = replace(job, action=FLASHBACK_CLUSTER, schema_id=0, schema_name="", table_name="", table_info=None)
    running = replace(done, state=JobState.RUNNING, schema_version=0)
    for early in (1, 2):
        assert store.apply(replace(running, schema_state=early)).refusal is None
    for job in (replace(running, schema_state=3), done):
        refusal = store.apply(job).refusal
        assert refusal is not None
        assert concerned(refusal, TableFilter(["nothing.here"]))
        assert "create it again" in refusal.error().fix


def test_a_recovered_schema_comes_back_with_its_tables() -> None:
    store, job = job_of("views_sequences", "flashback database")
    dropped = store.dropped_with(job.schema_id)
    assert dropped
    applied = store.apply(job)
    (event,) = applied.events
    assert (event.schema, event.table, event.action) == ("d_vs", "", 63)
    assert set(event.added_ids) == {i for t in dropped for i in t.physical_ids} == set(applied.changed_ids)
    back = [t.name for t in store.entries(job.finished_ts) if t.schema_id == job.schema_id]
    assert sorted(back) == sorted(t.name for t in dropped) == ["d_vs.t_back", "d_vs.t_old"]


def test_a_recovered_schema_with_unknown_tables_is_refused_with_advice() -> None:
    _, job = job_of("views_sequences", "flashback database")
    applied = SchemaStore().apply(job)
    assert applied.refusal is not None
    assert not applied.emitted
    assert concerned(applied.refusal, TableFilter(["d_vs.*"]))
    assert not concerned(applied.refusal, TableFilter(["d1.*"]))
    assert "create it again" in str(applied.refusal.error())


# --- partitions -----------------------------------------------------------------------------------------


def test_truncate_swaps_the_physical_ids() -> None:
    store, job = job_of("basic", "truncate table t1")
    (event,) = store.apply(job).events
    assert event.removed_ids == (event.before["id"],)  # type: ignore[index]
    assert event.added_ids == (event.after["id"],)  # type: ignore[index]


def test_exchange_partition_swaps_the_tables_of_two_ids() -> None:
    store, job = job_of("partitions", "alter table r exchange")
    plain, partition = job.table_id, job.args["partition_id"]
    applied = store.apply(job)
    (event,) = applied.events
    assert (event.added_ids, event.removed_ids) == ((), ())
    assert (event.old_table, event.table) == ("ex", "r")
    assert {plain, partition} <= applied.changed_ids
    now = job.finished_ts
    assert [store.table(i, now).table for i in (plain, partition)] == ["r", "ex"]  # type: ignore[union-attr]
    assert [store.table(i, now - 1).table for i in (plain, partition)] == ["ex", "r"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("said", "tail"), [(True, ""), (False, " WITHOUT VALIDATION"), (None, " WITHOUT VALIDATION")]
)
def test_an_exchange_says_when_tidb_has_not_looked_at_the_rows(said: bool | None, tail: str) -> None:
    store, job = job_of("partitions", "alter table r exchange")
    args = {key: value for key, value in job.args.items() if key != "with_validation"}
    listed = [args[key] for key in ("partition_id", "pt_schema_id", "pt_table_id", "partition_name")]
    if said is not None:
        args, listed = {**args, "with_validation": said}, [*listed, said]
    plain = "ALTER TABLE `d_part`.`r` EXCHANGE PARTITION `p12` WITH TABLE `d_part`.`ex`"
    for given in (args, listed):
        (emitted,) = ddl.transition(replace(job, args=given), store).emitted
        assert emitted.event.query == plain + tail


def test_an_exchange_with_a_table_outside_the_filter_stops_the_feed() -> None:
    store, job = job_of("partitions", "alter table r exchange")
    (emitted,) = store.apply(job).emitted
    for rules in (["*.r"], ["*.ex"]):
        with pytest.raises(InvalidInput, match="one that is not"):
            admit(emitted, TableFilter(rules))
    assert admit(emitted, TableFilter(["*.r", "*.ex"]))
    assert not admit(emitted, TableFilter(["*.other"]))


def steps_of(action: int) -> Iterator[tuple[SchemaStore, list[DdlJob]]]:
    """The store before each job of a kind, and all writes of that job."""
    store, jobs = SchemaStore(), written("partitions")
    for job in jobs:
        if job.is_done and job.action == action:
            yield SchemaStore.load(store.dump()), [one for one in jobs if one.id == job.id]
        if job.is_done:
            store.apply(job)


def test_a_truncated_partition_is_emitted_once_the_new_one_is_written() -> None:
    """Sessions write to the new partition before the job is done."""
    for store, jobs in steps_of(TRUNCATE_PARTITION):
        done = jobs[-1]
        old, new = jobs[0].args["old_partition_ids"], jobs[0].args["new_partition_ids"]
        emitted = [(job, store.apply(job)) for job in jobs]
        (step,) = [job for job, applied in emitted if applied.emitted]
        assert (step.schema_state, step.state) == (1, JobState.RUNNING)
        event = next(applied.events[0] for _, applied in emitted if applied.emitted)
        assert (list(event.removed_ids), list(event.added_ids)) == (old, new)
        assert event.finished_ts == step.finished_ts < done.finished_ts
        assert event.schema_version > 0
        assert [store.version_at(i, step.finished_ts) for i in old] == [None] * len(old)
        assert all(store.version_at(i, step.finished_ts) for i in new)
        assert store.current(done.table_id).info() == done.table_info  # type: ignore[union-attr]


def test_a_dropped_partition_is_emitted_when_its_range_moves_elsewhere() -> None:
    seen = 0
    for store, jobs in steps_of(DROP_PARTITION):
        emitted = [applied.events for job in jobs if (applied := store.apply(job)).emitted]
        ((event,),) = emitted
        assert event.finished_ts == next(j.finished_ts for j in jobs if j.schema_state == 1)
        assert list(event.removed_ids) == jobs[-1].args["old_physical_tbl_ids"]
        assert store.current(jobs[0].table_id).info() == jobs[-1].table_info  # type: ignore[union-attr]
        seen += 1
    assert seen == 2


def reorganisations(*cases: str) -> Iterator[tuple[SchemaStore, list[DdlJob]]]:
    """The store before each reorganisation of partitions in cases, and all writes of the job."""
    for case in cases:
        store, jobs = SchemaStore(), written(case)
        for job in jobs:
            if job.is_done and job.action in REORGANISATIONS:
                yield SchemaStore.load(store.dump()), [one for one in jobs if one.id == job.id]
            if job.is_done:
                store.apply(job)


def test_reorganised_partitions_are_emitted_once_only_new_ones_are_written() -> None:
    """As the job leaves them: the table's id, partitions, expression; once; the done job renews the rest."""
    kinds = set()
    for store, jobs in reorganisations(*OURS):
        done, old = jobs[-1], store.current(jobs[0].table_id)
        assert old is not None
        assert done.table_info is not None
        emitted = [(job, event) for job in jobs for event in store.apply(job).events]
        ((step, event),) = emitted
        assert (step.schema_state, step.state) == (5, JobState.RUNNING)
        assert event.finished_ts == step.finished_ts < done.finished_ts
        new = table_info.physical_ids(done.table_info)
        assert not set(old.physical_ids) & set(event.added_ids)
        assert set(event.added_ids) | set(old.physical_ids) - set(event.removed_ids) == set(new)
        assert event.after is not None
        assert table_info.physical_ids(event.after) == new, "in their order"
        assert (event.after["id"], _partitioning(event.after)) == (
            done.table_info["id"],
            _partitioning(done.table_info),
        )
        assert [store.version_at(i, step.finished_ts) for i in event.removed_ids] == [None] * len(
            event.removed_ids
        )
        after = store.current(done.table_info["id"])
        assert after is not None
        assert after.info() == done.table_info
        assert [store.version_at(i, done.finished_ts) for i in new] == [after] * len(new)
        kinds.add((done.action, old.is_partitioned))
    assert kinds == {(64, True), (71, False), (71, True), (72, True)}


def _partitioning(info: dict[str, Any]) -> tuple[Any, ...] | None:
    part = info["partition"]
    return part and tuple(part[name] for name in ("type", "expr", "columns", "enable", "definitions", "num"))


def test_a_feed_that_begins_at_any_step_of_a_reorganisation_emits_it_once() -> None:
    """It follows the partitions that the definition in the store has then, and never both."""
    seen = 0
    for case in ("partitions", "rand2"):
        meta = [r for r in lines(f"ddl/{case}", ours=True) if r["kind"] == "meta"]
        for _, jobs in reorganisations(case):
            for at, begun in enumerate(jobs[:-1]):
                pairs: dict[bytes, bytes] = {}
                for record in meta:
                    if record["commit_ts"] <= begun.finished_ts:
                        pairs[bytes.fromhex(record["key"])] = bytes.fromhex(record["value"] or "")
                store = SchemaStore.from_meta(sorted(pairs.items()), begun.finished_ts)
                emitted = [event for job in jobs[at + 1 :] for event in store.apply(job).events]
                assert len(emitted) == 1, (begun.query, begun.schema_state)
                info = jobs[-1].table_info
                assert info is not None
                held = store.current(info["id"])
                assert held is not None
                assert held.info() == info
                new = table_info.physical_ids(info)
                assert {i for t in store.tables_of(held.schema_id) for i in t.physical_ids} >= set(new)
                assert [store.version_at(i, jobs[-1].finished_ts) for i in new] == [held] * len(new)
                ended = set(emitted[0].removed_ids)
                assert not any(store.version_at(i, jobs[-1].finished_ts) for i in ended)
                seen += 1
    assert seen > 50


def test_a_feed_that_begins_between_step_and_end_emits_nothing() -> None:
    for store, jobs in steps_of(TRUNCATE_PARTITION):
        for job in jobs[:-1]:
            store.apply(job)
        again = SchemaStore.load(store.dump())
        assert not again.apply(jobs[-1]).emitted
        assert again.ignored["the event was sent when the change took effect"] == 1


def test_steps_of_version_one_have_their_arguments_in_a_list() -> None:
    for action, names in (
        (TRUNCATE_PARTITION, ("old_partition_ids", "new_partition_ids")),
        (DROP_PARTITION, ("part_names",)),
        *((kind, ("part_names", "part_info")) for kind in sorted(REORGANISATIONS)),
    ):
        store, jobs = next(steps_of(action))
        step = next(job for job in jobs if ddl_early.takes_effect(job))
        assert not step.is_done
        listed = replace(step, args=[step.args[name] for name in names])
        one, two = ddl.transition(step, store), ddl.transition(listed, store)
        assert [t.event for t in one.emitted] == [t.event for t in two.emitted]


@pytest.mark.parametrize("args", [None, [], {}, {"old_partition_ids": [1], "new_partition_ids": []}, 5])
def test_a_step_with_odd_arguments_is_undecodable(args: object) -> None:
    store, jobs = next(steps_of(TRUNCATE_PARTITION))
    step = next(job for job in jobs if job.schema_state == 1)
    with pytest.raises(Undecodable, match="truncate partition"):
        ddl.transition(replace(step, args=args), store)


def test_only_these_kinds_take_effect_before_they_are_done() -> None:
    columns = dict.fromkeys(ddl_early.COLUMN_CHANGES, 5)
    partitions = {DROP_PARTITION: 1, TRUNCATE_PARTITION: 1} | dict.fromkeys(REORGANISATIONS, 5)
    assert columns | partitions | {FLASHBACK_CLUSTER: 3} == EARLY
    for case in OURS:
        for job in written(case):
            early = job.state == JobState.RUNNING and job.schema_state == partitions.get(job.action)
            if job.action not in ddl_early.COLUMN_CHANGES:
                assert ddl_early.takes_effect(job) == (job.is_done or early)


def shape(info: dict[str, Any]) -> list[tuple[object, ...]]:
    """A TableInfo's public columns, in order."""
    found = [column for column in info["cols"] if column["state"] == 5]
    return [(c["id"], c["name"]["O"], c["offset"], c["type"]["Tp"], c["type"]["Flen"]) for c in found]


@pytest.mark.parametrize("case", ["columns", "multi_schema_change"])
def test_a_converted_column_is_emitted_when_sessions_write_it_alone(case: str) -> None:
    store, early = SchemaStore(), 0
    jobs = written(case)
    for job in jobs:
        emitted = store.apply(job).events
        if job.action not in ddl_early.COLUMN_CHANGES or (not emitted and not job.is_done):
            continue
        done = next(one for one in jobs if one.id == job.id and one.is_done)
        assert done.table_info is not None
        held = store.current(job.table_id)
        assert held is not None
        if job.is_done:
            assert held.info() == done.table_info
            assert len(emitted) == (0 if early == job.id else 1), "each change once"
        else:
            early = job.id
            assert emitted[0].finished_ts == job.finished_ts < done.finished_ts
            assert emitted[0].before is not None
            assert shape(emitted[0].before) != shape(held.info()) == shape(done.table_info)
            assert emitted[0].time_zone == "UTC"
    assert early


# --- jobs of many tables --------------------------------------------------------------------------------


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
    assert _events(replace(job, args=listed), store) == _events(job, store)
    store, job = job_of("partitions", "alter table r exchange")
    args = [job.args[key] for key in ("partition_id", "pt_schema_id", "pt_table_id", "partition_name")]
    assert _events(replace(job, args=[*args, True]), store) == _events(job, store)


def _events(job: DdlJob, store: SchemaStore) -> list[object]:
    change = ddl.transition(job, store)
    assert change.emitted
    return [emitted.event for emitted in change.emitted] + [table_id for table_id, _ in change.tables]


@pytest.mark.parametrize("args", [None, [], {}, {"rename_table_infos": [{}]}, 5])
def test_odd_arguments_are_undecodable(args: object) -> None:
    store, job = job_of("basic", "rename table t3r to t3a")
    with pytest.raises(Undecodable, match="rename tables"):
        ddl.transition(replace(job, args=args), store)


def test_a_malformed_job_stops_the_feeds_that_follow_its_table() -> None:
    store, job = job_of("basic", "create table t1")
    for odd in (None, {"id": 1}, {"id": 1, "name": {"O": "t1"}, "cols": "x"}):
        refusal = store.apply(replace(job, table_info=odd)).refusal
        assert refusal is not None
        assert concerned(refusal, TableFilter(["d1.*"]))
        assert not concerned(refusal, TableFilter(["d2.*"]))
    assert store.apply(job).emitted


def test_a_batch_of_new_tables_is_split_into_one_event_each() -> None:
    store, first = job_of("basic", "create table t1")
    second = {**first.table_info, "id": 999, "name": {"O": "t;2", "L": "t;2"}}  # type: ignore[dict-item]
    query = "CREATE TABLE t1 (a int); create table `t;2` (b int) comment ';'"
    batch = replace(first, action=60, table_infos=(first.table_info, second), query=query)
    events = store.apply(batch).events
    assert [(e.seq, e.action, e.table, e.query) for e in events] == [
        (0, 3, "t1", "CREATE TABLE t1 (a int);"),
        (1, 3, "t;2", "create table `t;2` (b int) comment ';'"),
    ]


def test_statements_are_split_outside_quotes_and_comments() -> None:
    assert ddl_events.split_queries('a \';\' ; b "\\";" /* ; */; `;`;') == [
        "a ';' ;",
        'b "\\";" /* ; */;',
        "`;`;",
    ]
    assert ddl_events.split_queries("a -- ;\n; b # ;\n; c --;") == ["a -- ;\n;", "b # ;\n;", "c --;"]


# --- admission ------------------------------------------------------------------------------------------


def emitted_by(case: str, text: str) -> EmittedDdl:
    store, job = job_of(case, text)
    return store.apply(job).emitted[0]


def test_a_table_renamed_into_the_filter_stops_the_feed() -> None:
    emitted = emitted_by("basic", "rename table t1 to t1r")
    with pytest.raises(InvalidInput, match="renamed into the filter"):
        admit(emitted, TableFilter(["*.t1r"]))
    assert admit(emitted, TableFilter(["*.t1"]))
    assert not admit(emitted, TableFilter(["*.t2"]))


def test_a_table_that_loses_its_handle_key_stops_the_feed() -> None:
    emitted = emitted_by("rand1", "alter table x_rand1_a.t2 drop primary key")
    with pytest.raises(InvalidInput, match="lost its handle key"):
        admit(emitted, TableFilter())
    assert not admit(emitted, TableFilter(["other.*"]))
    assert admit(emitted, TableFilter(), force_replicate=True)


def test_tables_without_a_key_are_sent_only_when_forced_or_dropped() -> None:
    emitted = emitted_by("basic", "create table t2 (a int, b int)")
    assert not admit(emitted, TableFilter())
    assert admit(emitted, TableFilter(), force_replicate=True)
    assert admit(emitted_by("basic", "drop table t2, t4a"), TableFilter())


# --- reading jobs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", ["bank", "narrow"])
def test_jobs_in_finds_the_jobs_of_a_change_log(log: str) -> None:
    columns = base_store(log).job_meta_columns()
    assert columns == {keys.DDL_JOB_TABLE_ID: 5, keys.DDL_HISTORY_TABLE_ID: 2}
    found = [
        (job.finished_ts, job.id, job.query, job.schema_version)
        for line in lines(f"changelog/{log}_schema", ours=True)
        if line["type"] == "txn"
        for job in jobs_in(entries(line), columns)
        if isinstance(job, DdlJob) and not job.from_history
    ]
    assert found == [
        (line["commit_ts"], line["job_id"], line["query"], line["schema_version"])
        for line in lines(f"changelog/{log}_schema", ours=True)
        if line["type"] == "ddl"
    ]


@pytest.mark.parametrize("case", OURS)
def test_new_tables_that_are_only_in_the_history_are_found_there(case: str) -> None:
    """TiDB 8.2 with fast table creation; every job is also recorded there, and then it changes nothing."""
    columns = SchemaStore().job_meta_columns()
    both, late, last = SchemaStore(), SchemaStore(), 0
    for record in lines(f"ddl/{case}", ours=True):
        if record["kind"] not in ("ddl_job_row", "ddl_history_row") or not record.get("value"):
            continue
        mutation = {"op": "put", "key": record["key"], "value": record["value"]}
        block = entries({**record, "mutations": [mutation]})
        for job in jobs_in(block, columns):
            assert isinstance(job, DdlJob)
            last = job.finished_ts if job.from_history else last
            applied = both.apply(job)
            assert not (job.from_history and applied.emitted)
            if job.from_history or job.action not in (3, 60):
                late.apply(job)
    assert [(t.id, t.name) for t in late.entries(last)] == [(t.id, t.name) for t in both.entries(last)] != []


def test_a_damaged_job_row_is_not_passed_over() -> None:
    columns = base_store("bank").job_meta_columns()
    mutation = {"op": "put", "key": keys.int_record(keys.DDL_JOB_TABLE_ID, 1).hex(), "value": "80ff"}
    (job,) = jobs_in(entries({"commit_ts": 2, "start_ts": 1, "mutations": [mutation]}), columns)
    assert isinstance(job, UnreadableJob)
    refusal = SchemaStore().apply(job).refusal
    assert refusal is not None
    assert concerned(refusal, TableFilter(["a.b"]))
    assert "create it again" in str(refusal.error())
    with pytest.raises(Undecodable, match="no column job_meta"):
        jobs_in(entries({"commit_ts": 2, "start_ts": 1, "mutations": [mutation]}), {})


def test_what_any_job_json_may_hold_never_escapes_as_another_error() -> None:
    """Every recorded job with each of its members replaced by an odd value."""
    for case in ("basic", "partitions", "views_sequences"):
        store = SchemaStore()
        for job, _ in finished(case, ours=True):
            for name in ("args", "table_info", "db_info", "table_infos"):
                for odd in ({}, {"id": 1}, {"id": 1, "name": {"O": "t"}}, {"id": 1, "cols": "x"}):
                    changed = replace(job, **{name: (odd,) if name == "table_infos" else odd})
                    with suppress(TidegateError):
                        ddl.transition(changed, store)
            store.apply(job)


def test_a_job_in_progress_of_any_other_kind_changes_nothing() -> None:
    store = SchemaStore()
    for job in written("columns"):
        before = orjson.dumps([t.valid_from for t in store.entries(job.finished_ts)])
        applied = store.apply(job)
        if not job.is_done and job.action not in ddl_early.COLUMN_CHANGES:
            assert applied == Applied(job.finished_ts)
            assert orjson.dumps([t.valid_from for t in store.entries(job.finished_ts)]) == before


def test_damaged_jobs_are_refused_or_taken_whatever_follows_them() -> None:
    """`make fuzz` tries 200,000."""
    found = job_fuzz.fuzz(seed=20261123, number=1500)
    assert min(found["taken"], found["refused"], found["stops who it concerns"], found["cannot be sent"]) > 0
    assert found.total() > 2500
