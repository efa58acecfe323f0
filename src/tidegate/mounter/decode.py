"""Mounts a block: decodes many entries at once into `RowBlock`s, with compiled kernels.

`mount` groups the rows of a block by table and schema version, vectorised, and runs one kernel over each
group. Only rows that the kernel refuses are handled one by one in Python: the plain `mount_row` decides
whether they are damaged. Damaged rows are returned as `Quarantined`, and do not affect the rest of the block.

The pipeline's tasks call it. Pure: no I/O, clock or thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import Undecodable
from tidegate.kernel import PAD, address, buffer
from tidegate.model.cells import NULL, Extent, Image, RowBlock, Taken, stride_for, take
from tidegate.model.schema import TableSchema
from tidegate.mounter.decode_plan import FORMS, POINTERS, BytePool, DecodePlan, plan_of
from tidegate.mounter.mounter import Entry, mount_row
from tidegate.mounter.schema_store import Follows, SchemaStore
from tidegate.mounter.tiles import Tiling, empty_images, tiles
from tidegate.tidb import value
from tidegate.tidb.kernels import record_key, row_context
from tidegate.tidb.kernels import row as row_kernels
from tidegate.tidb.kernels.row_context import Table
from tidegate.tidb.types import temporal

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MountOptions:
    """Options of a feed for mounting.

    time_zone: the feed's IANA zone. Cells have UTC in any case, but with a zone other than UTC a TIMESTAMP
    must be an existing date. force_replicate: also mount rows of tables without a handle key. row_keys: also
    return the rows' keys.
    """

    time_zone: str = "UTC"
    force_replicate: bool = False
    row_keys: bool = False


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A row that cannot be decoded: its place, its bytes, and the reason."""

    position: int
    """Row number in the block."""
    commit_ts: int
    key: bytes
    value: bytes
    old_value: bytes
    why: str
    table: str = ""
    """`schema.table` of the row. Empty: no known table has the id in the key at this time."""


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """The parts of a block that kernels read. `block` keeps their memory alive."""

    block: pa.RecordBatch
    tables: Int64s
    handles: Int64s
    lengths: npt.NDArray[np.int32]
    commit_ts: npt.NDArray[np.uint64]
    start_ts: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Checks:
    """The kernel's comparisons of the images of a block's rows with their checksums."""

    outcomes: npt.NDArray[np.uint8]
    """uint8[rows, 2], for the new and the old image: `checksum.Outcome` or `BY_COLUMNS`. 0: not compared."""
    carried: npt.NDArray[np.uint32]
    """uint32[rows, 2, 2]: for an image that is `BY_COLUMNS` its two sums, for one that is MISMATCHED its sum.
    Undefined otherwise."""
    versions: npt.NDArray[np.uint8]
    """uint8[rows, 2]: the version of an image's checksum; 0 also if it has none."""

    @classmethod
    def of(cls, block: pa.RecordBatch) -> Checks:
        """Empty results for the rows of a block."""
        n = block.num_rows
        outcomes, versions = np.zeros((2, n, 2), dtype=np.uint8)
        return cls(outcomes, np.empty((n, 2, 2), dtype=np.uint32), versions)


def mount(
    block: pa.RecordBatch,
    store: SchemaStore,
    options: MountOptions,
    checks: Checks | None = None,
    *,
    at: int | None = None,
    follows: Follows | None = None,
) -> tuple[list[RowBlock], list[Quarantined]]:
    """Decode a block of ENTRY_SCHEMA with the schemas valid at each row's commit_ts - 1, or all at `at`.

    `follows`: given if the span of the block also has tables that are not wanted. Their rows are left out,
    and so are rows of tables that the store does not know.

    Returns one RowBlock for each table version, with its rows in block order (`position` gives the order
    among all), and the rows that could not be decoded. These are left out silently: index entries, deletes of
    rows that did not exist, and rows of tables without a handle key unless `force_replicate` is set. Without
    `follows`, rows of a table that the store does not know at their time are quarantined. `checks`, if given,
    is filled for `integrity.verify`.
    """
    failed: list[Quarantined] = []
    mounted = list(mount_tiles(block, store, options, failed, checks, at=at, follows=follows))
    return mounted, in_order(failed)


