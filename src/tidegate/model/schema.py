"""Tables, columns and handle keys of one version of a table.

`tidegate.tidb.table_info` builds them from TiDB's TableInfo. Everything here is immutable and hashable by
identity, so that the kernels can cache plans per table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    """How a column's value is represented between stages; the kernels branch on it.

    `word` and `size` are the two halves of a cell (see `model.cells`). The size is -1 for SQL NULL.
    """

    INT = 1  # word: i64; tinyint..bigint signed
    UINT = 2  # word: u64; tinyint..bigint unsigned
    FLOAT = 3  # word: bits of the f64 that holds the f32
    DOUBLE = 4  # word: bits of the f64
    DECIMAL = 5  # word: address, size: that of precision u8, frac u8, MySQL binary decimal
    STRING = 6  # word: address, size: bytes; text in the column's charset (utf8mb4 bytes)
    BYTES = 7  # word: address, size: bytes; binary, varbinary, blobs
    DATE = 8  # word: u64 packed time
    DATETIME = 9  # word: u64 packed time
    TIMESTAMP = 10  # word: u64 packed time in UTC
    TIME = 11  # word: i64 nanoseconds
    YEAR = 12  # word: i64
    ENUM = 13  # word: u64 index, 1-based, 0 = invalid
    SET = 14  # word: u64 bitmask
    BIT = 15  # word: u64
    JSON = 16  # word: address, size: that of type code u8 and binary JSON
    VECTOR = 17  # word: address, size: that of u32 LE dimension and f32 LE each


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One column of one table version, in TiDB's own terms."""

    id: int
    name: str
    offset: int
    kind: Kind
    mysql_type: int
    """MySQL's type code: docs/formats/columns.md#type-codes."""
    flag: int
    """TiDB's flags: 1 not null, 2 primary key, 4 unique, 8 multiple, 32 unsigned, 64 zerofill, 128 binary."""
    flen: int
    decimal: int
    charset: str
    collate: str
    elems: tuple[str, ...]
    default: Any
    default_is_expr: bool
    origin_default: Any
    generated: str
    """The expression of a generated column, otherwise empty."""
    stored: bool
    hidden: bool
    state: int
    """5: public; other numbers are intermediate states of a DDL."""
    version: int

    @property
    def unsigned(self) -> bool:
        return bool(self.flag & 32)

    @property
    def nullable(self) -> bool:
        return not self.flag & 1

    @property
    def visible(self) -> bool:
        """Whether TiCDC emits it: public and not a virtual generated column."""
        return self.state == 5 and (self.generated == "" or self.stored)


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """One public index; `columns` are offsets into the TableInfo's `cols`."""

    id: int
    name: str
    columns: tuple[int, ...]
    lengths: tuple[int, ...]
    """Prefix length per column, -1 = the whole column."""
    unique: bool
    primary: bool


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TableSchema:
    """One version of one table, valid from `version` (the FinishedTS of the DDL that made it)."""

    schema: str
    table: str
    id: int
    """Logical table id. For a partitioned table it is not the id in the keys."""
    version: int
    columns: tuple[Column, ...]
    """The emitted (visible) columns in table order."""
    ticdc_flags: tuple[int, ...]
    """TiCDC's flag bits per emitted column: docs/formats/columns.md#flags."""
    handle_key: tuple[int, ...]
    """Positions in `columns` of the handle key (docs/formats/columns.md#handle-key). Empty: not
    replicated."""
    primary_key: tuple[int, ...]
    """Positions in `columns` of the primary key's columns, otherwise empty."""
    indexes: tuple[Index, ...]
    pk_is_handle: bool
    is_common_handle: bool
    handle_columns: tuple[int, ...]
    """Positions in `columns` of the columns stored in the record key, in key order; empty for _tidb_rowid."""
    partitions: tuple[int, ...]
    """The physical ids of a partitioned table, otherwise empty."""
    charset: str
    collate: str
    info: dict[str, Any]
    """The TableInfo JSON from which it was built."""

    @property
    def eligible(self) -> bool:
        """Whether TiCDC replicates it without `force-replicate`."""
        return bool(self.handle_key)

    @property
    def physical_ids(self) -> tuple[int, ...]:
        """The table ids that occur in record keys."""
        return self.partitions or (self.id,)

    @property
    def name(self) -> str:
        """`schema.table`, for people."""
        return f"{self.schema}.{self.table}"
