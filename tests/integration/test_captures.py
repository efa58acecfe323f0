"""Several captures over a real etcd share a changefeed, and continue however one of them ends or is cut off.

`make captures` adds the long form, of random faults: `pytest -s tests/integration/test_captures.py
--captures-for 600`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fixtures.etcd import Etcd
from tests.fixtures.kafka import Broker
from tests.integration.capture_faults import figures, plan
from tests.integration.capture_trouble import SETTLE_S, Trouble
from tests.integration.captures import Captures
from tests.integration.cluster import eventually
from tests.integration.test_kills import newest
from tests.integration.validators import validate

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

KEYS = {"bank.accounts": ("id",), "bank.transfers": ("region", "id"), "bank.orders": ("id",)}
CUT_S = 2.0
TTL_S = 3
"""In the long form, as the goals have it: a takeover takes as long as a session is valid, and some more."""


@pytest.fixture
def captures(tmp_path: Path, kafka_broker: Broker, etcd: str) -> Iterator[Captures]:
    running = Captures(tmp_path, kafka_broker.bootstrap, etcd)
    yield running
    running.stop()


def test_captures_share_a_changefeed_and_continue_however_one_of_them_ends(captures: Captures) -> None:
    """The owner is killed, stopped and woken, asked to resign, ended; one that is not the owner joins, is cut
    off from the owner, and is killed: nothing is lost, doubled or out of order.
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
    workload = captures.start_workload("--rate", "60", "--accounts", "300", "--ddl-every", "600")
    ready = workload.wait_line(lambda line: line.get("event") == "ready")
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

    # Too short for the owner to take ranges away: the checkpoint waits for reports, which are sent again.
    captures.cut(second, third)
    ts = captures.tso()
    time.sleep(CUT_S)
    assert captures.feed()["checkpoint_ts"] < ts, "nothing was cut"
    captures.restore()
    captures.wait_checkpoint(ts)

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
    end = done["last_commit_ts"]
    captures.wait_checkpoint(end)
    # Only now, because a consumer that follows takes much of the machine.
    assert captures.start_consumer("--until", str(end), "--master", "workers[1]").wait(300) == 0
    outcome = captures.compare(str(end))
    assert outcome["equal"], outcome
    captures.stop()
    report = validate(captures.source, KEYS)
    assert report.faults == []
    assert report.duplicates == 0
    assert captures.replay() > 1000, "machines that nothing was recorded of"


@pytest.mark.timeout(0)
def test_random_faults_cost_nothing_but_time(
    tmp_path: Path, kafka_broker: Broker, request: pytest.FixtureRequest
) -> None:
    """Prints what each fault costs, against the goals. A busy machine misses them, so that is no failure."""
    seconds, seed = (request.config.getoption(name) for name in ("--captures-for", "--kill-seed"))
    if not seconds:
        pytest.skip("the long form: make captures")
    own = Etcd(tmp_path / "services")
    captures = Captures(tmp_path, kafka_broker.bootstrap, own.endpoints, ttl_s=TTL_S)
    trouble = Trouble(captures, own, seed)
    try:
        captures.start_upstream("--regions", "3")
        for name in captures.names:
            captures.start_capture(name)
        captures.owner(captures.names)
        captures.create_feed("bank")
        workload = captures.start_workload("--rate", "150", "--accounts", "300", "--ddl-every", "1500")
        ready = workload.wait_line(lambda line: line.get("event") == "ready")
        captures.wait_checkpoint(ready["last_commit_ts"])
        captures.deliver(captures.names)
        time.sleep(SETTLE_S)
        end = time.monotonic() + seconds
        for fault in plan(seed):
            if time.monotonic() > end:
                break
            trouble.strike(fault)
        workload.ask_to_end()
        done = workload.wait_line(lambda line: line.get("event") == "done")
        captures.wait_checkpoint(done["last_commit_ts"])
        captures.start_consumer()  # only now, because it would take much of the machine
        eventually("the end in the tables", lambda: newest(captures.lake) >= done["last_commit_ts"], 1800)
        outcome = captures.compare()
        assert outcome["equal"], outcome
    finally:
        print(f"\n{figures(trouble.taken)}", flush=True)
        captures.stop()
        own.stop()
    report = validate(captures.source, KEYS)
    assert (report.faults, report.duplicates) == ([], 0)
    print(f"{report.rows} row changes, none lost, doubled or out of order")
    print(f"{captures.replay()} recorded events of owners and processors have the same effects again")
