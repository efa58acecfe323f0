"""One immutable sorted run: an Arrow IPC file of ENTRY_SCHEMA batches.

Schema metadata (ASCII): `tidegate.format` = 2, `tidegate.span`, `tidegate.rows`, `tidegate.min_ts`,
`tidegate.max_ts`. Each batch's custom metadata holds `crc32c`: eight hex digits of the CRC32C over its
buffers' meaningful bytes in column order (offsets before data, no padding). Batches are cut at 65,536 rows or
8 MiB. Between the batches and Arrow's footer is the `directory`, which says where each table's rows are;
segments of keys without tables have none. A file becomes part of the store only when a manifest names it;
until then the store may delete it.

Durability: `process` leaves the bytes in the page cache, which survives kill -9; `fsync` also survives the
machine.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
from crc32c import crc32c

from tidegate.disk import writing
from tidegate.errors import Fatal
from tidegate.eventstore import directory
from tidegate.eventstore.directory import BatchTables, Directory, Tables
from tidegate.eventstore.segment_file import PiecewiseFile
from tidegate.model.block import ENTRY_SCHEMA

FORMAT: Final = 2
UNLOAD_BYTES: Final = 1 << 20
"""Mapped pages are released only for batches of at least this many bytes; less is not worth the call."""
Durability = Literal["process", "fsync"]

_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, IndexError, KeyError, AttributeError)
"""The errors that Arrow raises for bytes that are not a batch."""

_RESTORE: Final = (
    "while a capture runs it pulls the changes again; otherwise restore the file from a copy, or stop the "
    "capture, remove this span's folder and start again: its changes are then pulled again from the "
    "checkpoint, as far as TiKV's GC safepoint allows"
)


class DamagedSegment(Fatal):
    """A file is not what the manifest says. Readers report it, and the puller's repair replaces it.

    `file`: its name.
    """

    def __init__(self, path: Path, at: str, why: str) -> None:
        self.file = path.name
        super().__init__(
            "a segment of the event store is corrupt", where=f"{path}, {at}", why=why, fix=_RESTORE
        )


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """One batch of a segment, as the manifest lists it.

    `at`: byte offset in the file. `bytes`: the bytes of its keys, values and old values.
    """

    at: int
    rows: int
    bytes: int
    min_ts: int
    max_ts: int


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment, as the manifest lists it.

    `bytes` is the file's size. `valid_to`: rows with a larger commit_ts do not count, because they were
    written but not announced when the process died, and are pulled again; None if all rows count.
    `directory`: its offset in the file; 0 if there is none.
    """

    file: str
    rows: int
    bytes: int
    min_ts: int
    max_ts: int
    valid_to: int | None = None
    directory: int = 0
    blocks: tuple[BlockInfo, ...] = field(default=())

    @property
    def last_ts(self) -> int:
        """The largest commit_ts that counts."""
        return self.max_ts if self.valid_to is None else min(self.max_ts, self.valid_to)

    @property
    def batch_rows(self) -> list[int]:
        """The number of rows of each batch."""
        return [block.rows for block in self.blocks]

    def overlaps(self, after: int, upto: int) -> bool:
        """Whether a row that counts may be in (after, upto]."""
        return self.min_ts <= upto and self.last_ts > after


def _buffers(batch: pa.RecordBatch) -> list[pa.Buffer]:
    """The meaningful bytes of a batch that starts at offset 0, in column order."""
    rows = batch.num_rows
    parts = [batch.column(i).buffers()[1].slice(0, rows * w) for i, w in enumerate((8, 8, 1))]
    for i in (3, 4, 5):
        _, offsets, data = batch.column(i).buffers()
        offsets = offsets.slice(0, 4 * (rows + 1))
        # The last offset says how many bytes are in use; the buffer may be larger.
        size = int.from_bytes(memoryview(offsets)[-4:], "little")
        parts.append(offsets)
        if size:
            parts.append(data.slice(0, size))
    return parts


def _plain(batch: pa.RecordBatch, rows: int) -> bool:
    """Whether a batch has `rows` rows and no nulls, as its header says; the CRC does not cover the header."""
    columns = batch.columns
    return batch.num_rows == rows and all(
        len(c) == rows and c.offset == 0 and c.null_count == 0 and c.buffers()[0] is None for c in columns
    )


