"""The order of changes in the event store: commit ts, start ts, delete < update < insert, key.

The class of operation comes before the key so that, inside one transaction, a row that frees a unique
value precedes the row that takes it (TiCDC's sorter does the same). This is the plain twin of
`eventstore.kernels` and its oracle; nothing on the hot path calls it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from tidegate.model.block import DELETE, ENTRY_SCHEMA


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
    if op == DELETE:
        return 0
    return 1 if old_value else 2


def order_key(entry: Entry) -> tuple[int, int, int, bytes]:
    """What entries are compared by; two entries with equal keys are one change pulled twice."""
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
    """Those with after < commit_ts <= upto, in order, each change once (the first one seen stays)."""
    chosen: dict[tuple[int, int, int, bytes], Entry] = {}
    for entry in entries:
        if after < entry.commit_ts <= upto:
            chosen.setdefault(order_key(entry), entry)
    return [chosen[key] for key in sorted(chosen)]
