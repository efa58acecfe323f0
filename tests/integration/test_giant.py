"""One transaction of gigabytes through the whole product, its worker and others killed in its midst.

`make giant`: 2 GB; `make giant MB=200`. It needs as much disk again several times. Figures are printed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.fixtures.kafka import Broker
from tests.integration.cluster import ROLES, Cluster, eventually
from tests.memory import resident
from tests.small_tables import ID, SmallTables
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.tidb import record
from tidegate.workload.definitions import ColumnSpec

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(7200)]

PARTITIONS = 3
ROW_BYTES = 4000
BATCH_ROWS = 2000
ABOVE_BASE_MAX = 400 << 20
PATIENCE_S = 3600.0
WIDE = ColumnSpec("v", 15, 16000, text=True)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path / "services")
    yield running
    running.stop()


@pytest.fixture
def cluster(tmp_path: Path, broker: Broker) -> Iterator[Cluster]:
    options = f"&enable-tidb-extension=true&partition-num={PARTITIONS}"
    running = Cluster(tmp_path, broker.bootstrap, "canal-json", options)
    yield running
    running.stop()


@pytest.fixture
def giant_megabytes(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--giant"))


class Memory(threading.Thread):
    """Watches the resident memory of each role's processes: `peaks` above the `base` of the role at first."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster, self.ends = cluster, False
        self.base = {role: self._most(role) for role in (*ROLES, "upstream")}
        self.peaks = dict.fromkeys(self.base, 0)

    def run(self) -> None:
        while not self.ends:
            for role, base in self.base.items():
                self.peaks[role] = max(self.peaks[role], self._most(role) - base)
            time.sleep(0.2)

    def _most(self, role: str) -> int:
        return max((resident(pid) for pid in self._pids(role)), default=0)

    def _pids(self, role: str) -> list[int]:
        children = self._cluster.children
        if role == "worker":
            return workers(self._cluster)
        if role in ROLES:
            return self._cluster.pids(role) if "server" in children else []
        return [children[role].pid] if role in children else []


def workers(cluster: Cluster) -> list[int]:
    """Spark's Python workers and the daemon they are forked from, but not the JVM that names it, too."""
    found = cluster.pids("worker") if "server" in cluster.children else []
    return [pid for pid in found if "java" not in os.path.realpath(f"/proc/{pid}/exe")]


def kill(cluster: Cluster, victim: str) -> None:
    """kill -9; of the workers the one that delivers, which has more in memory than an idle one."""
    if victim == "worker":
        os.kill(max(workers(cluster), key=resident), signal.SIGKILL)
    else:
        cluster.kill(victim)


def has_written(admin: AdminClient, cluster: Cluster, count: float) -> bool:
    """Whether the topic has more messages than that, of committed transactions or not."""
    asked = {TopicPartition(cluster.topic, p): OffsetSpec.latest() for p in range(PARTITIONS)}
    found = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return sum(int(answer.result(60).offset) for answer in found.values()) > count


def ids(cluster: Cluster, commit_ts: int) -> Iterator[tuple[int, int]]:
    """(partition, id) of every row of a commit that a committed reader finds, up to its watermarks."""
    settings = {"bootstrap.servers": cluster.kafka, "group.id": "all", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    left = set(range(PARTITIONS))
    consumer.assign([TopicPartition(cluster.topic, p, 0) for p in left])
    while left:
        for message in consumer.consume(1000, timeout=60.0):
            assert message.error() is None, message.error()
            body = orjson.loads(message.value())
            if body["_tidb"].get("watermarkTs", 0) >= commit_ts:
                left.discard(message.partition())
            elif body["_tidb"].get("commitTs") == commit_ts:
                assert message.partition() in left, "a row after its watermark"
                yield message.partition(), int(body["data"][0]["id"])
    consumer.close()


def write(tables: SmallTables, pd: PdClient, rows: int) -> int:
    """One transaction of so many rows, prewritten piece by piece; its commit ts."""
    table, filler = tables.tables["wide"], b"x" * ROW_BYTES
    start_ts = pd.tso()
    keys = [record.encode(table, (id, b""))[0] for id in range(rows)]
    commit = TwoPhase(pd, start_ts, keys[0], ttl_ms=7_200_000)
    for at in range(0, rows, BATCH_ROWS):
        pairs = (
            record.encode(table, (id, b"%d " % id + filler)) for id in range(at, min(at + BATCH_ROWS, rows))
        )
        commit.prewrite([Mutation(PUT, key, value) for key, value in pairs], Backoff())
    commit_ts = pd.tso()
    commit.commit(keys, commit_ts, Backoff())
    return commit_ts


def test_a_giant_transaction_goes_through_in_bounded_memory(cluster: Cluster, giant_megabytes: int) -> None:
    if not giant_megabytes:
        pytest.skip("make giant runs it")
    rows = (giant_megabytes << 20) // ROW_BYTES
    cluster.start_upstream()
    cluster.start_server()
    pd = PdClient(cluster.pd)
    tables = SmallTables(pd, "giant", {"wide": [ID, WIDE]})
    cluster.create_feed()
    cluster.wait_checkpoint(tables.put("wide", {-1: (-1, b"a row, so that workers are there")}))
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    memory = Memory(cluster)
    memory.start()
    began = time.monotonic()
    commit_ts = write(tables, pd, rows)
    at = time.monotonic()
    print(f"\n{rows} rows of {ROW_BYTES} bytes committed in {at - began:.0f} s", flush=True)
    for share, victim in ((0.1, "worker"), (0.3, "driver"), (0.5, "puller"), (0.7, "worker")):
        eventually(f"{share} of all", partial(has_written, admin, cluster, share * rows), PATIENCE_S)
        assert cluster.feed()["checkpoint_ts"] < commit_ts
        print(f"{time.monotonic() - at:.0f} s after it: {victim} killed", flush=True)
        kill(cluster, victim)
    cluster.wait_checkpoint(commit_ts, patience_s=PATIENCE_S)
    print(f"all durable {time.monotonic() - at:.0f} s after it", flush=True)
    for role, peak in memory.peaks.items():
        print(f"{role}: at first {memory.base[role] >> 20} MB, at most {peak >> 20} MB above", flush=True)
    memory.ends = True
    last = [-1] * PARTITIONS
    found = 0
    for partition, row_id in ids(cluster, commit_ts):
        assert row_id > last[partition], "a row is doubled, or out of order"
        last[partition], found = row_id, found + 1
    assert found == rows
    assert memory.peaks["worker"] <= ABOVE_BASE_MAX
