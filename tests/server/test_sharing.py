"""A changefeed whose key ranges several captures share, in one process: who gets what, and who is fenced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from tests.certificates import Authority
from tests.server.test_capture import Running, bank, check_order, wait_for, work
from tests.server.test_captures import reached
from typer.testing import CliRunner

from tidegate.cli.main import app as command_line
from tidegate.control.metadata import FeedId, grant_key
from tidegate.control.trace import replay
from tidegate.server.captures.message_client import MessageClient
from tidegate.server.captures.recorder import segments
from tidegate.server.owner import shares as feed_shares
from tidegate.server.owner.peers import SILENT_S
from tidegate.server.processor.coming_ranges import ComingRanges
from tidegate.sink.kafka.sink import KafkaSink
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.tls import Tls
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration
__all__ = ["bank"]

ONE = FeedId("default", "one")
Start = Callable[..., Running]
"""Starts a capture in the named folder, with certificates if the API speaks TLS."""


@pytest.fixture
def fenced(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Whom owners have fenced, round by round; the sink of these tests is a file."""
    found: list[set[str]] = []
    monkeypatch.setattr(feed_shares, "fence_writers", lambda plan, sink, writers, _: found.append({*writers}))
    monkeypatch.setattr(KafkaSink, "fence", lambda self, writers, prove: found.append(set(writers)))
    monkeypatch.setattr(KafkaSink, "connect", lambda self, writers: None)
    monkeypatch.setattr("tidegate.server.owner.able_captures.JOIN_S", 0.5)
    # Otherwise a capture that a test has ended gets no ranges for 10 s; `test_shares` is about that.
    monkeypatch.setattr("tidegate.server.owner.peers.SHUN_S", 0.5)
    return found


@pytest.fixture
def start(upstream: EmbeddedUpstream, etcd: str, tmp_path: Path) -> Iterator[Start]:
    running: dict[str, Running] = {}

    def one(name: str, tls: Tls | None = None) -> Running:
        record, out = tmp_path / "record" / name, tmp_path / "out"
        running[name] = Running(upstream.pd_addr, tmp_path / name, out, etcd=etcd, tls=tls, record=record)
        return running[name]

    yield one
    for each in running.values():
        each.stop()
    for path in recorded(tmp_path):
        with path.open("rb") as lines:
            assert replay(lines).difference is None, "what the machines did is not what their events bring"


def recorded(folder: Path) -> list[Path]:
    """The records of all captures."""
    return [path for one in sorted((folder / "record").glob("*")) for path in segments(one)]


def shares(running: Running) -> dict[str, int]:
    """How many tables each capture delivers, by its address; empty until all of it is delivered."""
    found = running.feed("one").get("tidegate", {}).get("captures", [])
    if not found or not all(one["running"] for one in found):
        return {}
    tables: dict[str, int] = {}
    for one in found:
        tables[one["address"]] = tables.get(one["address"], 0) + one["tables"]
    return tables


def running_ranges(running: Running) -> float:
    """The number of running ranges in the metrics."""
    page = httpx.get(f"http://{running.address}/metrics", timeout=120, trust_env=False, verify=False).text
    name = 'tidegate_changefeed_ranges{changefeed="one",namespace="default",state="running"} '
    return sum(float(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name))


def delivers(running: Running, bank: BankWorkload) -> None:
    """Check that rows committed from now on arrive."""
    work(bank, 60)
    last = running.capture.pd.tso()
    wait_for(lambda: reached(running) >= last, "all is delivered")


