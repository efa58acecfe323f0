"""The parts that all protocols share: options, the `Encoder` and `Decoder` protocols, the decoded form.

A codec is pure: no network, no clock (the build time is an argument), no thread. The plain encoders take
`RowChange`s; `blocks.encode_block` is their compiled twin and takes a `RowBlock`.
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
"""Bytes a topic may add to a message: `MaxRecordOverhead` of tiflow `pkg/sink/codec/common/message.go`."""

DDL_HEADER: Final = "tidegate-ddl"
"""Name of the header that carries a whole DdlEvent, in addition to the protocol's own DDL message."""

Headers: TypeAlias = Sequence[tuple[str, bytes]] | None


def bounded(default: int, least: int, most: int) -> Any:
    """A field of options for a count within these bounds."""
    return field(default=default, metadata={"bounds": (least, most)})


def one_of(*words: str) -> Any:
    """A field of options for one of these words; the first is the default."""
    return field(default=words[0], metadata={"words": words})


NEW: Final = "new"
"""The flavour of TiCDC's new architecture."""


def only_new(needs: str = "") -> Any:
    """A switch of options that exists only in TiCDC's new architecture, not in the classic one; default off.

    `needs`: the switch without which this one has no effect.
    """
    return field(default=False, metadata={"flavour": NEW, "needs": needs})


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecOptions:
    """The settings that all protocols have; each protocol adds its own. Build with `registry.codec_options`.

    A field has TiCDC's name for the option, with underscores instead of dashes.
    """

    protocol: ClassVar[str]
    """The name of the protocol whose options these are."""
    flavour: str = "classic"
    """The implementation to match: `classic` is tiflow's encoder, `new` that of TiCDC's new architecture."""
    max_message_bytes: int = bounded(10_485_760, 1024, 1 << 30)
    """Largest message, counted as key, value and 36 bytes of overhead; a larger row is an error."""
    time_zone: str = "UTC"
    """Zone of TIMESTAMP texts; only simple transmits it."""


CHECKSUMS_ON: Final = "correctness"
"""The integrity-check-level with which avro and simple send checksums."""


class Encoder(Protocol):
    """A plain encoder, row by row: the oracle of the compiled encoder. The owner encodes DDL and marks with
    it.
    """

    def encode_rows(self, rows: Sequence[RowChange], build_ms: int = 0) -> list[Message]:
        """Messages for rows of one partition, in their order; a message may hold several rows.

        `build_ms` is the wall clock, for protocols that send it. Raises InvalidInput if a single row is
        larger than `max_message_bytes`.
        """
        ...

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message | None:
        """The DDL message, with the event itself in the header `tidegate-ddl`; None if there is none."""
        ...

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message | None:
        """The resolved mark; None if the protocol has none."""
        ...


@dataclass(frozen=True, slots=True)
class WireColumn:
    """The information in messages about one column of a decoded table."""

    name: str
    type: pa.DataType
    """Type of the column in `DecodedTable.new` and `.old`."""
    mysql_type: int
    """MySQL's type code: docs/formats/columns.md#type-codes."""
    key: bool
    """Whether it is part of the handle key, or of the primary key if the protocol sends only that."""
    flag: int | None = None
    """TiCDC's flags (docs/formats/columns.md#flags), if the protocol sends them."""
    type_name: str = ""
    """The type's name, if the protocol sends it."""
    zone: str = ""
    """For a TIMESTAMP, the time zone of its texts, if the protocol sends it."""


class TableVersion(NamedTuple):
    """A table version, as messages identify it."""

    table_id: int
    """The logical table id."""
    version: int


@dataclass(frozen=True, slots=True)
class DecodedTable:
    """Rows of one table with one column set, ascending by (offset, seq).

    `op` is model.cells INSERT, UPDATE or DELETE. `new` and `old` have one row per change, null if the change
    has no such image; they are None if no change here has one. Columns that an update's before image left
    out as unchanged are filled from the after image. An UPDATE whose producer sends no old values is returned
    as INSERT (docs/formats/open-protocol.md#values).

    Column types: tinyint..bigint and year int64 or uint64; bit, enum (index) and set (mask) uint64;
    float float32, double float64; char and text string; binary and blob binary;
    decimal, temporal, JSON and vector string in canonical text (docs/formats/columns.md#canonical-text).
    """

    schema: str
    table: str
    physical_id: int | None
    """The partition's physical id, if the protocol sends it."""
    columns: tuple[WireColumn, ...]
    op: npt.NDArray[np.uint8]
    commit_ts: npt.NDArray[np.uint64]
    """Milliseconds << 18 if the protocol sends only milliseconds; 0 if it sends no commit ts."""
    offset: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int32]
    """Number of the row within its message."""
    new: pa.RecordBatch | None
    old: pa.RecordBatch | None
    version: TableVersion | None = None
    """The version that the rows name, if the protocol sends it."""

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """A DDL, as its message describes it; `header` is the raw `tidegate-ddl` header, if there is one."""

    ts: int
    query: str
    action: int | None
    """TiDB's action code, if the message contains it."""
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
    only, or claim check). The message is sound, but does not contain the row."""
    unknown: tuple[str, str, int] | None = None
    """The table version (schema, table, version) of a row that cannot be read until another message has
    defined that version's columns. The message is sound; decode it again after such a message."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The content of a batch of messages. Across the lists, the order is by offset (and seq for rows)."""

    rows: list[DecodedTable] = field(default_factory=list)
    resolved: list[tuple[int, int]] = field(default_factory=list)
    """(ts, offset)."""
    ddls: list[DdlMessage] = field(default_factory=list)
    bad: list[BadMessage] = field(default_factory=list)
    repartitions: list[tuple[int, int]] = field(default_factory=list)
    """(partitions, offset): the producer says that from here on it writes to so many partitions."""


BinaryColumn: TypeAlias = pa.Array | Sequence[bytes | None]
"""Keys or values of messages: an Arrow (large_)binary array, or plain bytes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one partition, ascending by offset; as many keys and values as offsets."""

    keys: BinaryColumn
    values: BinaryColumn
    offsets: Sequence[int] | npt.NDArray[np.int64]
    headers: Sequence[Headers] | None = None
    """One entry per message; None: no message has headers."""

    def __post_init__(self) -> None:
        counts = {len(self.keys), len(self.values), len(self.offsets)}
        assert len(counts) == 1, "keys, values and offsets describe the same messages"

    def __len__(self) -> int:
        return len(self.offsets)


class Decoder(Protocol):
    """Decodes one protocol's messages into rows. Accepts both flavours. Bad messages never raise."""

    def decode(self, batch: Batch) -> Decoded:
        """Decode messages; memory is bounded by their own size."""
        ...


class RowTooLargeError(InvalidInput):
    """One row does not fit into a message. It may be sent in another form."""


def too_large(
    table: str, length: int, options: CodecOptions, row: str = "", *, reduced: int = 0
) -> RowTooLargeError:
    """The error for one row that does not fit a message (TiCDC: ErrMessageTooLarge).

    `row`: its key in words, if known. `reduced`: the size of the form with only its key; 0: the row has no
    reduced form.
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
    """Everything decoded, as plain dicts in offset order, for `tidegate peek` and tests."""
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
