"""Which tables can be replicated, and why one cannot (docs/formats/columns.md#handle-key).

Targets find a row by its handle key. A table without one is left out, unless `force-replicate` is set: then
its rows are identified by their whole content.
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
"""The advice for a user with tables that cannot be replicated."""


def ineligible(table: TableSchema) -> str:
    """Why a table has no usable key, in words. Empty if it has one."""
    if table.eligible:
        return ""
    unique = [index for index in table.indexes if index.unique and not index.primary]
    if not unique:
        return "it has no primary key and no unique key"
    return "it has no primary key, and " + "; ".join(_unusable(table, index) for index in unique)


def why_ineligible(version: TableVersion) -> str:
    """`ineligible` for a table of a catalogue. It parses the definition itself, so any thread may call it."""
    return ineligible(table_info.table_schema(version.schema, version.info(), version.valid_from))


def _unusable(table: TableSchema, index: Index) -> str:
    """Why a unique key does not identify rows: it allows NULL, which may repeat, or rows lack its columns."""
    carried = {column.offset: column for column in table.columns}
    names = {entry["offset"]: str(entry["name"]["O"]) for entry in table.info.get("cols") or []}
    absent = [names[offset] for offset in index.columns if offset not in carried]
    # Under a unique key, NULL may be in any number of rows.
    nullable = [carried[o].name for o in index.columns if o in carried and carried[o].nullable]
    reasons = [f"takes NULL in {', '.join(nullable)}"] if nullable else []
    reasons += [f"is over {', '.join(absent)}, which rows do not carry"] if absent else []
    return f"its unique key {index.name} " + " and ".join(reasons)
