"""A capture is attacked over HTTP while a feed runs: its status answers, and the feed keeps running."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.server.test_capture import Running
from tidegate.kvclient.pd import PdClient
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration

ANSWER_S: Final = 5.0
"""CPU time of this process only, because the machine may be busy. A second is promised; what this guards
against took 12 s and more."""
PATIENT_S: Final = 600.0
ECHO_MAX: Final = 8_000
"""An answer may show what is wrong, not send it all back."""
JSON: Final = "application/json"
MANY: Final = 60
URI: Final = "kafka://127.0.0.1:1/t?protocol=open-protocol"


class Poller:
    """Asks for the status all the time; the slowest answer is what this process computed meanwhile."""

    def __init__(self, address: str) -> None:
        self.slowest, self.answers = 0.0, 0
        self._url, self._done = f"http://{address}/api/v2/status", threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(trust_env=False, timeout=120) as client:
            while not self._done.wait(0.02):
                began = time.process_time()
                try:
                    assert client.get(self._url).status_code == 200
                except httpx.TransportError:
                    continue  # too slow with its own request, in a test of such
                self.slowest = max(self.slowest, time.process_time() - began)
                self.answers += 1


@pytest.fixture
def running(upstream: EmbeddedUpstream, tmp_path: Path) -> Iterator[Running]:
    capture = Running(upstream.pd_addr, tmp_path / "capture", tmp_path / "out")
    yield capture
    capture.stop()


def feed(uri: str = URI, **config: Any) -> bytes:
    return json.dumps({"changefeed_id": "x", "sink_uri": uri, "replica_config": config}).encode()


def rules(*found: str) -> bytes:
    return feed(filter={"rules": list(found)})


def event_filter(**found: Any) -> bytes:
    return feed(filter={"event_filters": [{"matcher": ["*.*"]} | found]})


BODIES: Final[dict[str, bytes]] = {
    "a rule that was exponential": rules("/" + "\\a" * 120),
    "a rule that was never closed": rules("/" + "(a+)+" * 40_000),
    "a rule of 3 MB": rules("*" * 3_000_000),
    "rules without end": rules(*(f"a{number}*.b?" for number in range(150_000))),
    "brackets without end": rules("[" * 1_000_000 + ".x"),
    "a URI of 20 KB": feed("kafka://" + "user:pass@" * 2_000 + "/t"),
    "a URI of 3 MB": feed(URI + "&a=" + "'\"{,;" * 600_000),
    "hosts without end": feed("kafka://" + ",".join("h:1" for _ in range(700_000)) + "/t"),
    "options without end": feed(URI + "".join(f"&o{number}=1" for number in range(200_000))),
    "a protocol of 3 MB": feed("kafka://127.0.0.1:1/t?protocol=" + "p" * 3_000_000),
    "an expression of brackets": event_filter(ignore_insert_value_expr="(" * 500_000),
    "an expression of sums": event_filter(ignore_insert_value_expr="a" + "+a" * 700_000),
    "a query pattern": event_filter(ignore_sql=["(a|a)*" * 10_000 + "("]),
    "a name of 3 MB": json.dumps({"changefeed_id": "n" * 3_000_000, "sink_uri": URI}).encode(),
    "columns without end": feed(
        sink={"column_selectors": [{"matcher": ["*.*"], "columns": ["c*"] * 400_000}]}
    ),
    "dispatchers without end": feed(
        sink={"dispatchers": [{"matcher": ["*.*"], "partition": "nothing"}] * 50_000}
    ),
    "as much as may be": rules(*(["/" + "(a|b)*" * 1_300 + "/.*"] * 50), "[.x"),
    "columns as many as may be": feed(
        sink={"column_selectors": [{"matcher": ["*.*"], "columns": [*["c*"] * 4_900, "["]}]}
    ),
    "lists in lists": b'{"changefeed_id":' + b"[" * 2_000_000,
    "objects in objects": b'{"a":' * 500_000,
    "a number of 3 MB": b'{"start_ts":' + b"9" * 3_000_000 + b"}",
    "no UTF-8": b'{"a":"' + b"\xff" * 3_000_000 + b'"}',
}


@pytest.mark.timeout(900)
def test_status_answers_and_the_feed_runs_while_the_api_is_attacked(
    running: Running, pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert running.create("one")["http"] == 200
    running.wait_checkpoint("one", pd.tso())
    url = f"http://{running.address}/api/v2/changefeeds"

    def post(name: str) -> None:
        answer = httpx.post(
            url, content=BODIES[name], headers={"Content-Type": JSON}, timeout=300, trust_env=False
        )
        assert 400 <= answer.status_code < 500, f"{name}: {answer.status_code} {answer.text[:300]}"
        assert len(answer.content) < ECHO_MAX, f"{name}: {len(answer.content)} bytes"

    def strange(headers: dict[str, str], status: int) -> None:
        answer = httpx.post(url, content=feed(), headers=headers, timeout=300, trust_env=False)
        assert answer.status_code == status, headers

    def unfinished(data: bytes) -> None:
        host, _, port = running.address.rpartition(":")
        with (
            suppress(ConnectionError),  # a server that has refused does not read the rest
            socket.create_connection((host, int(port)), timeout=300) as connection,
        ):
            connection.sendall(data)
            while connection.recv(65536):
                pass

    head = b"POST /api/v2/changefeeds HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    works: list[Callable[[], None]] = [lambda name=name: post(name) for name in BODIES]  # type: ignore[misc]
    works += [
        lambda: strange({"Content-Type": JSON, "Origin": "http://evil.example"}, 403),
        lambda: strange({"Content-Type": JSON, "Host": "evil.example"}, 403),
        lambda: strange({"Content-Type": "text/plain"}, 415),
        lambda: strange({"Content-Type": JSON, "Sec-Fetch-Site": "cross-site"}, 403),
    ]
    half = [lambda: unfinished(head)] * MANY
    half += [lambda: unfinished(head + b"Content-Length: 1000000\r\n\r\n{")] * MANY
    half += [lambda: unfinished(head + b"X: " + b"x" * 1_000_000)] * 4
    # A slow machine may need long for a whole request, which is then no half one.
    for patience_s, attacks in ((PATIENT_S, works), (3.0, half)):
        for limit in ("HEAD_S", "BODY_S"):
            monkeypatch.setattr(f"tidegate.api.access_rules.{limit}", patience_s)
        with Poller(running.address) as poller, ThreadPoolExecutor(64) as pool:
            done = [pool.submit(attack) for attack in attacks]
            for one in done:
                one.result()
            for limit in ("HEAD_S", "BODY_S"):  # of our own requests, too
                monkeypatch.setattr(f"tidegate.api.access_rules.{limit}", PATIENT_S)
            before, after = poller.answers, pd.tso()
            running.wait_checkpoint("one", after)
            while poller.answers == before:
                time.sleep(0.01)
        assert poller.slowest < ANSWER_S
    assert [item["id"] for item in running.call("GET", "/changefeeds")["items"]] == ["one"]


@pytest.mark.parametrize("name", ["HEAD_S", "BODY_S"])
def test_half_a_request_is_not_waited_for(
    running: Running, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With the other limit out of reach: each is held by its own."""
    for limit in ("HEAD_S", "BODY_S"):
        monkeypatch.setattr(f"tidegate.api.access_rules.{limit}", 0.5 if limit == name else 1e6)
    host, _, port = running.address.rpartition(":")
    request = b"POST /api/v2/changefeeds HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    if name == "BODY_S":
        request += b"Content-Length: 100\r\n\r\n{"
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request)
        while connection.recv(65536):
            pass
