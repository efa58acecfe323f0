"""The consumer: Kafka topics to a consistent Delta target, one Spark application, on one page.

    driver                                       Spark tasks (one per partition with news)
    ends of partitions -> ranges  ------------>  fetch read_committed, decode, stage as Arrow
    descriptors, marks, DDLs      <------------
    flow (pure): what may be applied, up to when
    applier: net effect per table -> Delta, DDL, then one append names the snapshot with the position

Why a driver loop of Spark jobs and not Structured Streaming: the position must change in the same commit as
the data, so Spark's own offset log would be a second truth to reconcile; a DDL has to stop all partitions at
one ts in the middle of a batch; and a fetch must go on while rows wait for their watermark. What Spark gives
here is the schedule and the cores: ranges of any number of partitions on any number of executors. The writer
is the driver alone, under the target's lock: when it dies no task can write after it.

While the driver writes, the next ranges are already being fetched (one job ahead, never more).
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeVar

from tidegate.codec.base import CANAL_JSON
from tidegate.consumer.apply import Applier, target_lock
from tidegate.consumer.commit import Committer
from tidegate.consumer.flow import Flow
from tidegate.consumer.maintenance import Upkeep, tidy
from tidegate.consumer.position import PartitionPosition, Position
from tidegate.consumer.source import Fetched, Offsets, Range, Topic, check_retained, fetch
from tidegate.consumer.watermark import Mode
from tidegate.errors import Fatal, InvalidInput, Retryable, TidegateError
from tidegate.sink import quarantine
from tidegate.sink.quarantine import Quarantine
from tidegate.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

DAEMON: Final = "tidegate.consumer.daemon"
POLL_S: Final = 0.05
"""Pause when no partition has news."""
REPORT_S: Final = 1.0
"""How often `report` is called at most."""
BACK_OFF_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Pauses between attempts while the broker does not answer; the last one repeats."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the consumer."""

    source: str
    """kafka://host:port/topic?protocol=.."""
    target: Path
    mode: Mode = Mode.TRANSACTION
    until: int | None = None
    time_zone: str = "UTC"
    """Zone of TIMESTAMP texts on the topic: the producer's, since no protocol here sends it."""
    commit_s: float = 2.0
    """At most one commit in this time, unless `commit_rows` wait."""
    commit_rows: int = 500_000
    """About how many row changes one commit takes at most; bounds the driver's memory."""
    idle_s: float = 30.0
    """How often a snapshot is named when the topic moves on without rows."""
    align_s: float = 10.0
    """Row mode: how long partitions may run apart before they wait for each other at a snapshot."""
    trust_inserts: bool = True
    master: str = "local[*]"
    upkeep: Upkeep = field(default_factory=Upkeep)


@dataclass(frozen=True, slots=True)
class Progress:
    """What an operator wants to see."""

    ts: int
    """The newest snapshot."""
    watermark: int
    waiting_rows: int
    rows: int
    snapshots: int
    ddls: int
    quarantined: int
    trouble: str


