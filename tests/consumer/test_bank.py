"""A bank through a real broker into each target, its consumer and its producer killed: every change once.

A reader of the target sees each table as it was at the ts that the target reports, and the
bank's sum right. At the end everything is equal, values of unique columns that rows exchange included.

`make bank` is the long form: 50 kills, and each consumer on Spark. In CI there are 6, and the consumers are
without Spark (`fetch_workers`), because a JVM's start costs more than all the rest. `test_job` and
`tests/integration/test_kills.py` kill consumers on Spark in CI.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools.processes import Child

from tests.consumer.bank import TABLES, TOTAL
from tests.consumer.bank_producer import PARTITIONS
from tests.consumer.bank_targets import AtDelta, AtIceberg, AtMariaDb, BankTarget, Truth, total, wait_until
from tidegate.consumer.mysql.session import MySqlServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]

CASES = ("mariadb-global", "mariadb-lanes", "delta", "iceberg")
QUICK = 6
"""Kills in CI, over all cases."""
SEED = 11
PATIENCE_S = 240.0
KINDS = {"lane": 4, "moment": 3, "start": 2, "producer": 3}
"""Kills by kind: the consumer while a write of it waits for a lock, at any moment after it is
ready, or before that; the producer."""
OPENED = 1_100
"""A ts after which all accounts are there."""


class Bank:
    """A producer, a consumer, a target and a reader."""

    def __init__(self, folder: Path, kafka: str, topic: str, target: BankTarget, seed: int) -> None:
        self._folder, self._kafka, self._topic, self._seed = folder, kafka, topic, seed
        self.target, self.truth = target, Truth(seed)
        self.looks = self.between_lanes = 0
        self.children: dict[str, Child] = {}
        self.spark = False
        self.last_ts = self.seen_ts = 0

    def start_producer(self, pause_s: float) -> None:
        command = [sys.executable, "-m", "tests.consumer.bank_producer", "--kafka", self._kafka]
        command += ["--topic", self._topic, "--seed", str(self._seed), "--pause", str(pause_s)]
        self._start("producer", command).on_line(self._received)

    def start_consumer(self) -> None:
        command = [sys.executable, "-m", "tidegate", "consumer", "run", "--json"]
        command += [] if self.spark else ["--master", "workers[2]"]
        command += ["--source", f"kafka://{self._kafka}/{self._topic}?protocol=open-protocol"]
        command += ["--commit-interval", "0.05", "--commit-rows", "60"]
        self._start("consumer", [*command, *self.target.options])

    def kill(self, name: str) -> None:
        """kill -9 of a whole process group."""
        child = self.children.pop(name)
        os.killpg(child.pid, signal.SIGKILL)
        child.kill()

    def look(self) -> None:
        """Check that a reader sees a correct state now."""
        seen = self.target.look()
        if seen is not None and seen.tables:
            assert self.truth.faults(seen) == []
            moments = set(seen.moments.values())
            if len(moments) == 1 and min(moments) > OPENED:
                assert total(seen) == TOTAL
            assert min(moments) >= self.seen_ts, "a reader was sent back"
            self.seen_ts = min(moments)
            self.looks += 1
            self.between_lanes += len(moments) > 1
        time.sleep(0.02)

    def look_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()

    def until(self, what: str, true: Callable[[], object]) -> None:
        """Look until something is true, and show each process that ends unexpectedly meanwhile."""

        def meanwhile() -> None:
            for child in self.children.values():
                child.check()
            self.look()

        wait_until(what, true, PATIENCE_S, meanwhile)

    def ready(self) -> None:
        """Wait until the consumer runs."""
        child = self.children["consumer"]
        self.until("a consumer", lambda: any(line["event"] == "ready" for line in list(child.lines)))

    def end(self) -> None:
        """End all that runs."""
        for child in self.children.values():
            child.end()
        self.target.close()

    def _received(self, line: dict[str, int]) -> None:
        self.last_ts = max(self.last_ts, line["ts"])

    def _start(self, name: str, command: list[str]) -> Child:
        self.children[name] = Child(name, command, self._folder / f"{name}.log")
        return self.children[name]


def kinds_of(kills: int, chance: random.Random) -> list[str]:
    """One of a consumer's writes, one of the producer, then any."""
    more = chance.choices([*KINDS], [*KINDS.values()], k=max(0, kills - 2))
    return [*("lane", "producer")[:kills], *more]


