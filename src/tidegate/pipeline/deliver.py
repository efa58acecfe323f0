"""The task: ranges of spans in, durable rows in Kafka out.

A task reads its segments itself, cuts them into pieces (`pieces`), runs the stages over each and hands the
messages to the broker while the next piece is encoded. Rows and progress go out in one Kafka transaction; a
long range in several, each as large as the broker takes in a few seconds. A transaction may end inside a
commit ts: the progress then says up to which position. What was not committed when a task dies is written
again by the next incarnation, which reads the progress first.

State lives in the worker process, which Spark reuses: its slot and producer, the schemas, the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from tidegate.clock import SystemClock
from tidegate.dispatcher.split import Part
from tidegate.errors import Fatal
from tidegate.eventstore import reader
from tidegate.metrics import INTEGRITY_OUTCOMES
from tidegate.model.key_range import KeyRange
from tidegate.model.message import MessageBlock
from tidegate.model.position import Place, Position
from tidegate.model.timestamp import physical_ms
from tidegate.mounter.decode import Quarantined
from tidegate.mounter.integrity import Mismatch
from tidegate.mounter.schema_store import SchemaStore
from tidegate.pipeline import stages
from tidegate.pipeline.beats import Beats
from tidegate.pipeline.feed import FeedSpec
from tidegate.pipeline.offsets import Range
from tidegate.pipeline.pieces import Cutter, slices, weight
from tidegate.pipeline.reached import Reached
from tidegate.pipeline.schemas import SchemaReader
from tidegate.pipeline.slots import Slot
from tidegate.sink.kafka import SpanProgress, ensure_topic
from tidegate.sink.kafka_slot import SlotTaken
from tidegate.sink.quarantine import Quarantine

TAKE_BACKS: Final = 5
"""How often one delivery takes its slot back without a commit in between, before it gives up."""
PIECE_BYTES: Final = 16 << 20
"""Of entries that are encoded at once, however fast the broker is: a piece takes several times as much."""
GROWTH: Final = 4.0
"""Bytes of messages that a byte of entries is taken to become before it is known."""
GROWTH_MIN: Final = 1.0
"""What becomes of entries that are filtered out says nothing about the next ones."""
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


@dataclass(slots=True)
class Stretch:
    """A range under way: what of it went into transactions, and how much of that is durable."""

    one: Range
    past: Position | None
    """Everything up to here was produced; None: nothing."""
    report: Report
    durable: tuple[Position | None, Report]
    """Both as of the last commit."""

    @classmethod
    def of(cls, one: Range, past: Position | None) -> Stretch:
        """A range of which everything up to `past` is durable."""
        report = Report(one.span, one.after)
        return cls(one, past, report, (past, replace(report)))

    def keep(self) -> None:
        """What was produced is durable."""
        self.durable = self.past, replace(self.report)

    def take_back(self) -> None:
        """What was produced since the last commit is lost."""
        self.past, self.report = self.durable[0], replace(self.durable[1])


class Writer(Protocol):
    """Where a task's transactions go: `sink.kafka_slot.SlotWriter`, or what benchmarks put in its place."""

    @property
    def is_due(self) -> bool:
        """Whether the transaction should be committed now."""
        ...

    @property
    def room(self) -> int:
        """Bytes of messages that may be produced before `is_due` is asked again."""
        ...

    def produce(self, topic: str, block: MessageBlock) -> None:
        """Rows; nothing is kept of the block. Raises SlotTaken when all since the last commit is lost."""
        ...

    def commit(self, progress_topic: str, progress: Mapping[str, bytes]) -> None:
        """Rows and progress, durable together on return. Raises as `produce`."""
        ...


class WriterSource(Protocol):
    """Lends a writer for the time of a task: `Slot`."""

    def writer(self) -> AbstractContextManager[Writer]:
        """The writer; nobody else has it until the block ends."""
        ...


