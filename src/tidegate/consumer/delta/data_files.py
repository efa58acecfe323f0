"""Data files of a Delta table in the write mode merge-on-read: written here, because the commit is ours, too.

delta-rs writes files and commits them in one step, and its commits cannot name deletion vectors. Files from
here have what delta-rs gives them: statistics of the same columns, and no partition columns.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.consumer.applying.net_effect import factorize
from tidegate.consumer.lakehouse.compaction import FILE_BYTES
from tidegate.sink.lakehouse.delta_commit import has_statistics
from tidegate.sink.lakehouse.live_files import add_of
from tidegate.sink.lakehouse.partition_values import as_text
from tidegate.sink.lakehouse.store import Store


def written(
    store: Store, path: str, batches: Iterable[pa.RecordBatch], partition_by: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Write rows into as many data files as needed, with one of them in memory. Yields their `add`s."""
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        for piece in _pieces(batch):
            held.append(piece)
            size += piece.nbytes
            if size >= FILE_BYTES:
                yield from _of_partitions(store, path, pa.Table.from_batches(held), partition_by)
                held, size = [], 0
    if any(batch.num_rows for batch in held):
        yield from _of_partitions(store, path, pa.Table.from_batches(held), partition_by)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = max(1, -(-batch.nbytes // FILE_BYTES))
    step = max(1, -(-batch.num_rows // count))
    return (batch.slice(at, step) for at in range(0, batch.num_rows, step))


def _of_partitions(
    store: Store, path: str, rows: pa.Table, partition_by: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Write at least one file for each partition among the rows."""
    if not partition_by:
        yield _whole(store, path, rows, {})
        return
    codes = factorize(rows.select(list(partition_by)))
    # A stable sort, because compaction has ordered the rows by their key.
    order = np.argsort(codes, kind="stable")
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for at in np.split(order, begins[1:]):
        part = rows.take(pa.array(at))
        values = {name: as_text(part[name][0].as_py()) for name in partition_by}
        yield _whole(store, path, part.drop_columns(list(partition_by)), values)


def _whole(store: Store, path: str, rows: pa.Table, values: Mapping[str, str | None]) -> dict[str, Any]:
    out = io.BytesIO()
    pq.write_table(rows, out, compression="zstd")
    data, name = out.getvalue(), f"{uuid.uuid4().hex}.parquet"
    store.put(f"{path}/{name}", data)
    return add_of(name, len(data), values, _statistics(rows))


def _statistics(rows: pa.Table) -> dict[str, Any]:
    """The number of rows, and the bounds of the columns that have statistics."""
    stats: dict[str, Any] = {"numRecords": rows.num_rows}
    lowest, greatest, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for field in rows.schema:
        if has_statistics(field):
            ends = pc.min_max(rows[field.name]).as_py()
            nulls[field.name] = rows[field.name].null_count
            if ends["min"] is not None:
                lowest[field.name], greatest[field.name] = _as_json(ends["min"]), _as_json(ends["max"])
    return stats | {"minValues": lowest, "maxValues": greatest, "nullCount": nulls}


def _as_json(value: int | date) -> int | str:
    return value.isoformat() if isinstance(value, date) else value
