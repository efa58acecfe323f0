"""Makes a target's rows equal to the source's: by statements for people, or by a new version of the Delta
table.

All rows of a differing key are deleted, and the source's rows are inserted. So it is also right if the target
has a key twice. Only tables with a key can be repaired.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.consumer.delta.lock import target_lock
from tidegate.consumer.snapshots import TableSnapshot
from tidegate.errors import InvalidInput
from tidegate.sink.lakehouse.tables import Lakehouse
from tidegate.verify.differences import Difference, Row
from tidegate.verify.side import Shape


def statements(path: Path, shape: Shape, found: Sequence[Difference]) -> Iterator[str]:
    """Spark SQL that makes a Delta table equal to the source, one statement per line."""
    table = f"delta.`{path}`"
    for difference in found:
        if difference.target:
            where = " AND ".join(
                f"{_name(column)} <=> {literal(value, shape.schema.field(column).type)}"
                for column, value in difference.key.items()
            )
            yield f"DELETE FROM {table} WHERE {where};"
        for row in difference.source:
            names = ", ".join(map(_name, row))
            values = ", ".join(literal(row[f.name], f.type) for f in shape.schema)
            yield f"INSERT INTO {table} ({names}) VALUES ({values});"


def literal(value: Any, of_type: pa.DataType) -> str:
    """A value with one of the target's types, as a literal of Spark SQL."""
    match value:
        case None:
            return "NULL"
        case str():
            return _quoted(value)
        case bytes():
            return f"X'{value.hex()}'"
        case list():
            return f"array({', '.join(literal(element, of_type.value_type) for element in value)})"
        case Decimal():
            return f"CAST('{value:f}' AS DECIMAL({of_type.precision},{of_type.scale}))"
        case float():
            return f"CAST('{value!r}' AS {'FLOAT' if of_type.bit_width == 32 else 'DOUBLE'})"
        # Before `date`, because every datetime is a date.
        case datetime():
            text = value.isoformat(" ", "microseconds")
            return f"TIMESTAMP_NTZ'{text}'" if of_type.tz is None else f"TIMESTAMP'{text}'"
        case date():
            return f"DATE'{value.isoformat()}'"
    return str(int(value))


def _quoted(text: str) -> str:
    # Line ends as well, because a statement is one line.
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def _name(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def check_repairable(name: str, shape: Shape) -> None:
    """InvalidInput for a table whose rows cannot be identified: it has no key, or a date or time in it."""
    if not shape.key:
        raise InvalidInput(
            f"{name} has no key, so its rows cannot be repaired one by one",
            fix="leave --repair out; start a new target to make the table equal",
        )
    moments = [column for column in shape.key if pa.types.is_temporal(shape.schema.field(column).type)]
    if moments:
        raise InvalidInput(
            f"rows of {name} cannot be repaired one by one",
            why=f"its key holds {', '.join(moments)}, and dates that no calendar knows compare as one",
            fix="leave --repair out; start a new target to make the table equal",
        )


def apply(root: Path, ts: int, table: TableSnapshot, shape: Shape, found: Sequence[Difference]) -> None:
    """Repair a table of the newest snapshot, and name its new version in that snapshot.

    Takes the target's lock; InvalidInput when a consumer holds it, or has named a newer snapshot since.
    """
    with target_lock(root):
        lake = Lakehouse(root)
        named = lake.snapshots.rows()
        mine = [row for row in named if row.path == table.directory.relative_to(lake.root).as_posix()]
        if not mine or mine[0].ts != ts or mine[0].version != table.version:
            raise InvalidInput(
                "the target has moved on since it was compared",
                where=f"{table.schema}.{table.table}, compared at {ts}",
                fix="stop the consumer, and verify its newest snapshot: --at latest",
            )
        # A repair that was killed may have left commits after the named version.
        lake.restore(mine[0].path, mine[0].version)
        # Rows are deleted before they are inserted, because a key may have a row on both sides.
        gone = [difference.key for difference in found if difference.target]
        if gone:
            lake.merge(mine[0].path, _rows([], shape.schema), _rows(gone, _keys(shape)), shape.key)
        put = [row for difference in found for row in difference.source]
        if put:
            lake.append(mine[0].path, _rows(put, shape.schema))
        version = lake.version(mine[0].path)
        rows = [replace(row, version=version) if row == mine[0] else row for row in named]
        # Named last: a reader of the snapshot sees the whole repair or nothing of it.
        lake.snapshots.republish(ts, rows)


def _keys(shape: Shape) -> pa.Schema:
    return pa.schema([shape.schema.field(name) for name in shape.key])


def _rows(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)
