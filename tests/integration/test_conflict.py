"""Dispatch by conflict through the real pipeline: rows exchange unique values while a worker is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import orjson
import pytest

from tests.dispatcher.test_conflict_model import (
    PARTITIONS,
    Change,
    Mark,
    final,
    read_by_ts,
    read_to_marks,
    transactions,
)
from tests.integration.cluster import Cluster, eventually
from tests.integration.validators import read_committed
from tests.pipeline.test_conflict import (
    INFO,
    SCHEMA_ID,
    TABLE_ID,
    changes_and_marks,
    entries,
)
from tidegate.codec.base import Batch
from tidegate.codec.registry import options_of
from tidegate.config.reading import load_config
from tidegate.config.sink_uri import parse_source_uri
from tidegate.consumer.snapshots import open_snapshot
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.model.block import OP_PUT
from tidegate.tidb import keys
from tidegate.workload.definitions import db_info
from tidegate.workload.schema import bootstrap

pytestmark = pytest.mark.integration

SETTINGS = """
[[sink.dispatchers]]
matcher = ["bank.*"]
partition = "conflict"
"""


@pytest.fixture
def cluster(tmp_path: Path, kafka: str) -> Iterator[Cluster]:
    running = Cluster(tmp_path, kafka, options=f"&partition-num={PARTITIONS}")
    yield running
    running.stop()


def make_table(pd: PdClient) -> int:
    table = keys.meta_hash(b"DB:%d" % SCHEMA_ID, b"Table:%d" % TABLE_ID)
    schema = keys.meta_hash(b"DBs", b"DB:%d" % SCHEMA_ID)
    made = Transaction(pd)
    for mutation in bootstrap():
        made.put(mutation.key, mutation.value)
    made.put(schema, orjson.dumps(db_info(SCHEMA_ID, "bank")))
    made.put(table, orjson.dumps(INFO))
    return made.commit()


def commit(pd: PdClient, changes: list[Change]) -> int:
    made = Transaction(pd)
    for entry in entries(changes):
        if entry.op == OP_PUT:
            made.put(entry.key, entry.value)
        else:
            made.delete(entry.key)
    return made.commit()


def test_partition_readers_meet_no_taken_value_after_a_worker_is_killed(cluster: Cluster) -> None:
    log = [changes for changes in transactions(Random(4), 150) if changes]
    settings = cluster.folder / "feed.toml"
    settings.write_text(SETTINGS)
    cluster.start_upstream()
    cluster.start_server()
    with PdClient(cluster.pd) as pd:
        made_ts = make_table(pd)
        cluster.create_feed("swaps", "--config", str(settings), "--start-ts", str(made_ts))
        for changes in log[:75]:
            last_ts = commit(pd, changes)
        cluster.wait_checkpoint(last_ts, "swaps")
        eventually("a worker", lambda: cluster.kill("worker"))
        for changes in log[75:]:
            last_ts = commit(pd, changes)
        cluster.wait_checkpoint(last_ts, "swaps")
    printed = cluster.run("topic", "check", cluster.uri, "--config", str(settings), "--json")
    assert json.loads(printed.splitlines()[-1])["violations"] == []
    consume = ("consumer", "run", "--source", cluster.uri, "--target", f"delta://{cluster.lake}")
    cluster.run(*consume, "--mode", "row", "--until", str(last_ts), "--master", "workers[1]")
    cluster.stop()
    rows = open_snapshot(cluster.lake).tables["bank.swaps"].to_arrow().to_pylist()
    assert {row["id"]: row["u"] for row in rows} == final(log)

    uri, _ = parse_source_uri(cluster.uri)
    messages = read_committed(uri.bootstrap, cluster.topic)
    topic = changes_and_marks(
        {
            partition: Batch(
                [m.key() for m in some],
                [m.value() for m in some],
                [m.offset() for m in some],
                [m.headers() for m in some],
            )
            for partition, some in sorted(messages.items())
        },
        options_of(load_config(None, uri)),
    )
    assert sum(isinstance(one, Mark) for one in topic[0]) > 10
    for reader in (read_to_marks, read_by_ts):
        assert reader(topic, Random(1)).rows == final(log)
