"""The consumer's loop: Kafka topics to a consistent target, by Spark or without it.

    driver                                       Spark tasks (one per partition with news)
    ends of partitions -> ranges  ------------>  fetch read_committed, decode, stage as Arrow
    descriptors, marks, DDLs      <------------
    flow (pure): what may be applied, up to when
    applier: net effect per table, steps of DDLs -> target: writes them, then commits the position

Why a driver loop of Spark jobs and not Structured Streaming: the position must change in the same commit as
the data, so Spark's own offset log would be a second truth to reconcile; a DDL has to stop all partitions at
one ts in the middle of a batch; and a fetch must go on while rows wait for their watermark. What Spark gives
here is the schedule and the cores: ranges of any number of partitions on any number of executors. The writer
is the driver alone, under the target's lock: when it dies no task can write after it. So whoever has no Spark
loses nothing but the cluster: a few processes fetch instead (`fetch_workers`).

While the driver writes, the next ranges are already being fetched (one job ahead, never more).

When the broker does not answer, the consumer says so once, asks again with growing pauses, and goes on where
it was. What fails for another reason is given up after as many attempts. What never fails and yet leads
nowhere is `stall_detector`'s part.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeVar

from tidegate.codec.entry import DdlTo
from tidegate.codec.registry import has_marks, reader_of
from tidegate.consumer.apply import QUARANTINE, Applier, only_topic
from tidegate.consumer.bad_rows import row_place
from tidegate.consumer.changes import sides_of
from tidegate.consumer.checks import (
    added_partitions,
    check_announced,
    check_begun,
    check_by_offset,
    check_complete,
    check_followed,
    check_ids,
    check_joining,
    check_marks_read,
    check_no_ddls,
    check_not_repartitioned,
    check_one_topic,
    check_partitions,
    check_retained,
    check_same,
    check_soft_delete,
    check_there,
    check_timed,
    check_uncompacted,
    check_whole,
    without_added,
)
from tidegate.consumer.commit import Committer
from tidegate.consumer.fetch_spark import JVM_LOG, ClusterSettings, SparkTasks, spark_tasks
from tidegate.consumer.fetch_workers import LOG, workers
from tidegate.consumer.fetched import Fetched, Range
from tidegate.consumer.fetcher import Fetcher, workers_of
from tidegate.consumer.flow import Flow
from tidegate.consumer.group_offsets import GroupOffsets
from tidegate.consumer.lag import Partition, partitions_of
from tidegate.consumer.offset_flow import Group, OffsetFlow
from tidegate.consumer.offsets import Offsets
from tidegate.consumer.places import place_of
from tidegate.consumer.position import PartitionPosition, Position
from tidegate.consumer.rules import NO_RULES, Rules
from tidegate.consumer.selection import Selection, check_same_rules
from tidegate.consumer.source import Topic
from tidegate.consumer.stall_detector import StallDetector
from tidegate.consumer.status import Diary
from tidegate.consumer.target import Address, Target
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.consumer.upkeep import Upkeep
from tidegate.consumer.watermark import Mode
from tidegate.errors import InvalidInput, Retryable, TidegateError, Undecodable
from tidegate.model.timestamp import compose
from tidegate.sink import quarantine
from tidegate.sink.quarantine import Quarantine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

POLL_S: Final = 0.05
"""Pause when no partition has news."""
REPORT_S: Final = 1.0
"""How often `report` is called at most."""
BACK_OFF_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Pauses between attempts while something fails; the last one repeats."""
GIVE_UP_S: Final = 15.0
"""How long an error that is not Retryable is given to pass before it ends the run."""
START_S: Final = 30.0
"""How long the broker is asked at the start before the error goes to the user."""
PEEK_BYTES: Final = 1
"""Of a partition that is not read: its first message says whether there is one."""
GUESSES_SHOWN: Final = 5
"""How many guessed tables a commit names; the others are counted."""
STAGING_PREFIX: Final = "run-"


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the consumer."""

    source: str
    """kafka://host:port/topic[,topic]?protocol=.."""
    target: str | Path
    """delta:///directory, the directory, iceberg:///directory, or mysql://user@host:port/."""
    mode: Mode = Mode.TRANSACTION
    until: int | None = None
    time_zone: str = ""
    """Zone of TIMESTAMP texts on the topic: the producer's. Empty: what DDL headers say; if there are none, a
    TIMESTAMP column stops the consumer. Simple says it itself, and rows in another zone are set aside (empty
    is UTC there); debezium's are in UTC."""
    pd: str = ""
    """Address of upstream's PD, to read rows from of which only the handle key is on the topic."""
    commit_s: float = 2.0
    """At most one commit in this time, unless `commit_rows` wait."""
    commit_rows: int = 500_000
    """About how many row changes one commit takes at most; bounds the driver's memory."""
    idle_s: float = 30.0
    """How often a snapshot is named when the topic moves on without rows."""
    align_s: float = 10.0
    """Row mode: how long partitions may run apart before they wait for each other at a snapshot."""
    trust_inserts: bool = True
    group: str = ""
    """A Kafka consumer group that gets the position's offsets, for tools that show lag; empty: none."""
    master: str = "local[*]"
    """Of Spark; or `workers[N]`: processes of this machine without Spark."""
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    """If the master is a cluster's."""
    rules: Rules = NO_RULES
    """Which tables and columns are applied, and under which names. A target keeps to them."""
    upkeep: Upkeep = field(default_factory=Upkeep)
    """Of a Delta or Iceberg target."""
    database: DatabaseSettings = field(default_factory=DatabaseSettings)


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
    """Messages and rows set aside, those of earlier runs included."""
    bad_dates: int
    """Values of this run that are NULL at the target: zero dates, and days of no calendar."""
    bad_texts: int
    """Texts of this run that are not UTF-8."""
    missing_deletes: int
    """Rows of tables without a key that were to be deleted in this run and not found."""
    guessed: int
    """Tables whose columns are guessed from their rows: the topic has no header for them."""
    trouble: str
    """Why nothing moves, in words; empty when nothing is known to be wrong."""
    partitions: tuple[Partition, ...] = ()
    """How far each is."""


