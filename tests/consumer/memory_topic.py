"""Topics in memory and a consumer over them: real decoder, flow and writer; no broker, no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from tests.consumer.at_delta import applier_of
from tidegate.codec.base import Batch, CodecOptions, Decoder
from tidegate.codec.decode import decoder
from tidegate.codec.entry import DdlTo
from tidegate.codec.registry import reader_of
from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.applying.changes import sides_of
from tidegate.consumer.applying.commit import Committer
from tidegate.consumer.applying.target import TableFailed, Target
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.flow import Flow
from tidegate.consumer.engine.offset_flow import Group, OffsetFlow
from tidegate.consumer.engine.places import number_of, place_of
from tidegate.consumer.engine.position import PartitionPosition, Position, SetAside
from tidegate.consumer.engine.row_clock import Clock, clock_of
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.reading.mark_headers import layouts, mark_headers, split_resolved
from tidegate.consumer.reading.staging import stage
from tidegate.consumer.table.soft_delete import SoftDelete
from tidegate.model.message import Message


class MemoryTopic:
    """Messages per partition, of one topic or several; an offset is a position in the list."""

    def __init__(
        self,
        options: CodecOptions,
        partitions: int | Iterable[int],
        messages: Iterable[tuple[int, Message]],
        names: tuple[str, ...] = ("memory",),
    ) -> None:
        """`partitions`: how many, or of several topics their numbers."""
        self.options, self.names = options, names
        numbers = range(partitions) if isinstance(partitions, int) else partitions
        self.partitions: dict[int, list[Message]] = {number: [] for number in numbers}
        for partition, message in messages:
            self.partitions[partition].append(message)
        self._kept: tuple[CodecOptions, Decoder] | None = None

    def decoder(self) -> Decoder:
        """One for all ranges, as a worker process has it.

        One that learns definitions is new for each range, because it may know none after a restart.
        """
        if reader_of(self.options).definitions is not None:
            return decoder(self.options)
        if self._kept is None or self._kept[0] != self.options:
            self._kept = self.options, decoder(self.options)
        return self._kept[1]

    def only(self, *names: str) -> MemoryTopic:
        """Some of the topics."""
        found = MemoryTopic(self.options, [], [], tuple(sorted(names)))
        for number, messages in self.partitions.items():
            name, partition = place_of(self.names, number)
            if name in names:
                found.partitions[number_of(found.names, name, partition)] = messages
        return found

    def fetch(
        self,
        partition: int,
        start: int,
        size: int,
        staging: Path,
        number: int,
        clock: Clock | None = None,
        soft_deletes: Sequence[SoftDelete] = (),
        *,
        whole_old: bool = False,
    ) -> Fetched:
        """The next `size` messages of a partition, decoded and staged; `clock`: to be read by offset.

        `soft_deletes`: of which tables deleted rows are kept. `whole_old`: rows before a change are.
        """
        found = self.partitions[partition][start : start + size]
        batch = Batch(
            [m.key for m in found],
            [m.value for m in found],
            range(start, start + len(found)),
            [list(m.headers) for m in found],
        )
        decoded = self.decoder().decode(batch)
        staging.mkdir(parents=True, exist_ok=True)
        resolved, aligns = split_resolved(decoded.resolved, mark_headers(batch, decoded.resolved))
        return Fetched(
            partition,
            start + len(found),
            len(found),
            tuple(
                stage(
                    *(decoded, partition, staging / f"{number}.arrow", clock, soft_deletes),
                    whole_old=whole_old,
                )
            ),
            tuple(resolved),
            tuple(decoded.ddls),
            tuple(decoded.bad),
            aligns=tuple(aligns),
            layouts=tuple(dict.fromkeys(layouts(batch, decoded).values())),
        )


def consume(
    topic: MemoryTopic,
    target: Path,
    *,
    mode: Mode = Mode.TRANSACTION,
    until: int | None = None,
    size: int = 40,
    rows: int = 300,
    applier: Applier | None = None,
) -> Position:
    """Run a consumer over the topic from the position of a Delta target to the topic's end."""
    trust = not reader_of(topic.options).lacks_old(topic.options)
    writer = applier or applier_of(target, trust_inserts=trust)
    staging = target.parent / "staging"
    position = consume_into(topic, writer, staging, mode=mode, until=until, size=size, rows=rows)
    writer.target.close()
    return position


