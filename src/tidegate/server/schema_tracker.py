"""Which tables a feed replicates over time: the catalogue, advanced by the DDL span of the event store.

Begins with the catalogue upstream had at the feed's start-ts, or with `schema.bin` from an earlier run; reads
DDL jobs as the DDL span grows and turns them into `DdlBatch`es: what to send, which spans come and go, and
where the feed must stop (`mounter.ddl_rules` says what every kind of job does). `schema.bin` holds the
catalogue at a checkpoint, so that a restart reads the jobs since then and no others; pipeline workers start
from the same file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.disk import writing
from tidegate.errors import Fatal, TidegateError
from tidegate.eventstore import outlook, reader
from tidegate.filter.feed import FeedFilter
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.model.ddl import DdlEvent
from tidegate.model.span import span_id
from tidegate.mounter.ddl_jobs import UnreadableJob, jobs_in
from tidegate.mounter.schema_image import Image, chunks, map_file
from tidegate.mounter.schema_store import Applied, SchemaStore
from tidegate.mounter.table_version import TableVersion
from tidegate.server import told_text
from tidegate.tidb import keys
from tidegate.tidb.ddl_job import DdlJob

DDL_SPAN: Final = keys.ddl_span()
DDL_SPAN_ID: Final = span_id(DDL_SPAN)
SNAPSHOT: Final = "schema.bin"
WAITING_MAX: Final = 512
"""DDL batches read ahead of the feed; each holds table definitions. The rest stays in the event store."""


def table_task(physical_id: int, start_ts: int) -> SpanTask:
    """The record span of a physical table, to be delivered from `start_ts` on."""
    span = keys.record_span(physical_id)
    return SpanTask(span_id(span), span, physical_id, start_ts)


def load_catalogue(pd: PdClient, ts: int) -> SchemaStore:
    """The catalogue upstream has at `ts`. Blocks; raises Retryable, or Fatal when no DDL table is there."""
    store = SchemaStore.from_meta(Snapshot(pd, ts).scan(keys.catalogue_span()), ts)
    if store.version_at(keys.DDL_JOB_TABLE_ID, ts) is None:
        raise Fatal(
            "Upstream has no table mysql.tidb_ddl_job.",
            where=f"meta keys at ts {ts}",
            why="DDL cannot be followed without it; it is there from TiDB 6.2 on",
            fix="choose a start-ts after the cluster was set up, or upgrade TiDB",
        )
    return store


def replace_file(path: Path, data: bytes | Iterable[bytes | memoryview], mode: int = 0o644) -> None:
    """Put `data` at `path`, durably: a reader finds the old bytes or the new. Raises DiskFull."""
    partial = path.with_suffix(".tmp")
    with writing(partial):
        partial.touch(mode)
        with partial.open("wb") as file:
            for piece in [data] if isinstance(data, bytes) else data:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    partial.replace(path)
    # Its name, too: after a loss of power a plan of an initial load, for one, must still be there.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save_image(path: Path, image: Image) -> None:
    """Write `schema.bin`; takes about a second for 100,000 tables."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, chunks(image))


