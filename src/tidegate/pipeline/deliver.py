"""The task: ranges of spans in, durable rows in Kafka out.

A task reads its segments itself, runs the stages over each block and writes rows and progress in one
Kafka transaction. A long range is committed in several transactions, each ending at a commit ts, so that
none is open longer than `TRANSACTION_S` or holds more than `TRANSACTION_BYTES` of rows; what was not
committed when a task dies is written again by the next incarnation, which reads the progress first.

State lives in the worker process, which Spark reuses: its slot and producer, the schemas, the plan.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Protocol

import pyarrow as pa

from tidegate.clock import SystemClock
from tidegate.errors import Fatal, Retryable
from tidegate.eventstore import reader
from tidegate.metrics import INTEGRITY_OUTCOMES
from tidegate.model.key_range import KeyRange
from tidegate.model.message import MessageBlock
from tidegate.model.timestamp import physical_ms
from tidegate.mounter.decode import Quarantined
from tidegate.mounter.integrity import Mismatch
from tidegate.mounter.schema_store import SchemaStore
from tidegate.pipeline import stages
from tidegate.pipeline.beats import Beats
from tidegate.pipeline.feed import FeedSpec
from tidegate.pipeline.offsets import Range
from tidegate.pipeline.schemas import SchemaReader
from tidegate.sink.kafka import SlotWriter, SpanProgress, ensure_topic
from tidegate.sink.quarantine import Quarantine

TRANSACTION_S: Final = 3.0
"""Well below the broker's transaction timeout."""
TRANSACTION_BYTES: Final = 64 << 20
REPORT: Final = (
    "span string, ts long, rows long, messages long, bytes long, quarantined long, "
    + "".join(f"{name} long, " for name in INTEGRITY_OUTCOMES)
    + "lag_ms long"
)


@dataclass(slots=True)
class Report:
    """What became of one range: the row that goes back to the driver."""

    span: str
    ts: int
    rows: int = 0
    messages: int = 0
    bytes: int = 0
    quarantined: int = 0
    matched: int = 0
    unchecked: int = 0
    excused: int = 0
    mismatched: int = 0
    lag_ms: int = 0


class Slot:
    """One of the feed's transactional ids: locked for a task, its producer kept between tasks.

    The lock file holds the name of the process that used the slot last. As long as that is us, our producer
    is still the rightful one; else another process has initialised it since, and we must do so again.
    """

    def __init__(self, spec: FeedSpec) -> None:
        self._spec = spec
        self._folder = spec.feed_dir / "slots"
        self._folder.mkdir(exist_ok=True)
        self._me = f"{spec.token[0]}.{spec.token[1]}.{spec.incarnation}.{os.getpid()}"
        self._writers: dict[int, SlotWriter] = {}

    @contextmanager
    def writer(self) -> Iterator[SlotWriter]:
        """The writer of a slot, ours until the block ends: our last one, else an unused, else a free one."""
        number, file = self._take()
        with file:
            if not self._is_mine(number):
                self._writers[number] = self._open(number)
                file.truncate(0)
                file.write(self._me)
                file.flush()
            yield self._writers[number]

    def _take(self) -> tuple[int, IO[str]]:
        for number in sorted(range(self._spec.slots), key=self._rank):
            file = self._path(number).open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            return number, file
        raise Retryable(
            f"All {self._spec.slots} slots of {self._spec.changefeed} are taken.", where=str(self._folder)
        )

    def _open(self, number: int) -> SlotWriter:
        spec = self._spec
        return SlotWriter(spec.sink_uri, spec.config, spec.transactional_id(number), spec.prove)

    def _path(self, number: int) -> Path:
        return self._folder / str(number)

    def _is_mine(self, number: int) -> bool:
        return number in self._writers and self._path(number).read_text() == self._me

    def _rank(self, number: int) -> tuple[int, int]:
        if not self._path(number).exists():
            return 1, number
        if self._is_mine(number):
            return 0, number
        used_now = self._path(number).read_text().rpartition(".")[0] == self._me.rpartition(".")[0]
        return (2 if used_now else 1), number


class Writer(Protocol):
    """Where a task's transactions go: `sink.kafka.SlotWriter`, or what the benchmarks put in its place."""

    def deliver(
        self, topic: str, blocks: Iterable[MessageBlock], progress_topic: str, progress: Mapping[str, bytes]
    ) -> None:
        """Rows and progress, durable together on return."""
        ...


