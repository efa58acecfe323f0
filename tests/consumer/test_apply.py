"""The bank log through the consumer in memory: every mode and protocol, replays, and unfinished runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.consumer.logs import bank_topic, differences, snapshots
from tests.consumer.memory_topic import consume
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.snapshots import open_snapshot
from tidegate.sink.lakehouse.store import SNAPSHOTS
from tidegate.sink.lakehouse.tables import Lakehouse

TOTAL = 3_000_000


def bank_sums(target: Path) -> list[object]:
    """The bank's sum in every named snapshot that has all accounts."""
    lake = Lakehouse(target)
    rows = lake.read(SNAPSHOTS).sort_by("ts").to_pylist()
    sums = []
    for row in rows:
        if row["table_name"] == "accounts":
            accounts = lake.read(row["path"], row["version"], ["id", "balance"])
            if accounts.num_rows >= 300:
                sums.append(pc.sum(accounts["balance"]).as_py())
    return sums


@pytest.mark.parametrize(
    ("protocol", "mode"),
    [
        ("open-protocol", Mode.TRANSACTION),
        ("canal-json", Mode.ROW),
        ("ticdc-mq", Mode.TRANSACTION),
        ("debezium", Mode.TRANSACTION),
    ],
)
def test_the_bank_log_ends_as_sql_saw_it(tmp_path: Path, protocol: str, mode: Mode) -> None:
    line = snapshots()[-1]
    size = 150 if protocol == "open-protocol" else 1500
    position = consume(
        bank_topic(protocol), tmp_path / "target", mode=mode, until=line.ts, size=size, rows=900
    )
    assert position.ts == line.ts
    assert differences(tmp_path / "target", line) == {}
    sums = bank_sums(tmp_path / "target")
    assert len(sums) > 3
    assert set(sums) == {TOTAL}


def test_until_makes_exactly_that_ts_a_snapshot_and_a_later_run_resumes(tmp_path: Path) -> None:
    topic, target = bank_topic("open-protocol"), tmp_path / "target"
    for at in (1, 2, 6, 11):
        assert consume(topic, target, until=snapshots()[at].ts).ts == snapshots()[at].ts
        assert differences(target, snapshots()[at]) == {}
    for at in (1, 2, 6):
        assert differences(target, snapshots()[at]) == {}, "older snapshots stay readable"


def test_what_no_snapshot_names_is_undone(tmp_path: Path) -> None:
    topic, target = bank_topic("open-protocol", 3), tmp_path / "target"
    consume(topic, target, until=snapshots()[1].ts)
    lake = Lakehouse(target)
    table = open_snapshot(target).tables["bank.accounts"]
    rows = table.to_arrow()
    lake.append("bank/accounts", rows)
    lake.create("bank/unfinished", rows.schema)
    consume(topic, target, until=snapshots()[3].ts)
    assert differences(target, snapshots()[3]) == {}
    assert not (target / "bank" / "unfinished").exists()


def test_a_replayed_topic_changes_nothing(tmp_path: Path) -> None:
    topic, line = bank_topic("open-protocol", 2), snapshots()[2]
    doubled = type(topic)(topic.options, len(topic.partitions), ())
    for held, messages in zip(doubled.partitions.values(), topic.partitions.values(), strict=True):
        half = len(messages) // 2
        held += [*messages[: half + 30], *messages[half - 30 : half + 60], *messages[half:]]
    consume(doubled, tmp_path / "target", until=line.ts)
    assert differences(tmp_path / "target", line) == {}


def test_the_position_is_in_the_commit_of_the_snapshot(tmp_path: Path) -> None:
    consume(bank_topic("open-protocol", 0), tmp_path / "target", until=snapshots()[0].ts)
    text = Lakehouse(tmp_path / "target").snapshots.position()
    assert text is not None
    assert str(snapshots()[0].ts) in text
