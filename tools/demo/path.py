"""The demo's processes, their state, and the comparison at the end."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Consumer, KafkaException, TopicPartition
from tools.demo.faults import Fault, Kind, has_left, ranges_of
from tools.demo.targets import SERVICES, DemoTarget
from tools.longest_pause import LongestPause
from tools.processes import Child

from tidegate.codec.base import Batch
from tidegate.codec.decode import decoder
from tidegate.codec.registry import options_of
from tidegate.config.reading import load_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.model.timestamp import physical_ms

FEED = "bank"
PARTITIONS = 3
START_S = 120
"""How long Spark's start may take on a slow machine. Seconds."""
LOOK_S = 0.05
"""How often the checkpoint is read after a fault."""


@dataclass(slots=True)
class Proof:
    """Source and target at one timestamp."""

    ts: int
    equal: bool
    tables: list[dict[str, Any]]
    sums: dict[int, str]
    """The sum of all balances in each snapshot, by its ts."""
    total: str
    """The expected sum."""


@dataclass(slots=True)
class Lags:
    """Samples of the milliseconds from commit to readable. At most LIMIT are kept, thinned out evenly."""

    values: list[float] = field(default_factory=list)

    def add(self, values: list[float]) -> None:
        """Add samples."""
        self.values += values
        if len(self.values) > 400_000:
            self.values = self.values[::2]

    def quantile(self, share: float) -> float:
        """A quantile in ms. 0 without samples."""
        found = sorted(self.values)
        return found[min(len(found) - 1, int(share * len(found)))] if found else 0.0


