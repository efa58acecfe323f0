"""A whole capture over the embedded upstream: real processes, HTTP and command line; no Spark, no Kafka.

The pipeline and the owner's sink are stand-ins that write one file (`stand_in_pipeline`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server import forks
from tests.server.stand_in_pipeline import lines_of, opener
from tests.small_tables import ID, SmallTables, number, text
from typer.testing import CliRunner

from tidegate.api.listening import address_of, listen
from tidegate.api.serve import run
from tidegate.cli.main import app as command_line
from tidegate.clock import Clock, SystemClock
from tidegate.control.metadata import FeedId
from tidegate.kvclient.pd import PdClient
from tidegate.mounter import bases
from tidegate.mounter.catalogue import Catalogue
from tidegate.proto import metapb_pb2
from tidegate.server.capture import Capture, Options
from tidegate.server.captures.message_client import scheme
from tidegate.server.catalogue.catalogues import Shared
from tidegate.server.delivery.sink_thread import OpenSink
from tidegate.server.supervision.supervisor import Spawn, spawn
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.tls import Tls
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration

STAND_IN = Path(__file__).with_name("stand_in_application.py")


def wait_for(true: Callable[[], Any], what: str, seconds: float = 240.0) -> Any:
    deadline, pause = time.monotonic() + seconds, 0.01
    while not (found := true()):
        assert time.monotonic() < deadline, f"waited {seconds} s for: {what}"
        time.sleep(pause)
        pause = min(0.15, 1.25 * pause)  # a look takes some ms of CPU, from the capture that is waited for
    return found


class Running:
    """A capture in a thread of its own, driven over HTTP."""

    def __init__(
        self,
        pd: str,
        data_dir: Path,
        out: Path,
        open_sink: OpenSink | None = None,
        clock: Clock | None = None,
        puller_timeout_s: float = 60.0,
        event_store_bytes: int = 0,
        etcd: str = "",
        tls: Tls | None = None,
        record: Path | None = None,
        spawn: Spawn = forks.spawn,
    ) -> None:
        self.out, self.data_dir = out, data_dir
        out.mkdir(exist_ok=True)
        self._options = Options(
            pd,
            data_dir,
            application_command=lambda socket, _: [sys.executable, str(STAND_IN), str(out), str(socket)],
            open_sink=open_sink or opener(out),
            clock=clock or SystemClock(),
            puller_timeout_s=puller_timeout_s,
            event_store_bytes=event_store_bytes,
            etcd=etcd,
            session_ttl_s=8,
            standing_by=self._ready,
            api_tls=tls,
            record=record,
            spawn=spawn,
        )
        self.address = ""
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._up.wait(120)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        listener: socket.socket = listen("127.0.0.1:0")
        self.address = address_of(listener)
        await run(self._options, listener, self._ready, self._end)

    def _ready(self, capture: Capture) -> None:
        self.capture = capture
        self._up.set()

    def stop(self, within_s: float = 120) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(within_s)
            assert not self._thread.is_alive()

    def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        tls = self._options.api_tls
        answer = httpx.request(
            method,
            f"{scheme(tls)}://{self.address}/api/v2{path}",
            json=body,
            params=query,
            timeout=120,
            trust_env=False,
            # Reading the certificates of all authorities takes 20 ms of CPU, and tests ask often.
            verify=False if tls is None else tls.http_client(),
        )
        return answer.json() | {"http": answer.status_code}

    def create(self, name: str, **more: Any) -> Any:
        uri = f"kafka://127.0.0.1:1/{name}?protocol=open-protocol"
        body = {"changefeed_id": name, "sink_uri": uri, "replica_config": {"ignore_ineligible_table": True}}
        return self.call("POST", "/changefeeds", body | more)

    def feed(self, name: str) -> Any:
        return self.call("GET", f"/changefeeds/{name}")

    def lines(self, name: str) -> list[dict[str, Any]]:
        return lines_of(self.out / f"{name}.jsonl")

    def catalogue(self, name: str) -> dict[int, str]:
        """The tables that a feed would begin with again, by id: a base file, and the DDL span after it."""
        node, persisted = (
            self.capture.node,
            self.capture.reactor.feeds[FeedId("default", name)].record.persisted,
        )
        tables = bases.load_for(bases.folder_of(node.paths.store), persisted)
        for _ in Shared(Catalogue(tables, tables.resolved_ts), node.paths.store).read(persisted):
            pass
        return {table.id: table.name for table in tables.entries(persisted)}

    def wait_checkpoint(self, name: str, ts: int) -> None:
        try:
            wait_for(lambda: self.feed(name).get("checkpoint_ts", 0) >= ts, f"checkpoint of {name} at {ts}")
        except AssertionError as error:
            raise AssertionError(self.described(name)) from error

    def wait_state(self, name: str, state: str) -> Any:
        try:
            return wait_for(lambda: (f := self.feed(name))["state"] == state and f, f"{name} {state}")
        except AssertionError as error:
            raise AssertionError(self.described(name)) from error

    def described(self, name: str) -> str:
        """Return the state of a feed, for the report of a test whose feed hangs."""
        feed = self.feed(name)
        text = f"{feed['state']} {feed['checkpoint_ts']} {feed['error']} {feed['tidegate']}"
        return f"{text}\n{json.dumps(self.capture.spans.status)}"

    def pipeline_pid(self, name: str) -> int:
        def pid() -> int:
            processor = self.capture.processor_registry.processors.get(FeedId("default", name))
            return processor.pipeline.pid if processor is not None else 0

        return int(wait_for(pid, "a pipeline process"))


@pytest.fixture
def bank(upstream: EmbeddedUpstream) -> Iterator[BankWorkload]:
    workload = BankWorkload(upstream.pd_addr, 7, accounts=50, threads=2, ddl_every_rows=150)
    workload.setup()
    yield workload
    workload.close()


def work(bank: BankWorkload, rows: int) -> None:
    """So many rows more, and a DDL now and then."""
    bank.run(None, threading.Event(), max_rows=rows)


@pytest.fixture
def capture(upstream: EmbeddedUpstream, tmp_path: Path) -> Iterator[Running]:
    running = Running(upstream.pd_addr, tmp_path / "capture", tmp_path / "out")
    yield running
    running.stop()


def check_order(lines: list[dict[str, Any]]) -> tuple[int, int]:
    """Check a topic's promise: Resolved and DDL are in order among the rows, each row and DDL once."""
    resolved, rows, ddls, passed = 0, set(), [], 0
    for line in lines:
        if "resolved" in line:
            assert line["resolved"] > resolved
            resolved = line["resolved"]
        elif "row" in line:
            assert line["row"] > resolved, "a row at or below a Resolved came after it"
            assert line["row"] > passed, "a row at or below a DDL came after it"
            assert (line["row"], line["key"]) not in rows, "a row came twice"
            rows.add((line["row"], line["key"]))
        elif "ddl" in line:
            assert line["ddl"] > resolved, "a DDL at or below a Resolved came after it"
            assert all(ts <= line["ddl"] for ts, _ in rows), "a row above a DDL came before it"
            ddls.append((line["ddl"], line["seq"]))
            passed = line["ddl"]
    assert ddls == sorted(set(ddls)), "a DDL came twice or out of order"
    return len(rows), len(ddls)