def run(
    settings: Settings,
    ready: Callable[[Progress], None],
    stop: Callable[[], bool],
    spark: SparkSession | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Consume until `stop()` or `settings.until`; `ready` is called once the loop runs, `report` each second.

    `spark`: a session to use; None starts one and ends it. Raises InvalidInput for a wrong source or target,
    Fatal when going on would make the target wrong.
    """
    topic = Topic(settings.source, settings.time_zone)
    with target_lock(settings.target), _staging(settings.target) as staging:
        consumer = Consumer(settings, topic, staging)
        try:
            if not consumer.done:
                with nullcontext(spark) if spark is not None else _spark(topic, settings, staging) as session:
                    ready(consumer.progress())
                    consumer.loop(session, stop, report)
            return consumer.progress()
        finally:
            consumer.close()


class Consumer:
    """The driver's side: asks, lets tasks fetch, applies, publishes."""

    def __init__(self, settings: Settings, topic: Topic, staging: Path) -> None:
        self._settings, self._topic, self._staging = settings, topic, staging
        self._applier = Applier(settings.target, settings.time_zone, settings.trust_inserts)
        self._offsets = Offsets(topic)
        file = settings.target / "_tidegate" / "quarantine.jsonl"
        self._quarantine, self._known_bad = Quarantine(file), _known_bad(file)
        self._trouble, self._failures = "", 0
        position = self._start()
        ddl_partition = 0 if topic.options.protocol == CANAL_JSON else None
        self._flow = Flow(position, settings.mode, ddl_partition, settings.until)
        self._committer = Committer(
            self._flow, self._applier, position, settings.commit_rows, settings.idle_s
        )
        self._applied_at = self._tidied_at = time.monotonic()

    def loop(self, spark: SparkSession, stop: Callable[[], bool], report: Callable[[Progress], None]) -> None:
        """Fetch and apply until done or told to stop."""
        reported = time.monotonic()
        with ThreadPoolExecutor(1, thread_name_prefix="fetch") as ahead:
            coming = ahead.submit(self._fetch, spark, self._flow.wanted())
            while not self.done and not stop():
                fetched = self._arrived(coming)
                self._take(fetched)
                coming = ahead.submit(self._fetch, spark, self._flow.wanted())
                if self._due():
                    self._applied_at = time.monotonic()
                    self._committer.commit(self._applied_at)
                    self._tidy()
                elif not fetched:
                    time.sleep(POLL_S)
                if time.monotonic() - reported >= REPORT_S:
                    reported = time.monotonic()
                    report(self.progress())
            coming.cancel()

    @property
    def done(self) -> bool:
        """Whether the snapshot at `until` stands."""
        return self._settings.until is not None and self._committer.position.ts >= self._settings.until

    def progress(self) -> Progress:
        """For status lines."""
        stats, flow = self._applier.stats, self._flow
        return Progress(
            ts=self._committer.position.ts,
            watermark=flow.watermarks.lowest,
            waiting_rows=flow.assembler.rows,
            rows=stats.rows,
            snapshots=stats.snapshots,
            ddls=stats.ddls,
            quarantined=len(self._known_bad),
            trouble=self._trouble,
        )

    def close(self) -> None:
        """End the writer threads."""
        self._applier.close()

    # --- steps

    def _start(self) -> Position:
        """Where to go on: the target's own position, or the topic's beginning."""
        held = self._applier.recover()
        partitions = _patiently(self._offsets.partitions)
        first = _patiently(lambda: self._offsets.first(partitions))
        if held is None:
            begin = {p: PartitionPosition(first[p], 0, 0) for p in partitions}
            return Position(
                0, self._topic.name, self._topic.options.protocol, self._settings.mode.value, begin
            )
        _check_same(held, self._topic, partitions, self._settings)
        check_retained(self._topic, {p: held.partitions[p].offset for p in partitions}, first)
        return held

    def _fetch(self, spark: SparkSession, wanted: Mapping[int, int]) -> list[Fetched]:
        """One Spark job: every partition with news, one task each. Runs beside the writing driver."""
        ends = self._offsets.ends(list(wanted))
        ranges = [Range(p, start, ends[p]) for p, start in wanted.items() if start < ends[p]]
        if not ranges:
            return []
        topic, staging = self._topic, self._staging

        def task(wanted: Range) -> Fetched:
            return fetch(topic, wanted, staging)

        return list(spark.sparkContext.parallelize(ranges, len(ranges)).map(task).collect())

    def _arrived(self, coming: Future[list[Fetched]]) -> list[Fetched]:
        try:
            fetched = coming.result()
        except (
            Exception
        ) as error:  # whatever a broker, a worker or the JVM died of: asked again, then given up
            self._trouble = error.what if isinstance(error, TidegateError) else str(error)[:500]
            self._failures += 1
            if not isinstance(error, Retryable) and self._failures > len(BACK_OFF_S):
                raise
            time.sleep(BACK_OFF_S[min(self._failures, len(BACK_OFF_S)) - 1])
            return []
        self._failures = 0
        self._trouble = "; ".join(part.trouble for part in fetched if part.trouble)
        return fetched

    def _take(self, fetched: list[Fetched]) -> None:
        for part in fetched:
            bad = [message for message in part.bad if (part.partition, message.offset) not in self._known_bad]
            self._known_bad |= {(part.partition, message.offset) for message in bad}
            self._quarantine.append(
                {
                    "where": {
                        "topic": self._topic.name,
                        "partition": part.partition,
                        "offset": message.offset,
                    },
                    "why": message.why,
                    "key": message.key,
                    "value": message.value,
                }
                for message in bad
            )
        self._flow.take(fetched)

    def _due(self) -> bool:
        now, flow, settings = time.monotonic(), self._flow, self._settings
        if settings.mode is Mode.ROW and flow.align is None and self._committer.age(now) > settings.align_s:
            flow.align = max(ts for _, ts in flow.watermarks.items())
        if settings.until is not None and flow.watermarks.lowest >= settings.until:
            return True
        return now - self._applied_at >= settings.commit_s or flow.waiting() >= settings.commit_rows

    def _tidy(self) -> None:
        if (
            time.monotonic() - self._tidied_at >= self._settings.upkeep.every_s
            and not self._committer.unpublished
        ):
            tidy(self._applier.lake, self._committer.position, self._settings.upkeep)
            self._tidied_at = time.monotonic()


def _known_bad(file: Path) -> set[tuple[int, int]]:
    """(partition, offset) of what earlier runs have put into quarantine: read again, not written again."""
    return {(entry["where"]["partition"], entry["where"]["offset"]) for entry in quarantine.read(file)}


def _patiently(ask: Callable[[], T]) -> T:
    """Ask the broker at the start: a few attempts, then the error goes to the user."""
    for pause in BACK_OFF_S:
        try:
            return ask()
        except Retryable:
            time.sleep(pause)
    return ask()


def _check_same(held: Position, topic: Topic, partitions: list[int], settings: Settings) -> None:
    if (held.topic, held.protocol) != (topic.name, topic.options.protocol):
        raise InvalidInput(
            "the target belongs to another topic",
            where=str(settings.target),
            why=f"it holds {held.topic} ({held.protocol}), asked for {topic.name} ({topic.options.protocol})",
            fix="choose another directory for this topic",
        )
    if sorted(held.partitions) != partitions:
        raise Fatal(
            "the topic's partitions changed",
            where=f"topic {topic.name}",
            why=f"the target knows {len(held.partitions)}, the topic has {len(partitions)}",
            fix="start a new target; a topic must keep its partitions while it is consumed",
        )
    if settings.until is not None and settings.until < held.ts:
        raise InvalidInput(
            "the target is already past --until",
            where=str(settings.target),
            why=f"its newest snapshot is at {held.ts}, --until is {settings.until}",
            fix="read an older snapshot with open_snapshot(dir, at=TS), or use a new directory",
        )


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A fresh directory for staged rows; what an earlier run left is read again from Kafka.

    Its name is new each time: a task of a killed run may still be writing into the old one.
    """
    parent = target / "_tidegate" / "staging"
    shutil.rmtree(parent, ignore_errors=True)
    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as made:
        yield Path(made)


@contextmanager
def _spark(topic: Topic, settings: Settings, staging: Path) -> Iterator[SparkSession]:
    spark = open_session(f"tidegate consumer {topic.name}", settings.master, staging / "spark", DAEMON)
    try:
        yield spark
    finally:
        spark.stop()
        sys.stdout.flush()
