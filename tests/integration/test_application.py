"""Many changefeeds in one application: what harms one harms no other, and each topic is whole in the end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest
from tools.processes import descendants

from tests.fixtures.kafka import Broker
from tests.integration.cluster import PATIENCE_S, ROLES, Cluster, eventually
from tests.integration.test_hangs import VICTIMS, changes, cluster, pids, recovers, stop_for_good
from tests.integration.test_kills import KEYS, broker
from tests.integration.validators import validate
from tests.server.test_supervisor import runs

__all__ = ["broker", "cluster"]

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

DOWN = 4
"""Changefeeds whose broker is stopped."""
LOOK_S = 3.0
"""The capture says twice a second who is at work."""
IMPATIENT = """
[tidegate]
stall-timeout = "8s"
"""


class Feeds:
    """Changefeeds of one capture, each with a topic of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.uri, self.start_ts = cluster, cluster.uri, cluster.tso()

    def topic(self, name: str) -> str:
        return self.uri.replace(self.cluster.topic, f"{self.cluster.topic}-{name}")

    def create(self, name: str, bootstrap: str = "", settings: str = "") -> None:
        self.cluster.uri = self.topic(name).replace(self.cluster.kafka, bootstrap or self.cluster.kafka)
        file = self.cluster.folder / f"{name}.toml"
        file.write_text(settings)
        self.cluster.create_feed(name, "--start-ts", str(self.start_ts), "--config", str(file))

    def advance(self, *names: str) -> None:
        now = self.cluster.tso()
        for name in names:
            self.cluster.wait_checkpoint(now, name)

    def call(self, name: str, what: str) -> None:
        url = f"http://{self.cluster.server}/api/v2/changefeeds/{name}/{what}"
        answer = httpx.post(url, json={}, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text


def application_of(cluster: Cluster) -> dict[str, Any]:
    """The status of the application."""
    status = httpx.get(f"http://{cluster.server}/status", timeout=PATIENCE_S, verify=False).json()
    found: dict[str, Any] = status["application"]
    return found


def workers_with_work(cluster: Cluster) -> list[int]:
    """The worker processes, without the daemon that they come from."""
    daemons = [pid for pid, line in descendants(cluster.children["server"].pid) if ROLES["worker"] in line]
    return daemons[1:]


def stop_one_at_work(cluster: Cluster) -> int:
    """A worker is stopped for good in the midst of its work. One that has just done its work is woken again:
    without work it would get the next start of a changefeed, which has more patience.
    """

    def seconds_at_work() -> dict[int, int]:
        return {one["pid"]: one["seconds"] for one in application_of(cluster)["at_work"]}

    def stopped() -> int:
        for pid in seconds_at_work():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(LOOK_S)
            if seconds_at_work().get(pid, 0) > 1:
                return pid
            os.kill(pid, signal.SIGCONT)
        return 0

    return int(eventually("a worker at work", stopped))


def test_what_harms_one_changefeed_harms_no_other(cluster: Cluster, broker: Broker) -> None:
    """First a worker is stopped for good. Then a broker is stopped, workers are killed, the JVM is
    stopped for good, and the application is killed.
    """
    cluster.start_upstream("--regions", "3")
    cluster.start_server()
    feeds = Feeds(cluster)
    feeds.create("hung", settings=IMPATIENT)
    workload = cluster.start_workload("--rate", "150", "--accounts", "300", "--ddl-every", "3000")
    cluster.wait_checkpoint(
        workload.wait_line(lambda line: line.get("event") == "ready")["last_commit_ts"], "hung"
    )
    recovers(cluster, VICTIMS["worker"], [stop_one_at_work(cluster)], "hung")
    feeds.create("one")
    delivered = cluster.feed("hung")["checkpoint_ts"]
    cluster.changefeed("remove", "hung")
    for number in range(DOWN):
        feeds.create(f"down-{number}", broker.bootstrap)
    feeds.create("two")
    downs = [f"down-{number}" for number in range(DOWN)]
    feeds.advance("one", "two", *downs)
    (application,) = cluster.pids("driver")

    os.kill(broker.pid, signal.SIGSTOP)
    stopped = cluster.tso()
    for _ in range(3):
        feeds.advance("one", "two")
    feeds.create("three")
    feeds.advance("three")
    assert all(cluster.feed(name)["checkpoint_ts"] < cluster.tso() for name in downs)
    eventually("a warning of those that wait", lambda: cluster.feed(downs[0])["state"] == "warning")
    feeds.call("two", "pause")
    feeds.advance("one", "three")
    paused = changes(feeds.topic("two"))

    workers, killed = application_of(cluster)["workers"], workers_with_work(cluster)
    for pid in killed:
        with suppress(ProcessLookupError):  # the end of a changefeed that waits may have killed it just now
            os.kill(pid, signal.SIGKILL)
    feeds.advance("one", "three")
    assert cluster.pids("driver") == [application], "its workers' death costs it nothing"
    time.sleep(LOOK_S)  # until it is said that they are gone
    # The JVM must start them again. If it is stopped before, the application has to end.
    eventually("other processes", lambda: len({*pids(cluster, "worker")} - {*killed}) >= workers)
    eventually("other workers", lambda: application_of(cluster)["workers"] >= workers)
    jvm = stop_for_good(cluster, "jvm")
    feeds.advance("one", "three")
    assert [cluster.feed(name)["state"] for name in ("one", "three")] == ["normal"] * 2, "nothing needs it"
    os.kill(application, signal.SIGKILL)
    feeds.advance("one", "three")
    assert changes(feeds.topic("two")) == paused, "it is paused"

    os.kill(broker.pid, signal.SIGCONT)
    feeds.call("two", "resume")
    workload.ask_to_end()
    done = workload.wait_line(lambda line: line.get("event") == "done")
    feeds.advance("one", "two", "three", *downs)
    cluster.stop()
    eventually("the JVM's end", lambda: not any(runs(pid) for pid in jvm))
    assert done["last_commit_ts"] > stopped
    wanted = changes(feeds.topic("one"))
    found = changes(feeds.topic("hung"))
    assert {change for change in wanted if change[1] <= delivered} <= found <= wanted
    for name in ("hung", "one", "two", "three", *downs):
        uri = feeds.topic(name)
        if name in downs:
            uri = uri.replace(cluster.kafka, broker.bootstrap)
        report = validate(uri, KEYS)
        assert (name, report.faults, report.duplicates) == (name, [], 0)
        assert changes(uri) == (found if name == "hung" else wanted)
    assert report.rows >= done["rows"] > 0
