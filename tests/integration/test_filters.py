"""Filters, column selectors, tables without a key, and topics by table, through the real pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.cluster import eventually
from tests.integration.running import Namespace
from tests.integration.validators import read_topic
from tests.small_tables import ID, SmallTables, number, text
from tidegate.codec.base import describe
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import PUT, Mutation, TwoPhase
from tidegate.tidb import keys, record
from tidegate.workload.definitions import ColumnSpec

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
[[sink.dispatchers]]
matcher = ["shop.orders"]
partition = "index-value"
topic = "OWN-{table}"
[[sink.dispatchers]]
matcher = ["shop.o*", "shop.late*"]
topic = "OWN.{schema}.{table}"
"""
PIECES = """
[scheduler]
enable-table-across-nodes = true
region-threshold = 1
region-count-per-span = 1
"""


@pytest.fixture
def cluster(share: Callable[..., Namespace]) -> Namespace:
    return share("shop")


def change_rules_and_spans_ahead_of_the_checkpoint(
    cluster: Namespace, pd: PdClient, shop: SmallTables
) -> None:
    """A lock holds the checkpoint while rows behind it go out. Then the rules let another table pass, whose
    rows lie behind the lock too, and all tables share a stripe, which is cut inside the table of those rows.
    """
    orders = cluster.uri.replace(cluster.topic, f"{cluster.topic}-orders", 1)

    def has_gone_out(*wanted: int) -> bool:
        items = [item for decoded in read_topic(orders).values() for item in describe(decoded)]
        return {*wanted} <= {item["new"]["id"] for item in items if item["kind"] == "insert"}

    edge = keys.record_span(shop.tables["customers"].id).start
    cut = keys.int_record(shop.tables["orders"].id, 71)
    for at in (edge, cut):
        cluster.run("upstream", "region", "split", "--key", at.hex(), "--pd", cluster.pd)
    key, value = record.encode(shop.tables["customers"], (2, b"bob", b"556"))
    held = TwoPhase(pd, pd.tso(), key, ttl_ms=600_000)
    held.prewrite([Mutation(PUT, key, value)], Backoff())
    behind = shop.put("tmp_x", {2: (2, 2), 3: (3, 3)})
    for n in (70, 71):
        shop.put("orders", {n: (n, n, b"ahead", 1)})
    eventually("rows that are not behind the lock", lambda: has_gone_out(70, 71))
    assert cluster.feed("filtered")["checkpoint_ts"] < behind
    cluster.changefeed("pause", "filtered")
    settings = cluster.folder / "wider.toml"
    wider = SETTINGS.replace('["shop.*", "!shop.tmp_*"]', '["shop.*"]').replace("OWN", cluster.topic)
    settings.write_text(wider + "[tidegate]\nids-per-stripe = 64\n" + PIECES)
    cluster.changefeed("update", "filtered", "--no-confirm", "--config", settings)
    assert cluster.feed("filtered")["config"]["tidegate"]["table_cuts"] == [cut.hex()]
    assert cluster.feed("filtered")["tidegate"]["cuts_chosen"]["why"] == "an update"
    held.commit([key], pd.tso(), Backoff())
    cluster.changefeed("resume", "filtered")
    shop.put("tmp_x", {4: (4, 4)})
    cluster.wait_checkpoint(shop.put("orders", {72: (72, 72, b"after", 1)}), "filtered")


