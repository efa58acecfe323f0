"""Decodes messages right after they are encoded, and compares them with the rows from which they were made.

    RowBlock --encode--> MessageBlock --the protocol's own decoder--> DecodedTable
        |                                                                 |
        +--- columns' sums, NULLs, operation, commit ts --- equal? --- the same

This is `integrity.verify-encoded`. Both sides are reduced to a checksum over the columns, as in
docs/formats/checksums.md: one from the cells, the other from what a reader would get. Rows whose sums differ
are compared cell by cell, and that comparison decides. Documented losses of the protocol (`entry.Loss`) are
no difference: a column of a type whose values may change is left out (`is_compared`). Rows are not compared
if only their handle key or a location in a storage was sent, or if they are marked as corrupted.

Pure. One `ReadBack` per worker, because its decoder learns tables. Memory: the decoded rows of one block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.codec.base import BadMessage, Batch, CodecOptions, Decoded, DecodedTable
from tidegate.codec.decode import decoder
from tidegate.codec.decoding import sums
from tidegate.codec.decoding.assemble import DecodeError
from tidegate.codec.decoding.opening import in_pieces
from tidegate.codec.entry import Loss
from tidegate.codec.large import in_words
from tidegate.codec.registry import codec_of, unverified
from tidegate.errors import InvalidInput, TidegateError
from tidegate.model.cells import DELETE, INSERT, NULL, UPDATE, Image, RowBlock
from tidegate.model.message import MessageBlock
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind, TableSchema
from tidegate.tidb import arrow_checksum, cell_checksum
from tidegate.tidb import value as values
from tidegate.tidb.cell_values import stored_of
from tidegate.tidb.checksum import column_bytes
from tidegate.tidb.table_info import every_column

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
LOSSY_KINDS: Final = {
    Loss.DECIMAL: {Kind.DECIMAL},
    Loss.CALENDAR: {Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP},
    Loss.FRACTION: {Kind.DATETIME, Kind.TIME},
    Loss.ELEMENT: {Kind.ENUM, Kind.SET},
}
"""Kinds of columns that cannot be compared because of a loss."""
_PHYSICAL_MS: Final = np.uint64(18)
"""The number of bits of a commit ts below its milliseconds."""


@dataclass(frozen=True, slots=True)
class Misencoded:
    """A row whose message does not match the row that was captured."""

    table: str
    row: str
    """Its key, as text; empty: the table has none."""
    commit_ts: int
    column: str
    """Empty: the difference is not in a single column."""
    why: str
    key: bytes | None
    """Key and value of the message."""
    value: bytes | None

    def render(self) -> str:
        """The finding as one line, for errors."""
        row = f", row with {self.row}" if self.row else ""
        column = f", column {self.column}" if self.column else ""
        return f"table {self.table}{row}, commit ts {self.commit_ts}{column}: {self.why}"


def is_compared(column: Column, losses: frozenset[Loss]) -> bool:
    """Whether decoding restores a column under these losses, so that it can be compared."""
    if Loss.DEFAULT in losses and column.nullable and column.default is not None:
        return False
    return all(column.kind not in kinds for loss, kinds in LOSSY_KINDS.items() if loss in losses)


@dataclass(frozen=True, slots=True)
class _VersionData:
    """The data that is the same for all blocks of a table version."""

    named: Callable[[str], str]
    """How messages write names."""
    at: dict[str, int]
    """The columns' numbers, by their names in messages."""
    virtual: frozenset[str]
    """Names of further columns, which are always NULL."""
    compared: list[int]
    """The columns that are compared, in the order of their ids."""
    plan: Int64s
    key_compared: list[int]
    """Those of them that are in the handle key: some deletes have only these."""
    key_plan: Int64s


