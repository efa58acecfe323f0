"""From decoded cells to Arrow: code that the plain decoders of all protocols share.

A decoder raises `DecodeError` or ValueError for a message that does not follow its protocol. It collects rows
in `Group`s, one per table, column set and physical id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from tidegate.codec.base import (
    DDL_HEADER,
    BadMessage,
    Batch,
    BinaryColumn,
    Decoded,
    DecodedTable,
    Headers,
    TableVersion,
    WireColumn,
)
from tidegate.model.cells import DELETE, INSERT

BINARY_FLAG: Final = 1
HANDLE_KEY_FLAG: Final = 2
UNSIGNED_FLAG: Final = 128
PLAIN_INTEGERS: Final = frozenset({1, 2, 3, 8, 9})
UNSIGNED_ALWAYS: Final = frozenset({16, 247, 248})
INTEGER_TYPES: Final = PLAIN_INTEGERS | UNSIGNED_ALWAYS | {13}
STRING_TYPES: Final = frozenset({15, 253, 254})
BLOB_TYPES: Final = frozenset({249, 250, 251, 252})
_I64, _U64 = pa.int64(), pa.uint64()


class DecodeError(Exception):
    """The message does not follow its protocol; the text says why. Never leaves the codec."""


class ReducedError(DecodeError):
    """The message is sound and says that its row is not on the topic."""

    def __init__(self, table: str, ts: int, claim: str) -> None:
        """`claim`: where the row is stored instead; empty if it is stored nowhere (handle key only)."""
        # Show only the last part of the location: it may be a URI with credentials.
        how = (
            f"it is in the claim-check storage as {claim.rpartition('/')[2]}" if claim else "only its key is"
        )
        super().__init__(f"a row of {table} was too large for a message: {how}")
        self.ts = ts


class UnknownVersionError(DecodeError):
    """The message is sound, but no message before it has defined the columns of its table version."""

    def __init__(self, schema: str, table: str, version: int) -> None:
        super().__init__(
            f"the columns of {schema}.{table} in version {version} are not known: no message that defines "
            "them was read; read the topic from further back"
        )
        self.version = schema, table, version


def bad_message(offset: int, key: bytes | None, value: bytes | None, error: Exception) -> BadMessage:
    """A message that yielded no row, for the reason in `error`."""
    reduced_ts = error.ts if isinstance(error, ReducedError) else None
    unknown = error.version if isinstance(error, UnknownVersionError) else None
    return BadMessage(offset, key, value, str(error), reduced_ts, unknown)


class RowKey(NamedTuple):
    """The key that all rows of one DecodedTable share."""

    schema: str
    table: str
    physical_id: int | None
    columns: tuple[WireColumn, ...]
    version: TableVersion | None = None
    """Set if the protocol sends it. Two versions with the same columns are two keys."""


@dataclass(slots=True)
class Group:
    """The rows collected so far for one DecodedTable."""

    op: list[int] = field(default_factory=list)
    commit_ts: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    seq: list[int] = field(default_factory=list)
    new: list[list[Any] | None] = field(default_factory=list)
    old: list[list[Any] | None] = field(default_factory=list)

    def append(self, row: tuple[Any, ...]) -> None:
        """Add (op, commit_ts, offset, seq, new cells or None, old cells or None)."""
        op, commit_ts, offset, seq, new, old = row
        self.op.append(op)
        self.commit_ts.append(commit_ts)
        self.offset.append(offset)
        self.seq.append(seq)
        self.new.append(new)
        self.old.append(old)


def wire_type(code: int, unsigned: bool, binary: bool) -> pa.DataType:
    """The Arrow type of a column, from the type and flags on the wire (see `base.DecodedTable`)."""
    if code in PLAIN_INTEGERS:
        return _U64 if unsigned else _I64
    if code == 13:
        return _I64
    if code in UNSIGNED_ALWAYS:
        return _U64
    if code in (4, 5):
        return pa.float32() if code == 4 else pa.float64()
    return pa.binary() if binary and (code in STRING_TYPES or code in BLOB_TYPES) else pa.string()


def number(column: WireColumn, value: Any) -> int | float:
    """The number, after checking that it fits the column's Arrow type."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DecodeError(f"column {column.name!r} of type {column.mysql_type} holds {type(value).__name__}")
    if pa.types.is_floating(column.type):
        return float(value)
    low, high = (0, 1 << 64) if column.type == _U64 else (-(1 << 63), 1 << 63)
    if isinstance(value, float) or not low <= value < high:
        raise DecodeError(f"column {column.name!r}: {value} does not fit {column.type}")
    return value


