"""The unique keys whose values one row may take over from another, and hashes of these values. Pure.

Dispatch by conflict sends a row where its handle key says. If one row takes over the value of another unique
key, the two rows may be on different partitions, so `dispatcher.conflict` keeps track of these values. It
knows them by hashes that are equal whenever TiDB considers the values equal: texts are hashed by their
collation, a prefix key hashes only the prefix. Different values may share a hash. That costs an unnecessary
mark and is otherwise harmless.

Either such keys of a table can be tracked, or there is a reason why not (`why_by_table`). In that case all
rows of the table go to one partition, where no conflict can arise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Column, Index, Kind, TableSchema
from tidegate.tidb.text import value_text
from tidegate.tidb.types import collation

HASHES: Final = 1 << 31
"""The number of different hashes for each key."""
NO_VALUE: Final = -1
"""The hash of a value that holds a NULL: it equals no other value."""
BROKEN: Final = "\ufffd"
"""TiDB reads each byte of a text that is not UTF-8 as this character, so different bytes may be equal. All
texts with it get the same hash, because decoders differ in how many such characters they produce."""
_UNSURE: Final = frozenset({Kind.FLOAT, Kind.DOUBLE, Kind.JSON, Kind.VECTOR})
"""Kinds in which equal values may have different texts, such as 0 and -0."""
_EXACT: Final = frozenset({"binary", "utf8mb4_0900_bin"})
"""Collations in which different texts are never equal."""


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique key whose values may move between rows on different partitions."""

    columns: tuple[int, ...]
    """Positions in `TableSchema.columns`."""
    lengths: tuple[int, ...]
    """How many characters, or bytes of a binary column, count in each column; -1: all."""


def tracked_keys(table: TableSchema) -> tuple[UniqueKey, ...]:
    """The keys whose values are tracked; none if `why_by_table` has a reason."""
    if why_by_table(table):
        return ()
    positions = _positions(table)
    return tuple(
        UniqueKey(tuple(positions[offset] for offset in index.columns), index.lengths)
        for index in _movable(table)
    )


def why_by_table(table: TableSchema) -> str:
    """In words, why the table's unique values cannot be tracked; empty: they can be tracked."""
    if not table.handle_key:
        return "it has no key that its rows are known by"
    movable, positions = _movable(table), _positions(table)
    # Each partition is a span with a writer of its own, so none of them sees all values of the table.
    if movable and table.partitions:
        return "it is partitioned, so that several writers send its rows"
    for index in movable:
        for offset in index.columns:
            if offset not in positions:
                return f"its unique key {index.name} has a column whose values are not replicated"
            if why := _why_not(table.columns[positions[offset]]):
                return f"{why}, and it is in the unique key {index.name}"
    return ""


def _why_not(column: Column) -> str:
    if column.kind in _UNSURE:
        return f"equal values of {column.name} may be written differently"
    if column.kind is Kind.STRING and column.collate not in collation.KNOWN:
        return f"the collation {column.collate} of {column.name} is not known"
    return ""


def _movable(table: TableSchema) -> list[Index]:
    """The unique indexes for which rows with the same value may be on different partitions."""
    return [index for index in table.indexes if index.unique and not _holds_handle(table, index)]


def _holds_handle(table: TableSchema, index: Index) -> bool:
    """Whether equal values of an index imply equal texts in all columns of the handle key.

    Then such rows are on the same partition. It does not hold if only a prefix counts, or if a collation
    considers different texts equal, as for a primary key of texts.
    """
    positions = _positions(table)
    exact = {
        positions[offset]
        for offset, length in zip(index.columns, index.lengths, strict=True)
        if offset in positions and length < 0 and _is_exact(table.columns[positions[offset]])
    }
    # Partitions are chosen by the handle key's text: with equal texts in it, both rows have one writer and
    # one order.
    return exact.issuperset(table.handle_key)


def _is_exact(column: Column) -> bool:
    if column.kind is Kind.STRING:
        return column.collate in _EXACT
    return column.kind not in _UNSURE


def _positions(table: TableSchema) -> dict[int, int]:
    return {column.offset: at for at, column in enumerate(table.columns)}


def compared(data: bytes, table: TableSchema, position: int, length: int) -> bytes:
    """The part of a text or binary value that counts for a unique key; equal if TiDB's values are."""
    column = table.columns[position]
    # A text has at least as many bytes as characters, so a shorter one is never cut.
    is_cut = 0 <= length < len(data)
    if column.kind is not Kind.STRING:
        return data[:length] if is_cut else data
    if is_cut or not collation.is_bytewise(column.collate):
        text = data.decode(errors="replace")[: length if is_cut else None]
        if BROKEN in text:
            return BROKEN.encode()
        data = text.encode()
    return collation.key(data, column.collate)


def value_hash(row: RowChange, number: int, key: UniqueKey) -> int:
    """The hash of a row's value of key `number`, or NO_VALUE. A delete's value is in the old image, otherwise
    it is in the new one.
    """
    image = row.old if row.new is None else row.new
    assert image is not None, "a row has an image"
    state = crc32((row.table.schema + row.table.table).encode())
    for position, length in zip(key.columns, key.lengths, strict=True):
        value = image[position]
        if value is None:
            return NO_VALUE
        state ^= crc32(row.table.columns[position].name.encode() + _text(row.table, position, value, length))
    # Each key has a range of its own, because equal values of two keys are no conflict.
    return number * HASHES + state % HASHES


def _text(table: TableSchema, position: int, value: Value, length: int) -> bytes:
    text = value_text(table.columns[position].kind, value)
    return compared(text, table, position, length) if is_bytes(table, position) else text


def is_bytes(table: TableSchema, position: int) -> bool:
    """Whether a column's values are text or binary, so that a prefix or a collation may count."""
    return table.columns[position].kind in (Kind.STRING, Kind.BYTES)


def value_hashes(row: RowChange, keys: Sequence[UniqueKey]) -> list[int]:
    """The hashes of a row's values of all keys; the plain twin of `conflict.key_hashes`."""
    return [value_hash(row, number, key) for number, key in enumerate(keys)]