class ReadBack:
    """Compares what a protocol's encoder wrote with the rows that it was given."""

    def __init__(self, options: CodecOptions) -> None:
        """`options`: those with which messages are encoded. Raises InvalidInput if they are `unverified`."""
        if why := unverified(codec_of(options), options):
            raise InvalidInput(
                f"messages of {options.protocol} cannot be read back",
                where="sink URI",
                why=why,
                fix="choose another protocol, or leave verify-encoded out",
            )
        self._options, self._codec = options, codec_of(options)
        self._decoder, self._losses = decoder(options), self._codec.losses(options)
        self._zone = "UTC" if self._codec.utc else options.time_zone
        self._known: WeakKeyDictionary[TableSchema, _VersionData] = WeakKeyDictionary()

    def compare(
        self, block: RowBlock, messages: MessageBlock, partition: npt.NDArray[np.int32]
    ) -> list[Misencoded]:
        """The rows whose messages do not match the block, usually none.

        Row i went to partition[i].
        """
        found = self._compared(block, messages, partition)
        if found is None:
            self._give_definition(block.table)
            found = self._compared(block, messages, partition)
        assert found is not None, "the decoder has just met the definition"
        return found

    def _compared(
        self, block: RowBlock, messages: MessageBlock, partition: npt.NDArray[np.int32]
    ) -> list[Misencoded] | None:
        """None: the decoder lacks the definition of the table version."""
        rows = _rows_of(messages, partition)
        if rows is None:
            return [Misencoded(block.table.name, "", int(block.commit_ts[0]), "", _COUNT, None, None)]
        one = _Comparison(block, messages, rows, self.known(block.table), self._losses, self._zone)
        # docs/guarantees.md#a-message-says-what-its-row-is: decoded as a reader would do it, before anything
        # is sent.
        for piece in in_pieces(self._decoder, batch_of(messages)):
            if any(bad.unknown is not None for bad in piece.bad):
                return None
            one.take(piece)
        return one.finish()

    def _give_definition(self, table: TableSchema) -> None:
        """Give the decoder the definition of a table version, for a protocol whose rows do not contain it."""
        definitions = self._codec.definitions
        assert definitions is not None, "only such a protocol has rows that wait"
        stated = definitions.encode(table, self._options, 0)
        self._decoder.decode(Batch([stated.key], [stated.value], [0]))

    def known(self, table: TableSchema) -> _VersionData:
        """The data that is the same for all blocks of this version."""
        found = self._known.get(table)
        if found is None:
            compared = [i for i, column in enumerate(table.columns) if is_compared(column, self._losses)]
            compared.sort(key=lambda i: table.columns[i].id)
            keys = [i for i in compared if i in table.handle_key]
            found = self._known[table] = _VersionData(
                self._codec.named,
                {self._codec.named(column.name): i for i, column in enumerate(table.columns)},
                self._virtual(table),
                compared,
                cell_checksum.plan_of(table, compared),
                keys,
                cell_checksum.plan_of(table, keys),
            )
        return found

    def _virtual(self, table: TableSchema) -> frozenset[str]:
        if Loss.VIRTUAL not in self._losses:
            return frozenset()
        return frozenset(self._codec.named(column.name) for column in every_column(table.info, table.version))


def _rows_of(messages: MessageBlock, partition: npt.NDArray[np.int32]) -> Int64s | None:
    """The numbers of the rows in the order of the messages; None: the messages have more or fewer rows."""
    of_message = np.repeat(messages.partition, messages.rows)
    found = np.empty(len(partition), dtype=np.int64)
    order = np.argsort(of_message, kind="stable")
    wanted = np.argsort(partition, kind="stable")
    if not np.array_equal(of_message[order], partition[wanted]):
        return None
    found[order] = wanted
    return found


def batch_of(messages: MessageBlock) -> Batch:
    """The messages as a reader gets them, with their numbers as offsets. Values are copied only once."""
    return Batch(
        _texts(messages.data, messages.key_start, messages.key_length),
        _texts(messages.data, messages.value_start, messages.value_length),
        np.arange(len(messages), dtype=np.int64),
    )


