"""Captures share the key ranges of one changefeed, over a real etcd: they come, go, and are killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures.kafka import Broker
from tests.integration.cluster import eventually
from tests.integration.test_captures import KEYS, Captures
from tests.integration.test_kills import newest
from tests.integration.validators import validate

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def captures(tmp_path: Path, kafka_broker: Broker, etcd: str) -> Iterator[Captures]:
    running = Captures(tmp_path, kafka_broker.bootstrap, etcd)
    yield running
    running.stop()


def workers(captures: Captures) -> set[str]:
    """The addresses of the captures that deliver the changefeed."""
    try:
        found: dict[str, Any] = captures.feed()
    except (httpx.HTTPError, KeyError):
        return set()
    ranges = found.get("tidegate", {}).get("captures", [])
    return {one["address"] for one in ranges} if all(one["running"] for one in ranges) else set()


def test_captures_share_the_ranges_of_a_changefeed(captures: Captures) -> None:
    """A third capture joins, one that is not the owner is killed, then the owner: nothing is lost, doubled or
    out of order, and those that are left deliver everything.
    """
    captures.start_upstream("--regions", "3")
    for name in "ab":
        captures.start_capture(name)
    owner = captures.owner("ab")
    (other,) = set("ab") - {owner}
    captures.create_feed("bank")
    workload = captures.start_workload("--rate", "150", "--accounts", "300", "--ddl-every", "1500")
    ready = workload.wait_line(lambda line: line.get("event") == "ready")
    captures.start_consumer()
    captures.wait_checkpoint(ready["last_commit_ts"])
    both = {captures.addresses["a"], captures.addresses["b"]}
    eventually("both deliver", lambda: workers(captures) == both)

    captures.start_capture("c")
    eventually("all three deliver", lambda: workers(captures) == {*captures.addresses.values()})
    captures.wait_checkpoint(captures.tso())

    at = time.monotonic()
    captures.kill(other)
    captures.wait_on("a worker killed", at)
    eventually("two are left", lambda: len(workers(captures)) == 2)

    at = time.monotonic()
    captures.kill(owner)
    captures.owner("c")
    captures.wait_on("the owner killed", at)

    workload.ask_to_end()
    done = workload.wait_line(lambda line: line.get("event") == "done")
    captures.wait_checkpoint(done["last_commit_ts"])
    eventually("the end in the tables", lambda: newest(captures.lake) >= done["last_commit_ts"])
    outcome = captures.compare()
    assert outcome["equal"], outcome
    captures.stop()
    report = validate(captures.source, KEYS)
    assert report.faults == []
    assert report.duplicates == 0
