"""The consumer's loop: Kafka topics to a consistent target, with Spark or without it.

    driver                                       Spark tasks (one per partition with news)
    ends of partitions -> ranges  ------------>  fetch read_committed, decode, stage as Arrow
    descriptors, marks, DDLs      <------------
    flow (pure): what may be applied, up to when
    applier: net effect per table, steps of DDLs -> target: writes them, then commits the position

Why a driver loop of Spark jobs and not Structured Streaming: the position must change in the same commit as
the data, so Spark's own offset log would be a second truth to reconcile; a DDL has to stop all partitions at
one ts in the middle of a batch; and fetching must continue while rows wait for their watermark. Spark
provides the schedule and the cores: ranges of any number of partitions on any number of executors. Only the
driver writes, under the target's lock: when it dies, no task can write after it. So running without Spark
loses only the cluster: a few processes fetch instead (`fetch_workers`).

While the driver writes, the next ranges are already being fetched (one job ahead, never more).

When the broker does not answer, the consumer reports it once, retries with growing pauses, and resumes where
it was. An error that is not Retryable ends the run if it lasts (`attempts`). `stall_detector` finds topics
that raise no error and still never let the target advance.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from tidegate.codec.registry import reader_of
from tidegate.consumer.applying import set_aside
from tidegate.consumer.applying.apply import QUARANTINE, Applier, only_topic
from tidegate.consumer.applying.commit import Committer
from tidegate.consumer.applying.partition_checks import check_target
from tidegate.consumer.applying.target import Address, TableFailed, Target
from tidegate.consumer.ddl.schema_changes import ignored_words
from tidegate.consumer.engine.offset_flow import OffsetFlow
from tidegate.consumer.engine.position import SetAside
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.reading.fetch_spark import JVM_LOG, SparkTasks, spark_tasks
from tidegate.consumer.reading.fetch_workers import LOG, workers
from tidegate.consumer.reading.fetcher import Fetcher, workers_of
from tidegate.consumer.reading.group_offsets import GroupOffsets
from tidegate.consumer.reading.offsets import Offsets
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.attempts import POLL_S, Attempts
from tidegate.consumer.running.beginning import Beginning, bounds_begun
from tidegate.consumer.running.checks import (
    check_by_offset,
    check_complete,
    check_marks_read,
    check_no_ddls,
    check_not_repartitioned,
    check_one_topic,
    check_set_aside,
    check_soft_delete,
    check_timed,
)
from tidegate.consumer.running.lag import Partition, partitions_of
from tidegate.consumer.running.membership import Membership, new_flow
from tidegate.consumer.running.notices import Notices
from tidegate.consumer.running.progress import QUIET, Listener, Progress
from tidegate.consumer.running.rounds import FetchRounds, News
from tidegate.consumer.running.stall_detector import StallDetector
from tidegate.consumer.running.status import StatusWriter
from tidegate.consumer.selecting.selection import Selection
from tidegate.consumer.settings import Settings, topic_of
from tidegate.consumer.targets import address_of
from tidegate.errors import InvalidInput, Retryable, TidegateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT_S: Final = 1.0
"""Seconds between two calls of `report`, at least."""
STAGING_PREFIX: Final = "run-"


def run(
    settings: Settings,
    stop: Callable[[], bool] = lambda: False,
    listener: Listener = QUIET,
    spark: SparkSession | None = None,
) -> Progress:
    """Consume until `stop()` or `settings.until`.

    `spark`: a session to use; None starts one and ends it, if `settings.master` is Spark's. Raises
    InvalidInput for a wrong source or target, and for a topic that can never bring the target to
    `settings.until`; Retryable when the broker does not answer at the start, or Spark fails; Fatal when
    continuing would make the target wrong.
    """
    topic = topic_of(settings)
    check_timed(topic)
    check_by_offset(topic, settings.until)
    check_one_topic(topic)
    check_soft_delete(topic, settings.rules.soft_delete, adopt=settings.database.adopt)
    Selection(settings.rules)  # refuse rules that cannot be parsed before a target is locked
    workers_of(settings.master)  # likewise for a --master that names nothing that can fetch
    address = address_of(
        *(settings.target, settings.upkeep, settings.database),
        by_offset=topic.by_offset,
        write_mode=settings.write_mode,
    )
    check_target(settings.rules.partition_rules(), address.transforms, str(address))
    if settings.mode is Mode.ROW and not address.row_mode:
        raise InvalidInput(
            "this target has no --mode row",
            where=str(address),
            why="a unique value may be taken by a row of one partition before the row of another releases it",
            fix="leave --mode out: whole transactions are applied then; or use --mode table, which applies "
            "each topic up to its own watermark",
        )
    check_set_aside(settings.set_aside, address)
    with address.opened() as target, _staging(address.folder) as staging:
        lives = Lives(settings, topic, address, target, staging, stop, listener)
        with lives.recorded():
            if not lives.consumer.done and not stop():
                with _fetching(topic, settings, staging, address.folder, stop, spark) as fetcher:
                    if fetcher is not None:
                        listener.ready(lives.consumer.progress())
                        lives.loop(fetcher)
        return lives.consumer.progress()


class Lives:
    """The consumers of one run: after each table that is set aside, another one begins at the position.

    It recovers the target and reads the topic again, as after a restart, so nothing that the earlier one has
    read, planned or half written counts.
    """

    def __init__(
        self,
        settings: Settings,
        topic: Topic,
        address: Address,
        target: Target,
        staging: Path,
        stop: Callable[[], bool],
        listener: Listener,
    ) -> None:
        self._settings, self._topic, self._address, self._target = settings, topic, address, target
        self._staging, self._stop, self._listener = staging, stop, listener
        self._entries: tuple[SetAside, ...] = ()
        """All tables that this run has set aside; a target that undoes has them only after a commit."""
        self._count = 0
        self._group = GroupOffsets(topic, settings.group, listener) if settings.group else None
        self.consumer = self._next()

    def loop(self, fetcher: Fetcher) -> None:
        """As `Consumer.loop`, setting tables aside if the settings allow it."""
        while True:
            try:
                self.consumer.loop(fetcher)
            except TableFailed as failed:
                if not self._settings.set_aside:
                    raise
                entries = self.consumer.set_aside(failed)
                for one in entries:
                    self._listener.warn(set_aside.reported(one, failed))
                self._entries = (*self._entries, *entries)
                self.consumer = self._next()
            else:
                return

    def _next(self) -> Consumer:
        # A folder of its own, because a cancelled task may still write into the earlier one.
        shutil.rmtree(self._staging / str(self._count), ignore_errors=True)
        self._count += 1
        staging = self._staging / str(self._count)
        staging.mkdir()
        # The rows that this run has set aside are in the file, from which the next consumer counts them.
        self._target.stats.bad_rows = 0
        made = self._settings, self._topic, self._address, self._target, staging, self._stop, self._listener
        return Consumer(*made, self._group, self._entries)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Wraps the run: writes the status file at its beginning, and at its end how it ended."""
        self.consumer.record()
        try:
            yield
        except TidegateError as error:
            self.consumer.record_end(error.what)
            raise
        self.consumer.record_end("")


