"""Spark's side of the event store: a streaming Python Data Source of *descriptors*.

A row names a span and a ts range and nothing else; the task that gets it opens the segments itself, so
the changes never cross the JVM. Spark runs `latestOffset` and `partitions` in a Python process of its own:
with the rest of the capture it shares only files, read anew at every call.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from tidegate.eventstore import outlook
from tidegate.eventstore.manifest import Manifest, ManifestReader
from tidegate.pipeline.feed import Barrier, FeedSpec
from tidegate.pipeline.offsets import Offset, Range, advance, bound, pack, ranges, waits

DESCRIPTOR = "span string, after long, upto long"
LOOK_AGAIN_S: Final = 0.1
GLANCE_S: Final = 0.01
"""Between two glances at whether anything was told since the last look."""
QUIET_S: Final = 2.0
QUIET_GLANCE_S: Final = 0.02
"""The same when there has been no batch for QUIET_S."""
REST_S: Final = 0.5
"""Between two looks at most: nothing waits longer, were a change not seen."""
KEPT: Final = 2
"""Manifests that are remembered, for each span that is followed."""


@dataclass(frozen=True)
class Task(InputPartition):
    """The ranges of one task."""

    ranges: tuple[Range, ...]

    def __init__(self, found: list[Range]) -> None:
        object.__setattr__(self, "value", None)
        object.__setattr__(self, "ranges", tuple(found))


class EventSource(DataSource):
    """`spark.readStream.format("tidegate-events").option("spec", PATH).option("tasks", N)`."""

    @classmethod
    def name(cls) -> str:
        return "tidegate-events"

    def schema(self) -> str:
        return DESCRIPTOR

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return EventReader(Path(self.options["spec"]), int(self.options["tasks"]))


class EventReader(DataSourceStreamReader):
    """Offsets and partitions of one changefeed."""

    def __init__(self, spec: Path, tasks: int) -> None:
        self._spec = FeedSpec.load(spec)
        self._tasks = self._spec.sink.describe().at_once(tasks)
        self._batch_began = self._moved_at = 0.0
        self._spans: tuple[str, ...] = ()
        """Those that the barrier file named at the last look."""
        self._manifests: dict[str, ManifestReader] = {}
        """Of spans that were looked at: only what was appended is read again."""

    def initialOffset(self) -> dict[str, Any]:
        """Where the driver found this incarnation to begin."""
        found: dict[str, Any] = json.loads(self._spec.start_file.read_text())
        return found

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """As far as the spans may be delivered, within the batch's byte budget.

        While there is nothing it does not return for REST_S, since each answer costs a look and the JVM a
        round. Under heavy load it waits for a fuller batch (`offsets.waits`).
        """
        after = Offset.from_json(start)
        rest_until = time.monotonic() + REST_S
        while True:
            # Before the look: what is told while it looks differs from this, and is looked at next.
            mark = self.mark()
            found, waiting = self.look(after)
            now = time.monotonic()
            if found == after and now < rest_until:
                glance_s = GLANCE_S if now - self._moved_at < QUIET_S else QUIET_GLANCE_S
                while self.mark() == mark and time.monotonic() < rest_until:
                    time.sleep(glance_s)
            elif waits(waiting, self._spec.config.tidegate.max_batch_bytes, now - self._batch_began):
                time.sleep(LOOK_AGAIN_S)
            else:
                self._batch_began = now
                if found != after:
                    self._moved_at = now
                return found.to_json()

    def mark(self) -> object:
        """What was told last: rows come to light with another manifest of their span, as far as the barrier
        file says. Floors that rise with time alone bring none, and those of other feeds' spans neither.
        """
        barrier = (self._spec.feed_dir / "barrier.json").stat()  # each is another file
        return barrier.st_ino, barrier.st_mtime_ns, outlook.versions(self._spec.store_dir, self._spans)

    def look(self, after: Offset) -> tuple[Offset, int]:
        """The end of a batch as of now, and how many bytes wait in all."""
        barrier = Barrier.load(self._spec.feed_dir / "barrier.json")
        self._spans = tuple(barrier.spans)
        # The frontier first: every row below it is in a manifest by then.
        floors = outlook.read_frontier(self._spec.store_dir)
        ddl = floors.get(barrier.ddl_span, 0)
        frontier = outlook.lifted(floors, barrier.wanted, ddl, self._manifest)
        if len(self._manifests) > KEPT * len(barrier.spans):
            self._manifests.clear()  # tables come and go
        sizes = self._sizes(after, barrier, frontier)
        budget = self._spec.config.tidegate.max_batch_bytes // max(1, len(sizes))

        def cut(span: str, since: int, upto: int) -> int:
            if span not in sizes:
                return since
            return outlook.cut(self._manifest(span), since, upto, budget)

        return advance(after, barrier, frontier, cut), sum(sizes.values())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The moved spans, packed into at most `tasks` tasks by their bytes."""
        barrier = Barrier.load(self._spec.feed_dir / "barrier.json")
        found = ranges(Offset.from_json(start), Offset.from_json(end), barrier.spans)
        sizes = {r.span: self._pending(r.span, r.after, r.upto, barrier) for r in found}
        return [Task(members) for members in pack(found, sizes, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The descriptors themselves."""
        assert isinstance(partition, Task)
        columns = {
            "span": [r.span for r in partition.ranges],
            "after": [r.after for r in partition.ranges],
            "upto": [r.upto for r in partition.ranges],
        }
        yield pa.RecordBatch.from_pydict(columns)

    def _sizes(self, start: Offset, barrier: Barrier, frontier: Mapping[str, int]) -> dict[str, int]:
        """Bytes that wait per span, of the spans that have rows to deliver."""
        found = {}
        for span, start_ts in barrier.spans.items():
            after, upto = max(start.spans.get(span, 0), start_ts), bound(barrier, frontier, span)
            size = self._pending(span, after, upto, barrier) if upto > after else 0
            if size:
                found[span] = size
        return found

    def _manifest(self, span: str) -> Manifest:
        known = self._manifests.get(span)
        if known is None:
            known = self._manifests[span] = ManifestReader(self._spec.store_dir / span)
        return outlook.read_manifest(self._spec.store_dir, span, known)

    def _pending(self, span: str, after: int, upto: int, barrier: Barrier) -> int:
        """Bytes in (after, upto]; 0: no row there is of a table that is wanted."""
        manifest = self._manifest(span)
        if manifest.dropped_to > after:
            return 0  # the puller was told to begin the span anew, from `after` or before, and has not yet
        rows, size, _, _ = outlook.pending(manifest, after, upto)
        if rows and span in barrier.wanted:
            folder = self._spec.store_dir / span
            rows = outlook.has_any(folder, manifest, after, upto, *barrier.wanted[span])
        return max(size, 1) if rows else 0
