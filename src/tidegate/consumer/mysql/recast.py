"""Converts a column that TiDB has given another type, as TiDB does, not by the target's ALTER TABLE.

MODIFY COLUMN sends no row events, and the target may convert values differently: MariaDB truncates the
fraction of a second that TiDB rounds, keeps a text as it is that TiDB formats as JSON, and fails at `1.5` for
an INT. So a new column is added next to the old one, filled here, and then replaces the old one:

    ALTER TABLE t ADD COLUMN new        evidence: what the table looks like
    fill new by old                     may run twice: old is still there
    ALTER TABLE t DROP old, CHANGE new  the same evidence

Each distinct value is converted once. A temporary table maps the digest of an old value to the new one, so
that one statement, which reads the table once, fills the column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any, Final

import pyarrow as pa

from tidegate.consumer.mysql.dialect import EXACT_ELEMENTS, Dialect
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.literals import MySqlValues, literals, quoted
from tidegate.consumer.mysql.session import SCHEMA
from tidegate.consumer.mysql.tables import qualified, type_text
from tidegate.consumer.table.definition import target_column
from tidegate.consumer.table.modify import WIRE_TYPES, Change
from tidegate.errors import Fatal
from tidegate.model.row import Value
from tidegate.model.schema import Column, Kind
from tidegate.tidb.cast import cast

PAGE: Final = 10_000
"""Distinct values in memory at once; statements are shorter if the values are long."""
PAGE_BYTES: Final = 1 << 20
_NUMBERS: Final = (Kind.INT, Kind.UINT, Kind.YEAR, Kind.ENUM, Kind.SET, Kind.BIT)


def recast(hold: Hold, table: tuple[str, str], old: str, new: str, change: Change) -> None:
    """Fill column `new` with the values of `old`. NULL becomes what TiDB converts it to.

    Undecodable for a value that no rule converts, Fatal for a SET that TiDB does not read exactly; no column
    that is in use has changed then.
    """
    before, after = change.before, change.after
    if hold.dialect is Dialect.TIDB and before.kind is Kind.SET and len(before.elems) > EXACT_ELEMENTS:
        raise Fatal(
            "a column cannot be converted at the target",
            where=f"table {'.'.join(table)}, column {before.name}",
            why=f"TiDB computes with a SET as with a double, and this one has {len(before.elems)} elements",
            fix="change the column at the target, and start again with --skip-ddl and the ts of the DDL",
        )
    place, known = qualified(*table), qualified(SCHEMA, hold.scratch)
    old_type, new_type = type_text(before, hold.dialect), type_text(after, hold.dialect)
    digest = f"UNHEX(SHA2({_digested(before, quoted(old))}, 256))"
    # A run that died may have left it, with the values of another column.
    hold.run_ddl(f"DROP TABLE IF EXISTS {known}")
    hold.run_ddl(
        f"CREATE TABLE {known} (digest BINARY(32) PRIMARY KEY,"
        f" old {old_type} NULL, new {new_type} NULL) ENGINE=InnoDB"
    )
    hold.run_ddl(
        f"INSERT INTO {known} (digest, old) SELECT {digest}, {quoted(old)} FROM {place}"
        f" WHERE {quoted(old)} IS NOT NULL ON DUPLICATE KEY UPDATE new=NULL"
    )
    last = b""
    read = f"SELECT digest, {_read(before, 'old')} FROM {known}"
    while rows := hold.rows(f"{read} WHERE digest>X'{last.hex()}' ORDER BY digest LIMIT {PAGE}"):
        last = rows[-1][0]
        _convert(hold, known, rows, change)
    hold.run_ddl(f"UPDATE {place} t JOIN {known} k ON k.digest={digest} SET t.{quoted(new)}=k.new")
    without = hold.rows(f"SELECT 1 FROM {place} WHERE {quoted(old)} IS NULL LIMIT 1")
    nothing = cast(None, before, after, change.time_zone or UTC) if without else None
    if nothing is not None:
        (text,) = _literals([nothing], after)
        hold.run_ddl(f"UPDATE {place} SET {quoted(new)}={text} WHERE {quoted(old)} IS NULL")
    hold.run_ddl(f"DROP TABLE {known}")


def _convert(hold: Hold, known: str, rows: Sequence[tuple[Any, ...]], change: Change) -> None:
    """Convert a page of distinct values, and store the results by their digests."""
    plain, zone = _plain(change.before), change.time_zone or UTC
    converted = [cast(plain(value), change.before, change.after, zone) for _, value in rows]
    pairs = [
        f"(X'{digest.hex()}',{text})"
        for (digest, _), text in zip(rows, _literals(converted, change.after), strict=True)
    ]
    begun = 0
    while begun < len(pairs):
        end, size = begun, 0
        while end < len(pairs) and (end == begun or size < PAGE_BYTES):
            size += len(pairs[end])
            end += 1
        hold.run_ddl(
            f"INSERT INTO {known} (digest, new) VALUES {','.join(pairs[begun:end])}"
            " ON DUPLICATE KEY UPDATE new=VALUES(new)"
        )
        begun = end


def _literals(values: Sequence[Value], column: Column) -> list[str]:
    target, types = target_column(column), MySqlValues()
    wire = pa.array(values, WIRE_TYPES.get(column.kind, pa.string()))
    made = literals(types.convert(wire, target, "UTC"), target)
    return [text.decode("utf-8", "surrogateescape") for text in made.to_pylist()]


def _digested(column: Column, name: str) -> str:
    """A column as bytes that are equal only for equal values; a collation may treat others as equal."""
    if column.kind is Kind.BYTES:
        return name
    shown = f"{name}+0" if column.kind in (Kind.ENUM, Kind.SET, Kind.BIT) else name
    if column.kind is Kind.FLOAT:  # as text it has six digits, which different values may share
        shown = f"CAST({name} AS DOUBLE)"
    return f"CAST(CONVERT({shown} USING utf8mb4) AS BINARY)"


def _read(column: Column, name: str) -> str:
    if column.kind in (Kind.FLOAT, Kind.DOUBLE):
        return f"CAST({name} AS DOUBLE)"
    if column.kind in _NUMBERS:
        return f"{name}+0"
    return _digested(column, name)


def _plain(column: Column) -> Callable[[Any], Value]:
    """A function that turns the driver's value into TiDB's plain value."""
    if column.kind in _NUMBERS:
        return int
    if column.kind in (Kind.FLOAT, Kind.DOUBLE):
        return float
    return bytes if column.kind in (Kind.STRING, Kind.BYTES) else bytes.decode