def mount_tiles(
    block: pa.RecordBatch,
    store: SchemaStore,
    options: MountOptions,
    failed: list[Quarantined],
    checks: Checks | None = None,
    *,
    at: int | None = None,
    follows: Follows | None = None,
    tiling: Tiling | None = None,
) -> Iterator[RowBlock]:
    """As `mount`, with each RowBlock decoded when it is asked for; fills `failed`, see `in_order`.

    With `tiling`, a table version has several RowBlocks if it has many rows, and the cells of one are
    undefined when the next is asked for if the memory is the same.
    """
    columns = columns_of(block)
    failed += [
        _quarantined(block, int(row), "this is not the key of a record")
        for row in np.flatnonzero(columns.lengths == record_key.NO_RECORD)
    ]
    for table, rows in _groups(columns, store, at, follows):
        if table is None:
            # docs/guarantees.md#tables-that-share-a-stripe-are-delivered-as-if-each-were-alone: a row of
            # another table of the stripe is no error, and is not sent.
            if follows is not None:
                continue
            failed += [_quarantined(block, int(row), "no table has this id at this time") for row in rows]
        elif table.eligible or options.force_replicate:
            for tile in _tiles(columns, table, rows, tiling):
                taken = buffer if tiling is None else tiling.taken
                group = decode_group(columns, table, tile, options, failed, checks, taken)
                if len(group):
                    yield group


def _tiles(
    columns: BlockColumns, table: TableSchema, rows: Int64s, tiling: Tiling | None
) -> Iterator[Int64s]:
    if tiling is None:
        return iter([rows])
    return tiles(rows, stride_for(len(table.columns)), tiling, columns.commit_ts, columns.start_ts)


def in_order(failed: list[Quarantined]) -> list[Quarantined]:
    """In the order of the block, so that the quarantine has them in commit order, of whatever tables."""
    return sorted(failed, key=lambda row: row.position)


def of_followed(block: pa.RecordBatch, store: SchemaStore, follows: Follows) -> npt.NDArray[np.bool_]:
    """Which rows of a block belong to a table whose version at commit_ts - 1 is followed."""
    found = np.zeros(block.num_rows, dtype=np.bool_)
    for table, rows in _groups(columns_of(block), store, None, follows):
        if table is not None:
            found[rows] = True
    return found


def columns_of(block: pa.RecordBatch) -> BlockColumns:
    """The parts of a block that kernels read, with its keys parsed."""
    n = block.num_rows
    tables, handles = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    lengths = np.empty(n, dtype=np.int32)
    ends, data = binary_of(block, "key")
    record_key.parse_keys(n, ends, data, address(tables), address(handles), address(lengths))
    commit_ts, start_ts = (block.column(name).to_numpy() for name in ("commit_ts", "start_ts"))
    return BlockColumns(block, tables, handles, lengths, commit_ts, start_ts)


def binary_of(block: pa.RecordBatch, name: str) -> tuple[int, int]:
    """Addresses of a binary column's offsets and bytes. The column may be a slice."""
    column = block.column(name)
    _, ends, data = column.buffers()
    return address(ends) + 4 * column.offset, address(data)


def _bytes(block: pa.RecordBatch, name: str) -> int:
    """Address of a uint8 column's first value."""
    column = block.column(name)
    return address(column.buffers()[1]) + int(column.offset)


def _groups(
    columns: BlockColumns, store: SchemaStore, at: int | None, follows: Follows | None
) -> Iterator[tuple[TableSchema | None, Int64s]]:
    """The rows of each table version, in block order. Rows whose keys are not record keys are in no group."""
    groups: dict[int, tuple[TableSchema | None, list[Int64s]]] = {}
    # The partitions of a table share one version, so their rows become one group. Sorting restores the
    # block's order.
    for physical_id, rows in _by_table(columns):
        for table, part in _by_version(columns, rows, physical_id, store, at, follows):
            groups.setdefault(id(table), (table, []))[1].append(part)
    for table, parts in groups.values():
        yield table, parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))