class Worker:
    """Everything a worker process keeps between tasks of one incarnation."""

    def __init__(
        self, spec: FeedSpec, partitions: int, slot: WriterSource, beats: Beats | None = None
    ) -> None:
        self.spec, self.slot = spec, slot
        self.partitions = partitions
        self.plan = stages.plan(spec.config, spec.sink_uri.topic, partitions)
        self.schemas = SchemaReader(spec) if spec.config.has_tables else None
        self.keys = None if spec.config.has_tables else KeyRange.of(spec.config)
        self.quarantine = Quarantine(spec.feed_dir / "quarantine.jsonl")
        self.clock = SystemClock()
        self.beats = beats or Beats(spec.beats_dir)
        """Beaten only for what was really done: a block made ready, something the sink acknowledged."""
        self.reached = Reached(spec.reached_dir)
        self.positions = spec.positions()
        self._growth = GROWTH

    def deliver(self, ranges: list[Range]) -> list[Report]:
        """Deliver some ranges; durable on return."""
        stretches = [Stretch.of(one, self._begun(one)) for one in ranges]
        misses = 0
        while True:
            before = [one.durable for one in stretches]
            try:
                with self.slot.writer() as writer:
                    self._deliver(stretches, Transaction(self, writer))
                return [one.report for one in stretches]
            except SlotTaken:
                misses = misses + 1 if [one.durable for one in stretches] == before else 1
                if misses == TAKE_BACKS:
                    raise
                for one in stretches:
                    one.take_back()

    def _begun(self, one: Range) -> Position | None:
        """How much of the commit ts after `one.after` an earlier incarnation has delivered."""
        begun = self.positions.get(one.span)
        return begun if begun is not None and begun.commit_ts == one.after + 1 else None

    def _deliver(self, stretches: list[Stretch], batch: Transaction) -> None:
        for one in stretches:
            if one.report.ts == one.one.upto:
                continue
            for _ in self._deliver_range(one, batch):
                if batch.is_due:
                    self._commit(batch, stretches)
                    self.reached.tell({other.one.span: other.report.ts for other in stretches})
        self._commit(batch, stretches)

    def _commit(self, batch: Transaction, stretches: list[Stretch]) -> None:
        batch.commit()
        for one in stretches:
            one.keep()

    def _deliver_range(self, stretch: Stretch, batch: Transaction) -> Iterator[None]:
        """Produce what is left of a range; after each piece the transaction may be committed."""
        one, report = stretch.one, stretch.report
        schemas = None if self.schemas is None else self.schemas.upto(one.upto)
        splits = self.schemas is not None and self.plan.split_updates
        cutter = Cutter(partial(self._read, one), lambda: self._budget(batch.room), splits=splits)
        for piece in cutter.run(stretch.past):
            encoded = self.encode(piece.block, schemas, part=piece.part)
            cutter.met += encoded.split
            self._note_growth(piece.block, encoded)
            if not piece.again:
                self.set_aside(one.span, encoded)
            batch.add(encoded, report, again=piece.again)
            stretch.past = piece.end
            batch.progress(report, piece.end.commit_ts - 1, piece.end)
            yield
        batch.progress(report, one.upto)

    def _read(self, one: Range, past: Place | None) -> Iterator[pa.RecordBatch]:
        after = one.after if past is None else max(one.after, past[0] - 1)
        return reader.read(self.spec.store_dir, one.span, after, one.upto, past=past)

    def _budget(self, room: int) -> int:
        """Bytes of entries that become about so many bytes of messages."""
        return min(int(room / self._growth), PIECE_BYTES)

    def _note_growth(self, block: pa.RecordBatch, encoded: stages.Encoded) -> None:
        self._growth = max(encoded.size / weight(block), GROWTH_MIN)

    def slices(self, block: pa.RecordBatch, batch: Transaction) -> Iterator[pa.RecordBatch]:
        """The rows of a block in pieces of which each may be encoded and produced at once."""
        return slices(block, lambda: self._budget(batch.room))

    def encode(
        self,
        block: pa.RecordBatch,
        schemas: SchemaStore | None,
        *,
        at: int | None = None,
        part: Part = Part.SPLIT,
    ) -> stages.Encoded:
        """All stages over entries; `schemas` is None for a feed of keys. The rest as `stages.run`."""
        if schemas is None:
            assert self.keys is not None
            encoded = stages.run_keys(block, self.keys, self.partitions)
        else:
            encoded = stages.run(block, schemas, self.plan, self.clock.now_ms(), at=at, part=part)
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


class Transaction:
    """Rows and progress that become durable together; the next one begins where it was committed."""

    def __init__(self, worker: Worker, writer: Writer) -> None:
        self._worker, self._writer = worker, writer
        self._reached: dict[str, bytes] = {}
        """Records of progress by their keys."""

    @property
    def is_due(self) -> bool:
        """Whether it is time to commit."""
        return self._writer.is_due

    @property
    def room(self) -> int:
        """Bytes of messages that may be added before `is_due` is asked again."""
        return self._writer.room

    def add(self, encoded: stages.Encoded, report: Report, *, again: bool = False) -> None:
        """Rows of one piece. `again`: only its messages count, not its entries."""
        for messages in encoded.messages:
            if len(messages):
                self._writer.produce(self._worker.spec.sink_uri.topic, messages)
        report.bytes += sum(int(b.value_length.sum()) for b in encoded.messages)
        report.messages += sum(len(b) for b in encoded.messages)
        report.lag_ms = self._worker.clock.now_ms() - physical_ms(encoded.last_ts)
        if again:
            return
        report.rows += encoded.rows
        report.quarantined += len(encoded.bad)
        for name in INTEGRITY_OUTCOMES:
            setattr(report, name, getattr(report, name) + getattr(encoded.tally, name))

    def progress(self, report: Report, ts: int, position: Position | None = None) -> None:
        """All rows of the span up to `ts`, and up to a position after it, are in this transaction or out."""
        report.ts = ts
        spec = self._worker.spec
        record = SpanProgress(spec.instance, spec.token, spec.incarnation, ts, position)
        self.note(report.span, record.to_bytes())

    def note(self, key: str, record: bytes) -> None:
        """A record of what is in this transaction or an earlier one; a later one of the key replaces it."""
        self._reached[key] = record

    def commit(self) -> None:
        """Make it durable; an empty one costs nothing."""
        if not self._reached:
            return
        self._writer.commit(self._worker.spec.progress_topic, self._reached)
        self._worker.beats.beat()
        self._reached = {}


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
    beats = Beats(spec.beats_dir)
    return Worker(spec, partitions, Slot(spec, beats.beat), beats)


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
