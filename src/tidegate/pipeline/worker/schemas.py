"""The schemas a worker decodes with: a base file of the capture's catalogue, advanced by the DDL span itself.

The base (`mounter.bases`) may be older than the rows of a task, but the DDL span keeps all entries after it.
No row is given to a task before the DDL span is resolved up to that row. So the base and the DDL span's
entries up to the task's ts are together the complete catalogue.
"""

from __future__ import annotations

from typing import Final

from tidegate.mounter.ddl_jobs import jobs_in
from tidegate.mounter.schema_store import SchemaStore
from tidegate.pipeline.worker.access import Access

FORGET_EVERY: Final = 256
"""After this number of DDL jobs, the versions that no task can ask for any more are dropped."""


class SchemaReader:
    """Keeps one SchemaStore per process and advances it as tasks ask for later ts."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._ddl_span = access.bounds().ddl_span
        self._store = self._load()
        self._read_to = self._store.resolved_ts
        self._jobs = 0

    def upto(self, ts: int) -> SchemaStore:
        """The store with every DDL finished at or before `ts`."""
        if ts <= self._read_to:
            return self._store
        if self._access.span(self._ddl_span).dropped_to > self._read_to:
            # This worker was idle until the entries that it had not read were deleted.
            self._store = self._load()
            self._read_to = self._store.resolved_ts
        if ts > self._read_to:
            self._advance(ts)
        return self._store

    def _advance(self, ts: int) -> None:
        columns = self._store.job_meta_columns()
        for block in self._access.read([(self._ddl_span, self._read_to, ts)]):
            for job in jobs_in(block, columns):
                self._store.apply(job)
                self._jobs += 1
        self._read_to = ts
        if self._jobs >= FORGET_EVERY:
            self._forget()

    def _forget(self) -> None:
        """Drop old versions: later tasks begin at the start ts of a span in the bounds file, or after it."""
        self._store.forget(self._least_start())
        self._jobs = 0

    def _load(self) -> SchemaStore:
        return self._access.catalogue(self._least_start())

    def _least_start(self) -> int:
        return min(self._access.bounds().spans.values(), default=0)
