"""What every protocol shares: its options, the `Encoder` and `Decoder` protocols, and the decoded form.

A codec is pure: no network, no clock (the build time is an argument), no thread. The plain encoders take
`RowChange`s; `blocks.encode_block` is their compiled twin over a `RowBlock`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange

RECORD_OVERHEAD: Final = 36
"""Bytes that Kafka may add to a record: `MaxRecordOverhead` of tiflow `pkg/sink/codec/common/message.go`."""

DDL_HEADER: Final = "tidegate-ddl"
"""Name of the Kafka header that carries a whole DdlEvent beside the protocol's own DDL message."""

Headers: TypeAlias = Sequence[tuple[str, bytes]] | None


def bounded(default: int, least: int, most: int) -> Any:
    """A field of options that is a count within these bounds."""
    return field(default=default, metadata={"bounds": (least, most)})


def one_of(*words: str) -> Any:
    """A field of options that is one of these words, usually the first."""
    return field(default=words[0], metadata={"words": words})


NEW: Final = "new"
"""The flavour of TiCDC's new architecture."""


def only_new(needs: str = "") -> Any:
    """A switch of options that TiCDC's new architecture has and the classic one has not, usually off.

    `needs`: the switch without which it says nothing.
    """
    return field(default=False, metadata={"flavour": NEW, "needs": needs})


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecOptions:
    """Settings that every protocol has; each adds its own. Build with `registry.codec_options`.

    A field is named as TiCDC names the option, with underscores for dashes.
    """

    protocol: ClassVar[str]
    """The name of the protocol whose options these are."""
    flavour: str = "classic"
    """Whose bytes: `classic` is tiflow's encoder, `new` that of TiCDC's new architecture."""
    max_message_bytes: int = bounded(10_485_760, 1024, 1 << 30)
    """Largest message, key and value and 36 bytes of overhead; a larger row is an error."""
    time_zone: str = "UTC"
    """Zone of TIMESTAMP texts; only simple transmits it."""


CHECKSUMS_ON: Final = "correctness"
"""The integrity-check-level under which avro and simple tell checksums."""


class Encoder(Protocol):
    """One protocol, row by row: the oracle of the compiled form, and the form for DDL and marks."""

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        """Messages for rows of one partition, in their order; may put several rows in one message.

        `build_ms` is the wall clock, for protocols that send it. Raises InvalidInput when one row
        alone is larger than `max_message_bytes`.
        """
        ...

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message | None:
        """The DDL message, with the event itself in the header `tidegate-ddl`; None where there is none."""
        ...

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message | None:
        """The resolved mark; None where the protocol has none."""
        ...


@dataclass(frozen=True, slots=True)
class WireColumn:
    """What the wire says about one column of a decoded table."""

    name: str
    type: pa.DataType
    """Type of the column in `DecodedTable.new` and `.old`."""
    mysql_type: int
    """MySQL's type code: docs/formats/columns.md#type-codes."""
    key: bool
    """Part of the handle key, or of the primary key where the protocol knows only that."""
    flag: int | None = None
    """TiCDC's flags (docs/formats/columns.md#flags), where the protocol sends them."""
    type_name: str = ""
    """The type's name, where the protocol sends it."""
    zone: str = ""
    """Of a TIMESTAMP, the zone of its texts, where the protocol sends it."""


class TableVersion(NamedTuple):
    """A table version as messages name it."""

    table_id: int
    """The logical one."""
    version: int


@dataclass(frozen=True, slots=True)
class DecodedTable:
    """Rows of one table with one column set, ascending by (offset, seq).

    `op` is model.cells INSERT, UPDATE or DELETE. `new` and `old` have one row per change: nulls where the
    change has no such image, None when no change here has one. Columns that an update's before image left
    out as unchanged are filled from the after image. An UPDATE whose producer sends no old values comes
    as INSERT (docs/formats/open-protocol.md#values).

    Column types: tinyint..bigint and year int64 or uint64; bit, enum (index) and set (mask) uint64;
    float float32, double float64; char and text string; binary and blob binary;
    decimal, temporal, JSON and vector string in canonical text (docs/formats/columns.md#canonical-text).
    """

    schema: str
    table: str
    physical_id: int | None
    """Partition's physical id, where the protocol sends it."""
    columns: tuple[WireColumn, ...]
    op: npt.NDArray[np.uint8]
    commit_ts: npt.NDArray[np.uint64]
    """Milliseconds << 18 where the protocol sends no more of it; 0 where it sends none."""
    offset: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int32]
    """Number of the row within its message."""
    new: pa.RecordBatch | None
    old: pa.RecordBatch | None
    version: TableVersion | None = None
    """Of which the rows say that they are, where the protocol sends it."""

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """A DDL as its message says; `header` is the raw `tidegate-ddl` header where there is one."""

    ts: int
    query: str
    action: int | None
    """TiDB's action code, where the message tells it."""
    schema: str
    table: str
    header: bytes | None
    offset: int


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that could not be decoded, whole, for the quarantine."""

    offset: int
    key: bytes | None
    value: bytes | None
    why: str
    reduced_ts: int | None = None
    """The commit ts of a row that the producer left out of the topic because it was too large (handle key
    only, or claim check). The message is sound; what it stands for is not here."""
    unknown: tuple[str, str, int] | None = None
    """The table version (schema, table, version) of a row that cannot be read before a message has told that
    version's columns. The message is sound; decode it again after such a message."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a batch of messages held; between the lists, order is by offset (and seq for rows)."""

    rows: list[DecodedTable] = field(default_factory=list)
    resolved: list[tuple[int, int]] = field(default_factory=list)
    """(ts, offset)."""
    ddls: list[DdlMessage] = field(default_factory=list)
    bad: list[BadMessage] = field(default_factory=list)
    repartitions: list[tuple[int, int]] = field(default_factory=list)
    """(partitions, offset): the producer says that from here on it writes so many partitions."""


