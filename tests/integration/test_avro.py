"""Protocol avro through the whole product, with a real schema registry, which also goes away for a while."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.fixtures.registry import Registry
from tests.integration.cluster import PATIENCE_S, eventually
from tests.integration.running import Namespace
from tests.small_tables import ID, SmallTables, number, text
from tidegate.kvclient.pd import PdClient

pytestmark = pytest.mark.integration
PASSWORD = "tell%nobody"
RULE = """
[[sink.dispatchers]]
matcher = ["store.people"]
topic = "OWN_{schema}_{table}"
"""
"""The subjects of its schemas are named by the topic."""


@pytest.fixture
def cluster(share: Callable[..., Namespace], schema_registry: str) -> Namespace:
    secret = schema_registry.replace("://", f"://feed:{quote(PASSWORD, safe='')}@")
    options = "&enable-tidb-extension=true&avro-enable-watermark=true"
    return share("store", "avro", f"{options}&schema-registry={quote(secret, safe='')}")


def test_rows_arrive_as_they_are_though_the_registry_is_away_for_a_while(
    cluster: Namespace, registry_service: Registry, schema_registry: str
) -> None:
    with PdClient(cluster.pd) as pd:
        tables = {"orders": [ID, number("total"), text("state")], "people": [ID, text("name")]}
        shop = SmallTables(pd, "store", tables, by_jobs=True)
        settings = cluster.settings(RULE.replace("OWN", cluster.topic))
        apart = f"{cluster.topic}_store_people"
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
    assert cluster.start_consumer("--until", str(ts), "--master", "workers[1]").wait(300) == 0
    found = cluster.compare(str(ts))
    assert found["equal"], found
    said = cluster.changefeed("query", "bank", "--json")
    files = [path for folder in (cluster.folder, cluster.home) for path in logs(folder)]
    for output in (said, trouble, *(path.read_text(errors="replace") for path in files)):
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
