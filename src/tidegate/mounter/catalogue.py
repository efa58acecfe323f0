"""A catalogue that several changefeeds read: versions of tables, and the effect of each of the last jobs.

Each DDL job is applied once, for all changefeeds. Each changefeed goes through the steps at its own pace and
takes what its filter lets pass. A step is kept until `forget` is called, or until there are STEPS_MAX later
ones. A changefeed that is further behind needs a catalogue of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidegate.mounter.ddl_jobs import UnreadableJob
from tidegate.mounter.ddl_transition import Refusal
from tidegate.mounter.schema_image import Image
from tidegate.mounter.schema_store import Applied, SchemaStore
from tidegate.mounter.table_version import TableVersion
from tidegate.tidb.ddl_job import DdlJob

STEPS_MAX: Final = 512
"""How many steps are kept. Each has table definitions and may take some hundred kilobytes."""


class Step(NamedTuple):
    """The effect of all jobs of one FinishedTS."""

    ts: int
    applied: tuple[Applied, ...]


class Catalogue:
    """Keeps the versions and steps from `since` on. Not thread-safe."""

    def __init__(self, store: SchemaStore, since: int, *, steps_max: int = STEPS_MAX) -> None:
        """`store`: the catalogue at every ts from `since` to its `resolved_ts`."""
        assert since <= store.resolved_ts
        self.store, self.since = store, since
        self.refusals: list[tuple[int, Refusal]] = []
        """The refused jobs since the catalogue was loaded, with their ts."""
        self.broken = False
        """Whether applying jobs has failed, so that they may be applied in part only."""
        self._steps: list[Step] = []
        self._listed: tuple[int, list[TableVersion]] = (-1, [])
        self._steps_max = steps_max

    @property
    def resolved_ts(self) -> int:
        """Every DDL that finished at or before it is known."""
        return self.store.resolved_ts

    def apply(self, ts: int, jobs: Sequence[DdlJob | UnreadableJob]) -> None:
        """Apply all jobs of one ts. Calls come in order of ts."""
        assert not self.broken, "half of what a job did may be there"
        # It stays set if a job raises: then only some jobs of this ts may be applied, and nobody may read on.
        self.broken = True
        applied = tuple(self.store.apply(job) for job in jobs)
        self.store.advance(ts)
        self.refusals += [(ts, one.refusal) for one in applied if one.refusal is not None]
        if any(one.emitted or one.changed_ids or one.refusal for one in applied):
            self._steps.append(Step(ts, applied))
        self.broken = False
        if len(self._steps) > self._steps_max * 9 // 8:  # forget rarely, and then many steps at once
            self.forget(self._steps[-self._steps_max - 1].ts)

    def advance(self, ts: int) -> None:
        """The caller promises that every job up to `ts` has been applied."""
        self.store.advance(ts)

    def steps(self, after: int, upto: int) -> list[Step]:
        """The steps in (after, upto], in order. `after` must not be below `since`."""
        assert after >= self.since, f"steps after {after} are asked for, kept from {self.since}"
        return self._steps[self._past(after) : self._past(upto)]

    def stretch(self, ts: int) -> tuple[int, int]:
        """The interval around `ts` in which the catalogue does not change, as (first, last) ts inclusive."""
        assert self.since <= ts <= self.resolved_ts
        at = self._past(ts)
        since = self._steps[at - 1].ts if at else self.since
        return since, self._steps[at].ts - 1 if at < len(self._steps) else self.resolved_ts

    def tables(self, ts: int) -> list[TableVersion]:
        """As `SchemaStore.entries`. The list is cached between two steps; callers must not change it."""
        since, _ = self.stretch(ts)
        if self._listed[0] != since:
            self._listed = since, self.store.entries(ts)
        return self._listed[1]

    def missing(self, ts: int, concerns: Callable[[Refusal], bool]) -> tuple[int, ...]:
        """The ts of the refused jobs up to `ts` for which `concerns` is true."""
        return tuple(at for at, refusal in self.refusals if at <= ts and concerns(refusal))

    def image(self, ts: int) -> Image:
        """The catalogue at `ts`, in the form to save."""
        assert self.since <= ts <= self.resolved_ts
        return self.store.image(ts)

    def forget(self, ts: int) -> None:
        """Forget what was before `ts`: no changefeed needs it any more."""
        count = self._past(ts)
        if count:
            self.since = self._steps[count - 1].ts
            del self._steps[:count]
            self.store.forget(self.since)

    def _past(self, ts: int) -> int:
        return bisect_right(self._steps, ts, key=lambda step: step.ts)
