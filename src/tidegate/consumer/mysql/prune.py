"""Deletes the rows of partitions that a DDL has removed upstream, found by the partitioning columns."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.literals import MySqlValues, matching_deletes, quoted
from tidegate.consumer.mysql.tables import qualified
from tidegate.consumer.table.convert import STRINGS, Losses, TargetColumn, to_target
from tidegate.consumer.table.partitioning import Members

READ_ROWS: Final = 50_000


def prune(hold: Hold, table: tuple[str, str], members: Members) -> None:
    """Delete a table's rows that belong to `members`.

    The table at the target has no partitions. Each combination of values is read once and tested as at any
    other target; the combinations in the partitions are in memory at once.
    """
    values, columns = MySqlValues(), members.columns
    names = [column.name for column in columns]
    shown = ", ".join(map(_shown, columns))
    found = []
    for rows in hold.batches(f"SELECT DISTINCT {shown} FROM {qualified(*table)}", READ_ROWS):
        texts = [pa.array(texts, pa.binary()).cast(pa.string()) for texts in zip(*rows, strict=True)]
        pairs = list(zip(texts, columns, strict=True))
        kept = [text.cast(values.type_of(column)) for text, column in pairs]
        typed = [
            to_target(text if column.mysql_type in STRINGS else wire, column, "UTC", Losses())
            for wire, (text, column) in zip(kept, pairs, strict=True)
        ]
        mask = members.mask(pa.RecordBatch.from_arrays(typed, names))
        found.append(pa.Table.from_arrays(kept, names).filter(mask))
    # Only when everything is read: no other statement may run while `batches` reads, and a deleted row would
    # change what it reads.
    if found:
        for statement in matching_deletes(columns, pa.concat_tables(found), qualified(*table)):
            hold.run_ddl(statement)


def _shown(column: TargetColumn) -> str:
    """A column as the bytes of its text, because a collation may treat different texts as equal."""
    return f"CAST(CAST({quoted(column.name)} AS CHAR CHARACTER SET utf8mb4) AS BINARY)"