def _crc(batch: pa.RecordBatch) -> int:
    crc = 0
    for part in _buffers(batch):
        crc = crc32c(part, crc)
    return crc


def data_bytes(batch: pa.RecordBatch) -> int:
    """The bytes of keys, values and old values in a batch."""
    total = 0
    for i in (3, 4, 5):
        column = batch.column(i)
        offsets = memoryview(column.buffers()[1]).cast("i")
        total += offsets[column.offset + len(column)] - offsets[column.offset]
    return total


def ends(batch: pa.RecordBatch) -> tuple[int, int]:
    """The first and the last commit_ts of a sorted, non-empty batch."""
    commits = batch.column(0)
    return commits[0].as_py(), commits[len(commits) - 1].as_py()


@dataclass(frozen=True, slots=True)
class Facts:
    """The values in a segment's schema metadata."""

    span: str
    rows: int
    min_ts: int
    max_ts: int


Index = Callable[[pa.RecordBatch], BatchTables]
"""A function that makes the directory entries of a batch: `directory_kernels.tables_of`."""


def write(
    folder: Path,
    name: str,
    facts: Facts,
    batches: Iterable[pa.RecordBatch],
    durable: Durability = "process",
    index: Index | None = None,
) -> SegmentInfo:
    """Write sorted, non-empty batches (each starting at offset 0) as one segment; replaces an old file.

    A batch is no longer used when the next one is requested, so batches may share a `kernels.Scratch`. With
    `index` the segment gets a directory. Raises DiskFull; then there is no file.
    """
    metadata = {"format": FORMAT, "span": facts.span, "rows": facts.rows}
    metadata |= {"min_ts": facts.min_ts, "max_ts": facts.max_ts}
    schema = ENTRY_SCHEMA.with_metadata({f"tidegate.{k}": str(v) for k, v in metadata.items()})
    path = folder / name
    blocks: list[BlockInfo] = []
    tables: list[BatchTables] = []
    at = 0
    with writing(path):
        with PiecewiseFile(path) as file:
            with pa.ipc.new_file(pa.PythonFile(file, mode="wb"), schema) as writer:
                for batch in batches:
                    # Everything about a batch is taken before the next one is requested, because both may
                    # share memory.
                    blocks.append(BlockInfo(file.size, batch.num_rows, data_bytes(batch), *ends(batch)))
                    if index is not None:
                        tables.append(index(batch))
                    writer.write_batch(batch, custom_metadata={"crc32c": f"{_crc(batch):08x}"})
                    file.flush()
                if index is not None:
                    # Arrow's footer holds the offset of each batch, so Arrow ignores bytes between the last
                    # batch and the footer.
                    at = file.size
                    file.write(directory.encode(tables))
            file.flush()
        if durable == "fsync":
            sync(path)
    return SegmentInfo(name, facts.rows, file.size, facts.min_ts, facts.max_ts, None, at, tuple(blocks))


def tables_in(folder: Path, info: SegmentInfo) -> Tables:
    """The ids of the tables whose rows or other keys a segment holds. No batch is read.

    The segment must have a directory. Raises FileNotFoundError if the file is gone, DamagedSegment.
    """
    assert info.directory, "a segment of keys without tables"
    path = folder / info.file
    with path.open("rb") as file:
        try:
            return directory.read(file.fileno(), info.directory, info.batch_rows).tables
        except directory.Damaged as found:
            raise _damaged_directory(path, info, found) from None


def _damaged_directory(path: Path, info: SegmentInfo, found: directory.Damaged) -> DamagedSegment:
    return DamagedSegment(path, f"the directory at byte {info.directory}", str(found))


