"""TiCDC's simple protocol as its classic encoder writes it, row by row, both directions. In JSON:

    {"version":1,"database":"d","table":"t","tableID":120,"type":"UPDATE","commitTs":1,"buildTs":2,
     "schemaVersion":3,"data":{"id":"1","ts":{"location":"UTC","value":"2024-01-01 00:00:00"}},"old":{..}}

One message per row, with a null key. A row has its values as texts and names a table version; BOOTSTRAP and
DDL messages contain the version's columns (`definition`). `data` and `old` are ordered by the names' bytes.

This file has the decoder, and `plain_write` the encoder. `avro_write` writes the Avro encoding of the same
messages and `avro` reads it; the decoder recognizes it by its first byte. The decoder keeps the
MAX_DEFINITIONS table versions that it has used last. Rows of a version that it does not know are bad messages
with `unknown`. In a batch it reads the definitions first.
"""

from __future__ import annotations

import base64
import re
from collections import OrderedDict
from typing import Any, Final

from tidegate.codec.base import Batch, DdlMessage, Decoded, TableVersion, WireColumn
from tidegate.codec.decoding import sums
from tidegate.codec.decoding.assemble import (
    INTEGER_TYPES,
    DecodeError,
    ReducedError,
    RowKey,
    Rows,
    UnknownVersionError,
    at,
    decode_plainly,
    integer,
    json_object,
    member,
    number,
)
from tidegate.codec.formats import ddl_header
from tidegate.codec.formats.ddl_words import WORDS, action_of
from tidegate.codec.large import Part, Reduced, without
from tidegate.codec.protocols.simple import avro
from tidegate.codec.protocols.simple.definition import TIMESTAMP, Definition, definition
from tidegate.codec.protocols.simple.message import (
    BOOTSTRAP,
    OPERATIONS,
    SCHEMA_MEMBERS,
    VERSION,
    WATERMARK,
    SimpleOptions,
)
from tidegate.errors import Undecodable
from tidegate.model.cells import DELETE, INSERT

MAX_DEFINITIONS: Final = 32_768
"""Table versions that one decoder keeps, about 3 KB each for ten columns. The least recently used one is
dropped first; the producer sends a definition before each block of rows, so it is learned again with its next
rows."""

_FLOATS: Final = frozenset({4, 5})
_ALL_BITS: Final = (1 << 64) - 1
_INTEGER: Final = re.compile(r"-?[0-9]+")


def may_define(value: bytes) -> bool:
    """Whether a message may define a table version. Inside a text the quotes of the name would be escaped."""
    return avro.may_define(value) if avro.is_avro(value) else b'"tableSchema"' in value


def versions(value: bytes) -> list[tuple[str, str, int]]:
    """The table versions that a message defines; none if the message is not valid."""
    return [(one.schema, one.table, one.version) for one in _definitions(value, "")]


def _definitions(value: bytes, zone: str) -> list[Definition]:
    try:
        body = _body(value)
        return [definition(member(body, name, dict), zone) for name in SCHEMA_MEMBERS if body.get(name)]
    except (DecodeError, ValueError):
        return []


