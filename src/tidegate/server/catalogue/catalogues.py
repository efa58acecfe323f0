"""An upstream's catalogue, shared by all changefeeds: the DDL span keeps it current, base files save it.

Changefeeds have different checkpoints. Those within the last jobs of one another (`Catalogue`'s STEPS_MAX)
share one catalogue, and each goes through its steps at its own pace. A changefeed that is further behind
reads a separate catalogue, which starts from a base file at or below its checkpoint. When it has caught up,
that catalogue is released. So no changefeed waits for another one, memory is bounded by the number of
changefeeds that are far apart, and no catalogue ever has to add its own past. (To merge an earlier catalogue
into one in use would need all jobs in between at once, and a lock for all that time.)

For the same reason there may be several base files (`mounter.bases`). A base serves every changefeed at or
above it. Changefeeds with no DDL between their checkpoints share one. A changefeed that stopped long ago
keeps the base that serves it, without holding back the others. Upstream's history is held for each
changefeed from the `ts` of the base that serves its stored checkpoint, or from the checkpoint if that is
less. The base that serves a checkpoint only moves up as the checkpoint does. The DDL span drops its entries
a minute later, so it never drops anything above a base that a changefeed may still use. While no DDL comes,
a base is only renamed, which costs the same for any number of tables. After DDL it is written again.

A job that was refused or could not be read leaves its tables in the catalogue as they were. The changefeeds
that it concerns stop there. A changefeed that begins above such a job must see what the job did. So it uses
no catalogue that contains one, and no base is made from such a catalogue: both are read from upstream again.

Blocking work runs in one thread (`run`), one item after the other. `SchemaTracker.catch_up` runs in the event
loop of the control process. If the thread is using the catalogue, it leaves the rest for its next call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Final, ParamSpec, TypeVar
from weakref import ReferenceType, ref

from tidegate.clock import Clock, SystemClock
from tidegate.disk import replace_file, sync_folder
from tidegate.errors import Retryable, TidegateError, Undecodable
from tidegate.eventstore import reader, store_view
from tidegate.eventstore.manifest import ManifestReader
from tidegate.filter.feed import FeedFilter
from tidegate.filter.verdicts import SharedVerdicts
from tidegate.log import event
from tidegate.model.span import span_id
from tidegate.model.timestamp import MAX
from tidegate.mounter import bases
from tidegate.mounter.bases import Base
from tidegate.mounter.catalogue import STEPS_MAX, Catalogue
from tidegate.mounter.ddl_jobs import UnreadableJob, jobs_in
from tidegate.mounter.schema_image import Image, chunks, is_of_this_format
from tidegate.mounter.schema_store import SchemaStore
from tidegate.mounter.table_version import TableVersion
from tidegate.tidb import keys
from tidegate.tidb.ddl_job import DdlJob

LOG: Final = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

DDL_SPAN: Final = keys.ddl_span()
DDL_SPAN_ID: Final = span_id(DDL_SPAN)
SAVE_REST: Final = 50
"""A base is written again only after a pause of this many times the duration of the last write."""
RENAME_S: Final = 10.0
"""How often a base is renamed while no DDL comes. Its `ts` is where the hold of upstream's history begins."""
RETRY_S: Final = 10.0
"""The pause after a failure to write or rename a base."""
SOON_S: Final = 1.0
"""How long `tables_at` waits for the DDL span, which is usually at most a quarter of a second behind."""
LOOK_S: Final = 0.02


