"""The messages of one piece of a partition in the order of their offsets: rows, marks and DDLs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.codec.base import DdlMessage, Decoded, DecodedTable
from tidegate.model.cells import DELETE


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a piece of one partition; one list per attribute."""

    offset: list[int]
    ts: list[int]
    op: list[int]
    row: list[int | None]
    """A hash of table and key; None: the table has no key."""
    table: list[str]


def in_order(tables: Sequence[DecodedTable]) -> Rows:
    """The rows of a piece by offset, and by their number within a message."""
    if not tables:
        return Rows([], [], [], [], [])
    offset = np.concatenate([table.offset for table in tables])
    seq = np.concatenate([table.seq for table in tables])
    order = np.lexsort((seq, offset)).tolist()
    times = np.concatenate([table.commit_ts for table in tables]).tolist()
    ops = np.concatenate([table.op for table in tables]).tolist()
    names: list[str] = []
    rows: list[int | None] = []
    for table in tables:
        name = f"{table.schema}.{table.table}"
        names += [name] * len(table)
        rows += _row_hashes(name, table)
    return Rows(
        offset[order].tolist(),
        [times[i] for i in order],
        [ops[i] for i in order],
        [rows[i] for i in order],
        [names[i] for i in order],
    )


def controls(decoded: Decoded) -> Iterator[tuple[int, int | DdlMessage | None]]:
    """Marks (their ts), DDLs and changes of the number of partitions (None), by offset."""
    found: list[tuple[int, int | DdlMessage | None]] = [(offset, ts) for ts, offset in decoded.resolved]
    found += [(ddl.offset, ddl) for ddl in decoded.ddls]
    found += [(offset, None) for _, offset in decoded.repartitions]
    yield from sorted(found, key=lambda one: one[0])


def _row_hashes(name: str, table: DecodedTable) -> list[int | None]:
    """For each row a hash of its table and key: from the new image, or the old one of a delete."""
    keys = [column.name for column in table.columns if column.key]
    if not keys:
        return [None] * len(table)
    new = _cells(table.new, keys, len(table))
    old = _cells(table.old, keys, len(table))
    deleted = (table.op == DELETE).tolist()
    # The text is hashed, because tuples of different numbers may have equal hashes: -1 and -2 have.
    return [hash(repr((name, *(old[i] if gone else new[i])))) for i, gone in enumerate(deleted)]


def _cells(image: Any, names: list[str], rows: int) -> list[tuple[Any, ...]]:
    if image is None:
        return [()] * rows
    return list(zip(*(image.column(name).to_pylist() for name in names), strict=True))
