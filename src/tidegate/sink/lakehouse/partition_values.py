"""The partition values of a Delta table's files: as text in its log, and as the columns that files lack.

A data file has no partition columns: each has one value in all rows of a file, which the log stores as text,
and an empty text is NULL there. The file's folder repeats the values for people (`region=north`). So a column
of texts can hold neither an empty text nor one that is too long for the name of a folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidegate.errors import Fatal

FOLDER_MAX: Final = 255
"""Bytes of a folder's name on common file systems."""


def columns_of(table: DeltaTable) -> list[str]:
    """The partition columns of an open table."""
    return list(table.metadata().partition_columns)


def values_of(table: DeltaTable) -> dict[str, dict[str, Any]]:
    """The partition values of a table's data files, by the path of a file as the log has it."""
    found = pa.table(table.get_add_actions(flatten=False)).select(["path", "partition"])
    return dict(zip(found["path"].to_pylist(), found["partition"].to_pylist(), strict=True))


def guarantee(values: dict[str, Any], schema: pa.Schema) -> pc.Expression:
    """An expression that holds for each row of a file; pyarrow fills missing columns from it."""
    whole = pc.scalar(True)
    for name, value in values.items():
        column = pc.field(name)
        whole &= column.is_null() if value is None else column == pa.scalar(value, schema.field(name).type)
    return whole


def as_text(value: Any) -> str | None:
    """A partition value as the log stores it."""
    match value:
        case None:
            return None
        case Decimal():
            return f"{value:f}"
        case datetime():
            return value.isoformat(" ", "microseconds")
    return str(value)


def files_of_fullest(table: DeltaTable) -> int:
    """The number of data files in the partition that has most; of all, if the table is not partitioned."""
    if not columns_of(table):
        return int(pa.table(table.get_add_actions()).num_rows)
    counts = Counter(repr(values) for values in values_of(table).values())
    return max(counts.values(), default=0)


def check_rows(rows: pa.Table | pa.RecordBatch, columns: Sequence[str], where: str) -> None:
    """Fatal if a partition value cannot be stored."""
    for name in columns:
        if not pa.types.is_string(rows.schema.field(name).type):
            continue
        for text in pc.unique(rows.column(name)).to_pylist():
            if text == "":
                raise _unfit(where, name, "an empty text is NULL in the log of a Delta table")
            if text is not None and len(quote(f"{name}{text}", safe="")) >= FOLDER_MAX:
                raise _unfit(where, name, f"the value {text[:40]!r}... is too long for the name of a folder")


def _unfit(where: str, column: str, why: str) -> Fatal:
    return Fatal(
        "a row has a value by which no Delta table can be partitioned",
        where=f"{where}, column {column}",
        why=why,
        fix="start a new target with a --partition-by that does without the column, or an Iceberg target",
    )