def _by_table(columns: BlockColumns) -> Iterator[tuple[int, Int64s]]:
    records = np.flatnonzero(columns.lengths >= 0)
    if not len(records):
        return
    ids = columns.tables if len(records) == len(columns.tables) else columns.tables[records]
    # One table needs no sorting.
    if ids.min() == ids.max():
        yield int(ids[0]), records
        return
    # Stable, so that the rows of a table stay in the order of the block.
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    starts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1))
    for start, part in zip(starts, np.split(records[order], starts[1:]), strict=True):
        yield int(ids[start]), part


def _by_version(
    columns: BlockColumns,
    rows: Int64s,
    physical_id: int,
    store: SchemaStore,
    at: int | None,
    follows: Follows | None,
) -> Iterator[tuple[TableSchema | None, Int64s]]:
    """The rows of a physical table, grouped by the version valid at commit_ts - 1, or at `at`."""
    if at is not None:
        yield store.table(physical_id, at), rows
        return
    times = columns.commit_ts[rows]
    low, high = int(times.min()) - 1, int(times.max()) - 1
    versions = store.versions(physical_id, low, high, follows)
    # The usual case: no DDL within the block, so its rows need not be compared with the versions one by one.
    if len(versions) == 1 and versions[0][0] <= low:
        yield versions[0][1], rows
        return
    starts = np.array([start for start, _ in versions], dtype=np.uint64)
    known = [None, *(table for _, table in versions)]
    # `left` counts the versions that begin below commit_ts: those that are valid at commit_ts - 1.
    which = np.searchsorted(starts, times, side="left")
    for i in np.unique(which):
        yield known[int(i)], rows[which == i]


