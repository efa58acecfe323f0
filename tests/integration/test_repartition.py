"""Another number of partitions under load: upstream, capture, Spark, Kafka and the consumer, all killed.

Before the change a row is where the old number puts it, above it where the new one does; readers end equal.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.cluster import Cluster, eventually
from tests.integration.running import Namespace
from tests.integration.test_kills import newest, wrong_sums
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.tables import read_tables
from tidegate.kvclient.upstream_control import UpstreamControl
from tidegate.tidb import keys
from tidegate.tidb.memcomparable import encode_bytes

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

ACCOUNTS = 300
BY_ROW = """
[[sink.dispatchers]]
matcher = ["*.*"]
partition = "index-value"
"""


@pytest.fixture
def cluster(tmp_path: Path, kafka: str) -> Iterator[Cluster]:
    running = Cluster(tmp_path, kafka, options="&partition-num=3")
    yield running
    running.stop()


@pytest.fixture
def shared(share: Callable[..., Namespace]) -> Namespace:
    return share("bank", options="&partition-num=3")


def repartition(cluster: Cluster, partitions: int) -> None:
    """Ask for another number of partitions of the feed `bank`."""
    cluster.changefeed("repartition", "bank", "--partitions", str(partitions))


def wait_partitions(cluster: Cluster, partitions: int) -> None:
    """Until the feed delivers by the number."""

    def there() -> bool:
        own = cluster.feed()["tidegate"]
        return bool(own["partitions"] == partitions and not own["repartition"])

    eventually(f"{partitions} partitions", there)


def begin(cluster: Cluster, settings: Path) -> None:
    """A feed that spreads rows by their keys, and a consumer."""
    cluster.create_feed("bank", "--config", str(settings))
    cluster.start_consumer("--master", "workers[1]")


def finish(cluster: Cluster) -> None:
    """The workload ends; source, topic and target are compared."""
    workload = cluster.children["workload"]
    workload.ask_to_end()
    done = workload.wait_line(lambda line: line.get("event") == "done")
    cluster.wait_checkpoint(done["last_commit_ts"])
    eventually("the last commit in the tables", lambda: newest(cluster.lake) >= done["last_commit_ts"])
    outcome = cluster.compare()
    assert outcome["equal"], outcome
    cluster.stop()
    settings = str(cluster.folder / "feed.toml")
    cluster.run("topic", "check", cluster.source, "--config", settings)
    assert wrong_sums(cluster.lake, 0, done["total"]) == []


def split_tables(cluster: Cluster) -> None:
    """Rows of each table come from two regions."""
    with PdClient(cluster.pd) as pd:
        tables = [one for one in read_tables(Snapshot(pd, pd.tso())) if one.name.startswith("bank.")]
        middles = [encode_bytes(keys.int_record(table.id, ACCOUNTS // 2)) for table in tables]
        UpstreamControl(pd).split(0, middles)


def test_a_running_changefeed_goes_over_to_more_partitions_and_back(shared: Namespace) -> None:
    cluster = shared
    begin(cluster, cluster.settings(BY_ROW))
    workload = cluster.start_workload("--rate", "60", "--accounts", str(ACCOUNTS), "--ddl-every", "1200")
    ready = workload.wait_line(lambda line: line.get("event") == "ready")
    split_tables(cluster)
    cluster.wait_checkpoint(ready["last_commit_ts"])
    for partitions in (5, 2):
        repartition(cluster, partitions)
        wait_partitions(cluster, partitions)
        cluster.wait_checkpoint(cluster.tso())
    found = AdminClient({"bootstrap.servers": cluster.kafka}).list_topics(cluster.topic, timeout=30)
    assert len(found.topics[cluster.topic].partitions) == 5
    finish(cluster)


VICTIMS = {5: ("server",), 2: ("consumer", "driver"), 7: ("worker", "puller")}
"""By the number of partitions, what is killed during the change to it. Those of one change do not need each
other: the consumer only reads the topic, and the puller's rows are stored before a worker reads them."""


def test_a_change_completes_despite_kills_without_loss_or_duplicates(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(request.config.getoption("--kill-seed"))
    cluster.start_upstream("--regions", "3")
    cluster.start_server()
    settings = cluster.folder / "feed.toml"
    settings.write_text(BY_ROW)
    begin(cluster, settings)
    workload = cluster.start_workload("--rate", "60", "--accounts", str(ACCOUNTS), "--ddl-every", "900")
    ready = workload.wait_line(lambda line: line.get("event") == "ready")
    cluster.wait_checkpoint(ready["last_commit_ts"])
    for partitions, victims in VICTIMS.items():
        repartition(cluster, partitions)
        for victim in victims:
            time.sleep(chance.uniform(0.0, 0.5))
            cluster.kill(victim, signal.SIGKILL)
            if victim == "server":
                cluster.start_server()
            if victim == "consumer":
                cluster.start_consumer("--master", "workers[1]")
        wait_partitions(cluster, partitions)
        cluster.wait_checkpoint(cluster.tso())
    finish(cluster)
