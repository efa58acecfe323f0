"""Which tables a feed replicates over time: its view of the catalogue (`catalogues`).

It begins with the tables at the feed's checkpoint, and turns the catalogue's later steps into `DdlBatch`es:
what to send, which tables come and go, and where the feed must stop. `mounter.ddl_rules` says what each kind
of job does; `stripes` says which spans hold the tables. The set of wanted tables is not stored. It follows
from the verdicts on a table's versions before and after a step, which feeds with equal rules share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from tidegate.control.barrier import DdlBatch, SpanTask
from tidegate.errors import Fatal, Retryable, TidegateError
from tidegate.filter.feed import FeedFilter
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.model.ddl import DdlEvent
from tidegate.model.timestamp import MAX
from tidegate.mounter.catalogue import Step
from tidegate.mounter.schema_store import SchemaStore
from tidegate.mounter.table_version import TableVersion
from tidegate.server.catalogue import target_text
from tidegate.server.catalogue.catalogues import Catalogues, Shared
from tidegate.server.catalogue.stripes import table_task
from tidegate.tidb import keys

WAITING_MAX: Final = 512
"""The most DDL batches read ahead, as each holds table definitions. The rest stays in the event store."""
BEGINS: Final = 5
"""How often `begin` tries to get a catalogue up to its checkpoint before other feeds read it further."""


def load_catalogue(pd: PdClient, ts: int) -> SchemaStore:
    """Upstream's catalogue at `ts`. Blocks; raises Retryable, or Fatal if there is no table of DDL jobs."""
    store = SchemaStore.from_meta(Snapshot(pd, ts).scan(keys.catalogue_span()), ts)
    if store.version_at(keys.DDL_JOB_TABLE_ID, ts) is None:
        raise Fatal(
            "upstream has no table mysql.tidb_ddl_job",
            where=f"meta keys at ts {ts}",
            why="DDL cannot be followed without it; it is there from TiDB 6.2 on",
            fix="choose a start-ts after the cluster was set up, or upgrade TiDB",
        )
    return store


