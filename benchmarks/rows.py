"""Rows of a recorded log under new handles and timestamps, as blocks of entries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from benchmarks.feed_server import read_log

from tidegate.model.block import ENTRY_SCHEMA, OP_PUT
from tidegate.mounter.schema_store import SchemaStore
from tidegate.tidb import keys

LOGS: Final = Path(__file__).parents[1] / "tests" / "golden" / "changelog"
BLOCK: Final = 50_000
ROWS_A_TXN: Final = 50


@dataclass(slots=True)
class Source:
    """The rows to send: values of the log under new handles."""

    store: SchemaStore
    table_id: int
    values: pa.Array

    @classmethod
    def read(cls, name: str = "narrow") -> Source:
        """A source from a recorded log."""
        log = read_log(LOGS / f"{name}.jsonl.gz")
        meta = ((k, v) for k, v in log.schema.items() if k.startswith(b"m"))
        fresh = [change.value for change in log.changes if change.put][-BLOCK:]
        return cls(SchemaStore.from_meta(meta, 1), log.table_id, pa.array(fresh, pa.binary()))

    def block(self, first: int, rows: int, begin_ts: int, updates: bool, step: int = 1) -> pa.RecordBatch:
        """Entries for each `step`-th handle from `first` on, with commit timestamps from `begin_ts` on.
        `updates`: each entry is an update.
        """
        handles = first + step * np.arange(rows, dtype=np.int64)
        ts = begin_ts + 2 * (np.arange(rows) // ROWS_A_TXN).astype(np.uint64)
        at = handles % len(self.values)
        old = self.values.take(pa.array(at)) if updates else pa.array([b""] * rows, pa.binary())
        new = (at + 1) % len(self.values) if updates else at
        columns = [
            pa.array(ts, pa.uint64()),
            pa.array(ts - np.uint64(1), pa.uint64()),
            pa.array(np.full(rows, OP_PUT, dtype=np.uint8)),
            pa.array([keys.int_record(self.table_id, handle) for handle in handles.tolist()], pa.binary()),
            self.values.take(pa.array(new)),
            old,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)
