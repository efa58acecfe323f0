"""Where each table's rows are in a segment: the directory behind its batches.

For each batch of a segment, the directory has one *entry* for each table id and class of keys in the batch
(`RECORD`, `OTHER`; `NONE` for keys of no table): the row numbers, which are less than 65,536, and a checksum
over the bytes of those rows. A reader of one table in 10,000 therefore reads only that table's rows, and the
sum verifies them without reading the whole batch, which checking the batch's CRC32C would require. If a batch
has a single entry, no numbers are listed: the entry means all rows.

The bytes, little-endian, at offset `SegmentInfo.directory` of the file; each section is padded with zeros to
a multiple of 8 bytes:

| section | type | |
|---|---|---|
| magic, batches, entries, numbers, CRC32C, 0 | 8 bytes, u32, u32, u64, u32, u32 | CRC of all other bytes |
| first | u32 [batches + 1] | batch b has the entries first[b] to first[b + 1] |
| ids | i64 [entries] | |
| sums | u64 [entries] | `order.sum_of` its rows; 0 for an entry that is all of its batch |
| starts | u32 [entries + 1] | entry e has the numbers starts[e] to starts[e + 1] |
| kinds | u8 [entries] | |
| numbers | u16 [numbers] | ascending within an entry |

Entries of a batch are ordered by their first rows. `directory_kernels.tables_of` makes them; its plain twin
is `order.rows_by_table`. This module loads no kernel.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
U8 = npt.NDArray[np.uint8]

RECORD: Final = 0
"""`t{id}_r`: a row of the table."""
OTHER: Final = 1
"""`t{id}` followed by anything else: an index entry."""
NONE: Final = 2
"""A key of no table; its id counts as 0."""

_HEAD: Final = struct.Struct("<8sIIQII")
_MAGIC: Final = b"tgtables"
_CRC_AT: Final = 24


@dataclass(frozen=True, slots=True)
class BatchTables:
    """The entries of one batch.

    `counts`: the number of rows of each entry. `numbers`: the row numbers, entry after entry; empty if the
    batch has a single entry.
    """

    ids: I64
    kinds: U8
    counts: I64
    sums: U64
    numbers: U16


class Tables(NamedTuple):
    """Ascending table ids: tables with rows (`records`), and tables with other keys (`others`)."""

    records: I64
    others: I64


def encode(batches: Sequence[BatchTables]) -> bytes:
    """The bytes of the directory of a segment that consists of these batches."""
    entries = [len(b.ids) for b in batches]
    listed = [b.counts if len(b.ids) > 1 else np.zeros_like(b.counts) for b in batches]
    starts = np.concatenate([[0], *listed]).cumsum()
    sections = [
        np.cumsum([0, *entries]).astype("<u4"),
        np.concatenate([b.ids for b in batches]).astype("<i8", copy=False),
        np.concatenate([b.sums for b in batches]).astype("<u8", copy=False),
        starts.astype("<u4"),
        np.concatenate([b.kinds for b in batches]),
        np.concatenate([b.numbers for b in batches]).astype("<u2", copy=False),
    ]
    body = b"".join(_filled(section.tobytes()) for section in sections)
    counts = len(batches), sum(entries), int(starts[-1])
    # The CRC covers the head, too, with a CRC of 0 in it.
    crc = crc32c(body, crc32c(_HEAD.pack(_MAGIC, *counts, 0, 0)))
    return _HEAD.pack(_MAGIC, *counts, crc, 0) + body


def _filled(section: bytes) -> bytes:
    return section + bytes(-len(section) % 8)


class Damaged(ValueError):
    """The bytes are not a directory, or not the directory of this segment."""


class Directory:
    """The directory of a segment, verified."""

    def __init__(self, data: memoryview, rows: Sequence[int]) -> None:
        """`data` begins with the directory and may be longer; `rows` has the number of rows of each batch.

        `data` must stay valid and unchanged as long as this object is used, because its arrays are views of
        it. Raises Damaged.
        """
        if len(data) < _HEAD.size:
            raise Damaged("the directory is cut off")
        magic, batches, entries, numbers, crc, zero = _HEAD.unpack_from(data)
        size = size_of(data)
        # The size comes from bytes that are not verified yet, so it is compared before it is used.
        if (magic, batches, zero) != (_MAGIC, len(rows), 0) or size > len(data):
            raise Damaged("the directory does not begin as one")
        head = bytes(data[:_CRC_AT]) + bytes(_HEAD.size - _CRC_AT)
        if crc32c(data[_HEAD.size : size], crc32c(head)) != crc:
            raise Damaged("the CRC32C of the directory does not match its bytes")
        self.size: int = size
        widths = (
            ("<u4", batches + 1),
            ("<i8", entries),
            ("<u8", entries),
            ("<u4", entries + 1),
            ("u1", entries),
        )
        found, at = [], _HEAD.size
        for kind, count in (*widths, ("<u2", numbers)):
            section = np.frombuffer(data, kind, count, at)
            found.append(section)
            at += (section.nbytes + 7) & ~7
        self.first: U32 = found[0]
        self.ids: I64 = found[1]
        self.sums: U64 = found[2]
        self.starts: U32 = found[3]
        self.kinds: U8 = found[4]
        self.numbers: U16 = found[5]
        self._rows = np.array(rows, dtype=np.int64)
        # The CRC proves the bytes, but not that they belong to this segment. The kernels follow these
        # numbers.
        self._check()

    def _check(self) -> None:
        """Check that the counts add up: every row of every batch is in one entry. Raises Damaged."""
        first, starts = self.first.astype(np.int64), self.starts.astype(np.int64)
        good = (
            first[0] == 0
            and first[-1] == len(self.ids)
            and starts[0] == 0
            and starts[-1] == len(self.numbers)
        )
        of_each = np.diff(first)
        if not good or (of_each < 1).any() or (np.diff(starts) < 0).any():
            raise Damaged("the directory contradicts itself")
        # An entry that is all of its batch lists no rows. Entries of any other batch must list each of its
        # rows once, and none may be empty.
        listed = starts[first[1:]] - starts[first[:-1]]
        empty = np.diff(starts) == 0
        if (listed != np.where(of_each == 1, 0, self._rows)).any() or (
            empty != np.repeat(of_each == 1, of_each)
        ).any():
            raise Damaged("the directory's rows and those of the batches do not add up")

    @property
    def tables(self) -> Tables:
        """The table ids of all keys in the segment."""
        return Tables(*(np.unique(self.ids[self.kinds == kind]) for kind in (RECORD, OTHER)))

    def entries_of(self, wanted: I64) -> I64:
        """The entries that hold rows (`RECORD`) of the wanted tables. `wanted` must be ascending."""
        if len(wanted) == 1:
            found = self.ids == wanted[0]
        else:
            at = np.searchsorted(wanted, self.ids)
            # An id above all wanted ones has the index behind the last. The 0 there keeps the index valid,
            # and the comparison below rejects it.
            found = np.append(wanted, 0)[at] == self.ids
            found &= at < len(wanted)
        return np.flatnonzero(found & (self.kinds == RECORD))

    def is_all(self, entry: int) -> bool:
        """Whether an entry means all rows of its batch."""
        return bool(self.starts[entry] == self.starts[entry + 1])

    def batch(self, index: int) -> BatchTables:
        """The entries of one batch."""
        low, high = int(self.first[index]), int(self.first[index + 1])
        starts = self.starts[low : high + 1].astype(np.int64)
        counts = np.diff(starts) if high - low > 1 else self._rows[index : index + 1]
        numbers = self.numbers[starts[0] : starts[-1]]
        return BatchTables(self.ids[low:high], self.kinds[low:high], counts, self.sums[low:high], numbers)


def size_of(head: bytes | memoryview) -> int:
    """The size in bytes of the directory that begins with `head`; nothing is verified."""
    _, batches, entries, numbers, _, _ = _HEAD.unpack_from(head)
    sections = (4 * (batches + 1), 8 * entries, 8 * entries, 4 * (entries + 1), entries, 2 * numbers)
    return int(_HEAD.size + sum((size + 7) & ~7 for size in sections))


def read(descriptor: int, at: int, rows: Sequence[int]) -> Directory:
    """The directory at byte `at` of an open segment; its batches are not read. Raises Damaged."""
    head = os.pread(descriptor, _HEAD.size, at)
    if len(head) < _HEAD.size:
        raise Damaged("the directory is cut off")
    # A damaged head may claim more bytes than the file has.
    left = os.fstat(descriptor).st_size - at
    return Directory(memoryview(os.pread(descriptor, min(size_of(head), left), at)), rows)


def same(one: BatchTables, other: BatchTables) -> bool:
    """Whether two directories describe a batch in the same way."""
    pairs: Iterable[tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]] = (
        (one.ids, other.ids),
        (one.kinds, other.kinds),
        (one.counts, other.counts),
        (one.sums, other.sums),
        (one.numbers, other.numbers),
    )
    return all(np.array_equal(a, b) for a, b in pairs)
