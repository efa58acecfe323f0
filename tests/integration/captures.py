"""A cluster whose captures share an etcd. Each has a line to etcd and to each other one, which can be cut."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from typing import Any

import httpx
from tools.longest_pause import LongestPause
from tools.processes import Child

from tests.etcd.line import Line
from tests.integration.cluster import PATIENCE_S, Cluster, eventually
from tidegate.control.trace import replay
from tidegate.kvclient.pd import PdClient

FEED = "bank"
LOOK_S = 0.02
AT_VERSION = """
import runpy, sys, tidegate
tidegate.__version__ = sys.argv.pop(1)
runpy.run_module("tests.integration.lined_server", run_name="__main__")
"""
"""The code of a capture of another version: only its number differs."""


def free_addresses(count: int) -> list[str]:
    """Addresses that are free now: lines must know them before the captures listen there."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in taken]


class Captures(Cluster):
    """The captures have one-letter names."""

    def __init__(self, folder: Path, kafka: str, etcd: str, names: str = "abc", ttl_s: int = 6) -> None:
        super().__init__(folder, kafka, options="&partition-num=3")
        self.names, self.ttl_s = names, ttl_s
        self.feeds = [FEED]
        """Its changefeeds. All are waited for; what is measured is of the first one."""
        self.addresses = dict(zip(names, free_addresses(len(names)), strict=True))
        self.lines = {(one, to): Line(self.addresses[to]) for one, to in permutations(names, 2)}
        """Between captures: what the first sends to the second, and the answers."""
        self.to_etcd = {name: Line(etcd) for name in names}
        self._client = httpx.Client(timeout=2, trust_env=False)  # a new one for each look takes 20 ms of CPU

    def start_capture(self, name: str, version: str = "") -> Child:
        """One more, with a data folder of its own; the same port after a restart. `version`: if not ours."""
        lines = {
            self.addresses[to]: line.address for (sender, to), line in self.lines.items() if sender == name
        }
        lined = ["-c", AT_VERSION, version] if version else ["-m", "tests.integration.lined_server"]
        command = [sys.executable, *lined, json.dumps(lines), "server"]
        command += ["--pd", self.pd, "--data-dir", str(self.folder / name), "--json"]
        command += ["--etcd", self.to_etcd[name].endpoint, "--session-ttl", str(self.ttl_s)]
        command += ["--spark-master", "local[2]", "--addr", self.addresses[name]]
        command += ["--record", str(self.folder / "record" / name)]
        child = self._start(name, command)
        child.wait_line(lambda line: "addr" in line)
        return child

    def stop(self) -> None:
        super().stop()
        for line in [*self.lines.values(), *self.to_etcd.values()]:
            line.close()

    def replay(self) -> int:
        """Give the recorded events of all owners and processors to fresh machines, which must do the same.
        Returns the number of these events. A line that a kill has cut off is left out.
        """
        events = 0
        for path in sorted((self.folder / "record").glob("*/*")):
            with path.open("rb") as lines:
                if not next(lines, b"").endswith(b"\n"):
                    continue  # killed before the first line was written
                lines.seek(0)
                found = replay(lines)
            assert found.difference is None, f"{path}: {found.difference}"
            events += found.events
        return events

    # --- what captures report --------------------------------------------------------------------------

    def status(self, name: str) -> dict[str, Any]:
        """Return the capture's status; empty while it does not answer."""
        try:
            found: dict[str, Any] = self._client.get(f"http://{self.addresses[name]}/status").json()
        except httpx.HTTPError:
            return {}
        return found

    def feed(self, name: str = FEED) -> dict[str, Any]:
        """As the API says it; at no checkpoint while no capture can say."""
        try:
            answer = self._client.get(f"http://{self.server}/api/v2/changefeeds/{name}", timeout=60)
            return {"checkpoint_ts": 0} | answer.json()
        except (httpx.HTTPError, ValueError):
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

    def owner(self, among: Iterable[str]) -> str:
        """Who says that it is the owner, as soon as exactly one of them does; it is asked from then on."""

        def one() -> str:
            found = [name for name in among if self.status(name).get("is_owner")]
            return found[0] if len(found) == 1 else ""

        name: str = eventually(f"one owner among {among}", one)
        self.server = self.addresses[name]
        return name

    def shares(self, feed: str = FEED) -> list[tuple[str, str]]:
        """Who delivers, and from which key on; empty unless all ranges are delivered."""
        found = self.feed(feed).get("tidegate", {}).get("captures", [])
        there = [(one["address"], one["start"]) for one in found]
        return there if all(one["running"] for one in found) else []

    def deliver(self, names: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until these captures, and no others, deliver the ranges of the changefeeds. Only the first one
        has enough tables for all of them.
        """
        wanted = {self.addresses[name] for name in names}

        def there() -> bool:
            first, *others = ({address for address, _ in self.shares(feed)} for feed in self.feeds)
            return first == wanted and all(one and one <= wanted for one in others)

        eventually(f"{names} deliver", there, patience_s)

    def wait_on(self, after: str, since: float) -> None:
        """Until what is committed now is delivered. Prints the seconds since the old owner ended."""
        self.wait_for_all(self.tso())
        print(f"{after}: {time.monotonic() - since:.1f} s until the next owner delivers")

    def wait_for_all(self, ts: int) -> None:
        """Wait until the checkpoint of each changefeed has reached `ts`."""
        for feed in self.feeds:
            self.wait_checkpoint(ts, feed)

    def versions(self) -> dict[str, str]:
        """The version of each capture that has a session, by address."""
        items = self.ask("GET", "/captures")["items"]
        return {one["address"]: one["tidegate"]["version"] for one in items}

    # --- what is measured ------------------------------------------------------------------------------

    def now(self) -> int:
        """A timestamp of the upstream, whatever happens to the captures."""
        with PdClient(self.pd) as pd:
            return pd.tso()

    def checkpoint(self, among: str) -> int:
        """The checkpoint by the owner, if it is one of these; otherwise 0. A capture that is not the owner is
        not asked, because it would wait for an owner that does not answer.
        """
        for name in among:
            if self.status(name).get("is_owner"):
                self.server = self.addresses[name]
                return self._checkpoint()
        return 0

    def _checkpoint(self) -> int:
        try:
            answer = self._client.get(f"http://{self.server}/api/v2/changefeeds/{FEED}")
            return int(answer.json().get("checkpoint_ts", 0))
        except (httpx.HTTPError, ValueError):
            return 0

    def passes(self, ts: int, since: float, among: str) -> float:
        """Seconds from `since` until the checkpoint has passed `ts`, by one of these captures."""
        end = time.monotonic() + PATIENCE_S
        while self.checkpoint(among) <= ts:
            assert time.monotonic() < end, f"the checkpoint does not pass {ts}"
            time.sleep(LOOK_S)
        return time.monotonic() - since

    def longest_pause_s(self, until: Callable[[], bool]) -> float:
        """The longest time for which the checkpoint does not advance, until `until`, and until everything is
        delivered that came by then. The capture that is asked must stay the owner.
        """
        pause, end, ts = LongestPause(time.monotonic()), time.monotonic() + PATIENCE_S, 0
        while True:
            found = self._checkpoint()
            pause.see(found, time.monotonic())
            if 0 < ts < found:
                return pause.seconds
            if not ts and until():
                ts = self.now()
            assert time.monotonic() < end, "the ranges do not move"
            time.sleep(LOOK_S)

    # --- what happens to them ---------------------------------------------------------------------------

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a capture's control process."""
        os.kill(self.children[name].pid, number)

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Lose what one capture sends to another, and unless `one_way` also what that one sends."""
        self.lines[one, other].lose()
        if not one_way:
            self.lines[other, one].lose()

    def isolate(self, name: str) -> None:
        """Cut a capture off from all others and from etcd."""
        self.to_etcd[name].lose()
        for other in self.names.replace(name, ""):
            self.cut(name, other)

    def restore(self) -> None:
        """End all cuts."""
        for line in [*self.lines.values(), *self.to_etcd.values()]:
            if not (line.requests.is_set() and line.answers.is_set()):
                line.restore()

    def ask(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """A request to the capture that is asked, below /api/v2."""
        url = f"http://{self.server}/api/v2{path}"
        answer = self._client.request(method, url, timeout=60, json=body or None)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def id_of(self, name: str) -> str:
        """The id of a capture in `tidegate capture list`."""
        items = self.ask("GET", "/captures")["items"]
        return next(str(one["id"]) for one in items if one["address"] == self.addresses[name])
