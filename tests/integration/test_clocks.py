"""The wall clock of a capture and its Spark jumps by hours while changes flow to a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.wall_clock import WallClock
from tests.integration.cluster import Cluster, eventually
from tests.integration.test_kills import KEYS
from tests.integration.validators import validate

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ACCOUNTS = 100


@pytest.fixture
def cluster(tmp_path: Path, kafka: str) -> Iterator[Cluster]:
    running = Cluster(tmp_path, kafka, options="&partition-num=3")
    yield running
    running.stop()


def test_nothing_is_lost_doubled_or_held_back_by_a_clock_that_jumps(
    cluster: Cluster, tmp_path: Path, wall_clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstreams = WallClock(tmp_path / "upstreams_clock")
    upstreams.wear(monkeypatch)
    cluster.start_upstream("--regions", "3")
    wall_clock.wear(monkeypatch)
    cluster.start_server()
    cluster.create_feed()
    upstreams.wear(monkeypatch)
    workload = cluster.start_workload("--rate", "40", "--accounts", str(ACCOUNTS), "--ddl-every", "0")
    ready = workload.wait_line(lambda line: line.get("event") == "ready")
    cluster.wait_checkpoint(ready["last_commit_ts"])
    for hours in (6, -12):
        wall_clock.jump(hours)
        cluster.wait_checkpoint(cluster.tso())
    workload.ask_to_end()
    done = workload.wait_line(lambda line: line.get("event") == "done")
    cluster.wait_checkpoint(done["last_commit_ts"])

    def normal() -> bool:
        """A warning ends a moment after the checkpoint moves."""
        feed = cluster.feed()
        return (feed["state"], feed["error"]) == ("normal", None)

    eventually("a changefeed without trouble", normal)
    # A topic has an end only when nobody writes Resolved any more.
    cluster.stop()
    report = validate(cluster.uri, KEYS)
    assert report.faults == []
    assert (report.rows, report.duplicates) == (ACCOUNTS + done["rows"], 0)
