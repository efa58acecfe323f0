"""Which data files are rewritten although their rows stay the same: small ones, and those with dead rows.

It happens before a snapshot is named, so its work is bounded by the changes since the last snapshot: at most
`COPIED_MAX` rows are copied for each row that became dead. If all files of a table reach the share `WORN` at
once, they are rewritten one after another over the next commits. Meanwhile their share of dead rows stays
below one half: the changes that would bring it there pay for rewriting the whole table.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidegate.consumer.lakehouse.write_mode import WriteMode, is_worn

FILE_BYTES: Final = 64 << 20
"""Bytes of a data file's rows in memory."""
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


@dataclass(frozen=True, slots=True)
class Compactable:
    """A data file of a table, as far as the choice depends on it."""

    name: str
    size: int
    """Bytes on disk."""
    rows: int
    dead: int
    """How many of them are deleted."""
    partition: Hashable


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

    def choose(self, path: str, files: Sequence[Compactable]) -> list[list[int]]:
        """The places of the data files to rewrite, those of one partition together."""
        small = [at for at, file in enumerate(files) if self._is_small(file)]
        crowded = [part for part in _by_partition(files, small) if len(part) > COMPACT_FILES]
        chosen = {at for part in crowded for at in part}
        worn = [at for at in self._worn(path, files) if at not in chosen]
        return crowded + _by_partition(files, worn)

    def _worn(self, path: str, files: Sequence[Compactable]) -> list[int]:
        """Files of which too many rows are dead, the worst first."""
        share = [file.dead / max(1, file.rows) for file in files]
        worst = sorted((at for at, one in enumerate(share) if one), key=share.__getitem__, reverse=True)
        # Taken out: what no file needs now is not saved for later (see below).
        credit = self._credit.pop(path, 0)
        if self._mode is WriteMode.COPY_ON_WRITE:
            return worst[:CLEANED_FILES]
        found = list[int]()
        for at in worst:
            if not is_worn(files[at].dead, files[at].rows):
                break
            copied = files[at].rows - files[at].dead
            if copied > credit:
                # It waits until more rows are dead. Credit that no file waits for is not kept, because it
                # would pay for many files at once.
                self._credit[path] = credit
                break
            credit -= copied
            found.append(at)
        return found

    def _is_small(self, file: Compactable) -> bool:
        """Whether to merge it with others. A full file may be small on disk, if its rows compress well."""
        if len(self._full) > FULL_MAX:
            self._full.clear()
        return file.size < SMALL_BYTES and file.name not in self._full

    def made(self, rows: pa.Table, names: Collection[str]) -> None:
        """Note the files that compaction has written with these rows."""
        if rows.nbytes >= FILE_BYTES:
            self._full |= set(names)


def _by_partition(files: Sequence[Compactable], places: Iterable[int]) -> list[list[int]]:
    found: dict[Hashable, list[int]] = {}
    for at in places:
        found.setdefault(files[at].partition, []).append(at)
    return list(found.values())


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