def strike(bank: Bank, kind: str, chance: random.Random, pause_s: float) -> None:
    """Kill one process as `kind` says, and start it again."""
    match kind:
        case "producer":
            bank.look_for(chance.uniform(0.1, 0.8))
            bank.kill("producer")
            bank.start_producer(pause_s)
            return
        case "start":
            bank.look_for(chance.uniform(0.1, 6.0 if bank.spark else 1.5))
        case "moment":
            bank.ready()
            bank.look_for(chance.uniform(0.0, 1.5))
        case "lane":
            bank.ready()
            bank.until("all accounts", lambda: bank.seen_ts > OPENED)
            with bank.target.held(chance.choice(TABLES)):
                bank.until("a write that waits", bank.target.stuck)
                bank.look_for(0.1)
                bank.kill("consumer")
    if "consumer" in bank.children:
        bank.kill("consumer")
    bank.start_consumer()


@pytest.fixture(params=CASES)
def bank(
    request: pytest.FixtureRequest, kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> Iterator[Bank]:
    topic = new_topic(PARTITIONS)
    new_topic(1, f"{topic}.progress")
    if request.param == "delta":
        target: BankTarget = AtDelta(tmp_path / "lake")
    elif request.param == "iceberg":
        target = AtIceberg(tmp_path / "lake")
    else:
        server: MySqlServer = request.getfixturevalue("mariadb")
        target = AtMariaDb(server, 1 if request.param == "mariadb-global" else 4, tmp_path / "own")
    made = Bank(tmp_path, kafka, topic, target, SEED + CASES.index(request.param))
    made.spark = request.config.getoption("--bank") > QUICK
    yield made
    made.end()


def test_every_change_is_there_once_whatever_is_killed(bank: Bank, request: pytest.FixtureRequest) -> None:
    kills = request.config.getoption("--bank")
    case = request.node.callspec.params["bank"]
    mine = kills // len(CASES) + (CASES.index(case) < kills % len(CASES))
    chance = random.Random(f"{request.config.getoption('--kill-seed')} {case}")
    pause_s = 0.12 if bank.spark else 0.05
    bank.start_producer(pause_s)
    bank.start_consumer()
    kinds = kinds_of(mine, chance)
    for kind in kinds:
        strike(bank, kind, chance, pause_s)
        if chance.random() < 0.5:
            since = bank.seen_ts
            bank.until("progress after a kill", lambda since=since: bank.seen_ts > since)
    # A producer that has just been started does not know yet how to end in order.
    bank.until("more of the last producer", lambda at=max(OPENED, bank.last_ts): bank.last_ts > at)
    bank.children["producer"].ask_to_end()
    bank.until("the producer's end", lambda: bank.children["producer"].ended)
    del bank.children["producer"]
    bank.until("the last change", lambda: bank.seen_ts >= bank.last_ts)
    lines = list(bank.children["consumer"].lines)
    bank.children["consumer"].ask_to_end()
    assert bank.children.pop("consumer").wait(PATIENCE_S) == 0
    end = bank.target.look()
    assert end is not None
    assert set(end.moments.values()) == {bank.last_ts}
    assert bank.truth.faults(end, columns=True) == []
    assert lines[-1]["missing_deletes"] == lines[-1]["quarantined"] == 0
    earlier = list(bank.target.history())
    for seen in earlier:
        assert bank.truth.faults(seen) == []
    print(
        f"{case}: killed {dict(Counter(kinds))}, {bank.looks} looks, {bank.between_lanes} of them with some"
        f" lanes through, {len(earlier)} earlier snapshots, ts {bank.last_ts}"
    )
