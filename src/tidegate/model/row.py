"""One decoded row change, for the plain (row-wise) twins of the kernels and for people.

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
    """What messages tell of a row's checksums: its images' columns' sums (docs/formats/checksums.md)."""

    current: int
    """Of the new image; 0: none. After a mismatch of raw bytes, the sum that the row carried."""
    previous: int
    """Of the old image, likewise."""
    version: int
    """Of the checksum in TiKV's value."""
    corrupted: bool
    """Whether an image is not what its checksum says."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row change with before and after image, aligned with `table.columns`."""

    table: TableSchema
    commit_ts: int
    start_ts: int
    physical_id: int
    handle: int
    """Int handle or _tidb_rowid; 0 for common handles."""
    old: tuple[Value, ...] | None
    new: tuple[Value, ...] | None
    checksum: RowChecksum | None = None
    """None: no image carries one, or nobody compared."""
    row_key: bytes = field(default=b"", compare=False)
    """The row's key in TiKV, for a protocol that sends it; it says what table and handle say."""

    def __post_init__(self) -> None:
        assert self.old is not None or self.new is not None

    @property
    def upstream_checksum(self) -> RowChecksum | None:
        """The checksum without the sum of an image that is not here: a split update shares it out."""
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
