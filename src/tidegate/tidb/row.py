"""Row values: format v2 (first byte 0x80) and the old v1, both directions.

    v2  0x80 | flags u8 | not-null count u16 | null count u16 | not-null ids | null ids | end offsets | data
        [| checksum header u8 | checksum u32 [| checksum u32]]            little-endian
        flags: 1 large (ids and offsets u32, else ids u8 and offsets u16), 2 checksum
    v1  column id as a varint datum, value datum, ...; the single byte 0 is a row without columns

A column in neither list is not stored. *Stored* values, per `Kind`: INT, UINT, YEAR, ENUM, SET, BIT int;
DATE, DATETIME, TIMESTAMP packed int; TIME nanoseconds; FLOAT, DOUBLE float; DECIMAL bytes of the codec form;
STRING, BYTES bytes; JSON bytes of type code and value; VECTOR bytes. Source: TiDB `pkg/util/rowcodec`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.schema import Kind
from tidegate.tidb.datum import Datum, Flag
from tidegate.tidb.datum import encode as encode_datum
from tidegate.tidb.datum import read as read_datum
from tidegate.tidb.types import float as floats
from tidegate.tidb.types import integer

Stored = int | float | bytes | None

V2: Final = 0x80
LARGE: Final = 1
CHECKSUM: Final = 2
EXTRA_CHECKSUM: Final = 8
_KNOWN_CHECKSUMS: Final = 3
_MAX_COLUMNS: Final = 65_535

_SIGNED: Final = frozenset({Kind.INT, Kind.YEAR, Kind.TIME})
_UNSIGNED: Final = frozenset(
    {Kind.UINT, Kind.ENUM, Kind.SET, Kind.BIT, Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP}
)
_FLOATS: Final = frozenset({Kind.FLOAT, Kind.DOUBLE})
_NUMBERS: Final = _SIGNED | _UNSIGNED | _FLOATS


@dataclass(frozen=True, slots=True)
class Checksum:
    """The checksum of a row of format v2 (docs/formats/checksums.md).

    `extra` is set only if a schema change was in progress.
    """

    version: int
    value: int
    extra: int | None


@dataclass(frozen=True, slots=True)
class Fields:
    """The columns of one row value, by column id: bytes (v2), a datum (v1), or None for NULL."""

    cells: dict[int, bytes | Datum | None]
    starts: dict[int, int]
    """By column, the offset in the row value at which its bytes (v1: its datum) begin."""
    checksum: Checksum | None

    def stored(self, column_id: int, kind: Kind) -> Stored:
        """The stored value of a column that is in `cells`."""
        cell = self.cells[column_id]
        if cell is None:
            return None
        return from_bytes(cell, kind) if isinstance(cell, bytes) else from_datum(cell, kind)


def split(value: bytes) -> Fields:
    """The columns of a row value in either format. The values themselves are not checked yet in v2."""
    if not value:
        raise Undecodable("a row value is empty")
    return _split_v2(value) if value[0] == V2 else _split_v1(value)


def _split_v2(value: bytes) -> Fields:
    if len(value) < 6:
        raise Undecodable("a row value is cut", why=f"{len(value)} bytes")
    flags, filled, nulls = struct.unpack_from("<BHH", value, 1)
    if flags & ~(LARGE | CHECKSUM):
        raise Undecodable("a row value has unknown flags", why=f"{flags:#x}")
    id_size, offset_size = (4, 4) if flags & LARGE else (1, 2)
    offsets_at = 6 + (filled + nulls) * id_size
    data_at = offsets_at + filled * offset_size
    if data_at > len(value):
        raise Undecodable(
            "a row value is cut",
            why=f"{filled} values and {nulls} nulls in {len(value)} bytes",
        )
    ids = struct.unpack_from(f"<{filled + nulls}{'I' if flags & LARGE else 'B'}", value, 6)
    ends = struct.unpack_from(f"<{filled}{'I' if flags & LARGE else 'H'}", value, offsets_at)
    cells: dict[int, bytes | Datum | None] = {}
    starts: dict[int, int] = {}
    start = 0
    for column_id, end in zip(ids, ends, strict=False):
        # A slice whose end is before its start is empty, so damage here would pass as an empty value.
        if end < start or data_at + end > len(value):
            raise Undecodable("a row value has bad offsets", why=f"column {column_id} ends at {end}")
        cells[column_id] = value[data_at + start : data_at + end]
        starts[column_id] = data_at + start
        start = end
    # Nulls follow the values in the list of ids, and have no end offset.
    cells.update(dict.fromkeys(ids[filled:], None))
    if len(cells) != filled + nulls:
        raise Undecodable("a row value names a column twice")
    tail = value[data_at + start :]
    if tail and not flags & CHECKSUM:
        # TiDB never writes such bytes. A checksum whose flag was lost must not pass as a row without one.
        raise Undecodable(
            "a row value has bytes after its last column", why=f"{len(tail)} at {data_at + start}"
        )
    return Fields(cells, starts, _read_checksum(tail) if flags & CHECKSUM else None)


def _read_checksum(tail: bytes) -> Checksum:
    if len(tail) not in (5, 9) or (len(tail) == 9) != bool(tail[0] & EXTRA_CHECKSUM):
        raise Undecodable("a row's checksum is cut", why=f"{len(tail)} bytes")
    version = tail[0] & 7
    if version >= _KNOWN_CHECKSUMS:
        raise Undecodable("a row's checksum has an unknown version", why=str(version))
    extra = int.from_bytes(tail[5:9], "little") if len(tail) == 9 else None
    return Checksum(version, int.from_bytes(tail[1:5], "little"), extra)


def _split_v1(value: bytes) -> Fields:
    cells: dict[int, bytes | Datum | None] = {}
    starts: dict[int, int] = {}
    # A row without any column is a single NULL datum.
    at = 1 if value == b"\0" else 0
    while at < len(value):
        column_id, at = read_datum(value, at)
        if column_id.flag not in (Flag.VARINT, Flag.INT) or not isinstance(column_id.value, int):
            raise Undecodable(
                "an old row lacks a column id",
                why=f"a datum {column_id.flag.name} instead",
            )
        starts[column_id.value] = at
        cell, at = read_datum(value, at)
        cells[column_id.value] = None if cell.flag is Flag.NULL else cell
    return Fields(cells, starts, None)


def from_bytes(data: bytes, kind: Kind) -> Stored:
    """The stored value of a v2 cell."""
    if kind in _SIGNED:
        return integer.decode_signed(data)
    if kind in _UNSIGNED:
        return integer.decode_unsigned(data)
    if kind in _FLOATS:
        return floats.decode(data)
    return data


def to_bytes(stored: int | float | bytes, kind: Kind) -> bytes:
    """The v2 cell of a stored value that is not NULL."""
    if kind in _SIGNED and isinstance(stored, int):
        return integer.encode_signed(stored)
    if kind in _UNSIGNED and isinstance(stored, int):
        return integer.encode_unsigned(stored)
    if kind in _FLOATS and isinstance(stored, int | float):
        return floats.encode(float(stored))
    if isinstance(stored, bytes) and kind not in _NUMBERS:
        return stored
    raise InvalidInput(f"a {kind.name} column cannot hold {stored!r}")


def from_datum(datum: Datum, kind: Kind) -> Stored:
    """The stored value of a v1 cell or of a key's datum."""
    value = datum.value
    if value is None and datum.flag is Flag.NULL:
        return None
    if kind in _SIGNED and isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return value
    if kind in _UNSIGNED and isinstance(value, int):
        return value & (1 << 64) - 1
    if kind in _FLOATS and isinstance(value, float):
        return value
    if isinstance(value, bytes) and _bytes_flag_fits(datum.flag, kind):
        return value
    raise Undecodable(
        "a value does not fit its column",
        why=f"a datum {datum.flag.name} for {kind.name}",
    )


