"""Deletes the rows of partitions that a DDL has removed upstream, found by the partitioning columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.literals import MySqlValues, matching, quoted
from tidegate.consumer.mysql.tables import qualified
from tidegate.consumer.table.convert import STRINGS, Losses, TargetColumn, to_target
from tidegate.consumer.table.partitioning import Mask, Members

READ_ROWS: Final = 50_000
DELETED_ROWS: Final = 20_000
"""Rows that a transaction at TiDB deletes."""


def prune(hold: Hold, table: tuple[str, str], members: Members) -> None:
    """Delete a table's rows that belong to `members`; may run again after it was interrupted."""
    delete = f"DELETE FROM {qualified(*table)} WHERE ".encode()
    # TiDB holds a transaction in its memory. These rows need no common one, as the whole may run twice.
    limit = f" LIMIT {DELETED_ROWS}".encode() if hold.dialect is Dialect.TIDB else b""
    for condition in conditions(hold, table, members):
        while hold.run_ddl(delete + condition + limit) == DELETED_ROWS and limit:
            pass


def conditions(hold: Hold, table: tuple[str, str], members: Members) -> list[bytes]:
    """SQL conditions that together find a table's rows that belong to `members`; none: it has no such row.

    The table at the target has no partitions. Each combination of values is read once and tested as at any
    other target; the combinations in the partitions are in memory at once.
    """
    # A list, because no other statement may run while `batches` reads, and a deleted row would change what it
    # reads.
    found = [values.filter(mask) for values, mask in _combinations(hold, table, members)]
    return list(matching(members.columns, pa.concat_tables(found))) if found else []


def all_in(hold: Hold, table: tuple[str, str], members: Members) -> bool:
    """Whether each row of a table belongs to `members`."""
    # A list, as above: the query must be read to its end.
    belonging = [pc.all(mask, min_count=0).as_py() for _, mask in _combinations(hold, table, members)]
    return all(belonging)


def _combinations(hold: Hold, table: tuple[str, str], members: Members) -> Iterator[tuple[pa.Table, Mask]]:
    """The distinct values of the columns that `members` reads, and which of them belong to it."""
    values, columns = MySqlValues(), members.columns
    names = [column.name for column in columns]
    shown = ", ".join(map(_shown, columns))
    for rows in hold.batches(f"SELECT DISTINCT {shown} FROM {qualified(*table)}", READ_ROWS):
        texts = [pa.array(texts, pa.binary()).cast(pa.string()) for texts in zip(*rows, strict=True)]
        pairs = list(zip(texts, columns, strict=True))
        kept = [text.cast(values.type_of(column)) for text, column in pairs]
        typed = [
            to_target(text if column.mysql_type in STRINGS else wire, column, "UTC", Losses())
            for wire, (text, column) in zip(kept, pairs, strict=True)
        ]
        yield (
            pa.Table.from_arrays(kept, names),
            members.mask(pa.RecordBatch.from_arrays(typed, names)),
        )


def _shown(column: TargetColumn) -> str:
    """A column as the bytes of its text, because a collation may treat different texts as equal."""
    return f"CAST(CAST({quoted(column.name)} AS CHAR CHARACTER SET utf8mb4) AS BINARY)"
