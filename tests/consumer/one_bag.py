"""A topic of one table without a key: equal rows, large transactions, and a producer that repeats itself."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tests.consumer.memory_topic import MemoryTopic
from tests.consumer.one_table import CREATED, Mark, OneTable, Row, topic
from tidegate.model.row import RowChange
from tidegate.tidb.table_info import table_schema
from tidegate.workload.definitions import ColumnSpec, table_info

FIRST, END = 200, 301
"""The ts of the marks behind the first rows, and behind the changes."""
ROWS = 400


def before() -> list[Row]:
    """Each row is there two or three times."""
    return [(at % 150, f"text {at % 150}") for at in range(ROWS)]


def _changes(seed: int = 3) -> list[tuple[int, Row | None, Row | None]]:
    """By ts: deletes, updates to rows that are there already, and inserts."""
    left, found = before(), list[tuple[int, Row | None, Row | None]]()
    random.Random(seed).shuffle(left)
    for at, row in enumerate(left[: ROWS // 2]):
        new = (None, (at % 40, f"text {at % 40}"), (at % 30, "new"))[at % 3]
        found.append((300 + (at >= ROWS // 4), row, new))
    return [*found, *((301, None, (at % 5, "same")) for at in range(100))]


def after_all() -> list[Row]:
    """The rows at `END`."""
    held = Counter(before())
    held.subtract(old for _, old, _ in _changes() if old is not None)
    held.update(new for _, _, new in _changes() if new is not None)
    assert min(held.values()) >= 0
    return list(held.elements())


def bag_topic(schema: str = "contract") -> MemoryTopic:
    """Rows come at `FIRST`, then the changes, most of which come twice."""
    columns = [ColumnSpec("n", 3, 11), ColumnSpec("what", 15, 40, text=True)]
    made = OneTable(table_info(70, "items", columns, ["n"]) | {"pk_is_handle": False})
    known = table_schema(schema, made.info, CREATED)

    def change(ts: int, old: Row | None, new: Row | None) -> RowChange:
        return RowChange(known, ts, ts - 1, 70, 0, old, new)

    first = [change(FIRST, None, row) for row in before()]
    then = [change(*one) for one in _changes()]
    created = replace(made.created(), schema=schema, old_schema=schema)
    # From the last change of the older ts on: nearly all parts get only changes of the newer one again, which
    # does not show that they are repeated.
    again = then[ROWS // 4 - 1 :]
    return topic([created, Mark(CREATED), *first, Mark(FIRST), *then, *again, Mark(END)], partitions=2)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of a table as tuples."""
    return list(zip(*table.to_pydict().values(), strict=True)) if table.num_rows else []
