"""DDL jobs become schema transitions and DDL events.

`transition(job, catalog)` decides, without changing anything, what a finished job does to the catalogue and
what targets must be told. Every action of TiDB has a rule in `RULES`: handled, ignored with a reason, or
refused with what to do. Queries travel as TiCDC sends them: as the user wrote them, but drop table, rename
tables and exchange partition rebuilt with full names (facts 6.7). Called by `schema_store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from tidegate.errors import Fatal, InvalidInput, Undecodable
from tidegate.model.block import PUT
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import TableSchema
from tidegate.mounter.filter import TableFilter, is_system_schema
from tidegate.tidb import ddl_job, keys, row, table_info
from tidegate.tidb.datum import Datum
from tidegate.tidb.ddl_job import DdlJob

JOB_META: Final = "job_meta"

RENAME_TABLE: Final = 14
CREATE_TABLE: Final = 3


class Handling(StrEnum):
    """What a kind of job does to the catalogue."""

    CREATE_SCHEMA = "create schema"
    DROP_SCHEMA = "drop schema"
    ALTER_SCHEMA = "alter schema"
    CREATE_TABLES = "create tables"
    DROP_TABLE = "drop table"
    REPLACE = "replace"
    """The job carries the table's new definition: create, alter, rename, truncate, recover, partitions."""
    RENAME_TABLES = "rename tables"
    EXCHANGE = "exchange partition"
    IGNORE = "ignore"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Rule:
    """How one action is handled; `note` is the reason (ignored) or what to do (refused)."""

    name: str
    handling: Handling
    note: str = ""


_VIEW: Final = "views hold no rows"
_SEQUENCE: Final = "sequences hold no rows"
_PLACEMENT: Final = "placement concerns the upstream only"
_UPSTREAM: Final = "it concerns the upstream only"
_CHECK: Final = "the upstream has enforced the constraint already"
_RECREATE: Final = "remove the changefeed and create it again with a start-ts after this job"