class Consumer:
    """The driver's side: starts fetches, applies their results, names snapshots, reports."""

    def __init__(
        self,
        settings: Settings,
        topic: Topic,
        address: Address,
        target: Target,
        staging: Path,
        stop: Callable[[], bool],
        listener: Listener,
        group: GroupOffsets | None = None,
        aside: tuple[SetAside, ...] = (),
    ) -> None:
        """`group`: for lag tools. `aside`: tables that are set aside besides those that the position has."""
        self._settings, self._topic = settings, topic
        self._address, self._target = address, target
        self._stop, self._listener = stop, listener
        codec = reader_of(topic.options)
        trust = settings.trust_inserts and not codec.lacks_old(topic.options) and not topic.by_offset
        place = topic.place if len(topic.names) > 1 else only_topic
        self._applier = Applier(
            *(target, address.folder, topic.zone, trust, place),
            learns_zone=topic.learns_zone,
            clock=topic.clock,
            selection=Selection(settings.rules),
            schema_changes=settings.rules.schema_changes,
            sets_aside=settings.set_aside,
        )
        self._offsets = Offsets(topic)
        self._notices = Notices(topic, address.folder / QUARANTINE, listener)
        self._attempts = Attempts(topic.name, stop, listener, self._report)
        self._reported_at = math.inf  # no report before the position is known
        self._ends: dict[int, int] = {}
        """The end of each partition, as the last round reported it."""
        self._status_writer = StatusWriter(address.folder, listener.warn, settings.rules.schema_changes)
        self._group = group
        beginning = Beginning(
            settings, topic, address, target, self._applier, self._offsets, self._attempts, listener
        )
        position = beginning.position()
        self._applier.set_aside.know(aside)
        zone = self._applier.zone
        zone.name = zone.name or position.zone_from("")
        begun = bounds_begun(target.begun, topic, address, settings.until)
        self._flow = new_flow(topic, settings, position, begun, address.seen)
        self._rounds = FetchRounds(topic, self._flow, self._offsets, staging)
        self._committer = Committer(
            self._flow, self._applier, position, settings.commit_rows, settings.idle_s
        )
        self._applied_at = self._tidied_at = self._reported_at = time.monotonic()
        known = {number: part.watermark for number, part in position.partitions.items()}
        if topic.by_offset:  # there the detector only needs to know whether the target is fresh
            known = dict.fromkeys(known, position.ts)
        self._stall_detector = StallDetector(
            topic.name, position.protocol, known, settings.until, self._applied_at, topic.by_offset
        )
        self._membership = Membership(
            *(topic, self._flow, self._offsets, self._stall_detector, self._applier.selection, listener),
            *(str(address), settings.until, beginning.ids),
        )

    def loop(self, fetcher: Fetcher) -> None:
        """Fetch and apply until `until` is reached or `stop` asks to end."""
        with ThreadPoolExecutor(1, thread_name_prefix="fetch") as ahead:
            coming = ahead.submit(self._rounds.fetch, fetcher, self._flow.wanted())
            try:
                while not self.done and not self._stop():
                    news = self._arrived(coming, fetcher)
                    if news is not None:
                        self._take(news)
                    if self._stop():
                        break
                    # Before the target writes, so that the broker is read meanwhile. After the last round was
                    # taken, because where to read next depends on it.
                    coming = ahead.submit(self._rounds.fetch, fetcher, self._flow.wanted())
                    if self._due():
                        self._applied_at = time.monotonic()
                        self._committer.commit(self._applied_at)
                        self._notices.report_inexact(self._applier.stats)
                        self._tidy()
                    elif news is not None and not news.fetched:
                        time.sleep(POLL_S)
                    self._report()
            finally:
                coming.cancel()
                # Leaving the pool waits for a round that runs. So that round must be made to fail.
                fetcher.cancel()

    @property
    def done(self) -> bool:
        """Whether the snapshot at `until` is named."""
        return self._settings.until is not None and self._committer.position.ts >= self._settings.until

    def progress(self) -> Progress:
        """The state of the run, for status lines."""
        stats, flow = self._applier.stats, self._flow
        signs = "; ".join(sign.what for sign in self._stall_detector.present.values())
        return Progress(
            ts=self._committer.position.ts,
            watermark=flow.watermarks.lowest,
            waiting_rows=flow.assembler.rows,
            rows=stats.rows,
            snapshots=stats.snapshots,
            ddls=stats.ddls,
            quarantined=self._notices.quarantined + stats.bad_rows,
            bad_dates=stats.losses.bad_dates,
            bad_texts=stats.losses.bad_texts,
            missing_deletes=stats.missing_deletes,
            guessed=sum(1 for table in self._target.definitions.values() if table.guessed),
            trouble=self._attempts.trouble or signs,
            partitions=self._partitions(),
            set_aside=len(self._applier.set_aside.entries),
        )

    def _partitions(self) -> tuple[Partition, ...]:
        kept, unnamed = self._committer.position, self._committer.unpublished
        return partitions_of(self._topic.names, self._flow, kept if unnamed else None, self._ends)

    def _ignored(self) -> tuple[str, ...]:
        return ignored_words(self._target.definitions.values())

    def set_aside(self, failed: TableFailed) -> tuple[SetAside, ...]:
        """Note durably that the tables of a failure are set aside; nothing may be applied after it.

        Returns their entries. Raises the failure's cause if the target cannot do it, and Fatal if there are
        too many.
        """
        self._applier.set_aside.check_room(failed)
        return self._target.set_aside(failed, self._committer.position)

    def record(self) -> None:
        """Write the status file."""
        self._record(self.progress())

    def record_end(self, trouble: str) -> None:
        """Write how the run ended: with the error `trouble`, or in order if it is empty."""
        self._status_writer.write(_now_ms(), False, trouble, self._partitions(), self._ignored())
        if self._group is not None and not trouble:
            self._group.close(self._committer.position)

    def _record(self, progress: Progress) -> None:
        """Write what others read from outside: the status file, and offsets for lag tools."""
        self._status_writer.write(_now_ms(), True, progress.trouble, progress.partitions, self._ignored())
        if self._group is not None:
            self._group.keep(self._committer.position, time.monotonic())

    # --- steps

    def _arrived(self, coming: Future[News], fetcher: Fetcher) -> News | None:
        """The result of a round; None when it failed, after a pause, or when `stop` asks to end."""
        while True:
            try:
                news = coming.result(timeout=0.1)
                break
            except NotYet:
                if self._stop():
                    return None
                self._report()
            except Exception as error:  # of a broker, a worker or the JVM
                self._attempts.failed(fetcher.translated(error))
                self._stall_detector.unreachable(time.monotonic())
                return None
        silent = next((part.trouble for part in news.fetched if part.trouble), "")
        if silent:
            # Ranges that did arrive are applied; the others are requested again after a pause.
            self._attempts.failed(self._offsets.unreachable(silent))
            self._stall_detector.unreachable(time.monotonic())
        elif (outage := next((part.outage for part in news.fetched if part.outage), None)) is not None:
            self._attempts.failed(_waiting(*outage))
            self._stall_detector.unreachable(time.monotonic())
        else:
            self._attempts.recovered()
        return news

    def _report(self) -> None:
        if time.monotonic() - self._reported_at >= REPORT_S:
            self._reported_at = time.monotonic()
            progress = self.progress()
            self._record(progress)
            self._listener.report(progress)

    def _take(self, news: News) -> None:
        check_not_repartitioned(self._topic, news.fetched)
        # Partitions join before the flow takes the round, because its watermarks may cover rows in them.
        try:
            self._membership.join(news)
        except Retryable as error:
            self._attempts.failed(error)  # the messages of this round are fetched again
            return
        now = time.monotonic()
        # Everything that may refuse the round comes before the flow takes it: what the flow has taken may be
        # applied.
        self._ends |= news.ends
        self._membership.check(news)
        # docs/guarantees.md#a-snapshot-never-lacks-rows-in-silence
        check_complete(self._topic, news.fetched, self._settings.until)
        check_no_ddls(self._topic, news.fetched)
        if self._flow.mode is Mode.ROW:
            check_marks_read(self._topic, news.fetched)
        at_end = [p for p, end in news.ends.items() if self._reached(p, news) >= end]
        self._stall_detector.saw(news.fetched, at_end, now)
        signs = self._stall_detector.news(now)
        lasting = self._stall_detector.lasting
        if lasting is not None and (self._settings.until is not None or self._stall_detector.unreadable):
            raise lasting
        for sign in signs:
            self._listener.warn(sign)
        for part in news.fetched:
            self._notices.set_aside(part)
        # Bad messages are set aside first, so that a position that passes them is never stored before their
        # record.
        if isinstance(self._flow, OffsetFlow):
            self._flow.take(news.fetched, news.behind)
            self._stall_detector.lacks(self._flow.lacking(), now)
        else:
            self._flow.take(news.fetched)
            self._membership.leave(self._flow, news)

    def _reached(self, partition: int, news: News) -> int:
        read = [part.next_offset for part in news.fetched if part.partition == partition]
        return max([self._flow.next_offsets()[partition], *read])

    def _due(self) -> bool:
        now, flow, settings = time.monotonic(), self._flow, self._settings
        if settings.mode is not Mode.TRANSACTION and self._committer.age(now) > settings.align_s:
            flow.meet()
        if settings.until is not None and flow.watermarks.lowest >= settings.until:
            return True
        return now - self._applied_at >= settings.commit_s or flow.waiting() >= settings.commit_rows

    def _tidy(self) -> None:
        if (
            time.monotonic() - self._tidied_at >= self._settings.upkeep.every_s
            and not self._committer.unpublished
            and self._target.tidy(self._committer.position)  # False: it continues after the next commit
        ):
            self._tidied_at = time.monotonic()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _waiting(what: str, where: str, why: str, fix: str) -> Retryable:
    """A failing schema registry or a full disk only makes the topic wait; nothing is lost meanwhile."""
    return Retryable(what, where=where, why=why, fix=fix)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A fresh directory for staged rows. Those of an earlier run are removed, and read again from Kafka.

    Each run uses a new name, because a task of a killed run may still be writing into the old directory.
    """
    parent = folder / "staging"
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=STAGING_PREFIX, dir=parent, ignore_cleanup_errors=True) as made:
        yield Path(made)


@contextmanager
def _fetching(
    topic: Topic,
    settings: Settings,
    staging: Path,
    folder: Path,
    stop: Callable[[], bool],
    spark: SparkSession | None,
) -> Iterator[Fetcher | None]:
    """The fetcher that `settings.master` names; None when `stop` comes before it is started."""
    count = workers_of(settings.master)
    if spark is not None:
        yield SparkTasks(spark, folder / JVM_LOG, stop)
    elif count is not None:
        with workers(count, folder / LOG) as found:
            yield found
    else:
        name = f"tidegate consumer {topic.name}"
        work, log = staging / "spark", folder / JVM_LOG
        with spark_tasks(name, settings.master, work, log, stop, settings.cluster) as tasks:
            yield tasks
