"""Rows of a table as TiKV holds them at a ts: pages of keys and values, decoded by the mounter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.kvclient.pages import pages
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.model.block import ENTRY_SCHEMA, OP_PUT
from tidegate.model.schema import TableSchema
from tidegate.model.span import Span
from tidegate.mounter.columns import target_type, to_arrow
from tidegate.mounter.decode import MountOptions, Quarantined, columns_of, decode_group
from tidegate.tables.catalogue import SourceTable
from tidegate.tidb import keys
from tidegate.tidb.memcomparable import decode_bytes


def schema_of(table: TableSchema) -> pa.Schema:
    """All columns with the types that targets use."""
    return pa.schema([(column.name, target_type(column)) for column in table.columns])


class SpanReader:
    """Reads the rows of spans as typed batches, within one task."""

    def __init__(self, source: SourceTable, pd: PdClient) -> None:
        self.table = source.parsed()
        self.schema = schema_of(self.table)
        self._pd, self._snapshot = pd, Snapshot(pd, source.ts)
        self.undecodable = 0
        """Rows that cannot be decoded; no batch contains them."""
        self.first_undecodable: Quarantined | None = None

    def batches(self, spans: Sequence[Span]) -> Iterator[pa.RecordBatch]:
        """All rows of the spans, in key order within each."""
        for span in spans:
            for page in pages(self._pd, self._snapshot, span):
                yield self._decoded(page)

    def _decoded(self, page: pa.RecordBatch) -> pa.RecordBatch:
        """Decode a page as a block of changes. Their ts are 0, because the table's schema is given."""
        n = page.num_rows
        stamp, put = pa.array(np.zeros(n, np.uint64)), pa.array(np.full(n, OP_PUT, np.uint8))
        old = pa.array([b""], pa.binary()).take(pa.array(np.zeros(n, np.int8)))
        entries = [stamp, stamp, put, page.column(0), page.column(1), old]
        block = columns_of(pa.RecordBatch.from_arrays(entries, schema=ENTRY_SCHEMA))
        records = np.flatnonzero(block.lengths >= 0)
        failed: list[Quarantined] = []
        group = decode_group(block, self.table, records, MountOptions(), failed)
        self.undecodable += len(failed)
        # Only the first one with its bytes: there may be as many as rows.
        if failed and self.first_undecodable is None:
            self.first_undecodable = failed[0]
        return to_arrow(group).cast(self.schema)


def spans_of(pd: PdClient, table: TableSchema) -> list[Span]:
    """The table's record keys, split at region boundaries."""
    found: list[Span] = []
    for span in map(keys.record_span, table.physical_ids):
        found += span.cut_at(region_starts(pd, span))
    return found


def region_starts(pd: PdClient, span: Span) -> list[bytes]:
    """The raw keys inside a span at which regions begin."""
    found: list[bytes] = []
    region = pd.regions.locate_start(span.start)
    while region.end_key:
        # PD has region keys in the memcomparable form.
        end = decode_bytes(region.end_key)[0]
        if span.end and end >= span.end:
            break
        found.append(end)
        region = pd.regions.locate_start(end)
    return found