RULES: Final[dict[int, Rule]] = {
    1: Rule("create schema", Handling.CREATE_SCHEMA),
    2: Rule("drop schema", Handling.DROP_SCHEMA),
    3: Rule("create table", Handling.REPLACE),
    4: Rule("drop table", Handling.DROP_TABLE),
    5: Rule("add column", Handling.REPLACE),
    6: Rule("drop column", Handling.REPLACE),
    7: Rule("add index", Handling.REPLACE),
    8: Rule("drop index", Handling.REPLACE),
    9: Rule("add foreign key", Handling.IGNORE, _CHECK),
    10: Rule("drop foreign key", Handling.IGNORE, _CHECK),
    11: Rule("truncate table", Handling.REPLACE),
    12: Rule("modify column", Handling.REPLACE),
    13: Rule("rebase auto_increment id", Handling.REPLACE),
    14: Rule("rename table", Handling.REPLACE),
    15: Rule("set default value", Handling.REPLACE),
    16: Rule("shard row id", Handling.IGNORE, _UPSTREAM),
    17: Rule("modify table comment", Handling.REPLACE),
    18: Rule("rename index", Handling.REPLACE),
    19: Rule("add partition", Handling.REPLACE),
    20: Rule("drop partition", Handling.REPLACE),
    21: Rule("create view", Handling.IGNORE, _VIEW),
    22: Rule("modify table charset and collate", Handling.REPLACE),
    23: Rule("truncate partition", Handling.REPLACE),
    24: Rule("drop view", Handling.IGNORE, _VIEW),
    25: Rule("recover table", Handling.REPLACE),
    26: Rule("modify schema charset and collate", Handling.ALTER_SCHEMA),
    27: Rule("lock table", Handling.IGNORE, _UPSTREAM),
    28: Rule("unlock table", Handling.IGNORE, _UPSTREAM),
    29: Rule("repair table", Handling.REFUSE, _RECREATE),
    30: Rule("set TiFlash replica", Handling.IGNORE, _UPSTREAM),
    31: Rule("update TiFlash replica status", Handling.IGNORE, _UPSTREAM),
    32: Rule("add primary key", Handling.REPLACE),
    33: Rule("drop primary key", Handling.REPLACE),
    34: Rule("create sequence", Handling.IGNORE, _SEQUENCE),
    35: Rule("alter sequence", Handling.IGNORE, _SEQUENCE),
    36: Rule("drop sequence", Handling.IGNORE, _SEQUENCE),
    37: Rule("add columns", Handling.REPLACE),
    38: Rule("drop columns", Handling.REPLACE),
    39: Rule("modify auto id cache", Handling.IGNORE, _UPSTREAM),
    40: Rule("rebase auto_random id", Handling.IGNORE, _UPSTREAM),
    41: Rule("alter index visibility", Handling.REPLACE),
    42: Rule("exchange partition", Handling.EXCHANGE),
    43: Rule("add check constraint", Handling.IGNORE, _CHECK),
    44: Rule("drop check constraint", Handling.IGNORE, _CHECK),
    45: Rule("alter check constraint", Handling.IGNORE, _CHECK),
    46: Rule("a job kind that TiDB has removed", Handling.IGNORE, _UPSTREAM),
    47: Rule("rename tables", Handling.RENAME_TABLES),
    48: Rule("drop indexes", Handling.REPLACE),
    49: Rule("alter table attributes", Handling.IGNORE, _PLACEMENT),
    50: Rule("alter partition attributes", Handling.IGNORE, _PLACEMENT),
    51: Rule("create placement policy", Handling.IGNORE, _PLACEMENT),
    52: Rule("alter placement policy", Handling.IGNORE, _PLACEMENT),
    53: Rule("drop placement policy", Handling.IGNORE, _PLACEMENT),
    54: Rule("alter partition placement", Handling.IGNORE, _PLACEMENT),
    55: Rule("modify schema default placement", Handling.IGNORE, _PLACEMENT),
    56: Rule("alter table placement", Handling.IGNORE, _PLACEMENT),
    57: Rule("cache table", Handling.IGNORE, _UPSTREAM),
    58: Rule("alter statistics options", Handling.IGNORE, _UPSTREAM),
    59: Rule("nocache table", Handling.IGNORE, _UPSTREAM),
    60: Rule("create tables", Handling.CREATE_TABLES),
    61: Rule("multi-schema change", Handling.REPLACE),
    62: Rule("flashback cluster", Handling.REFUSE, _RECREATE),
    63: Rule("recover schema", Handling.REFUSE, _RECREATE),
    64: Rule("reorganize partition", Handling.REPLACE),
    65: Rule("alter TTL", Handling.REPLACE),
    67: Rule("remove TTL", Handling.REPLACE),
    68: Rule("create resource group", Handling.IGNORE, _UPSTREAM),
    69: Rule("alter resource group", Handling.IGNORE, _UPSTREAM),
    70: Rule("drop resource group", Handling.IGNORE, _UPSTREAM),
    71: Rule("alter table partition by", Handling.REPLACE),
    72: Rule("remove partitioning", Handling.REPLACE),
    73: Rule("add columnar index", Handling.IGNORE, _UPSTREAM),
    74: Rule("modify engine attribute", Handling.IGNORE, _UPSTREAM),
    75: Rule("alter table mode", Handling.IGNORE, _UPSTREAM),
    76: Rule("refresh meta", Handling.IGNORE, _UPSTREAM),
    77: Rule("modify schema read only", Handling.IGNORE, _UPSTREAM),
}
"""TiDB's actions (facts 0.9); an action that is not here is refused."""


class Catalog(Protocol):
    """The catalogue as the jobs before this one have left it."""

    def schema_name(self, schema_id: int) -> str | None:
        """The schema's name, None if there is none."""

    def current(self, table_id: int) -> TableSchema | None:
        """The newest version of a table by its logical id."""

    def tables_of(self, schema_id: int) -> list[TableSchema]:
        """The newest versions of all tables of a schema."""


class Definition(NamedTuple):
    """A table as a job leaves it."""

    schema_id: int
    schema: str
    info: dict[str, Any]


TableChange = tuple[int, Definition | None]
"""A logical table id, and its new definition or None where it ends."""

