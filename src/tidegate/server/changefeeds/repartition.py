"""Checks if a changefeed can change its topic's number of partitions while it runs: docs/repartition.md."""

from __future__ import annotations

from typing import Final

from tidegate.codec.registry import has_marks, options_of
from tidegate.config.settings import ReplicaConfig
from tidegate.control.metadata import FeedInfo
from tidegate.server.changefeeds.new_feed import Refused
from tidegate.server.owner.feed import Feed
from tidegate.sink.base import PartitionedSink

PARTITIONS_MAX: Final = 10_000
"""The most partitions that a changefeed can be given for a topic."""
REFUSED: Final = "CDC:ErrChangefeedUpdateRefused"


def check_repartition(feed: Feed, partitions: int) -> None:
    """Raises Refused if the number of partitions cannot be changed."""
    if not 0 < partitions <= PARTITIONS_MAX:
        raise _refused(
            f"{partitions} is not a number of partitions", fix=f"use a number between 1 and {PARTITIONS_MAX}"
        )
    if not isinstance(feed.record.plan.sink, PartitionedSink):
        raise _refused(
            f"the sink of changefeed {feed.id} has no partitions",
            why=f"it is '{feed.record.uri.scheme}', which has no topic",
        )
    if feed.record.life.ended:
        raise _refused(
            f"changefeed {feed.id} is {feed.record.shown_state}",
            why="the number of partitions changes between two rows of a running changefeed",
            fix=f"run `tidegate changefeed resume -c {feed.id.name}` first",
        )
    if feed.record.loading:
        raise _refused(
            f"the initial load of changefeed {feed.id} is under way",
            why="rows of a load have no order among the changes",
            fix=f"wait until it is done: `tidegate changefeed load -c {feed.id.name}` shows it",
        )
    check_layout(feed.record.config)


def check_layout(config: ReplicaConfig) -> None:
    """Raises Refused for settings with which readers could not follow a change."""
    options = options_of(config)
    if not has_marks(options):
        raise _refused(
            "the number of partitions cannot change, because the topic has no Resolved",
            why=f"readers of {config.sink.protocol} as configured cannot tell which rows precede the change",
            fix="create a changefeed with watermarks in its protocol; the sink URI's options are in the "
            "protocol's page",
        )
    topics = [rule.topic for rule in config.sink.dispatchers if rule.topic]
    if topics:
        raise _refused(
            "the number of partitions cannot change, because rules send rows to other topics",
            why=f"each topic has its own number, and a change names none: rule topic '{topics[0]}'",
            fix="create another changefeed into topics with more partitions",
        )


def check_update(info: FeedInfo, before: ReplicaConfig, after: ReplicaConfig) -> None:
    """Raises Refused for settings of a changefeed that continues at the same place, if they undo a change."""
    old, new = before.partition_num, after.partition_num
    if info.partitions and old != new:
        raise _refused(
            "partition-num cannot be changed any more",
            why=f"the changefeed was re-partitioned to {info.partitions}, and readers learn of another "
            "number from a re-partition alone",
            fix="leave partition-num as it is; `tidegate changefeed repartition` changes the number",
        )
    if info.repartition:
        check_layout(after)


def check_overwrite(info: FeedInfo) -> None:
    """Raises Refused for another checkpoint if the changefeed's number of partitions has changed."""
    if info.partitions or info.repartition:
        raise _refused(
            "the checkpoint cannot be overwritten: the changefeed was re-partitioned",
            why="rows that go out again would be on other partitions than before, and readers would not know",
            fix="create another changefeed from that ts into another topic",
        )


def _refused(what: str, *, why: str = "", fix: str = "") -> Refused:
    return Refused(REFUSED, f"[{REFUSED}]{what}", why=why, fix=fix)
