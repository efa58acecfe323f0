"""The order of changes in the event store: commit ts, start ts, delete < update < insert, key.

The class of operation comes before the key because, inside one transaction, a row that frees a unique
value must precede the row that takes it (TiCDC's sorter does the same). This is the plain twin of
`eventstore.kernels` and its test oracle; nothing on the hot path calls it. `rows_by_table` and `sum_of` are
the twins of `eventstore.directory_kernels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from tidegate.eventstore.directory import NONE, OTHER, RECORD
from tidegate.model.block import ENTRY_SCHEMA, OP_DELETE


class Entry(NamedTuple):
    """One row of ENTRY_SCHEMA."""

    commit_ts: int
    start_ts: int
    op: int
    key: bytes
    value: bytes
    old_value: bytes


def op_class(op: int, old_value: bytes) -> int:
    """0 for a delete, 1 for an update (a put over an old value), 2 for an insert."""
    if op == OP_DELETE:
        return 0
    return 1 if old_value else 2


def order_key(entry: Entry) -> tuple[int, int, int, bytes]:
    """The key by which entries are compared. Entries with equal keys are one change that was pulled twice."""
    # docs/guarantees.md#changes-of-a-row-are-on-one-partition-in-commit-order: deletes before inserts, so
    # that a unique value is free before another row takes it.
    return entry.commit_ts, entry.start_ts, op_class(entry.op, entry.old_value), entry.key


def entries_of(batch: pa.RecordBatch) -> list[Entry]:
    """The rows of a block as tuples."""
    columns = [batch.column(i).to_pylist() for i in range(batch.num_columns)]
    return [Entry(*row) for row in zip(*columns, strict=True)]


def block_of(entries: Iterable[Entry]) -> pa.RecordBatch:
    """The entries as one block, in their order."""
    columns = list(zip(*entries, strict=True)) or [()] * len(ENTRY_SCHEMA)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)


def sort_entries(entries: Iterable[Entry], after: int, upto: int) -> list[Entry]:
    """The entries with after < commit_ts <= upto, sorted, each change once (the first one found is kept)."""
    chosen: dict[tuple[int, int, int, bytes], Entry] = {}
    for entry in entries:
        if after < entry.commit_ts <= upto:
            chosen.setdefault(order_key(entry), entry)
    return [chosen[key] for key in sorted(chosen)]


def table_of(key: bytes) -> tuple[int, int]:
    """The table id and the class of a key (`directory.RECORD`, `OTHER`, `NONE`)."""
    if len(key) < 9 or key[:1] != b"t":
        return 0, NONE
    number = int.from_bytes(key[1:9], "big") - (1 << 63)
    return number, RECORD if key[9:11] == b"_r" else OTHER


def rows_by_table(entries: Iterable[Entry]) -> dict[tuple[int, int], list[int]]:
    """The indexes of the rows of each (table id, class), in the order of their first rows."""
    found: dict[tuple[int, int], list[int]] = {}
    for number, entry in enumerate(entries):
        found.setdefault(table_of(entry.key), []).append(number)
    return found


_WORD: Final = (1 << 64) - 1
_START: Final = 0x9E3779B97F4A7C15
_FACTOR: Final = 0xD6E8FEB86659FD93


def sum_of(entries: Iterable[Entry]) -> int:
    """The checksum of rows that a directory keeps: 64 bits over all their bytes and their order."""
    state = 0
    for entry in entries:
        words = [entry.commit_ts, entry.start_ts, len(entry.key) << 32 | entry.op]
        words += [len(entry.value) << 32 | len(entry.old_value)]
        words += [_sum_bytes(data) for data in (entry.key, entry.value, entry.old_value)]
        state = _mixed(state, _sum_words(_START, words))
    return state


def _mixed(state: int, word: int) -> int:
    state = (state ^ word) * _FACTOR & _WORD
    return state ^ state >> 32


def _sum_words(state: int, words: Sequence[int]) -> int:
    for word in words:
        state = _mixed(state, word)
    return state


def _sum_bytes(data: bytes) -> int:
    """Words of 8 bytes go to two lanes alternately; the bytes left over go to the second lane.

    If bytes are left over, the word for them is the last 8 bytes, some of which a lane has already used. Data
    of fewer than 8 bytes is one big-endian number.
    """
    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, whole, 8)]
    rest = []
    if whole < len(data):
        rest = [int.from_bytes(data[-8:], "little") if whole else int.from_bytes(data, "big")]
    left = _sum_words(_START, words[0::2])
    right = _sum_words(_START ^ _WORD, words[1::2] + rest)
    return _mixed(left, right)
