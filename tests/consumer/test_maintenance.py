"""Tidying keeps what snapshots promise and removes what none names."""

from __future__ import annotations

from pathlib import Path

from tests.consumer.logs import bank_topic, differences, snapshots
from tests.consumer.memory_topic import consume
from tidegate.consumer.delta.maintenance import Upkeep, tidy
from tidegate.sink.lakehouse import SNAPSHOTS, Lakehouse


def test_within_the_retention_everything_named_stays_readable(tmp_path: Path) -> None:
    topic, target = bank_topic("open-protocol", 11), tmp_path / "target"
    consume(topic, target, until=snapshots()[2].ts)
    position = consume(topic, target, until=snapshots()[3].ts)
    # The log's timestamps lie in the past of no clock here: age is measured between snapshots.
    tidy(Lakehouse(target), position, Upkeep(retention_hours=1))
    assert differences(target, snapshots()[2]) == {}
    assert differences(target, snapshots()[3]) == {}


def test_without_retention_only_the_newest_stays_and_consuming_goes_on(tmp_path: Path) -> None:
    topic, target = bank_topic("open-protocol", 11), tmp_path / "target"
    consume(topic, target, until=snapshots()[6].ts)
    position = consume(topic, target, until=snapshots()[9].ts)
    lake = Lakehouse(target)
    deleted = tidy(lake, position, Upkeep(retention_hours=0))
    assert deleted > 0
    assert set(lake.read(SNAPSHOTS)["ts"].to_pylist()) == {position.ts}
    assert differences(target, snapshots()[9]) == {}
    named = set(lake.named_versions())
    assert set(lake.slots()) == named, "tables that were dropped or renamed away are gone"
    consume(topic, target, until=snapshots()[11].ts)
    assert differences(target, snapshots()[11]) == {}