@pytest.mark.slow
def test_captures_come_and_go_and_all_rows_arrive_once(
    start: Start, bank: BankWorkload, fenced: list[set[str]]
) -> None:
    first = start("a")
    assert first.create("one")["http"] == 200
    delivers(first, bank)
    assert fenced == [], "one capture fences for itself"
    second = start("b")
    wait_for(lambda: len(shares(first)) == 2, "both deliver")
    delivers(first, bank)
    both = {first.capture.node.capture, second.capture.node.capture}
    assert fenced == [both], "all earlier writers are stopped before anybody begins"
    listed = first.call("GET", "/processors")["items"]
    assert {one["capture_id"] for one in listed} == {first.capture.id, second.capture.id}
    tables = [first.call("GET", f"/processors/one/{one.capture.id}")["table_ids"] for one in (first, second)]
    assert all(tables)
    assert not set(tables[0]) & set(tables[1])

    node = first.capture.node
    front = grant_key(node.cluster, ONE, "")
    stored = {kv.key.removeprefix(front): json.loads(kv.value) for kv in node.metadata.under(front)}
    assert stored.keys() == both
    assert all(one["ranges"] and not one["givers"] for one in stored.values()), "givers are fenced"
    assert len({tuple(one["token"]) for one in stored.values()}) == 1, "a round has one token"

    second.stop()
    wait_for(lambda: list(shares(first)) == [first.address], "what is left delivers all")
    delivers(first, bank)

    third = start("c")
    wait_for(lambda: len(shares(first)) == 2, "two deliver again")
    delivers(first, bank)
    first.stop()
    wait_for(lambda: third.capture.ready, "the next owner")
    wait_for(lambda: list(shares(third)) == [third.address], "it delivers all")
    delivers(third, bank)
    check_order(third.lines("one"))


def test_an_owner_that_resigns_delivers_its_share_under_the_next_one(
    start: Start, bank: BankWorkload, fenced: list[set[str]]
) -> None:
    """Otherwise its ranges would be pulled elsewhere, and the checkpoint would wait for that."""
    first = start("a")
    assert first.create("one")["http"] == 200
    second = start("b")
    wait_for(lambda: len(shares(first)) == 2, "both deliver")
    delivers(first, bank)
    there, capture = shares(first), first.capture
    pids, rounds = {one.capture.node.application.pid for one in (first, second)}, len(fenced)
    terms = [capture.node.owner_rev]
    for owner, other in ((first, second), (second, first)):
        assert owner.call("POST", "/owner/resign")["http"] == 202
        wait_for(lambda one=other: one.capture.ready, "the other one is elected")  # type: ignore[misc]
        delivers(owner, bank)  # it passes requests on
        assert not owner.capture.ready
        assert shares(other) == there, "nothing has moved"
        terms.append(other.capture.node.owner_rev)
    assert first.capture is capture, "its session has not ended"
    assert terms == sorted(set(terms))
    assert len(fenced) == rounds + 2, "one incarnation under each owner"
    assert {one.capture.node.application.pid for one in (first, second)} == pids
    check_order(first.lines("one"))


def test_the_record_of_a_run_replays_and_one_changed_effect_is_found(
    start: Start, bank: BankWorkload, fenced: list[set[str]], tmp_path: Path
) -> None:
    """The captures have threads, etcd and a network; the machines must have nothing but their events."""
    first, second = start("a"), start("b")
    assert first.create("one")["http"] == 200
    wait_for(lambda: len(shares(first)) == 2, "both deliver")
    delivers(first, bank)
    second.stop()
    wait_for(lambda: list(shares(first)) == [first.address], "what is left delivers all")
    first.stop()
    done = [(path, replay(path.open("rb"))) for path in recorded(tmp_path)]
    assert all(one.difference is None for _, one in done)
    (owner,) = [path for path, one in done if one.machine == "owner"]
    assert len([one for _, one in done if one.machine == "processor" and one.events > 20]) == 2
    lines = owner.read_bytes().splitlines(keepends=True)
    events = [json.loads(line) for line in lines[1:]]
    seen = {one["event"] for one in events}
    assert {"grant", "learn", "report", "running", "sink_open", "resolved_done", "persisted"} <= seen
    at = next(at for at, one in enumerate(events, 1) if one["event"] == "tick" and one["gave"])
    lines[at] = json.dumps(events[at - 1] | {"gave": []}).encode() + b"\n"
    found = replay(lines).difference
    assert found is not None
    assert (found.line, found.event, found.what, found.recorded) == (at + 1, "tick", "effects", "[]")


