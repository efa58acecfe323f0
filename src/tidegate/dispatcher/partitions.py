"""TiCDC's partition numbers (docs/dispatchers.md), row by row: the oracle of `dispatcher.kernels`.

The hash XORs the CRC-32 (IEEE) of each of these texts: schema and table together, then name and canonical
text of each hashed column, so the order of columns does not matter. NULL is the text `null` (classic).
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.unique_keys import why_by_table
from tidegate.errors import InvalidInput
from tidegate.model.row import RowChange
from tidegate.model.schema import TableSchema
from tidegate.tidb.text import value_text

CONFLICT: Final = "conflict"
RULES: Final = ("default", "table", "ts", "index-value", "rowid", "columns", CONFLICT)
"""The values of `partition` in a rule; `rowid` is TiCDC's older name of index-value. TiCDC has no `conflict`:
it works as index-value if the `unique_keys` of a table can be tracked, otherwise as table."""


def table_hash(table: TableSchema) -> int:
    """The hash of a table's name."""
    return crc32((table.schema + table.table).encode())


def hashed_columns(table: TableSchema, rule: DispatchRule) -> tuple[int, ...]:
    """Positions of the columns whose values a rule hashes; InvalidInput if the table lacks one of them."""
    if rule.partition in ("index-value", "rowid"):
        return _index_columns(table, rule.index) if rule.index else tuple(sorted(table.handle_key))
    if rule.partition == CONFLICT:
        return () if why_by_table(table) else tuple(sorted(table.handle_key))
    if rule.partition == "columns":
        # In any order, because the hash XORs them.
        return tuple(_column(table, name) for name in rule.columns)
    return ()


def _index_columns(table: TableSchema, name: str) -> tuple[int, ...]:
    for index in table.indexes:
        if index.name.lower() == name.lower():
            positions = {column.offset: i for i, column in enumerate(table.columns)}
            # A virtual column of the index is not in the row and adds nothing to the hash, as in TiCDC.
            return tuple(positions[offset] for offset in index.columns if offset in positions)
    raise _missing(table, f"index {name!r}")


def _column(table: TableSchema, name: str) -> int:
    for i, column in enumerate(table.columns):
        if column.name.lower() == name.lower():
            return i
    raise _missing(table, f"column {name!r}")


def _missing(table: TableSchema, what: str) -> InvalidInput:
    return InvalidInput(
        "rows cannot be dispatched",
        where=f"table {table.name}",
        why=f"it has no {what} whose values are replicated",
        fix="correct the dispatch rule of this table",
    )


def row_hash(row: RowChange, columns: tuple[int, ...]) -> int:
    """The hash of a row: of its table's name and the given columns of its newest image."""
    image = row.old if row.new is None else row.new
    assert image is not None, "a row has an image"
    state = table_hash(row.table)
    for i in columns:
        column, value = row.table.columns[i], image[i]
        text = b"null" if value is None else value_text(column.kind, value)
        state ^= crc32(column.name.encode() + text)
    return state


def partition_of(row: RowChange, rule: DispatchRule, count: int) -> int:
    """The partition of one row among `count`."""
    if rule.partition == "ts":
        return row.commit_ts % count
    # docs/guarantees.md#changes-of-a-row-are-on-one-partition-in-commit-order: the partition follows from the
    # row alone, so every worker and every incarnation chooses the same.
    return row_hash(row, hashed_columns(row.table, rule)) % count