def _texts(data: npt.NDArray[np.uint8], start: Int64s, length: Int64s) -> pa.Array:
    """Slices of one buffer, in ascending order; null if the length is negative."""
    n, there = len(start), length >= 0
    if not there.any():
        return pa.nulls(n, pa.large_binary())
    # Every slice and the gap after it. A null is an empty slice at the end of the one before it.
    ends = np.maximum.accumulate(np.where(there, start + length, 0))
    bounds = np.empty(2 * n + 1, dtype=np.int64)
    bounds[:-1:2] = np.where(there, start, np.concatenate([[0], ends[:-1]]))
    bounds[1::2] = ends
    bounds[-1] = ends[-1]
    assert (np.diff(bounds) >= 0).all(), "messages are one behind the other"
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * n, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    chosen = np.arange(0, 2 * n, 2, dtype=np.int64)
    return pieces.take(pa.array(chosen, mask=~there))


class _Comparison:
    """The comparison of one block with its messages."""

    def __init__(
        self,
        block: RowBlock,
        messages: MessageBlock,
        rows: Int64s,
        known: _VersionData,
        losses: frozenset[Loss],
        zone: str,
    ) -> None:
        """`rows`: the result of `_rows_of`."""
        self._block, self._messages, self._rows = block, messages, rows
        self._known, self._losses, self._zone = known, losses, zone
        self._first = np.cumsum(messages.rows, dtype=np.int64) - messages.rows
        self._message = np.empty(len(rows), dtype=np.int64)
        self._message[rows] = np.repeat(np.arange(len(messages), dtype=np.int64), messages.rows)
        """For each row, the number of its message."""
        self._seen = np.zeros(len(rows), dtype=np.bool_)
        self._findings: dict[int, tuple[str, str]] = {}
        """By row: column and reason."""
        if block.checksums is not None:
            self._seen |= block.checksums["corrupted"] != 0  # the decoder must refuse these rows

    def take(self, piece: Decoded) -> None:
        """Compare the content of some messages."""
        for bad in piece.bad:
            self._take_bad(bad)
        for table in piece.rows:
            self._take_table(table)

    def finish(self) -> list[Misencoded]:
        """The findings, in the order of the rows."""
        for row in np.flatnonzero(~self._seen).tolist():
            self._findings.setdefault(row, ("", "its message holds no such row"))
        return [self._found(row, *self._findings[row]) for row in sorted(self._findings)]

    def _found(self, row: int, column: str, why: str) -> Misencoded:
        block, sent, number = self._block, self._messages, int(self._message[row])
        key, value = (
            None if size < 0 else sent.data[start : start + size].tobytes()
            for start, size in (
                (int(sent.key_start[number]), int(sent.key_length[number])),
                (int(sent.value_start[number]), int(sent.value_length[number])),
            )
        )
        image = block.old if block.op[row] == DELETE else block.new
        columns = [(at, block.table.columns[at]) for at in block.table.handle_key]
        words = in_words((of.name, self._value(image, row, at)) for at, of in columns)
        return Misencoded(block.table.name, words, int(block.commit_ts[row]), column, why, key, value)

    def _take_bad(self, bad: BadMessage) -> None:
        first = int(self._first[bad.offset])
        for row in self._rows[first : first + int(self._messages.rows[bad.offset])].tolist():
            # A reduced row is not in its message by design. A text that is not UTF-8 cannot be read back by
            # any reader.
            if not self._seen[row] and bad.reduced_ts is None and not self._has_bad_text(row):
                self._findings[row] = "", f"its message cannot be read back: {bad.why}"
            self._seen[row] = True

    def _take_table(self, table: DecodedTable) -> None:
        within = table.seq < self._messages.rows[table.offset]
        if not within.all():
            # There are more rows than were encoded. It is not known which are extra, so all count as missing.
            return
        rows = self._rows[self._first[table.offset] + table.seq]
        fresh = ~self._seen[rows]
        self._seen[rows] = True
        suspect = fresh & ~self._is_equal(table, rows)
        for i in np.flatnonzero(suspect).tolist():
            found = self._difference(table, i, int(rows[i]))
            if found is not None:
                self._findings[int(rows[i])] = found

    # --- all rows at once, by checksum

    def _is_equal(self, table: DecodedTable, rows: Int64s) -> Bools:
        """Which rows certainly match; `_difference` decides about the others."""
        block, of = self._block, self._block.table
        op, named = block.op[rows], self._known.named
        equal = self._has_its_op(op, table.op) & self._has_its_ts(table.commit_ts, block.commit_ts[rows], op)
        if (table.schema, table.table) != (named(of.schema), named(of.table)):
            return np.zeros(len(table), dtype=np.bool_)
        if table.physical_id is not None:
            equal &= block.physical_id[rows] == table.physical_id
        places = self._places(table)
        if places.keys() == set(range(len(of.columns))):
            chosen, plan = self._known.compared, self._known.plan
        elif self._may_lack_cells() and places.keys() == set(of.handle_key):
            chosen, plan = self._known.key_compared, self._known.key_plan
            equal &= op == DELETE
        else:
            return np.zeros(len(table), dtype=np.bool_)
        for has, image, decoded in (
            (table.op != DELETE, block.new, table.new),
            (table.op != INSERT, block.old, table.old),
        ):
            if has.any() and chosen:
                assert decoded is not None, "rows of such operations have this image"
                columns = {at: decoded.column(places[at]) for at in chosen}
                equal[has] &= self._is_image_equal(image, rows[has], columns, plan, has)
        return equal

    def _is_image_equal(
        self, image: Image, rows: Int64s, columns: Mapping[int, pa.Array], plan: Int64s, has: Bools
    ) -> Bools:
        """Whether the images match, for the rows that have this image."""
        kinds = [self._block.table.columns[at].kind for at in columns]
        decoded = pa.RecordBatch.from_arrays(list(columns.values()), names=[str(at) for at in columns])
        try:
            found = arrow_checksum.sums(decoded, kinds, self._zone)[has]
        except (TidegateError, ValueError):
            return np.zeros(len(rows), dtype=np.bool_)
        equal: Bools = cell_checksum.sums(plan, image, rows) == found
        # A NULL adds nothing to a sum, so two columns could be exchanged without changing it.
        for at, column in columns.items():
            lacking = image.sizes[rows, at] == NULL
            if column.null_count or lacking.any():
                equal &= lacking == column.is_null().to_numpy(zero_copy_only=False)[has]
        return equal

    def _has_its_op(self, op: npt.NDArray[np.uint8], shown: npt.NDArray[np.uint8]) -> Bools:
        wanted = np.where(op == UPDATE, INSERT, op) if Loss.OLD_IMAGE in self._losses else op
        equal: Bools = wanted == shown
        return equal

    def _has_its_ts(
        self, shown: npt.NDArray[np.uint64], ts: npt.NDArray[np.uint64], op: npt.NDArray[np.uint8]
    ) -> Bools:
        if Loss.COMMIT_TS in self._losses:
            return np.ones(len(ts), dtype=np.bool_)
        equal: Bools = shown == ts
        if Loss.LOGICAL_TS in self._losses:
            equal = shown == ts >> _PHYSICAL_MS << _PHYSICAL_MS
        return equal | (op == DELETE) if Loss.DELETED_TS in self._losses else equal

    def _may_lack_cells(self) -> bool:
        return Loss.DELETED_CELLS in self._losses and bool(self._block.table.handle_key)

    def _places(self, table: DecodedTable) -> dict[int, int]:
        """By column of the table, its place among the decoded columns; -1 for one that the table lacks."""
        at, virtual = self._known.at, self._known.virtual
        return {
            at.get(column.name, -1): i
            for i, column in enumerate(table.columns)
            if column.name in at or column.name not in virtual
        }

    # --- one row, cell by cell

    def _difference(self, table: DecodedTable, i: int, row: int) -> tuple[str, str] | None:
        """The first difference of a decoded row from the captured one: column, reason; None: they match."""
        block, of, named = self._block, self._block.table, self._known.named
        op, shown = int(block.op[row]), int(table.op[i])
        if (table.schema, table.table) != (named(of.schema), named(of.table)):
            return "", f"it is a row of {table.schema}.{table.table}"
        if table.physical_id is not None and table.physical_id != int(block.physical_id[row]):
            return "", f"it is a row of the partition {table.physical_id}"
        one, there = slice(i, i + 1), slice(row, row + 1)
        if not self._has_its_ts(table.commit_ts[one], block.commit_ts[there], block.op[there])[0]:
            return "", f"its commit ts is {int(table.commit_ts[i])}"
        idle = Loss.IDLE_UPDATE in self._losses and op == UPDATE and shown == INSERT
        if idle and self._cells(block.new, row) != self._cells(block.old, row):
            return "", "an update that changes something is an insert"
        if not idle and not self._has_its_op(block.op[there], table.op[one])[0]:
            return "", f"its operation is {_OPERATIONS[shown]}, not {_OPERATIONS[op]}"
        wanted = set(range(len(of.columns)))
        if op == DELETE and self._may_lack_cells() and len(table.columns) < len(wanted):
            wanted = set(of.handle_key)
        places = self._places(table)
        if places.keys() != wanted:
            differing = sorted(places.keys() ^ wanted)
            names = [of.columns[n].name for n in differing if n >= 0]
            return (names or [""])[
                0
            ], "it is not there" if names else "there is a column that the table has not"
        for image, decoded in ((block.new, table.new), (block.old, table.old)):
            if (image is block.new and shown == DELETE) or (image is block.old and shown == INSERT):
                continue
            assert decoded is not None, "rows of such operations have this image"
            for at in self._known.compared:
                if at in wanted:
                    cell = decoded.column(places[at])[i].as_py()
                    why = self._cell_difference(of.columns[at], image, row, at, cell)
                    if why:
                        side = "" if image is block.new else "its old value: "
                        return of.columns[at].name, side + why
        return None

    def _cells(self, image: Image, row: int) -> list[Value]:
        return [self._value(image, row, at) for at in range(len(self._block.table.columns))]

    def _value(self, image: Image, row: int, at: int) -> Value:
        column = self._block.table.columns[at]
        return values.present(column, stored_of(image, row, at, column.kind))

    def _has_bad_text(self, row: int) -> bool:
        """Whether a text of the row is not UTF-8, in which case the decoder may refuse its message."""
        op, columns = self._block.op[row], self._block.table.columns
        images = [self._block.new] * int(op != DELETE) + [self._block.old] * int(op != INSERT)
        texts = [
            self._value(image, row, at)
            for image in images
            for at, column in enumerate(columns)
            if column.kind is Kind.STRING
        ]
        return any(isinstance(text, bytes) and "\ufffd" in text.decode(errors="replace") for text in texts)

    def _cell_difference(self, column: Column, image: Image, row: int, at: int, cell: Any) -> str:
        """Why a decoded cell does not match the block's; empty: it does. The text contains no values."""
        value = self._value(image, row, at)
        if value is None or cell is None:
            return "" if value is cell else "it is NULL" if cell is None else "it is not NULL"
        if isinstance(cell, str) and "\ufffd" in cell and isinstance(value, bytes):
            # Programs differ in how many U+FFFD they write for bytes that are not UTF-8.
            stated, wanted = (_BROKEN.sub("\ufffd", text) for text in (cell, value.decode(errors="replace")))
            return "" if stated == wanted else _OTHERWISE
        try:
            choices = sums.cell_bytes(column.kind, cell, self._zone)
        except DecodeError:
            return _OTHERWISE
        return "" if column_bytes(column.kind, value) in choices else _OTHERWISE


_BROKEN: Final = re.compile("\ufffd+")
_COUNT: Final = "the messages do not have as many rows for each partition as there are"
_OTHERWISE: Final = "it has another value"
_OPERATIONS: Final = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
