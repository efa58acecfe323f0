"""Renders values of the topic as SQL, whole columns at once. Pure.

A database gets the topic's own values, not Delta's: an enum by its number, a date as its text, even one that
no calendar knows. Statements are cut from the rows' texts, which are already contiguous in memory, so no
value is handled individually.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.table.convert import (
    BIT,
    DECIMAL,
    DOUBLE,
    ENUM,
    FLOAT,
    INT24,
    JSON,
    LONG,
    LONGLONG,
    SET,
    SHORT,
    STRINGS,
    TIMESTAMP,
    TINY,
    VECTOR,
    YEAR,
    TargetColumn,
    utc_texts,
)
from tidegate.errors import Fatal, Undecodable

STATEMENT_BYTES: Final = 1 << 20
"""About the largest size of a statement in bytes. A larger row gets a statement of its own, up to the
server's max_allowed_packet (16 MiB by default)."""
KEYS: Final = 500
"""Rows in one DELETE. MariaDB turns an IN of 1,000 values or more into a join with a table of them
(in_predicate_conversion_threshold), which may read the whole table instead of the keys."""
SLICE: Final = 16_384
"""Rows whose texts are in memory at once, in addition to the statements."""
SLICE_BYTES: Final = 256 << 20
_SMALL: Final = frozenset({TINY, SHORT, INT24, LONG, YEAR})
_NUMBERS: Final = frozenset({*_SMALL, LONGLONG, BIT, ENUM, SET})
_TEXTS: Final = frozenset({JSON, VECTOR})


def quoted(name: str) -> str:
    """The name of a schema, table or column in backquotes."""
    return "`" + name.replace("`", "``") + "`"


class MySqlValues:
    """Values as the topic has them."""

    def type_of(self, column: TargetColumn) -> pa.DataType:
        """Numbers, text and bytes as in `codec.base.DecodedTable`; texts as their bytes."""
        kind = column.mysql_type
        if kind in _SMALL:
            return pa.int64()
        if kind == LONGLONG:
            return pa.uint64() if pa.types.is_decimal(column.type) else pa.int64()
        if kind in (BIT, ENUM, SET):
            return pa.uint64()
        if kind in (FLOAT, DOUBLE):
            return pa.float64()
        return pa.binary() if kind in STRINGS else pa.string()

    def convert(self, wire: pa.Array, column: TargetColumn, time_zone: str) -> pa.Array:
        """TIMESTAMP in UTC, everything else unchanged; Undecodable when it is of another kind."""
        try:
            if column.mysql_type == TIMESTAMP and time_zone != "UTC" and pa.types.is_string(wire.type):
                wire = utc_texts(wire, time_zone)
            return wire.cast(self.type_of(column))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise Undecodable(
                "a column's values do not fit the target's type",
                where=f"column {column.name}: {wire.type} to MySQL type {column.mysql_type}",
                why=str(error)[:200],
                fix="compare the table's definition at the source with the target's",
            ) from error


def literals(values: pa.Array, column: TargetColumn) -> pa.Array:
    """Each value as a literal, in bytes; NULL for null. Undecodable for a number that SQL does not have."""
    kind = column.mysql_type
    if kind == SET:  # the server compares a SET as a signed number, in an index too
        made = values.view(pa.int64()).cast(pa.string()).cast(pa.binary())
    elif kind in _NUMBERS:
        made = values.cast(pa.string()).cast(pa.binary())
    elif kind in (FLOAT, DOUBLE):
        if not pc.all(pc.is_finite(values), min_count=0).as_py():
            raise Undecodable(
                "a column holds a number that MySQL does not have",
                where=f"column {column.name}",
                why="not a number, or infinite",
            )
        # As text, because -0 without quotes is the integer 0. A FLOAT is written as a double, unrounded.
        made = _in_quotes(values.cast(pa.float64()).cast(pa.string()).cast(pa.binary()), b"'")
    elif kind in STRINGS:
        prefix = b"_binary'" if pa.types.is_binary(column.type) else b"'"
        made = _in_quotes(_escaped(values.cast(pa.binary())), prefix)
    elif kind in (DECIMAL, 0):  # a decimal in quotes would be compared as a double
        made = values.cast(pa.binary())
    else:
        made = _in_quotes(_escaped(values.cast(pa.binary())), b"'")
    return pc.fill_null(made, b"NULL")


def _escaped(values: pa.Array) -> pa.Array:
    for bad, good in ((b"\\", b"\\\\"), (b"'", b"\\'"), (b"\0", b"\\0")):
        values = pc.replace_substring(values, bad, good)
    return values


def _in_quotes(values: pa.Array, opening: bytes) -> pa.Array:
    return pc.binary_join_element_wise(opening, values, b"'", b"")


def check_lengths(statements: Iterable[bytes], table: str, packet: int) -> None:
    """Fatal when a statement is longer than the server accepts; `packet`: its max_allowed_packet.

    The server would close the connection, which looks like a temporary failure. Two bytes of a packet are not
    part of the statement.
    """
    longest = max(map(len, statements), default=0)
    if longest > packet - 2:
        raise Fatal(
            "a row is too large for the target",
            where=f"table {table}",
            why=f"its statement has {longest} bytes, and the server's max_allowed_packet is {packet}",
            fix="raise max_allowed_packet at the target, with SET GLOBAL and in its configuration (at most "
            "1 GiB), and restart the consumer",
        )


