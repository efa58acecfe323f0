"""The whole product as its user runs it: the real commands as processes, to be killed one by one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from tools.processes import Child, descendants

ROLES = {
    "puller": "tidegate.server.pulling.puller_process",
    "driver": "tidegate.pipeline.application",
    "worker": "tidegate.pipeline.daemon",
}
PATIENCE_S = 240.0
"""Costs nothing when all is well: a JVM alone may take a minute to start on a loaded machine."""
LOOKS_S = (0.05, 0.3)
"""The first and the longest pause between two looks: each takes CPU from what is waited for."""


def tidegate(*arguments: str | Path) -> list[str]:
    """The command line of a `tidegate` command."""
    return [sys.executable, "-m", "tidegate", *map(str, arguments)]


def eventually(what: str, check: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """The first true result of `check`; fails naming `what` when it stays false."""
    deadline, (pause, longest) = time.monotonic() + patience_s, LOOKS_S
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(pause)
        pause = min(longest, 1.25 * pause)
    raise AssertionError(f"within {patience_s:.0f} s not seen: {what}")


class Cluster:
    """An upstream, a capture and a consumer, each a real process; all state under one folder."""

    def __init__(self, folder: Path, kafka: str, protocol: str = "open-protocol", options: str = "") -> None:
        self.folder, self.kafka = folder, kafka
        self.topic = "feed-" + os.urandom(4).hex()
        self.uri = f"kafka://{kafka}/{self.topic}?protocol={protocol}{options}"
        self.source = self.uri
        """The topics that are read: other topics of the feed too, if the test sets them."""
        self.lake = folder / "lake"
        self.children: dict[str, Child] = {}
        self.pd = self.server = ""
        self.namespace = "default"
        """That of its changefeeds."""

    def start_upstream(self, *options: str) -> None:
        """Embedded PD and TiKV; the same port after a restart."""
        command = tidegate("upstream", "run", "--data-dir", self.folder / "upstream", "--json")
        child = self._start("upstream", [*command, "--pd", self.pd or "127.0.0.1:0", *options])
        self.pd = child.wait_line(lambda line: "pd" in line)["pd"]

    def start_server(self, *options: str) -> None:
        """A capture; the same port after a restart."""
        command = tidegate("server", "--pd", self.pd, "--data-dir", self.folder / "capture", "--json")
        child = self._start("server", [*command, "--addr", self.server or "127.0.0.1:0", *options])
        self.server = child.wait_line(lambda line: "addr" in line)["addr"]

    def start_consumer(self, *options: str) -> Child:
        """The Spark consumer into Delta tables."""
        command = tidegate(
            "consumer", "run", "--source", self.source, "--target", f"delta://{self.lake}", "--json"
        )
        return self._start("consumer", [*command, *options])

    def start_workload(self, *options: str) -> Child:
        """The bank workload."""
        return self._start("workload", tidegate("upstream", "workload", "--pd", self.pd, "--json", *options))

    def create_feed(self, name: str = "bank", *options: str) -> None:
        """A changefeed into the cluster's topic."""
        self.changefeed("create", name, "--sink-uri", self.uri, *options)

    def changefeed(self, verb: str, name: str, *options: str | Path) -> str:
        """Run a command about a changefeed; what it printed."""
        which = ("--server", self.server, "--namespace", self.namespace, "-c", name)
        return self.run("changefeed", verb, *which, *options)

    def follow_load(self, name: str = "bank") -> Child:
        """The command that follows a feed's initial load."""
        return self._start(
            "load", tidegate("changefeed", "load", "--server", self.server, "-c", name, "--json")
        )

    def run(self, *arguments: str | Path, expect: int = 0, patience_s: float = 300) -> str:
        """Run a command to its end and return what it printed."""
        done = subprocess.run(tidegate(*arguments), capture_output=True, text=True, timeout=patience_s)
        assert done.returncode == expect, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def feed(self, name: str = "bank") -> dict[str, Any]:
        """Return the API's answer about a feed."""
        url, which = f"http://{self.server}/api/v2/changefeeds/{name}", {"namespace": self.namespace}
        # Reading the certificates of all authorities takes 20 ms of CPU, and tests ask often.
        answer = httpx.get(url, params=which, timeout=PATIENCE_S, verify=False)
        found: dict[str, Any] = answer.json()
        return found

    def tso(self) -> int:
        """A timestamp of the upstream, now."""
        url = f"http://{self.server}/api/v2/tso"
        found = httpx.post(url, json={}, timeout=PATIENCE_S, verify=False).json()
        return (int(found["timestamp"]) << 18) | int(found["logic_time"])

    def wait_checkpoint(self, ts: int, name: str = "bank", patience_s: float = PATIENCE_S) -> None:
        """Wait until the feed's checkpoint has reached `ts`."""
        eventually(f"checkpoint {ts}", lambda: self.feed(name)["checkpoint_ts"] >= ts, patience_s)

    def pids(self, role: str) -> list[int]:
        """Processes of a role below the server: puller, driver, worker."""
        return [pid for pid, line in descendants(self.children["server"].pid) if ROLES[role] in line]

    def kill(self, role: str, number: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal to one process of a role (`server`, `consumer`, `upstream` or one of ROLES)."""
        if role in self.children:
            os.kill(self.children[role].pid, number)
            if number == signal.SIGKILL:
                self.children.pop(role).kill()
            return True
        pids = self.pids(role)
        if pids:
            os.kill(pids[-1], number)
        return bool(pids)

    def stop(self) -> None:
        """End everything, in the reverse order of starting."""
        for child in reversed(list(self.children.values())):
            child.end()
        self.children.clear()

    def compare(self, at: str = "latest", *options: str) -> dict[str, Any]:
        """Compare source and target; fails when they differ."""
        both = ("--pd", self.pd, "--target", f"delta://{self.lake}")
        printed = self.run("compare", *both, "--at", at, "--json", *options)
        found: dict[str, Any] = json.loads(printed)
        return found

    def _start(self, name: str, command: Sequence[str]) -> Child:
        child = Child(name, command, self.folder / f"{name}.log")
        self.children[name] = child
        return child
