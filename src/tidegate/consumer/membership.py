"""Which partitions a run reads: topics come into being, partitions are added, some are never written to.

    joins   a topic that has appeared; a partition that is added to one that is read, once it is written
    leaves  a partition that nothing was ever written to, so that no watermark is waited for there

Both are checked against what the producer has said of its partitions (`checks`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from tidegate.codec.entry import DdlTo
from tidegate.codec.registry import reader_of
from tidegate.consumer.changes import sides_of
from tidegate.consumer.checks import (
    added_partitions,
    check_announced,
    check_followed,
    check_ids,
    check_joining,
    check_partitions,
    check_there,
)
from tidegate.consumer.flow import Flow
from tidegate.consumer.offset_flow import Group, OffsetFlow
from tidegate.consumer.offsets import Offsets
from tidegate.consumer.position import Position
from tidegate.consumer.progress import Listener
from tidegate.consumer.rounds import News, unread_of
from tidegate.consumer.selection import Selection
from tidegate.consumer.settings import Settings
from tidegate.consumer.source import Topic
from tidegate.consumer.stall_detector import StallDetector
from tidegate.model.timestamp import compose


@dataclass(slots=True)
class Membership:
    """Lets partitions join the flow and leave it; called by the driver's loop alone."""

    topic: Topic
    flow: Flow | OffsetFlow
    offsets: Offsets
    stall_detector: StallDetector
    selection: Selection
    listener: Listener
    target: str
    """In words."""
    until: int | None
    ids: dict[str, str]
    """By topic, Kafka's id of the one that is read."""
    added: set[int] = field(default_factory=set)
    """Partitions that were added to a topic while it was read."""

    def check(self, news: News) -> None:
        """Fatal when a topic is another one now, or has partitions that should be read and are not."""
        check_ids(self.ids, news.ids, self.target)
        if news.partitions:
            known = list(self.flow.next_offsets())
            idle = set(unread_of(self.topic, self.flow, news.partitions))
            there = [p for p in news.partitions if p not in idle]
            check_partitions(known, self.topic, there, self.target)
            check_announced(self.topic, self.added, news.fetched, self.offsets.written)

    def join(self, news: News) -> None:
        """Read topics that have come into being, and partitions that are written now, before what came with
        this round is taken.
        """
        if not news.fetched:
            return
        known = list(self.flow.next_offsets())
        read = self.topic.names_of(known)
        fresh = [p for p in news.partitions if self.topic.place(p)[0] not in read]
        added = added_partitions(self.topic, news.unread, self.offsets.written)
        self.added |= set(added)
        fresh += added
        check_there(self.topic, [*known, *fresh], self.offsets.written)
        if fresh:
            check_joining(self.topic, self.offsets.first(fresh), self.target)
            self.stall_detector.join(fresh)
            ddl_to = reader_of(self.topic.options).ddl_to
            self.ids = {**news.ids, **self.ids}
            numbers = [*known, *fresh]
            if isinstance(self.flow, OffsetFlow):
                self.flow.join(fresh, groups_of(self.topic, numbers, ddl_to), self.ids)
            else:
                self.flow.join(fresh, places_of_ddl(self.topic, numbers, ddl_to), self.ids)
            names = ", ".join(sorted(self.topic.names_of(p for p in fresh if p not in self.added)))
            parts = ", ".join(self.topic.where(p) for p in added)
            self.listener.note(f"read from now on: {parts or f'topic {names}'}")
        read |= self.topic.names_of(fresh)
        followed = [self.selection.followed(part) for part in news.fetched]
        check_followed(self.topic, followed, self.until, read)

    def leave(self, flow: Flow, news: News) -> None:
        """Read no further those partitions that nothing was ever written to; they join as added ones do."""
        fetched = {part.partition for part in news.fetched}
        idle = [p for p in flow.asked() if news.behind.get(p) == 0 and p not in fetched]
        named = added_partitions(self.topic, dict.fromkeys(idle, 0), self.offsets.written)
        idle = [p for p in idle if p not in named]
        if idle:
            numbers = [p for p in flow.next_offsets() if p not in idle]
            flow.leave(idle, places_of_ddl(self.topic, numbers, reader_of(self.topic.options).ddl_to))
            self.stall_detector.leave(idle)
            parts = ", ".join(self.topic.where(p) for p in idle)
            self.listener.note(f"not read while nothing is on it: {parts}")


def new_flow(
    topic: Topic, settings: Settings, position: Position, begun: Mapping[int, int] | None
) -> Flow | OffsetFlow:
    """The flow of a run that begins at `position`; `begun`: as `bounds_begun` has it."""
    numbers = list(position.partitions)
    ddl_to = reader_of(topic.options).ddl_to
    if topic.clock is not None:
        groups, sides = groups_of(topic, numbers, ddl_to), partial(sides_of, clock=topic.clock)
        return OffsetFlow(position, groups, sides, begun, lambda: compose(time.time_ns() // 1_000_000))
    return Flow(position, settings.mode, places_of_ddl(topic, numbers, ddl_to), settings.until, begun)


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
