"""What one run of the consumer is given: settings, and the topics that they mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tidegate.codec.registry import has_marks
from tidegate.consumer.fetch_spark import ClusterSettings
from tidegate.consumer.rules import NO_RULES, Rules
from tidegate.consumer.source import Topic
from tidegate.consumer.targets import DatabaseSettings
from tidegate.consumer.upkeep import Upkeep
from tidegate.consumer.watermark import Mode


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


def topic_of(settings: Settings) -> Topic:
    """The topic of a run. In row mode it is read by offset, if its options mean that it has no watermarks.

    Raises InvalidInput as `Topic` does.
    """
    soft = settings.rules.soft_delete
    topic = Topic(settings.source, settings.time_zone, settings.pd, soft_delete=soft)
    if settings.mode is Mode.ROW and not has_marks(topic.options):
        topic = Topic(settings.source, settings.time_zone, settings.pd, by_offset=True, soft_delete=soft)
    return topic