def _bytes_flag_fits(flag: Flag, kind: Kind) -> bool:
    wanted = {
        Kind.DECIMAL: {Flag.DECIMAL},
        Kind.JSON: {Flag.JSON},
        Kind.VECTOR: {Flag.VECTOR},
    }
    return kind not in _NUMBERS and flag in wanted.get(kind, {Flag.BYTES, Flag.COMPACT_BYTES})


def to_key_datum(stored: int | float | bytes, kind: Kind) -> Datum:
    """The datum of a clustered key's column; strings must already be sort keys."""
    if kind in (Kind.INT, Kind.YEAR) and isinstance(stored, int):
        return Datum(Flag.INT, stored)
    if kind is Kind.TIME and isinstance(stored, int):
        return Datum(Flag.DURATION, stored)
    if kind in _UNSIGNED and isinstance(stored, int):
        return Datum(Flag.UINT, stored)
    if kind in _FLOATS and isinstance(stored, int | float):
        return Datum(Flag.FLOAT, float(stored))
    if kind is Kind.DECIMAL and isinstance(stored, bytes):
        return Datum(Flag.DECIMAL, stored)
    if kind in (Kind.STRING, Kind.BYTES) and isinstance(stored, bytes):
        return Datum(Flag.BYTES, stored)
    raise InvalidInput(f"a {kind.name} column cannot be in a clustered key", why=repr(stored)[:80])


