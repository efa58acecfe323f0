"""TiCDC's treatment of a recorded DDL job where ours differs: its known defects, modelled.

A golden record must be what ours does, or exactly what one of these defects makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.golden_folder import plain_name
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import TableSchema
from tidegate.mounter.ddl_transition import EmittedDdl
from tidegate.tidb import table_info
from tidegate.tidb.ddl_job import DdlJob
from tidegate.tidb.table_filter import TableFilter

RECOVER_SCHEMA = 63
RENAMES = (14, 47)
RENAME_TABLE = 14
MANY_RENAMES = 47


def unescaped(query: str) -> str:
    """TiCDC leaves a backtick inside a name as it is; in names of one letter a side only."""
    return query.replace("``", "`")


def renames_as_ticdc(job: DdlJob, emitted: Sequence[EmittedDdl], rules: TableFilter) -> list[list[str]]:
    """TiCDC judges a job of renames by one table alone, and forgets about keys when it leaves the filter.

    So where tables without a key are among them, all renames out of names in the filter go, or none.
    """
    if job.action not in RENAMES or all(t.after is None or t.after.eligible for t in emitted):
        return []
    whole = [t.event.query for t in emitted if rules.matches(t.event.old_schema, t.event.old_table)]
    return [whole, []]


def chained(job: DdlJob, emitted: Sequence[EmittedDdl]) -> bool:
    """Whether a RENAME TABLES uses a name twice: classic TiCDC cannot follow such a chain.

    See docs/formats/ddl.md#where-we-differ-from-ticdc.
    """
    names = [(t.event.old_schema, t.event.old_table) for t in emitted]
    names += [(t.event.schema, t.event.table) for t in emitted]
    return job.action == MANY_RENAMES and len(set(names)) < len(names)


class Forgotten:
    """Schemas TiCDC has lost: it discards *recover schema*, and then fails on every DDL in the schema."""

    def __init__(self) -> None:
        self.ids: set[int] = set()

    def explains(self, job: DdlJob, theirs: dict[str, Any]) -> bool:
        """Whether that is why `theirs` has no events."""
        if job.action == RECOVER_SCHEMA:
            self.ids.add(job.schema_id)
            return bool(theirs["discarded"])
        return (
            f"schema {job.schema_id} not found" in (theirs.get("error") or "") and job.schema_id in self.ids
        )


def described(event: DdlEvent, *, before: bool, version: int) -> dict[str, Any] | None:
    """A side of an event as golden records have it; of its columns, those that are emitted."""
    info = event.before if before or event.after is None else event.after
    if info is None and before:
        return None
    if info is None:
        return {"schema": event.schema, "table": "", "version": version}
    schema, name = (event.old_schema, event.old_table) if before else (event.schema, event.table)
    if info.get("view"):
        columns: list[dict[str, Any]] = []
        table = None
    else:
        table = table_info.table_schema(schema, info, version)
        columns = [_column(table, at) for at in range(len(table.columns))]
    return {
        "schema": schema.lower() if event.action == RENAME_TABLE else schema,
        "table": name,
        "table_id": info["id"],
        "version": version,
        "eligible": table is None or table.eligible,
        "columns": columns,
    }


def _column(table: TableSchema, at: int) -> dict[str, Any]:
    column = table.columns[at]
    return {
        "id": column.id,
        "name": column.name,
        "type": column.mysql_type,
        "mysql_flag": column.flag,
        "flag": table.ticdc_flags[at],
        "flen": column.flen,
        "decimal": column.decimal,
        "charset": column.charset,
        "collation": column.collate,
    }


def recorded(side: dict[str, Any] | None, action: int = 0) -> dict[str, Any] | None:
    """A recorded side, without what we do not keep; renames have schemas in lower case, as classic TiCDC."""
    if side is None or "table_id" not in side:
        return side
    side = {**side, "table": plain_name(side["table"]), "schema": plain_name(side["schema"])}
    if action == RENAME_TABLE:
        side["schema"] = side["schema"].lower()
    columns = [
        {key: column[key] for key in _COLUMN_KEYS}
        for column in ([] if side.get("view") else side["columns"])
        if column["visible"]
    ]
    return {key: side[key] for key in _SIDE_KEYS} | {"columns": columns}


_SIDE_KEYS = ("schema", "table", "table_id", "version", "eligible")
_COLUMN_KEYS = ("id", "name", "type", "mysql_flag", "flag", "flen", "decimal", "charset", "collation")
