"""Row changes as a RowBlock: what the mounter would hand on, built from plain values."""

from __future__ import annotations

import struct

import numpy as np

from tidegate.kernel import PAD, address
from tidegate.model.cells import CHECKSUM, DELETE, INSERT, NULL, UPDATE, Image, RowBlock, stride_for
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, Kind
from tidegate.tidb import value as values


def block_of(rows: list[RowChange]) -> RowBlock:
    """A block of rows of one table version."""
    table, pool = rows[0].table, bytearray()
    shape = (len(rows), stride_for(len(table.columns)))
    images, offsets = [], []
    for side in ("new", "old"):
        a, sizes = np.full(shape, 0x5555, dtype=np.int64), np.full(shape, NULL, dtype=np.int32)
        pointers = np.zeros(shape, dtype=bool)
        for i, row in enumerate(rows):
            for c, cell in enumerate(getattr(row, side) or ()):
                word, sizes[i, c], pointers[i, c] = _slot(table.columns[c], cell, pool)
                a[i, c] = np.uint64(word & (1 << 64) - 1).view(np.int64)
        images.append(Image(a, sizes))
        offsets.append(pointers)
    keys = np.zeros((len(rows), 2), dtype=np.int64)
    for i, row in enumerate(rows):
        keys[i] = len(pool), len(row.row_key)
        pool += row.row_key
    data = np.frombuffer(bytes(pool) + bytes(PAD), dtype=np.uint8).copy()
    for image, pointers in zip(images, offsets, strict=True):
        image.words[pointers] += address(data)
    keys[:, 0] += address(data)
    ops = [DELETE if row.is_delete else INSERT if row.is_insert else UPDATE for row in rows]
    return RowBlock(
        table=table,
        op=np.array(ops, dtype=np.uint8),
        commit_ts=np.array([row.commit_ts for row in rows], dtype=np.uint64),
        start_ts=np.array([row.start_ts for row in rows], dtype=np.uint64),
        physical_id=np.array([row.physical_id for row in rows], dtype=np.int64),
        handle=np.array([row.handle for row in rows], dtype=np.int64),
        position=np.arange(len(rows), dtype=np.int64),
        new=images[0],
        old=images[1],
        owners=(data,),
        checksums=_checksums(rows),
        row_keys=keys,
    )


def _checksums(rows: list[RowChange]) -> np.ndarray | None:
    found = np.zeros(len(rows), dtype=CHECKSUM)
    for i, row in enumerate(rows):
        if row.checksum is not None:
            found[i] = (*row.checksum, True, 0)
    return found if found["known"].any() else None


def _slot(column: Column, cell: Value, pool: bytearray) -> tuple[int, int, bool]:
    """(word, size, whether the word is an offset into the pool)."""
    if cell is None:
        return 0x7777, NULL, False
    if isinstance(cell, float):
        single = column.kind is Kind.FLOAT
        return (
            struct.unpack("<q", struct.pack("<d", float(np.float32(cell)) if single else cell))[0],
            0,
            False,
        )
    stored = values.parse(column, cell)
    if isinstance(stored, bytes):
        pool += stored
        return len(pool) - len(stored), len(stored), True
    assert isinstance(stored, int)
    return stored, 0, False