@dataclass(frozen=True, slots=True)
class Listener:
    """What a caller wants to hear; called by the driver's loop, so that each call should be short."""

    ready: Callable[[Progress], None] = lambda progress: None
    """Once, when the loop begins."""
    report: Callable[[Progress], None] = lambda progress: None
    """About every second."""
    warn: Callable[[TidegateError], None] = lambda error: None
    """Each trouble once, when it begins."""
    note: Callable[[str], None] = lambda text: None
    """A trouble is over."""


QUIET: Final = Listener()


@dataclass(frozen=True, slots=True)
class News:
    """One round of fetching."""

    ends: Mapping[int, int]
    """Where each partition that was asked for ended when the round began."""
    fetched: list[Fetched]
    ids: Mapping[str, str] = field(default_factory=dict)
    """Kafka's ids of the topics, as they were after the fetch."""
    partitions: list[int] = field(default_factory=list)
    """All partitions to read, as the broker had them *after* the fetch: what was written to a new one before
    a watermark that came with this round is not missed. Empty when nothing was fetched."""
    unread: Mapping[int, int] = field(default_factory=dict)
    """Where those of them end that belong to a topic that is read, and are not read."""
    behind: Mapping[int, int] = field(default_factory=dict)
    """Of the partitions that the flow `asked` for: their ends, committed or not, when the round began."""


