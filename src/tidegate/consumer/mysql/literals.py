"""Renders values of the topic as SQL, whole columns at once. Pure.

A database gets the topic's own values, not Delta's: an enum by its number, a date as its text, even one that
no calendar knows. Statements are cut from the rows' texts, which are already contiguous in memory, so no
value is handled individually. Rows to insert are written by a kernel (`row_kernels`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.mysql.digest import Digest
from tidegate.consumer.mysql.row_kernels import (
    BINARY,
    NUMBER_ROOM,
    PLAIN,
    PLAIN_ROOM,
    QUOTED,
    QUOTES_ROOM,
    ROW_ROOM,
    SIGNED,
    SPARE,
    UNSIGNED,
    put_rows,
)
from tidegate.consumer.mysql.texts import Texts
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
from tidegate.kernel import address, buffer

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
    form, values = _written(values, column)
    if form in (SIGNED, UNSIGNED):
        values = values.cast(pa.string()).cast(pa.binary())
    elif form != PLAIN:
        values = _in_quotes(_escaped(values), b"_binary'" if form == BINARY else b"'")
    return pc.fill_null(values, b"NULL")


def _written(values: pa.Array, column: TargetColumn) -> tuple[int, pa.Array]:
    """How a column's values are written (`row_kernels`), and the numbers or bytes to write."""
    kind = column.mysql_type
    if kind == SET:  # the server compares a SET as a signed number, in an index too
        return SIGNED, values.view(pa.int64())
    if kind in _NUMBERS:
        signed = pa.types.is_signed_integer(values.type)
        return (SIGNED, values.cast(pa.int64())) if signed else (UNSIGNED, values.cast(pa.uint64()))
    if kind in (FLOAT, DOUBLE):
        if not pc.all(pc.is_finite(values), min_count=0).as_py():
            raise Undecodable(
                "a column holds a number that MySQL does not have",
                where=f"column {column.name}",
                why="not a number, or infinite",
            )
        # As text, because -0 without quotes is the integer 0. A FLOAT is written as a double, unrounded.
        return QUOTED, values.cast(pa.float64()).cast(pa.string()).cast(pa.binary())
    raw = values.cast(pa.binary())
    if kind in (DECIMAL, 0):  # a decimal in quotes would be compared as a double
        return PLAIN, raw
    return (BINARY if kind in STRINGS and pa.types.is_binary(column.type) else QUOTED), raw


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


def inserts(columns: Sequence[TargetColumn], rows: pa.Table, table: str, digest: Digest) -> Iterator[bytes]:
    """INSERT statements for `rows`, whose columns have the types of `MySqlValues`; `table`: in backquotes."""
    names = ", ".join(quoted(column.name) for column in columns)
    head = f"INSERT INTO {table} ({names}) VALUES ".encode()
    for part in _slices(rows):
        texts = row_texts(columns, part)
        digest.add(head, texts)
        for text in texts.cut(STATEMENT_BYTES, part.num_rows):
            yield b"".join((head, text[:-1]))


def row_texts(columns: Sequence[TargetColumn], rows: pa.Table) -> Texts:
    """Rows as `(literal,literal),`; the parentheses and the comma are the frame of each text."""
    count = rows.num_rows
    written = [_written(_flat(rows[column.name]), column) for column in columns]
    lines = np.array([_line(form, values) for form, values in written], np.int64)
    out = buffer(count * ROW_ROOM + sum(_room(form, values) for form, values in written) + SPARE)
    bounds = np.zeros(count + 1, np.int64)
    put_rows(count, address(lines), len(columns), address(out), address(bounds[1:]))
    return Texts(out, bounds, lead=1, trail=2)


def _line(form: int, values: pa.Array) -> list[int]:
    """A column for the kernel. The caller keeps `values` alive."""
    valid, first, *texts = values.buffers()
    if form in (SIGNED, UNSIGNED):
        return [form, address(first) + 8 * values.offset, 0, address(valid), values.offset]
    return [form, address(texts[0]), address(first) + 4 * values.offset, address(valid), values.offset]


def _room(form: int, values: pa.Array) -> int:
    """The most bytes of all values of a column, with their commas."""
    if form in (SIGNED, UNSIGNED):
        return NUMBER_ROOM * len(values)
    bounds = Texts.of(values).bounds
    size = int(bounds[-1] - bounds[0])
    return PLAIN_ROOM * len(values) + size if form == PLAIN else QUOTES_ROOM * len(values) + 2 * size


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
        digest.add(head, Texts.of(texts))
        for text in Texts.of(listed).cut(STATEMENT_BYTES, KEYS):
            yield b"".join((before, text[: -len(between)], after))


def matching(columns: Sequence[TargetColumn], rows: pa.Table) -> Iterator[bytes]:
    """Conditions that together find all rows with one of these combinations of values, nulls included."""
    for part in _slices(rows):
        texts = _equations(columns, part, b"<=>")
        listed = pc.binary_join_element_wise(b"(", texts, b") OR ", b"")
        for text in Texts.of(listed).cut(STATEMENT_BYTES, KEYS):
            yield bytes(text[: -len(b" OR ")])


def bag_deletes(
    columns: Sequence[TargetColumn],
    rows: pa.Table,
    table: str,
    digest: Digest,
    *,
    native_json: bool = False,
) -> Iterator[tuple[bytes, int]]:
    """A DELETE for each distinct row, and how many rows it must find: as many as `rows` has of it.

    Text is compared by its bytes, because a collation may treat other rows as equal. `native_json`: JSON has
    MySQL's own type, which stores it in another form. Then the text of that form is compared: as JSON, 1 and
    1.0 would be equal.
    """
    head = f"DELETE FROM {table} WHERE ".encode()
    wanted: dict[bytes, int] = {}
    for part in _slices(rows):
        texts = _equations(columns, part, b"<=>", native_json=native_json)
        digest.add(head, Texts.of(texts))
        for text in texts.to_pylist():
            wanted[text] = wanted.get(text, 0) + 1
    for text, count in wanted.items():
        yield head + text + f" LIMIT {count}".encode(), count


def _equations(
    columns: Sequence[TargetColumn], part: pa.Table, sign: bytes, *, native_json: bool = False
) -> pa.Array:
    equal = []
    for column, values in zip(columns, _literals(columns, part), strict=True):
        left = (_compared(column) if sign == b"<=>" else quoted(column.name)).encode() + sign
        if native_json and column.mysql_type == JSON:
            before, after = b"CONVERT(CAST(", b" AS JSON) USING utf8mb4)"
            left = b"".join((b"BINARY ", before, quoted(column.name).encode(), after, sign))
            values = pc.binary_join_element_wise(before, values, after, b"")
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
    if column.num_chunks == 1:
        return column.chunk(0)  # without a copy
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
