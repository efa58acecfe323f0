"""The files of a table at one snapshot: its data files, and which of their rows are deleted.

All reading and writing of rows goes through it, in both write modes: a table may have delete files from the
time when another mode was set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.typedef import Record

from tidegate.consumer.iceberg import position_deletes
from tidegate.consumer.iceberg.data_files import Touched, read
from tidegate.consumer.iceberg.partitions import values_of
from tidegate.consumer.iceberg.position_deletes import Positions

DELETES_MAX: Final = 8
"""If a partition has more delete files that are due, a commit merges them into one."""
SMALL_BYTES: Final = 1 << 20
"""A delete file below this size is due. So is one most of whose rows are in data files that are gone."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Rows of a data file that a commit deletes. The file stays."""

    file: DataFile
    positions: Positions


@dataclass(slots=True)
class Change:
    """The data files that a commit replaces and adds, and the rows that others lose."""

    replaced: list[DataFile] = field(default_factory=list)
    made: list[DataFile] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)

    @property
    def lost_rows(self) -> int:
        """How many rows become dead without a rewrite."""
        return sum(len(one.positions) for one in self.lost)


class TableFiles:
    """A table's files at its newest snapshot."""

    def __init__(
        self,
        table: Table,
        tasks: list[FileScanTask],
        deletes: Sequence[tuple[DataFile, dict[str, Positions]]],
    ) -> None:
        """`deletes`: the delete files with their contents."""
        # A table of its own, because a commit changes the open one while rows are still read.
        self.table = Table(table.name(), table.metadata, table.metadata_location, table.io, table.catalog)
        self.tasks, self._deletes = tasks, deletes
        self._dead: dict[str, list[Positions]] = {}
        for _, contents in deletes:
            for path, positions in contents.items():
                self._dead.setdefault(path, []).append(positions)

    @property
    def data_files(self) -> list[DataFile]:
        """The data files."""
        return [task.file for task in self.tasks]

    def dead(self, file: DataFile) -> int:
        """How many rows of a data file are deleted."""
        return sum(map(len, self._dead.get(file.file_path, ())))

    def rows(self, task: FileScanTask, columns: pa.Schema) -> pa.Table:
        """The rows of a data file that are not deleted."""
        rows = read(self.table, task, columns)
        if not self.dead(task.file):
            return rows
        return rows.filter(pa.array(self._alive(task, rows.num_rows)))

    def hits(self, task: FileScanTask, touched: Touched) -> Positions:
        """The positions of the rows of a data file with one of the keys. Reads only the key columns."""
        found = touched.found_in(read(self.table, task, touched.columns)) >= 0
        # An older version of a row may be in this file: it is dead, and must not be deleted once more.
        return np.flatnonzero(found & self._alive(task, len(found))).astype(np.uint32)

    def _alive(self, task: FileScanTask, count: int) -> npt.NDArray[np.bool_]:
        alive = np.ones(count, np.bool_)
        for positions in self._dead.get(task.file.file_path, ()):
            alive[positions] = False
        return alive

    def settle(self, change: Change, io: FileIO) -> tuple[list[DataFile], list[DataFile]]:
        """The files that a commit of this change removes and adds; writes the delete files.

        A delete file is removed if no data file stays that it has rows of. If a partition has too many that
        are due, they become one, together with the rows that it loses now.
        """
        removed, added = list(change.replaced), list(change.made)
        parts: dict[tuple[Any, ...], _Part] = {}
        for lost in change.lost:
            _part(parts, lost.file).add({lost.file.file_path: lost.positions})
        if change.replaced or change.lost:
            gone = {file.file_path for file in change.replaced}
            stay = {file.file_path for file in self.data_files} - gone
            for file, contents in self._deletes:
                left = {path: positions for path, positions in contents.items() if path in stay}
                rows = sum(map(len, left.values()))
                if not rows:
                    removed.append(file)
                # Small, or mostly about files that are gone: worth joining with others.
                elif file.file_size_in_bytes < SMALL_BYTES or 2 * rows < file.record_count:
                    _part(parts, file).due.append((file, left))
        for part in parts.values():
            if len(part.due) >= DELETES_MAX:
                for file, left in part.due:
                    removed.append(file)
                    part.add(left)
            if part.lost:
                location = self.table.metadata.location
                added.append(position_deletes.write(location, io, part.partition, part.lost))
        return removed, added


@dataclass(slots=True)
class _Part:
    """A partition: the rows that its next delete file has, and its delete files that are due."""

    partition: Record
    lost: dict[str, list[Positions]] = field(default_factory=dict)
    due: list[tuple[DataFile, dict[str, Positions]]] = field(default_factory=list)

    def add(self, contents: dict[str, Positions]) -> None:
        for path, positions in contents.items():
            self.lost.setdefault(path, []).append(positions)


def _part(parts: dict[tuple[Any, ...], _Part], file: DataFile) -> _Part:
    return parts.setdefault(values_of(file), _Part(file.partition))
