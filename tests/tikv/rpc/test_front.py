"""PD's port speaks gRPC and HTTP, as a real PD's does: `cdc cli --pd`, pd-ctl and TiUP ask both."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from tidegate.kvclient.pd import PdClient
from tidegate.tikv.rpc import http_pages
from tidegate.tikv.rpc.relay import HELLO_MAX, PREFACE, is_grpc, protocols
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.tls import CA, CERT, KEY, Tls

WAIT_S = 120


def hello(*offered: str) -> bytes:
    """The first bytes of a TLS client that offers these protocols."""
    context = ssl.create_default_context()
    if offered:
        context.set_alpn_protocols(list(offered))
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="pd")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


@pytest.mark.parametrize(
    ("first", "grpc"),
    [
        (PREFACE + b"\0\0\0\4\0\0\0\0\0", True),
        (b"GET /pd/api/v1/version HTTP/1.1\r\n", False),
        (b"PRI * HTTP/1.1\r\n", False),
        (b"POST / HTTP/1.1", False),
        (hello("h2"), True),
        (hello("grpc-exp", "h2"), True),
        (hello("h2", "http/1.1"), False),
        (hello("http/1.1"), False),
        (hello(), False),
        (b"\x16\x03\x01\x00\x01\x02", False),
    ],
)
def test_the_first_bytes_decide_the_protocol_and_too_few_bytes_wait(first: bytes, grpc: bool) -> None:
    assert is_grpc(first) is grpc
    early = [is_grpc(first[:size]) for size in range(len(first))]
    decided = [verdict for verdict in early if verdict is not None]
    assert set(decided) <= {grpc}
    assert early[0] is None


@given(st.binary(max_size=200))
def test_any_bytes_get_a_verdict_at_the_latest_with_a_whole_record(data: bytes) -> None:
    record = b"\x16\x03\x01" + len(data).to_bytes(2, "big") + data
    assert protocols(record) is not None
    assert is_grpc(b"\x16\x03\x01\xff\xff" + data + bytes(HELLO_MAX)) is False


def page(url: str, context: ssl.SSLContext | None = None) -> Any:
    with urllib.request.urlopen(url, timeout=60, context=context) as answer:
        return json.loads(answer.read())


@pytest.mark.integration
def test_one_port_answers_both_protocols_and_returns_after_a_kill(tmp_path: Path) -> None:
    with EmbeddedUpstream(tmp_path, regions=2) as running, PdClient(running.pd_addr) as pd:
        url = f"http://{running.pd_addr}/pd/api/v1"
        assert page(f"{url}/version")["version"].startswith("v")
        assert page(f"{url}/members")["header"]["cluster_id"] == pd.cluster_id
        before = pd.tso()
        silent = socket.create_connection(running.pd_addr.split(":"))  # says nothing; holds up nobody
        (front,) = running.pd_members._fronts
        assert front._child is not None
        killed = front._child.pid
        os.kill(killed, signal.SIGKILL)
        assert pd.tso() > before
        deadline = time.monotonic() + 120
        while front._child.pid == killed:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert page(f"{url}/stores")["count"] == 1
        assert pd.tso() > before
        silent.close()


@pytest.mark.integration
def test_under_tls_both_ask_for_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = trustme.CA()
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}
    issued = ca.issue_cert("localhost", "127.0.0.1")
    ca.cert_pem.write_to_path(files["ca"])
    issued.cert_chain_pems[0].write_to_path(files["cert"])
    issued.private_key_pem.write_to_path(files["key"])
    with EmbeddedUpstream(tmp_path / "data", tls=Tls(files["ca"], files["cert"], files["key"])) as running:
        for name, variable in (("ca", CA), ("cert", CERT), ("key", KEY)):
            monkeypatch.setenv(variable, str(files[name]))
        with PdClient(running.pd_addr) as pd:
            assert pd.tso() > 0
        url = f"https://{running.pd_addr}/pd/api/v1/version"
        known = ssl.create_default_context(cafile=str(files["ca"]))
        with pytest.raises(OSError, match=r".*"):
            page(url, known)
        known.load_cert_chain(files["cert"], files["key"])
        assert page(url, known)["version"].startswith("v")
        known.set_alpn_protocols(["h2", "http/1.1"])  # as Go's client offers
        assert page(url, known)["version"].startswith("v")


def test_pages_have_limited_threads_and_an_extra_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_pages, "REQUESTS_MAX", 3)
    server = http_pages.StatusServer("127.0.0.1:0")
    server.start(lambda path: {"path": path})
    host, port = server.address.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(3)]
    with socket.create_connection((host, int(port))) as late:
        late.settimeout(WAIT_S)
        assert late.recv(1) == b""
    silent.pop().close()
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            assert page(f"http://{server.address}/a") == {"path": "/a"}
            break
        except OSError:  # the thread of the one that left comes free a moment later
            assert time.monotonic() < deadline
    for one in silent:
        one.close()
    server.stop()
