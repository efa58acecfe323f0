"""Decodes Avro's messages in bulk: groups them by their schemas, walks them with a kernel, makes columns.

`wire_schema.record_of` parses the schemas. The plain decoder takes the messages that do not follow their
schema, and those that need more than a copy of bytes (an element with a quote in its name, text that is not
UTF-8).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.codec.base import Batch, Decoded, DecodedTable, Decoder
from tidegate.codec.decoding import sums
from tidegate.codec.decoding.assemble import DecodeError, RowKey
from tidegate.codec.decoding.binary import Messages, Walked, table_of
from tidegate.codec.decoding.joined import join
from tidegate.codec.kernels import avro_decode_kernels as kernels
from tidegate.codec.kernels.avro_read_kernels import MAX_GROUPS, R_CURRENT, R_OP, R_PREVIOUS
from tidegate.codec.protocols.avro.plain import AvroDecoder
from tidegate.codec.protocols.avro.wire_schema import Field, Record, wire_columns
from tidegate.kernel import address
from tidegate.model.cells import stride_for

Int64s = npt.NDArray[np.int64]
_FORMS: Final = {
    "float": kernels.FLOAT,
    "double": kernels.DOUBLE,
    "int": kernels.NUMBER,
    "long": kernels.NUMBER,
}
_CONTENT: Final = {
    "BLOB": kernels.BYTES, "BIT": kernels.BIT, "ENUM": kernels.ENUM, "SET": kernels.SET,
    "BIGINT UNSIGNED": kernels.DIGITS,
}  # fmt: skip
"""Forms of the TiDB types whose text or bytes are not copied unchanged."""
_EXTENSION: Final = {
    "_tidb_op": kernels.OPERATION,
    "_tidb_commit_ts": kernels.COMMIT_TS,
    "_tidb_row_level_checksum": kernels.SUM,
    "_tidb_corrupted": kernels.CORRUPTED,
}
_SKIPPED: Final = {
    "string": kernels.SKIPPED_TEXT,
    "boolean": kernels.SKIPPED_BOOLEAN,
    "int": kernels.SKIPPED_NUMBER,
    "long": kernels.SKIPPED_NUMBER,
}


@dataclass(frozen=True, slots=True, eq=False)
class _RecordFields:
    """A record in the form that the kernel walks."""

    fields: Int64s
    owners: tuple[npt.NDArray[np.uint8], ...]
    """The tables of names to whose addresses `fields` refers."""

    def __len__(self) -> int:
        return len(self.fields)


class _Fields:
    """Builds the fields of a plan."""

    def __init__(self) -> None:
        self.lines: list[list[int]] = []
        self.owners: list[npt.NDArray[np.uint8]] = []

    def record(self, record: Record, base: int, *, value: bool) -> None:
        """Add the fields of a record, whose columns have the cells from `base` on. `value`: it is a value,
        which may have extension members.
        """
        cell = base
        for field in record.fields:
            if field.tidb_type:
                self._column(field, cell)
                cell += 1
            elif field.inner is not None:
                self.lines.append([kernels.RECORD, field.null, 0, len(field.inner.fields), 0, 0])
                self.record(field.inner, len(wire_columns(record, frozenset())), value=False)
            else:
                usual = _SKIPPED[field.of_type]
                form = _EXTENSION.get(field.name, usual) if value else usual
                self.lines.append([form, field.null, 0, 0, 0, 0])

    def _column(self, field: Field, cell: int) -> None:
        form, names, count = _FORMS.get(field.of_type, kernels.TEXT), 0, 0
        if form == kernels.TEXT:
            form = _CONTENT.get(field.tidb_type, kernels.TEXT)
            if field.scale >= 0:
                form = kernels.DECIMAL
        if form in (kernels.ENUM, kernels.SET):
            table = _names(field.allowed)
            self.owners.append(table)
            names, count = address(table), len(field.allowed)
        self.lines.append([form, field.null, cell, count, names, 0])

    def plan(self) -> _RecordFields:
        """The plan of all fields that were added."""
        lines = np.array(self.lines, dtype=np.int64).reshape(-1, kernels.FIELD_WORDS)
        return _RecordFields(lines, tuple(self.owners))


def _names(allowed: tuple[str, ...]) -> npt.NDArray[np.uint8]:
    """A table of names in the layout of `avro_kernels`."""
    names = [name.encode() for name in allowed]
    entries, at = b"", 8 * len(names)
    for name in names:
        entries += struct.pack("<II", at, len(name))
        at += len(name)
    return np.frombuffer(entries + b"".join(names) + bytes(8), dtype=np.uint8).copy()


@lru_cache(maxsize=1024)
def _plan_of(record: Record, base: int, *, value: bool) -> _RecordFields:
    fields = _Fields()
    fields.record(record, base, value=value)
    return fields.plan()


class AvroBulkDecoder:
    """A `Decoder` on top of the plain one: the same results, but decoded in bulk."""

    def __init__(self, plain: AvroDecoder, otherwise: Decoder) -> None:
        self._plain, self._otherwise = plain, otherwise

    def decode(self, batch: Batch) -> Decoded:
        """As `Decoder.decode`, but tables may be in another order than that of first appearance."""
        messages = Messages(batch)
        groups = np.empty(len(messages) + 1, dtype=np.int32)
        found = np.empty((MAX_GROUPS, 2), dtype=np.int64)
        count = kernels.read_heads(len(messages), address(messages.spans), address(groups), address(found))
        groups = groups[: len(messages)]
        left, tables = [np.flatnonzero(groups < 0)], list[DecodedTable]()
        for number in range(count):
            rows = np.flatnonzero(groups == number)
            table, rest = self._group(messages, rows, *found[number].tolist())
            left.append(rest)
            tables += [] if table is None or not len(table) else [table]
        parts, rest = [Decoded(rows=tables)], np.sort(np.concatenate(left))
        if len(rest):
            parts.append(self._otherwise.decode(messages.subset(rest)))
        return join(parts)

    def _group(
        self, messages: Messages, rows: Int64s, key_id: int, value_id: int
    ) -> tuple[DecodedTable | None, Int64s]:
        """The rows of messages with the same schemas, and the messages that are left over."""
        try:
            of_key = self._plain.record(key_id) if key_id >= 0 else None
            of_value = self._plain.record(value_id) if value_id >= 0 else None
        # The plain decoder then makes each of them a bad message with the reason.
        except DecodeError:
            return None, rows
        if of_value is None:
            assert of_key is not None, "a group has a schema"
            return self._deletes(messages, rows, of_key)
        if of_key is not None and (of_key.schema, of_key.table) != (of_value.schema, of_value.table):
            return None, rows
        names = frozenset(one.name for one in of_key.fields) if of_key is not None else frozenset()
        columns = wire_columns(of_value, names)
        has_old = any(one.inner is not None for one in of_value.fields)
        walked = Walked.of(rows, stride_for(len(columns) * (2 if has_old else 1)))
        self._walk(messages, walked, of_key, of_value, len(columns))
        key = RowKey(of_value.schema, of_value.table, None, columns)
        scales = [one.scale for one in of_value.fields if one.tidb_type]
        return self._table(messages, key, scales, walked)

    def _deletes(
        self, messages: Messages, rows: Int64s, of_key: Record
    ) -> tuple[DecodedTable | None, Int64s]:
        columns = wire_columns(of_key, frozenset(one.name for one in of_key.fields))
        # If the topic has watermarks, a delete without a value lacks its commit ts: the plain decoder reports
        # it.
        stated = messages.spans[rows, 3] >= 0 if self._plain.has_marks else np.ones(len(rows), dtype=np.bool_)
        walked = Walked.of(rows[stated], stride_for(2 * len(columns)))
        self._walk(messages, walked, of_key, None, len(columns))
        key = RowKey(of_key.schema, of_key.table, None, columns)
        scales = [one.scale for one in of_key.fields if one.tidb_type]
        table, rest = self._table(messages, key, scales, walked)
        return table, np.concatenate([rest, rows[~stated]])

    def _walk(
        self, messages: Messages, walked: Walked, of_key: Record | None, of_value: Record | None, columns: int
    ) -> None:
        if any(one.inner is not None for one in of_key.fields) if of_key is not None else False:
            walked.results[:] = 0  # the keys that we know have no old image
            return
        # A delete without a value has its row in the old image, whose cells come after those of the new one.
        base = columns if of_value is None else 0
        key = None if of_key is None else _plan_of(of_key, base, value=False)
        value = None if of_value is None else _plan_of(of_value, 0, value=True)
        spare = np.empty(2 * (0 if key is None else len(key)) + 1, dtype=np.int64)
        records = kernels.GroupRecords(
            kernels.Fields(0, 0) if key is None else kernels.Fields(address(key.fields), len(key)),
            kernels.Fields(0, -1) if value is None else kernels.Fields(address(value.fields), len(value)),
            columns,
        )
        kernels.walk_records(
            *(len(walked.rows), address(walked.rows), address(messages.spans)),
            *(records, walked.cells, address(spare)),
        )

    def _table(
        self, messages: Messages, key: RowKey, scales: list[int], walked: Walked
    ) -> tuple[DecodedTable, Int64s]:
        table = table_of(messages, key, scales, walked, len(key.columns))
        taken = np.flatnonzero(walked.result(R_OP))
        sound = sums.matching(
            table,
            walked.result(R_CURRENT)[taken],
            walked.result(R_PREVIOUS)[taken],
            self._plain.time_zone,
        )
        if not sound.all():
            # The plain decoder decides about these: their sum is wrong, or could not be computed here.
            walked.results[taken[~sound], R_OP // 8] = 0
            table = table_of(messages, key, scales, walked, len(key.columns))
        return table, walked.rows[walked.result(R_OP) == 0]
