"""Which tables a feed replicates over time: the catalogue, advanced by the DDL span of the event store.

Begins with the catalogue upstream had at the feed's start-ts, or with `schema.bin` from an earlier run; reads
finished DDL jobs as the DDL span grows and turns them into `DdlBatch`es: what to send, which spans come and
go. `schema.bin` is only written when every DDL it knows is behind the durable checkpoint, so that a restart
meets each DDL that was not finished again; pipeline workers start from the same file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Final

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.errors import Fatal
from tidegate.eventstore import outlook, reader
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import TableSchema
from tidegate.model.span import Span, span_id
from tidegate.mounter.ddl import admit, jobs_in
from tidegate.mounter.filter import TableFilter
from tidegate.mounter.schema_store import SchemaStore
from tidegate.tidb import keys

DDL_SPAN: Final = keys.record_span(keys.DDL_JOB_TABLE_ID)
DDL_SPAN_ID: Final = span_id(DDL_SPAN)
SNAPSHOT: Final = "schema.bin"


def table_task(physical_id: int, start_ts: int) -> SpanTask:
    """The record span of a physical table, to be delivered from `start_ts` on."""
    span = keys.record_span(physical_id)
    return SpanTask(span_id(span), span, physical_id, start_ts)


def load_catalogue(pd: PdClient, ts: int) -> SchemaStore:
    """The catalogue upstream has at `ts`. Blocks; raises Retryable, or Fatal when no DDL table is there."""
    store = SchemaStore.from_meta(Snapshot(pd, ts).scan(keys.meta_span()), ts)
    if store.table(keys.DDL_JOB_TABLE_ID, ts) is None:
        raise Fatal(
            "Upstream has no table mysql.tidb_ddl_job.",
            where=f"meta keys at ts {ts}",
            why="DDL cannot be followed without it; it is there from TiDB 6.2 on",
            fix="choose a start-ts after the cluster was set up, or upgrade TiDB",
        )
    return store


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Put `data` at `path`, durably: a reader finds the old bytes or the new."""
    partial = path.with_suffix(".tmp")
    partial.touch(mode)
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class SchemaTracker:
    """One feed's catalogue and wanted spans. Not thread-safe; `catch_up` reads files."""

    def __init__(self, catalogue: SchemaStore, store: Path, table_filter: TableFilter) -> None:
        self._catalogue, self._store, self._filter = catalogue, store, table_filter
        self._wanted: dict[str, SpanTask] = {}
        self.initial: tuple[SpanTask, ...] = ()
        """The spans wanted at the checkpoint that `begin` was told."""
        self._last_ddl = 0
        self.stale = False
        """Whether a DDL has been read since the last `save`."""

    @classmethod
    def load(cls, snapshot: Path, store: Path, table_filter: TableFilter) -> SchemaTracker:
        """From `schema.bin`; raises Undecodable when it is damaged, FileNotFoundError when there is none."""
        return cls(SchemaStore.load(snapshot.read_bytes()), store, table_filter)

    @property
    def resolved_ts(self) -> int:
        """Every DDL finished at or before it is known."""
        return self._catalogue.resolved_ts

    def begin(self, checkpoint: int, resolved: int) -> list[DdlBatch]:
        """Read up to `resolved` >= `checkpoint`; what was finished at or before the checkpoint is history.

        Sets `initial`.
        """
        assert resolved >= checkpoint
        jobs = self._read(resolved)
        self._wanted = self._tables_at(checkpoint)
        self.initial = tuple(self._wanted.values())
        later = [(ts, events) for ts, events in jobs if ts > checkpoint]
        self._catalogue.advance(resolved)
        return self._batches(later)

    def catch_up(self, resolved: int) -> list[DdlBatch]:
        """The DDLs that the DDL span has beyond what is known, up to its resolved ts."""
        if resolved <= self.resolved_ts:
            return []
        jobs = self._read(resolved)
        self._catalogue.advance(resolved)
        return self._batches(jobs)

    def tables(self, ts: int) -> list[TableSchema]:
        """The tables that pass the filter at `ts`, those without a usable key included."""
        return [t for t in self._catalogue.tables(ts) if self._filter.matches(t.schema, t.table)]

    def name_of(self, physical_id: int) -> str:
        """`schema.table` of a physical id as known now, else empty."""
        table = self._catalogue.table(physical_id, self.resolved_ts)
        return table.name if table else ""

    def save(self, path: Path, checkpoint: int) -> bool:
        """Write `schema.bin` unless a DDL it knows lies above the durable checkpoint; says whether it did."""
        if self._last_ddl > checkpoint:
            return False
        self._catalogue.forget(checkpoint)
        replace_file(path, self._catalogue.dump())
        self.stale = False
        return True

    def _read(self, upto: int) -> list[tuple[int, list[DdlEvent]]]:
        """Apply the jobs in (resolved, upto]; their FinishedTS and events."""
        after = self.resolved_ts
        manifest = outlook.read_manifest(self._store, DDL_SPAN_ID)
        if upto <= after or not outlook.pending(manifest, after, upto)[0]:
            return []
        ddl_table = self._catalogue.table(keys.DDL_JOB_TABLE_ID, after)
        assert ddl_table is not None
        found = []
        for block in reader.read(self._store, DDL_SPAN_ID, after, upto):
            for job in jobs_in(block, ddl_table):
                found += [(job.finished_ts, event) for event in self._catalogue.apply(job)]
                self._last_ddl, self.stale = max(self._last_ddl, job.finished_ts), True
        return [(ts, [e for _, e in group]) for ts, group in groupby(found, key=lambda pair: pair[0])]

    def _batches(self, jobs: Iterable[tuple[int, list[DdlEvent]]]) -> list[DdlBatch]:
        batches = []
        for ts, events in jobs:
            sent = tuple(e for e in events if admit(e, self._filter))
            wanted = self._tables_at(ts)
            added = tuple(task for name, task in wanted.items() if name not in self._wanted)
            removed = frozenset(self._wanted.keys() - wanted.keys())
            self._wanted = wanted
            if sent or added or removed:
                batches.append(DdlBatch(ts, sent, added, removed))
        return batches

    def _tables_at(self, ts: int) -> dict[str, SpanTask]:
        tasks = [
            table_task(physical_id, ts)
            for table in self.tables(ts)
            if table.eligible
            for physical_id in table.physical_ids
        ]
        return {task.id: task for task in tasks}


def spans_json(tasks: Iterable[SpanTask]) -> dict[str, dict[str, object]]:
    """Spans as `barrier.json` holds them."""
    return {
        t.id: {
            "start": t.span.start.hex(),
            "end": t.span.end.hex(),
            "physical_id": t.physical_id,
            "start_ts": t.start_ts,
        }
        for t in tasks
    }


def span_message(kind: str, span: Span, **more: int) -> dict[str, object]:
    """A message about a span to the puller."""
    return {"type": kind, "start": span.start.hex(), "end": span.end.hex(), **more}
