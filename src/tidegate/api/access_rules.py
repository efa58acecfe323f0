"""Checks in front of all routes: who may send requests, and how much of a request is read.

The most likely unwanted client is a browser: any page may let it POST to 127.0.0.1, and a page whose name is
made to point there (DNS rebinding) may use every method. So a request must name the server by an IP address,
by localhost or by an allowed name, and must not come from another page. A body must be JSON, which a page
cannot send to another host without a preflight request. If the server has a token, requests must contain it.
(Fetch standard: forbidden header names, CORS-safelisted content types; Fetch Metadata.)
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import h11
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidegate.access import AccessToken
from tidegate.errors import InvalidInput
from tidegate.tls import common_names

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY: Final = 4 << 20
BODY_S: Final = 30.0
"""How long a body may take to arrive."""
HEAD_S: Final = 10.0
"""How long the headers of a request may take, from the start of the connection or of the request."""
CONNECTIONS_MAX: Final = 512
"""The most connections; others get 503."""
SAFE: Final = ("GET", "HEAD", "OPTIONS")
BY_TICKET: Final = "/api/v2/readers/changes"
"""The route whose clients show a ticket instead of the token; the route checks it (`api.readers`)."""
NAMES: Final = "common_names"
"""The member of a request's state with the common names of the client's certificate."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that is not allowed."""

    status: int
    why: str


@dataclass(frozen=True, slots=True)
class Rules:
    """Which requests are allowed. `hosts`: names of this server, in addition to localhost and IP
    addresses.
    """

    hosts: frozenset[str] = frozenset()
    token: AccessToken | None = None
    names: frozenset[str] = frozenset()
    """The common names of which a client's certificate must have one; empty: any certificate of the CA."""

    def refuse_client(self, shown: frozenset[str]) -> Refusal | None:
        """None if a client whose certificate has these common names is allowed."""
        if not self.names or self.names & shown:
            return None
        found = ", ".join(sorted(map(_shown, shown))) or "none"
        return Refusal(
            403, f"the client's certificate has the common name {found}; --cert-allowed-cn does not allow it"
        )

    def refuse(self, method: str, headers: list[tuple[str, str]], path: str = "") -> Refusal | None:
        """None if the request is allowed. Header names are in lower case."""
        found = dict(headers)
        named = [value for name, value in headers if name == "host"]
        # docs/guarantees.md#nobody-gets-in-without-permission:
        # With two Host headers, another reader of the request could take the other one.
        if len(named) != 1 or not self._is_own(named[0]):
            return Refusal(
                403,
                f"the Host header names '{_shown(','.join(named))}', which is not this server's; start it "
                "with --allow-host NAME to be asked by that name",
            )
        origin = found.get("origin")
        if origin is not None and origin.partition("://")[2] != named[0]:
            return Refusal(403, f"the request comes from another page: Origin '{_shown(origin)}'")
        # Programs do not send this header, and no page can change it. Browsers send it to trustworthy
        # addresses only (Fetch Metadata); for others the Origin above is what counts.
        if method not in SAFE and found.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Refusal(403, "the request comes from another page")
        by_ticket = path == BY_TICKET and method == "GET"
        if self.token is not None and not by_ticket and not self.token.opens(found.get("authorization", "")):
            return Refusal(401, "the token is missing or another one; give --token-file FILE")
        length = found.get("content-length", "0")
        # A page of another site may send a form or plain text, but not JSON, without asking this server
        # first.
        kind = found.get("content-type", "").partition(";")[0].strip().lower()
        if (
            (length != "0" or "transfer-encoding" in found or kind)
            and method not in SAFE
            and not _is_json(kind)
        ):
            return Refusal(415, f"a body is JSON: send Content-Type application/json, not '{_shown(kind)}'")
        # A number of so many digits is too large in any case, and `int` raises for thousands of them.
        if length.isdigit() and (len(length) > 18 or int(length) > MAX_BODY):
            return Refusal(413, f"a body has at most {MAX_BODY} bytes")
        return None

    def _is_own(self, named: str) -> bool:
        host = named.lower()
        # An IPv6 address without a port ends in `]`, and its colons separate no port.
        if not host.endswith("]"):
            host, colon, port = host.rpartition(":")
            if not colon:
                host = port
            elif not port.isdigit():
                return False
        if host == "localhost" or host in self.hosts:
            return True
        try:
            ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


class GuardedApp:
    """The application with the rules in front of it."""

    def __init__(self, app: App, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        # Both servers run without websockets and without lifespan, so nothing else comes.
        if scope["type"] != "http":
            return
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        refusal = self._rules.refuse_client(scope.get("state", {}).get(NAMES, frozenset()))
        refusal = refusal or self._rules.refuse(scope["method"], headers, scope["path"])
        if refusal is None:
            await self._app(scope, _bounded(receive), send)
            return
        body = {"error_msg": refusal.why, "error_code": "CDC:ErrAPIInvalidParam"}
        more = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
        # The body is not read, so the connection must close: it would be taken for the next request.
        await JSONResponse(body, refusal.status, headers={"Connection": "close", **more})(
            scope, receive, send
        )


def _bounded(receive: Receive) -> Receive:
    """Reads at most MAX_BODY bytes of a body within BODY_S. Raises InvalidInput."""
    read = 0
    until = asyncio.get_running_loop().time() + BODY_S
    whole = False

    async def bounded() -> MutableMapping[str, Any]:
        nonlocal read, whole
        if whole:  # the next message is the end of the connection, which may come much later
            return await receive()
        try:
            # One limit for the whole body: a client that sends a byte at a time stays below any limit for
            # each message.
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise InvalidInput(
                f"the request body did not arrive within {BODY_S:.0f} s", fix="send the request again"
            ) from None
        read += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if read > MAX_BODY:
            raise InvalidInput(f"the request body has more than {MAX_BODY} bytes", fix="send a smaller body")
        return message

    return bounded


class Patient(H11Protocol):
    """A connection that is closed if the headers of its request do not arrive within HEAD_S."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        if (certificate := transport.get_extra_info("peercert")) is not None:
            # A copy, because all connections share this object.
            self.app_state = {**self.app_state, NAMES: common_names(certificate)}
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        super().data_received(data)
        # The head has arrived. From here on `BODY_S` bounds the body.
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        # Between two requests a connection may be idle. The time counts from the first byte of the next head.
        elif self._timer is None and self.conn.trailing_data[0]:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_json(kind: str) -> bool:
    return kind == "application/json"


def _shown(text: str) -> str:
    return text[:80]
