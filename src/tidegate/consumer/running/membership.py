"""Which partitions a run reads: topics are created, partitions are added, some are never written to.

    joins   a topic that has appeared; a partition added to a topic that is read, once it is written
    leaves  a partition to which nothing was ever written, so that no one waits for a watermark of it

Both are checked against what the producer has announced about its partitions (`checks`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from tidegate.codec.entry import DdlTo
from tidegate.codec.registry import reader_of
from tidegate.consumer.applying.changes import sides_of
from tidegate.consumer.applying.target import Name
from tidegate.consumer.engine.flow import Flow
from tidegate.consumer.engine.offset_flow import Group, OffsetFlow
from tidegate.consumer.engine.position import Position
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.reading.offsets import Offsets
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.checks import (
    added_partitions,
    check_announced,
    check_followed,
    check_ids,
    check_joining,
    check_own_topics,
    check_partitions,
    check_there,
)
from tidegate.consumer.running.progress import Listener
from tidegate.consumer.running.rounds import News, unread_of
from tidegate.consumer.running.stall_detector import StallDetector
from tidegate.consumer.selecting.selection import Selection
from tidegate.consumer.settings import Settings
from tidegate.dispatcher.consistency import Visibility
from tidegate.model.timestamp import compose


@dataclass(slots=True)
class Membership:
    """Lets partitions join the flow and leave it; called only by the driver's loop."""

    topic: Topic
    flow: Flow | OffsetFlow
    offsets: Offsets
    stall_detector: StallDetector
    selection: Selection
    listener: Listener
    target: str
    """The target's address, for errors."""
    until: int | None
    ids: dict[str, str]
    """Kafka's id of each topic, by name."""
    added: set[int] = field(default_factory=set)
    """Partitions that were added to a topic while it was read."""
    homes: dict[Name, str] = field(default_factory=dict)
    """Table mode: the topic in which each table's rows were found."""

    def check(self, news: News) -> None:
        """Fatal when a topic was replaced, has partitions that should be read and are not, or has rows of
        another topic's table in table mode.
        """
        # docs/guarantees.md#a-snapshot-never-lacks-rows-in-silence: with every round, before the flow takes
        # anything of it.
        check_ids(self.ids, news.ids, self.target)
        if isinstance(self.flow, Flow) and self.flow.mode is Mode.TABLE:
            check_own_topics(self.homes, self.topic, news.fetched)
        if news.partitions:
            known = list(self.flow.next_offsets())
            idle = set(unread_of(self.topic, self.flow, news.partitions))
            there = [p for p in news.partitions if p not in idle]
            check_partitions(known, self.topic, there, self.target)
            check_announced(self.topic, self.added, news.fetched, self.offsets.written)

    def join(self, news: News) -> None:
        """Add new topics, and partitions that are written now, to the flow. Call it before the flow takes
        this round's messages, because their watermarks may cover rows of the new partitions.
        """
        # Nothing came, so no watermark of this round can cover rows of a new partition.
        if not news.fetched:
            return
        known = list(self.flow.next_offsets())
        read = self.topic.names_of(known)
        # All partitions of a new topic at once: which of them are written is known only from its marks.
        fresh = [p for p in news.partitions if self.topic.place(p)[0] not in read]
        added = added_partitions(self.topic, news.unread, self.offsets.written)
        self.added |= set(added)
        fresh += added
        # Before anything joins: if a partition that the producer announced is missing, the whole round is
        # read again.
        check_there(self.topic, [*known, *fresh], self.offsets.written)
        if fresh:
            check_joining(self.topic, self.offsets.first(fresh), self.target)
            self.stall_detector.join(fresh)
            ddl_to = reader_of(self.topic.options).ddl_to
            # The id that is known first stays, so that `check` notices a topic that was deleted and created
            # again.
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
        # A table that the rules leave out may move to any topic.
        followed = [self.selection.followed(part) for part in news.fetched]
        check_followed(self.topic, followed, self.until, read)

    def leave(self, flow: Flow, news: News) -> None:
        """Stop reading partitions to which nothing was ever written; they may join later like added ones."""
        fetched = {part.partition for part in news.fetched}
        # The ends count uncommitted messages too, so an open transaction keeps its partition in the flow.
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
    topic: Topic, settings: Settings, position: Position, begun: Mapping[int, int] | None, seen: Visibility
) -> Flow | OffsetFlow:
    """The flow of a run that begins at `position`. `begun`: as returned by `bounds_begun`; `seen`: what the
    target's readers see.
    """
    numbers = list(position.partitions)
    ddl_to = reader_of(topic.options).ddl_to
    if topic.clock is not None:
        groups, sides = groups_of(topic, numbers, ddl_to), partial(sides_of, clock=topic.clock)
        return OffsetFlow(position, groups, sides, begun, lambda: compose(time.time_ns() // 1_000_000))
    apart = settings.mode is Mode.TABLE and seen is not Visibility.SNAPSHOTS
    places = places_of_ddl(topic, numbers, ddl_to)
    return Flow(position, settings.mode, places, settings.until, begun, apart=apart)


def places_of_ddl(topic: Topic, numbers: list[int], ddl_to: DdlTo) -> tuple[tuple[int, ...], ...]:
    """For each topic, the partitions that carry its DDLs: `Limits.ddl_places`."""
    of_topics: dict[str, list[int]] = {}
    for number in numbers:
        of_topics.setdefault(topic.place(number)[0], []).append(number)
    if ddl_to is DdlTo.ALL:
        # One topic: the limits take all partitions for the copies of a DDL, so nothing has to be listed.
        return tuple(tuple(group) for group in of_topics.values()) if len(of_topics) > 1 else ()
    return tuple((topic.number(name, 0),) for name in of_topics)


def groups_of(topic: Topic, numbers: list[int], ddl_to: DdlTo) -> tuple[Group, ...]:
    """The partitions of each topic, as groups for `OffsetFlow`."""
    of_topics: dict[str, list[int]] = {}
    for number in numbers:
        of_topics.setdefault(topic.place(number)[0], []).append(number)
    first = ddl_to is DdlTo.FIRST
    return tuple(
        Group(tuple(group), topic.number(name, 0) if first else None) for name, group in of_topics.items()
    )
