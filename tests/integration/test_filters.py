"""Filters, column selectors and tables without a key, through the real pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster
from tests.integration.validators import read_topic
from tests.small_tables import ID, SmallTables, number, text
from tidegate.codec.base import describe
from tidegate.kvclient.pd import PdClient

pytestmark = pytest.mark.integration

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


def test_only_what_the_filters_let_pass_arrives(cluster: Cluster) -> None:
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
    cluster.stop()
    found = [item for decoded in read_topic(cluster.uri).values() for item in describe(decoded)]
    rows = [item for item in found if item["kind"] in ("insert", "update", "delete")]

    def arrived(table: str) -> list[tuple[str, dict[str, Any]]]:
        mine = [row for row in rows if row["table"] == table]
        ordered = sorted(mine, key=lambda row: row["commit_ts"])
        return [(row["kind"], row["new"] or row["old"]) for row in ordered]

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
