"""One decoded row change, for the plain (row-wise) twins of the kernels and for output to people.

Python values per kind: INT, UINT, YEAR, ENUM, SET, BIT -> int; FLOAT, DOUBLE -> float; STRING -> bytes
in UTF-8; BYTES -> bytes; DECIMAL, DATE, DATETIME, TIMESTAMP, TIME, JSON, VECTOR -> str, TiDB's canonical
text (docs/formats/columns.md#canonical-text); NULL -> None. TIMESTAMP text is in the feed's time zone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.model.schema import TableSchema

Value = int | float | str | bytes | None


class RowChecksum(NamedTuple):
    """The checksums of a row, as messages carry them: sums over each image's columns
    (docs/formats/checksums.md).
    """

    current: int
    """Checksum of the new image; 0: none. After a mismatch of raw bytes, the sum that the row carried."""
    previous: int
    """Checksum of the old image, in the same way."""
    version: int
    """The version of the checksum in TiKV's value."""
    corrupted: bool
    """Whether an image does not match its checksum."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row change with its images before and after, whose values are in the order of `table.columns`."""

    table: TableSchema
    commit_ts: int
    start_ts: int
    physical_id: int
    handle: int
    """Int handle or _tidb_rowid; 0 for common handles."""
    old: tuple[Value, ...] | None
    new: tuple[Value, ...] | None
    checksum: RowChecksum | None = None
    """None: no image carries a checksum, or checksums were not compared."""
    row_key: bytes = field(default=b"", compare=False)
    """The row's key in TiKV, for a protocol that sends it. Not compared: table and handle imply it."""

    def __post_init__(self) -> None:
        assert self.old is not None or self.new is not None

    @property
    def upstream_checksum(self) -> RowChecksum | None:
        """The checksum without the sum of an image that this change lacks, as each half of a split update
        does.
        """
        if self.checksum is None:
            return None
        current, previous, version, corrupted = self.checksum
        current = 0 if self.is_delete else current
        return RowChecksum(current, 0 if self.is_insert else previous, version, corrupted)

    @property
    def is_insert(self) -> bool:
        return self.old is None

    @property
    def is_delete(self) -> bool:
        return self.new is None

    @property
    def is_update(self) -> bool:
        return self.old is not None and self.new is not None
