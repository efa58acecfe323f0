"""The events of DDL jobs, and the new versions of tables that jobs bring.

Used by the handlers of each kind of job (`ddl`) and by early steps (`ddl_early`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidegate.model.ddl import DdlEvent
from tidegate.mounter.ddl_transition import Catalog, EmittedDdl, TableChange, Transition
from tidegate.mounter.table_version import TableVersion
from tidegate.tidb.ddl_job import DdlJob

EXCHANGE_PARTITION: Final = 42


def version_of(
    job: DdlJob, catalog: Catalog, schema_id: int, schema: str, info: dict[str, Any]
) -> TableVersion:
    """A definition that a job brings; parsed now, so that a bad one fails here and not when rows come."""
    version = TableVersion.of(schema_id, schema, info, job.finished_ts, catalog.cache)
    if not version.is_view:
        version.parsed()
    return version


def row_ids(tables: Sequence[TableVersion]) -> tuple[int, ...]:
    """The physical ids under which the tables have rows."""
    return tuple(sorted(i for table in tables if not table.is_view for i in table.physical_ids))


Change = tuple[TableVersion | None, int, str, dict[str, Any], int, str]
"""Before, schema id, schema, the new definition, action, query."""


def replaced(job: DdlJob, catalog: Catalog, changes: list[Change]) -> Transition:
    """The transition of tables that get new definitions: an event for each, in this order."""
    tables: list[TableChange] = []
    emitted: list[EmittedDdl] = []
    for seq, (before, schema_id, schema, info, action, query) in enumerate(changes):
        after = version_of(job, catalog, schema_id, schema, info)
        if before is not None and before.id != after.id:
            # With another logical id, as after TRUNCATE, nothing else would end the version of the old one.
            tables.append(TableChange(before.id, None))
        tables.append(TableChange(after.id, after))
        emitted.append(EmittedDdl(table_event(job, seq, query, before, after, action), before, after))
    return Transition(tables=tables, emitted=emitted)


def schema_event(
    job: DdlJob, schema: str, *, added: tuple[int, ...] = (), removed: tuple[int, ...] = ()
) -> DdlEvent:
    """An event that concerns a schema; `added` and `removed`: physical ids of its tables."""
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


def table_event(
    job: DdlJob,
    seq: int,
    query: str,
    before: TableVersion | None,
    after: TableVersion | None,
    action: int | None = None,
) -> DdlEvent:
    """An event that concerns a table; `seq`: its number within the job; `action`: if not the job's."""
    new, old = after or before, before or after
    assert new is not None
    assert old is not None
    had = set(row_ids([before])) if before else set()
    has = set(row_ids([after])) if after else set()
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
    """The version of the schema; a job that is not done has it only in its metadata."""
    return job.schema_version or int(job.meta.get("last_schema_version") or 0)


def quoted(*names: str) -> str:
    """Names in backticks; a backtick in a name is doubled.

    TiCDC does not double them: docs/formats/ddl.md#where-we-differ-from-ticdc.
    """
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def split_queries(text: str) -> list[str]:
    """Split a text at the semicolons outside quotes and comments; each statement keeps its semicolon."""
    statements, start, at, quote = [], 0, 0, ""
    while at < len(text):
        char = text[at]
        if quote:
            # A backslash escapes in strings only, not in names and comments.
            if char == "\\" and quote in ("'", '"'):
                at += 1
            elif text.startswith(quote, at):
                at += len(quote) - 1
                quote = ""
        elif char in "'\"`":
            quote = char
        elif text.startswith("/*", at):
            quote = "*/"
        # `quote` is what ends it: here the line. MySQL takes `--` for a comment only before a space: `a--1`
        # is arithmetic.
        elif char == "#" or (text.startswith("--", at) and text[at + 2 : at + 3].isspace()):
            quote = "\n"
        elif char == ";":
            statements.append(text[start : at + 1].strip())
            start = at + 1
        at += 1
    tail = text[start:].strip()
    return [*statements, tail] if tail else statements
