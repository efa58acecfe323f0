"""The commits to the Delta tables of a target, the options they share, and the properties of tables.

A commit must fail if another process has committed the same version. By default delta-rs retries an append
after the other commit, so that two writers of one table would both succeed. Therefore delta-rs must not retry
any commit made here.

The cleanup of logs is switched off both in the hooks and in the tables. It looks only at the age of files,
and would delete the log of versions that snapshots still name.

Statistics are written for integer and date columns only: delta-rs cuts decimals to 64 bits and timestamps
to milliseconds in them, and a merge that skips files by such bounds would miss rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, write_deltalake
from deltalake.transaction import AddAction

from tidegate.sink.lakehouse.partition_values import as_text, columns_of

MARK: Final = "tidegate.target"
"""The table property with the identity of the target to which a table belongs."""
WRITER: Final = "tidegate.writer"
"""The property of the table of snapshots that names the process that may write the target: see `takeover`."""
RESTORED: Final = "tidegate.restored"
"""The member of a commit's metadata that says to which version it has restored the table."""
HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""Actions of delta-rs after a commit. `table_files` deletes old files of the log instead of delta-rs."""
# docs/guarantees.md#two-consumers-of-one-delta-target-do-not-both-name-snapshots
ONCE: Final = CommitProperties(max_commit_retries=0)
"""A commit fails if another process has committed the same version."""
_STATS_SAFE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32())
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMITTED_BY_ANOTHER: Final = ("already exists", "Invalid table version")


def configuration(schema: pa.Schema, partition_by: Sequence[str] = ()) -> dict[str, str]:
    """The properties of a table with these columns, except the mark.

    Partition columns have no statistics: Spark refuses a table that asks for them.
    """
    stored = [field for field in schema if field.name not in partition_by]
    safe = [field.name for field in stored if has_statistics(field)]
    settings = {"delta.enableExpiredLogCleanup": "false", "delta.dataSkippingNumIndexedCols": "0"}
    return settings | ({"delta.dataSkippingStatsColumns": ",".join(safe)} if safe else {})


def has_statistics(field: pa.Field) -> bool:
    """Whether data files have statistics of a column, unless it is a partition column."""
    return field.type in _STATS_SAFE and _PLAIN_NAME.fullmatch(field.name) is not None


def committed_by_another(error: Exception) -> bool:
    """Whether an error of delta-rs that has no class of its own says that a commit exists or was skipped."""
    return any(sign in str(error) for sign in _COMMITTED_BY_ANOTHER)


def append(table: DeltaTable, rows: pa.Table) -> None:
    """Add rows."""
    write_deltalake(table, rows, mode="append", commit_properties=ONCE, post_commithook_properties=HOOKS)


def add_columns(table: DeltaTable, schema: pa.Schema) -> None:
    """Append the columns of `schema` that the table lacks, null in all rows, without new data files."""
    if columns_of(table):
        # A write with new columns would put the partition columns last, and the order is part of a table's
        # definition.
        held = {field.name for field in table.schema().fields}
        fresh = [field for field in Schema.from_arrow(schema).fields if field.name not in held]
        table.alter.add_columns(fresh, commit_properties=ONCE, post_commithook_properties=HOOKS)
        return
    write_deltalake(
        table,
        schema.empty_table(),
        mode="append",
        schema_mode="merge",
        commit_properties=ONCE,
        post_commithook_properties=HOOKS,
    )


def overwrite_where(table: DeltaTable, rows: pa.Table, predicate: str) -> None:
    """Replace the rows for which the predicate holds."""
    write_deltalake(
        table,
        rows,
        mode="overwrite",
        predicate=predicate,
        commit_properties=ONCE,
        post_commithook_properties=HOOKS,
    )


def overwrite(table: DeltaTable, rows: pa.RecordBatchReader, partition_by: Sequence[str]) -> None:
    """Replace rows, columns, partition columns and properties of the whole table."""
    write_deltalake(
        table,
        rows,
        mode="overwrite",
        schema_mode="overwrite",
        configuration=configuration(rows.schema, partition_by),
        partition_by=list(partition_by),
        commit_properties=ONCE,
        post_commithook_properties=HOOKS,
    )


def set_properties(table: DeltaTable, properties: dict[str, str]) -> None:
    """Set properties of the table."""
    table.alter.set_table_properties(properties, commit_properties=ONCE, post_commithook_properties=HOOKS)


def merge(table: DeltaTable, upserts: pa.Table, deletes: pa.Table, keys: Sequence[str]) -> None:
    """Insert or replace rows and delete keys.

    Key columns are never null, and no key occurs twice, neither within a table nor across both.
    """
    # One table with upserts and deletes, because a merge has one source, and both must be in one commit.
    missing = [field for field in upserts.schema if field.name not in deletes.column_names]
    for field in missing:
        deletes = deletes.append_column(field, pa.nulls(deletes.num_rows, field.type))
    rows = pa.concat_tables([upserts, deletes.select(upserts.column_names)])
    gone = pa.array([False] * upserts.num_rows + [True] * deletes.num_rows, pa.bool_())
    rows = rows.append_column("_tidegate_gone", gone)
    values = {_quoted(name): f"s.{_quoted(name)}" for name in upserts.column_names}
    merger = table.merge(
        rows,
        " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys),
        source_alias="s",
        target_alias="t",
        # If the source is streamed, delta-rs derives no bounds from it, and reads every file of the table.
        streamed_exec=False,
        commit_properties=ONCE,
        post_commithook_properties=HOOKS,
    )
    merger = merger.when_matched_delete("s._tidegate_gone")
    merger = merger.when_matched_update(values, predicate="NOT s._tidegate_gone")
    merger.when_not_matched_insert(values, predicate="NOT s._tidegate_gone").execute()


def files_with_counts(table: DeltaTable) -> list[Any]:
    """Actions that add a table's data files to another table."""
    found = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return [
        AddAction(
            row["path"],
            row["size_bytes"],
            {name: as_text(value) for name, value in (row.get("partition") or {}).items()},
            row["modification_time"],
            True,
            f'{{"numRecords":{row["num_records"]}}}',
        )
        for row in found
    ]


def add_files(table: DeltaTable, actions: list[Any], schema: pa.Schema) -> None:
    """Add data files that are in the table's folder already."""
    table.create_write_transaction(
        actions,
        mode="append",
        schema=schema,
        partition_by=columns_of(table),
        commit_properties=ONCE,
        post_commithook_properties=HOOKS,
    )


def is_restored(table: DeltaTable, version: int) -> bool:
    """Whether the newest commit is that of `restore` to this version."""
    newest = table.history(1)[0]
    return bool(newest.get("operation") == "RESTORE" and newest.get(RESTORED) == str(version))


def restore(table: DeltaTable, version: int) -> None:
    """Undo all commits after `version`."""
    # A restart finds by this note that the rows are those of `version` already.
    noted = CommitProperties(custom_metadata={RESTORED: str(version)}, max_commit_retries=0)
    table.restore(version, commit_properties=noted, post_commithook_properties=HOOKS)


def compact(table: DeltaTable) -> None:
    """Merge small data files; the rows stay the same."""
    table.optimize.compact(commit_properties=ONCE, post_commithook_properties=HOOKS)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