def decode_group(
    columns: BlockColumns,
    table: TableSchema,
    rows: Int64s,
    options: MountOptions,
    failed: list[Quarantined],
    checks: Checks | None = None,
    taken: Taken = buffer,
) -> RowBlock:
    """Decode the rows `rows` of a block, all of one table version. Damaged rows are appended to `failed`.
    `taken`: gives the memory for cells.
    """
    zoned = options.time_zone.upper() != "UTC"
    plan = plan_of(table, zoned)
    n, block = len(rows), columns.block
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    new, old = empty_images(n, plan.stride, taken)
    ops, faults = np.empty(n, dtype=np.uint8), np.empty(n, dtype=np.int64)
    free = buffer(_key_bytes(block, rows)) if plan.datums else buffer(0)
    context = np.empty(row_context.CONTEXT_WORDS, dtype=np.int64)
    refused = row_kernels.decode_rows(
        *arguments(columns, plan, rows, new, old, ops, faults, free, context, checks)
    )
    # Cells point into all three: to values, to the plan's defaults, and to the columns of keys that the
    # kernel has decoded.
    owners: tuple[Any, ...] = (block, plan, free)
    # An image has each default at most once.
    largest = int(context[row_context.CONTEXT_LONGEST // 8]) + len(plan.defaults)
    group = RowBlock(
        table=table,
        op=ops,
        commit_ts=columns.commit_ts[rows],
        start_ts=columns.start_ts[rows],
        physical_id=columns.tables[rows],
        handle=columns.handles[rows],
        position=rows,
        new=new,
        old=old,
        owners=owners,
        row_keys=_row_keys(block, rows) if options.row_keys else None,
        extent=Extent(largest, int(context[row_context.CONTEXT_TOTAL // 8])),
    )
    return _decode_refused(group, faults, options, failed) if refused else group


def arguments(
    columns: BlockColumns,
    plan: DecodePlan,
    rows: Int64s,
    new: Image,
    old: Image,
    ops: npt.NDArray[np.uint8],
    faults: Int64s,
    free: npt.NDArray[Any],
    context: Int64s,
    checks: Checks | None = None,
) -> tuple[int, int, row_kernels.Block, Table, row_kernels.Decoded, int, int]:
    """The arguments of `tidb.kernels.row.decode_rows`. The caller must keep all parameters alive."""
    block = columns.block
    entries = row_kernels.Block(
        *binary_of(block, "key"),
        address(columns.handles),
        _bytes(block, "op"),
        *binary_of(block, "value"),
        *binary_of(block, "old_value"),
    )
    table = Table(address(plan.lines), len(plan.lines), plan.datums)
    out = row_kernels.Decoded(
        stride=plan.stride,
        ops=address(ops),
        new_words=address(new.words),
        new_sizes=address(new.sizes),
        old_words=address(old.words),
        old_sizes=address(old.sizes),
        faults=address(faults),
        outcomes=0 if checks is None else address(checks.outcomes),
        carried=0 if checks is None else address(checks.carried),
        versions=0 if checks is None else address(checks.versions),
    )
    return len(rows), address(rows), entries, table, out, address(free), address(context)


def _row_keys(block: pa.RecordBatch, rows: Int64s) -> Int64s:
    """Address and size of the keys of these rows. The block keeps the keys alive."""
    column = block.column("key")
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[column.offset :].astype(np.int64)
    return np.stack([ends[rows] + data.address, ends[rows + 1] - ends[rows]], axis=1)


def _key_bytes(block: pa.RecordBatch, rows: Int64s) -> int:
    """The bytes of these rows' keys, and the pad."""
    column = block.column("key")
    ends = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset :]
    return int((ends[rows + 1] - ends[rows]).sum()) + PAD


# --- what the kernel refused ----------------------------------------------------------------------------


def _decode_refused(
    group: RowBlock, faults: Int64s, options: MountOptions, failed: list[Quarantined]
) -> RowBlock:
    """Decode refused rows with the plain path, and drop rows that are damaged or have no image."""
    block: pa.RecordBatch = group.owners[0]
    keep = group.op != 0
    pool = BytePool()
    cells: list[tuple[Image, int, int, int, int]] = []
    for i in np.flatnonzero(faults):
        row = int(group.position[i])
        try:
            cells += _plain_cells(group, int(i), block, options, pool)
        except Undecodable as error:
            keep[i] = False
            failed.append(_quarantined(block, row, error.render(), group.table.name))
    # Only now do the bytes have an address, as the pool moves while it grows.
    data, base = pool.finish()
    for image, at, c, word, length in cells:
        points = length != NULL and FORMS[group.table.columns[c].kind] in POINTERS
        image.words[at, c] = word + base if points else word
        image.sizes[at, c] = length
    # The plain path need not give as many bytes as the kernel would.
    return replace(take(group, np.flatnonzero(keep)), owners=(*group.owners, data), extent=None)


def _plain_cells(
    group: RowBlock, i: int, block: pa.RecordBatch, options: MountOptions, pool: BytePool
) -> list[tuple[Image, int, int, int, int]]:
    """Decode a row that the kernel refused with the plain path, to cells that replace the kernel's."""
    zone = temporal.zone(options.time_zone)
    change = mount_row(_entry(block, int(group.position[i])), group.table, zone)
    cells: list[tuple[Image, int, int, int, int]] = []
    if change is None:
        return cells
    for image, values in ((group.new, change.new), (group.old, change.old)):
        for c, (column, item) in enumerate(zip(group.table.columns, values or (), strict=False)):
            cells.append((image, i, c, *pool.cell(value.parse(column, item, zone))))
    return cells


def _entry(block: pa.RecordBatch, row: int) -> Entry:
    return Entry(*block.slice(row, 1).to_pylist()[0].values())


def _quarantined(block: pa.RecordBatch, row: int, why: str, table: str = "") -> Quarantined:
    entry = _entry(block, row)
    return Quarantined(row, entry.commit_ts, entry.key, entry.value, entry.old_value, why, table)
