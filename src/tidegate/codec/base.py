"""What every protocol shares: its options, the `Encoder` and `Decoder` protocols, and the decoded form.

A codec is pure: no network, no clock (the build time is an argument), no thread. The plain encoders take
`RowChange`s; `blocks.encode_block` is their compiled twin over a `RowBlock`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import InvalidInput
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange

OPEN_PROTOCOL: Final = "open-protocol"
CANAL_JSON: Final = "canal-json"
KV_JSON: Final = "kv-json"
PROTOCOLS: Final = (OPEN_PROTOCOL, CANAL_JSON)
"""Those of rows. Keys without tables have `KV_JSON` (`codec.kv_json`)."""

RECORD_OVERHEAD: Final = 36
"""Bytes Kafka may add to a record: TiCDC's MaxRecordOverhead, facts 0.5."""

DDL_HEADER: Final = "tidegate-ddl"
"""Name of the Kafka header that carries a whole DdlEvent beside the protocol's own DDL message."""

Headers: TypeAlias = Sequence[tuple[str, bytes]] | None


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """Settings of one protocol, named as TiCDC's sink URI names them. Build with `registry.codec_options`."""

    protocol: str
    flavour: str = "classic"
    """Whose bytes: `classic` is tiflow's encoder."""
    enable_tidb_extension: bool = False
    """canal-json: the `_tidb` member and watermarks; without it a consumer knows only milliseconds."""
    max_message_bytes: int = 10_485_760
    """Largest message, key and value and 36 bytes of overhead; a larger row is an error."""
    max_batch_size: int = 16
    """open-protocol: rows per message."""
    only_output_updated_columns: bool = False
    """Updates: the before image holds only what changed."""
    delete_only_output_handle_key_columns: bool = False
    """Deletes: only the handle key."""
    open_output_old_value: bool = True
    """open-protocol: updates carry the before image."""
    content_compatible: bool = False
    """canal-json: `mysqlType` in full, as canal itself writes it; implies only_output_updated_columns."""
    time_zone: str = "UTC"
    """Zone of TIMESTAMP texts; not transmitted by these protocols."""


class Encoder(Protocol):
    """One protocol, row by row: the oracle of the compiled form, and the form for DDL and marks."""

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        """Messages for rows of one partition, in their order; may put several rows in one message.

        `build_ms` is the wall clock that canal-json sends as `ts`. Raises InvalidInput when one row
        alone is larger than `max_message_bytes`.
        """
        ...

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message:
        """The DDL message, with the event itself in the header `tidegate-ddl`."""
        ...

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message | None:
        """The resolved mark; None where the protocol has none."""
        ...

    def ddl_to_all_partitions(self) -> bool:
        """Whether a DDL message goes to every partition of its topic, or to partition 0 only."""
        ...


@dataclass(frozen=True, slots=True)
class WireColumn:
    """What the wire says about one column of a decoded table."""

    name: str
    type: pa.DataType
    """Type of the column in `DecodedTable.new` and `.old`."""
    mysql_type: int
    """MySQL type code, facts 0.1."""
    key: bool
    """Part of the handle key (open-protocol) or of the primary key (canal-json)."""
    flag: int | None = None
    """open-protocol's flag bits, facts 0.2."""
    type_name: str = ""
    """canal-json's `mysqlType`."""


@dataclass(frozen=True, slots=True)
class DecodedTable:
    """Rows of one table with one column set, ascending by (offset, seq).

    `op` is model.slots INSERT, UPDATE or DELETE. `new` and `old` have one row per change: nulls where the
    change has no such image, None when no change here has one. Columns that an update's before image left
    out as unchanged are filled from the after image. An UPDATE whose producer sends no old values comes
    as INSERT (facts 1.4).

    Column types: tinyint..bigint and year int64 or uint64; bit, enum (index) and set (mask) uint64;
    float float32, double float64; char and text string; binary and blob binary;
    decimal, temporal, JSON and vector string in canonical text (facts 0.4).
    """

    schema: str
    table: str
    physical_id: int | None
    """Partition's physical id, where the protocol sends it."""
    columns: tuple[WireColumn, ...]
    op: npt.NDArray[np.uint8]
    commit_ts: npt.NDArray[np.uint64]
    """canal-json without extension: the commit's milliseconds << 18."""
    offset: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int32]
    """Number of the row within its message."""
    new: pa.RecordBatch | None
    old: pa.RecordBatch | None

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """A DDL as its message says; `header` is the raw `tidegate-ddl` header where there is one."""

    ts: int
    query: str
    action: int | None
    """TiDB's action code; of canal-json only where its `type` tells it, else None."""
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


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a batch of messages held; between the lists, order is by offset (and seq for rows)."""

    rows: list[DecodedTable] = field(default_factory=list)
    resolved: list[tuple[int, int]] = field(default_factory=list)
    """(ts, offset)."""
    ddls: list[DdlMessage] = field(default_factory=list)
    bad: list[BadMessage] = field(default_factory=list)


BinaryColumn: TypeAlias = pa.Array | Sequence[bytes | None]
"""Keys or values of messages: an Arrow (large_)binary array, or plain bytes."""


class Decoder(Protocol):
    """One protocol's messages back to rows. Accepts both flavours. Bad messages never raise."""

    def decode(
        self,
        keys: BinaryColumn,
        values: BinaryColumn,
        headers: Sequence[Headers] | None,
        offsets: Sequence[int] | npt.NDArray[np.int64],
    ) -> Decoded:
        """Decode messages of one partition in offset order; memory is bounded by the messages' own size."""
        ...


def too_large(table: str, length: int, options: CodecOptions) -> InvalidInput:
    """The error for one row that does not fit a message (TiCDC: ErrMessageTooLarge)."""
    return InvalidInput(
        "a row is larger than one message may be",
        where=f"table {table}",
        why=f"the encoded row needs {length} bytes, max-message-bytes is {options.max_message_bytes}",
        fix="raise max-message-bytes in the sink URI and max.message.bytes of the topic",
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