class WriterSource(Protocol):
    """Lends a writer for the time of a task: `Slot`."""

    def writer(self) -> AbstractContextManager[Writer]:
        """The writer; nobody else has it until the block ends."""
        ...


class Worker:
    """Everything a worker process keeps between tasks of one incarnation."""

    def __init__(self, spec: FeedSpec, partitions: int, slot: WriterSource) -> None:
        self.spec, self.slot = spec, slot
        self.partitions = partitions
        self.plan = stages.plan(spec.config, spec.sink_uri.topic, partitions)
        self.schemas = SchemaReader(spec) if spec.config.has_tables else None
        self.keys = None if spec.config.has_tables else KeyRange.of(spec.config)
        self.quarantine = Quarantine(spec.feed_dir / "quarantine.jsonl")
        self.clock = SystemClock()
        self.beats = Beats(spec.beats_dir)
        """Beaten only for what was really done: a block made ready, something the sink acknowledged."""

    def deliver(self, ranges: list[Range]) -> list[Report]:
        """Deliver some ranges; durable on return."""
        reports = [Report(one.span, one.after) for one in ranges]
        with self.slot.writer() as writer:
            batch = Transaction(self, writer)
            for one, report in zip(ranges, reports, strict=True):
                self._deliver_range(one, report, batch)
            batch.commit()
        return reports

    def _deliver_range(self, one: Range, report: Report, batch: Transaction) -> None:
        schemas = None if self.schemas is None else self.schemas.upto(one.upto)
        blocks = reader.read(self.spec.store_dir, one.span, one.after, one.upto)
        for block, next_ts in _with_next(blocks):
            encoded = self.encode(block, schemas)
            self.set_aside(one.span, encoded)
            batch.add(encoded, report)
            if next_ts > encoded.last_ts:
                batch.progress(one.span, report, encoded.last_ts)
                if batch.is_full():
                    batch.commit()
        batch.progress(one.span, report, one.upto)

    def encode(
        self, block: pa.RecordBatch, schemas: SchemaStore | None, *, at: int | None = None
    ) -> stages.Encoded:
        """All stages over a block of entries; `schemas` is None for a feed of keys. `at` as `stages.run`."""
        if schemas is None:
            assert self.keys is not None
            encoded = stages.run_keys(block, self.keys, self.partitions)
        else:
            encoded = stages.run(block, schemas, self.plan, self.clock.now_ms(), at=at)
        self.beats.beat()
        return encoded

    def set_aside(self, span: str, encoded: stages.Encoded) -> None:
        """Keep damaged entries with their bytes, durably, before anything after them goes out.

        Raises Fatal when the feed is to stop at damage: nothing of this block has been sent then.
        """
        self.quarantine.append(_undecodable(span, one) for one in encoded.bad)
        self.quarantine.append(_mismatched(span, one) for one in encoded.damaged)
        if self.spec.config.integrity.stops:
            reasons = [one.render() for one in encoded.damaged]
            reasons += [f"{one.table}: {one.why.splitlines()[0]}" for one in encoded.bad if one.table]
            if reasons:
                raise Fatal(
                    f"[CDC:ErrCorruptedDataMutation]changefeed {self.spec.changefeed} stopped due to "
                    "corrupted data mutation received",
                    where=f"span {span}; the rows' bytes are in {self.quarantine.path.name}",
                    why=reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""),
                    fix="repair the rows upstream, or pause the changefeed and set "
                    "corruption-handle-level = 'warn' to let them pass",
                )


def _undecodable(span: str, bad: Quarantined) -> dict[str, Any]:
    where = {"span": span, "commit_ts": bad.commit_ts} | ({"table": bad.table} if bad.table else {})
    return {
        "where": where,
        "why": bad.why,
        "key": bad.key,
        "value": bad.value,
        "old_value": bad.old_value,
    }


def _mismatched(span: str, bad: Mismatch) -> dict[str, Any]:
    return {
        "where": {
            "span": span,
            "commit_ts": bad.commit_ts,
            "table": bad.table,
            "handle": bad.handle,
            "image": bad.image,
        },
        "why": bad.render(),
        "checksum": {
            "version": bad.check.version,
            "expected": bad.check.expected,
            "found": bad.check.found,
        },
        "key": bad.key,
        "value": bad.value,
        "old_value": bad.old_value,
    }


