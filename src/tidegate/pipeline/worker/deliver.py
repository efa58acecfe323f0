"""A worker's main task: reads ranges of spans, and makes their rows durable downstream.

The worker reads the segments itself, cuts the entries into pieces (`pieces`), and runs the stages over each
piece. The sink sends one piece while the next one is encoded. Rows and progress are committed in one
transaction. A long range takes several transactions, each as large as the sink accepts in a few seconds. A
transaction may end inside a commit ts; its progress then has the exact position. If a worker dies, the next
incarnation reads the progress and writes again what was not committed.

The worker process keeps its state between tasks: slot and writer, schemas, plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
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
from tidegate.pipeline.exchange.ahead import AheadOf, followers
from tidegate.pipeline.exchange.feed import DurableBefore
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import Lease, OnDurable, Report
from tidegate.pipeline.worker import stages
from tidegate.pipeline.worker.access import Access
from tidegate.pipeline.worker.buffers import BUFFERS, CELLS
from tidegate.pipeline.worker.damage import keep_damaged, keep_misencoded
from tidegate.pipeline.worker.pieces import Cutter, slices, weight
from tidegate.pipeline.worker.schemas import SchemaReader
from tidegate.pipeline.worker.slots import Slot
from tidegate.pipeline.worker.stretch import Stretch
from tidegate.pipeline.worker.transaction import ProgressRecords, SinkTransaction
from tidegate.sink.base import Description, Domain, Form, SlotTaken, Writer
from tidegate.tidb.keys import stripe_ids

TAKE_BACKS: Final = 5
"""A delivery fails when it has lost its slot this many times without a commit in between."""
PIECE_BYTES: Final = 16 << 20
"""The most bytes of entries that are encoded at once, even if the sink is faster: encoding takes several
times as much memory."""
GROWTH: Final = 4.0
"""How many bytes of messages a byte of entries becomes, as assumed before the first piece is measured."""
REPORT_S: Final = 0.5
"""The shortest time between two reports of what is durable during a piece of work."""
GROWTH_MIN: Final = 1.0
"""The least value of the measured growth: if a filter discards most rows of a piece, it may keep the next
ones.
"""


class WriterSource(Protocol):
    """Lends a writer for the time of a task. `Slot` implements it."""

    lease: Lease
    """The lease of the writer's slot, from the last piece of work."""

    @property
    def granted(self) -> tuple[Span, ...]:
        """The ranges that may be written, as of the last check of the grant.

        The grant is checked when the slot is opened, and whenever it is taken back.
        """
        ...

    def writer(self) -> AbstractContextManager[Writer]:
        """Lend the writer for the time of the `with` block."""
        ...

    def close(self) -> None:
        """Close the writer."""
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
        """`partitions`: the number of partitions of a topic, as in `Sink.partitions`. `sink`: the sink's
        description; by default that of the sink in the spec.
        """
        spec = access.spec
        self.access, self.spec, self.slot = access, spec, slot
        sink = sink or spec.sink.describe()
        self._merges = sink.domain is not Domain.ROW
        self._pieces = sink.pieces and not self._merges
        """Whether a transaction may end inside a commit ts."""
        plan = stages.stage_context(
            spec.config, spec.sink_uri.topic, partitions, sink.form, namespace=spec.namespace
        )
        self.plan = replace(plan, taken=BUFFERS.take, cells=CELLS.take)
        self.schemas = SchemaReader(access) if spec.config.has_tables else None
        self._records = ProgressRecords(spec, self.keys_of)
        self._follows = _follows(spec.config) if spec.config.tidegate.has_stripes else None
        """Whether the feed follows a table version. None: the spans are not stripes, so all rows are
        wanted."""
        self.keys = None if spec.config.has_tables else KeyRange.of(spec.config)
        self.clock = SystemClock()
        before = access.durable() or DurableBefore()
        self.positions, self._ahead = before.positions, before.ahead
        self._ahead_follows = followers(self._ahead.rules, count(1))  # 0 is `_follows`
        self._spans: dict[str, Span] = {}
        """The keys of the spans delivered so far."""
        self._growth = GROWTH
        by_conflict = self.plan.form is Form.MESSAGES and self.plan.router.has_conflicts
        self._conflicts = Conflicts() if by_conflict else None

    def deliver(self, ranges: list[Range], on_durable: OnDurable = lambda spans: None) -> list[Report]:
        """Deliver some ranges. They are durable on return, except those that another capture has got
        meanwhile.

        `on_durable` is called with what is durable so far, at most every `REPORT_S`.
        """
        on_durable = _at_intervals(on_durable)
        groups = [ranges] if self._merges else [[one] for one in ranges]
        # Outside the loop: after a lost slot each stretch continues from its last commit.
        stretches = [Stretch.of(group, self._begun(group)) for group in groups]
        misses = 0
        while True:
            before = [one.durable for one in stretches]
            try:
                with self.slot.writer() as writer:
                    # Within the loop: opening the slot again has read the grant again.
                    ours = [one for one in stretches if self._is_granted(one)]
                    self._deliver(ours, self.transaction(writer), on_durable)
                return [report for one in stretches for report in one.reports]
            except SlotTaken:
                # A commit in between shows that the slot can be held, so only misses without one count.
                misses = misses + 1 if [one.durable for one in stretches] == before else 1
                if misses == TAKE_BACKS:
                    raise
                for one in stretches:
                    one.take_back()

    def _is_granted(self, stretch: Stretch) -> bool:
        """Whether the grant still has the stretch's ranges. A capture that takes a range fences the slots of
        its giver, so the giver must open its slot again, and reads its new grant then.
        """
        granted = self.slot.granted
        # The usual case, without a look at each range.
        if granted == self.spec.ranges:
            return True
        return all(any(held.covers(self.keys_of(one.span)) for held in granted) for one in stretch.ranges)

    def _begun(self, ranges: Sequence[Range]) -> Position | None:
        """The position up to which an earlier incarnation has delivered the commit ts after the range's
        start.
        """
        begun = self.positions.get(ranges[0].span) if self._pieces else None
        # A range begins one below the commit ts in which the last transaction ended. At any other ts the
        # position is old.
        return begun if begun is not None and begun.commit_ts == ranges[0].after + 1 else None

    def _deliver(self, stretches: list[Stretch], batch: SinkTransaction, on_durable: OnDurable) -> None:
        for one in stretches:
            if one.is_done:
                continue
            for _ in self._deliver_stretch(one, batch):
                if batch.is_due:
                    self._commit(batch, stretches)
                    on_durable({report.span: report.ts for other in stretches for report in other.reports})
        # Also without rows: progress alone must become durable, too.
        self._commit(batch, stretches)
        for one in stretches:
            # Only after the commit: rows that are lost must be looked at again.
            if one.conflicts is not None and self._conflicts is not None:
                self._conflicts.commit(one.name, one.upto, one.conflicts)

    def _commit(self, batch: SinkTransaction, stretches: list[Stretch]) -> None:
        # docs/guarantees.md#nothing-is-lost: durable first. `keep` moves what is reported, and the checkpoint
        # follows from the reports.
        batch.commit()
        for one in stretches:
            one.keep()

    def _deliver_stretch(self, stretch: Stretch, batch: SinkTransaction) -> Iterator[None]:
        """Write the rest of a stretch. At each yield the transaction may be committed."""
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
            # Transactions of this sink end between two commit ts, so progress is recorded when a piece begins
            # at a new one.
            if not self._pieces and stretch.past is not None:
                before = piece.block.column(0)[0].as_py() - 1
                if before >= stretch.past.commit_ts:  # otherwise the piece continues a commit ts
                    for report, ts in stretch.progress(before):
                        batch.progress(report, ts)
                    stretch.past = None
                    yield
            block = piece.block if schemas is None else ahead.left(piece.block, piece.part, schemas)
            if piece.part is Part.OLD_HALVES:
                # Rows that are out are not encoded, so it is not known whether they are split. Count them as
                # split: their new halves may be due.
                cutter.met += piece.block.num_rows - block.num_rows
            if block.num_rows:
                encoded = self.encode(block, schemas, part=piece.part, conflicts=stretch.conflicts)
                cutter.met += encoded.split
                self._measure_growth(block, encoded)
                # docs/guarantees.md#bad-bytes-neither-stop-a-changefeed-nor-vanish: on disk before this piece
                # or a later one is sent.
                keep_misencoded(self.access, stretch.name, encoded)
                if not piece.again:
                    keep_damaged(self.access, stretch.name, encoded)
                batch.add(encoded, stretch.reports[0], again=piece.again)
            # Before the yield: a commit there makes this piece durable, and `keep` takes `past` as its end.
            stretch.past = piece.end
            if self._pieces:
                # One below: the commit ts of the last row may continue in the next piece.
                for report, ts in stretch.progress(piece.end.commit_ts - 1):
                    batch.progress(report, ts, piece.end)
                yield
        for report, ts in stretch.progress(stretch.upto):
            batch.progress(report, ts)

    def _read(self, stretch: Stretch, past: Place | None) -> Iterator[pa.RecordBatch]:
        return self.access.read(stretch.spans(past), past, stretch.tables)

    def _wanted(self, stretch: Stretch, schemas: SchemaStore, follows: Follows) -> list[int] | None:
        """The tables whose rows must be read of these stripes. None: no other table has rows there."""
        wanted: list[int] = []
        alone = True
        for one in stretch.ranges:
            ids = stripe_ids(self.keys_of(one.span))
            found, none_else = schemas.among(ids, one.after, one.upto, follows)
            wanted += found
            alone = alone and none_else
        return None if alone else wanted

    def keys_of(self, span: str) -> Span:
        """The key range of a span."""
        found = self._spans.get(span)
        if found is None:
            found = self._spans[span] = self.access.span(span).span
        return found

    def _budget(self, room: int) -> int:
        """How many bytes of entries become about `room` bytes of messages."""
        # By the growth of the last piece, because it is not known before encoding.
        return min(int(room / self._growth), PIECE_BYTES)

    def _measure_growth(self, block: pa.RecordBatch, encoded: stages.Encoded) -> None:
        self._growth = max(encoded.size / weight(block), GROWTH_MIN)

    def transaction(self, writer: Writer) -> SinkTransaction:
        """A new transaction for a writer of the worker's slot."""
        return SinkTransaction(writer, self._records, self.clock.now_ms, self.access.beat)

    def slices(self, block: pa.RecordBatch, batch: SinkTransaction) -> Iterator[pa.RecordBatch]:
        """The rows of a block in slices, each small enough to be encoded and sent at once."""
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
        """Run all stages over entries. The messages are gone when it is called again. `schemas`: None in a
        feed of keys. Other arguments: as `stages.run`.
        """
        BUFFERS.next_piece()
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


def _at_intervals(on_durable: OnDurable) -> OnDurable:
    reported = time.monotonic()

    def report_at_intervals(spans: Mapping[str, int]) -> None:
        nonlocal reported
        if time.monotonic() - reported >= REPORT_S:
            reported = time.monotonic()
            on_durable(spans)

    return report_at_intervals


def _follows(config: ReplicaConfig) -> Follows:
    """The verdicts of the feed's rules. Each verdict is kept in the table version that it concerns."""
    rules = FeedFilter.of(config)
    return Verdicts(rules.tables, 0, force_replicate=rules.force_replicate).follows


def open_worker(access: Access) -> Worker:
    """The worker of an incarnation, with the sink of its spec. Raises Fenced if it has been replaced."""
    before = access.durable()
    if before is None:
        # Without this record, rows that earlier incarnations have delivered would be delivered again.
        raise Fenced("this incarnation of the changefeed has been replaced", where=access.spec.changefeed)
    sink = access.spec.sink

    def partitions(topic: str) -> int:
        # Prefer the recorded numbers: `sink.partitions` may open another connection, for each changefeed in
        # each worker.
        return before.topics.get(topic) or sink.partitions(topic)

    return Worker(access, partitions, Slot(access, sink), sink=sink.describe())
