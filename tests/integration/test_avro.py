"""Protocol avro through the whole product, with a real schema registry, which also goes away for a while."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.fixtures.registry import Registry
from tests.integration.cluster import PATIENCE_S, Cluster, eventually
from tests.small_tables import ID, SmallTables, number, text
from tidegate.kvclient.pd import PdClient

pytestmark = pytest.mark.integration
PASSWORD = "tell%nobody"
RULE = """
[[sink.dispatchers]]
matcher = ["shop.people"]
topic = "OWN_{schema}_{table}"
"""
"""The subjects of its schemas are named by the topic."""


@pytest.fixture
def cluster(tmp_path: Path, kafka: str, schema_registry: str) -> Iterator[Cluster]:
    secret = schema_registry.replace("://", f"://feed:{quote(PASSWORD, safe='')}@")
    options = "&enable-tidb-extension=true&avro-enable-watermark=true"
    running = Cluster(tmp_path, kafka, "avro", f"{options}&schema-registry={quote(secret, safe='')}")
    yield running
    running.stop()


def test_rows_arrive_as_they_are_though_the_registry_is_away_for_a_while(
    cluster: Cluster, registry_service: Registry, schema_registry: str
) -> None:
    cluster.start_upstream()
    cluster.start_server()
    with PdClient(cluster.pd) as pd:
        shop = SmallTables(
            pd, "shop", {"orders": [ID, number("total"), text("state")], "people": [ID, text("name")]}
        )
        settings = cluster.folder / "feed.toml"
        apart = f"{cluster.topic}_shop_people"
        settings.write_text(RULE.replace("OWN", cluster.topic))
        cluster.source = cluster.uri.replace(cluster.topic, f"{cluster.topic},{apart}", 1)
        registry_service.kill()
        try:
            cluster.create_feed("bank", "--start-ts", str(shop.made_ts), "--config", str(settings))
            shop.put("orders", {n: (n, n * 7, b"new" if n % 3 else None) for n in range(1, 50)})
            shop.put("orders", {1: (1, -6, "ä,ö".encode()), 4: (4, 1 << 30, None)})
            trouble = eventually(
                "the outage in the feed's state",
                lambda: json.dumps(cluster.feed()) if "schema registry" in json.dumps(cluster.feed()) else "",
            )
            assert "the schema registry does not answer" in trouble
        finally:
            registry_service.start()
        shop.put("people", {1: (1, b"ann"), 2: (2, b"bo")})
        shop.delete("orders", [2, 3])
        ts = shop.put("people", {2: (2, b"bob")})
        cluster.wait_checkpoint(ts)
    assert cluster.start_consumer("--until", str(ts)).wait(300) == 0
    found = cluster.compare(str(ts))
    assert found["equal"], found
    said = cluster.run("changefeed", "query", "--server", cluster.server, "-c", "bank", "--json")
    for output in (said, trouble, *(path.read_text(errors="replace") for path in logs(cluster.folder))):
        assert PASSWORD not in output
        assert quote(PASSWORD, safe="") not in output
        assert quote(quote(PASSWORD, safe=""), safe="") not in output
    shown = cluster.run("peek", cluster.source, "--from-beginning", "--json")
    kinds = {json.loads(line)["kind"] for line in shown.splitlines()}
    assert {"insert", "delete", "resolved"} <= kinds <= {"insert", "delete", "resolved", "ddl"}
    assert json.loads(cluster.run("topic", "check", cluster.source, "--json"))["holds"]
    subjects = set(httpx.get(f"{schema_registry}/subjects", timeout=PATIENCE_S).json())
    named = {f"{topic}-{what}" for topic in (cluster.topic, apart) for what in ("key", "value")}
    assert {one for one in subjects if one.startswith(cluster.topic)} == named


def logs(folder: Path) -> list[Path]:
    """Files that people are shown."""
    return [*folder.rglob("*.log"), *folder.rglob("log")]
