"""A running capture that many whole-feed tests share: one upstream, one server, one Spark application.

    SharedCapture.namespace(schema) --> Namespace --> the test --> Namespace.stop: its changefeeds are removed

Starting all this takes longer than most tests do. So each test gets a `Namespace`: a schema, ids, topics,
a folder and a namespace of changefeeds that are its own. It is used as a `Cluster` whose upstream and server
run already. Tests follow one another, so a test that kills a worker harms nobody else. A test that does more
to the capture, or to upstream, starts its own `Cluster`.

A capture is used again only if the test before it passed and left no changefeed, and if no earlier test has
had a schema of the same name. Otherwise the next test starts another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.integration.cluster import PATIENCE_S, Cluster
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Mutation, Transaction
from tidegate.tidb import keys
from tidegate.workload.ddl import put_text
from tidegate.workload.schema import bootstrap

IDS = 4096
"""Ids of each namespace; it begins at a multiple, so that stripes and regions do not depend on the order of
tests. Upstream's first regions are split where only lower ids are."""
LOG_BYTES = 8_000
"""The part of each log, from its end, that a failed test shows."""


class Namespace(Cluster):
    """A test's part of a capture that runs already."""

    def __init__(
        self,
        running: Cluster,
        number: int,
        folder: Path,
        kafka: str,
        schema: str,
        protocol: str,
        options: str,
    ) -> None:
        super().__init__(folder, kafka, protocol, options)
        self._running, self.schema = running, schema
        self.pd, self.server, self.home = running.pd, running.server, running.folder
        self.namespace = f"test-{number}"

    def start_upstream(self, *options: str) -> None:
        raise AssertionError("it runs already")

    def start_server(self, *options: str) -> None:
        raise AssertionError("it runs already")

    def settings(self, text: str = "") -> Path:
        """A file of settings for a changefeed of the test's own schema."""
        path = self.folder / "feed.toml"
        path.write_text(f'[filter]\nrules = ["{self.schema}.*"]\n{text}')
        return path

    def create_feed(self, name: str = "bank", *options: str) -> None:
        super().create_feed(name, *options)
        rules = self.feed(name)["config"]["filter"]["rules"]
        assert not outside(rules, self.schema), "another test's tables would be delivered, too"

    def pids(self, role: str) -> list[int]:
        assert role == "worker", f"a test that needs the {role} starts its own cluster"
        return self._running.pids(role)

    def compare(self, at: str = "latest", *options: str) -> dict[str, Any]:
        return super().compare(at, "--filter", f"{self.schema}.*", *options)

    def remove_feeds(self) -> None:
        """Remove the test's changefeeds. Nobody writes to their topics after that."""
        url = f"http://{self.server}/api/v2/changefeeds"
        for name in feeds_of(self.server, self.namespace):
            which = {"namespace": self.namespace}
            answer = httpx.delete(f"{url}/{name}", params=which, timeout=PATIENCE_S)
            assert answer.status_code == 200, answer.text

    def stop(self) -> None:
        super().stop()
        self.remove_feeds()


class SharedCapture:
    """Started when a test first needs it, and started again when it must not be used any more."""

    def __init__(self, start: Callable[[], Cluster], reserve: Callable[[Cluster, int], None]) -> None:
        """`start`: a cluster with upstream and server. `reserve`: its next ids are above this one."""
        self._start, self._reserve = start, reserve
        self._cluster: Cluster | None = None
        self._schemas: set[str] = set()

    def namespace(self, folder: Path, kafka: str, schema: str, protocol: str, options: str) -> Namespace:
        """A namespace of a capture in which the schema does not exist."""
        if schema in self._schemas:
            self.stop()
        if self._cluster is None:
            self._cluster = self._start()
        self._schemas.add(schema)
        number = len(self._schemas)
        self._reserve(self._cluster, number * IDS)
        return Namespace(self._cluster, number, folder, kafka, schema, protocol, options)

    def check(self) -> None:
        """Fail if the next test would not find the capture as this one did."""
        if self._cluster is not None:
            for child in self._cluster.children.values():
                child.check()
            assert feeds_of(self._cluster.server, "") == [], "changefeeds that a test has left"

    def take_back(self, given: Sequence[Namespace], *, failed: bool) -> None:
        """End all that a test has begun. If it failed, or left something, the next one gets another capture:
        a lock or a changefeed that hangs must not fail the tests after it."""
        try:
            for one in given:
                one.stop()
            self.check()
        except BaseException:
            self.stop()
            raise
        if failed:
            self.stop()

    def logs(self) -> Iterator[tuple[str, str]]:
        """(name, the end) of each log."""
        if self._cluster is not None:
            folder = self._cluster.folder
            for path in sorted([*folder.glob("*.log"), *folder.glob("capture/*.log")]):
                text = path.read_bytes()[-LOG_BYTES:].decode(errors="replace")
                yield str(path.relative_to(folder)), text

    def stop(self) -> None:
        """End it; the next namespace begins with another one."""
        running, self._cluster = self._cluster, None
        self._schemas.clear()
        if running is not None:
            running.stop()


def start_cluster(folder: Path) -> Cluster:
    """Upstream with its system schema, and a server."""
    cluster = Cluster(folder, "")
    try:
        cluster.start_upstream("--regions", "3")
        with PdClient(cluster.pd) as pd:
            _write(pd, bootstrap())
        cluster.start_server()
    except BaseException:
        cluster.stop()
        raise
    return cluster


def reserve_ids(cluster: Cluster, number: int) -> None:
    """Upstream's counter continues above `number`."""
    with PdClient(cluster.pd) as pd:
        _write(pd, [put_text(keys.meta_string(b"NextGlobalID"), str(number))])


def _write(pd: PdClient, mutations: Sequence[Mutation]) -> None:
    transaction = Transaction(pd)
    transaction.write(mutations)
    transaction.commit()


def feeds_of(server: str, namespace: str) -> list[str]:
    """Names of changefeeds; of all namespaces if it is empty."""
    which = {"namespace": namespace, "state": "all"}
    url = f"http://{server}/api/v2/changefeeds"
    answer = httpx.get(url, params=which, timeout=PATIENCE_S, verify=False)
    return [str(item["id"]) for item in answer.json()["items"]]


def outside(rules: Sequence[str], schema: str) -> list[str]:
    """The rules that may match a table of another schema."""
    return [rule for rule in rules if not rule.removeprefix("!").startswith(f"{schema}.")]