def test_rows_and_ddl_arrive_in_order_once_through_kills_and_a_restart(
    upstream: EmbeddedUpstream, bank: BankWorkload, capture: Running, tmp_path: Path, pd: PdClient
) -> None:
    start_ts, early_ddls = pd.tso(), bank.stats.ddls
    made = capture.create("one", start_ts=start_ts)
    assert (made["http"], made["state"], made["start_ts"]) == (200, "normal", start_ts)
    work(bank, 400)
    capture.wait_checkpoint("one", pd.tso())
    before = check_order(capture.lines("one"))
    assert before[0] > 0
    assert before[1] > 0

    os.kill(capture.pipeline_pid("one"), signal.SIGKILL)
    work(bank, 400)
    capture.wait_checkpoint("one", pd.tso())
    os.kill(capture.capture.pullers.processes["tidb"].pid, signal.SIGKILL)
    work(bank, 400)
    capture.wait_checkpoint("one", pd.tso())
    capture.wait_state("one", "normal")

    capture.stop()
    work(bank, 400)
    # Here as outside tests: started with the product's command, by the product's launcher.
    again = Running(upstream.pd_addr, capture.data_dir, capture.out, spawn=spawn)
    try:
        end = pd.tso()
        again.wait_checkpoint("one", end)
        wait_for(lambda: max(x.get("resolved", 0) for x in again.lines("one")) >= end, "Resolved")
        rows, ddls = check_order(again.lines("one"))
        assert rows > before[0]
        assert ddls == bank.stats.ddls - early_ddls
        second = again.create("two", start_ts=start_ts, target_ts=end)
        assert second["http"] == 200
        again.wait_state("two", "finished")
        assert check_order(again.lines("two")) == (rows, ddls)
        last = again.lines("two")[-1]
        assert last.keys() - {"instance"} == {"resolved"}
        assert last["resolved"] == end
    finally:
        again.stop()


