"""DDL jobs become schema transitions and DDL events.

`transition(job, catalog)` decides, without changing anything, what a job does to the catalogue and what
targets must be told; `ddl_rules.RULES` has a rule for every action of TiDB. Queries are those that TiCDC
chooses: the user's own, but drop table, rename tables and exchange partition rebuilt with full names
(docs/formats/ddl.md#the-jobs). Filters see them so, and `server.target_text` restores them for targets.
Called by `schema_store`.

Some kinds take effect before they are done. Once *drop partition* and *truncate partition* have reached the
state *delete only*, sessions write to the partitions as they will be, and neither can be rolled back any
more; the job may stay there for as long as global indexes take to be cleaned. Rows of that time would come
before the event that makes room for them, or be lost with partitions nobody follows yet. The kinds that copy
rows into new partitions (reorganize, partition by, remove partitioning) have that step at the state *public*:
until then every session writes to the old partitions, and from there on some write to the new ones only.
So the event's FinishedTS is that of the step, and the write that finishes the job tells nothing more. (TiCDC
waits for the end of the job and loses what was written to new partitions before.) And *flashback cluster*
must be refused before it takes rows and definitions back. Source: TiDB `pkg/ddl/partition.go`,
`pkg/table/tables/partition.go`, `pkg/ddl/cluster.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

from tidegate.errors import Fatal, Undecodable
from tidegate.model.ddl import WITHOUT_VALIDATION, DdlEvent
from tidegate.mounter import ddl_renames
from tidegate.mounter.ddl_partitions import (
    DROP_PARTITION,
    REORGANISATIONS,
    TRUNCATE_PARTITION,
    partitions_after,
)
from tidegate.mounter.ddl_renames import Name
from tidegate.mounter.ddl_rules import EARLY, RECREATE, RULES, Handling, Rule
from tidegate.mounter.table_version import Parsed, TableVersion
from tidegate.tidb import table_info
from tidegate.tidb.ddl_job import PUBLIC, DdlJob, JobState
from tidegate.tidb.table_filter import is_system_schema

CREATE_TABLE: Final = 3
MODIFY_COLUMN: Final = 12
RENAME_TABLE: Final = 14
CREATE_VIEW: Final = 21
EXCHANGE_PARTITION: Final = 42
MULTI_SCHEMA_CHANGE: Final = 61
COLUMN_CHANGES: Final = frozenset({MODIFY_COLUMN, MULTI_SCHEMA_CHANGE})
_EMPTYING: Final = frozenset({DROP_PARTITION, TRUNCATE_PARTITION})
KEY_FLAGS: Final = 2 | 4 | 8
"""Of a column type: part of the primary key, a unique or another index."""
EMITTED_BY: Final = "tidegate_told_by"
"""Member of a TableInfo that a job gave the table before it was done: the job's id."""

_NOT_AS_WRITTEN: Final = (LookupError, TypeError, ValueError, AttributeError, StopIteration, ArithmeticError)
"""What reading a job raises whose parts are not those that TiDB writes."""
_NO_ROWS: Final = "views and sequences hold no rows"


class Catalog(Protocol):
    """The catalogue as the jobs before this one have left it."""

    @property
    def cache(self) -> Parsed:
        """Where new versions count themselves."""
        ...

    def schema_name(self, schema_id: int) -> str | None:
        """The schema's name, None if there is none."""

    def current(self, table_id: int) -> TableVersion | None:
        """The newest version of a table or view by its logical id."""

    def tables_of(self, schema_id: int) -> list[TableVersion]:
        """The newest versions of all tables and views of a schema."""

    def dropped_with(self, schema_id: int) -> Sequence[TableVersion] | None:
        """What a dropped schema held in the end; None when that is not known."""


class TableChange(NamedTuple):
    """A logical table id and its new version, None where it ends."""

    table_id: int
    after: TableVersion | None