class Shared:
    """An open catalogue with the verdicts of filters on its tables. All uses but `reaches` hold the lock."""

    def __init__(self, catalogue: Catalogue, store: Path) -> None:
        self.catalogue = catalogue
        self.lock = threading.Lock()
        self.verdicts = SharedVerdicts(catalogue.store.versions_held)
        self._store = store
        self._manifest = ManifestReader(store / DDL_SPAN_ID)
        """Kept, because the span's floor rises many times a second, and its manifest seldom changes."""

    def reaches(self, ts: int, feed_filter: FeedFilter, missing: tuple[int, ...] = ()) -> bool:
        """Whether it has every job after `ts`, and of those up to `ts` lacks just the ones at `missing`."""
        catalogue = self.catalogue
        if catalogue.broken or catalogue.since > ts:
            return False
        return catalogue.missing(ts, feed_filter.concerned) == missing

    def read(self, upto: int) -> Iterator[int]:
        """Apply the jobs of the DDL span up to `upto`; yields each ts once its jobs have been applied.

        Raises Retryable if the event store does not have all of them yet, or no longer has them.
        """
        for ts, jobs in self._jobs(upto):
            self.catalogue.apply(ts, jobs)
            yield ts
        if upto > self.catalogue.resolved_ts:
            self.catalogue.advance(upto)

    def _jobs(self, upto: int) -> Iterator[tuple[int, list[DdlJob | UnreadableJob]]]:
        """The jobs above the resolved ts, grouped by ts; the event store is read while they are consumed."""
        after = self.catalogue.resolved_ts
        if upto <= after:
            return
        manifest = store_view.covering_manifest(self._store, DDL_SPAN_ID, after, upto, self._manifest)
        # Usually no DDL has come, and the manifest alone says so without a look at the segments.
        if not store_view.pending(manifest, after, upto)[0]:
            return
        columns = self.catalogue.store.job_meta_columns()
        blocks = reader.read(self._store, DDL_SPAN_ID, after, upto)
        jobs = (job for block in blocks for job in jobs_in(block, columns))
        for ts, same in groupby(jobs, key=lambda job: job.finished_ts):
            yield ts, list(same)


