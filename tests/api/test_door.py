"""Whom the API lets in, asked by real requests: pages of elsewhere, other names, other bodies, slow ones."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from tests.certificates import Authority
from tidegate.access import AccessToken
from tidegate.api import access_rules
from tidegate.api.access_rules import MAX_BODY, GuardedApp, Rules
from tidegate.api.app import _refused
from tidegate.api.listening import listen, server_config
from tidegate.api.serve import check_access
from tidegate.cli.client import call
from tidegate.cli.main import app as command_line
from tidegate.errors import InvalidInput, Retryable, TidegateError
from tidegate.server.captures.message_client import PATH as MESSAGES
from tidegate.server.captures.message_client import MessageClient, peer_client
from tidegate.tls import CA, CERT, KEY, Tls

SECRET = "0123456789abcdef0123"
JSON = "application/json"


class Running:
    """A server with one route that tells how much it was sent."""

    def __init__(self, rules: Rules, tls: Tls | None = None) -> None:
        self.sizes: list[int] = []
        app = Starlette(
            routes=[
                Route(path, self._take, methods=["GET", "POST", "PUT", "DELETE"]) for path in ("/", MESSAGES)
            ],
            exception_handlers={TidegateError: _refused},
        )
        listener = listen("127.0.0.1:0")
        self.port: int = listener.getsockname()[1]
        secured = None if tls is None else tls.http()
        self._server = uvicorn.Server(
            server_config(GuardedApp(app, rules), access_rules.CONNECTIONS_MAX, 1, secured)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()

    async def _take(self, request: Request) -> Response:
        self.sizes.append(len(await request.body()))
        return JSONResponse({"size": self.sizes[-1]})

    def ask(self, method: str = "GET", content: Any = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"http://127.0.0.1:{self.port}/"
        return httpx.request(
            method, url, content=content, headers=named, trust_env=False, timeout=60, verify=False
        )

    def raw(self, data: bytes) -> bytes:
        """Return all bytes received until the connection is closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(data)
            found = b""
            while piece := connection.recv(65536):
                found += piece
            return found

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(**rules: Any) -> Running:
        running.append(Running(Rules(**rules)))
        return running[-1]

    yield start
    for each in running:
        each.stop()


