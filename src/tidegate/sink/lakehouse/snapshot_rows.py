"""The rows of the table of snapshots, and which of its files may hold rows of a ts. Pure.

Columns: ts, schema_name, table_name, table_id, path, version, position. A snapshot has one row per table, and
one row without a path that carries the consumer's position. Because it is a row, the position survives
whatever other tools do to the table (OPTIMIZE, VACUUM, checkpoints, the cleanup of its log).

Each file covers slices of `SLICE`, so reading one ts opens few files, and forgetting snapshots rewrites only
the slices that hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from tidegate.model.timestamp import LOGICAL_BITS

SNAPSHOT_SCHEMA: Final = pa.schema(
    [
        pa.field("ts", pa.int64()),
        pa.field("schema_name", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("table_id", pa.int64()),
        pa.field("path", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("position", pa.string()),
    ]
)
SLICE: Final = 600_000 << LOGICAL_BITS
"""Ten minutes as a distance of ts: the snapshots of such a slice are compacted into one file."""
COMPACT_FILES: Final = 24
"""A table with more data files than this is compacted before the next snapshot names it. The newest slice of
the table of snapshots may have as many files."""


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """One table in one snapshot."""

    ts: int
    schema: str
    table: str
    table_id: int
    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Bounded:
    """A file of the table of snapshots, with the lowest and highest ts in it; None: not known."""

    name: str
    low: int | None
    high: int | None


def snapshot_table(ts: int, rows: Sequence[SnapshotRow], position: str | None) -> pa.Table:
    """The rows of one snapshot, with the columns of `SNAPSHOT_SCHEMA`."""
    # The last row has no table, only the position. So a snapshot without tables has a position, too.
    columns: list[list[Any]] = [
        [*(row.ts for row in rows), ts],
        [*(row.schema for row in rows), None],
        [*(row.table for row in rows), None],
        [*(row.table_id for row in rows), None],
        [*(row.path for row in rows), None],
        [*(row.version for row in rows), None],
        [*(None for _ in rows), position],
    ]
    return pa.table(columns, schema=SNAPSHOT_SCHEMA)


def bounds(table: DeltaTable) -> list[Bounded]:
    """The data files of the table of snapshots, with their bounds."""
    held = pa.table(table.get_add_actions(flatten=True))
    unknown = [None] * held.num_rows
    low, high = (
        held[name].to_pylist() if name in held.column_names else unknown for name in ("min.ts", "max.ts")
    )
    return [Bounded(*one) for one in zip(map(unquote, held["path"].to_pylist()), low, high, strict=True)]


def slices(files: Sequence[Bounded]) -> list[tuple[int, int, bool]]:
    """Slices low <= ts < high that cover the files. Each slice has whole `SLICE`s, and no file is in two
    slices.

    The flag says whether a slice has more files than it should: one, or `COMPACT_FILES` in the newest slice.
    """
    found: list[tuple[int, int, int]] = []
    ends = [(one.low, one.high) for one in files if one.low is not None and one.high is not None]
    if len(ends) < len(files):  # another tool has written files without bounds
        # A slice less, because the end of the last one must fit 63 bits.
        ends = [(0, 2**63 - 1 - SLICE)] * len(files)
    for first, last in sorted(ends):
        low, high, count = first // SLICE * SLICE, (last // SLICE + 1) * SLICE, 1
        if found and low < found[-1][1]:
            before = found.pop()
            low, high, count = before[0], max(high, before[1]), before[2] + 1
        found.append((low, high, count))
    at_most = [1] * (len(found) - 1) + [COMPACT_FILES]
    return [(low, high, count > most) for (low, high, count), most in zip(found, at_most, strict=True)]