def run(
    settings: Settings,
    stop: Callable[[], bool] = lambda: False,
    listener: Listener = QUIET,
    spark: SparkSession | None = None,
) -> Progress:
    """Consume until `stop()` or `settings.until`.

    `spark`: a session to use; None starts one and ends it, if `settings.master` is Spark's. Raises
    InvalidInput for a wrong source or target, and for a topic that can never bring the target to
    `settings.until`; Retryable when the broker does not answer at the start, or Spark fails; Fatal when going
    on would make the target wrong.
    """
    topic = topic_of(settings)
    check_timed(topic)
    check_by_offset(topic, settings.until)
    check_one_topic(topic)
    check_soft_delete(topic, settings.rules.soft_delete, adopt=settings.database.adopt)
    Selection(settings.rules)  # rules that cannot be read are refused before a target is taken over
    workers_of(settings.master)  # what cannot fetch is refused before a target is taken over
    address = address_of(settings.target, settings.upkeep, settings.database, by_offset=topic.by_offset)
    if settings.mode is Mode.ROW and not address.row_mode:
        raise InvalidInput(
            "--mode row cannot be had for this target",
            where=str(address),
            why="a unique value may be taken by a row of one partition before that of another has let it go",
            fix="leave --mode out: whole transactions are applied then",
        )
    with address.opened() as target, _staging(address.folder) as staging:
        consumer = Consumer(settings, topic, address, target, staging, stop, listener)
        with consumer.recorded():
            if not consumer.done and not stop():
                with _fetching(topic, settings, staging, address.folder, stop, spark) as fetcher:
                    if fetcher is not None:
                        listener.ready(consumer.progress())
                        consumer.loop(fetcher)
        return consumer.progress()