@dataclass(frozen=True, slots=True)
class EmittedDdl:
    """One event, and what decides whether a changefeed sends it (`ddl_admission`)."""

    event: DdlEvent
    before: TableVersion | None = None
    after: TableVersion | None = None
    partner: TableVersion | None = None
    """The plain table of an exchange, before it."""
    job_names: tuple[Name, Name] | None = None
    """Of a step of RENAME TABLES: the table's names before the whole job and after it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A job that changefeeds which it concerns cannot get past. Empty names concern every changefeed."""

    what: str
    where: str
    why: str
    fix: str
    schema: str
    table: str
    start_ts: int = 0
    """The job's: what `ignore-txn-start-ts` must name to get past it; 0 where it is not known."""

    def error(self) -> Fatal:
        """As the changefeed fails with it."""
        passing = f"; to pass over it, set ignore-txn-start-ts = [{self.start_ts}]" if self.start_ts else ""
        return Fatal(self.what, where=self.where, why=self.why, fix=self.fix + passing)


@dataclass(frozen=True, slots=True)
class Transition:
    """What a job does: schemas and tables that change, then what targets are told.

    `tables` are in the order to be applied. `ignored` says why nobody is told anything.
    """

    schemas: dict[int, str | None] = field(default_factory=dict)
    tables: list[TableChange] = field(default_factory=list)
    emitted: list[EmittedDdl] = field(default_factory=list)
    ignored: str = ""
    refusal: Refusal | None = None


def takes_effect(job: DdlJob) -> bool:
    """Whether this write of a job may change the catalogue: it is done, or far enough to count as done."""
    if job.is_done:
        return True
    if job.state != JobState.RUNNING:
        return False
    if job.action == MULTI_SCHEMA_CHANGE:
        parts = (job.multi or {}).get("sub_jobs") or ()
        return job.table_info is not None and any(
            part["type"] == MODIFY_COLUMN and part["schema_state"] == EARLY[job.action] for part in parts
        )
    return job.schema_state == EARLY.get(job.action)


def transition(job: DdlJob, catalog: Catalog) -> Transition:
    """What a job that takes effect does to the catalogue; Undecodable if it cannot be read."""
    rule = RULES.get(job.action)
    if rule is None:
        fix = "use a Tidegate that knows this TiDB version"
        return Transition(refusal=_refusal(job, f"action {job.action}", fix))
    schema = _schema_name(job, catalog, job.schema_id)
    if rule.handling is Handling.IGNORE:
        return Transition(ignored=f"{rule.name}: {rule.note}")
    if is_system_schema(schema):
        return Transition(ignored="system schema")
    if rule.handling is Handling.REFUSE:
        return Transition(refusal=_refusal(job, rule.name, rule.note))
    try:
        if not job.is_done:
            return _with_names(_early(job, catalog, schema))
        return _with_names(_HANDLERS[rule.handling](job, catalog, schema))
    except _NOT_AS_WRITTEN as error:
        raise _odd(job, rule, f"{type(error).__name__}: {error}") from None


def _with_names(found: Transition) -> Transition:
    """The same; raises TypeError for a name that is no text: filters and targets read them."""
    names = [name for name in found.schemas.values() if name is not None]
    for event in (emitted.event for emitted in found.emitted):
        names += [event.schema, event.table, event.old_schema, event.old_table, event.query]
    odd = [name for name in names if not isinstance(name, str)]
    if odd:
        raise TypeError(f"{odd[0]!r:.50} is no name")
    return found


def _odd(job: DdlJob, rule: Rule, why: str) -> Undecodable:
    return Undecodable(
        f"a job of kind {rule.name} is not as TiDB writes it",
        where=f"job {job.id}, finished at {job.finished_ts}",
        why=why,
    )


def _refusal(job: DdlJob, name: str, fix: str, schema: str = "") -> Refusal:
    return Refusal(
        f"a DDL job cannot be replicated: {name}",
        f"job {job.id}, {job.schema_name}.{job.table_name}, finished at {job.finished_ts}",
        job.query[:200],
        fix,
        schema or job.schema_name,
        job.table_name,
        job.job_start_ts,
    )


