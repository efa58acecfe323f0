"""A changefeed whose spans and rules are changed again and again under load, and killed in between.

It is left out unless asked for: `make recuts` runs `pytest tests/integration/test_recuts.py --recuts 50`. A
change of each kind is in `test_filters.py`; thousands of changes are in `tests/pipeline/test_ahead.py`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster
from tests.integration.validators import read_topic, validate
from tidegate.codec.base import describe
from tidegate.kvclient.pd import PdClient
from tidegate.server.catalogue.schema_tracker import load_catalogue
from tidegate.tidb import keys

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(7200)]

ALWAYS = ("accounts", "transfers", "orders")
KEYS = {"bank.accounts": ("id",), "bank.transfers": ("region", "id"), "bank.orders": ("id",)}
WIDTHS = (1, 2, 8, 64, 4096)
REGIONS_TO_CUT = (0, 1, 2, 5)
"""A table of more regions is cut inside; 0: none is."""
RULES = ("['bank.*']", "['bank.*', '!bank.audit*']", "['bank.accounts', 'bank.transfers', 'bank.orders']")


@pytest.fixture
def cluster(tmp_path: Path, kafka: str) -> Iterator[Cluster]:
    running = Cluster(tmp_path, kafka, options="&partition-num=3")
    yield running
    running.stop()


def rows_of(source: str) -> Counter[Any]:
    """Changes of the tables that every rule follows."""
    items = (item for decoded in read_topic(source).values() for item in describe(decoded))
    return Counter(
        (item["table"], item["commit_ts"], item["kind"], repr(item["old"]), repr(item["new"]))
        for item in items
        if item["kind"] in ("insert", "update", "delete") and item["table"] in ALWAYS
    )


def test_the_topic_keeps_its_contract_however_often_spans_and_rules_change(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    recuts = request.config.getoption("--recuts")
    if not recuts:
        pytest.skip("the long form: make recuts")
    chance = random.Random(request.config.getoption("--kill-seed"))
    cluster.start_upstream("--regions", "3", "--region-split-mib", "1")
    cluster.start_server()
    own, start = cluster.uri, str(cluster.tso())
    cluster.create_feed("bank", "--start-ts", start)
    cluster.uri = whole = own.replace(cluster.topic, f"{cluster.topic}-whole", 1)
    cluster.create_feed("whole", "--start-ts", start)
    workload = cluster.start_workload("--rate", "150", "--accounts", "300", "--ddl-every", "1500")
    cluster.wait_checkpoint(workload.wait_line(lambda line: line.get("event") == "ready")["last_commit_ts"])
    with PdClient(cluster.pd) as pd:
        now = pd.tso()
        ids = {table.name: table.id for table in load_catalogue(pd, now).entries(now)}
    for handle in (60, 120, 180, 240):
        key = keys.int_record(ids["bank.accounts"], handle).hex()
        cluster.run("upstream", "region", "split", "--key", key, "--pd", cluster.pd)
    settings = cluster.folder / "cut.toml"
    here = ("--server", cluster.server, "-c", "bank")
    for number in range(recuts):
        time.sleep(chance.uniform(0.0, 2.0))
        if chance.random() < 0.3:
            cluster.kill(chance.choice(["driver", "worker"]))
        cluster.run("changefeed", "pause", *here)
        width, rules, regions = (chance.choice(one) for one in (WIDTHS, RULES, REGIONS_TO_CUT))
        settings.write_text(
            f"[filter]\nrules = {rules}\n[tidegate]\nids-per-stripe = {width}\n[scheduler]\n"
            f"enable-table-across-nodes = {str(bool(regions)).lower()}\n"
            f"region-threshold = {max(1, regions)}\nregion-count-per-span = {chance.randint(1, 3)}\n"
        )
        cluster.run("changefeed", "update", *here, "--no-confirm", "--config", settings)
        cluster.run("changefeed", "resume", *here)
        cuts = len(cluster.feed()["config"]["tidegate"]["table_cuts"])
        print(f"{number + 1} of {recuts}: {width} ids a stripe, {cuts} cuts inside, {rules}", flush=True)
        if chance.random() < 0.7:
            cluster.wait_checkpoint(cluster.tso())
    workload.ask_to_end()
    last = workload.wait_line(lambda line: line.get("event") == "done")["last_commit_ts"]
    for name in ("bank", "whole"):
        cluster.wait_checkpoint(last, name)
    cluster.stop()
    report = validate(own, KEYS)
    assert (report.faults, report.duplicates) == ([], 0)
    found, wanted = rows_of(own), rows_of(whole)
    assert found == wanted, f"lacks {list(wanted - found)[:3]}, has too many {list(found - wanted)[:3]}"
