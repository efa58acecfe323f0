"""Each process is stopped under load and never continued: the feed names it and recovers by itself.

But for Spark's JVM: the workers have their work from the driver, so that nothing hangs without it.

This is the long form, of all processes and with the default patience: `make hangs`. Otherwise a stopped
worker and a stopped JVM are in `test_application`, and a stopped driver and puller in
`tests/server/test_hangs.py`, where they cost seconds.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.processes import descendants

from tests.integration.cluster import Cluster, eventually
from tests.integration.test_kills import KEYS
from tests.integration.validators import read_topic, validate
from tests.server.test_supervisor import runs
from tidegate.codec.base import describe

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]

VICTIMS = {
    "worker": "CDC:ErrPipelineHung",
    "jvm": "",
    "driver": "CDC:ErrPipelineHung",
    "puller": "CDC:ErrPullerHung",
}
"""The process that is stopped, and the code of the warning; empty: nothing needs it while all is well."""


@pytest.fixture
def cluster(tmp_path: Path, kafka: str) -> Iterator[Cluster]:
    running = Cluster(tmp_path, kafka, options="&partition-num=3")
    yield running
    running.stop()


def victims(count: int, chance: random.Random) -> list[str]:
    """Each kind once, in random order, then any."""
    first = list(VICTIMS)
    chance.shuffle(first)
    return first + [chance.choice(first) for _ in range(count - len(first))]


def pids(cluster: Cluster, role: str) -> list[int]:
    """The processes of a role; of a pipeline's workers all, since which one has work is Spark's choice."""
    below = descendants(cluster.children["server"].pid)
    match role:
        case "jvm":
            return [pid for pid, line in below if "org.apache.spark.deploy.SparkSubmit" in line]
        case "worker":
            daemons = [pid for pid, line in below if line.split()[1:3] == ["-m", "tidegate.pipeline.daemon"]]
            return daemons[1:]
    return cluster.pids(role)


def stop_for_good(cluster: Cluster, role: str) -> list[int]:
    """SIGSTOP, and the processes that got it."""
    found: list[int] = eventually(f"a {role}", lambda: pids(cluster, role))
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    return found


def recovers(cluster: Cluster, code: str, stopped: list[int], name: str = "bank") -> None:
    """Wait until a warning of the changefeed has named a stopped process, and all of them are replaced."""

    def named() -> bool:
        feed = cluster.feed(name)
        error = feed["error"] or {"code": "", "message": ""}
        hung = (feed["state"], error["code"]) == ("warning", code)
        return hung and any(f"({pid})" in error["message"] for pid in stopped)

    eventually(f"one of {stopped} named", named)
    cluster.wait_checkpoint(cluster.tso(), name)
    # The warning ends a moment after the checkpoint moves, and must not be taken for the next one's.
    eventually("no more warning", lambda: cluster.feed(name)["state"] == "normal")
    assert not any(runs(pid) for pid in stopped)


def changes(uri: str) -> set[tuple[str, int, str, str, str]]:
    """Every row change of a topic."""
    return {
        (f"{row['schema']}.{row['table']}", row["commit_ts"], row["kind"], repr(row["new"]), repr(row["old"]))
        for decoded in read_topic(uri).values()
        for row in describe(decoded)
        if row["kind"] not in ("resolved", "ddl", "bad")
    }


def test_each_process_that_is_stopped_is_named_and_replaced(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    count, seed = (request.config.getoption(name) for name in ("--hangs", "--kill-seed"))
    if not count:
        pytest.skip("the long form: make hangs")
    cluster.start_upstream("--regions", "3")
    cluster.start_server()
    start_ts = cluster.tso()
    cluster.create_feed("bank", "--start-ts", str(start_ts))
    workload = cluster.start_workload("--rate", "100", "--accounts", "300", "--ddl-every", "4000")
    ready = workload.wait_line(lambda line: line.get("event") == "ready")
    cluster.wait_checkpoint(ready["last_commit_ts"])
    without_need: list[int] = []
    for victim in victims(count, random.Random(seed)):
        stopped = stop_for_good(cluster, victim)
        if not VICTIMS[victim]:
            without_need += stopped
            cluster.wait_checkpoint(cluster.tso())
            assert cluster.feed()["state"] == "normal"
        else:
            recovers(cluster, VICTIMS[victim], stopped)
    workload.ask_to_end()
    done = workload.wait_line(lambda line: line.get("event") == "done")
    end = cluster.tso()
    cluster.wait_checkpoint(end)
    # A feed that began when all was over, from the same start, has the same changes.
    first, cluster.uri = cluster.uri, cluster.uri.replace(cluster.topic, f"{cluster.topic}-again")
    cluster.create_feed("again", "--start-ts", str(start_ts), "--target-ts", str(end))
    eventually("the second feed's end", lambda: cluster.feed("again")["state"] == "finished")
    cluster.stop()
    eventually("their end", lambda: not any(runs(pid) for pid in without_need))
    report = validate(first, KEYS)
    assert report.faults == []
    assert report.duplicates == 0
    assert changes(first) == changes(cluster.uri)
    assert report.rows >= done["rows"] > 0