BinaryColumn: TypeAlias = pa.Array | Sequence[bytes | None]
"""Keys or values of messages: an Arrow (large_)binary array, or plain bytes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one partition, ascending by offset; as many keys and values as offsets."""

    keys: BinaryColumn
    values: BinaryColumn
    offsets: Sequence[int] | npt.NDArray[np.int64]
    headers: Sequence[Headers] | None = None
    """Per message; None: no message has any."""

    def __post_init__(self) -> None:
        counts = {len(self.keys), len(self.values), len(self.offsets)}
        assert len(counts) == 1, "keys, values and offsets describe the same messages"

    def __len__(self) -> int:
        return len(self.offsets)


class Decoder(Protocol):
    """One protocol's messages back to rows. Accepts both flavours. Bad messages never raise."""

    def decode(self, batch: Batch) -> Decoded:
        """Decode messages; memory is bounded by their own size."""
        ...


class RowTooLargeError(InvalidInput):
    """One row does not fit a message: it may be sent in another form."""


def too_large(
    table: str, length: int, options: CodecOptions, row: str = "", *, reduced: int = 0
) -> RowTooLargeError:
    """The error for one row that does not fit a message (TiCDC: ErrMessageTooLarge).

    `row`: its key in words, where it is known. `reduced`: what it needs without all but its key; 0: it is
    sent whole or not at all.
    """
    even = f", {reduced} with its handle key alone" if reduced else ""
    return RowTooLargeError(
        "a row is larger than one message may be",
        where=f"table {table}" + (f", row with {row}" if row else ""),
        why=f"the encoded row needs {length} bytes{even}, max-message-bytes is {options.max_message_bytes}",
        fix="raise max-message-bytes in the sink URI and max.message.bytes of the topic; or, with "
        "open-protocol, canal-json or simple, set large-message-handle-option to claim-check or "
        "handle-key-only; or leave large columns out by [[sink.column-selectors]], or the table by [filter]",
    )


def describe(decoded: Decoded) -> list[dict[str, Any]]:
    """Everything decoded as plain dicts in offset order, for people (`tidegate peek`) and tests."""
    found: list[tuple[int, int, dict[str, Any]]] = []
    for table in decoded.rows:
        found += _describe_rows(table)
    found += [(offset, 0, {"kind": "resolved", "ts": ts}) for ts, offset in decoded.resolved]
    for ddl in decoded.ddls:
        names = {"schema": ddl.schema, "table": ddl.table}
        found.append(
            (ddl.offset, 0, {"kind": "ddl", "ts": ddl.ts, "query": ddl.query, "action": ddl.action, **names})
        )
    for partitions, offset in decoded.repartitions:
        found.append((offset, 0, {"kind": "repartition", "partitions": partitions}))
    for bad in decoded.bad:
        found.append((bad.offset, 0, {"kind": "bad", "why": bad.why, "key": bad.key, "value": bad.value}))
    found.sort(key=lambda item: item[:2])
    return [{"offset": offset, **entry} for offset, _, entry in found]


def _describe_rows(table: DecodedTable) -> list[tuple[int, int, dict[str, Any]]]:
    new = table.new.to_pylist() if table.new is not None else [None] * len(table)
    old = table.old.to_pylist() if table.old is not None else [None] * len(table)
    return [
        (
            int(table.offset[i]),
            int(table.seq[i]),
            {
                "kind": ("", "insert", "update", "delete")[op],
                "schema": table.schema,
                "table": table.table,
                "physical_id": table.physical_id,
                "commit_ts": int(table.commit_ts[i]),
                "new": new[i] if op != 3 else None,
                "old": old[i] if op != 1 else None,
            },
        )
        for i, op in enumerate(table.op.tolist())
    ]