class Consumer:
    """The driver's side: asks, lets tasks fetch, applies, publishes."""

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
        self._settings, self._topic, self._staging = settings, topic, staging
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
        )
        self._offsets = Offsets(topic)
        file = address.folder / QUARANTINE
        self._quarantine, self._bad_file = Quarantine(file), file
        self._known_bad = {row_place(entry) for entry in quarantine.sound_entries(file)}
        """Topic, partition, offset and number of what is in quarantine."""
        self._trouble, self._failures, self._failing_since = "", 0, 0.0
        self._reported_bad = self._reported_bad_row = self._reported_failure = False
        self._reported_guesses: dict[str, tuple[str, ...]] = {}
        self._doubtful_since: float | None = None
        self._reported_at = math.inf  # nothing to report before the position is known
        self._ids: dict[str, str] = {}
        """By topic, Kafka's id of the one that is read."""
        self._fresh: set[int] = set()
        """Partitions that were added to a topic while it was read."""
        self._hollow: dict[int, int] = {}
        """Where partitions end that are not read, since nothing but aborted transactions is on them."""
        self._ends: dict[int, int] = {}
        """Where each partition ended, as the last round has found it."""
        self._diary = Diary(address.folder, listener.warn)
        self._group = GroupOffsets(topic, settings.group, listener) if settings.group else None
        position = self._start()
        self._applier.zone = self._applier.zone or position.zone_from("")
        begun = bounds_begun(target.begun, topic, address, settings.until)
        self._flow = self._new_flow(position, begun)
        self._committer = Committer(
            self._flow, self._applier, position, settings.commit_rows, settings.idle_s
        )
        self._applied_at = self._tidied_at = self._reported_at = time.monotonic()
        known = {number: part.watermark for number, part in position.partitions.items()}
        if topic.by_offset:  # the same for all: whether the target is fresh
            known = dict.fromkeys(known, position.ts)
        self._stall_detector = StallDetector(
            topic.name, position.protocol, known, settings.until, self._applied_at, topic.by_offset
        )

    def _new_flow(self, position: Position, begun: Mapping[int, int] | None) -> Flow | OffsetFlow:
        topic, settings, numbers = self._topic, self._settings, list(position.partitions)
        ddl_to = reader_of(topic.options).ddl_to
        if topic.clock is not None:
            groups, sides = groups_of(topic, numbers, ddl_to), partial(sides_of, clock=topic.clock)
            return OffsetFlow(position, groups, sides, begun, lambda: compose(_now_ms()))
        return Flow(position, settings.mode, places_of_ddl(topic, numbers, ddl_to), settings.until, begun)

    def loop(self, fetcher: Fetcher) -> None:
        """Fetch and apply until done or told to stop."""
        with ThreadPoolExecutor(1, thread_name_prefix="fetch") as ahead:
            coming = ahead.submit(self._fetch, fetcher, self._flow.wanted())
            try:
                while not self.done and not self._stop():
                    news = self._arrived(coming, fetcher)
                    if news is not None:
                        self._take(news)
                    if self._stop():
                        break
                    coming = ahead.submit(self._fetch, fetcher, self._flow.wanted())
                    if self._due():
                        self._applied_at = time.monotonic()
                        self._committer.commit(self._applied_at)
                        self._tell_what_is_inexact()
                        self._tidy()
                    elif news is not None and not news.fetched:
                        time.sleep(POLL_S)
                    self._report()
            finally:
                coming.cancel()
                fetcher.cancel()

    @property
    def done(self) -> bool:
        """Whether the snapshot at `until` stands."""
        return self._settings.until is not None and self._committer.position.ts >= self._settings.until

    def progress(self) -> Progress:
        """For status lines."""
        stats, flow = self._applier.stats, self._flow
        signs = "; ".join(sign.what for sign in self._stall_detector.standing.values())
        return Progress(
            ts=self._committer.position.ts,
            watermark=flow.watermarks.lowest,
            waiting_rows=flow.assembler.rows,
            rows=stats.rows,
            snapshots=stats.snapshots,
            ddls=stats.ddls,
            quarantined=len(self._known_bad) + stats.bad_rows,
            bad_dates=stats.losses.bad_dates,
            bad_texts=stats.losses.bad_texts,
            missing_deletes=stats.missing_deletes,
            guessed=sum(1 for table in self._target.definitions.values() if table.guessed),
            trouble=self._trouble or signs,
            partitions=self._partitions(),
        )

    def _partitions(self) -> tuple[Partition, ...]:
        kept, unnamed = self._committer.position, self._committer.unpublished
        return partitions_of(self._topic.names, self._flow, kept if unnamed else None, self._ends)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Around the run: the folder has its status from the beginning on, and then how it ended."""
        self._record(self.progress())
        try:
            yield
        except TidegateError as error:
            self._diary.write(_now_ms(), False, error.what, self._partitions())
            raise
        self._diary.write(_now_ms(), False, "", self._partitions())
        if self._group is not None:
            self._group.close(self._committer.position)

    def _record(self, progress: Progress) -> None:
        """For those who look from outside: the status file, and offsets for lag tools."""
        self._diary.write(_now_ms(), True, progress.trouble, progress.partitions)
        if self._group is not None:
            self._group.keep(self._committer.position, time.monotonic())

    # --- steps

    def _start(self) -> Position:
        """Where to go on: the target's own position, or the topic's beginning."""
        held, rules = self._target.recover(), self._settings.rules.given
        for kept in filter(None, (held, self._target.begun)):
            check_same_rules(kept, rules, str(self._address))
            self._applier.selection.know(kept.sources)
        if held is not None:
            self._applier.know_barriers(held.barriers)
        if held is not None and held.epoch:
            for name in held.topics:
                self._offsets.written[name] = sum(
                    place_of(held.topics, p)[0] == name for p in held.partitions
                )
        partitions = self._patiently(self._offsets.partitions)
        if held is not None and not self._topic.by_offset:
            partitions = without_added(held, self._topic, partitions)
        first = self._patiently(lambda: self._offsets.first(partitions))
        there = self._topic.names_of(partitions)
        self._ids = self._patiently(lambda: self._offsets.ids(there))
        check_uncompacted(self._topic, self._patiently(lambda: self._offsets.compacted(there)))
        if missing := [name for name in self._topic.names if name not in there]:
            self._listener.note(f"not there yet, read as soon as they are: topic {', '.join(missing)}")
        if held is None:
            begin = {p: PartitionPosition(first[p], 0, 0) for p in partitions}
            name, protocol = self._topic.name, self._topic.options.protocol
            fresh = Position(0, name, protocol, self._settings.mode.value, begin)
            zone, by_offset = self._topic.given_zone, self._topic.by_offset
            return replace(fresh, ids=self._ids, time_zone=zone, by_offset=by_offset, rules=rules)
        check_ids(held.ids, self._ids, str(self._address))
        check_same(held, self._topic, partitions, str(self._address), self._settings.until)
        held = held.over(self._topic.names)
        known = self._topic.names_of(held.partitions)
        joining = [p for p in partitions if self._topic.place(p)[0] not in known]
        check_joining(self._topic, {p: first[p] for p in joining}, str(self._address))
        held = held.over(self._topic.names, joining)
        check_retained(self._topic, {p: held.partitions[p].offset for p in partitions}, first)
        zone = held.zone_from(self._topic.given_zone)
        return replace(held, ids={**held.ids, **self._ids}, time_zone=zone)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask the broker at the start: for `START_S`, then the error goes to the user.

        A topic that is not there may be one whose changefeed has only just been created.
        """
        began = time.monotonic()
        while True:
            try:
                answer = ask()
            except Retryable as error:
                if self._stop() or time.monotonic() - began > START_S:
                    raise
                self._failed(error)
            except InvalidInput as error:
                if self._stop():
                    raise
                if not self._failures:
                    self._listener.note(f"{error.what}; asking again for {GIVE_UP_S:.0f} s")
                self._failed(error)
            else:
                self._recovered()
                return answer

    def _fetch(self, fetcher: Fetcher, wanted: Mapping[int, int]) -> News:
        """One round: every partition with news, one task each. Runs beside the writing driver."""
        behind = self._offsets.ends_written(self._asked())
        ends = self._offsets.ends(list(wanted))
        check_whole(self._topic, wanted, ends)
        ranges = [Range(p, start, ends[p]) for p, start in wanted.items() if start < ends[p]]
        if not ranges:
            return News(ends, [], behind=behind)
        topic = self._topic
        fetched = fetcher.fetch(topic, ranges, self._staging)
        if any(part.trouble for part in fetched):
            check_retained(topic, wanted, self._offsets.first(list(wanted)))
        for part in fetched:
            for layout in part.layouts:
                name = topic.place(part.partition)[0]
                self._offsets.written[name] = max(layout.all, self._offsets.written.get(name, 0))
        partitions = self._offsets.partitions()
        unread = self._visible(fetcher, self._offsets.ends(self._unread(partitions)))
        ids = self._offsets.ids(topic.names_of(partitions))
        return News(ends, fetched, ids, partitions, behind=behind, unread=unread)

    def _unread(self, partitions: list[int]) -> list[int]:
        """Those of a topic that is read which are not read themselves; by offset, each must be."""
        if self._topic.by_offset:
            return []
        known = self._flow.next_offsets()
        names = self._topic.names_of(known)
        return [p for p in partitions if p not in known and self._topic.place(p)[0] in names]

    def _asked(self) -> list[int]:
        return self._flow.asked()

    def _visible(self, fetcher: Fetcher, ends: Mapping[int, int]) -> dict[int, int]:
        """Where unread partitions end; 0 if nothing but aborted transactions is on them."""
        ranges = [
            Range(p, 0, end, PEEK_BYTES) for p, end in ends.items() if end > 0 and self._hollow.get(p) != end
        ]
        with TemporaryDirectory(dir=self._staging) as staged:
            found = fetcher.fetch(self._topic, ranges, Path(staged)) if ranges else []
        for part in found:
            if not (part.messages or part.trouble or part.outage):
                self._hollow[part.partition] = ends[part.partition]
        return {p: 0 if self._hollow.get(p) == end else end for p, end in ends.items()}

    def _arrived(self, coming: Future[News], fetcher: Fetcher) -> News | None:
        """What the round brought; None when it failed, after a pause, or when it is time to stop."""
        while True:
            try:
                news = coming.result(timeout=0.1)
                break
            except NotYet:
                if self._stop():
                    return None
                self._report()
            except Exception as error:  # whatever a broker, a worker or the JVM died of
                self._failed(fetcher.translated(error))
                self._stall_detector.unreachable(time.monotonic())
                return None
        silent = next((part.trouble for part in news.fetched if part.trouble), "")
        if silent:
            # What came all the same is taken; the rest is asked for again after a pause.
            self._failed(self._offsets.unreachable(silent))
            self._stall_detector.unreachable(time.monotonic())
        elif (outage := next((part.outage for part in news.fetched if part.outage), None)) is not None:
            self._failed(_no_schemas(*outage))
            self._stall_detector.unreachable(time.monotonic())
        else:
            self._recovered()
        return news

    def _failed(self, error: TidegateError) -> None:
        """An attempt failed: say so once, and wait. Raises what a few more attempts have not mended.

        What a further attempt seldom mends is not told before: right after its start a broker may say that
        a topic is missing, or shorter than it is.
        """
        now = time.monotonic()
        self._failing_since = self._failing_since if self._failures else now
        if isinstance(error, Retryable) and not self._reported_failure:
            self._reported_failure = True
            self._listener.warn(error)
        self._failures += 1
        self._trouble = error.what
        if isinstance(error, Retryable):
            self._doubtful_since = None
        else:
            self._doubtful_since = now if self._doubtful_since is None else self._doubtful_since
            if now - self._doubtful_since >= GIVE_UP_S:
                raise error
        until = now + BACK_OFF_S[min(self._failures, len(BACK_OFF_S)) - 1]
        while time.monotonic() < until and not self._stop():
            time.sleep(POLL_S)
            self._report()

    def _recovered(self) -> None:
        if self._reported_failure:
            seconds = time.monotonic() - self._failing_since
            self._listener.note(f"topic {self._topic.name} is read again after {seconds:.0f} s")
        self._failures, self._trouble, self._reported_failure, self._doubtful_since = 0, "", False, None

    def _report(self) -> None:
        if time.monotonic() - self._reported_at >= REPORT_S:
            self._reported_at = time.monotonic()
            progress = self.progress()
            self._record(progress)
            self._listener.report(progress)

    def _take(self, news: News) -> None:
        check_not_repartitioned(self._topic, news.fetched)
        try:
            self._join(news)
        except Retryable as error:
            self._failed(error)  # what came with this round is read again
            return
        now = time.monotonic()
        self._ends |= news.ends
        check_ids(self._ids, news.ids, str(self._address))
        if news.partitions:
            known = list(self._flow.next_offsets())
            idle = set(self._unread(news.partitions))
            there = [p for p in news.partitions if p not in idle]
            check_partitions(known, self._topic, there, str(self._address))
            check_announced(self._topic, self._fresh, news.fetched, self._offsets.written)
        check_complete(self._topic, news.fetched, self._settings.until)
        check_no_ddls(self._topic, news.fetched)
        if self._flow.mode is Mode.ROW:
            check_marks_read(self._topic, news.fetched)
        at_end = [p for p, end in news.ends.items() if self._reached(p, news) >= end]
        self._stall_detector.saw(news.fetched, at_end, now)
        signs = self._stall_detector.news(now)
        hopeless = self._stall_detector.hopeless
        if hopeless is not None and (self._settings.until is not None or self._stall_detector.unreadable):
            raise hopeless
        for sign in signs:
            self._listener.warn(sign)
        for part in news.fetched:
            self._set_aside(part)
        if isinstance(self._flow, OffsetFlow):
            self._flow.take(news.fetched, news.behind)
            self._stall_detector.lacks(self._flow.lacking(), now)
        else:
            self._flow.take(news.fetched)
            self._leave(self._flow, news)

    def _leave(self, flow: Flow, news: News) -> None:
        """Read no further those partitions that nothing was ever written to; they join as added ones do."""
        fetched = {part.partition for part in news.fetched}
        idle = [p for p in flow.asked() if news.behind.get(p) == 0 and p not in fetched]
        named = added_partitions(self._topic, dict.fromkeys(idle, 0), self._offsets.written)
        idle = [p for p in idle if p not in named]
        if idle:
            numbers = [p for p in flow.next_offsets() if p not in idle]
            flow.leave(idle, places_of_ddl(self._topic, numbers, reader_of(self._topic.options).ddl_to))
            self._stall_detector.leave(idle)
            parts = ", ".join(self._topic.where(p) for p in idle)
            self._listener.note(f"not read while nothing is on it: {parts}")

    def _join(self, news: News) -> None:
        """Read topics that have come into being, and partitions that are written now, before what came with
        this round is taken.
        """
        if not news.fetched:
            return
        known = list(self._flow.next_offsets())
        read = self._topic.names_of(known)
        fresh = [p for p in news.partitions if self._topic.place(p)[0] not in read]
        added = added_partitions(self._topic, news.unread, self._offsets.written)
        self._fresh |= set(added)
        fresh += added
        check_there(self._topic, [*known, *fresh], self._offsets.written)
        if fresh:
            check_joining(self._topic, self._offsets.first(fresh), str(self._address))
            self._stall_detector.join(fresh)
            ddl_to = reader_of(self._topic.options).ddl_to
            self._ids = {**news.ids, **self._ids}
            numbers = [*known, *fresh]
            if isinstance(self._flow, OffsetFlow):
                self._flow.join(fresh, groups_of(self._topic, numbers, ddl_to), self._ids)
            else:
                self._flow.join(fresh, places_of_ddl(self._topic, numbers, ddl_to), self._ids)
            names = ", ".join(sorted(self._topic.names_of(p for p in fresh if p not in self._fresh)))
            parts = ", ".join(self._topic.where(p) for p in added)
            self._listener.note(f"read from now on: {parts or f'topic {names}'}")
        read |= self._topic.names_of(fresh)
        followed = [self._applier.selection.followed(part) for part in news.fetched]
        check_followed(self._topic, followed, self._settings.until, read)

    def _reached(self, partition: int, news: News) -> int:
        read = [part.next_offset for part in news.fetched if part.partition == partition]
        return max([self._flow.next_offsets()[partition], *read])

    def _set_aside(self, part: Fetched) -> None:
        """Keep messages that nobody can decode, with their bytes and where they stood."""
        name, partition = self._topic.place(part.partition)
        bad = [
            message
            for message in part.bad
            if message.reduced_ts is None and (name, partition, message.offset, -1) not in self._known_bad
        ]
        self._known_bad |= {(name, partition, message.offset, -1) for message in bad}
        where = {"topic": name, "partition": partition}
        self._quarantine.append(
            {
                "where": where | {"offset": message.offset},
                "why": message.why,
                "key": message.key,
                "value": message.value,
            }
            for message in bad
        )
        if bad and not self._reported_bad:
            self._reported_bad = True
            self._listener.warn(
                Undecodable(
                    "a message cannot be decoded and is set aside; the rest goes on",
                    where=f"{self._topic.where(part.partition)}, offset {bad[0].offset}",
                    why=bad[0].why,
                    fix=f"its bytes, and those of any further one, are in {self._bad_file}",
                )
            )

    def _tell_what_is_inexact(self) -> None:
        """Say what newly differs from the source, each kind once; `progress` counts it."""
        stats = self._applier.stats
        if stats.bad_rows and not self._reported_bad_row:
            self._reported_bad_row = True
            self._listener.warn(
                Undecodable(
                    "a row holds an enum or set element that its table does not have, and is set aside",
                    where=f"topic {self._topic.name}",
                    why="the target keeps what it held under that key before, if anything",
                    fix=f"the row and its place, and those of any further one, are in {self._bad_file}",
                )
            )
        fresh = [name for name, notes in stats.guessed.items() if self._reported_guesses.get(name) != notes]
        for name in fresh[:GUESSES_SHOWN]:
            known = self._reported_guesses.get(name, ())
            notes = [note for note in stats.guessed[name] if note not in known]
            self._listener.note(f"table {name} is guessed from its rows: {'; '.join(notes)}")
        if len(fresh) > GUESSES_SHOWN:
            self._listener.note(f"and {len(fresh) - GUESSES_SHOWN} more tables are guessed from their rows")
        self._reported_guesses |= {name: stats.guessed[name] for name in fresh}

    def _due(self) -> bool:
        now, flow, settings = time.monotonic(), self._flow, self._settings
        if settings.mode is Mode.ROW and self._committer.age(now) > settings.align_s:
            flow.meet()
        if settings.until is not None and flow.watermarks.lowest >= settings.until:
            return True
        return now - self._applied_at >= settings.commit_s or flow.waiting() >= settings.commit_rows

    def _tidy(self) -> None:
        if (
            time.monotonic() - self._tidied_at >= self._settings.upkeep.every_s
            and not self._committer.unpublished
            and self._target.tidy(self._committer.position)  # False: the next piece of it after this commit
        ):
            self._tidied_at = time.monotonic()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def bounds_begun(
    begun: Position | None, topic: Topic, address: Address, until: int | None
) -> dict[int, int] | None:
    """By partition, up to where a write went that was interrupted; None when none was."""
    if begun is None:
        return None
    found = {number: part.applied for number, part in begun.over(topic.names).partitions.items()}
    check_begun(found, str(address), until)
    return found


