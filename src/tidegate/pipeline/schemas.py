"""The schemas a worker decodes with: the control process's snapshot, advanced by the DDL span itself.

`schema.bin` may lag behind the rows a task gets, but never behind what has been dropped from the DDL
span; and no row is handed to a task before the DDL span is resolved up to it. So the snapshot plus the
DDL span's entries up to the task's ts is complete.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import Fatal
from tidegate.eventstore import outlook, reader
from tidegate.model.schema import TableSchema
from tidegate.mounter.ddl import jobs_in
from tidegate.mounter.schema_store import SchemaStore
from tidegate.pipeline.feed import Barrier, FeedSpec

SNAPSHOT: Final = "schema.bin"
DDL_TABLE_ID: Final = (1 << 48) - 2


class SchemaReader:
    """Keeps one SchemaStore per process and advances it as tasks ask for later ts."""

    def __init__(self, spec: FeedSpec) -> None:
        self._spec = spec
        self._ddl_span = Barrier.load(spec.feed_dir / "barrier.json").ddl_span
        self._store = self._load()
        self._read_to = self._store.resolved_ts

    def upto(self, ts: int) -> SchemaStore:
        """The store with every DDL finished at or before `ts`."""
        if ts <= self._read_to:
            return self._store
        if outlook.read_manifest(self._spec.store_dir, self._ddl_span).dropped_to > self._read_to:
            # This worker was idle for so long that the entries it has not read are gone.
            self._store = self._load()
            self._read_to = self._store.resolved_ts
        for block in reader.read(self._spec.store_dir, self._ddl_span, self._read_to, ts):
            for job in jobs_in(block, self._ddl_table()):
                self._store.apply(job)
        self._read_to = max(ts, self._read_to)
        return self._store

    def _load(self) -> SchemaStore:
        return SchemaStore.load((self._spec.feed_dir / SNAPSHOT).read_bytes())

    def _ddl_table(self) -> TableSchema:
        table = self._store.table(DDL_TABLE_ID, self._read_to)
        if table is None:
            raise Fatal(
                "The schema snapshot holds no mysql.tidb_ddl_job.",
                where=str(self._spec.feed_dir / SNAPSHOT),
                fix="remove the changefeed and create it again",
            )
        return table