class Catalogues:
    """All open catalogues of one upstream, and its base files; the module's docstring explains both.

    `serves`, `open_at`, `settled`, `offer` and `keep` block and belong to its thread (`run`); the other
    methods may be called from the loop.
    """

    def __init__(
        self,
        store: Path,
        load: Callable[[int], SchemaStore],
        clock: Clock | None = None,
        *,
        steps_max: int = STEPS_MAX,
    ) -> None:
        """`store`: the event store. `load`: upstream's catalogue at a ts; blocks, raises TidegateError."""
        self.folder = bases.folder_of(store)
        self._store, self._load_upstream, self._clock = store, load, clock or SystemClock()
        self._steps_max = steps_max
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="catalogue")
        self._bases: tuple[Base, ...] = tuple(bases.found(self.folder))
        self._listing = threading.Lock()
        # Workers choose a base by its name alone, so one that they could not read must not be there.
        self._remove([base for base in self._bases if not self._is_readable(base)])
        # Weak references: a catalogue stays open while a changefeed reads it, however that changefeed ends.
        self._open: tuple[ReferenceType[Shared], ...] = ()
        self._keeping: Future[None] | None = None
        self._write_at = self._rename_at = float("-inf")

    def _is_readable(self, base: Base) -> bool:
        try:
            return is_of_this_format(self.folder / base.name)
        except OSError:
            return False

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in the thread, after all work submitted before, and wait for its result."""
        return await asyncio.wrap_future(self.submit(work, *args, **kwargs))

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Like `run`, for callers that do not wait."""
        return self._thread.submit(work, *args, **kwargs)

    def close(self) -> None:
        """Accept no more work; the call does not wait for work that is running."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def base_ts(self, checkpoint: int) -> int | None:
        """The ts from which the DDL span is read for a feed that begins at `checkpoint`; None: no base."""
        base = bases.serving(self._bases, checkpoint)
        return base.ts if base is not None else None

    def newest(
        self, ts: int, feed_filter: FeedFilter, missing: tuple[int, ...] = (), *, read_to: int = 0
    ) -> Shared | None:
        """The most recent open catalogue that reaches `ts`, if it has been read to `read_to`."""
        found = [shared for shared in self._opened() if shared.reaches(ts, feed_filter, missing)]
        best = max(found, key=lambda shared: shared.catalogue.resolved_ts, default=None)
        return best if best is not None and best.catalogue.resolved_ts >= read_to else None

    @property
    def alone(self) -> bool:
        """Whether there is no other catalogue to change to."""
        return len(self._opened()) < 2

    async def tables_at(self, ts: int, feed_filter: FeedFilter) -> list[TableVersion] | None:
        """The tables at `ts` as `SchemaStore.entries`, if an open catalogue has them now or within SOON_S.
        The caller must not change the list.

        None: the caller must ask upstream. Otherwise a base exists for a changefeed that begins at `ts`.
        """
        until = self._clock.monotonic() + SOON_S
        while bases.serving(self._bases, ts) is not None and self.newest(ts, feed_filter) is not None:
            if store_view.read_frontier(self._store).get(DDL_SPAN_ID, 0) >= ts:
                return await self.run(self._tables_at, ts, feed_filter)
            if self._clock.monotonic() >= until:
                break
            await asyncio.sleep(LOOK_S)
        return None

    # --- opened --------------------------------------------------------------------------------------

    def _tables_at(self, ts: int, feed_filter: FeedFilter) -> list[TableVersion] | None:
        base = bases.serving(self._bases, ts)
        found = self.newest(ts, feed_filter, read_to=base.ts) if base is not None else None
        if found is None:
            return None
        with contextlib.suppress(Retryable):
            self.read_up(found, ts)
            with found.lock:
                # A catalogue that lacks a refused job is not used: only upstream knows what the job did.
                if found.reaches(ts, feed_filter):
                    return found.catalogue.tables(ts)
        return None

    def serves(self, checkpoint: int, safe_point: int) -> bool:
        """Whether a base exists for a checkpoint, and the jobs after it are still available.

        `safe_point`: below it upstream's history may be gone; MAX: it is not known.
        """
        base = bases.serving(self._bases, checkpoint)
        if base is None:
            return False
        return safe_point == MAX or base.ts >= safe_point or self._has_ddl(base.ts, checkpoint)

    def leave_out(self, checkpoint: int, needed: int) -> None:
        """Remove the base for a checkpoint if DDL after it can be read neither here nor upstream.

        `needed`: upstream keeps history from there on. The next base is then read from upstream.
        """
        base = bases.serving(self._bases, checkpoint)
        while base is not None and base.ts < needed and not self._has_ddl(base.ts, checkpoint):
            self._remove([base])
            base = bases.serving(self._bases, checkpoint)

    def _has_ddl(self, after: int, upto: int) -> bool:
        """Whether the event store still has the DDL span from `after` on."""
        try:
            manifest = store_view.covering_manifest(self._store, DDL_SPAN_ID, after, max(after, upto))
            return manifest.dropped_to <= after
        except Retryable:
            return False

    def open_at(
        self, checkpoint: int, feed_filter: FeedFilter, safe_point: int = MAX, others: Iterable[int] = ()
    ) -> Shared:
        """A catalogue with which a changefeed can begin at its checkpoint; `settled` reads it up to there.

        If no base serves the checkpoint, upstream's catalogue is read at the least of the checkpoint and
        those of the `others` that upstream still has, because those changefeeds may need a base next. Raises
        the errors of that reading.
        """
        if not self.serves(checkpoint, safe_point):
            readable = (ts for ts in others if safe_point == MAX or ts >= safe_point)
            self._read_base(min([checkpoint, *readable]))
        base = bases.serving(self._bases, checkpoint)
        assert base is not None
        # A catalogue that is below the base may also be below what the DDL span has dropped.
        found = self.newest(checkpoint, feed_filter, read_to=base.ts)
        if found is not None:
            return found
        try:
            return self._opened_from(base)
        except (Undecodable, OSError) as error:
            event(LOG, logging.WARNING, "catalogue is read again", where=base.name, why=str(error))
            self._remove([base])
            return self._opened_from(self._read_base(checkpoint))

    def settled(self, found: Shared, checkpoint: int, feed_filter: FeedFilter) -> Shared:
        """Read the result of `open_at` up to the checkpoint, or replace it if it cannot be used. Raises as
        `Shared.read`.
        """
        if not found.reaches(checkpoint, feed_filter):
            found = self.open_at(checkpoint, feed_filter)
        self.read_up(found, checkpoint)
        if found.catalogue.missing(checkpoint, feed_filter.concerned):
            found = self._opened_from(self._read_base(checkpoint))
        return found

    @staticmethod
    def read_up(shared: Shared, ts: int) -> None:
        """Bring an open catalogue to `ts` if it is below. Raises as `Shared.read`."""
        with shared.lock:
            for _ in shared.read(ts):
                pass

    def _opened(self) -> list[Shared]:
        return [shared for one in self._open if (shared := one()) is not None]

    def _opened_from(self, base: Base) -> Shared:
        store = bases.load(self.folder, base)
        shared = Shared(Catalogue(store, base.since, steps_max=self._steps_max), self._store)
        self._open = (*(ref(one) for one in self._opened()), ref(shared))
        return shared

    # --- saved ---------------------------------------------------------------------------------------

    def offer(self, store: SchemaStore, ts: int, feed_filter: FeedFilter) -> None:
        """Save upstream's catalogue at `ts`, where a changefeed will begin, unless a base serves it."""
        found = self.newest(ts, feed_filter)
        if found is None or bases.serving(self._bases, ts) is None:
            self._write(Base(ts, ts), store.image(ts))

    def _read_base(self, ts: int) -> Base:
        """Read upstream's catalogue at `ts`, and save it as a base."""
        image = self._load_upstream(ts).image(ts)
        for shared in self._opened():
            with shared.lock:
                catalogue = shared.catalogue
                if catalogue.since <= ts <= catalogue.resolved_ts and not catalogue.broken:
                    # Upstream does not say what recovered schemas contained, nor which jobs are done.
                    known = catalogue.image(ts)
                    image = replace(image, dropped=known.dropped, done=known.done)
        return self._write(Base(ts, ts), image)

    def tend(self, checkpoints: Collection[int], running: Collection[int]) -> None:
        """Have the thread bring the bases up to date.

        `checkpoints`: of every changefeed that may start again; `running`: of those that run now.
        """
        # One call at a time. A second one would decide by bases that the first is still replacing.
        if self._keeping is not None:
            if not self._keeping.done():
                return
            # Raises a defect of the last call, which nobody else would notice.
            self._keeping.result()
        # Decided in the loop, where checkpoints move. If the thread removed a base that has just begun to
        # serve a changefeed, the earlier base would serve it again, and history from that base's ts on is
        # not held any more.
        needed = {bases.serving(self._bases, ts) for ts in checkpoints} | {*self._bases[-1:]}
        gone = [base for base in self._bases if base not in needed]
        self._list(gone=gone)
        self._keeping = self.submit(self.keep, tuple(running), gone)

    def keep(self, running: Collection[int], gone: Collection[Base] = ()) -> None:
        """Save what the open catalogues have learned if that is due; remove the files of `gone`."""
        self._remove(gone)
        try:
            now = self._clock.monotonic()
            if now >= self._rename_at:
                self._rename_at = now + RENAME_S
                for shared in self._opened():
                    self._extend(shared)
            for shared in self._opened():
                self._save(shared, running)
        except (TidegateError, OSError) as error:
            # Not urgent: history is held from where the bases are.
            why = error.why or error.what if isinstance(error, TidegateError) else str(error)
            event(LOG, logging.WARNING, "catalogue not saved", where=str(self.folder), why=why)
            self._write_at = self._rename_at = self._clock.monotonic() + RETRY_S

    def _extend(self, shared: Shared) -> None:
        """Rename each base so that it reaches up to the next DDL, or to where the DDL span is known."""
        for base in self._bases:
            with shared.lock:
                catalogue = shared.catalogue
                if catalogue.broken or not catalogue.since <= base.ts <= catalogue.resolved_ts:
                    continue
                _, ts = catalogue.stretch(base.ts)
            if ts > base.ts:
                self._rename(base, base._replace(ts=ts))

    def _save(self, shared: Shared, running: Collection[int]) -> None:
        """Write a base for the running changefeed with the highest checkpoint; the others will reach it."""
        now = self._clock.monotonic()
        with shared.lock:
            catalogue = shared.catalogue
            covered = [ts for ts in running if catalogue.since <= ts <= catalogue.resolved_ts]
            if not covered or catalogue.broken:
                return
            checkpoint = max(covered)
            since, ts = catalogue.stretch(checkpoint)
            base = bases.serving(self._bases, checkpoint)
            due = now >= self._write_at and (base is None or base.ts < since)
            complete = not catalogue.missing(checkpoint, lambda refusal: True)
            # Taken under the lock and written outside it, because writing a large catalogue takes a second.
            image = catalogue.image(checkpoint) if due and complete else None
            catalogue.forget(min(covered))
        if image is not None:
            self._write(Base(since, ts), image)
        elif due:
            # This catalogue lacks a refused or unreadable job, and only upstream knows what the job did.
            self._read_base(checkpoint)
        if due:
            self._write_at = now + SAVE_REST * (self._clock.monotonic() - now)

    def _write(self, base: Base, image: Image) -> Base:
        """Write a base file, which takes about a second for 100,000 tables."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / base.name, chunks(image))
        self._list(base)
        return base

    def _rename(self, before: Base, after: Base) -> None:
        (self.folder / before.name).rename(self.folder / after.name)
        self._list(after, gone=[before])
        sync_folder(self.folder)

    def _list(self, *new: Base, gone: Collection[Base] = ()) -> None:
        with self._listing:
            self._bases = tuple(sorted({*self._bases, *new} - {*gone}))

    def _remove(self, gone: Collection[Base]) -> None:
        self._list(gone=gone)
        for base in gone:
            with contextlib.suppress(OSError):  # it is no longer listed; the next start tries again
                (self.folder / base.name).unlink(missing_ok=True)
