"""A capture whose workers run on a Spark cluster, as a user who cannot read what the capture has.

Whichever part dies, or is stopped and wakes up when others have taken its place, the topic stays whole.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest
from tools.processes import descendants

from tests.consumer.logs import differences, snapshots
from tests.consumer.test_job import LINE, bank_messages, start
from tests.consumer.topics import publish
from tests.fixtures.spark_cluster import SparkCluster, spark_cluster
from tests.integration.cluster import PATIENCE_S, Cluster, eventually
from tests.integration.test_hangs import cluster
from tests.integration.test_kills import KEYS
from tests.integration.validators import validate
from tidegate.sink.lakehouse.tables import Lakehouse

__all__ = ["cluster", "spark_cluster"]

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]

SETTINGS = """
[tidegate]
stall-timeout = "5s"
"""
QUICK = ("zombie", "executor")
VICTIMS = ("zombie", "executor", "worker", "master")
NODES = (2, 3)


def workers(cluster: Cluster) -> int:
    """How many have connected, by what the capture says."""
    found = httpx.get(f"http://{cluster.server}/status", timeout=PATIENCE_S, verify=False).json()
    return int(found["application"]["workers"])


def strike(victim: str, cluster: Cluster, spark: SparkCluster, node: int) -> int:
    """Something happens to a node, or to the master, and is over when the changefeed has gone on. Returns how
    many zombies were woken.
    """
    name, zombies = f"worker-{node}", 0
    match victim:
        case "executor":
            for pid in spark.below(name, "CoarseGrainedExecutorBackend"):
                os.kill(pid, signal.SIGKILL)
        case "zombie":
            stopped = [pid for pid, _ in descendants(spark.processes[name].pid)]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            advance(cluster)
            zombies = sum(map(woken, stopped))
        case "worker":
            spark.kill(name)
            advance(cluster)
            spark.start_worker(node)
        case "master":
            spark.kill("master")
            advance(cluster)
            spark.start_master()
    advance(cluster)
    return zombies


def woken(pid: int) -> bool:
    """Wake a stopped process. Returns whether it is still there: Spark may have killed it."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return False
    return True


def advance(cluster: Cluster) -> None:
    cluster.wait_checkpoint(cluster.tso())


def victims(count: int, chance: random.Random) -> Sequence[str]:
    """0: those of the quick form."""
    return [VICTIMS[number % 4] for number in range(count)] if count else QUICK


def test_a_topic_is_whole_whatever_dies_of_the_cluster_that_writes_it(
    cluster: Cluster, spark_cluster: SparkCluster, request: pytest.FixtureRequest
) -> None:
    count = int(request.config.getoption("--cluster-kills"))
    chance = random.Random(request.config.getoption("--kill-seed"))
    cluster.start_upstream("--regions", "3")
    where = ("--worker-addr", "127.0.0.1:0", "--worker-python", spark_cluster.python)
    cluster.start_server("--spark-master", spark_cluster.master, *where)
    settings = cluster.folder / "feed.toml"
    settings.write_text(SETTINGS)
    cluster.create_feed("bank", "--config", str(settings))
    rate = "5000" if count else "100"
    workload = cluster.start_workload("--rate", rate, "--accounts", "300", "--ddl-every", "3000")
    cluster.wait_checkpoint(workload.wait_line(lambda line: line.get("event") == "ready")["last_commit_ts"])
    advance(cluster)
    zombies = 0
    for victim in victims(count, chance):
        eventually("a worker on each node", lambda: workers(cluster) >= len(NODES))
        zombies += strike(victim, cluster, spark_cluster, chance.choice(NODES))
    print(f"{zombies} stopped processes were woken")
    # On a slow machine Spark kills what it has missed for long, before it can wake up.
    assert zombies or count
    workload.ask_to_end()
    done = workload.wait_line(lambda line: line.get("event") == "done")
    cluster.wait_checkpoint(done["last_commit_ts"])
    cluster.stop()
    report = validate(cluster.uri, KEYS)
    assert (report.faults, report.duplicates) == ([], 0)
    assert report.rows > 1000


def test_a_consumer_reads_by_executors_that_share_no_disk_with_it(
    spark_cluster: SparkCluster, kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, line, target = new_topic(3), snapshots()[LINE], tmp_path / "target"
    source, messages = f"kafka://{kafka}/{topic}?protocol=open-protocol", bank_messages()
    half = len(messages) // 2
    publish(kafka, topic, messages[:half])
    where = ("--master", spark_cluster.master, "--worker-python", spark_cluster.python)
    process = start(source, target, *where, "--until", str(line.ts), "--commit-interval", "0.1")
    eventually("a first snapshot", lambda: Lakehouse(target).snapshots.position() is not None)
    for pid in [
        pid for node in NODES for pid in spark_cluster.below(f"worker-{node}", "CoarseGrainedExecutor")
    ]:
        os.kill(pid, signal.SIGKILL)
    publish(kafka, topic, messages[half:])
    # All that it prints is read: a slow run prints more than a pipe holds.
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert differences(target, line) == {}