def encode_v2(cells: Iterable[tuple[int, Kind, Stored]], checksum_handle: bytes | None = None) -> bytes:
    """The v2 value of (column id, kind, stored value); None goes into the list of nulls.

    With `checksum_handle`, the encoded handle, a checksum of version 2 is added.
    """
    # Readers search the ids of format v2, which therefore ascend.
    ordered = sorted(cells, key=lambda cell: cell[0])
    nulls = [column_id for column_id, _, stored in ordered if stored is None]
    filled = [
        (column_id, to_bytes(stored, kind)) for column_id, kind, stored in ordered if stored is not None
    ]
    if len(ordered) > _MAX_COLUMNS:
        raise InvalidInput("a row has too many columns", why=str(len(ordered)))
    size = sum(len(data) for _, data in filled)
    # An id above one byte or an offset above two makes both lists wide.
    large = size > 0xFFFF or any(column_id > 0xFF for column_id, _, _ in ordered)
    ends, end = [], 0
    for _, data in filled:
        end += len(data)
        ends.append(end)
    flags = (LARGE if large else 0) | (CHECKSUM if checksum_handle is not None else 0)
    ids = [column_id for column_id, _ in filled] + nulls
    head = struct.pack("<BBHH", V2, flags, len(filled), len(nulls))
    head += struct.pack(f"<{len(ids)}{'I' if large else 'B'}", *ids)
    head += struct.pack(f"<{len(ends)}{'I' if large else 'H'}", *ends)
    value = head + b"".join(data for _, data in filled)
    return value if checksum_handle is None else value + _checksum_tail(value, checksum_handle)


def _checksum_tail(value: bytes, handle: bytes) -> bytes:
    header = bytes([2])
    return header + zlib.crc32(value + header + handle).to_bytes(4, "little")


def encode_v1(cells: Iterable[tuple[int, Kind, Stored]]) -> bytes:
    """The v1 value, with columns in the given order."""
    out = b""
    for column_id, kind, stored in cells:
        out += encode_datum(Datum(Flag.VARINT, column_id))
        out += encode_datum(_v1_datum(stored, kind))
    return out or b"\0"


def _v1_datum(stored: Stored, kind: Kind) -> Datum:
    if stored is None:
        return Datum(Flag.NULL, None)
    if kind in _SIGNED and isinstance(stored, int):
        return Datum(Flag.VARINT, stored)
    if kind in _UNSIGNED and isinstance(stored, int):
        return Datum(Flag.UVARINT, stored)
    if kind in _FLOATS and isinstance(stored, int | float):
        return Datum(Flag.FLOAT, float(stored))
    if isinstance(stored, bytes) and kind not in _NUMBERS:
        special = {
            Kind.DECIMAL: Flag.DECIMAL,
            Kind.JSON: Flag.JSON,
            Kind.VECTOR: Flag.VECTOR,
        }
        return Datum(special.get(kind, Flag.COMPACT_BYTES), stored)
    raise InvalidInput(f"a {kind.name} column cannot hold {stored!r}")