@pytest.mark.slow
def test_a_capture_that_holds_its_session_but_is_silent_is_left_behind(
    start: Start, bank: BankWorkload, fenced: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As TiCDC waits for ever for a capture that is leased and cannot be reached."""
    monkeypatch.setattr("tidegate.server.owner.peers.SILENT_S", SILENT_S / 4)
    first, second = start("a"), start("b")
    assert first.create("one")["http"] == 200
    wait_for(lambda: len(shares(first)) == 2, "both deliver")
    name, rounds = second.capture.node.capture, len(fenced)
    node = first.capture.node
    sent = MessageClient.send

    def send(self: MessageClient, capture: str, message: bytes) -> None:
        if self._headers["x-tidegate-capture"] != name:
            sent(self, capture, message)

    monkeypatch.setattr(MessageClient, "send", send)
    wait_for(lambda: list(shares(first)) == [first.address], "the silent one is left behind")
    delivers(first, bank)
    own = node.metadata.get(grant_key(node.cluster, ONE, node.capture))
    assert own is not None
    assert name in json.loads(own.value)["givers"], "its first worker fences those of the silent one"
    assert len(fenced) == rounds, "the owner need not do it for a single capture"
    monkeypatch.setattr(MessageClient, "send", sent)
    wait_for(lambda: len(shares(first)) == 2, "it reports again, and delivers")
    delivers(first, bank)


def test_a_feed_that_pauses_is_released_everywhere_and_resumes(
    start: Start, bank: BankWorkload, fenced: list[set[str]]
) -> None:
    first, second = start("a"), start("b")
    assert first.create("one")["http"] == 200
    wait_for(lambda: len(shares(first)) == 2, "both deliver")
    delivers(first, bank)
    assert second.call("POST", "/changefeeds/one/pause")["http"] == 200
    processor = second.capture.processor_registry.processors[ONE]
    wait_for(lambda: processor.pipeline.pid == 0 and not processor.machine.spans.is_open, "it rests")
    assert not any(held for held in second.capture.spans.held)
    work(bank, 60)
    config = first.feed("one")["config"]
    updated = config | {"tidegate": config["tidegate"] | {"resolved_interval": "200ms"}}
    assert second.call("PUT", "/changefeeds/one", {"replica_config": updated})["http"] == 200
    assert second.call("POST", "/changefeeds/one/resume", {})["http"] == 200
    wait_for(lambda: len(shares(first)) == 2, "both deliver again")
    plans = [one.capture.processor_registry.processors[ONE].openings.opened.plan for one in (first, second)]
    assert [plan.config.tidegate.resolved_interval for plan in plans] == [0.2, 0.2], "as it was updated"
    delivers(first, bank)
    check_order(first.lines("one"))
    assert first.call("DELETE", "/changefeeds/one")["http"] == 200
    wait_for(lambda: not second.capture.spans.held, "nothing is held for a feed that is gone")
    node = first.capture.node
    assert fenced[-1] == {node.capture, second.capture.node.capture}
    left = [kv.key for kv in node.metadata.under(f"/tidegate/{node.cluster}/") if "/one" in kv.key]
    assert left == [], "not even grants: their writers are fenced"


def environment(tls: Tls | None) -> dict[str, str]:
    found: dict[str, str] = {}
    if tls is not None:
        tls.into(found)
    return found


def tidegate(*words: str, tls: Tls | None = None) -> str:
    done = CliRunner(env=environment(tls)).invoke(command_line, list(words))
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
def test_a_capture_is_drained_and_given_ranges_again(
    start: Start, bank: BankWorkload, fenced: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes its ranges pulls them before, otherwise the checkpoint would stand while upstream scans."""
    first, second = start("a"), start("b")
    assert first.create("one")["http"] == 200
    wait_for(lambda: len(shares(first)) == 2, "both deliver")
    sharing = first.capture.reactor.feeds[ONE].replication.shares.sharing
    processor, seen = second.capture.processor_registry.processors[ONE], []
    machine, spans, look = processor.machine, second.capture.spans, ComingRanges.look

    def noted(self: ComingRanges, frontier: Mapping[str, int], checkpoint: int) -> None:
        look(self, frontier, checkpoint)
        opening = processor.openings.current
        if opening is not None and self is opening.coming and self.since_ts is not None:
            seen.append((machine.received, len(spans.held), len(machine.spans.tasks)))

    monkeypatch.setattr(ComingRanges, "look", noted)
    monkeypatch.setattr("tidegate.server.processor.opening.NEEDS_S", 0.1)
    shown = tidegate("capture", "drain", first.capture.id, "--server", second.address)
    assert "has nothing left" in shown
    wait_for(lambda: list(shares(first)) == [second.address], "the owner is drained, and owns it still")
    received, held, delivered = seen[-1]
    assert received > 0
    assert held > delivered + 1, "more than its own tables, and DDL"
    assert sharing.next is None
    delivers(first, bank)
    assert "(drained)" in tidegate("capture", "list", "--server", first.address)

    assert "again" in tidegate("capture", "drain", first.capture.id, "--back", "--server", first.address)
    wait_for(lambda: len(shares(first)) == 2, "both deliver again")
    delivers(first, bank)
    shown = tidegate("changefeed", "query", "-c", "one", "--ranges", "--server", first.address)
    assert first.address in shown
    assert second.address in shown
    assert "BYTES/S" in shown
    wait_for(lambda: running_ranges(first) == len(first.feed("one")["tidegate"]["captures"]), "metrics agree")
    shown = tidegate("changefeed", "rebalance", "-c", "one", "--dry-run", "--server", first.address)
    assert "nothing to move" in shown or "would move" in shown
    cost = first.call("POST", "/changefeeds/one/rebalance", {"dry_run": True})["cost"]
    assert cost["is_gap_measured"], "the drain and its end have divided the key space again"

    # A process that starts again under the same name is not drained any more.
    tidegate("capture", "drain", second.capture.id, "--server", first.address)
    second.stop()
    second = start("b")
    wait_for(lambda: len(shares(first)) == 2, "the new process delivers")
    check_order(first.lines("one"))


def all_tables(running: Running) -> list[dict[str, str]]:
    body = {"sink_uri": "kafka://127.0.0.1:1/t?protocol=open-protocol", "replica_config": {}}
    found: list[dict[str, str]] = running.call("POST", "/verify_table", body)["eligible_tables"]
    return found


@pytest.mark.slow
def test_over_tls_a_capture_that_is_evicted_joins_again(
    start: Start, bank: BankWorkload, fenced: list[set[str]], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    tls = authority.signed("capture")
    first, second = start("a", tls), start("b", tls)
    assert second.call("POST", "/tso", {})["http"] == 200, "the second passes it on to the owner"
    assert first.create("one")["http"] == 200
    (own,) = [
        one["tidegate"] for one in first.call("GET", "/captures")["items"] if one["id"] == first.capture.id
    ]
    assert own["left"] >= 1, "a changefeed that starts may be delivered by any capture"
    wait_for(lambda: len(shares(first)) == 2, "both deliver")
    before = second.capture
    tidegate("capture", "evict", before.id, "--server", f"https://{second.address}", tls=tls)
    wait_for(lambda: second.capture is not before, "it has a new session")
    assert second.capture.id == before.id, "a drained one stays drained"
    wait_for(lambda: len(shares(first)) == 2, "it delivers again")
    move = ["changefeed", "move", "-c", "one", "--server", f"https://{second.address}", "--to"]
    tables = [f"{table['database_name']}.{table['table_name']}" for table in all_tables(first)]
    assert " moving, with " in tidegate(*move, second.capture.id, *tables, tls=tls)
    wait_for(lambda: list(shares(first)) == [second.address], "the second has all tables")
    assert "nothing to move" in tidegate(*move, second.capture.id, *tables, tls=tls)
    delivers(first, bank)
    tidegate("changefeed", "rebalance", "-c", "one", "--server", f"https://{first.address}", tls=tls)
    wait_for(lambda: len(shares(first)) == 2, "both have tables again")
    delivers(first, bank)
    check_order(first.lines("one"))
    refused = CliRunner(env=environment(tls)).invoke(
        command_line, ["capture", "evict", first.capture.id, "--server", f"https://{first.address}"]
    )
    assert refused.exit_code != 0
    assert "resign" in refused.output


def test_what_is_no_message_of_a_capture_is_refused(start: Start) -> None:
    one = start("a")
    url, cluster = f"http://{one.address}/api/v2/messages", str(one.capture.cluster)

    def answer(body: bytes, cluster: str = cluster) -> int:
        headers = {
            "x-tidegate-capture": "x",
            "x-tidegate-cluster": cluster,
            "content-type": "application/json",
        }
        return httpx.post(url, content=body, headers=headers, trust_env=False, timeout=60).status_code

    for body in (b"{}", b"[1]", b'[{"a": 1}]', b"not JSON", b"[" * 100_000):
        assert answer(body) == 400, body[:20]
    assert answer(b"[]", "8") == 400
    assert answer(b"[]") == 200