Sides = tuple[TableSchema | None, TableSchema | None]
"""A table before and after."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What a job does: schemas and tables that change, then what targets are told.

    `tables` are in the order to be applied. `ignored` says why there are no events.
    """

    schemas: dict[int, str | None] = field(default_factory=dict)
    tables: list[TableChange] = field(default_factory=list)
    events: list[DdlEvent] = field(default_factory=list)
    ignored: str = ""


def transition(job: DdlJob, catalog: Catalog) -> Transition:
    """What a finished job does to the catalogue; Fatal if it is refused, Undecodable if it cannot be read."""
    rule = RULES.get(job.action)
    if rule is None:
        raise _refused(job, f"action {job.action}", "use a Tidegate that knows this TiDB version")
    schema = _schema_name(job, catalog, job.schema_id)
    if rule.handling is Handling.IGNORE:
        return Transition(ignored=f"{rule.name}: {rule.note}")
    if rule.handling is Handling.REFUSE:
        raise _refused(job, rule.name, rule.note)
    if is_system_schema(schema):
        return Transition(ignored="system schema")
    try:
        return _HANDLERS[rule.handling](job, catalog, schema)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Undecodable(
            f"a job of kind {rule.name} is not as TiDB writes it",
            where=f"job {job.id}, finished at {job.finished_ts}",
            why=f"{type(error).__name__}: {error}",
        ) from None


def _refused(job: DdlJob, name: str, fix: str) -> Fatal:
    return Fatal(
        f"a DDL job cannot be replicated: {name}",
        where=f"job {job.id}, {job.schema_name}.{job.table_name}, finished at {job.finished_ts}",
        why=job.query[:200],
        fix=fix,
    )


def _schema_name(job: DdlJob, catalog: Catalog, schema_id: int) -> str:
    return catalog.schema_name(schema_id) or job.schema_name


