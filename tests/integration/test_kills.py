"""kill -9 at random moments under load, of every process there is: nothing lost, nothing doubled, order kept.

`make kills` runs the long form: `pytest tests/integration/test_kills.py --kills 30`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import AdminClient

from tests.fixtures.kafka import Broker
from tests.integration.cluster import Cluster, eventually
from tests.integration.validators import validate
from tidegate.consumer.snapshots import open_snapshot
from tidegate.errors import TidegateError
from tidegate.sink.lakehouse.store import SNAPSHOTS
from tidegate.sink.lakehouse.tables import Lakehouse

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

VICTIMS = ("driver", "puller", "worker", "server", "consumer", "broker", "upstream")
KEYS = {"bank.accounts": ("id",), "bank.transfers": ("region", "id"), "bank.orders": ("id",)}
SETTINGS = """
[[sink.dispatchers]]
matcher = ["bank.orders"]
partition = "index-value"
topic = "OWN.{table}"
[[sink.dispatchers]]
matcher = ["bank.audit*"]
topic = "OWN.{schema}.{table}"
"""
"""Tables in other topics than the feed's own: one is made, renamed into another topic, and dropped."""
TOPICS = ("OWN", "OWN.orders", "OWN.bank.audit", "OWN.bank.audit_log")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path / "services")
    yield running
    running.stop()


@pytest.fixture
def cluster(tmp_path: Path, broker: Broker) -> Iterator[Cluster]:
    running = Cluster(tmp_path, broker.bootstrap, options="&partition-num=3")
    yield running
    running.stop()


def victims(count: int, chance: random.Random) -> list[str]:
    """Each kind once, in random order, then any; broker and upstream only once each in all."""
    first = list(VICTIMS)
    chance.shuffle(first)
    more = [chance.choice(VICTIMS[:5]) for _ in range(max(0, count - len(first)))]
    return (first + more)[:count]


def strike(cluster: Cluster, broker: Broker, victim: str) -> None:
    """Kill one process and start again what nobody else restarts."""
    if victim == "broker":
        broker.kill()
        broker.start()
        return
    if not cluster.kill(victim):
        return
    match victim:
        case "server":
            cluster.start_server()
        case "upstream":
            cluster.start_upstream()
        case "consumer":
            cluster.start_consumer()


def wrong_sums(lake: Path, since: int, total: str) -> list[tuple[int, str]]:
    """(ts, sum) of every named snapshot whose balances do not add up."""
    named = Lakehouse(lake).read(SNAPSHOTS).column("ts").to_pylist()
    wrong = []
    for ts in sorted(set(named)):
        try:
            accounts = open_snapshot(lake, int(ts)).tables["bank.accounts"].to_arrow(["balance"])
        except (TidegateError, FileNotFoundError, KeyError):
            continue
        found = str(pc.sum(accounts.column("balance")).as_py())
        if ts >= since and found != total:
            wrong.append((ts, found))
    return wrong


def newest(lake: Path) -> int:
    """The ts of the newest snapshot, 0 while there is none."""
    try:
        return open_snapshot(lake).ts
    except (TidegateError, OSError):
        return 0


def test_nothing_is_lost_doubled_or_out_of_order_after_kills_of_every_kind(
    cluster: Cluster, broker: Broker, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(request.config.getoption("--kill-seed"))
    cluster.start_upstream("--regions", "3")
    cluster.start_server()
    settings = cluster.folder / "feed.toml"
    settings.write_text(SETTINGS.replace("OWN", cluster.topic))
    topics = ",".join(TOPICS).replace("OWN", cluster.topic)
    cluster.source = cluster.uri.replace(cluster.topic, topics)
    cluster.create_feed("bank", "--config", str(settings))
    cluster.start_consumer()
    workload = cluster.start_workload("--rate", "150", "--accounts", "300", "--ddl-every", "1500")
    ready = workload.wait_line(lambda line: line.get("event") == "ready")
    cluster.wait_checkpoint(ready["last_commit_ts"])
    for victim in victims(request.config.getoption("--kills"), chance):
        time.sleep(chance.uniform(0.2, 2.5))
        strike(cluster, broker, victim)
        if chance.random() < 0.6:
            # Let it recover; otherwise the next one is killed in the midst of recovery.
            cluster.wait_checkpoint(cluster.tso())
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    renamed = TOPICS[-1].replace("OWN", cluster.topic)
    eventually("the topic of a renamed table", lambda: renamed in admin.list_topics(timeout=60).topics)
    workload.ask_to_end()
    done = workload.wait_line(lambda line: line.get("event") == "done")
    cluster.wait_checkpoint(done["last_commit_ts"])
    eventually("the last commit in the tables", lambda: newest(cluster.lake) >= done["last_commit_ts"])
    outcome = cluster.compare()
    assert outcome["equal"], outcome
    # A topic has an end only when nobody writes Resolved any more.
    cluster.stop()
    report = validate(cluster.source, KEYS)
    assert report.faults == []
    assert report.duplicates == 0
    assert wrong_sums(cluster.lake, ready["last_commit_ts"], done["total"]) == []
