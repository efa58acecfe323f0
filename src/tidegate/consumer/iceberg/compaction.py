"""Which data files are rewritten although their rows stay the same: small ones, and those with dead rows.

It happens before a snapshot is named, so its work is bounded by the changes since the last snapshot: at most
`COPIED_MAX` rows are copied for each row that became dead. If all files of a table reach the share `WORN` at
once, they are rewritten one after another over the next commits. Meanwhile their share of dead rows stays
below one half: the changes that would bring it there pay for rewriting the whole table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask

from tidegate.consumer.iceberg.data_files import FILE_BYTES
from tidegate.consumer.iceberg.partitions import by_partition
from tidegate.consumer.iceberg.table_files import TableFiles
from tidegate.consumer.iceberg.write_mode import WriteMode, is_worn

COMPACT_FILES: Final = 10
"""If a partition has more small data files than this, they become one before the next snapshot is named."""
SMALL_BYTES: Final = 4 << 20
"""A data file below this size on disk is small."""
FULL_MAX: Final = 100_000
"""How many files are remembered as full, over all tables; above that all are forgotten."""
COPIED_MAX: Final = 4
"""Rows that compaction may copy for each row that has become dead."""
CLEANED_FILES: Final = 10
"""Files with dead rows that are rewritten before a snapshot if the write mode is copy-on-write: they are left
from the time when it was the other one."""


class Compaction:
    """Chooses the data files to rewrite, and remembers what is needed for that."""

    def __init__(self, mode: WriteMode) -> None:
        self._mode = mode
        self._full: set[str] = set()
        """Files into which compaction has put as many rows as one file takes, even if they are small on
        disk."""
        self._credit: dict[str, int] = {}
        """By table, the rows that may be copied."""

    def lost(self, path: str, rows: int) -> None:
        """Note that rows of a table have become dead."""
        if rows:
            self._credit[path] = self._credit.get(path, 0) + COPIED_MAX * rows

    def forget(self, path: str) -> None:
        """Forget a table that was removed."""
        self._credit.pop(path, None)

    def choose(self, path: str, files: TableFiles) -> list[list[FileScanTask]]:
        """The data files to rewrite, those of one partition together."""
        small = [task for task in files.tasks if self._is_small(task.file)]
        crowded = [part for part in by_partition(small) if len(part) > COMPACT_FILES]
        chosen = {task.file.file_path for part in crowded for task in part}
        worn = [task for task in self._worn(path, files) if task.file.file_path not in chosen]
        return crowded + by_partition(worn)

    def _worn(self, path: str, files: TableFiles) -> list[FileScanTask]:
        """Files of which too many rows are dead, the worst first."""
        dead = [files.dead(task.file) for task in files.tasks]
        share = [dead[at] / max(1, task.file.record_count) for at, task in enumerate(files.tasks)]
        worst = sorted((at for at, count in enumerate(dead) if count), key=share.__getitem__, reverse=True)
        # Taken out: what no file needs now is not saved for later (see below).
        credit = self._credit.pop(path, 0)
        if self._mode is WriteMode.COPY_ON_WRITE:
            return [files.tasks[at] for at in worst[:CLEANED_FILES]]
        found = list[FileScanTask]()
        for at in worst:
            rows = files.tasks[at].file.record_count
            if not is_worn(dead[at], rows):
                break
            copied = rows - dead[at]
            if copied > credit:
                # It waits until more rows are dead. Credit that no file waits for is not kept, because it
                # would pay for many files at once.
                self._credit[path] = credit
                break
            credit -= copied
            found.append(files.tasks[at])
        return found

    def _is_small(self, file: DataFile) -> bool:
        """Whether to merge it with others. A full file may be small on disk, if its rows compress well."""
        if len(self._full) > FULL_MAX:
            self._full.clear()
        return file.file_size_in_bytes < SMALL_BYTES and file.file_path not in self._full

    def made(self, rows: pa.Table, files: Iterable[DataFile]) -> None:
        """Note the files that compaction has written with these rows."""
        if rows.nbytes >= FILE_BYTES:
            self._full |= {file.file_path for file in files}


def bundles(files: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Joins the rows of neighbouring files into tables of the size of one file: about `FILE_BYTES`."""
    held, size = list[pa.Table](), 0
    for rows in files:
        held.append(rows)
        size += rows.nbytes
        if size >= FILE_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