def sync(path: Path) -> None:
    """Force a file's or folder's bytes to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Segment:
    """An open segment. It stays readable even after the store has removed the file."""

    def __init__(self, folder: Path, info: SegmentInfo, without: Container[int] = ()) -> None:
        """Map the file. `without`: the indexes of batches that `indexes` leaves out.

        Raises FileNotFoundError if the file is gone, DamagedSegment if it is not what `info` says.
        """
        self.info, self._path, self._without = info, folder / info.file, without
        self._directory: Directory | None = None
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # An empty file cannot be mapped. A length that differs is cheap to find here; wrong bytes are
            # found by each batch's CRC.
            if size != info.bytes or size == 0:
                raise self._corrupt(0, f"the file has {size} bytes, the manifest says {info.bytes}")
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._reader = pa.ipc.open_file(pa.py_buffer(self._mapped))
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt(0, str(error)) from error
        if not self._reader.schema.equals(ENTRY_SCHEMA) or self._reader.num_record_batches != len(
            info.blocks
        ):
            raise self._corrupt(0, "its schema or its number of batches is not what the manifest says")

    def batch(self, index: int) -> pa.RecordBatch:
        """Batch `index`, its CRC verified; a view of the mapped file.

        Its pages count as this process's memory until this segment's next large batch, or its next `unload`:
        to map them again for the rows costs as much as the CRC itself. So a reader of several segments calls
        `unload`.
        """
        if self.info.blocks[index].bytes >= UNLOAD_BYTES:
            self.unload()  # what was verified before
        batch, expected = self._found(index)
        try:
            good, why = f"{_crc(batch):08x}" == expected, "the CRC32C of a batch does not match its bytes"
        except _UNREADABLE as error:
            good, why = False, f"a batch cannot be read: {error}"
        # docs/guarantees.md#a-corrupt-segment-is-never-served: no reader gets a batch whose CRC differs.
        if not good:
            raise self._corrupt(index, why)
        return batch

    def unproved(self, index: int) -> pa.RecordBatch:
        """Batch `index`, neither read nor verified. The caller must verify every byte that it uses."""
        return self._found(index)[0]

    def _found(self, index: int) -> tuple[pa.RecordBatch, str]:
        """A batch whose shape was checked, and the CRC32C that its bytes must have."""
        try:
            found = self._reader.get_batch_with_custom_metadata(index)
            batch, metadata = found.batch, found.custom_metadata
            expected = metadata[b"crc32c"].decode() if metadata is not None else ""
            # The CRC covers the buffers, not Arrow's header, from which the rows and nulls come.
            if not _plain(batch, self.info.blocks[index].rows):
                raise ValueError("it has other rows than the manifest says, or nulls")
        except _UNREADABLE as error:
            raise self._corrupt(index, f"a batch cannot be read: {error}") from error
        return batch, expected

    @property
    def directory(self) -> Directory:
        """The verified directory; the segment must have one. Raises DamagedSegment."""
        if self._directory is None:
            assert self.info.directory, "a segment of keys without tables"
            view = memoryview(self._mapped)[self.info.directory :]
            try:
                self._directory = Directory(view, self.info.batch_rows)
            except directory.Damaged as found:
                raise _damaged_directory(self._path, self.info, found) from None
        return self._directory

    def unload(self) -> None:
        """Release the mapped pages; batches stay valid, and their bytes come from the page cache again."""
        # All pages of the file, not only those of the last batch, because readers still touch a batch
        # after they have requested the next one.
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def indexes(self, after: int, upto: int) -> Iterator[int]:
        """The batches that may hold rows in (after, upto]."""
        for index, block in enumerate(self.info.blocks):
            if block.min_ts <= upto and block.max_ts > after and index not in self._without:
                yield index

    def damaged(self) -> list[int]:
        """The batches that cannot be read."""
        found = []
        for index in range(len(self.info.blocks)):
            try:
                self.batch(index)
            except DamagedSegment:
                found.append(index)
        return found

    def misplaced(self, index: Index) -> bool:
        """Whether the segment's directory does not match its batches. All batches must be readable."""
        if not self.info.directory:
            return False
        try:
            known = self.directory
        except DamagedSegment:
            return True
        places = range(len(self.info.blocks))
        return not all(directory.same(known.batch(i), index(self.batch(i))) for i in places)

    def not_written(self, batch: int) -> DamagedSegment:
        """The error to raise if rows of an unverified batch are not what was written."""
        return self._corrupt(batch, "rows that the directory names are not what was written")

    def _corrupt(self, batch: int, why: str) -> DamagedSegment:
        offset = self.info.blocks[batch].at if self.info.blocks else 0
        return DamagedSegment(self._path, f"batch {batch} at byte {offset}", why)
