"""The settings of one run of the consumer, and the topics that they name."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tidegate.codec.registry import has_marks
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.lakehouse.write_mode import WriteMode
from tidegate.consumer.reading.fetch_spark import ClusterSettings
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.selecting.rules import NO_RULES, Rules
from tidegate.consumer.targets import DatabaseSettings, keeps_every_change


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one run of the consumer."""

    source: str
    """kafka://host:port/topic[,topic]?protocol=.."""
    target: str | Path
    """delta:///directory, the directory, iceberg:///directory, parquet:///directory, one of these as
    delta+s3://bucket/prefix, or mysql://user@host:port/."""
    mode: Mode = Mode.TRANSACTION
    until: int | None = None
    time_zone: str = ""
    """Time zone of TIMESTAMP texts on the topic: the producer's. Empty: the zone in DDL headers; if there are
    none, a TIMESTAMP column stops the consumer. Simple messages name their zone: rows in another zone are
    quarantined (empty is UTC there). Debezium's are in UTC."""
    pd: str = ""
    """Address of upstream's PD, to read rows whose message carries only the handle key."""
    commit_s: float = 2.0
    """Seconds between two commits at least, unless `commit_rows` wait."""
    commit_rows: int = 500_000
    """About how many row changes one commit takes at most; bounds the driver's memory."""
    idle_s: float = 30.0
    """Seconds between two snapshots while the topic advances without rows."""
    align_s: float = 10.0
    """Row and table mode: seconds for which partitions may advance independently before they meet at a
    snapshot of a target of files."""
    trust_inserts: bool = True
    group: str = ""
    """A Kafka consumer group that gets the position's offsets, for tools that show lag; empty: none."""
    master: str = "local[*]"
    """A Spark master; or `workers[N]`: N processes on this machine, without Spark."""
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    """Used if the master is a Spark cluster."""
    rules: Rules = NO_RULES
    """Which tables and columns are applied, and under which names. They must stay the same for a target."""
    upkeep: Upkeep = field(default_factory=Upkeep)
    """Retention and maintenance of a Delta or Iceberg target."""
    write_mode: WriteMode | None = None
    """How a Delta or Iceberg target updates and deletes rows; None: its default."""
    set_aside: bool = False
    """Whether a table whose changes cannot be applied is set aside while the others continue."""
    database: DatabaseSettings = field(default_factory=DatabaseSettings)


def topic_of(settings: Settings) -> Topic:
    """The topics of a run. In row mode they are read by offset if their options give no watermarks.

    Raises InvalidInput like `Topic`.
    """
    make = partial(
        Topic,
        *(settings.source, settings.time_zone, settings.pd),
        soft_delete=settings.rules.soft_delete,
        whole_old=keeps_every_change(settings.target),
    )
    topic = make()
    return make(by_offset=True) if settings.mode is Mode.ROW and not has_marks(topic.options) else topic
