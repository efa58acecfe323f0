"""Decodes one entry to a row change, with the schema at its commit ts. The plain twin of `mounter.decode`."""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import NamedTuple

from tidegate.errors import Undecodable
from tidegate.model.block import OP_DELETE
from tidegate.model.row import RowChange
from tidegate.model.schema import TableSchema
from tidegate.tidb import keys, record


class Entry(NamedTuple):
    """One row of ENTRY_SCHEMA, in its order of columns."""

    commit_ts: int
    start_ts: int
    op: int
    key: bytes
    value: bytes
    old_value: bytes


def mount_row(entry: Entry, table: TableSchema, time_zone: tzinfo = UTC) -> RowChange | None:
    """The row change of an entry. None if it changes nothing: a delete of a row that did not exist.

    `table`: the version valid at commit_ts - 1. Raises Undecodable if a value cannot be decoded, with table
    and column in `where`.
    """
    key = keys.parse_record(entry.key)
    # Before the value: the values of another table might be decoded without an error, and be wrong.
    if key.table_id not in table.physical_ids:
        raise Undecodable("a record key belongs to another table", where=table.name, why=f"id {key.table_id}")
    deleted = entry.op == OP_DELETE
    if deleted and not entry.old_value:
        return None
    return RowChange(
        table=table,
        commit_ts=entry.commit_ts,
        start_ts=entry.start_ts,
        physical_id=key.table_id,
        handle=0 if table.is_common_handle else key.int_handle,
        old=record.decode(table, key, entry.old_value, time_zone) if entry.old_value else None,
        new=None if deleted else record.decode(table, key, entry.value, time_zone),
        row_key=entry.key,
    )