def unreadable(error: Undecodable, job: DdlJob | None = None) -> Refusal:
    """A job that is not as TiDB writes it; without `job` nobody knows whom it concerns."""
    named = (job.schema_name, job.table_name, job.job_start_ts) if job is not None else ("", "", 0)
    return Refusal(error.what, error.where, error.why, error.fix or RECREATE, *named)


def _schema_name(job: DdlJob, catalog: Catalog, schema_id: int) -> str:
    return catalog.schema_name(schema_id) or job.schema_name


def _version(
    job: DdlJob, catalog: Catalog, schema_id: int, schema: str, info: dict[str, Any]
) -> TableVersion:
    """A definition a job brings; what is no definition is found out now, not when rows come."""
    version = TableVersion.of(schema_id, schema, info, job.finished_ts, catalog.cache)
    if not version.is_view:
        version.parsed()
    return version


# --- schemas --------------------------------------------------------------------------------------------


def _create_schema(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    name = job.db_info["db_name"]["O"] if job.db_info else schema
    return Transition({job.schema_id: name}, emitted=[EmittedDdl(_schema_event(job, name))])


def _alter_schema(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    return Transition(emitted=[EmittedDdl(_schema_event(job, schema))])


def _drop_schema(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    tables = catalog.tables_of(job.schema_id)
    gone = _row_ids(tables)
    ended = [TableChange(table.id, None) for table in tables]
    return Transition({job.schema_id: None}, ended, [EmittedDdl(_schema_event(job, schema, removed=gone))])


def _recover_schema(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """The schema comes back under its old id with the tables it had, which the job does not name."""
    if job.db_info is None:
        raise Undecodable(
            "a DDL job lacks its schema's definition", where=f"job {job.id}", why=job.query[:200]
        )
    name = job.db_info["db_name"]["O"]
    tables = catalog.dropped_with(job.schema_id)
    if tables is None:
        return Transition(
            {job.schema_id: name},
            refusal=_refusal(job, "the tables of a recovered schema are not known", RECREATE, name),
        )
    back = [
        TableChange(table.id, _version(job, catalog, job.schema_id, name, table.info())) for table in tables
    ]
    event = _schema_event(job, name, added=_row_ids(tables))
    return Transition({job.schema_id: name}, back, [EmittedDdl(event)])


def _row_ids(tables: Sequence[TableVersion]) -> tuple[int, ...]:
    return tuple(sorted(i for table in tables if not table.is_view for i in table.physical_ids))


# --- tables ---------------------------------------------------------------------------------------------


def _drop_table(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    before = catalog.current(job.table_id)
    if before is None:
        return Transition(ignored="drop of a table that is not known")
    query = f"DROP TABLE {quoted(before.schema, before.table)}"
    event = _table_event(job, 0, query, before, None)
    return Transition(tables=[TableChange(before.id, None)], emitted=[EmittedDdl(event, before)])


def _view(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """Create, create or replace, drop: told as TiCDC does; no rows."""
    info = _info(job)
    replaced = [
        t for t in catalog.tables_of(job.schema_id) if t.is_view and t.table == table_info.name_of(info)
    ]
    ended = [TableChange(view.id, None) for view in replaced if view.id != info["id"]]
    if job.action == CREATE_VIEW:
        after = _version(job, catalog, job.schema_id, schema, info)
        emitted = EmittedDdl(_table_event(job, 0, job.query, None, after), None, after)
        return Transition(tables=[*ended, TableChange(after.id, after)], emitted=[emitted])
    before = catalog.current(job.table_id)
    query = f"DROP VIEW {quoted(schema, table_info.name_of(info))}"
    gone = before or _version(job, catalog, job.schema_id, schema, info)
    emitted = EmittedDdl(_table_event(job, 0, query, gone, None), gone)
    return Transition(tables=[*ended, TableChange(job.table_id, None)], emitted=[emitted])


def _replace(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    info = _info(job)
    renamed_view = bool(info.get("view")) and job.action == RENAME_TABLE
    if not table_info.is_base_table(info) and not renamed_view:
        return Transition(ignored=_NO_ROWS)
    before = catalog.current(job.table_id)
    if before is None and job.action in REORGANISATIONS:
        before = catalog.current(info["id"])  # under its new id since the step that told it
    done = _replaced(job, catalog, [(before, job.schema_id, schema, info, job.action, job.query)])
    if before is not None and _was_emitted(job, before, info):
        return Transition(tables=done.tables, ignored="the event was sent when the change took effect")
    return done


def _was_emitted(job: DdlJob, before: TableVersion, info: dict[str, Any]) -> bool:
    """Whether the job was told at a step before the one that finished it (`_early`)."""
    if before.info().get(EMITTED_BY) == job.id:
        return True
    # A catalogue read from the store after the step has the partitions without the mark.
    same = set(before.physical_ids) == set(table_info.physical_ids(info))
    return job.action in _EMPTYING and same


def _info(job: DdlJob) -> dict[str, Any]:
    if job.table_info is None:
        raise Undecodable(
            "a DDL job lacks its table's definition", where=f"job {job.id}", why=job.query[:200]
        )
    return job.table_info


_Change = tuple[TableVersion | None, int, str, dict[str, Any], int, str]
"""Before, schema id, schema, the new definition, action, query."""


def _replaced(job: DdlJob, catalog: Catalog, changes: list[_Change]) -> Transition:
    """Tables that got new definitions."""
    tables: list[TableChange] = []
    emitted: list[EmittedDdl] = []
    for seq, (before, schema_id, schema, info, action, query) in enumerate(changes):
        after = _version(job, catalog, schema_id, schema, info)
        if before is not None and before.id != after.id:
            tables.append(TableChange(before.id, None))
        tables.append(TableChange(after.id, after))
        emitted.append(EmittedDdl(_table_event(job, seq, query, before, after, action), before, after))
    return Transition(tables=tables, emitted=emitted)


def _create_tables(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    queries = split_queries(job.query)
    if len(queries) != len(job.table_infos):
        raise Undecodable(
            "the query of a batch of new tables cannot be split",
            where=f"job {job.id}",
            why=f"{len(queries)} statements for {len(job.table_infos)} tables",
        )
    changes: list[_Change] = [
        (catalog.current(info["id"]), job.schema_id, schema, info, CREATE_TABLE, query)
        for info, query in zip(job.table_infos, queries, strict=True)
    ]
    return _replaced(job, catalog, changes)


def _rename_tables(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """One event a step, in order; the catalogue gets what the last step leaves of each table."""
    known = {table.id: table for info in job.table_infos if (table := catalog.current(info["id"]))}
    latest: dict[int, TableVersion] = dict(known)
    emitted: list[EmittedDdl] = []
    steps = ddl_renames.steps(job, lambda i: known[i].full_name if i in known else None, catalog.schema_name)
    for step in steps:
        if step.info.get("sequence"):
            continue
        before = latest.get(step.table_id)
        after = _version(job, catalog, step.schema_id, step.new[0], step.info)
        query = f"RENAME TABLE {quoted(*step.old)} TO {quoted(*step.new)}"
        event = _table_event(job, len(emitted), query, before, after, RENAME_TABLE)
        if before is None:
            event = replace(event, old_schema=step.old[0], old_table=step.old[1])
        emitted.append(EmittedDdl(event, before, after))
        latest[step.table_id] = after
    if not emitted:
        return Transition(ignored=_NO_ROWS)
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
    """The tables, each once."""
    return list(dict.fromkeys(one.after.id for one in emitted if one.after is not None))


# --- partitions -----------------------------------------------------------------------------------------


def _exchange(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """The plain table (the job's) and a partition swap their ids; the job carries the partitioned table.

    As in TiCDC, the event has the plain table as it was on one side, the partitioned as it is on the other.
    """
    plain = catalog.current(job.table_id)
    if plain is None or job.table_info is None:
        raise Undecodable("exchange partition of unknown tables", where=f"job {job.id}", why=job.query[:200])
    partition_id, schema_id, partition, validated = _exchanged(job)
    partitioned = _schema_name(job, catalog, schema_id)
    before = catalog.current(job.table_info["id"])
    after = _version(job, catalog, schema_id, partitioned, job.table_info)
    moved = _version(job, catalog, job.schema_id, plain.schema, {**plain.info(), "id": partition_id})
    query = (
        f"ALTER TABLE {quoted(partitioned, after.table)} EXCHANGE PARTITION {quoted(partition)} "
        f"WITH TABLE {quoted(plain.schema, plain.table)}{'' if validated else WITHOUT_VALIDATION}"
    )
    tables = [TableChange(plain.id, None), TableChange(after.id, after), TableChange(moved.id, moved)]
    event = _table_event(job, 0, query, plain, after)
    return Transition(tables=tables, emitted=[EmittedDdl(event, before, after, plain)])


def _exchanged(job: DdlJob) -> tuple[int, int, str, bool]:
    """The partition's id, the partitioned table's schema id, the partition's name, and if rows were checked.

    TiDB leaves a false `with_validation` out.
    """
    args = job.args
    if isinstance(args, dict):
        validated = bool(args.get("with_validation"))
        return args["partition_id"], args["pt_schema_id"], args["partition_name"], validated
    return args[0], args[1], args[3], bool(args[4:5] and args[4])


def _early_columns(job: DdlJob, catalog: Catalog, before: TableVersion) -> Transition:
    """Sessions write a converted column under its new id only, some steps before the job is done."""
    info = before.info()
    after = job.table_info if job.action == MULTI_SCHEMA_CHANGE else _with_converted_column(job, info)
    known = {column["id"] for column in info["cols"]}
    names = {column["name"]["L"] for column in info["cols"]}
    new = [c for c in after["cols"] if c["id"] not in known and c["state"] == PUBLIC] if after else []
    converted = [column for column in new if column["name"]["L"] in names or job.action == MODIFY_COLUMN]
    if after is None or not converted:
        return Transition(ignored="no column is converted, or the event was sent before")
    after = {**after, EMITTED_BY: job.id}
    return _replaced(job, catalog, [(before, job.schema_id, before.schema, after, job.action, job.query)])


def _with_converted_column(job: DdlJob, info: dict[str, Any]) -> dict[str, Any] | None:
    """The table with the column that the job converts; its indexes are renewed when the job is done.

    None for a job that converts none, or has done it. Arguments of TiDB below 8.4 are not read: this step was
    their last.
    """
    changing = job.args.get("changing_column") if isinstance(job.args, dict) else None
    if changing is None or any(column["id"] == changing["id"] for column in info["cols"]):
        return None
    old = next(column for column in info["cols"] if column["id"] == job.args["old_column_id"])
    made = job.args["column"]
    flag = made["type"]["Flag"] | old["type"]["Flag"] & KEY_FLAGS
    entry = {**made, "id": changing["id"], "state": PUBLIC, "type": {**made["type"], "Flag": flag}}
    columns = [entry if column is old else column for column in info["cols"]]
    position = job.args.get("position") or {}
    if position.get("Tp"):
        columns.remove(entry)
        names = [column["name"]["L"] for column in columns]
        relative = position.get("RelativeColumn")
        columns.insert(names.index(relative["Name"]["L"]) + 1 if relative else 0, entry)
    columns = [{**column, "offset": at} for at, column in enumerate(columns)]
    at = {column["name"]["L"]: column["offset"] for column in columns}
    renamed = {old["name"]["L"]: made["name"]}
    indexes = [
        {**index, "idx_cols": [_moved(part, renamed, at) for part in index["idx_cols"]]}
        for index in info.get("index_info") or ()
    ]
    return {**info, "cols": columns, "index_info": indexes}


def _moved(part: dict[str, Any], renamed: dict[str, Any], at: dict[str, int]) -> dict[str, Any]:
    """An index's column under the name and offset that the table's column has now."""
    name = renamed.get(part["name"]["L"], part["name"])
    return {**part, "name": name, "offset": at[name["L"]]}


def _early(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """The step from which on sessions write rows, or to partitions, as the job will leave them."""
    before = catalog.current(job.table_id)
    if before is None:
        return Transition(ignored="an unknown table, or one whose event was sent before")
    info = before.info()
    if job.action in COLUMN_CHANGES:
        return _early_columns(job, catalog, before)
    if info.get(EMITTED_BY) == job.id:
        return Transition(ignored="the event was sent when the change took effect")
    after = partitions_after(info, job.action, job.args)
    if after is info:
        return Transition(ignored="the partitions have changed before")
    after = {**after, EMITTED_BY: job.id}
    return _replaced(job, catalog, [(before, job.schema_id, before.schema, after, job.action, job.query)])


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


# --- events ---------------------------------------------------------------------------------------------


def _schema_event(
    job: DdlJob, schema: str, *, added: tuple[int, ...] = (), removed: tuple[int, ...] = ()
) -> DdlEvent:
    return DdlEvent(
        job_id=job.id,
        seq=0,
        start_ts=job.job_start_ts,
        finished_ts=job.finished_ts,
        action=job.action,
        query=job.query,
        schema=schema,
        table="",
        old_schema=schema,
        old_table="",
        schema_version=_schema_version(job),
        before=None,
        after=None,
        added_ids=added,
        removed_ids=removed,
    )


def _table_event(
    job: DdlJob,
    seq: int,
    query: str,
    before: TableVersion | None,
    after: TableVersion | None,
    action: int | None = None,
) -> DdlEvent:
    new, old = after or before, before or after
    assert new is not None
    assert old is not None
    had = set(_row_ids([before])) if before else set()
    has = set(_row_ids([after])) if after else set()
    if job.action == EXCHANGE_PARTITION:
        had = has = set()  # both ids live on, in each other's table
    return DdlEvent(
        job_id=job.id,
        seq=seq,
        start_ts=job.job_start_ts,
        finished_ts=job.finished_ts,
        action=job.action if action is None else action,
        query=query,
        schema=new.schema,
        table=new.table,
        old_schema=old.schema,
        old_table=old.table,
        schema_version=_schema_version(job),
        before=before.info() if before else None,
        after=after.info() if after else None,
        added_ids=tuple(sorted(has - had)),
        removed_ids=tuple(sorted(had - has)),
        time_zone=job.time_zone,
    )


def _schema_version(job: DdlJob) -> int:
    """A job that is not done says its version elsewhere."""
    return job.schema_version or int(job.meta.get("last_schema_version") or 0)


def quoted(*names: str) -> str:
    """Names with backticks, those inside doubled.

    TiCDC does not double them: docs/formats/ddl.md#where-we-differ-from-ticdc.
    """
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def split_queries(text: str) -> list[str]:
    """Statements between semicolons outside quotes and comments, trimmed, each with its semicolon."""
    statements, start, at, quote = [], 0, 0, ""
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\" and quote in ("'", '"'):
                at += 1
            elif text.startswith(quote, at):
                at += len(quote) - 1
                quote = ""
        elif char in "'\"`":
            quote = char
        elif text.startswith("/*", at):
            quote = "*/"
        elif char == "#" or (text.startswith("--", at) and text[at + 2 : at + 3].isspace()):
            quote = "\n"
        elif char == ";":
            statements.append(text[start : at + 1].strip())
            start = at + 1
        at += 1
    tail = text[start:].strip()
    return [*statements, tail] if tail else statements