@dataclass(slots=True)
class Transaction:
    """Rows and progress that become durable together."""

    worker: Worker
    writer: Writer
    blocks: list[MessageBlock] = field(default_factory=list)
    reached: dict[str, bytes] = field(default_factory=dict)
    """Records of progress by their keys."""
    size: int = 0
    began: float = 0.0

    def add(self, encoded: stages.Encoded, report: Report) -> None:
        """Rows of one block."""
        if not self.blocks:
            self.began = time.monotonic()
        self.blocks += [b for b in encoded.messages if len(b)]
        size = sum(int(b.value_length.sum()) for b in encoded.messages)
        self.size += size
        report.rows += encoded.rows
        report.bytes += size
        report.messages += sum(len(b) for b in encoded.messages)
        report.quarantined += len(encoded.bad)
        for name in INTEGRITY_OUTCOMES:
            setattr(report, name, getattr(report, name) + getattr(encoded.tally, name))
        report.lag_ms = self.worker.clock.now_ms() - physical_ms(encoded.last_ts)

    def progress(self, span: str, report: Report, ts: int) -> None:
        """All rows of the span up to `ts` are in this transaction or an earlier one."""
        report.ts = ts
        spec = self.worker.spec
        self.note(span, SpanProgress(spec.instance, spec.token, spec.incarnation, ts).to_bytes())

    def note(self, key: str, record: bytes) -> None:
        """A record of what is in this transaction or an earlier one; a later one of the key replaces it."""
        self.reached[key] = record

    def is_full(self) -> bool:
        """Whether it is time to commit."""
        return self.size >= TRANSACTION_BYTES or time.monotonic() - self.began >= TRANSACTION_S

    def commit(self) -> None:
        """Make it durable; an empty one costs nothing."""
        if not self.reached:
            return
        spec = self.worker.spec
        self.writer.deliver(spec.sink_uri.topic, self.blocks, spec.progress_topic, self.reached)
        self.worker.beats.beat()
        self.blocks, self.reached, self.size = [], {}, 0


def _with_next(blocks: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Each block with the first commit ts of the next one; 2**64 after the last."""
    held = None
    for block in blocks:
        if held is not None:
            yield held, block.column(0)[0].as_py()
        held = block
    if held is not None:
        yield held, 1 << 64


WORKERS: dict[tuple[str, int], Worker] = {}
"""This process's worker, by spec file and incarnation; one entry, unless Spark outlives an incarnation."""


def deliver(spec_path: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`mapInArrow` function: descriptors in, one `REPORT` row a range out."""
    return run_tasks(spec_path, batches, on_kafka)


def run_tasks(
    spec_path: str, batches: Iterator[pa.RecordBatch], open_worker: Callable[[FeedSpec], Worker]
) -> Iterator[pa.RecordBatch]:
    """Deliver each batch of descriptors with this process's worker; `open_worker` makes it if need be."""
    for batch in batches:
        ranges = [Range(**row) for row in batch.to_pylist()]
        if ranges:
            reports = worker_of(spec_path, open_worker).deliver(ranges)
            yield pa.RecordBatch.from_pylist([_row(report) for report in reports], schema=REPORT_SCHEMA)


def on_kafka(spec: FeedSpec) -> Worker:
    """The worker of a feed whose sink is Kafka."""
    partitions = ensure_topic(spec.sink_uri, spec.config.sink.kafka_config)
    return Worker(spec, partitions, Slot(spec))


REPORT_SCHEMA: Final = pa.schema(
    [pa.field("span", pa.string())]
    + [pa.field(part.split()[0], pa.int64()) for part in REPORT.split(", ")[1:]]
)


def _row(report: Report) -> dict[str, Any]:
    return {name: getattr(report, name) for name in REPORT_SCHEMA.names}


def worker_of(spec_path: str, open_worker: Callable[[FeedSpec], Worker]) -> Worker:
    """This process's worker for a feed's incarnation, made if need be."""
    spec = FeedSpec.load(Path(spec_path))
    key = (spec_path, spec.incarnation)
    if key not in WORKERS:
        WORKERS.clear()
        WORKERS[key] = open_worker(spec)
    return WORKERS[key]
