"""Jobs that take effect before they are done, and the schema from that step on.

Once *drop partition* and *truncate partition* have reached the state *delete only*, sessions write to the
partitions as they will be, and the job can no longer be rolled back; it may stay there as long as the
cleaning of global indexes takes. Without a transition at that step, rows would arrive before the event that
creates their partitions, or be lost because nobody follows the new partitions yet. The jobs that copy rows
into new partitions (reorganize, partition by, remove partitioning) have that step at the state *public*:
until then every session writes to the old partitions, and from there on some write only to the new ones. A
converted column changes its id in the same way. So the event's FinishedTS is that of the step, and the write
that finishes the job emits no second event. (TiCDC waits for the end of the job and loses what was written to
new partitions before.) Source: TiDB `pkg/ddl/partition.go`, `pkg/table/tables/partition.go`.
"""

from __future__ import annotations

from typing import Any, Final

from tidegate.mounter.ddl_events import replaced
from tidegate.mounter.ddl_partitions import DROP_PARTITION, TRUNCATE_PARTITION, partitions_after
from tidegate.mounter.ddl_rules import EARLY
from tidegate.mounter.ddl_transition import Catalog, Transition
from tidegate.mounter.table_version import TableVersion
from tidegate.tidb import table_info
from tidegate.tidb.ddl_job import PUBLIC, DdlJob, JobState

MODIFY_COLUMN: Final = 12
MULTI_SCHEMA_CHANGE: Final = 61
COLUMN_CHANGES: Final = frozenset({MODIFY_COLUMN, MULTI_SCHEMA_CHANGE})
_EMPTYING: Final = frozenset({DROP_PARTITION, TRUNCATE_PARTITION})
KEY_FLAGS: Final = 2 | 4 | 8
"""Flags of a column type: part of the primary key, of a unique index, of another index."""
EMITTED_BY: Final = "tidegate_emitted_by"
"""Member of a TableInfo from an early step: the id of the job, whose event was emitted then."""


def takes_effect(job: DdlJob) -> bool:
    """Whether this write of a job may change the catalogue: the job is done, or at its early step."""
    if job.is_done:
        return True
    # A job that is rolled back has a schema state too, but takes nothing into effect.
    if job.state != JobState.RUNNING:
        return False
    if job.action == MULTI_SCHEMA_CHANGE:
        parts = (job.multi or {}).get("sub_jobs") or ()
        return job.table_info is not None and any(
            part["type"] == MODIFY_COLUMN and part["schema_state"] == EARLY[job.action] for part in parts
        )
    # docs/guarantees.md#a-row-belongs-to-its-table: from this step on sessions write the new form, so a later
    # transition would lose rows or give them to another table.
    return job.schema_state == EARLY.get(job.action)


def was_emitted(job: DdlJob, before: TableVersion, info: dict[str, Any]) -> bool:
    """Whether the event of the job was emitted at an earlier step than the one that finished it (`early`)."""
    if before.info().get(EMITTED_BY) == job.id:
        return True
    # A catalogue that was read from TiKV after the step has the new partitions, but not our mark.
    same = set(before.physical_ids) == set(table_info.physical_ids(info))
    return job.action in _EMPTYING and same


def _early_columns(job: DdlJob, catalog: Catalog, before: TableVersion) -> Transition:
    """The transition of a column change: sessions write a converted column only under its new id by now."""
    info = before.info()
    after = job.table_info if job.action == MULTI_SCHEMA_CHANGE else _with_converted_column(job, info)
    known = {column["id"] for column in info["cols"]}
    names = {column["name"]["L"] for column in info["cols"]}
    new = [c for c in after["cols"] if c["id"] not in known and c["state"] == PUBLIC] if after else []
    converted = [column for column in new if column["name"]["L"] in names or job.action == MODIFY_COLUMN]
    if after is None or not converted:
        return Transition(ignored="no column is converted, or the event was sent before")
    after = {**after, EMITTED_BY: job.id}
    return replaced(job, catalog, [(before, job.schema_id, before.schema, after, job.action, job.query)])


def _with_converted_column(job: DdlJob, info: dict[str, Any]) -> dict[str, Any] | None:
    """The table with the column that the job converts; its indexes are replaced when the job is done.

    None if the job converts no column, or has already done so. The arguments of TiDB before 8.4 are not read:
    there this step was the last one of the job.
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
    """A column of an index with the name and offset that the table's column has now."""
    name = renamed.get(part["name"]["L"], part["name"])
    return {**part, "name": name, "offset": at[name["L"]]}


def early(job: DdlJob, catalog: Catalog, schema: str) -> Transition:
    """The transition at the step after which sessions write as the finished job will leave the table."""
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
    return replaced(job, catalog, [(before, job.schema_id, before.schema, after, job.action, job.query)])
