"""The zone of TIMESTAMP texts: given by the user, by DDL headers, or not known, which stops the consumer."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.at_delta import applier_of
from tests.consumer.memory_topic import MemoryTopic, consume
from tests.consumer.one_table import CREATED, KEY_FLAGS, Mark, OneTable
from tests.consumer.topics import messages_of
from tidegate.codec.registry import codec_options
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.snapshots import open_snapshot
from tidegate.errors import Fatal
from tidegate.workload.definitions import ColumnSpec

TABLE = OneTable.of([ColumnSpec("id", 3, 11, flag=KEY_FLAGS), ColumnSpec("at", 7, 19)])
DATES = OneTable.of([ColumnSpec("id", 3, 11, flag=KEY_FLAGS), ColumnSpec("at", 12, 19)])
TEXT = b"2026-03-01 08:30:00"
MOMENT = datetime(2026, 3, 1, 0, 30)
"""TEXT as a time of Shanghai, converted to UTC."""


def topic_of(table: OneTable, zone: str, headers: bool = True, rows: int = 2) -> MemoryTopic:
    options = codec_options({"protocol": "open-protocol", "time-zone": zone})
    events: list[Any] = [table.created(), Mark(CREATED)]
    for ts in range(rows):
        events += [table.change(200 + ts, None, (ts, TEXT)), Mark(200 + ts)]
    made = MemoryTopic(options, 1, messages_of(events, options, 1))
    if not headers:
        for message in made.partitions[0]:
            object.__setattr__(message, "headers", ())
    return made


def moments(target: Path) -> list[datetime]:
    rows = open_snapshot(target).tables["shop.items"].to_arrow().sort_by("id")
    return [moment.replace(tzinfo=None) for moment in rows["at"].to_pylist()]


def run(reported: MemoryTopic, target: Path, zone: str, until: int | None = None) -> Any:
    return consume(reported, target, until=until, applier=applier_of(target, zone, learns_zone=True))


def test_a_header_tells_the_zone_and_a_restart_remembers_it(tmp_path: Path) -> None:
    reported = topic_of(TABLE, "Asia/Shanghai")
    position = run(reported, tmp_path / "target", "", until=200)
    assert position.time_zone == "Asia/Shanghai"
    applier = applier_of(tmp_path / "target", position.time_zone, learns_zone=True)
    consume(reported, tmp_path / "target", applier=applier)
    assert moments(tmp_path / "target") == [MOMENT, MOMENT]


def test_without_header_and_zone_a_timestamp_stops_the_consumer(tmp_path: Path) -> None:
    reported = topic_of(TABLE, "Asia/Shanghai", headers=False)
    with pytest.raises(Fatal, match="time zone of the topic's TIMESTAMPs is not known") as stopped:
        run(reported, tmp_path / "target", "")
    assert "--time-zone" in stopped.value.fix
    run(reported, tmp_path / "target", "Asia/Shanghai")
    # The rows alone make the table known: TIMESTAMP all the same.
    assert moments(tmp_path / "target") == [MOMENT, MOMENT]


def test_without_timestamps_nobody_need_know_the_zone(tmp_path: Path) -> None:
    assert run(topic_of(DATES, "Asia/Shanghai", headers=False), tmp_path / "target", "").time_zone == ""
    assert moments(tmp_path / "target") == [datetime(2026, 3, 1, 8, 30)] * 2


@pytest.mark.parametrize(
    ("kept", "given", "zone"),
    [(None, "", "UTC"), (None, "Asia/Tokyo", "Asia/Tokyo"), ("", "", ""), ("Asia/Tokyo", "", "Asia/Tokyo")],
)
def test_a_restart_treats_a_zone_that_was_not_given_as_unknown(
    kept: str | None, given: str, zone: str
) -> None:
    """Not for UTC: the first TIMESTAMP may be yet to come. Only earlier releases read in UTC unasked."""
    begin = {0: PartitionPosition(0, 0, 0)}
    position = Position(1, "t", "open-protocol", "transaction", begin, time_zone=kept)
    body = json.loads(position.to_json())
    if kept is None:
        del body["time_zone"]
    assert Position.from_json(json.dumps(body)).zone_from(given) == zone


def test_another_zone_than_the_header_tells_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="read in the wrong time zone"):
        run(topic_of(TABLE, "Asia/Shanghai"), tmp_path / "target", "UTC")


@pytest.mark.parametrize(
    ("protocol", "given", "zone", "learns"),
    [
        ("open-protocol", "", "", True),
        ("open-protocol", "Asia/Tokyo", "Asia/Tokyo", True),
        ("debezium", "Asia/Tokyo", "UTC", False),
        ("simple", "", "UTC", False),
        ("simple", "Asia/Tokyo", "Asia/Tokyo", False),
    ],
)
def test_what_a_topic_says_of_its_zone(protocol: str, given: str, zone: str, learns: bool) -> None:
    options = "&enable-tidb-extension=true" if protocol == "debezium" else ""
    topic = Topic(f"kafka://a/b?protocol={protocol}{options}", given)
    assert (topic.zone, topic.learns_zone) == (zone, learns)
    kind, arguments = topic.__reduce__()
    assert kind(*arguments).given_zone == given
