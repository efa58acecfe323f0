"""Which tables can be replicated, and why one cannot (docs/formats/columns.md#handle-key).

A row is found downstream by its handle key. A table without one is left out, unless `force-replicate` says
to send it all the same: its rows are then known by their whole content.
"""

from __future__ import annotations

from typing import Final

from tidegate.model.schema import Index, TableSchema
from tidegate.mounter.table_version import TableVersion
from tidegate.tidb import table_info

FIX: Final = (
    "give each a primary key or a unique key over NOT NULL columns, exclude them in [filter] rules, or set "
    "ignore-ineligible-table = true to leave them out, or force-replicate = true to send them without a key"
)
"""What one can do about tables that cannot be replicated."""


def ineligible(table: TableSchema) -> str:
    """Why a table has no usable key, in words; empty when it has one."""
    if table.eligible:
        return ""
    unique = [index for index in table.indexes if index.unique and not index.primary]
    if not unique:
        return "it has no primary key and no unique key"
    return "it has no primary key, and " + "; ".join(_unusable(table, index) for index in unique)


def why_ineligible(version: TableVersion) -> str:
    """`ineligible` of a catalogue's table; reads its definition anew, so that any thread may ask."""
    return ineligible(table_info.table_schema(version.schema, version.info(), version.valid_from))


def _unusable(table: TableSchema, index: Index) -> str:
    """Why a unique key identifies no row: NULL repeats in it, or rows do not carry its columns."""
    carried = {column.offset: column for column in table.columns}
    names = {entry["offset"]: str(entry["name"]["O"]) for entry in table.info.get("cols") or []}
    absent = [names[offset] for offset in index.columns if offset not in carried]
    nullable = [carried[o].name for o in index.columns if o in carried and carried[o].nullable]
    reasons = [f"takes NULL in {', '.join(nullable)}"] if nullable else []
    reasons += [f"is over {', '.join(absent)}, which rows do not carry"] if absent else []
    return f"its unique key {index.name} " + " and ".join(reasons)