def consume_into(
    topic: MemoryTopic,
    writer: Applier,
    staging: Path,
    *,
    mode: Mode = Mode.TRANSACTION,
    until: int | None = None,
    size: int = 40,
    rows: int = 300,
    newest: list[Position] | None = None,
) -> Position:
    """The same into any target, which stays open. `newest`: gets the newest snapshot's position if changes of
    a table cannot be applied."""
    codec, groups = reader_of(topic.options), dict[str, list[int]]()
    for number in topic.partitions:
        groups.setdefault(place_of(topic.names, number)[0], []).append(number)
    position = writer.target.recover()
    if position is None:
        begin = {p: PartitionPosition(0, 0, 0) for p in topic.partitions}
        position = Position(0, ",".join(topic.names), topic.options.protocol, mode.value, begin)
    joining = [p for name in set(topic.names) - set(position.topics) for p in groups[name]]
    position = position.over(topic.names, joining)
    first = codec.ddl_to is DdlTo.FIRST
    begun = writer.target.begun
    for kept in (position, begun):
        writer.set_aside.know(kept.set_aside if kept is not None else ())
    bounds = {p: part.applied for p, part in begun.partitions.items()} if begun is not None else None
    places = tuple(tuple(g[:1] if first else g) for g in groups.values())
    # As `new_flow` does: of these targets only databases show each step to their readers.
    apart = mode is Mode.TABLE and writer.target.replays_sql
    flow = Flow(position, mode, places, until, bounds, apart=apart)
    committer = Committer(flow, writer, position, rows, idle_s=0)
    numbers, soft, whole = count(), writer.selection.soft_deletes, writer.target.every_change
    while True:
        wanted = {p: at for p, at in flow.wanted().items() if at < len(topic.partitions[p])}
        if not wanted or (until is not None and committer.position.ts >= until):
            break
        # Partitions advance unevenly, as they do on a broker.
        fetched = [
            topic.fetch(
                p, at, size * ((p & 7) + 1), staging, next(numbers), soft_deletes=soft, whole_old=whole
            )
            for p, at in wanted.items()
        ]
        flow.take(fetched)
        try:
            while committer.commit(0.0):
                pass
        except TableFailed:
            if newest is not None:
                newest.append(committer.position)
            raise
    return committer.position


def consume_setting_aside(
    topic: MemoryTopic,
    target: Target,
    folder: Path,
    *,
    mode: Mode = Mode.TRANSACTION,
    until: int | None = None,
    size: int = 40,
    rows: int = 300,
) -> Position:
    """The same with `--set-aside`, as a job does it (`job.Lives`)."""
    entries: tuple[SetAside, ...] = ()
    for life in count():
        writer, newest = Applier(target, folder, sets_aside=True), list[Position]()
        writer.set_aside.know(entries)
        try:
            return consume_into(
                topic, writer, folder / f"staging-{life}", mode=mode, until=until, size=size, rows=rows,
                newest=newest,
            )  # fmt: skip
        except TableFailed as failed:
            writer.set_aside.check_room(failed)
            entries += target.set_aside(failed, newest[0])
    raise AssertionError


def consume_by_offset(
    topic: MemoryTopic, target: Path, *, size: int = 40, rows: int = 300, rounds: int = 1 << 30
) -> Position:
    """Run a consumer by offset from the position of a Delta target, to the topic's end or for some rounds."""
    codec = reader_of(topic.options)
    clock = clock_of(codec.losses(topic.options))
    writer = applier_of(target, trust_inserts=False, clock=clock)
    position = consume_by_offset_into(
        topic, writer, target.parent / "staging", size=size, rows=rows, rounds=rounds
    )
    writer.target.close()
    return position


def consume_by_offset_into(
    topic: MemoryTopic, writer: Applier, staging: Path, *, size: int, rows: int, rounds: int = 1 << 30
) -> Position:
    """The same into any target, which stays open."""
    codec = reader_of(topic.options)
    clock = clock_of(codec.losses(topic.options))
    position = writer.target.recover()
    if position is None:
        begin = {p: PartitionPosition(0, 0, 0) for p in topic.partitions}
        position = Position(0, topic.names[0], topic.options.protocol, "row", begin, by_offset=True)
    group = Group(tuple(topic.partitions), 0 if codec.ddl_to is DdlTo.FIRST else None)
    begun = writer.target.begun
    bounds = {p: part.applied for p, part in begun.partitions.items()} if begun is not None else None
    flow = OffsetFlow(position, [group], partial(sides_of, clock=clock), bounds)
    committer = Committer(flow, writer, position, rows, idle_s=0)
    numbers = count()
    ends = {p: len(messages) for p, messages in topic.partitions.items()}
    quiet = 0
    while quiet < 5 and rounds > 0:
        wanted = {p: at for p, at in flow.wanted().items() if at < ends[p]}
        quiet, rounds = (0 if wanted else quiet + 1), rounds - 1
        pieces = {p: size * ((p & 7) + 1) for p in wanted}
        flow.take(
            [topic.fetch(p, at, pieces[p], staging, next(numbers), clock) for p, at in wanted.items()], ends
        )
        while committer.commit(0.0):
            pass
    return committer.position