class SchemaTracker:
    """One feed's catalogue and wanted spans. Not thread-safe; `begin` and `catch_up` read files."""

    def __init__(
        self,
        catalogue: SchemaStore,
        store: Path,
        feed_filter: FeedFilter,
        *,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._catalogue, self._store, self._filter = catalogue, store, feed_filter
        self._waiting_max = waiting_max
        self._wanted: dict[int, SpanTask] = {}
        self._stopped = False
        self._found: list[DdlBatch] = []
        """Read and not handed out yet: reading may fail half-way, and the catalogue does not go back."""
        self.broken = False
        """Whether a failure came while jobs were being applied: the catalogue may hold half of what they did,
        so that the feed has to open it anew."""
        self.initial: tuple[SpanTask, ...] = ()
        """The spans wanted at the checkpoint that `begin` was told."""
        self.left_out: tuple[TableVersion, ...] = ()
        """Tables that pass the rules and are not followed, for want of a key; by logical id. Never changed
        in place, so that other threads may look."""

    @classmethod
    def load(cls, snapshot: Path, store: Path, feed_filter: FeedFilter) -> SchemaTracker:
        """From `schema.bin`; raises Undecodable when it is damaged, FileNotFoundError when there is none."""
        catalogue = SchemaStore.load(map_file(snapshot))
        return cls(catalogue, store, feed_filter)

    @property
    def resolved_ts(self) -> int:
        """Every DDL finished at or before it is known."""
        return self._catalogue.resolved_ts

    def begin(self, checkpoint: int, resolved: int) -> tuple[list[DdlBatch], int]:
        """Read from where the catalogue stands; what was finished at or before the checkpoint is history.

        `resolved` >= `checkpoint` is how far the DDL span is resolved. Sets `initial`. As `catch_up`.
        """
        assert resolved >= checkpoint
        for _, jobs in self._jobs(checkpoint):
            self._apply(jobs)
        self._catalogue.advance(checkpoint)
        passing = self._filter.passing(self._catalogue.entries(checkpoint))
        self._wanted = {
            physical_id: table_task(physical_id, checkpoint)
            for table in passing
            if self._filter.follows(table)
            for physical_id in table.physical_ids
        }
        self.left_out = tuple(table for table in passing if self._filter.leaves_out(table))
        self.initial = tuple(self._wanted.values())
        return self.catch_up(resolved)

    def catch_up(self, resolved: int, waiting: int = 0) -> tuple[list[DdlBatch], int]:
        """The DDLs that the DDL span has beyond what is known, and up to where they are known now.

        That is `resolved`, unless so many are `waiting` already that the rest is left for later, or a batch
        stops the feed. After a failure the next call hands out everything: what was read before it, and the
        rest.
        """
        if not self._stopped and resolved > self.resolved_ts and not self._is_full(waiting):
            for ts, jobs in self._jobs(resolved):
                self.broken = True
                batch = self._batch(ts, self._apply(jobs))
                if batch is not None:
                    self._found.append(batch)
                    self._stopped = batch.error is not None
                self._catalogue.advance(ts)
                self.broken = False
                if self._stopped or self._is_full(waiting):
                    break
            else:
                self._catalogue.advance(resolved)
        batches, self._found = self._found, []
        return batches, self.resolved_ts

    def _is_full(self, waiting: int) -> bool:
        return waiting + len(self._found) >= self._waiting_max

    def followed(self, ts: int) -> list[TableVersion]:
        """The tables that were followed at `ts`, by id."""
        return [
            table
            for table in self._filter.passing(self._catalogue.entries(ts))
            if self._filter.follows(table)
        ]

    def name_of(self, physical_id: int) -> str:
        """`schema.table` of a physical id as known now, else empty."""
        table = self._catalogue.version_at(physical_id, self.resolved_ts)
        return table.name if table else ""

    def image(self, checkpoint: int) -> Image:
        """The catalogue at the durable checkpoint, to be saved; nobody will ask for earlier versions."""
        self._catalogue.forget(checkpoint)
        return self._catalogue.image(checkpoint)

    def _jobs(self, upto: int) -> Iterator[tuple[int, list[DdlJob | UnreadableJob]]]:
        """The jobs in (resolved, upto], ts by ts; read as they are asked for, those of one ts together."""
        after = self.resolved_ts
        if upto <= after:
            return
        manifest = outlook.covering_manifest(self._store, DDL_SPAN_ID, after, upto)
        if not outlook.pending(manifest, after, upto)[0]:
            return
        columns = self._catalogue.job_meta_columns()
        blocks = reader.read(self._store, DDL_SPAN_ID, after, upto)
        jobs = (job for block in blocks for job in jobs_in(block, columns))
        for ts, same in groupby(jobs, key=lambda job: job.finished_ts):
            yield ts, list(same)

    def _apply(self, jobs: list[DdlJob | UnreadableJob]) -> list[Applied]:
        return [self._catalogue.apply(job) for job in jobs]

    def _batch(self, ts: int, applied: list[Applied]) -> DdlBatch | None:
        """What the jobs of one ts mean for the feed; None: nothing."""
        sent: list[DdlEvent] = []
        error: TidegateError | None = None
        try:
            for one in applied:
                if one.refusal is not None and self._filter.stopped_by(one.refusal):
                    raise one.refusal.error()
                passed = (event for told in one.told if (event := self._filter.sent(told)) is not None)
                sent += [told_text.told(event, one.charset, one.sql_mode) for event in passed]
        except TidegateError as stop:
            error = stop
        added, removed = self._follow(ts, frozenset().union(*(one.changed_ids for one in applied)))
        if not sent and not added and not removed and error is None:
            return None
        return DdlBatch(ts, tuple(sent), added, removed, error)

    def _follow(self, ts: int, changed: frozenset[int]) -> tuple[tuple[SpanTask, ...], frozenset[str]]:
        """The spans that come and go at `ts`, when these physical ids belong to other tables or to none."""
        added, removed = [], set()
        self._look_for_keys(ts, changed)
        for physical_id in sorted(changed):
            table = self._catalogue.version_at(physical_id, ts)
            wanted = table is not None and self._filter.follows(table)
            known = self._wanted.get(physical_id)
            if wanted and known is None:
                self._wanted[physical_id] = task = table_task(physical_id, ts)
                added.append(task)
            elif known is not None and not wanted:
                removed.add(self._wanted.pop(physical_id).id)
        return tuple(added), frozenset(removed)

    def _look_for_keys(self, ts: int, changed: frozenset[int]) -> None:
        """Bring `left_out` to `ts`, when these physical ids belong to other tables or to none."""
        found = (self._catalogue.version_at(physical_id, ts) for physical_id in changed)
        lacking = {table.id: table for table in found if table is not None and self._filter.leaves_out(table)}
        stay = {table.id: table for table in self.left_out if changed.isdisjoint(table.physical_ids)}
        if lacking or len(stay) < len(self.left_out):
            self.left_out = tuple(table for _, table in sorted((stay | lacking).items()))


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


def save_catalogue(pd: PdClient, ts: int, path: Path) -> None:
    """Read upstream's catalogue at `ts` and keep it as `schema.bin`."""
    save_image(path, load_catalogue(pd, ts).image(ts))