class MainPath:
    """Upstream, workload, broker, capture and consumer. Independent ones are started in parallel."""

    def __init__(self, folder: Path, rate: float, target: DemoTarget, captures: int = 1) -> None:
        self.folder, self.rate, self.target = folder, rate, target
        self.captures = (
            [f"capture-{number + 1}" for number in range(captures)] if captures > 1 else ["capture"]
        )
        self.addresses: dict[str, str] = {}
        """The addresses of the captures that run."""
        self.faults: list[Fault] = []
        """Faults of captures, in order."""
        self.children: dict[str, Child] = {}
        self.stage = "starting"
        self.server = self.pd = self.uri = self._kafka_said = ""
        self.kafka_lag, self.table_lag = Lags(), Lags()
        self.kafka_rows = self.opened_ts = 0
        self.live_ms = math.inf
        self.snapshots: dict[int, str] = {}
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything. Returns when all processes are ready."""
        self.stage = "broker and upstream start"
        broker = threading.Thread(target=self._start_kafka)
        broker.start()
        upstream = self._child("upstream", "upstream", "run", "--data-dir", self.folder / "upstream")
        self.pd = upstream.wait_line(lambda line: "pd" in line)["pd"]
        etcd = self._start_etcd() if len(self.captures) > 1 else []
        for name in self.captures:
            self._start_capture(name, *etcd)
        self.server = self.addresses[self.captures[0]]
        self.target.start()
        broker.join()
        if not self.uri:
            raise TimeoutError(f"The Kafka broker did not start.\n{self._kafka_said}")
        self.stage = "Spark starts, for the changefeed and for the consumer"
        self._run("changefeed", "create", "--server", self.server, "-c", FEED, "--sink-uri", self.uri)
        into = self.target.options()
        consumer = self._child("consumer", "consumer", "run", "--source", self.uri, *into)
        consumer.wait_line(lambda line: line.get("event") == "ready", START_S)
        self._wait_started()
        self._thread(self._watch_kafka)
        self._thread(self._watch_tables)
        self.stage = "the bank opens its accounts"
        workload = self._child("workload", "upstream", "workload", "--pd", self.pd, "--rate", str(self.rate))
        ready = workload.wait_line(lambda line: line.get("event") == "ready")
        self.opened_ts = int(ready["last_commit_ts"])
        self.stage = "the first rows travel"
        deadline = time.monotonic() + START_S
        while max(self.snapshots, default=0) < self.opened_ts and time.monotonic() < deadline:
            self.check()
            time.sleep(0.1)
        self.live_ms = time.time() * 1000
        self.stage = "live"

    def _start_capture(self, name: str, *options: str) -> None:
        where = ("--pd", self.pd, "--addr", "127.0.0.1:0", "--data-dir", self.folder / name)
        capture = self._child(name, "server", *where, *options)
        self.addresses[name] = capture.wait_line(lambda line: "addr" in line)["addr"]

    def strike(self, kind: Kind) -> None:
        """Kill the capture that owns the changefeed, or drain another one. Others must take over."""
        owner = self.owner()
        others = [name for name in self.addresses if name != owner]
        name = owner if kind is Kind.KILLED else others[0]
        at_s = time.time() - self.live_ms / 1000
        fault = Fault(kind, name, name == owner, at_s, ranges_of(self.feed_now(), self.addresses))
        self.faults.append(fault)
        if kind is Kind.KILLED:
            at = time.monotonic()
            self.children.pop(name).kill()
            del self.addresses[name]
            self.server = self.addresses[others[0]]
            self._thread(lambda: self._watch_takeover(fault, at))
        else:
            self.server = self.addresses[owner]
            self._thread(lambda: self._watch_drain(fault))

    def owner(self) -> str:
        """Wait for an owner of the changefeed. Returns its capture."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for name, address in self.addresses.items():
                try:
                    if httpx.get(f"http://{address}/status", timeout=2).json()["is_owner"]:
                        return name
                except httpx.HTTPError:
                    continue
            time.sleep(0.1)
        raise TimeoutError("No capture became the owner.")

    def _watch_takeover(self, fault: Fault, since: float) -> None:
        """The pause is counted until everything up to the fault is delivered: a new owner may know a
        checkpoint that nobody has read from the old one.
        """
        wanted = int(time.time() * 1000) << 18
        while not self._ended.wait(LOOK_S):
            feed = self.feed_now()
            if int(feed.get("checkpoint_ts", 0)) >= wanted:
                fault.after = ranges_of(feed, self.addresses)
                fault.pause_s = time.monotonic() - since
                return

    def _watch_drain(self, fault: Fault) -> None:
        """The pause is the longest one from the request until everything is delivered that came until the
        others had the ranges.
        """
        base, address = f"http://{self.server}/api/v2/captures", self.addresses[fault.capture]
        items = httpx.get(base, timeout=10).raise_for_status().json()["items"]
        drained = next(one["id"] for one in items if one["address"] == address)
        pause, wanted = LongestPause(time.monotonic()), 0
        httpx.put(f"{base}/{drained}/drain", timeout=10).raise_for_status()
        while not self._ended.wait(LOOK_S):
            feed = self.feed_now()
            checkpoint = int(feed.get("checkpoint_ts", 0))
            pause.see(checkpoint, time.monotonic())
            if not wanted and has_left(address, feed):
                wanted = int(time.time() * 1000) << 18
            if 0 < wanted <= checkpoint:
                fault.after, fault.pause_s = ranges_of(feed, self.addresses), pause.seconds
                return

    def _wait_started(self) -> None:
        deadline = time.monotonic() + START_S
        while not self.feed_now().get("tidegate", {}).get("pipeline_starts"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"The changefeed did not start: {self.feed_now().get('error')}")
            self.check()
            time.sleep(0.1)

    def end_workload(self) -> int:
        """Stop the bank. Returns its last commit ts."""
        workload = self.children["workload"]
        workload.ask_to_end()
        return int(workload.wait_line(lambda line: line.get("event") == "done", 30)["last_commit_ts"])

    def check(self) -> None:
        """Raise if a process has died."""
        for name, child in list(self.children.items()):
            if name != "workload" or self.stage == "live":
                child.check()

    def stop(self) -> None:
        """End every process and wait for it."""
        self._ended.set()
        for child in list(self.children.values()):
            child.ask_to_end()
        for child in reversed(list(self.children.values())):
            child.end()
        for thread in self._threads:
            thread.join(5)
        subprocess.run([SERVICES, "stop", "--dir", self.folder / "services"], check=False)

    # --- for the board ------------------------------------------------------------------------------------

    def workload_now(self) -> dict[str, Any]:
        """The workload's last line."""
        child = self.children.get("workload")
        lines = [line for line in list(child.lines) if "rows" in line] if child else []
        return lines[-1] if lines else {}

    def feed_now(self) -> dict[str, Any]:
        """The feed's state from the API. {} while there is none."""
        if not self.server:
            return {}
        try:
            answer = httpx.get(f"http://{self.server}/api/v2/changefeeds/{FEED}", timeout=2)
        except httpx.HTTPError:
            return {}
        found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return found

    # --- the proof ----------------------------------------------------------------------------------------

    def prove(self) -> Proof:
        """Compare source and target at the newest snapshot, and sum the bank in every snapshot read."""
        self.stage = "comparing source and target"
        found = self.target.compare(self.pd)
        total = str(self.workload_now().get("total", ""))
        # The sum still grows until the last account is open.
        sums = {ts: one for ts, one in self.snapshots.items() if ts >= self.opened_ts}
        equal = found.equal and all(one == total for one in sums.values())
        return Proof(found.ts, equal, found.tables, sums, total)

    # --- inside -------------------------------------------------------------------------------------------

    def _child(self, name: str, *arguments: str | Path) -> Child:
        command = [sys.executable, "-m", "tidegate", *arguments, "--json"]
        child = Child(name, command, self.folder / f"{name}.log")
        self.children[name] = child
        return child

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "tidegate", *arguments], capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, arguments, done.stdout, done.stderr)

    def _start_kafka(self) -> None:
        services, folder = str(SERVICES), str(self.folder / "services")
        command = [services, "start", "kafka", "--dir", folder, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        self._kafka_said = done.stderr
        if done.returncode == 0:
            bootstrap = json.loads(done.stdout)["kafka"]["bootstrap"]
            self.uri = f"kafka://{bootstrap}/bank?protocol=open-protocol&partition-num={PARTITIONS}"

    def _start_etcd(self) -> list[str]:
        command = [str(SERVICES), "start", "etcd", "--dir", str(self.folder / "services"), "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise TimeoutError(f"etcd did not start.\n{done.stderr}")
        return ["--etcd", json.loads(done.stdout)["etcd"]["endpoints"], "--session-ttl", "3"]

    def _thread(self, work: Any) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _watch_kafka(self) -> None:
        """Read the topic as a reader of committed messages, and note the age of each row when it is readable."""
        uri = parse_sink_uri(self.uri)
        decode = decoder(options_of(load_config(None, uri))).decode
        settings = {
            "bootstrap.servers": uri.bootstrap,
            "group.id": "demo",
            "isolation.level": "read_committed",
        }
        consumer = Consumer(
            settings | {"enable.auto.commit": False, "log_level": 0, "error_cb": lambda error: None}
        )
        consumer.assign([TopicPartition(uri.topic, p, 0) for p in range(PARTITIONS)])
        while not self._ended.is_set():
            try:
                messages = [m for m in consumer.consume(2000, timeout=0.05) if m.error() is None]
            except KafkaException:
                continue
            if not messages:
                continue
            now = time.time() * 1000
            numbers = range(len(messages))
            found = decode(Batch([m.key() for m in messages], [m.value() for m in messages], numbers))
            for table in found.rows:
                self.kafka_rows += len(table)
                # The first rows have waited for Spark's start, so they say nothing about the lag.
                committed = table.commit_ts >> 18
                self.kafka_lag.add((now - committed[committed >= self.live_ms]).tolist())
        consumer.close()

    def _watch_tables(self) -> None:
        """Open each new snapshot, note its age, and sum the bank in it."""
        while not self._ended.wait(0.25):
            seen = self.target.newest(self.snapshots)
            if seen is None:
                continue
            if physical_ms(seen.ts) >= self.live_ms:
                self.table_lag.add([seen.at_ms - physical_ms(seen.ts)])
            self.snapshots[seen.ts] = seen.total
