"""DDL jobs become schema transitions and DDL events.

`transition(job, catalog)` decides, without changing anything, what a job does to the catalogue and which
events targets get; `ddl_rules.RULES` has a rule for every action of TiDB. Queries are those that TiCDC
chooses: the user's own text, except for drop table, rename tables and exchange partition, which are rebuilt
with full names (docs/formats/ddl.md#the-jobs). Filters read these texts; `server.catalogue.target_text`
restores the user's for targets. Called by `schema_store`.

Some kinds take effect before they are done (`ddl_early`). And *flashback cluster* must be refused before it
takes rows and definitions back. Source: TiDB `pkg/ddl/cluster.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tidegate.errors import Undecodable
from tidegate.model.ddl import WITHOUT_VALIDATION
from tidegate.mounter import ddl_renames
from tidegate.mounter.ddl_early import early, was_emitted
from tidegate.mounter.ddl_events import (
    Change,
    quoted,
    replaced,
    row_ids,
    schema_event,
    split_queries,
    table_event,
    version_of,
)
from tidegate.mounter.ddl_partitions import REORGANISATIONS
from tidegate.mounter.ddl_renames import Name
from tidegate.mounter.ddl_rules import RECREATE, RULES, Handling, Rule
from tidegate.mounter.ddl_transition import Catalog, EmittedDdl, TableChange, Transition, refusal_of
from tidegate.mounter.table_version import TableVersion
from tidegate.tidb import table_info
from tidegate.tidb.ddl_job import DdlJob
from tidegate.tidb.table_filter import is_system_schema

CREATE_TABLE: Final = 3
RENAME_TABLE: Final = 14
CREATE_VIEW: Final = 21

_NOT_AS_WRITTEN: Final = (LookupError, TypeError, ValueError, AttributeError, StopIteration, ArithmeticError)
"""Exceptions of reading a job whose parts are not as TiDB writes them."""
_NO_ROWS: Final = "views and sequences hold no rows"


def transition(job: DdlJob, catalog: Catalog) -> Transition:
    """Return the effect of a job on the catalogue. Raises Undecodable if it cannot be read."""
    rule = RULES.get(job.action)
    if rule is None:
        fix = "use a Tidegate that knows this TiDB version"
        return Transition(refusal=refusal_of(job, f"action {job.action}", fix))
    schema = _schema_name(job, catalog, job.schema_id)
    if rule.handling is Handling.IGNORE:
        return Transition(ignored=f"{rule.name}: {rule.note}")
    # Before refusals, because nobody replicates a system schema.
    if is_system_schema(schema):
        return Transition(ignored="system schema")
    if rule.handling is Handling.REFUSE:
        return Transition(refusal=refusal_of(job, rule.name, rule.note))
    try:
        if not job.is_done:
            return _with_names(early(job, catalog, schema))
        return _with_names(_HANDLERS[rule.handling](job, catalog, schema))
    except _NOT_AS_WRITTEN as error:
        raise _unexpected(job, rule, f"{type(error).__name__}: {error}") from None


def _with_names(found: Transition) -> Transition:
    """The same transition. Raises TypeError for a name that is no text: filters and targets read names."""
    names = [name for name in found.schemas.values() if name is not None]
    for event in (emitted.event for emitted in found.emitted):
        names += [event.schema, event.table, event.old_schema, event.old_table, event.query]
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"{wrong[0]!r:.50} is no name")
    return found


def _unexpected(job: DdlJob, rule: Rule, why: str) -> Undecodable:
    return Undecodable(
        f"a job of kind {rule.name} is not as TiDB writes it",
        where=f"job {job.id}, finished at {job.finished_ts}",
        why=why,
    )


def _schema_name(job: DdlJob, catalog: Catalog, schema_id: int) -> str:
    return catalog.schema_name(schema_id) or job.schema_name


# --- schemas --------------------------------------------------------------------------------------------


def _create_schema(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    name = job.db_info["db_name"]["O"] if job.db_info else schema
    return Transition({job.schema_id: name}, emitted=[EmittedDdl(schema_event(job, name))])


def _alter_schema(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    return Transition(emitted=[EmittedDdl(schema_event(job, schema))])


def _drop_schema(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    tables = catalog.tables_of(job.schema_id)
    gone = row_ids(tables)
    ended = [TableChange(table.id, None) for table in tables]
    return Transition({job.schema_id: None}, ended, [EmittedDdl(schema_event(job, schema, removed=gone))])


def _recover_schema(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """The schema comes back under its old id with its old tables, which the job does not name."""
    if job.db_info is None:
        raise Undecodable(
            "a DDL job lacks its schema's definition", where=f"job {job.id}", why=job.query[:200]
        )
    name = job.db_info["db_name"]["O"]
    tables = catalog.dropped_with(job.schema_id)
    # The schema gets its name back in any case: changefeeds that do not follow it continue, and later jobs
    # are in it.
    if tables is None:
        return Transition(
            {job.schema_id: name},
            refusal=refusal_of(job, "the tables of a recovered schema are not known", RECREATE, name),
        )
    back = [
        TableChange(table.id, version_of(job, catalog, job.schema_id, name, table.info())) for table in tables
    ]
    event = schema_event(job, name, added=row_ids(tables))
    return Transition({job.schema_id: name}, back, [EmittedDdl(event)])


# --- tables ---------------------------------------------------------------------------------------------


def _drop_table(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    before = catalog.current(job.table_id)
    if before is None:
        return Transition(ignored="drop of a table that is not known")
    query = f"DROP TABLE {quoted(before.schema, before.table)}"
    event = table_event(job, 0, query, before, None)
    return Transition(tables=[TableChange(before.id, None)], emitted=[EmittedDdl(event, before)])


def _view(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """Create, replace or drop a view: the event is TiCDC's; views have no rows."""
    info = _info(job)
    # OR REPLACE gives the view another id, and the job does not name the one that it replaces.
    replaced = [
        t for t in catalog.tables_of(job.schema_id) if t.is_view and t.table == table_info.name_of(info)
    ]
    ended = [TableChange(view.id, None) for view in replaced if view.id != info["id"]]
    if job.action == CREATE_VIEW:
        after = version_of(job, catalog, job.schema_id, schema, info)
        emitted = EmittedDdl(table_event(job, 0, job.query, None, after), None, after)
        return Transition(tables=[*ended, TableChange(after.id, after)], emitted=[emitted])
    before = catalog.current(job.table_id)
    query = f"DROP VIEW {quoted(schema, table_info.name_of(info))}"
    gone = before or version_of(job, catalog, job.schema_id, schema, info)
    emitted = EmittedDdl(table_event(job, 0, query, gone, None), gone)
    return Transition(tables=[*ended, TableChange(job.table_id, None)], emitted=[emitted])


