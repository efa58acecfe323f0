"""Staged rows: what a fetch task writes for the driver's targets, in a file of Arrow IPC streams.

A stream is a `StagedRun`: rows of one table and column set. Its columns are `META`, for topics read by
offset `CARRIED_TS`, then `n.NAME` of the after image and `o.NAME` of the before image. The files are
disposable: if they are lost, the rows are read again from the offsets that the target stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

import numpy as np
import pyarrow as pa

from tidegate.codec.base import Decoded, DecodedTable
from tidegate.consumer.engine.assembler import StagedRun
from tidegate.consumer.engine.row_clock import Clock
from tidegate.consumer.table.soft_delete import SoftDelete, column_for
from tidegate.disk import CONSUMER_WAITS, writing

META: Final = ("_op", "_commit_ts", "_offset", "_seq")
CARRIED_TS: Final = "_carried_ts"
"""For topics read by offset, after `META`: the commit ts that the rows carry, or 0 if they carry none. Their
`_commit_ts` is the offset + 1."""


def stage(
    decoded: Decoded,
    partition: int,
    file: Path,
    clock: Clock | None = None,
    soft_deletes: Sequence[SoftDelete] = (),
    *,
    whole_old: bool = False,
) -> Iterable[StagedRun]:
    """Write the decoded rows, one Arrow IPC stream per table and column set. Returns their descriptors.

    Raises DiskFull; then there is no file.

    `clock`: given for a topic that is read by offset. `soft_deletes`: the tables that keep deleted rows.
    `whole_old`: the target keeps the rows before each change.
    """
    if not decoded.rows:
        return []
    with writing(file, fix=CONSUMER_WAITS), file.open("wb") as sink:
        return [
            _stage_table(
                *(table, partition, file, sink, clock),
                whole=whole_old or bool(column_for(table.schema, table.table, soft_deletes)),
            )
            for table in decoded.rows
        ]


def _stage_table(
    table: DecodedTable,
    partition: int,
    file: Path,
    sink: IO[bytes],
    clock: Clock | None,
    *,
    whole: bool,
) -> StagedRun:
    """Write one table's rows as a stream of the file. `whole`: as in `staged_batch`.

    With a `clock`, `_commit_ts` becomes the offset + 1, by which `OffsetFlow` orders rows. `CARRIED_TS` holds
    the commit ts that the rows carry.
    """
    carried = np.zeros_like(table.commit_ts) if clock is Clock.NONE else table.commit_ts
    if clock is not None:
        table = replace(table, commit_ts=(table.offset + 1).astype(np.uint64))
    batch = staged_batch(table, whole=whole)
    if clock is not None:
        batch = batch.add_column(len(META), CARRIED_TS, pa.array(carried))
    start = sink.tell()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return StagedRun(
        partition=partition,
        schema=table.schema,
        table=table.table,
        columns=table.columns,
        file=str(file),
        start=start,
        length=sink.tell() - start,
        rows=len(table),
        min_ts=int(table.commit_ts.min()),
        max_ts=int(table.commit_ts.max()),
        first_offset=int(table.offset.min()),
        commit_ts=int(carried.max()) if clock is not None else 0,
    )


def staged_batch(table: DecodedTable, *, whole: bool = False) -> pa.RecordBatch:
    """One table's rows in the staged form; the before image has only the key, if there is one.

    `whole`: the before image has all its columns, because the target keeps them.
    """
    arrays = [pa.array(column) for column in (table.op, table.commit_ts, table.offset, table.seq)]
    names = list(META)
    if table.new is not None:
        arrays += table.new.columns
        names += [f"n.{column.name}" for column in table.columns]
    if table.old is not None:
        keyed = any(column.key for column in table.columns)
        for column, array in zip(table.columns, table.old.columns, strict=True):
            # The key alone finds the row to delete. Without a key, a row is found by its whole content.
            if whole or column.key or not keyed:
                arrays.append(array)
                names.append(f"o.{column.name}")
    return pa.RecordBatch.from_arrays(arrays, names=names)


def read_staged(segment: StagedRun) -> pa.RecordBatch:
    """The rows of a segment, memory-mapped."""
    with pa.memory_map(segment.file) as mapped:
        mapped.seek(segment.start)
        return pa.ipc.open_stream(pa.BufferReader(mapped.read_buffer(segment.length))).read_next_batch()
