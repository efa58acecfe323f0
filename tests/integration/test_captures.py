"""Several captures over a real etcd share a changefeed, and continue however one of them ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tools.processes import Child

from tests.fixtures.kafka import Broker
from tests.integration.cluster import Cluster, eventually, tidegate
from tests.integration.test_kills import newest
from tests.integration.validators import validate

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

KEYS = {"bank.accounts": ("id",), "bank.transfers": ("region", "id"), "bank.orders": ("id",)}
TTL_S = 6


class Captures(Cluster):
    """A cluster whose captures share an etcd."""

    def __init__(self, folder: Path, kafka: str, etcd: str) -> None:
        super().__init__(folder, kafka, options="&partition-num=3")
        self.etcd = etcd
        self.addresses: dict[str, str] = {}

    def start_capture(self, name: str) -> Child:
        """One more, with a data folder of its own; the same port after a restart."""
        command = tidegate("server", "--pd", self.pd, "--data-dir", self.folder / name, "--json")
        command += ["--etcd", self.etcd, "--session-ttl", str(TTL_S), "--spark-master", "local[2]"]
        child = self._start(name, [*command, "--addr", self.addresses.get(name, "127.0.0.1:0")])
        self.addresses[name] = child.wait_line(lambda line: "addr" in line)["addr"]
        return child

    def status(self, name: str) -> dict[str, Any]:
        """Return the capture's status; empty while it does not answer."""
        try:
            found: dict[str, Any] = httpx.get(f"http://{self.addresses[name]}/status", timeout=2).json()
        except httpx.HTTPError:
            return {}
        return found

    def feed(self, name: str = "bank") -> dict[str, Any]:
        """As the API says it; at no checkpoint while no capture can say."""
        try:
            return {"checkpoint_ts": 0} | super().feed(name)
        except httpx.HTTPError:
            return {"checkpoint_ts": 0}

    def tso(self) -> int:
        """As soon as a capture can say it."""

        def asked() -> int:
            try:
                return Cluster.tso(self)
            except (httpx.HTTPError, KeyError):
                return 0

        found: int = eventually("a timestamp", asked)
        return found

    def owner(self, among: str) -> str:
        """Who says that it is the owner, as soon as exactly one of them does; it is asked from then on."""

        def one() -> str:
            found = [name for name in among if self.status(name).get("is_owner")]
            return found[0] if len(found) == 1 else ""

        name: str = eventually(f"one owner among {among}", one)
        self.server = self.addresses[name]
        return name

    def deliver(self, names: str) -> None:
        """Wait until these captures, and no others, deliver the changefeed's ranges."""

        def addresses() -> set[str]:
            found = self.feed().get("tidegate", {}).get("captures", [])
            return {one["address"] for one in found} if all(one["running"] for one in found) else set()

        wanted = {self.addresses[name] for name in names}
        eventually(f"{names} deliver", lambda: addresses() == wanted)

    def wait_on(self, after: str, since: float) -> None:
        """Until what is committed now is delivered. Prints the seconds since the old owner ended."""
        self.wait_checkpoint(self.tso())
        print(f"{after}: {time.monotonic() - since:.1f} s until the next owner delivers")


@pytest.fixture
def captures(tmp_path: Path, kafka_broker: Broker, etcd: str) -> Iterator[Captures]:
    running = Captures(tmp_path, kafka_broker.bootstrap, etcd)
    yield running
    running.stop()


def test_captures_share_a_changefeed_and_continue_however_one_of_them_ends(captures: Captures) -> None:
    """The owner is killed, stopped and woken, asked to resign, ended; one that is not the owner joins, and is
    killed: nothing is lost, doubled or out of order.
    """
    captures.start_upstream("--regions", "3")
    for name in "abc":
        captures.start_capture(name)
    first = captures.owner("abc")
    others = "".join(sorted(set("abc") - {first}))
    captures.server = captures.addresses[others[0]]  # a standby, which forwards requests
    captures.create_feed("bank")
    listed = httpx.get(f"http://{captures.server}/api/v2/captures", timeout=60).json()
    assert [one["is_owner"] for one in listed["items"]].count(True) == 1
    assert {one["address"] for one in listed["items"]} == set(captures.addresses.values())
    workload = captures.start_workload("--rate", "150", "--accounts", "300", "--ddl-every", "1500")
    ready = workload.wait_line(lambda line: line.get("event") == "ready")
    captures.start_consumer()
    captures.wait_checkpoint(ready["last_commit_ts"])
    captures.deliver("abc")

    at = time.monotonic()
    captures.kill(first)
    second = captures.owner(others)
    captures.wait_on("killed", at)

    # Its application and its workers continue as long as they may; its lease runs out meanwhile.
    at = time.monotonic()
    os.kill(captures.children[second].pid, signal.SIGSTOP)
    (third,) = set(others) - {second}
    assert captures.owner(third) == third
    captures.wait_on("stopped", at)
    os.kill(captures.children[second].pid, signal.SIGCONT)
    eventually("the zombie to stand by", lambda: "its turn" in captures.status(second).get("waiting_for", ""))
    assert not captures.status(second)["is_owner"]
    captures.wait_checkpoint(captures.tso())

    at = time.monotonic()
    httpx.post(f"http://{captures.server}/api/v2/owner/resign", timeout=60).raise_for_status()
    assert captures.owner(second) == second
    captures.wait_on("resigned", at)
    captures.start_capture(first)
    captures.deliver("abc")

    at = time.monotonic()
    captures.kill(third)
    captures.wait_on("killed one that is not the owner", at)
    captures.deliver(first + second)

    at = time.monotonic()
    captures.children.pop(second).end()
    captures.owner(first)
    captures.wait_on("ended", at)

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
