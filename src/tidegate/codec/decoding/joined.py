"""Joins parts of a decoded batch in order, and cuts one in two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.codec.base import Decoded, DecodedTable
from tidegate.codec.decoding.assemble import RowKey

Int64s = npt.NDArray[np.int64]


def key_of(table: DecodedTable) -> RowKey:
    """The key that the rows of a table share."""
    return RowKey(table.schema, table.table, table.physical_id, table.columns, table.version)


def join(parts: list[Decoded], tables: Sequence[tuple[RowKey, DecodedTable]] = ()) -> Decoded:
    """Join into one result; rows of one table and column set become one table again, in order. `tables`: more
    rows, each with the `key_of` its table.
    """
    more = [(key_of(table), table) for part in parts for table in part.rows]
    if tables and not more and len({id(key) for key, _ in tables}) == len(tables):
        rows = [table for _, table in tables]
    else:
        groups: dict[RowKey, list[DecodedTable]] = {}
        for key, table in (*tables, *more):
            groups.setdefault(key, []).append(table)
        rows = [_merge(group) for group in groups.values()]
    # By first row, which is the order of the tables of a batch that is decoded at once.
    rows.sort(key=lambda table: (int(table.offset[0]), int(table.seq[0])))
    return Decoded(
        rows,
        sorted((mark for part in parts for mark in part.resolved), key=lambda mark: mark[1]),
        sorted((ddl for part in parts for ddl in part.ddls), key=lambda ddl: ddl.offset),
        sorted((bad for part in parts for bad in part.bad), key=lambda bad: bad.offset),
        sorted((one for part in parts for one in part.repartitions), key=lambda one: one[1]),
    )


def cut(decoded: Decoded, offset: int) -> tuple[Decoded, Decoded]:
    """The part before an offset, and the part at the offset and after it."""
    at = [(table, int(np.searchsorted(table.offset, offset))) for table in decoded.rows]
    return (
        Decoded(
            [_slice(table, 0, end) for table, end in at if end],
            [mark for mark in decoded.resolved if mark[1] < offset],
            [ddl for ddl in decoded.ddls if ddl.offset < offset],
            [bad for bad in decoded.bad if bad.offset < offset],
            [one for one in decoded.repartitions if one[1] < offset],
        ),
        Decoded(
            [_slice(table, start, len(table)) for table, start in at if start < len(table)],
            [mark for mark in decoded.resolved if mark[1] >= offset],
            [ddl for ddl in decoded.ddls if ddl.offset >= offset],
            [bad for bad in decoded.bad if bad.offset >= offset],
            [one for one in decoded.repartitions if one[1] >= offset],
        ),
    )


def _slice(table: DecodedTable, start: int, end: int) -> DecodedTable:
    rows, count = slice(start, end), end - start
    return replace(
        table,
        op=table.op[rows],
        commit_ts=table.commit_ts[rows],
        offset=table.offset[rows],
        seq=table.seq[rows],
        new=None if table.new is None else table.new.slice(start, count),
        old=None if table.old is None else table.old.slice(start, count),
    )


def _merge(tables: list[DecodedTable]) -> DecodedTable:
    if len(tables) == 1:
        return tables[0]
    offset = np.concatenate([table.offset for table in tables])
    seq = np.concatenate([table.seq for table in tables])
    # The parts come from several decoders, so their rows alternate. Rows must stay in the order of the topic.
    order = np.lexsort((seq, offset))
    first = tables[0]
    return DecodedTable(
        schema=first.schema,
        table=first.table,
        physical_id=first.physical_id,
        columns=first.columns,
        op=np.concatenate([table.op for table in tables])[order],
        commit_ts=np.concatenate([table.commit_ts for table in tables])[order],
        offset=offset[order],
        seq=seq[order],
        new=_images([table.new for table in tables], tables, order),
        old=_images([table.old for table in tables], tables, order),
        version=first.version,
    )


def _images(
    images: list[pa.RecordBatch | None], tables: list[DecodedTable], order: Int64s
) -> pa.RecordBatch | None:
    present = next((image for image in images if image is not None), None)
    if present is None:
        return None
    whole = [
        image
        if image is not None
        else pa.RecordBatch.from_arrays(
            [pa.nulls(len(table), field.type) for field in present.schema], schema=present.schema
        )
        for image, table in zip(images, tables, strict=True)
    ]
    return pa.concat_batches(whole).take(pa.array(order))
