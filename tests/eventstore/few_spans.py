"""A store of a few spans without files of rows: a real page of floors, and manifests in memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from tidegate.control.barrier import SpanTask
from tidegate.eventstore.floors import FloorPage
from tidegate.eventstore.manifest import Manifest, RegionRange, joined
from tidegate.eventstore.segment import BlockInfo, SegmentInfo
from tidegate.model.span import span_id
from tidegate.server.catalogue.stripes import table_task
from tidegate.tidb import keys

START: Final = 100
DDL: Final = "00000000000000dd"
STRIPE: Final = keys.stripe_span(64, 64)
TASKS: Final = (
    table_task(10, START),
    table_task(20, START),
    SpanTask(span_id(STRIPE), STRIPE, 126, START, wanted=1 << 62),
)
"""Two spans of a table each, and a stripe of which a table in the upper half is wanted."""
NAMES: Final = [task.id for task in TASKS]
FAR: Final = 1 << 40
CHANGE: Final = st.one_of(
    st.tuples(st.just("receive"), st.sampled_from(NAMES), st.integers(START, 160), st.booleans()),
    st.tuples(st.just("lead"), st.sampled_from(NAMES), st.integers(START, 160), st.booleans()),
    st.tuples(st.just("drop"), st.sampled_from(NAMES), st.integers(START, 160)),
    st.tuples(st.just("restart"), st.sampled_from(NAMES)),
)
"""A method of `FewSpans` with its arguments."""


class FewSpans:
    """The page of floors, and manifests in memory. Each step is what the puller does to one span."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.page = folder, FloorPage(folder, "process")
        self.manifests = {
            task.id: Manifest(task.span, (RegionRange(task.span.start, task.span.end, START),), version=7)
            for task in TASKS
        }
        self.ddl_ts = FAR
        """Up to which ts DDL is received. Floors far below it may be lifted."""
        self.floors = dict.fromkeys(NAMES, START)
        self.leads = dict.fromkeys(NAMES, START)
        """Up to which ts the upper half of each is complete, if that is higher."""
        self.rows: dict[str, list[int]] = {name: [] for name in NAMES}
        """All rows of upstream."""
        self.last = dict(self.floors)
        """The highest floor that each span ever had: upstream has no further row below."""
        self.edges = {task.id: keys.table_prefix(task.physical_id) for task in TASKS}
        """The first key of the upper half."""
        self.edges |= {task.id: task.span.start + b"m" for task in TASKS if not task.wanted}
        self.reads = Counter[str]()
        self.publish()

    def publish(self) -> None:
        said = ((name, self.floors[name], one.version) for name, one in self.manifests.items())
        self.page.put([*said, (DDL, self.ddl_ts, 1)])

    def change(self, name: str, **changes: Any) -> None:
        """Write a manifest: another version, with its own ranges up to the floor."""
        one = self.manifests[name]
        span, floor, edge = one.span, self.floors[name], self.edges[name]
        upper = RegionRange(edge, span.end, max(floor, self.leads[name]))
        ranges = joined([RegionRange(span.start, edge, floor), upper])
        self.manifests[name] = replace(one, ranges=ranges, version=one.version + 1, **changes)

    def receive(self, name: str, ts: int, has_row: bool) -> None:
        """Receive everything up to a ts, with a row at it or without."""
        fresh = self._come(name, ts, has_row)
        self.floors[name] = max(ts, self.floors[name])
        if fresh:
            self._seal(name, fresh)

    def lead(self, name: str, ts: int, has_row: bool) -> None:
        """The same for the upper half alone: the lower one waits. All rows are in the upper half."""
        fresh = self._come(name, ts, has_row)
        self.leads[name] = max(ts, self.leads[name])
        self._seal(name, fresh)

    def _come(self, name: str, ts: int, has_row: bool) -> list[int]:
        if ts > self.last[name]:
            self.last[name] = ts
            self.rows[name] += [ts] * has_row
        known = max(self.floors[name], self.leads[name])
        return [row for row in self.rows[name] if known < row <= ts]

    def _seal(self, name: str, fresh: list[int]) -> None:
        segments = (
            SegmentInfo(str(ts), 1, 99, ts, ts, directory=1, blocks=(BlockInfo(0, 1, 9, ts, ts),))
            for ts in fresh
        )
        self.change(name, segments=(*self.manifests[name].segments, *segments))

    def drop(self, name: str, ts: int) -> None:
        """Drop rows up to a ts, because the store is full or because they are delivered."""
        ts = min(ts, self.floors[name])
        if ts > self.manifests[name].dropped_to:
            kept = tuple(one for one in self.manifests[name].segments if one.last_ts > ts)
            self.change(name, segments=kept, dropped_to=ts)

    def restart(self, name: str) -> None:
        """Pull a span again from the start: its floor is withdrawn before the manifest is written."""
        self.page.put([(name, 0, 0)])
        self.floors[name] = self.leads[name] = START
        self.change(name, segments=(), dropped_to=START)

    def read(self, store: Path, name: str) -> Manifest | None:
        self.reads[name] += 1
        return self.manifests.get(name)