def assemble(groups: dict[RowKey, Group]) -> list[DecodedTable]:
    """The groups as tables, in order of first appearance."""
    return [_table(key, group) for key, group in groups.items()]


def _table(key: RowKey, group: Group) -> DecodedTable:
    return DecodedTable(
        schema=key.schema,
        table=key.table,
        physical_id=key.physical_id,
        columns=key.columns,
        op=np.array(group.op, dtype=np.uint8),
        commit_ts=np.array(group.commit_ts, dtype=np.uint64),
        offset=np.array(group.offset, dtype=np.int64),
        seq=np.array(group.seq, dtype=np.int32),
        new=_batch(key.columns, group.new) if any(op != DELETE for op in group.op) else None,
        old=_batch(key.columns, group.old) if any(op != INSERT for op in group.op) else None,
        version=key.version,
    )


def _batch(columns: tuple[WireColumn, ...], images: list[list[Any] | None]) -> pa.RecordBatch:
    arrays = [
        pa.array([None if image is None else image[i] for image in images], type=column.type)
        for i, column in enumerate(columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def at(column: BinaryColumn, i: int) -> bytes | None:
    """The bytes of message i."""
    if isinstance(column, pa.Array):
        found: bytes | None = column[i].as_py()
        return found
    plain: bytes | None = column[i]
    return plain


def header_of(headers: Sequence[Headers] | None, i: int) -> bytes | None:
    """The `tidegate-ddl` header of message i."""
    for name, value in (headers[i] if headers is not None else None) or ():
        if name == DDL_HEADER:
            return value
    return None


Rows = list[tuple[RowKey, tuple[Any, ...]]]


def decode_plainly(
    batch: Batch, message: Callable[[bytes | None, bytes | None, bytes | None, int, Decoded], Rows]
) -> Decoded:
    """Decode message by message: `message(key, value, DDL header, offset, decoded)` returns the rows of one
    message, and adds everything else to `decoded`.

    It must add nothing before the whole message is checked: a message for which it raises DecodeError or
    ValueError becomes one BadMessage, and must have no other effect.
    """
    decoded = Decoded()
    groups: dict[RowKey, Group] = {}
    for i in range(len(batch)):
        key, value, offset = at(batch.keys, i), at(batch.values, i), int(batch.offsets[i])
        try:
            rows = message(key, value, header_of(batch.headers, i), offset, decoded)
        except (DecodeError, ValueError) as error:
            decoded.bad.append(bad_message(offset, key, value, error))
            continue
        for row_key, row in rows:
            groups.setdefault(row_key, Group()).append(row)
    decoded.rows.extend(assemble(groups))
    return decoded


def json_object(text: bytes | None, where: str) -> dict[str, Any]:
    """Parse the key or the value of a message as a JSON object."""
    if text is None:
        raise DecodeError(f"the {where} is missing")
    found = orjson.loads(text)
    if not isinstance(found, dict):
        raise DecodeError(f"the {where} is not a JSON object")
    return found


_REQUIRED: Final = object()


def member(found: dict[str, Any], name: str, kind: type, default: Any = _REQUIRED) -> Any:
    """A member of a JSON object, with its type checked. If it is absent or null: `default`, else an error."""
    value = found.get(name)
    if value is None:
        if default is _REQUIRED:
            raise DecodeError(f"member {name!r} is missing")
        return default
    # In Python a bool is an int, but JSON's true is no number.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise DecodeError(f"member {name!r} is {type(value).__name__}, not {kind.__name__}")
    return value


def integer(found: dict[str, Any], name: str) -> int:
    """A required integer member that is not negative and has at most 64 bits."""
    value: int = member(found, name, int)
    if not 0 <= value < 1 << 64:
        raise DecodeError(f"member {name!r} is out of range")
    return value