def test_only_rows_that_pass_the_filters_reach_the_topic_of_their_rule(
    cluster: Namespace, new_topic: Callable[..., str]
) -> None:
    own = cluster.topic
    orders, late, later = f"{own}-orders", f"{own}.shop.late", f"{own}.shop.later"
    new_topic(2, orders)
    settings = cluster.folder / "feed.toml"
    settings.write_text(SETTINGS.replace("OWN", own))
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
            by_jobs=True,
        )
        cluster.create_feed("filtered", "--config", str(settings), "--start-ts", str(shop.made_ts))
        shop.put("orders", {1: (1, 5, b"new"), 2: (2, 5, b"draft"), 3: (3, 101, b"new"), 4: (4, 7, None)})
        shop.put("orders", {1: (1, 6, b"new"), 4: (4, -1, None)})
        shop.delete("orders", [1])
        shop.put("customers", {1: (1, b"ann", b"555")})
        shop.put("tmp_x", {1: (1, 1)})
        shop.put("log", {n: (n // 2, b"x") for n in range(1, 6)})
        cluster.wait_checkpoint(shop.delete("log", [2]), "filtered")

        columns = [ID, number("v")]
        made = "create table shop.late(id bigint primary key, v int)"
        shop.ddl(lambda catalog: catalog.create_table("late", made, columns, ["id"]))
        shop.put("late", {n: (n, n) for n in range(1, 100)})
        shop.put("late", {n: (n, -n) for n in range(50, 150)})
        renamed = shop.ddl(
            lambda catalog: catalog.rename_table("late", "later", "rename table shop.late to shop.later")
        )
        shop.put("later", {n: (n, 0) for n in range(1, 10)})
        extra = ColumnSpec("extra", 3, 11, default="3")
        query = "alter table shop.orders add column extra int default 3"
        shop.ddl(lambda catalog: catalog.add_column("orders", query, extra))
        ts = shop.put("orders", {n: (n, 5, b"new", 1) for n in range(10, 60)})
        cluster.wait_checkpoint(ts, "filtered")
        change_rules_and_spans_ahead_of_the_checkpoint(cluster, pd, shop)
    cluster.stop()
    topics = {topic: read_topic(cluster.uri.replace(own, topic, 1)) for topic in (own, orders, late, later)}
    found = {
        topic: [item for decoded in partitions.values() for item in describe(decoded)]
        for topic, partitions in topics.items()
    }
    everywhere = [item for items in found.values() for item in items]
    changes = [item for item in everywhere if item["kind"] in ("insert", "update", "delete")]
    rows = [row for row in changes if row["commit_ts"] <= ts]
    ahead = [row for row in changes if row["commit_ts"] > ts]

    def arrived(table: str, rows: list[Row] = rows) -> list[tuple[str, dict[str, Any]]]:
        mine = [row for row in rows if row["table"] == table]
        ordered = sorted(mine, key=lambda row: row["commit_ts"])
        return [(row["kind"], row["new"] or row["old"]) for row in ordered]

    assert [(row["id"], row["state"]) for _, row in arrived("orders", ahead)] == [
        (70, "ahead"),
        (71, "ahead"),
        (72, "after"),
    ]
    assert arrived("tmp_x", ahead) == [("insert", {"id": n, "v": n}) for n in (2, 3, 4)]
    assert arrived("customers", ahead) == [("insert", {"id": 2, "name": "bob"})]
    assert {row["table"] for row in rows} == {"orders", "customers", "log", "late", "later"}
    assert arrived("orders")[:2] == [
        ("insert", {"id": 1, "total": 5, "state": "new"}),
        ("insert", {"id": 4, "total": 7, "state": None}),
    ]
    assert arrived("orders")[2] == ("update", {"id": 1, "total": 6, "state": "new"})
    assert arrived("customers") == [("insert", {"id": 1, "name": "ann"})]
    bag = [("insert", {"a": n // 2, "b": "x"}) for n in range(1, 6)]
    assert sorted(map(str, arrived("log")[:5])) == sorted(map(str, bag))
    assert arrived("log")[5:] == [("delete", {"a": 1, "b": "x"})]

    assert {
        topic: {item["table"] for item in items if "table" in item} for topic, items in found.items()
    } == {
        own: {"customers", "log", "tmp_x"},
        orders: {"orders"},
        late: {"late", "later"},
        later: {"later"},
    }
    assert len(arrived("late")) == 199
    assert len(arrived("later")) == 9
    assert all(row["commit_ts"] > renamed for row in rows if row["table"] == "later")
    reported = {
        topic: [[ddl.query for ddl in decoded.ddls] for _, decoded in sorted(partitions.items())]
        for topic, partitions in topics.items()
    }
    assert [len(of) for of in reported.values()] == [3, 2, 3, 3]
    assert all(of == partitions[0] for partitions in reported.values() for of in partitions), (
        "in all partitions"
    )
    assert {topic: len(of[0]) for topic, of in reported.items()} == {own: 0, orders: 1, late: 2, later: 0}
    ends = {of.resolved[-1][0] for partitions in topics.values() for of in partitions.values()}
    assert len(ends) == 1, "the last Resolved is everywhere, also where no table goes any more"
    assert ends.pop() >= ts
    source = cluster.uri.replace(own, ",".join((own, later, orders, late)), 1)
    check = json.loads(cluster.run("topic", "check", source, "--config", str(settings), "--json"))
    assert (check["holds"], check["unjudged"]) == (True, {"keyless": 6})