def test_programs_are_let_in(serve: Callable[..., Running]) -> None:
    server = serve()
    assert server.ask().status_code == 200
    assert server.ask("POST", b"{}", content_type=JSON).json() == {"size": 2}
    assert server.ask("POST", b"{}", content_type="application/json; charset=utf-8").status_code == 200
    assert server.ask("POST").status_code == 200, "a command without a body"
    assert server.ask("DELETE", host="localhost").status_code == 200
    assert server.ask("DELETE", host=f"[::1]:{server.port}").status_code == 200
    assert server.ask("POST", origin=f"http://127.0.0.1:{server.port}").status_code == 200, "our own page"


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"origin": "http://evil.example"}, 403, "from another page"),
        ({"origin": "null"}, 403, "from another page"),
        ({"origin": "http://127.0.0.1:9999"}, 403, "from another page"),
        ({"sec_fetch_site": "cross-site"}, 403, "from another page"),
        ({"sec_fetch_site": "same-site"}, 403, "from another page"),
        ({"host": "evil.example"}, 403, "--allow-host"),
        ({"host": "evil.example:8300"}, 403, "--allow-host"),
        ({"host": "127.0.0.1.evil.example"}, 403, "--allow-host"),
        ({"host": "localhost:evil"}, 403, "--allow-host"),
        ({"content_type": "text/plain"}, 415, "application/json"),
        ({"content_type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        ({"content_type": "multipart/form-data; boundary=application/json"}, 415, "application/json"),
        ({}, 415, "application/json"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_what_a_page_can_send_is_refused(
    serve: Callable[..., Running], method: str, headers: dict[str, str], status: int, words: str
) -> None:
    server = serve()
    typed = (
        headers
        if any(name in headers for name in ("content_type",)) or not headers
        else {"content_type": JSON, **headers}
    )
    answer = server.ask(method, b"{}", **typed)
    assert (answer.status_code, server.sizes) == (status, [])
    assert words in answer.json()["error_msg"]


def test_a_link_may_be_followed_and_a_rebound_name_not_even_read(serve: Callable[..., Running]) -> None:
    server = serve()
    assert server.ask(sec_fetch_site="cross-site").status_code == 200
    assert server.ask(host="evil.example").status_code == 403


def test_a_name_can_be_allowed(serve: Callable[..., Running]) -> None:
    server = serve(hosts=frozenset({"tidegate.internal"}))
    assert server.ask("POST", host="Tidegate.internal:8300").status_code == 200
    assert server.ask("POST", host="other.internal").status_code == 403
    assert b"403" in server.raw(b"GET / HTTP/1.0\r\n\r\n"), "no name at all"


def test_two_names_are_none(serve: Callable[..., Running]) -> None:
    assert Rules().refuse("GET", [("host", "localhost"), ("host", "localhost")]) is not None


def test_with_a_token_nothing_goes_without(serve: Callable[..., Running]) -> None:
    server = serve(token=AccessToken(SECRET))

    def basic(text: str) -> str:
        return "Basic " + base64.b64encode(text.encode()).decode()

    for wrong in ("", "Bearer", f"Bearer {SECRET}x", SECRET, "Basic Og==", "Basic x", basic(SECRET)):
        answer = server.ask(authorization=wrong)
        assert answer.status_code == 401, wrong
        assert SECRET not in answer.text
    assert not AccessToken(SECRET).opens("Bearer \xe9")
    assert server.ask(authorization=f"Bearer {SECRET}").status_code == 200
    assert server.ask(authorization=basic(f"anybody:{SECRET}")).status_code == 200


def test_a_huge_body_is_not_read(serve: Callable[..., Running]) -> None:
    server = serve()
    reported = (
        f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: {10**12}\r\n\r\n"
    )
    assert b" 413 " in server.raw(reported.encode())

    def pieces() -> Iterator[bytes]:
        for _ in range(MAX_BODY // 65536 + 1):
            yield bytes(65536)

    answer = server.ask("POST", pieces(), content_type=JSON)
    assert (answer.status_code, server.sizes) == (400, [])
    assert f"more than {MAX_BODY} bytes" in answer.json()["error_msg"]
    assert server.ask("POST", bytes(MAX_BODY), content_type=JSON).json() == {"size": MAX_BODY}


def test_half_a_request_does_not_live_for_ever(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_rules, "HEAD_S", 0.2)
    monkeypatch.setattr(access_rules, "BODY_S", 0.2)
    server = serve()
    assert server.raw(b"") == b""
    assert server.raw(b"POST / HTTP/1.1\r\nHost: localhost\r\n") == b""
    whole = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert server.raw(whole + b"GET / HT").count(b"HTTP/1.1 200") == 1, "the second one is half"
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: 9\r\n\r\n{{"
    assert b"did not arrive within" in server.raw(head.encode())
    assert server.sizes == [0]


def test_an_address_that_others_reach_needs_a_token() -> None:
    addresses = {"127.0.0.1:0": False, "0.0.0.0:0": True, "[::1]:0": False, "[::]:0": True}
    for address, reached in addresses.items():
        try:
            listener = listen(address)
        except InvalidInput:
            assert address.startswith("["), "a machine may have no IPv6"
            continue
        with listener:
            check_access(listener, Rules(token=AccessToken(SECRET)))
            if reached:
                with pytest.raises(InvalidInput, match="other machines reach this address"):
                    check_access(listener, Rules())
            else:
                check_access(listener, Rules())


def test_the_server_says_so_at_its_start(tmp_path: Path) -> None:
    arguments = ["server", "--pd", "127.0.0.1:1", "--data-dir", str(tmp_path / "data"), "--addr", "0.0.0.0:0"]
    from tidegate.cli import server

    ended: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.os, "_exit", ended.append)
        result = CliRunner().invoke(command_line, arguments)
    assert ended
    assert ended[0] != 0
    assert "give a token, `tidegate --token-file FILE server ...`" in result.stderr
    assert not (tmp_path / "data").exists()


def test_a_token_is_read_from_its_file_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\nsecond line\n")
    token = AccessToken.from_file(path)
    assert token.header == {"Authorization": f"Bearer {SECRET}"}
    assert SECRET not in f"{token} {token!r} {Rules(token=token)}"
    for wrong in ("", "short", "with a blank in its midst", "x" * 5000, "ähnlich-wie-ein-token-lang"):
        path.write_text(wrong)
        with pytest.raises(InvalidInput) as refused:
            AccessToken.from_file(path)
        assert str(path) in refused.value.render()
        assert not wrong or wrong not in refused.value.render()
    with pytest.raises(InvalidInput, match="No such file"):
        AccessToken.from_file(tmp_path / "none")


def test_commands_send_the_token(
    serve: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_TOKEN_FILE", "")
    server = serve(token=AccessToken(SECRET))
    path = tmp_path / "token"
    path.write_text(SECRET)
    command = ["changefeed", "list", "--server", f"127.0.0.1:{server.port}"]
    without = CliRunner().invoke(command_line, command)
    assert "give --token-file FILE" in without.stderr
    with_it = CliRunner().invoke(command_line, ["--token-file", str(path), *command])
    assert "not JSON" in with_it.stderr, "let in; there is no such route here"


async def _asked(port: int, tls: Tls | None) -> httpx.Response:
    async with peer_client(tls, 20.0) as client:
        return await client.get(f"https://127.0.0.1:{port}/")


def test_a_client_without_tls_reads_no_authorities_and_trusts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: object, **more: object) -> None:
        raise AssertionError("it reads the certificates of all authorities")

    server = Running(Rules(), Authority(tmp_path).signed("capture"))
    monkeypatch.setattr("ssl.create_default_context", never)
    try:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            asyncio.run(_asked(server.port, None))
    finally:
        server.stop()


def test_with_tls_only_clients_with_a_certificate_of_the_ca_are_let_in(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = Running(Rules(), authority.signed("capture"))
    stranger = Authority(tmp_path, "other").signed("stranger")
    try:
        assert asyncio.run(_asked(server.port, authority.signed("client"))).status_code == 200
        for wrong in (
            Tls(authority.signed("client").ca),  # it shows none
            replace(stranger, ca=authority.signed("client").ca),
            stranger,  # which does not trust the server either
        ):
            with pytest.raises(httpx.TransportError):
                asyncio.run(_asked(server.port, wrong))
        with pytest.raises(httpx.TransportError):
            server.ask()  # without TLS
        assert server.sizes == [0]
    finally:
        server.stop()


def test_a_certificate_of_another_name_is_refused_in_words(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = Running(Rules(names=frozenset({"capture", "admin"})), authority.signed("capture"))
    try:
        assert asyncio.run(_asked(server.port, authority.signed("admin"))).status_code == 200
        refused = asyncio.run(_asked(server.port, authority.signed("intern")))
        assert refused.status_code == 403
        assert "the common name intern; --cert-allowed-cn does not" in refused.json()["error_msg"]
    finally:
        server.stop()


def test_a_renewed_certificate_is_used_by_the_next_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = authority.signed("capture")
    server, context = Running(Rules(), tls), tls.http_client()

    def serial() -> int:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain:
            secured = context.wrap_socket(plain, server_hostname="127.0.0.1")
            found = secured.getpeercert()
            assert found is not None
            return int(str(found["serialNumber"]), 16)

    try:
        first = serial()
        assert serial() == first
        authority.signed("capture")  # into the same files
        assert serial() != first
        assert tls.key is not None
        tls.key.write_text("-----BEGIN half")
        assert serial() == serial(), "half a pair is left alone"
    finally:
        server.stop()


def test_a_renewed_certificate_does_not_hide_the_name_of_the_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls, admin = authority.signed("capture"), authority.signed("admin")
    server = Running(Rules(names=frozenset({"admin"})), tls)
    try:
        assert asyncio.run(_asked(server.port, admin)).status_code == 200
        authority.signed("capture")
        assert asyncio.run(_asked(server.port, admin)).status_code == 200, (
            "the connection that finds it renewed"
        )
        assert asyncio.run(_asked(server.port, tls)).status_code == 403
    finally:
        server.stop()


def test_messages_continue_once_a_certificate_is_renewed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = Running(Rules(), authority.signed("capture"))
    expired = replace(Authority(tmp_path, "other").signed("b"), ca=authority.signed("a").ca)

    async def carry() -> None:
        message_client = MessageClient("b", 1, lambda to: f"127.0.0.1:{server.port}", None, expired)
        message_client.send("a", b"{}")
        await asyncio.sleep(1.0)
        assert server.sizes == []
        authority.signed("b")  # into the same files
        async with asyncio.timeout(60):
            while not server.sizes:
                await asyncio.sleep(0.05)
        await message_client.stop()

    try:
        asyncio.run(carry())
    finally:
        server.stop()


def test_certificates_are_asked_for_before_a_capture_starts_with_tls(tmp_path: Path) -> None:
    run = ["server", "--pd", "127.0.0.1:1", "--data-dir", str(tmp_path)]
    answer = CliRunner().invoke(command_line, [*run, "--api-tls"])
    assert answer.exit_code == 2
    assert "give --ca, --cert and --key" in answer.stderr
    answer = CliRunner().invoke(command_line, [*run, "--cert-allowed-cn", "admin"])
    assert answer.exit_code == 2
    assert "without --api-tls" in answer.stderr
    check_access(listen("0.0.0.0:0"), Rules(), is_secure=True)  # certificates are as good as a token


def test_a_command_shows_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = Running(Rules(), authority.signed("capture"))
    try:
        with pytest.raises(Retryable, match="tidegate --ca CA --cert CERT --key KEY"):
            call(f"https://127.0.0.1:{server.port}", "GET", "/tso")
        # In capital letters it is TLS too, and an unknown authority is refused before anything is sent.
        with pytest.raises(Retryable, match="certificate verify failed"):
            call(f"HTTPS://127.0.0.1:{server.port}", "GET", "/tso")
        with pytest.raises(Retryable, match="write https://HOST:PORT"):
            call(f"127.0.0.1:{server.port}", "GET", "/tso")
        authority.signed("admin").into(os.environ)
        with pytest.raises(InvalidInput, match="404"):  # it came in; there is no such route
            call(f"https://127.0.0.1:{server.port}", "GET", "/tso")
    finally:
        for name in (CA, CERT, KEY):
            os.environ.pop(name, None)
        server.stop()


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    """Otherwise each request of a connection that is kept open takes 40 ms."""
    listener, found = listen("127.0.0.1:0"), list[int]()

    def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        found.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def connect() -> None:
        server = await asyncio.start_server(note, sock=listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        await reader.read()
        writer.close()
        server.close()

    asyncio.run(connect())
    assert found
    assert all(found)


def test_plain_http_reads_no_certificates(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take longer than the request."""
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", None)
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", None)
    server = serve()
    with pytest.raises(InvalidInput, match="not JSON"):  # this server has no such route
        call(f"127.0.0.1:{server.port}", "GET", "/changefeeds")