def test_a_sink_that_is_down_is_a_warning_that_passes(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    broken = capture.out / "one.broken"
    broken.touch()
    capture.create("one")
    shown = capture.wait_state("one", "warning")
    assert "The broker does not answer." in shown["error"]["message"]
    broken.unlink()
    work(bank, 100)
    capture.wait_checkpoint("one", pd.tso())
    capture.wait_state("one", "normal")
    assert capture.feed("one")["error"] is None


def test_a_sink_that_will_never_work_fails_the_feed_and_resume_tries_again(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    refused = capture.out / "one.refused"
    refused.touch()
    capture.create("one")
    shown = capture.wait_state("one", "failed")
    assert "Topic 'file' does not exist." in shown["error"]["message"]
    refused.unlink()
    assert capture.call("POST", "/changefeeds/one/resume", {})["http"] == 200
    capture.wait_checkpoint("one", pd.tso())


def test_pause_holds_the_checkpoint_and_resume_continues(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    capture.create("one")
    work(bank, 100)
    capture.wait_checkpoint("one", pd.tso())
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    held = capture.feed("one")
    assert held["state"] == "stopped"
    work(bank, 300)
    length = len(capture.lines("one"))

    def grant() -> Any:
        stored = capture.capture.node.metadata.under("/tidegate/")
        return next(json.loads(kv.value) for kv in stored if "/grant/" in kv.key)

    before = grant()
    assert capture.call("POST", "/changefeeds/one/resume", {})["http"] == 200
    capture.wait_checkpoint("one", pd.tso())
    assert len(capture.lines("one")) > length
    check_order(capture.lines("one"))
    after = grant()
    assert (after["incarnation"], after["token"]) == (before["incarnation"] + 1, before["token"])


def test_feeds_share_the_events_of_their_tables_and_each_keeps_its_place(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    start_ts = pd.tso()
    for name in ("one", "two", "three"):
        assert capture.create(name, start_ts=start_ts)["http"] == 200
    work(bank, 200)
    for name in ("one", "two"):
        capture.wait_checkpoint(name, pd.tso())
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    work(bank, 300)
    capture.wait_checkpoint("two", pd.tso())
    # Changes that one has not yet seen must outlive two's progress and three's end.
    assert capture.call("DELETE", "/changefeeds/three")["http"] == 200
    assert capture.call("POST", "/changefeeds/one/resume", {})["http"] == 200
    work(bank, 100)
    end = pd.tso()
    capture.wait_checkpoint("one", end)
    capture.wait_checkpoint("two", end)
    watched = [line.span for line in capture.capture.spans.status]
    assert len(watched) == len(set(watched)), "each span is pulled once, for all feeds"
    kept = [
        [line for line in capture.lines(name) if line.get("row", line.get("ddl", end)) < end]
        for name in ("one", "two")
    ]
    for lines in kept:
        check_order(lines)
    rows = [{(line["row"], line["key"]) for line in lines if "row" in line} for lines in kept]
    assert rows[0] == rows[1]
    assert len(rows[0]) >= 600


def test_remove_deletes_the_feed_and_its_name_is_free_again(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    capture.create("one")
    capture.wait_checkpoint("one", pd.tso())
    assert capture.call("DELETE", "/changefeeds/one")["http"] == 200
    gone = capture.feed("one")
    assert gone["http"] == 400
    assert "ErrChangeFeedNotExists" in gone["error_msg"]
    assert not (capture.data_dir / "feeds/default/one").exists()
    first = capture.capture.node.metadata.under("/tidegate/")
    assert [kv.key.split("/")[-3] for kv in first if "/one" in kv.key] == ["grant"]
    assert capture.create("one")["http"] == 200
    capture.wait_checkpoint("one", pd.tso())


def test_a_start_below_the_gc_safepoint_names_the_least_that_is_possible(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    early = pd.tso()
    late = pd.tso()
    pd.update_service_gc_safepoint("gc_worker", 1 << 40, late)
    pd.update_service_gc_safepoint("other", 1000, late)
    refused = capture.create("one", start_ts=early)
    assert (refused["http"], refused["error_code"]) == (400, "CDC:ErrStartTsBeforeGC")
    assert f"start-ts {early} is not above the GC safepoint {late}" in refused["error_msg"]
    assert "upstream has dropped old versions" in refused["error_msg"]
    assert f"use a start-ts of at least {late + 1}" in refused["error_msg"]
    assert capture.create("one", start_ts=late + 1)["http"] == 200
    held = pd.update_service_gc_safepoint("probe", 10, late + (1 << 30))
    assert held <= late


def test_requests_that_make_no_sense_are_answered_with_what_would(
    bank: BankWorkload, upstream: EmbeddedUpstream, capture: Running, pd: PdClient
) -> None:
    upstream.faults.stores = {7: metapb_pb2.Store(id=7, address="old:20160", version="v6.5.9")}
    assert "TiKV is too old: 7.5 is" in capture.create("one")["error_msg"]
    upstream.faults.clear()
    now = pd.tso()
    for more, words in (
        ({"sink_uri": "kafk://a/b"}, "did you mean 'kafka'"),
        ({"replica_config": {"filter": {"rules": ["nodot"]}}}, "write schema.table"),
        ({"start_ts": now + (1 << 40)}, "is in the future"),
        ({"start_ts": now, "target_ts": now - 1}, "is not above start-ts"),
        ({"changefeed_id": "a b"}, "is not a changefeed id"),
        ({"start_ts": "soon"}, "'start_ts' is not a number of 64 bits"),
    ):
        refused = capture.create("one", **more)
        assert refused["http"] == 400
        assert words in refused["error_msg"]
    assert capture.create("one")["http"] == 200
    twice = capture.create("one")
    assert twice["error_code"] == "CDC:ErrChangeFeedAlreadyExists"
    assert capture.call("POST", "/changefeeds/none/pause")["error_code"] == "CDC:ErrChangeFeedNotExists"


def test_rules_are_checked_against_the_tables_and_left_out_tables_named(
    capture: Running, pd: PdClient, tmp_path: Path
) -> None:
    SmallTables(pd, "shop", {"orders": [ID, number("total")], "log": [number("a"), text("b")]})

    def refused(**config: Any) -> str:
        answer = capture.create("one", replica_config={"ignore_ineligible_table": True, **config})
        assert answer["http"] == 400, answer
        return f"{answer['error_code']} {answer['error_msg']}"

    def event_filter(**rule: Any) -> dict[str, Any]:
        return {"event_filters": [{"matcher": ["shop.*"], **rule}]}

    unknown = refused(filter=event_filter(ignore_insert_value_expr="age > 3"))
    assert "CDC:ErrExpressionColumnNotFound" in unknown
    assert "there is no column 'age'; the table has id, total" in unknown
    beyond = refused(filter=event_filter(ignore_delete_value_expr="rand() > 1"))
    assert "CDC:ErrExpressionParseFailed" in beyond
    assert "rand() is not in the subset" in beyond
    hidden = refused(sink={"column_selectors": [{"matcher": ["shop.orders"], "columns": ["total"]}]})
    assert "CDC:ErrColumnSelectorFailed" in hidden
    kinds = refused(filter=event_filter(ignore_event=["inserts"]))
    assert "CDC:ErrInvalidIgnoreEventType" in kinds
    assert "did you mean 'insert'?" in kinds
    no_key = "shop.log: it has no primary key and no unique key"
    strict = refused(ignore_ineligible_table=False)
    assert "CDC:ErrTableIneligible" in strict
    assert no_key in strict
    assert "force-replicate = true to send them without a key" in strict

    def tidegate(*words: str) -> str:
        result = CliRunner().invoke(command_line, ["changefeed", *words, "--server", capture.address])
        assert result.exit_code == 0, result.output
        return str(result.output)

    uri = "kafka://127.0.0.1:1/one?protocol=open-protocol"
    assert f"  {no_key}" in tidegate("create", "-c", "one", "--sink-uri", uri)
    capture.wait_checkpoint("one", pd.tso())
    assert no_key in tidegate("query", "-c", "one")
    assert capture.feed("one")["tidegate"]["ineligible"] == 1
    forced = tmp_path / "forced.toml"
    forced.write_text("force-replicate = true")
    tidegate("create", "-c", "two", "--sink-uri", uri, "--config", str(forced))
    capture.wait_checkpoint("two", pd.tso())
    assert "left out" not in tidegate("query", "-c", "two")
    assert len(capture.feed("two")["tidegate"]["spans"]) == 2


def test_a_paused_feed_takes_other_settings_and_resumes_with_them(
    bank: BankWorkload, capture: Running, pd: PdClient, tmp_path: Path
) -> None:
    def tidegate(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(command_line, ["changefeed", *words, "--server", capture.address])
        return result.exit_code, result.output

    uri = "kafka://127.0.0.1:1/one?protocol=open-protocol&sasl-user=u&sasl-password=hidden"
    accounts = {"filter": {"rules": ["bank.accounts"]}}
    assert capture.create("one", sink_uri=uri, replica_config=accounts)["http"] == 200
    work(bank, 100)
    capture.wait_checkpoint("one", pd.tso())
    code, text = tidegate("update", "-c", "one", "--target-ts", str(pd.tso()))
    assert code == 2
    assert "CDC:ErrChangefeedUpdateRefused" in text
    assert "tidegate changefeed pause -c one" in text
    assert tidegate("pause", "-c", "one")[0] == 0
    checkpoint, feed = capture.feed("one")["checkpoint_ts"], capture.capture.reactor.feeds
    before = feed[FeedId("default", "one")].record.info

    file = tmp_path / "more.toml"
    file.write_text(
        "[filter]\nrules = ['bank.*']\n[integrity]\nintegrity-check-level = 'correctness'\n"
        "[sink.kafka-config]\npartition-num = 0"
    )
    assert "nothing would change" in tidegate("update", "-c", "one")[1].lower()
    code, text = tidegate("update", "-c", "one", "--config", str(file))
    assert (code, "updated changefeed default/one, which is stopped" in text) == (0, True)
    assert 'filter.rules: ["bank.accounts"] -> ["bank.*"]' in text
    assert 'integrity.integrity-check-level: "none" -> "correctness"' in text
    assert "hidden" not in text
    assert "not above the checkpoint" in tidegate("update", "-c", "one", "--target-ts", str(checkpoint))[1]
    refused = capture.call("PUT", "/changefeeds/one", {"start_ts": 5})
    assert (refused["http"], refused["error_code"]) == (400, "CDC:ErrAPIInvalidParam")
    refused = capture.call("PUT", "/changefeeds/one", {"replica_config": {"filter": {"rules": ["nodot"]}}})
    assert "write schema.table" in refused["error_msg"]
    after = feed[FeedId("default", "one")].record.info
    assert after.config["sink"]["kafka_config"]["sasl_password"] == "hidden"
    assert (after.instance, after.start_ts) == (before.instance, before.start_ts)

    work(bank, 200)
    end = pd.tso()
    assert tidegate("update", "-c", "one", "--target-ts", str(end), "--no-confirm")[0] == 0
    assert tidegate("resume", "-c", "one")[0] == 0
    capture.wait_state("one", "finished")
    (path,) = (capture.data_dir / "feeds/default/one").glob("spec-*.json")
    spec = json.loads(path.read_text())
    assert spec["config"]["integrity"]["integrity_check_level"] == "correctness"
    rows = [line for line in capture.lines("one") if "row" in line]
    assert {line["table"] for line in rows if line["row"] <= checkpoint} == {"bank.accounts"}
    assert {line["table"] for line in rows if line["row"] > checkpoint} > {"bank.accounts"}


def test_another_topic_is_sent_everything_above_the_checkpoint(
    bank: BankWorkload, capture: Running, pd: PdClient
) -> None:
    capture.create("one")
    capture.wait_checkpoint("one", pd.tso())
    assert capture.call("POST", "/changefeeds/one/pause")["http"] == 200
    feeds = capture.capture.reactor.feeds
    before = feeds[FeedId("default", "one")].record.info.instance
    moved = capture.call(
        "PUT", "/changefeeds/one", {"sink_uri": "kafka://127.0.0.1:1/two?protocol=open-protocol"}
    )
    assert (moved["http"], moved["sink_uri"]) == (200, "kafka://127.0.0.1:1/two?protocol=open-protocol")
    assert feeds[FeedId("default", "one")].record.info.instance != before


def test_the_command_line_drives_a_capture(bank: BankWorkload, capture: Running, pd: PdClient) -> None:
    def tidegate(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(command_line, ["changefeed", *words, "--server", capture.address])
        return result.exit_code, result.output

    uri = "kafka://127.0.0.1:1/one?protocol=open-protocol&sasl-user=u&sasl-password=hidden"
    code, text = tidegate("create", "--changefeed-id", "one", "--sink-uri", uri)
    assert (code, text.split(", start-ts")[0]) == (0, "created changefeed default/one")
    assert "IF APPLIED BY" in text
    assert all(level in text for level in ("ROW", "TABLE", "TRANSACTION"))
    assert "its rows of one table" in text
    capture.wait_checkpoint("one", pd.tso())
    code, text = tidegate("list", "--json")
    assert [f["id"] for f in json.loads(text)] == ["one"]
    for words, reported in ((["list"], "yes    " + capture.address), (["status"], "changefeeds  1 normal")):
        shown = CliRunner().invoke(command_line, ["capture", *words, "--server", capture.address])
        assert shown.exit_code == 0
        assert reported in shown.output
        assert capture.capture.id in shown.output
    code, text = tidegate("query", "-c", "one")
    assert code == 0
    assert "hidden" not in text
    assert tidegate("pause", "-c", "one")[0] == 0
    assert "stopped" in tidegate("list")[1]
    assert tidegate("resume", "-c", "one")[0] == 0
    assert tidegate("remove", "-c", "one")[0] == 0
    code, text = tidegate("query", "-c", "one")
    assert code == 2
    assert "ErrChangeFeedNotExists" in text
    code, text = tidegate("create", "--sink-uri", "kafka://a/b?protocl=x")
    assert code == 2
    assert "did you mean 'protocol'" in text


def test_the_api_answers_what_ticdcs_command_line_asks_first(capture: Running, pd: PdClient) -> None:
    status = capture.call("GET", "/status")
    assert status["version"].startswith("v8.5.0")
    assert status["cluster_id"] == str(pd.cluster_id)
    nothing = {"pid": 0, "workers": 0, "at_work": [], "waiting": []}
    assert status["application"] == nothing, "it comes with the first changefeed"
    assert capture.call("GET", "/captures")["items"][0]["is_owner"]
    time_now = capture.call("POST", "/tso", {"id": 0})
    assert (time_now["timestamp"] << 18) <= pd.tso()
    wait_for(lambda: capture.call("GET", "/health")["http"] == 200, "healthy")
    text = httpx.get(f"http://{capture.address}/metrics", trust_env=False, timeout=120, verify=False).text
    assert "tidegate_owner_checkpoint_ts" in text
