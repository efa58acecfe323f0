"""Position delete files of format version 2: which rows of which data files are deleted.

A delete file is a Parquet file of rows (file_path, pos), sorted: `pos` counts the rows of the data file
`file_path` from 0. Readers leave these rows out. One commit writes at most one delete file per partition,
because a file for each data file would be thousands of tiny ones in a large table.

    file_path  string, field id 2147483546
    pos        long, field id 2147483545

pyiceberg 0.12 reads such files and has no code to write them. Its scan finds them by their partition and by
the bounds of `file_path`, and so do other engines (https://iceberg.apache.org/spec/#position-delete-files).
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

Positions = npt.NDArray[np.uint32]
"""Rows of one data file. 32 bits suffice: a data file has far fewer than 2^32 rows (`FILE_BYTES`)."""

PATH_ID: Final = 2147483546
POS_ID: Final = 2147483545
COLUMNS: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POS_ID)}),
    ]
)
GROUP_ROWS: Final = 1 << 18
"""Rows of a group of a delete file."""
REMEMBERED_MAX: Final = 16 << 20
"""How many positions are remembered, over all tables: four bytes each. Files beyond it are read again."""


class DeleteFiles:
    """Remembers the contents of delete files, which never change. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, dict[str, Positions]] = OrderedDict()
        self._count = 0

    def contents(self, file: DataFile, io: FileIO) -> dict[str, Positions]:
        """The deleted rows by data file."""
        with self._lock:
            held = self._known.get(file.file_path)
            if held is not None:
                self._known.move_to_end(file.file_path)
                return held
        # Without the lock: two threads may read the same file, but neither waits for another's.
        found = read(file, io)
        with self._lock:
            if file.file_path not in self._known:
                self._known[file.file_path] = found
                self._count += _size(found)
            # The newest stays even if it is too large alone: the commit that asked for it will ask again.
            while self._count > REMEMBERED_MAX and len(self._known) > 1:
                self._count -= _size(self._known.popitem(last=False)[1])
        return found


def _size(contents: Mapping[str, Positions]) -> int:
    return 1 + sum(map(len, contents.values()))


def read(file: DataFile, io: FileIO) -> dict[str, Positions]:
    """The deleted rows by data file."""
    with io.new_input(file.file_path).open() as opened:
        rows = pq.read_table(opened, read_dictionary=["file_path"]).unify_dictionaries()
    paths = rows["file_path"].combine_chunks()
    codes = np.asarray(paths.indices)
    # Stable, so that the positions of one data file stay in their order.
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(paths.dictionary)))
    positions = rows["pos"].to_numpy().astype(np.uint32)[order]
    parts = np.split(positions, ends[:-1])
    return dict(zip(paths.dictionary.to_pylist(), parts, strict=True))


def write(
    location: str, io: FileIO, partition: Record, deleted: Mapping[str, Sequence[Positions]]
) -> DataFile:
    """Write a delete file of a table at `location`. `deleted`: by data file, at least one row in each."""
    paths = sorted(deleted)
    positions = [np.sort(np.concatenate(list(deleted[path]))) for path in paths]
    codes = np.repeat(np.arange(len(paths), dtype=np.int32), [len(some) for some in positions])
    column = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(paths))
    pos = np.concatenate(positions)
    output = io.new_output(f"{location}/data/{uuid.uuid4()}-deletes.parquet")
    # Plain numbers, because some vectorised readers know no other encoding of them.
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["file_path"]}
    with output.create() as opened, pq.ParquetWriter(opened, COLUMNS, **options) as file:
        # In groups, because each row gets a whole path on its way into the file: 100 bytes instead of four.
        for at in range(0, len(pos), GROUP_ROWS):
            chosen = pos[at : at + GROUP_ROWS].astype(np.int64)
            group = [column.slice(at, len(chosen)).cast(pa.string()), pa.array(chosen)]
            file.write_table(pa.table(group, schema=COLUMNS))
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=output.location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=len(pos),
        file_size_in_bytes=len(output),
        column_sizes={},
        value_counts={PATH_ID: len(pos), POS_ID: len(pos)},
        null_value_counts={PATH_ID: 0, POS_ID: 0},
        nan_value_counts={},
        # Whole paths: readers compare them, and a shortened one would hide the file from its data files.
        lower_bounds={PATH_ID: paths[0].encode(), POS_ID: to_bytes(LongType(), int(pos.min()))},
        upper_bounds={PATH_ID: paths[-1].encode(), POS_ID: to_bytes(LongType(), int(pos.max()))},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