def _replace(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    info = _info(job)
    renamed_view = bool(info.get("view")) and job.action == RENAME_TABLE
    if not table_info.is_base_table(info) and not renamed_view:
        return Transition(ignored=_NO_ROWS)
    before = catalog.current(job.table_id)
    if before is None and job.action in REORGANISATIONS:
        before = catalog.current(info["id"])  # it has its new id since the step that emitted the event
    # Applied even if the event was sent at an earlier step, which did not know the indexes yet.
    done = replaced(job, catalog, [(before, job.schema_id, schema, info, job.action, job.query)])
    if before is not None and was_emitted(job, before, info):
        return Transition(tables=done.tables, ignored="the event was sent when the change took effect")
    return done


def _info(job: DdlJob) -> dict[str, Any]:
    if job.table_info is None:
        raise Undecodable(
            "a DDL job lacks its table's definition", where=f"job {job.id}", why=job.query[:200]
        )
    return job.table_info


def _create_tables(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    queries = split_queries(job.query)
    if len(queries) != len(job.table_infos):
        raise Undecodable(
            "the query of a batch of new tables cannot be split",
            where=f"job {job.id}",
            why=f"{len(queries)} statements for {len(job.table_infos)} tables",
        )
    changes: list[Change] = [
        (catalog.current(info["id"]), job.schema_id, schema, info, CREATE_TABLE, query)
        for info, query in zip(job.table_infos, queries, strict=True)
    ]
    return replaced(job, catalog, changes)


def _rename_tables(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """One event for each rename, in order; the catalogue gets each table as the last rename leaves it."""
    known = {table.id: table for info in job.table_infos if (table := catalog.current(info["id"]))}
    latest: dict[int, TableVersion] = dict(known)
    emitted: list[EmittedDdl] = []
    steps = ddl_renames.steps(job, lambda i: known[i].full_name if i in known else None, catalog.schema_name)
    for step in steps:
        if step.info.get("sequence"):
            continue
        before = latest.get(step.table_id)
        after = version_of(job, catalog, step.schema_id, step.new[0], step.info)
        query = f"RENAME TABLE {quoted(*step.old)} TO {quoted(*step.new)}"
        event = table_event(job, len(emitted), query, before, after, RENAME_TABLE)
        if before is None:
            event = replace(event, old_schema=step.old[0], old_table=step.old[1])
        emitted.append(EmittedDdl(event, before, after))
        latest[step.table_id] = after
    if not emitted:
        return Transition(ignored=_NO_ROWS)
    # Only now is the last name of each table known. A filter judges a step by the names before and after the
    # job.
    emitted = [replace(one, job_names=_job_names(one, known, latest)) for one in emitted]
    return Transition(tables=[TableChange(i, latest[i]) for i in _ids(emitted)], emitted=emitted)


def _job_names(
    emitted: EmittedDdl, known: Mapping[int, TableVersion], latest: Mapping[int, TableVersion]
) -> tuple[Name, Name]:
    assert emitted.after is not None
    first = known.get(emitted.after.id)
    old = first.full_name if first else (emitted.event.old_schema, emitted.event.old_table)
    return old, latest[emitted.after.id].full_name


def _ids(emitted: Sequence[EmittedDdl]) -> list[int]:
    """The ids of the tables, each once."""
    return list(dict.fromkeys(one.after.id for one in emitted if one.after is not None))


# --- partitions -----------------------------------------------------------------------------------------


def _exchange(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """The plain table (the job's) and a partition swap their ids; the job carries the partitioned table.

    As in TiCDC, the old side of the event is the plain table before it, and the new side the partitioned
    table after it.
    """
    plain = catalog.current(job.table_id)
    if plain is None or job.table_info is None:
        raise Undecodable("exchange partition of unknown tables", where=f"job {job.id}", why=job.query[:200])
    partition_id, schema_id, partition, validated = _exchanged(job)
    partitioned = _schema_name(job, catalog, schema_id)
    before = catalog.current(job.table_info["id"])
    after = version_of(job, catalog, schema_id, partitioned, job.table_info)
    moved = version_of(job, catalog, job.schema_id, plain.schema, {**plain.info(), "id": partition_id})
    query = (
        f"ALTER TABLE {quoted(partitioned, after.table)} EXCHANGE PARTITION {quoted(partition)} "
        f"WITH TABLE {quoted(plain.schema, plain.table)}{'' if validated else WITHOUT_VALIDATION}"
    )
    # In this order: the plain table ends first, because its id then belongs to the partitioned table.
    tables = [TableChange(plain.id, None), TableChange(after.id, after), TableChange(moved.id, moved)]
    event = table_event(job, 0, query, plain, after)
    return Transition(tables=tables, emitted=[EmittedDdl(event, before, after, plain)])


def _exchanged(job: DdlJob) -> tuple[int, int, str, bool]:
    """The partition's id, the partitioned table's schema id, the partition's name, whether rows were checked.

    TiDB omits `with_validation` if it is false.
    """
    args = job.args
    if isinstance(args, dict):
        validated = bool(args.get("with_validation"))
        return args["partition_id"], args["pt_schema_id"], args["partition_name"], validated
    return args[0], args[1], args[3], bool(args[4:5] and args[4])


_HANDLERS: Final[dict[Handling, Callable[[DdlJob, Catalog, str], Transition]]] = {
    Handling.CREATE_SCHEMA: _create_schema,
    Handling.DROP_SCHEMA: _drop_schema,
    Handling.ALTER_SCHEMA: _alter_schema,
    Handling.RECOVER_SCHEMA: _recover_schema,
    Handling.CREATE_TABLES: _create_tables,
    Handling.DROP_TABLE: _drop_table,
    Handling.REPLACE: _replace,
    Handling.RENAME_TABLES: _rename_tables,
    Handling.EXCHANGE: _exchange,
    Handling.VIEW: _view,
}
