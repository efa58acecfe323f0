"""A topic in memory and a consumer over it: real decoder, flow and writer; no broker, no Spark."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from pathlib import Path

from tidegate.codec.base import Batch, CodecOptions
from tidegate.codec.decode import decoder
from tidegate.codec.entry import DdlTo
from tidegate.codec.registry import codec_of
from tidegate.consumer.apply import Applier
from tidegate.consumer.commit import Committer
from tidegate.consumer.flow import Flow
from tidegate.consumer.position import PartitionPosition, Position
from tidegate.consumer.source import Fetched, stage
from tidegate.consumer.watermark import Mode
from tidegate.model.message import Message


class MemoryTopic:
    """Messages per partition; an offset is a position in the list."""

    def __init__(
        self, options: CodecOptions, partitions: int, messages: Iterable[tuple[int, Message]]
    ) -> None:
        self.options = options
        self.partitions: list[list[Message]] = [[] for _ in range(partitions)]
        for partition, message in messages:
            self.partitions[partition].append(message)

    def fetch(self, partition: int, start: int, size: int, staging: Path, number: int) -> Fetched:
        """The next `size` messages of a partition, decoded and staged."""
        found = self.partitions[partition][start : start + size]
        batch = Batch(
            [m.key for m in found],
            [m.value for m in found],
            range(start, start + len(found)),
            [list(m.headers) for m in found],
        )
        decoded = decoder(self.options).decode(batch)
        staging.mkdir(parents=True, exist_ok=True)
        return Fetched(
            partition,
            start + len(found),
            len(found),
            tuple(stage(decoded, partition, staging / f"{number}.arrow")),
            tuple(decoded.resolved),
            tuple(decoded.ddls),
            tuple(decoded.bad),
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
    """Run a consumer over the topic from the target's own position to the topic's end."""
    codec = codec_of(topic.options)
    writer = applier or Applier(target, trust_inserts=not codec.lacks_old(topic.options))
    position = writer.recover()
    if position is None:
        begin = {p: PartitionPosition(0, 0, 0) for p in range(len(topic.partitions))}
        position = Position(0, "memory", topic.options.protocol, mode.value, begin)
    first = codec.ddl_to is DdlTo.FIRST
    flow = Flow(position, mode, 0 if first else None, until)
    committer = Committer(flow, writer, position, rows, idle_s=0)
    numbers = count()
    while True:
        wanted = {p: at for p, at in flow.wanted().items() if at < len(topic.partitions[p])}
        if not wanted or (until is not None and committer.position.ts >= until):
            break
        # Partitions advance unevenly, as they do on a broker.
        fetched = [
            topic.fetch(p, at, size * (p + 1), target.parent / "staging", next(numbers))
            for p, at in wanted.items()
        ]
        flow.take(fetched)
        while committer.commit(0.0):
            pass
    writer.close()
    return committer.position
