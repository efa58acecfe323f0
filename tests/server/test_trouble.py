"""A capture whose surroundings fail: PD away at the start, a broker that goes and comes, damaged files."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures.kafka import Broker
from tests.server.test_capture import Running, bank, capture, wait_for, work
from tests.server.test_updates import open_to_others
from typer.testing import CliRunner

from tidegate.cli.main import app as command_line
from tidegate.kvclient.pd import PdClient
from tidegate.server.catalogue.catalogues import DDL_SPAN_ID, Catalogues
from tidegate.server.delivery.sink_thread import open_owner
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration
__all__ = ["bank", "capture"]
STOP_S = 240
"""Seconds on an idle machine; what hangs, hangs for ever."""


def free_address() -> str:
    """An address where nobody listens yet; of a port that the kernel never gives out by itself, or somebody
    might have it by the time the test listens there."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as one, suppress(OSError):  # in use: another one
            one.bind(("127.0.0.1", random.randrange(10_000, lowest)))
            return f"127.0.0.1:{one.getsockname()[1]}"


@contextmanager
def server(pd: str, data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """`tidegate server` as a process."""
    command = [sys.executable, "-m", "tidegate", "server", "--pd", pd, "--data-dir", str(data_dir), "--json"]
    process = subprocess.Popen(
        [*command, "--addr", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def logged(process: subprocess.Popen[str], message: str) -> dict[str, Any]:
    """The next line of the log with that message."""
    assert process.stderr is not None
    for line in process.stderr:
        found: dict[str, Any] = json.loads(line)
        if found["message"] == message:
            return found
    raise AssertionError(f"the log ended without '{message}'")


def test_a_pd_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    pd, data_dir = free_address(), tmp_path / "capture"
    with server(pd, data_dir) as process:
        waiting = logged(process, "waiting for PD")
        assert (waiting["level"], waiting["pd"]) == ("warning", pd)
        assert "UNAVAILABLE" in waiting["why"]
        assert "check that it runs" in waiting["fix"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0
    with server(pd, data_dir) as process:
        api = f"http://{logged(process, 'waiting for PD')['api']}"
        status = httpx.get(f"{api}/status", trust_env=False, timeout=120).json()
        assert status["waiting_for"] == f"PD at {pd} to answer"
        assert (status["is_owner"], status["cluster_id"]) == (False, "")
        refused = CliRunner().invoke(command_line, ["changefeed", "list", "--server", api])
        assert refused.exit_code == 1
        assert "the capture is not ready yet" in refused.output
        assert f"it waits for PD at {pd} to answer" in refused.output
        with EmbeddedUpstream(tmp_path / "upstream", pd, regions=1):
            assert logged(process, "PD answers")["pd"] == pd
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["event"] == "ready"
            status = httpx.get(f"{api}/status", trust_env=False, timeout=120).json()
            assert (status["waiting_for"], status["is_owner"]) == ("", True)
            files = [path for path in data_dir.rglob("*") if path.is_file()]
            assert files
            assert open_to_others(files) == [], "others cannot read them"
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_S) == 0


def test_a_server_whose_processes_all_get_sigterm_at_once_ends_in_order(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    """As service managers do: SIGTERM to all of a service, the children first here."""
    data_dir = tmp_path / "capture"
    with server(upstream.pd_addr, data_dir) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for pid in [int(pid) for pid in children.read_text().split()]:
            os.kill(pid, signal.SIGTERM)
        os.killpg(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=STOP_S)
        assert (process.returncode, "Traceback" in errors) == (0, False)
    assert "Traceback" not in (data_dir / "puller.log").read_text()


class OnKafka(Running):
    """A capture whose owner's messages go to a real broker; its rows to a file."""

    def __init__(self, pd: str, data_dir: Path, out: Path, kafka: str) -> None:
        self.kafka = kafka
        super().__init__(pd, data_dir, out, open_sink=open_owner)

    def create(self, name: str, options: str = "", **more: Any) -> Any:
        uri = f"kafka://{self.kafka}/{name}?protocol=open-protocol{options}"
        body = {"changefeed_id": name, "sink_uri": uri, "replica_config": {"ignore_ineligible_table": True}}
        return self.call("POST", "/changefeeds", body | more)


@pytest.mark.slow
def test_a_lost_broker_is_a_passing_warning_and_never_blocks_a_shutdown(
    bank: BankWorkload,
    upstream: EmbeddedUpstream,
    kafka_broker: Broker,
    pd: PdClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"away-{os.urandom(4).hex()}"
    running = OnKafka(upstream.pd_addr, tmp_path / "capture", tmp_path / "out", kafka_broker.bootstrap)
    try:
        assert running.create(name)["http"] == 200
        work(bank, 100)
        running.wait_checkpoint(name, pd.tso())
        # From here on, calls to a broker that does not answer end after seconds, not after a quarter of a
        # minute. Before that, a slow machine may need as long for an answer.
        for module in ("client", "owner_sink", "topics"):
            monkeypatch.setattr(f"tidegate.sink.kafka.{module}.CALL_TIMEOUT_S", 2.0)
        kafka_broker.kill()
        message = running.wait_state(name, "warning")["error"]["message"]
        assert message.startswith("Kafka does not answer")
        assert f"where: {kafka_broker.bootstrap}" in message
        assert "why: " in message
        assert "check that the broker runs" in message
        assert "continues by itself" in message
        running.stop(STOP_S)
        running = OnKafka(upstream.pd_addr, tmp_path / "capture", tmp_path / "out", kafka_broker.bootstrap)
        assert "Kafka does not answer" in running.wait_state(name, "warning")["error"]["message"]
        listed = CliRunner().invoke(command_line, ["changefeed", "list", "--server", running.address])
        assert "warning" in listed.output
        assert "Kafka does not answer" in listed.output
    finally:
        monkeypatch.undo()
        kafka_broker.start()
        work(bank, 100)
        running.wait_checkpoint(name, pd.tso())
        assert running.wait_state(name, "normal")["error"] is None
        running.stop()


@pytest.mark.parametrize(
    ("options", "partitions", "what", "fix"),
    [
        ("&auto-create-topic=false", 0, "does not exist", "create it, or set auto-create-topic=true"),
        (
            "&partition-num=5",
            2,
            "has 2 partitions, fewer than partition-num=5",
            "set partition-num to at most 2",
        ),
        ("&max-message-bytes=20000000", 1, "exceeds what topic", "set max-message-bytes="),
    ],
)
def test_a_topic_that_does_not_fit_fails_the_feed_with_what_to_do(
    upstream: EmbeddedUpstream,
    bank: BankWorkload,
    kafka: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    options: str,
    partitions: int,
    what: str,
    fix: str,
) -> None:
    topic = new_topic(partitions) if partitions else f"missing-{os.urandom(4).hex()}"
    running = OnKafka(upstream.pd_addr, tmp_path / "capture", tmp_path / "out", kafka)
    try:
        running.create(topic, options)
        message = running.wait_state(topic, "failed")["error"]["message"]
        assert what in message
        assert f"'{topic}'" in message
        assert f"where: {kafka}" in message
        assert fix in message
    finally:
        running.stop()


def test_what_a_protocol_does_not_have_is_refused_at_the_door(capture: Running) -> None:
    for options, word in (
        ("protocol=open-protocol&enable-tidb-extension=true", "use protocol canal-json"),
        ("protocol=canal-json&max-message-bytes=2000000000", "use 1024 to 1073741824"),
    ):
        refused = capture.create("one", sink_uri=f"kafka://127.0.0.1:1/one?{options}")
        assert refused["http"] == 400
        assert word in refused["error_msg"]
    assert capture.call("GET", "/changefeeds")["total"] == 0


def test_a_protocol_without_watermarks_is_remarked(capture: Running) -> None:
    def create(name: str, options: str, protocol: str = "canal-json") -> str:
        uri = f"kafka://127.0.0.1:1/{name}?protocol={protocol}{options}"
        words = ["create", "-c", name, "--sink-uri", uri, "--server", capture.address]
        return CliRunner().invoke(command_line, ["changefeed", *words]).output

    assert "carries no watermarks" in create("one", "")
    assert "carries no watermarks" not in create("two", "&enable-tidb-extension=true")
    avro = "&schema-registry=http%3A%2F%2F127.0.0.1%3A1&enable-tidb-extension=true"
    assert "avro without enable-tidb-extension=true&avro-enable-watermark=true" in create(
        "three", avro, "avro"
    )
    assert "carries no watermarks" not in create("four", f"{avro}&avro-enable-watermark=true", "avro")


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (f"{DDL_SPAN_ID}/manifest", "manifest of the event store is corrupt"),
        (f"{DDL_SPAN_ID}/*.arrow", "a segment of the event store is corrupt"),
    ],
)
def test_a_damaged_event_store_is_named_and_never_served(
    bank: BankWorkload,
    capture: Running,
    upstream: EmbeddedUpstream,
    pd: PdClient,
    monkeypatch: pytest.MonkeyPatch,
    pattern: str,
    what: str,
) -> None:
    monkeypatch.setattr(Catalogues, "keep", lambda *given: None)  # all DDL has to be read again
    capture.create("one")
    work(bank, 200)
    capture.wait_checkpoint("one", pd.tso())
    capture.stop()
    served = len(capture.lines("one"))
    files = list(capture.data_dir.glob(f"events/*/tidb/{pattern}"))
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0x55
        file.write_bytes(bytes(data))
    work(bank, 200)
    again = Running(upstream.pd_addr, capture.data_dir, capture.out)
    try:
        message = wait_for(lambda: again.feed("one")["error"], "the error")["message"]
        assert what in message
        assert any(str(file) in message for file in files), "which file"
        assert "CRC32C" in message or "byte" in message, "why"
        assert "to do: " in message
        assert len(again.lines("one")) == served
    finally:
        again.stop()