class SchemaTracker:
    """One feed's view of the catalogue.

    `open`, `begin` and `followed` block and belong to the catalogues' thread; the other methods do not wait.
    """

    def __init__(
        self,
        catalogues: Catalogues,
        shared: Shared,
        feed_filter: FeedFilter,
        *,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._catalogues, self._given = catalogues, feed_filter
        self._waiting_max = waiting_max
        self._place = 0
        self._stopped = False
        self._moving: Future[Shared] | None = None
        """Another catalogue that is being opened, because the shared one has forgotten our next steps."""
        self._must_reopen = False
        self._lacking: dict[int, TableVersion] = {}
        """The tables of `left_out`, by physical id."""
        self.initial: tuple[SpanTask, ...] = ()
        """The tables wanted at the checkpoint of `begin`, each as a span of its own."""
        self.topics = frozenset[str]()
        """The topics of their rows by dispatch rules, without the URI's own topic."""
        self.left_out: tuple[TableVersion, ...] = ()
        """Tables that pass the rules but are not followed, because they have no key; by logical id. Never
        changed in place, so that other threads may read it.
        """
        with shared.lock:
            self._take(shared)

    @classmethod
    def open(
        cls,
        catalogues: Catalogues,
        feed_filter: FeedFilter,
        checkpoint: int,
        safe_point: int = MAX,
        others: Iterable[int] = (),
        *,
        waiting_max: int = WAITING_MAX,
    ) -> SchemaTracker:
        """A view that can begin at `checkpoint`; arguments as for `Catalogues.open_at`."""
        shared = catalogues.open_at(checkpoint, feed_filter, safe_point, others)
        return cls(catalogues, shared, feed_filter, waiting_max=waiting_max)

    @property
    def resolved_ts(self) -> int:
        """Every DDL finished at or before it has been returned."""
        return self._place

    @property
    def broken(self) -> bool:
        """Whether the feed must open its catalogue again, because an error came while a job was being
        applied, so that the catalogue may have only a part of it.
        """
        return self._must_reopen or self._shared.catalogue.broken

    def has_passed_over(self, ts: int) -> bool:
        """Whether it lacks what a job at or below `ts` did: a refused one that the feed was set to pass over.

        A view that is opened at `ts` reads from upstream what the job did. Views that begin on both sides of
        the job want different tables, so one that has passed over it must not be used from `ts` on.
        """
        return bool(self._shared.catalogue.missing(ts, self._given.concerned))

    def begin(self, checkpoint: int, resolved: int) -> tuple[list[DdlBatch], int]:
        """Begin at the checkpoint; what was finished at or before it is history.

        `resolved` >= `checkpoint` is how far the DDL span is resolved. Sets `initial`. Returns as `catch_up`.
        """
        assert resolved >= checkpoint
        for _ in range(BEGINS):
            shared = self._catalogues.settled(self._shared, checkpoint, self._given)
            with shared.lock:
                # Not so if another feed has read it so far ahead that it has forgotten the checkpoint.
                if shared.reaches(checkpoint, self._given):
                    self._take(shared)
                    self._place = checkpoint
                    self._wants(shared.catalogue.tables(checkpoint))
                    return self._catch_up(resolved, 0)
        raise Retryable("the catalogue cannot be opened", where=f"checkpoint {checkpoint}")

    def catch_up(self, resolved: int, waiting: int = 0) -> tuple[list[DdlBatch], int]:
        """The DDL that comes next, and up to which ts it is known now.

        That ts is `resolved`, unless so many batches are `waiting` that the rest is left for later, a batch
        stops the feed, or another thread is using the catalogue. After a failure the next call returns
        everything. Raises Retryable.
        """
        if self._stopped or resolved <= self._place or waiting >= self._waiting_max:
            return [], self._place
        if self.broken:
            raise Retryable(
                "the catalogue has to be opened again", why="a job was applied to it only in part"
            )
        if not self._has_next_steps():
            return [], self._place
        if not self._shared.lock.acquire(blocking=False):
            return [], self._place
        try:
            # Under the lock, because another thread's reading may have made it forget our steps.
            if self._shared.catalogue.since > self._place:
                return [], self._place
            return self._catch_up(resolved, waiting)
        finally:
            self._shared.lock.release()

    def followed(self, ts: int) -> list[TableVersion]:
        """The tables that were followed at `ts`, by id; `ts` is the checkpoint of `begin` or later."""
        with self._shared.lock:
            return self._verdicts.split(self._shared.catalogue.tables(ts))[0]

    def _topics_of(self, tables: Iterable[TableVersion]) -> frozenset[str]:
        found = {self._given.router.topic_of(table.schema, table.table) for table in tables}
        return frozenset(found - {""})  # the URI's own

    def name_of(self, physical_id: int) -> str:
        """`schema.table` of a physical id as known now; empty if unknown, or if another thread is reading."""
        if not self._shared.lock.acquire(blocking=False):
            return ""
        try:
            table = self._shared.catalogue.store.version_at(physical_id, self._place)
            return table.name if table else ""
        finally:
            self._shared.lock.release()

    def _wants(self, tables: list[TableVersion]) -> None:
        """Begin with the tables at the checkpoint."""
        followed, left_out = self._verdicts.split(tables)
        self._leave_out({i: table for table in left_out for i in table.physical_ids})
        ids = (physical_id for table in followed for physical_id in table.physical_ids)
        self.initial = tuple(table_task(physical_id, self._place) for physical_id in ids)
        self.topics = self._topics_of(followed) if self._given.router.has_topics else frozenset()

    def _take(self, shared: Shared) -> None:
        """Continue with a catalogue that has every step from here on. The caller holds its lock."""
        self._shared = shared
        self._verdicts = shared.verdicts.of(self._given)
        self._filter = replace(self._given, tables=self._verdicts.tables)

    def _has_next_steps(self) -> bool:
        """Whether the catalogue has the next steps; if not, have one opened that does."""
        if self._moving is not None:
            if not self._moving.done():
                return False
            moved, self._moving = self._moving, None
            return self._go_over(moved.result())
        if self._catalogues.alone and self._shared.catalogue.since <= self._place:
            return True
        place = self._place
        best = self._catalogues.newest(place, self._given, self._missing(), read_to=place)
        if best is None:
            self._moving = self._catalogues.submit(self._opened_again, place)
            return False
        return best is self._shared or self._go_over(best)

    def _missing(self) -> tuple[int, ...]:
        """Refused or unreadable jobs that concern the feed and that it has passed."""
        return self._shared.catalogue.missing(self._place, self._given.concerned)

    def _opened_again(self, place: int) -> Shared:
        """A catalogue at `place`, which is below what the shared one still has; blocks."""
        shared = self._catalogues.open_at(place, self._given)
        self._catalogues.read_up(shared, place)
        return shared

    def _go_over(self, shared: Shared) -> bool:
        if not shared.lock.acquire(blocking=False):
            return False
        try:
            # Under the lock, because another feed's reading may have made it forget more steps.
            if shared.catalogue.since > self._place:
                return False
            if not shared.reaches(self._place, self._given, self._missing()):
                self._must_reopen = True
                raise Retryable(
                    "the changefeed has to open its catalogue again",
                    where=f"DDL up to {self._place}",
                    why="it has skipped a job that later catalogues contain",
                )
            self._take(shared)
            return True
        finally:
            shared.lock.release()

    def _catch_up(self, resolved: int, waiting: int) -> tuple[list[DdlBatch], int]:
        found: list[DdlBatch] = []
        place, stopped = self._place, False
        for step in self._steps(resolved):
            batch = self._batch(step)
            place = step.ts
            if batch is not None:
                found.append(batch)
                stopped = batch.error is not None
            if stopped or waiting + len(found) >= self._waiting_max:
                break
        else:
            # Only after the last step. If it stops earlier, DDL above `place` is not returned yet.
            place = max(place, resolved)
        # docs/guarantees.md#a-ddl-is-delivered-once: only after all steps. If one of them raises, the next
        # call returns all of them.
        self._place, self._stopped = place, stopped
        return found, place

    def _steps(self, upto: int) -> Iterator[Step]:
        """The steps from here on; steps that no feed has requested yet are read while they are consumed."""
        catalogue = self._shared.catalogue
        yield from catalogue.steps(self._place, upto)
        for ts in self._shared.read(upto):
            yield from catalogue.steps(ts - 1, ts)

    def _batch(self, step: Step) -> DdlBatch | None:
        """Return the feed's DDL in the jobs of one ts; None: it has none."""
        ts, applied = step
        sent: list[DdlEvent] = []
        error: TidegateError | None = None
        try:
            for one in applied:
                if one.refusal is not None and self._filter.stopped_by(one.refusal):
                    raise one.refusal.error()
                passed = (
                    event for emitted in one.emitted if (event := self._filter.sent(emitted)) is not None
                )
                sent += [target_text.for_targets(event, one.charset, one.sql_mode) for event in passed]
        except TidegateError as stop:
            # Kept in the batch instead of raised: the events before it must still be sent, and the spans
            # followed.
            error = stop
        changed = frozenset().union(*(one.changed_ids for one in applied))
        added, removed = self._follow(ts, changed)
        topics = self._new_topics(ts, changed) if self._given.router.has_topics else frozenset()
        if not sent and not added and not removed and not topics and error is None:
            return None
        gone = frozenset(table_task(table, ts).id for table in removed)
        return DdlBatch(ts, tuple(sent), added, gone, error, removed, topics)

    def _new_topics(self, ts: int, changed: frozenset[int]) -> frozenset[str]:
        """The topics of rows of tables to which these physical ids belong from `ts` on, without their topics
        before: of new tables, and of renamed ones, whose spans stay.
        """
        version_at = self._shared.catalogue.store.version_at

        def at(when: int) -> frozenset[str]:
            versions = (version_at(physical_id, when) for physical_id in changed)
            return self._topics_of(one for one in versions if one and self._verdicts.follows(one))

        return at(ts) - at(ts - 1)

    def _follow(self, ts: int, changed: frozenset[int]) -> tuple[tuple[SpanTask, ...], frozenset[int]]:
        """The tables that come and go at `ts`, where these physical ids change their table or lose it."""
        added, removed, lacking = [], set(), dict[int, TableVersion]()
        version_at = self._shared.catalogue.store.version_at
        for physical_id in sorted(changed):
            # All jobs of one ts are one step, so the version before it is the one that was valid at `ts - 1`.
            before, after = version_at(physical_id, ts - 1), version_at(physical_id, ts)
            was = before is not None and self._verdicts.follows(before)
            wanted = after is not None and self._verdicts.follows(after)
            if wanted and not was:
                added.append(table_task(physical_id, ts))
            elif was and not wanted:
                removed.add(physical_id)
            if after is not None and self._verdicts.leaves_out(after):
                lacking[physical_id] = after
        if lacking or not changed.isdisjoint(self._lacking):
            stay = {i: table for i, table in self._lacking.items() if i not in changed}
            self._leave_out(stay | lacking)
        return tuple(added), frozenset(removed)

    def _leave_out(self, lacking: dict[int, TableVersion]) -> None:
        self._lacking = lacking
        tables = {table.id: table for table in lacking.values()}
        self.left_out = tuple(tables[table_id] for table_id in sorted(tables))
