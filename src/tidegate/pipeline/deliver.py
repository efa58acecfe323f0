"""The task: ranges of spans in, durable rows downstream out.

A task reads its segments itself, cuts them into pieces (`pieces`), runs the stages over each and hands what
comes out to the sink while the next piece is encoded. Rows and progress go out in one transaction; a long
range in several, each as large as the sink takes in a few seconds. A transaction may end inside a
commit ts: the progress then says up to which position. What was not committed when a task dies is written
again by the next incarnation, which reads the progress first.

State lives in the worker process: its slot and writer, the schemas, the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Final, Protocol

import pyarrow as pa

from tidegate.clock import SystemClock
from tidegate.config.settings import ReplicaConfig
from tidegate.dispatcher.conflict import Conflicts, SpanConflicts
from tidegate.dispatcher.split import Part
from tidegate.errors import Fenced
from tidegate.filter.feed import FeedFilter
from tidegate.filter.verdicts import Verdicts
from tidegate.model.key_range import KeyRange
from tidegate.model.position import Place, Position
from tidegate.model.span import Span
from tidegate.mounter.schema_store import Follows, SchemaStore
from tidegate.pipeline import stages
from tidegate.pipeline.access import Access
from tidegate.pipeline.ahead import AheadOf, followers
from tidegate.pipeline.damage import keep_damaged, keep_misencoded
from tidegate.pipeline.feed import DurableBefore
from tidegate.pipeline.pieces import Cutter, slices, weight
from tidegate.pipeline.ranges import Range
from tidegate.pipeline.schemas import SchemaReader
from tidegate.pipeline.slots import Slot
from tidegate.pipeline.stretch import Stretch
from tidegate.pipeline.transaction import ProgressRecords, Transaction
from tidegate.pipeline.work import Lease, Report, Tell
from tidegate.sink.base import Description, Domain, Form, SlotTaken, Writer
from tidegate.tidb.keys import stripe_ids

TAKE_BACKS: Final = 5
"""How often one delivery takes its slot back without a commit in between, before it gives up."""
PIECE_BYTES: Final = 16 << 20
"""Of entries that are encoded at once, however fast the sink is: a piece takes several times as much."""
GROWTH: Final = 4.0
"""Bytes for the sink that a byte of entries is taken to become before it is known."""
TELL_S: Final = 0.5
"""Between two words of what is durable in the midst of a piece of work."""
GROWTH_MIN: Final = 1.0
"""What becomes of entries that are filtered out says nothing about the next ones."""


class WriterSource(Protocol):
    """Lends a writer for the time of a task: `Slot`."""

    lease: Lease
    """Which slot the writer is of, by the last piece of work."""

    @property
    def granted(self) -> tuple[Span, ...]:
        """What may be written, by the last proof: a writer is proved whenever its slot is taken."""
        ...

    def writer(self) -> AbstractContextManager[Writer]:
        """The writer; nobody else has it until the block ends."""
        ...

    def close(self) -> None:
        """Let go of all that is held of the sink."""
        ...


class Worker:
    """Everything a worker process keeps between tasks of one incarnation."""

    def __init__(
        self,
        access: Access,
        partitions: Callable[[str], int],
        slot: WriterSource,
        *,
        sink: Description | None = None,
    ) -> None:
        """`partitions`: of a topic, as `Sink.partitions`. `sink`: what it says of itself; by default what
        the spec's URI means.
        """
        spec = access.spec
        self.access, self.spec, self.slot = access, spec, slot
        sink = sink or spec.sink.describe()
        self._merges = sink.domain is not Domain.ROW
        self._pieces = sink.pieces and not self._merges
        """Whether a transaction may end inside a commit ts."""
        self.plan = stages.stage_context(
            spec.config, spec.sink_uri.topic, partitions, sink.form, namespace=spec.namespace
        )
        self.schemas = SchemaReader(access) if spec.config.has_tables else None
        self._records = ProgressRecords(spec, self.keys_of)
        self._follows = _follows(spec.config) if spec.config.tidegate.has_stripes else None
        """Which rows of stripes are wanted."""
        self.keys = None if spec.config.has_tables else KeyRange.of(spec.config)
        self.clock = SystemClock()
        before = access.durable() or DurableBefore()
        self.positions, self._ahead = before.positions, before.ahead
        self._ahead_follows = followers(self._ahead.rules, count(1))  # 0 is `_follows`
        self._spans: dict[str, Span] = {}
        """The keys of the spans that were delivered."""
        self._growth = GROWTH
        by_conflict = self.plan.form is Form.MESSAGES and self.plan.router.has_conflicts
        self._conflicts = Conflicts() if by_conflict else None

    def deliver(self, ranges: list[Range], tell: Tell = lambda spans: None) -> list[Report]:
        """Deliver some ranges, durable on return, but for those that this capture has lost meanwhile.

        `tell` hears what is durable before that, every `TELL_S` at most.
        """
        tell = _seldom(tell)
        groups = [ranges] if self._merges else [[one] for one in ranges]
        stretches = [Stretch.of(group, self._begun(group)) for group in groups]
        misses = 0
        while True:
            before = [one.durable for one in stretches]
            try:
                with self.slot.writer() as writer:
                    ours = [one for one in stretches if self._is_granted(one)]
                    self._deliver(ours, self.transaction(writer), tell)
                return [report for one in stretches for report in one.reports]
            except SlotTaken:
                misses = misses + 1 if [one.durable for one in stretches] == before else 1
                if misses == TAKE_BACKS:
                    raise
                for one in stretches:
                    one.take_back()

    def _is_granted(self, stretch: Stretch) -> bool:
        """Whoever takes a range fences its giver's slots; and the giver's next proof says what it lacks."""
        granted = self.slot.granted
        if granted == self.spec.ranges:
            return True
        return all(any(held.covers(self.keys_of(one.span)) for held in granted) for one in stretch.ranges)

    def _begun(self, ranges: Sequence[Range]) -> Position | None:
        """How much of the commit ts after that of a range an earlier incarnation has delivered."""
        begun = self.positions.get(ranges[0].span) if self._pieces else None
        return begun if begun is not None and begun.commit_ts == ranges[0].after + 1 else None

    def _deliver(self, stretches: list[Stretch], batch: Transaction, tell: Tell) -> None:
        for one in stretches:
            if one.is_done:
                continue
            for _ in self._deliver_stretch(one, batch):
                if batch.is_due:
                    self._commit(batch, stretches)
                    tell({reported.span: reported.ts for other in stretches for reported in other.reports})
        self._commit(batch, stretches)
        for one in stretches:
            if one.conflicts is not None and self._conflicts is not None:
                self._conflicts.commit(one.name, one.upto, one.conflicts)

    def _commit(self, batch: Transaction, stretches: list[Stretch]) -> None:
        batch.commit()
        for one in stretches:
            one.keep()

    def _deliver_stretch(self, stretch: Stretch, batch: Transaction) -> Iterator[None]:
        """Write what is left of a stretch; at each yield the transaction may be committed."""
        schemas = None if self.schemas is None else self.schemas.upto(stretch.upto)
        if schemas is not None and self._follows is not None:
            stretch.tables = self._wanted(stretch, schemas, self._follows)
        splits = self.schemas is not None and self.plan.split_updates
        ahead = AheadOf(self._ahead, [self.keys_of(one.span) for one in stretch.ranges], self._ahead_follows)
        if self._conflicts is not None:
            after = stretch.ranges[0].after
            stretch.conflicts = self._conflicts.begin(stretch.name, after, ahead.last_ts)
        cutter = Cutter(
            partial(self._read, stretch),
            lambda: self._budget(batch.room),
            splits=splits,
            apart=ahead.begun if splits else ahead.split,
        )
        for piece in cutter.run(stretch.past):
            if not self._pieces and stretch.past is not None:
                before = piece.block.column(0)[0].as_py() - 1
                if before >= stretch.past.commit_ts:  # else in the midst of a commit ts
                    for report, ts in stretch.progress(before):
                        batch.progress(report, ts)
                    stretch.past = None
                    yield
            block = piece.block if schemas is None else ahead.left(piece.block, piece.part, schemas)
            if piece.part is Part.OLD_HALVES:
                # Of those that are out nobody looks whether they are split: their new halves may be due.
                cutter.met += piece.block.num_rows - block.num_rows
            if block.num_rows:
                encoded = self.encode(block, schemas, part=piece.part, conflicts=stretch.conflicts)
                cutter.met += encoded.split
                self._note_growth(block, encoded)
                keep_misencoded(self.access, stretch.name, encoded)
                if not piece.again:
                    keep_damaged(self.access, stretch.name, encoded)
                batch.add(encoded, stretch.reports[0], again=piece.again)
            stretch.past = piece.end
            if self._pieces:
                for report, ts in stretch.progress(piece.end.commit_ts - 1):
                    batch.progress(report, ts, piece.end)
                yield
        for report, ts in stretch.progress(stretch.upto):
            batch.progress(report, ts)

    def _read(self, stretch: Stretch, past: Place | None) -> Iterator[pa.RecordBatch]:
        return self.access.read(stretch.spans(past), past, stretch.tables)

    def _wanted(self, stretch: Stretch, schemas: SchemaStore, follows: Follows) -> list[int] | None:
        """The tables of stripes whose rows are to be read; None where others have no rows there."""
        wanted: list[int] = []
        alone = True
        for one in stretch.ranges:
            ids = stripe_ids(self.keys_of(one.span))
            found, none_else = schemas.among(ids, one.after, one.upto, follows)
            wanted += found
            alone = alone and none_else
        return None if alone else wanted

    def keys_of(self, span: str) -> Span:
        """The keys of a span that was pulled."""
        found = self._spans.get(span)
        if found is None:
            found = self._spans[span] = self.access.span(span).span
        return found

    def _budget(self, room: int) -> int:
        """Bytes of entries that become about so many bytes of messages."""
        return min(int(room / self._growth), PIECE_BYTES)

    def _note_growth(self, block: pa.RecordBatch, encoded: stages.Encoded) -> None:
        self._growth = max(encoded.size / weight(block), GROWTH_MIN)

    def transaction(self, writer: Writer) -> Transaction:
        """An empty one, which goes to a writer of the worker's slot."""
        return Transaction(writer, self._records, self.clock.now_ms, self.access.beat)

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
        conflicts: SpanConflicts | None = None,
    ) -> stages.Encoded:
        """All stages over entries; `schemas` is None for a feed of keys. The rest as `stages.run`."""
        if schemas is None:
            assert self.keys is not None
            encoded = stages.run_keys(block, self.keys, self.plan)
        else:
            follows = self._follows if at is None else None
            encoded = stages.run(
                block,
                schemas,
                self.plan,
                self.clock.now_ms(),
                at=at,
                part=part,
                follows=follows,
                conflicts=conflicts,
            )
        self.access.beat()
        return encoded


def _seldom(tell: Tell) -> Tell:
    reported = time.monotonic()

    def tell_now_and_then(spans: Mapping[str, int]) -> None:
        nonlocal reported
        if time.monotonic() - reported >= TELL_S:
            reported = time.monotonic()
            tell(spans)

    return tell_now_and_then


def _follows(config: ReplicaConfig) -> Follows:
    """The verdicts of the feed's rules; each is noted in the version that it is about."""
    rules = FeedFilter.of(config)
    return Verdicts(rules.tables, 0, force_replicate=rules.force_replicate).follows


def open_worker(access: Access) -> Worker:
    """The worker of an incarnation, with its sink as the URI says."""
    before = access.durable()
    if before is None:
        # Without it rows that are out already would go out again.
        raise Fenced("This incarnation of the changefeed has been replaced.", where=access.spec.changefeed)
    sink = access.spec.sink

    def partitions(topic: str) -> int:
        # To ask the sink takes a Kafka client of its own, for each changefeed in each worker.
        return before.topics.get(topic) or sink.partitions(topic)

    return Worker(access, partitions, Slot(access, sink), sink=sink.describe())