class Digest:
    """A digest of the rows that a lane writes, in any order: their number, and a sum of 128-bit digests.

    It detects accidental differences, not deliberate ones.
    """

    def __init__(self) -> None:
        self._count = self._sum = 0

    def add(self, what: bytes, texts: pa.Array) -> None:
        """Add rows by their texts; `what` names the operation and the table."""
        begun = hashlib.blake2b(what, digest_size=16)
        for text in texts.to_pylist():
            one = begun.copy()
            one.update(text)
            self._sum += int.from_bytes(one.digest())
        self._count += len(texts)

    def join(self, other: Digest) -> None:
        """Add the rows of another digest."""
        self._sum += other._sum
        self._count += other._count

    def __str__(self) -> str:
        return f"{self._count}:{self._sum & ((1 << 128) - 1):032x}"


def inserts(columns: Sequence[TargetColumn], rows: pa.Table, table: str, digest: Digest) -> Iterator[bytes]:
    """INSERT statements for `rows`, whose columns have the types of `MySqlValues`; `table`: in backquotes."""
    names = ", ".join(quoted(column.name) for column in columns)
    head = f"INSERT INTO {table} ({names}) VALUES ".encode()
    for part in _slices(rows):
        texts = pc.binary_join_element_wise(*_literals(columns, part), b",")
        digest.add(head, texts)
        for text in _cut(pc.binary_join_element_wise(b"(", texts, b"),", b""), part.num_rows):
            yield head + text[:-1]


def deletes(keys: Sequence[TargetColumn], rows: pa.Table, table: str, digest: Digest) -> Iterator[bytes]:
    """DELETE statements for the rows with these keys, which contain no null."""
    head = f"DELETE FROM {table} WHERE ".encode()
    single = f"{quoted(keys[0].name)} IN (".encode()
    for part in _slices(rows):
        if len(keys) == 1:
            texts = literals(_flat(part[keys[0].name]), keys[0])
            between, before, after = b",", head + single, b")"
            listed = pc.binary_join_element_wise(texts, between, b"")
        else:
            # MariaDB does not use an index for an IN of several columns. For this form it does.
            texts = _equations(keys, part, b"=")
            between, before, after = b") OR ", head, b")"
            listed = pc.binary_join_element_wise(b"(", texts, between, b"")
        digest.add(head, texts)
        for text in _cut(listed, KEYS):
            yield before + text[: -len(between)] + after


def matching(columns: Sequence[TargetColumn], rows: pa.Table) -> Iterator[bytes]:
    """Conditions that together find all rows with one of these combinations of values, nulls included."""
    for part in _slices(rows):
        texts = _equations(columns, part, b"<=>")
        for text in _cut(pc.binary_join_element_wise(b"(", texts, b") OR ", b""), KEYS):
            yield text[: -len(b" OR ")]


def bag_deletes(
    columns: Sequence[TargetColumn], rows: pa.Table, table: str, digest: Digest
) -> Iterator[tuple[bytes, int]]:
    """A DELETE for each distinct row, and how many rows it must find: as many as `rows` has of it.

    Text is compared by its bytes, because a collation may treat other rows as equal.
    """
    head = f"DELETE FROM {table} WHERE ".encode()
    wanted: dict[bytes, int] = {}
    for part in _slices(rows):
        texts = _equations(columns, part, b"<=>")
        digest.add(head, texts)
        for text in texts.to_pylist():
            wanted[text] = wanted.get(text, 0) + 1
    for text, count in wanted.items():
        yield head + text + f" LIMIT {count}".encode(), count


def _equations(columns: Sequence[TargetColumn], part: pa.Table, sign: bytes) -> pa.Array:
    equal = []
    for column, values in zip(columns, _literals(columns, part), strict=True):
        left = (_compared(column) if sign == b"<=>" else quoted(column.name)).encode() + sign
        equal.append(pc.binary_join_element_wise(left, values, b""))
    return pc.binary_join_element_wise(*equal, b" AND ")


def _compared(column: TargetColumn) -> str:
    """The column as an expression that is compared by bytes; its charset may differ from the literal's."""
    name = quoted(column.name)
    if column.mysql_type in STRINGS and pa.types.is_binary(column.type):
        return f"BINARY {name}"
    if column.mysql_type in STRINGS or column.mysql_type in _TEXTS:
        return f"BINARY CONVERT({name} USING utf8mb4)"
    return name


def _literals(columns: Sequence[TargetColumn], part: pa.Table) -> list[pa.Array]:
    return [literals(_flat(part[column.name]), column) for column in columns]


def _slices(rows: pa.Table) -> Iterator[pa.Table]:
    """Parts of the rows whose escaped texts fit into one Arrow array (2 GiB)."""
    for at in range(0, rows.num_rows, SLICE):
        part = rows.slice(at, SLICE)
        if part.nbytes > SLICE_BYTES and part.num_rows > 1:
            half = part.num_rows // 2
            yield from _slices(part.slice(0, half).combine_chunks())
            yield from _slices(part.slice(half).combine_chunks())
        else:
            yield part


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _cut(texts: pa.Array, most: int) -> Iterator[bytes]:
    """The texts concatenated, in parts of about STATEMENT_BYTES and at most `most` texts."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data, start = memoryview(texts.buffers()[2] or b""), 0
    while start < len(texts):
        fits = int(np.searchsorted(offsets, int(offsets[start]) + STATEMENT_BYTES, "right")) - 1
        end = min(max(fits, start + 1), start + most, len(texts))
        yield bytes(data[offsets[start] : offsets[end]])
        start = end
