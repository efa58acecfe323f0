"""Generic rows: changes of any tables, and their DDL, in one set of columns, with values as texts."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.sink.reader.changes import COMMIT_TS, DDL, KIND, OWN_COLUMNS, SCHEMA_NAME, SEQ, TABLE_NAME

HEAD: Final = OWN_COLUMNS.names
"""The columns before the table's own."""

GENERIC: Final = pa.schema(
    [
        ("_tidegate_schema", pa.string()),
        ("_tidegate_table", pa.string()),
        ("_tidegate_op", pa.string()),
        (COMMIT_TS, pa.int64()),
        ("_tidegate_seq", pa.int64()),
        ("_tidegate_row", pa.map_(pa.string(), pa.string())),
        ("_tidegate_ddl", pa.string()),
    ]
)
"""A row of any table. `_tidegate_op` is `ddl` if `_tidegate_ddl` has a statement; there is no row then."""


def generic(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows or DDLs of a piece as rows of GENERIC."""
    named = batch.schema.metadata or {}
    n = batch.num_rows
    if named.get(KIND) == DDL.encode():
        schemas, tables = batch.column("_tidegate_schema"), batch.column("_tidegate_table")
        op, commit_ts, seq = _repeated(DDL, n), batch.column(COMMIT_TS), batch.column(SEQ)
        rows, ddl = pa.nulls(n, GENERIC.field("_tidegate_row").type), batch.column("_tidegate_ddl")
    else:
        schemas, tables = _repeated(named[SCHEMA_NAME].decode(), n), _repeated(named[TABLE_NAME].decode(), n)
        op, commit_ts, seq = (batch.column(name) for name in HEAD)
        rows, ddl = maps_of(batch.drop_columns(HEAD)), pa.nulls(n, pa.string())
    return pa.RecordBatch.from_arrays([schemas, tables, op, commit_ts, seq, rows, ddl], schema=GENERIC)


def maps_of(table: pa.RecordBatch) -> pa.MapArray:
    """A map for each row, from each column's name to its value as text; null stays null."""
    width, n = table.num_columns, table.num_rows
    by_column = pa.concat_arrays([text_of(column) for column in table.columns])
    # The values lie column after column; this is the order in which they follow each other row after row.
    by_row = np.arange(width * n).reshape(width, n).T.ravel()
    names = pa.array(table.schema.names, pa.string()).take(pa.array(np.tile(np.arange(width), n)))
    ends = pa.array(np.arange(n + 1, dtype=np.int32) * np.int32(width))
    return pa.MapArray.from_arrays(ends, names, by_column.take(pa.array(by_row)))


def text_of(values: pa.Array) -> pa.Array:
    """Values as texts.

    Text, JSON, enum, set and time stay as they are. A decimal has all digits of its scale, a float the fewest
    that identify it (`1`, `0.1`, `1e+20`). A date is `2024-02-29`, a datetime `2024-02-29 23:59:59.000000`, a
    timestamp the same in UTC with a `Z`. Bytes are hex digits in lower case, which Spark's `unhex` can read.
    A vector is `[1,0.5]`.
    """
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_binary(kind):
        return hex_of(values)
    if pa.types.is_decimal(kind):
        return digits_of(values)
    if pa.types.is_list(kind):
        return vectors_of(values)
    return values.cast(pa.string())


def digits_of(values: pa.Array) -> pa.Array:
    """Decimals without an exponent. Arrow's own cast uses one for small decimals (0E-10)."""
    scale = values.type.scale
    # The same bytes as a decimal without scale are the number's digits.
    whole = pa.Array.from_buffers(
        pa.decimal128(values.type.precision, 0), len(values), values.buffers(), offset=values.offset
    ).cast(pa.string())
    if scale == 0:
        return whole
    minus = pc.if_else(pc.starts_with(whole, "-"), "-", "")
    # At least one digit is left before the point.
    padded = pc.utf8_lpad(pc.utf8_ltrim(whole, "-"), scale + 1, "0")
    before, after = pc.utf8_slice_codeunits(padded, 0, -scale), pc.utf8_slice_codeunits(padded, -scale)
    return pc.binary_join_element_wise(minus, before, ".", after, "")


_HEX: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
"""The two digits of each byte, in the order in which they are in memory."""


def hex_of(values: pa.Array) -> pa.Array:
    """Bytes as hex digits: one look-up for all bytes of the column."""
    n = len(values)
    if n == 0:
        return pa.array([], pa.string())
    _, ends_buffer, data = values.buffers()
    ends = np.frombuffer(ends_buffer, np.int32, n + 1, values.offset * 4)
    raw = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    # The offsets of a sliced column do not begin at 0.
    digits = [None, pa.py_buffer((ends - ends[0]) * np.int32(2)), pa.py_buffer(_HEX[raw])]
    return pc.if_else(values.is_valid(), pa.Array.from_buffers(pa.string(), n, digits), None)


def vectors_of(values: pa.Array) -> pa.Array:
    """Lists of numbers as TiDB prints vectors."""
    # `list_flatten` leaves out the items of nulls, so their length below is 0.
    items = pc.list_flatten(values).cast(pa.string())
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    ends = np.concatenate([[0], np.cumsum(lengths.to_numpy())]).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), items), ",")
    texts = pc.binary_join_element_wise("[", joined, "]", "")
    return pc.if_else(values.is_valid(), texts, None)


def _repeated(text: str, n: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), n)