class SimpleDecoder:
    """Decodes messages one by one: the oracle and fallback of the compiled decoder."""

    def __init__(self, options: SimpleOptions) -> None:
        self._zone = options.time_zone
        self.redefined = 0
        """How often a table version was defined differently from a definition before."""
        self._known: OrderedDict[tuple[str, str, int, int], Definition] = OrderedDict()
        """By schema, table, version and table id; with the id 0, the last one of any id. That one is needed
        because rows of a partitioned table contain their partition's id, and because TRUNCATE TABLE gives a
        new id but keeps the version."""

    def decode(self, batch: Batch) -> Decoded:
        """Rows, watermarks and DDL; a message that is not valid becomes one BadMessage."""
        # First all definitions of the batch are learned, because a row's definition may come after it.
        for i in range(len(batch)):
            value = at(batch.values, i)
            if value is not None and may_define(value):
                self._learn(value)
        return decode_plainly(batch, self._message)

    def _learn(self, value: bytes) -> None:
        """Learn the table versions of a message. An invalid message is skipped here and becomes a bad one
        later.
        """
        for one in _definitions(value, self._zone):
            # Both entries: rows of partitions are read by the one under 0, so another table there changes
            # their meaning.
            known = [self._known.get((one.schema, one.table, one.version, id_)) for id_ in (one.table_id, 0)]
            self.redefined += any(before not in (None, one) for before in known)
            self._keep(one)
            # Twice, because a definition has two entries (`_keep`).
            while len(self._known) > 2 * MAX_DEFINITIONS:
                self._known.popitem(last=False)

    def _keep(self, one: Definition) -> None:
        """Mark it as used last, under its id and under 0, so that both entries are dropped together."""
        for table_id in (one.table_id, 0):
            key = one.schema, one.table, one.version, table_id
            self._known[key] = one
            self._known.move_to_end(key)

    def _message(
        self, key: bytes | None, value: bytes | None, header: bytes | None, offset: int, decoded: Decoded
    ) -> Rows:
        if value is None:
            raise DecodeError("simple messages have a value")
        body = _body(value)
        if member(body, "version", int) != VERSION:
            raise DecodeError("the version of the protocol is not 1")
        kind, ts = member(body, "type", str), integer(body, "commitTs")
        if kind in OPERATIONS:
            return [self._row(body, kind, ts, offset, native=avro.is_avro(value))]
        schemas = [
            definition(member(body, name, dict), self._zone)
            for name in SCHEMA_MEMBERS
            if body.get(name) is not None
        ]
        if kind == WATERMARK:
            decoded.resolved.append((ts, offset))
        elif kind == BOOTSTRAP:
            if not schemas:
                raise DecodeError("a BOOTSTRAP without its tableSchema")
        elif kind in WORDS:
            query = member(body, "sql", str)
            schema, table = _names(header, schemas)
            decoded.ddls.append(DdlMessage(ts, query, action_of(kind), schema, table, header, offset))
        else:
            raise DecodeError(f"unknown type {kind[:100]!r}")
        return []

    def _row(
        self, body: dict[str, Any], kind: str, ts: int, offset: int, *, native: bool
    ) -> tuple[RowKey, tuple[Any, ...]]:
        schema, table = member(body, "database", str), member(body, "table", str)
        claim = member(body, "claimCheckLocation", str, "")
        if claim or member(body, "handleKeyOnly", bool, False):
            raise ReducedError(f"{schema}.{table}", ts, claim)
        checksum = member(body, "checksum", dict, {})
        if member(checksum, "corrupted", bool, False):
            raise DecodeError(f"the producer marked this row of {schema}.{table} as corrupted")
        # Go leaves out a version of 0 (`omitempty`).
        version = integer({"schemaVersion": 0} | body, "schemaVersion")
        table_id = integer(body, "tableID")
        known = self._definition(schema, table, version, table_id)
        op, data, old = OPERATIONS[kind], member(body, "data", dict, {}), member(body, "old", dict, {})
        if (bool(data), bool(old)) != (op != DELETE, op != INSERT):
            raise DecodeError(f"the images of {kind} are not there, or one too many")
        columns = known.columns_of(data or old)
        if data and not old.keys() <= data.keys():
            raise DecodeError("the before image has columns that the after image has not")
        read = self._native if native else self._text
        new = [read(column, data[column.name]) for column in columns] if data else None
        # Columns that an update's before image leaves out did not change.
        was = data | old
        former = [read(column, was[column.name]) for column in columns] if old else None
        for name, cells in (("current", new), ("previous", former)):
            summed = integer({name: 0} | {k: v for k, v in checksum.items() if v is not None}, name)
            if summed >= 1 << 32:
                raise DecodeError(f"a row has the checksum {summed}")
            if summed and cells is not None:
                sums.check(f"{schema}.{table}", ts, columns, cells, summed, self._zone)
        # A row of a partition has the partition's id, and its definition the table's.
        physical_id = None if table_id == known.table_id else table_id
        stated = TableVersion(known.table_id, version)
        return RowKey(schema, table, physical_id, columns, stated), (op, ts, offset, 0, new, former)

    def row_key(self, value: bytes) -> RowKey:
        """The key of a row's message in Avro. DecodeError or ValueError if it is not a row."""
        body = avro.message(value)
        schema, table = member(body, "database", str), member(body, "table", str)
        table_id, version = integer(body, "tableID"), integer(body, "schemaVersion")
        known = self._definition(schema, table, version, table_id)
        columns = known.columns_of(member(body, "data", dict, {}) or member(body, "old", dict, {}))
        physical_id = None if table_id == known.table_id else table_id
        return RowKey(schema, table, physical_id, columns, TableVersion(known.table_id, version))

    @property
    def time_zone(self) -> str:
        """The time zone of the texts of TIMESTAMPs."""
        return self._zone

    def _definition(self, schema: str, table: str, version: int, table_id: int) -> Definition:
        for wanted in (table_id, 0):
            known = self._known.get((schema, table, version, wanted))
            if known is not None:
                self._keep(known)
                return known
        raise UnknownVersionError(schema, table, version)

    def _moment(self, column: WireColumn, value: Any) -> str:
        """A TIMESTAMP's text."""
        if not isinstance(value, dict):
            raise DecodeError(f"column {column.name!r} holds {type(value).__name__}, no TIMESTAMP")
        text: str = member(value, "value", str)
        zone: str = member(value, "location", str)
        if zone != self._zone:
            raise DecodeError(
                f"column {column.name!r} has TIMESTAMPs in the zone {zone[:100]!r}, not in {self._zone!r}: "
                "give the reader the changefeed's time zone"
            )
        return text

    def _text(self, column: WireColumn, value: Any) -> Any:
        """A value from a JSON message."""
        if value is None:
            return None
        code = column.mysql_type
        if code == TIMESTAMP:
            return self._moment(column, value)
        if not isinstance(value, str):
            raise DecodeError(f"column {column.name!r} holds {type(value).__name__}, not a string")
        if column.type == "binary":
            return base64.b64decode(value, validate=True)
        if code in _FLOATS:
            return number(column, float(value))
        if code not in INTEGER_TYPES:
            return value
        if not _INTEGER.fullmatch(value):
            raise DecodeError(f"column {column.name!r} holds a text that is no integer")
        return number(column, int(value))

    def _native(self, column: WireColumn, value: Any) -> Any:
        """A value from an Avro message."""
        if value is None:
            return None
        code = column.mysql_type
        if code == TIMESTAMP:
            return self._moment(column, value)
        if code in _FLOATS:
            return number(column, value)
        if code in INTEGER_TYPES:
            # TiCDC's new architecture writes a BIT as text. Other values are longs, negative from 2**63 on.
            if isinstance(value, str) and _INTEGER.fullmatch(value):
                return number(column, int(value))
            wraps = isinstance(value, int) and column.type == "uint64"
            return number(column, value & _ALL_BITS if wraps else value)
        wanted = bytes if column.type == "binary" else str
        if not isinstance(value, wanted):
            raise DecodeError(f"column {column.name!r} holds {type(value).__name__}, not {wanted.__name__}")
        return value


def _body(value: bytes) -> dict[str, Any]:
    return avro.message(value) if avro.is_avro(value) else json_object(value, "value")


def parts(key: bytes | None, value: bytes | None) -> list[Part]:
    """The one row of a message."""
    assert value is not None, "a message without a value holds no row that is reduced"
    body = _body(value)
    claim = member(body, "claimCheckLocation", str, "")
    if not (claim or member(body, "handleKeyOnly", bool, False)):
        return [Part(key, value, None)]
    reduced = Reduced(
        member(body, "database", str), member(body, "table", str), integer(body, "commitTs"), claim
    )
    if avro.is_avro(value):
        return [Part(key, None, reduced)]
    return [Part(key, without(body, "claimCheckLocation", "handleKeyOnly"), reduced)]


def _names(header: bytes | None, schemas: list[Definition]) -> tuple[str, str]:
    """The schema and table of a DDL: from the header, otherwise from the definition, which TiCDC's message
    for a DDL of a schema lacks.
    """
    if header is not None:
        try:
            event = ddl_header.decode(header)
        except Undecodable:
            pass
        else:
            return event.schema, event.table
    return (schemas[0].schema, schemas[0].table) if schemas else ("", "")
