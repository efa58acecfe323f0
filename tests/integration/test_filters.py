"""Filters, column selectors and tables without a key, through the real pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster, eventually
from tests.integration.validators import read_topic
from tests.small_tables import ID, SmallTables, number, text
from tidegate.codec.base import describe
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.tidb import keys, record

pytestmark = pytest.mark.integration

Row = dict[str, Any]
SETTINGS = """
force-replicate = true
[filter]
rules = ["shop.*", "!shop.tmp_*"]
[[filter.event-filters]]
matcher = ["shop.orders"]
ignore-event = ["delete"]
ignore-insert-value-expr = "state = 'draft' or total > 100"
ignore-update-new-value-expr = "total < 0"
[[sink.column-selectors]]
matcher = ["shop.customers"]
columns = ["*", "!phone"]
"""


@pytest.fixture
def cluster(tmp_path: Path, kafka: str) -> Iterator[Cluster]:
    running = Cluster(tmp_path, kafka)
    yield running
    running.stop()


def rows_of(cluster: Cluster) -> list[Row]:
    """Every row that a committed reader finds on the topic."""
    found = [item for decoded in read_topic(cluster.uri).values() for item in describe(decoded)]
    return [item for item in found if item["kind"] in ("insert", "update", "delete")]


def change_rules_and_spans_ahead_of_the_checkpoint(cluster: Cluster, pd: PdClient, shop: SmallTables) -> None:
    """A lock holds the checkpoint while rows behind it go out. Then the rules let another table pass, whose
    rows lie behind the lock too, and all tables share a stripe.
    """
    edge = keys.record_span(shop.tables["customers"].id).start
    cluster.run("upstream", "region", "split", "--key", edge.hex(), "--pd", cluster.pd)
    key, value = record.encode(shop.tables["customers"], (2, b"bob", b"556"))
    held = TwoPhase(pd, pd.tso(), key, ttl_ms=600_000)
    held.prewrite([Mutation(PUT, key, value)], Backoff())
    behind = shop.put("tmp_x", {2: (2, 2), 3: (3, 3)})
    for n in (10, 11):
        shop.put("orders", {n: (n, n, b"ahead")})
    eventually(
        "rows behind the lock",
        lambda: {10, 11} <= {row["new"].get("id") for row in rows_of(cluster) if row["kind"] == "insert"},
    )
    assert cluster.feed("filtered")["checkpoint_ts"] < behind
    cluster.run("changefeed", "pause", "--server", cluster.server, "-c", "filtered")
    settings = cluster.folder / "wider.toml"
    wider = SETTINGS.replace('["shop.*", "!shop.tmp_*"]', '["shop.*"]')
    settings.write_text(wider + "[tidegate]\nids-per-stripe = 64\n")
    update = ("changefeed", "update", "--server", cluster.server, "-c", "filtered", "--no-confirm")
    cluster.run(*update, "--config", settings)
    held.commit([key], pd.tso(), Backoff())
    cluster.run("changefeed", "resume", "--server", cluster.server, "-c", "filtered")
    shop.put("tmp_x", {4: (4, 4)})
    cluster.wait_checkpoint(shop.put("orders", {20: (20, 20, b"after")}), "filtered")


def test_only_what_the_filters_let_pass_arrives_also_when_they_are_changed(cluster: Cluster) -> None:
    settings = cluster.folder / "feed.toml"
    settings.write_text(SETTINGS)
    cluster.start_upstream()
    cluster.start_server()
    with PdClient(cluster.pd) as pd:
        shop = SmallTables(
            pd,
            "shop",
            {
                "orders": [ID, number("total"), text("state")],
                "customers": [ID, text("name"), text("phone")],
                "log": [number("a"), text("b")],
                "tmp_x": [ID, number("v")],
            },
        )
        cluster.create_feed("filtered", "--config", str(settings), "--start-ts", str(shop.made_ts))
        shop.put("orders", {1: (1, 5, b"new"), 2: (2, 5, b"draft"), 3: (3, 101, b"new"), 4: (4, 7, None)})
        shop.put("orders", {1: (1, 6, b"new"), 4: (4, -1, None)})
        shop.delete("orders", [1])
        shop.put("customers", {1: (1, b"ann", b"555")})
        shop.put("tmp_x", {1: (1, 1)})
        shop.put("log", {n: (n // 2, b"x") for n in range(1, 6)})
        ts = shop.delete("log", [2])
        cluster.wait_checkpoint(ts, "filtered")
        change_rules_and_spans_ahead_of_the_checkpoint(cluster, pd, shop)
    cluster.stop()
    everything = rows_of(cluster)
    rows = [row for row in everything if row["commit_ts"] <= ts]
    later = [row for row in everything if row["commit_ts"] > ts]

    def arrived(table: str, rows: list[Row] = rows) -> list[tuple[str, dict[str, Any]]]:
        mine = [row for row in rows if row["table"] == table]
        ordered = sorted(mine, key=lambda row: row["commit_ts"])
        return [(row["kind"], row["new"] or row["old"]) for row in ordered]

    assert arrived("orders", later) == [
        ("insert", {"id": n, "total": n, "state": "ahead" if n < 20 else "after"}) for n in (10, 11, 20)
    ]
    assert arrived("tmp_x", later) == [("insert", {"id": n, "v": n}) for n in (2, 3, 4)]
    assert arrived("customers", later) == [("insert", {"id": 2, "name": "bob"})]
    assert {row["table"] for row in rows} == {"orders", "customers", "log"}
    assert arrived("orders")[:2] == [
        ("insert", {"id": 1, "total": 5, "state": "new"}),
        ("insert", {"id": 4, "total": 7, "state": None}),
    ]
    assert arrived("orders")[2:] == [("update", {"id": 1, "total": 6, "state": "new"})]
    assert arrived("customers") == [("insert", {"id": 1, "name": "ann"})]
    bag = [("insert", {"a": n // 2, "b": "x"}) for n in range(1, 6)]
    assert sorted(map(str, arrived("log")[:5])) == sorted(map(str, bag))
    assert arrived("log")[5:] == [("delete", {"a": 1, "b": "x"})]