def _create_schema(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    name = job.db_info["db_name"]["O"] if job.db_info else schema
    return Transition({job.schema_id: name}, [], [_event(job, 0, job.query, name)])


def _alter_schema(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    return Transition(events=[_event(job, 0, job.query, schema)])


def _drop_schema(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    tables = catalog.tables_of(job.schema_id)
    gone = tuple(sorted(physical for table in tables for physical in table.physical_ids))
    event = _event(job, 0, job.query, schema, removed=gone)
    return Transition({job.schema_id: None}, [(table.id, None) for table in tables], [event])


def _drop_table(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """As TiCDC does, a drop is told even of a table without handle key: targets may not know the table."""
    before = catalog.current(job.table_id)
    if before is None:
        return Transition(ignored="drop of a table that is not known")
    query = f"DROP TABLE {_quoted(before.schema, before.table)}"
    return Transition(tables=[(before.id, None)], events=[_table_event(job, 0, query, before, None)])


def _replace(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    if job.table_info is None:
        raise Undecodable(
            "a DDL job lacks its table's definition", where=f"job {job.id}", why=job.query[:200]
        )
    if not table_info.is_base_table(job.table_info):
        return Transition(ignored="views and sequences hold no rows")
    after = Definition(job.schema_id, schema, job.table_info)
    return _replaced(job, [(catalog.current(job.table_id), after, job.action, job.query)])


def _replaced(job: DdlJob, changes: list[tuple[TableSchema | None, Definition, int, str]]) -> Transition:
    """Tables that got new definitions: (before, after, action, query) each."""
    tables: list[TableChange] = []
    events: list[DdlEvent] = []
    sides: list[Sides] = []
    for seq, (before, definition, action, query) in enumerate(changes):
        after = table_info.table_schema(definition.schema, definition.info, job.finished_ts)
        if before is not None and before.id != after.id:
            tables.append((before.id, None))
        tables.append((after.id, definition))
        events.append(_table_event(job, seq, query, before, after, action))
        sides.append((before, after))
    return _with_events(tables, events, sides)


def _create_tables(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    queries = split_queries(job.query)
    if len(queries) != len(job.table_infos):
        raise Undecodable(
            "the query of a batch of new tables cannot be split",
            where=f"job {job.id}",
            why=f"{len(queries)} statements for {len(job.table_infos)} tables",
        )
    return _replaced(
        job,
        [
            (catalog.current(info["id"]), Definition(job.schema_id, schema, info), CREATE_TABLE, query)
            for info, query in zip(job.table_infos, queries, strict=True)
        ],
    )


def _rename_tables(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    changes = []
    for table_id, schema_id, info in _renames(job):
        before = catalog.current(table_id)
        new_schema = _schema_name(job, catalog, schema_id)
        old = (before.schema, before.table) if before else ("", "")
        query = f"RENAME TABLE {_quoted(*old)} TO {_quoted(new_schema, table_info.name_of(info))}"
        changes.append((before, Definition(schema_id, new_schema, info), RENAME_TABLE, query))
    return _replaced(job, changes)


def _renames(job: DdlJob) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(table id, new schema id, new TableInfo) of a rename-tables job of either version."""
    if isinstance(job.args, dict):
        entries = [(item["table_id"], item["new_schema_id"]) for item in job.args["rename_table_infos"]]
    else:
        entries = list(zip(job.args[3], job.args[1], strict=True))
    for (table_id, schema_id), info in zip(entries, job.table_infos, strict=True):
        yield table_id, schema_id, info


def _exchange(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """The plain table (the job's) and a partition swap their ids; the job carries the partitioned table."""
    plain = catalog.current(job.table_id)
    if plain is None or job.table_info is None:
        raise Undecodable("exchange partition of unknown tables", where=f"job {job.id}", why=job.query[:200])
    partition_id, schema_id, partition = _exchanged(job)
    partitioned = _schema_name(job, catalog, schema_id)
    before = catalog.current(job.table_info["id"])
    after = table_info.table_schema(partitioned, job.table_info, job.finished_ts)
    query = (
        f"ALTER TABLE {_quoted(partitioned, after.table)} EXCHANGE PARTITION {_quoted(partition)} "
        f"WITH TABLE {_quoted(plain.schema, plain.table)}"
    )
    return _with_events(
        [
            (plain.id, None),
            (after.id, Definition(schema_id, partitioned, job.table_info)),
            (partition_id, Definition(job.schema_id, plain.schema, {**plain.info, "id": partition_id})),
        ],
        [_table_event(job, 0, query, before, after)],
        [(before, after)],
    )


def _exchanged(job: DdlJob) -> tuple[int, int, str]:
    """The partition's id, the partitioned table's schema id, and the partition's name."""
    if isinstance(job.args, dict):
        return job.args["partition_id"], job.args["pt_schema_id"], job.args["partition_name"]
    return job.args[0], job.args[1], job.args[3]


_HANDLERS: Final[dict[Handling, Callable[[DdlJob, Catalog, str], Transition]]] = {
    Handling.CREATE_SCHEMA: _create_schema,
    Handling.DROP_SCHEMA: _drop_schema,
    Handling.ALTER_SCHEMA: _alter_schema,
    Handling.CREATE_TABLES: _create_tables,
    Handling.DROP_TABLE: _drop_table,
    Handling.REPLACE: _replace,
    Handling.RENAME_TABLES: _rename_tables,
    Handling.EXCHANGE: _exchange,
}


def _with_events(
    tables: list[TableChange],
    events: list[DdlEvent],
    sides: list[Sides],
) -> Transition:
    """Targets hear only of tables that have a handle key, before or after.

    TiCDC judges a job of many renames by its last table alone; each table counts here.
    """
    kept = [
        event
        for event, pair in zip(events, sides, strict=True)
        if any(side is not None and side.eligible for side in pair)
    ]
    return Transition(tables=tables, events=kept, ignored="" if kept else "the table has no handle key")


def _event(job: DdlJob, seq: int, query: str, schema: str, removed: tuple[int, ...] = ()) -> DdlEvent:
    """An event about a schema."""
    return DdlEvent(
        job_id=job.id,
        seq=seq,
        start_ts=job.job_start_ts,
        finished_ts=job.finished_ts,
        action=job.action,
        query=query,
        schema=schema,
        table="",
        old_schema=schema,
        old_table="",
        schema_version=job.schema_version,
        before=None,
        after=None,
        added_ids=(),
        removed_ids=removed,
    )


def _table_event(
    job: DdlJob,
    seq: int,
    query: str,
    before: TableSchema | None,
    after: TableSchema | None,
    action: int | None = None,
) -> DdlEvent:
    new, old = after or before, before or after
    assert new is not None
    assert old is not None
    had = set(before.physical_ids) if before else set()
    has = set(after.physical_ids) if after else set()
    if job.action in _SAME_DATA:
        had = has = set()
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
        schema_version=job.schema_version,
        before=before.info if before else None,
        after=after.info if after else None,
        added_ids=tuple(sorted(has - had)),
        removed_ids=tuple(sorted(had - has)),
    )


_SAME_DATA: Final = frozenset({42})
"""Exchange partition: both ids live on, in each other's table."""


def _quoted(*names: str) -> str:
    """Names with backticks, those inside doubled (facts 14.9: TiCDC leaves them)."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def split_queries(text: str) -> list[str]:
    """Statements between semicolons outside quotes and comments, trimmed, each with its semicolon."""
    statements, start, at, quote = [], 0, 0, ""
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\" and quote != "`":
                at += 1
            elif text.startswith(quote, at):
                at += len(quote) - 1
                quote = ""
        elif char in "'\"`":
            quote = char
        elif text.startswith("/*", at):
            quote = "*/"
        elif char == ";":
            statements.append(text[start : at + 1].strip())
            start = at + 1
        at += 1
    tail = text[start:].strip()
    return [*statements, tail] if tail else statements


def admit(event: DdlEvent, table_filter: TableFilter) -> bool:
    """Whether a changefeed with that filter delivers the event; InvalidInput if it must not go on.

    It must not when a table enters the filter by a rename (its earlier rows were never sent), and when a
    table loses its last handle key (its rows could not be addressed any more).
    """
    if not event.table:
        return table_filter.matches_schema(event.schema)
    new = table_filter.matches(event.schema, event.table)
    old = table_filter.matches(event.old_schema, event.old_table)
    name = f"{event.schema}.{event.table}"
    if new and not old and event.before is not None:
        raise InvalidInput(
            "a table was renamed into the filter",
            where=f"{event.old_schema}.{event.old_table} to {name} at {event.finished_ts}",
            why="its rows from before the rename have not been replicated",
            fix="exclude it, or create a changefeed that replicates it from its start",
        )
    if new and event.before is not None and event.after is not None and not _eligible(event.after):
        raise InvalidInput(
            "a table lost its handle key",
            where=f"{name} at {event.finished_ts}",
            why=event.query[:200],
            fix="give it a primary key or a unique key over NOT NULL columns, or exclude it",
        )
    return new or old


def _eligible(info: dict[str, Any]) -> bool:
    return table_info.table_schema("", info, 0).eligible


def jobs_in(block: pa.RecordBatch, ddl_table: TableSchema) -> list[DdlJob]:
    """The finished jobs among entries of the DDL span, by commit ts; rows of both formats.

    Every write of a job row is an entry; only those with state *done* count. Entries of other tables are
    passed over. Undecodable if a job cannot be read: going on without it would decode rows wrongly.
    """
    column = next((c for c in ddl_table.columns if c.name == JOB_META), None)
    if column is None:
        raise Undecodable("mysql.tidb_ddl_job has no column job_meta", where=f"table id {ddl_table.id}")
    prefix = keys.record_prefix(ddl_table.id)
    jobs = []
    for entry in block.select(["commit_ts", "start_ts", "op", "key", "value"]).to_pylist():
        if entry["op"] != PUT or not entry["key"].startswith(prefix):
            continue
        meta = _job_meta(entry["value"], column.id)
        if meta is None:
            continue
        job = ddl_job.parse(meta, entry["start_ts"], entry["commit_ts"])
        if job.is_done and job.schema_version:
            jobs.append(job)
    return sorted(jobs, key=lambda job: job.finished_ts)


def _job_meta(value: bytes, column_id: int) -> bytes | None:
    cell = row.split(value).cells.get(column_id)
    data = cell.value if isinstance(cell, Datum) else cell
    return data if isinstance(data, bytes) else None
