"""Several captures over a real etcd share a changefeed, and continue however one of them ends or is cut off.

`make captures` adds the long form, of random faults: `pytest -s tests/integration/test_captures.py
--captures-for 600`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.etcd import Etcd
from tests.fixtures.kafka import Broker
from tests.integration.capture_faults import figures, plan
from tests.integration.capture_trouble import SETTLE_S, Trouble
from tests.integration.captures import Captures
from tests.integration.cluster import eventually
from tests.integration.test_kills import newest
from tests.integration.validators import changes, validate

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

KEYS = {"bank.accounts": ("id",), "bank.transfers": ("region", "id"), "bank.orders": ("id",)}
ORDERS = {name: KEYS[name] for name in ("bank.transfers", "bank.orders")}
"""The tables of the second changefeed."""
NEXT = "99.0.0"
"""A later version of Tidegate."""
CUT_S = 2.0
TTL_S = 3
"""In the long form, as the goals have it: a takeover takes as long as a session is valid, and some more."""


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Etcd]:
    """One that can be killed."""
    running = Etcd(tmp_path / "services")
    yield running
    running.stop()


@pytest.fixture
def captures(tmp_path: Path, kafka_broker: Broker, own_etcd: Etcd) -> Iterator[Captures]:
    running = Captures(tmp_path, kafka_broker.bootstrap, own_etcd.endpoints)
    yield running
    running.stop()


def test_captures_share_changefeeds_and_continue_whatever_happens(captures: Captures, own_etcd: Etcd) -> None:
    """Two changefeeds. Owners are killed, stopped and woken, asked to resign, ended; a message is lost in one
    direction; tables are moved, a capture is drained; etcd is killed; captures of another version join, one
    by one; one that is not the owner is killed: nothing is lost, doubled or out of order.
    """
    captures.start_upstream("--regions", "3")
    for name in captures.names:
        captures.start_capture(name)
    first = captures.owner(captures.names)
    others = captures.names.replace(first, "")
    captures.server = captures.addresses[others[0]]  # a standby, which forwards requests
    orders = create_feeds(captures)
    workload = captures.start_workload("--rate", "60", "--accounts", "300", "--ddl-every", "600")
    captures.wait_for_all(workload.wait_line(lambda line: line.get("event") == "ready")["last_commit_ts"])
    captures.deliver(captures.names)

    second = kill_the_owner(captures, first, others)
    third = stop_and_wake_the_owner(captures, second, others.replace(second, ""))
    eventually("the other version", lambda: captures.versions().get(captures.addresses[first]) == NEXT)
    captures.deliver(others)
    cut_one_way(captures, second, third)
    cut_one_way(captures, third, second)
    move_and_drain(Trouble(captures, own_etcd, 0), second, third)
    captures.children.pop(second).end()
    captures.start_capture(second, NEXT)
    kill_etcd(captures, own_etcd)
    resign_until(captures, first + second)
    captures.deliver(first + second)

    at, last = time.monotonic(), captures.owner(first + second)
    other = (first + second).replace(last, "")
    captures.kill(other)
    captures.wait_on("killed one that is not the owner", at)
    captures.deliver(last)
    at = time.monotonic()
    captures.children.pop(last).end()
    captures.owner(third)
    captures.wait_on("ended", at)

    workload.ask_to_end()
    end = workload.wait_line(lambda line: line.get("event") == "done")["last_commit_ts"]
    captures.wait_for_all(end)
    # Only now, because a consumer that follows takes much of the machine.
    assert captures.start_consumer("--until", str(end), "--master", "workers[1]").wait(300) == 0
    outcome = captures.compare(str(end))
    assert outcome["equal"], outcome
    captures.stop()
    reports = [validate(captures.source, KEYS), validate(orders, ORDERS)]
    assert [(one.faults, one.duplicates) for one in reports] == [([], 0), ([], 0)]
    assert changes(orders, ORDERS) == changes(captures.source, ORDERS), "what one has, and the other has not"
    assert captures.replay() > 1000, "machines that nothing was recorded of"


def create_feeds(captures: Captures) -> str:
    """One of all tables, and one of some in another form. Returns the topic of the second one."""
    listed = captures.ask("GET", "/captures")["items"]
    assert [one["is_owner"] for one in listed].count(True) == 1
    assert {one["address"] for one in listed} == set(captures.addresses.values())
    captures.create_feed("bank")
    settings = captures.folder / "orders.toml"
    settings.write_text(f"[filter]\nrules = {[*ORDERS]}\n")
    form = "protocol=canal-json&enable-tidb-extension=true&partition-num=3"
    source = f"kafka://{captures.kafka}/{captures.topic}-orders?{form}"
    captures.changefeed("create", "orders", "--sink-uri", source, "--config", settings)
    captures.feeds.append("orders")
    return source


def kill_the_owner(captures: Captures, first: str, others: str) -> str:
    """It starts again at once, with the next version. Returns the next owner."""
    at = time.monotonic()
    captures.kill(first)
    captures.start_capture(first, NEXT)
    second = captures.owner(others)
    captures.wait_on("killed", at)
    return second


def stop_and_wake_the_owner(captures: Captures, second: str, third: str) -> str:
    """Its application and its workers continue as long as they may; its lease runs out meanwhile."""
    at = time.monotonic()
    captures.send(second, signal.SIGSTOP)
    assert captures.owner(captures.names.replace(second, "")) == third, "it has waited for longer"
    captures.wait_on("stopped", at)
    captures.send(second, signal.SIGCONT)

    def waits() -> bool:
        status = captures.status(second)
        return "its turn" in status.get("waiting_for", "") and not status["is_owner"]

    eventually("the zombie to stand by", waits)
    return third


def cut_one_way(captures: Captures, one: str, other: str) -> None:
    """Too short for the owner to take ranges away: the checkpoint waits for what is sent again later."""
    captures.cut(one, other, one_way=True)
    ts = captures.tso()
    time.sleep(CUT_S)
    assert captures.feed()["checkpoint_ts"] < ts, "nothing was cut"
    captures.restore()
    captures.wait_for_all(ts)


def move_and_drain(trouble: Trouble, drained: str, owner: str) -> None:
    """A table moves to each of two captures, then one of them has nothing left, in both changefeeds."""
    captures = trouble.captures
    ids = [captures.id_of(name) for name in (drained, owner)]
    moved = [trouble.move("move", tables=["bank.accounts"], capture=capture) for capture in ids]
    assert any(moved), "each had it already"
    captures.ask("PUT", f"/captures/{ids[0]}/drain")
    captures.deliver(owner)
    captures.wait_for_all(captures.tso())
    print(f"moved: the checkpoint stopped for {moved}")


def kill_etcd(captures: Captures, etcd: Etcd) -> None:
    """For longer than a session is valid, so that nobody may deliver any more."""
    etcd.kill()
    time.sleep(captures.ttl_s + 1)
    etcd.start()
    at = time.monotonic()
    captures.owner(captures.names)
    captures.wait_on("etcd killed", at)


def resign_until(captures: Captures, wanted: str) -> None:
    """Until one of these is the owner."""
    at, owner = time.monotonic(), captures.owner(captures.names)
    while True:
        captures.ask("POST", "/owner/resign")
        owner = captures.owner(captures.names.replace(owner, ""))
        if owner in wanted:
            break
    captures.wait_on("resigned", at)


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
