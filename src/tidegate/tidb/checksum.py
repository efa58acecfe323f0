"""Row checksums, which TiDB adds to rows of format v2: computed and compared (docs/formats/checksums.md).

    version 0  CRC-32 over the columns' values in the order of their ids: `column_sum`
    version 1  CRC-32 over the row up to and including the checksum's header byte, then the whole record key
    version 2  as version 1, but with only the handle of the key, so it stays valid after a restore under
               another table id

A value has a second sum (`extra`) only in version 0, while a schema change is in progress: the first sum is
of the new columns, the second of those that are still public; one of them must match. An *old* value of
version 0 may have been written before a column was added or dropped, so a difference there proves nothing.
The exception: if its sum equals one of version 1 or 2, the version in its header is damaged. Rows of format
v1, and rows written while the switch was off, carry no checksum and pass unchecked. Messages always carry the
`column_sum`.

The plain twin of `kernels.checksum`. Source: TiDB `pkg/util/rowcodec/{common,row}.go`, TiCDC
`cdc/entry/mounter.go`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final
from zlib import crc32

from tidegate.errors import InvalidInput
from tidegate.model.row import Value
from tidegate.model.schema import Kind, TableSchema
from tidegate.tidb import keys, record, row
from tidegate.tidb.types import vector

_HANDLE_AT: Final = 11
_WORDS: Final = frozenset({Kind.INT, Kind.UINT, Kind.YEAR, Kind.ENUM, Kind.SET, Kind.BIT})
_WORD: Final = (1 << 64) - 1


class Outcome(IntEnum):
    """The result of a comparison for one image of a row."""

    NO_IMAGE = 0
    UNCHECKED = 1
    """It carries no checksum."""
    MATCHED = 2
    EXCUSED = 3
    """An old value of version 0 that differs: its columns may have changed since it was written."""
    MISMATCHED = 4


@dataclass(frozen=True, slots=True)
class Check:
    """The comparison of one image: its version (-1: no checksum), the sum in it, and the computed sum."""

    outcome: Outcome
    version: int = -1
    expected: int = 0
    found: int = 0


def check(table: TableSchema, key: bytes, data: bytes, *, old: bool = False) -> Check:
    """Compare the row value `data` under the record key `key`. Raises Undecodable if decoding it would."""
    carried = row.split(data).checksum
    if carried is None:
        return Check(Outcome.UNCHECKED)
    if carried.version > 0:
        sums = 4 if carried.extra is None else 8
        found = raw_sum(data[:-sums], key, carried.version)
        matched = found == carried.value
        return Check(_outcome(matched), carried.version, carried.value, found)
    found = column_sum(table, record.decode(table, keys.parse_record(key), data))
    matched = found in (carried.value, carried.extra)
    excused = old and not matched and not has_lost_its_version(data, key)
    return Check(Outcome.EXCUSED if excused else _outcome(matched), 0, carried.value, found)


def _outcome(matched: bool) -> Outcome:
    return Outcome.MATCHED if matched else Outcome.MISMATCHED


def has_lost_its_version(data: bytes, key: bytes) -> bool:
    """Whether a value states version 0 but carries the sum of version 1 or 2: one flipped bit is enough."""
    # Only the shorter form, because version 1 and 2 have one sum.
    body, carried = data[:-5], int.from_bytes(data[-4:], "little")
    return any(raw_sum(body + bytes([version]), key, version) == carried for version in (1, 2))


def raw_sum(covered: bytes, key: bytes, version: int) -> int:
    """The sum of version 1 or 2: of a row up to and including its checksum's header, and its record key."""
    return crc32(key if version == 1 else key[_HANDLE_AT:], crc32(covered))


def column_sum(table: TableSchema, values: Sequence[Value]) -> int:
    """The columns' sum of a row: plain values aligned with `table.columns`, TIMESTAMP texts in UTC."""
    ordered = sorted(zip(table.columns, values, strict=True), key=lambda pair: pair[0].id)
    register = 0
    for column, value in ordered:
        register = crc32(column_bytes(column.kind, value), register)
    return register


def column_bytes(kind: Kind, value: Value) -> bytes:
    """The bytes that a column adds to the columns' sum; NULL adds nothing."""
    match value:
        case None:
            return b""
        case int() if kind in _WORDS:
            return struct.pack("<Q", value & _WORD)
        case int() | float() if kind in (Kind.FLOAT, Kind.DOUBLE):
            return struct.pack("<d", value if math.isfinite(value) else 0.0)
        case str() if kind is Kind.VECTOR:
            return vector.encode(value)
        case str() | bytes():
            text = value.encode() if isinstance(value, str) else value
            return len(text).to_bytes(4, "little") + text
    raise InvalidInput(f"a {kind.name} column cannot hold {value!r}")


def written(table: TableSchema, values: Sequence[Value], key: bytes, value: bytes, version: int) -> bytes:
    """The v2 `value` of a row with the checksum that a session with `tidb_enable_row_level_checksum` adds.

    values: plain, aligned with `table.columns`, TIMESTAMP texts in UTC; no schema change is in progress.
    """
    return sealed(value, key, version, [column_sum(table, values)] if version == 0 else ())


def sealed(value: bytes, key: bytes, version: int = 2, sums: Sequence[int] = ()) -> bytes:
    """Add a checksum to a v2 row value without one: version 1 or 2 by `key`, or 0 with the given `sums`.

    `sums` of version 0: the columns' sum, and while a schema change is in progress also the sum of the
    columns before it.
    """
    if not value or value[0] != row.V2 or value[1] & row.CHECKSUM:
        raise InvalidInput("only a row of format v2 that has no checksum can be given one")
    if version not in (0, 1, 2) or (len(sums) not in (1, 2) if version == 0 else sums):
        raise InvalidInput(f"a checksum of version {version} with {len(sums)} column sums does not exist")
    header = version | (row.EXTRA_CHECKSUM if len(sums) == 2 else 0)
    body = bytes([value[0], value[1] | row.CHECKSUM]) + value[2:] + bytes([header])
    if version:
        sums = [raw_sum(body, key, version)]
    return body + b"".join(one.to_bytes(4, "little") for one in sums)
