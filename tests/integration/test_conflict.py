"""Dispatch by conflict through the real pipeline: rows exchange unique values while a worker is killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from random import Random

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
from tests.integration.cluster import eventually
from tests.integration.running import Namespace
from tests.integration.validators import read_committed
from tests.pipeline.test_conflict import INFO, changes_and_marks, entries
from tests.small_tables import SmallTables, create_table
from tidegate.codec.base import Batch
from tidegate.codec.registry import options_of
from tidegate.config.reading import load_config
from tidegate.config.sink_uri import parse_source_uri
from tidegate.consumer.snapshots import open_snapshot
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.model.block import OP_PUT
from tidegate.model.schema import TableSchema

pytestmark = pytest.mark.integration

SETTINGS = """
[[sink.dispatchers]]
matcher = ["exchange.*"]
partition = "conflict"
"""


@pytest.fixture
def cluster(share: Callable[..., Namespace]) -> Namespace:
    return share("exchange", options=f"&partition-num={PARTITIONS}")


def make_table(pd: PdClient) -> TableSchema:
    made = SmallTables(pd, "exchange", {}, by_jobs=True)
    made.ddl(partial(create_table, info=INFO))
    return made.tables["swaps"]


def commit(pd: PdClient, table: TableSchema, changes: list[Change]) -> int:
    made = Transaction(pd)
    for entry in entries(changes, table):
        if entry.op == OP_PUT:
            made.put(entry.key, entry.value)
        else:
            made.delete(entry.key)
    return made.commit()


def test_partition_readers_meet_no_taken_value_after_a_worker_is_killed(cluster: Namespace) -> None:
    log = [changes for changes in transactions(Random(4), 150) if changes]
    settings = cluster.settings(SETTINGS)
    with PdClient(cluster.pd) as pd:
        table = make_table(pd)
        cluster.create_feed("swaps", "--config", str(settings), "--start-ts", str(pd.tso()))
        for changes in log[:75]:
            last_ts = commit(pd, table, changes)
        cluster.wait_checkpoint(last_ts, "swaps")
        eventually("a worker", lambda: cluster.kill("worker"))
        for changes in log[75:]:
            last_ts = commit(pd, table, changes)
        cluster.wait_checkpoint(last_ts, "swaps")
    printed = cluster.run("topic", "check", cluster.uri, "--config", str(settings), "--json")
    assert json.loads(printed.splitlines()[-1])["violations"] == []
    consume = ("consumer", "run", "--source", cluster.uri, "--target", f"delta://{cluster.lake}")
    cluster.run(*consume, "--mode", "row", "--until", str(last_ts), "--master", "workers[1]")
    cluster.stop()
    rows = open_snapshot(cluster.lake).tables["exchange.swaps"].to_arrow().to_pylist()
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