def places_of_ddl(topic: Topic, numbers: list[int], ddl_to: DdlTo) -> tuple[tuple[int, ...], ...]:
    """The partitions on which a DDL is, by the topic it goes to: what `Limits.ddl_places` takes."""
    of_topics: dict[str, list[int]] = {}
    for number in numbers:
        of_topics.setdefault(topic.place(number)[0], []).append(number)
    if ddl_to is DdlTo.ALL:
        return tuple(tuple(group) for group in of_topics.values()) if len(of_topics) > 1 else ()
    return tuple((topic.number(name, 0),) for name in of_topics)


def groups_of(topic: Topic, numbers: list[int], ddl_to: DdlTo) -> tuple[Group, ...]:
    """The partitions of each topic, for `OffsetFlow`."""
    of_topics: dict[str, list[int]] = {}
    for number in numbers:
        of_topics.setdefault(topic.place(number)[0], []).append(number)
    first = ddl_to is DdlTo.FIRST
    return tuple(
        Group(tuple(group), topic.number(name, 0) if first else None) for name, group in of_topics.items()
    )


def topic_of(settings: Settings) -> Topic:
    """The topic of a run. In row mode it is read by offset, if its options mean that it has no watermarks.

    Raises InvalidInput as `Topic` does.
    """
    soft = settings.rules.soft_delete
    topic = Topic(settings.source, settings.time_zone, settings.pd, soft_delete=soft)
    if settings.mode is Mode.ROW and not has_marks(topic.options):
        topic = Topic(settings.source, settings.time_zone, settings.pd, by_offset=True, soft_delete=soft)
    return topic


def _no_schemas(what: str, where: str, why: str, fix: str) -> Retryable:
    """However a schema registry fails: the topic waits for it, and nothing is lost meanwhile."""
    return Retryable(what, where=where, why=why, fix=fix)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A fresh directory for staged rows; what an earlier run left is read again from Kafka.

    Its name is new each time: a task of a killed run may still be writing into the old one.
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
    """Who fetches; None when it is told to stop before there is anybody."""
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
