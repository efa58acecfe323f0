"""A page of metrics for Prometheus, served in its own thread: GET /metrics and nothing else.

For a process that has no API. The page can only be read, and shows counts and times, but no rows. If there is
a token, clients must send it. Clients that send their request too slowly are disconnected, and more than
CONNECTIONS_MAX get 503.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.responses import PlainTextResponse, Response

from tidegate.access import AccessToken
from tidegate.api.access_rules import App, Receive, Scope, Send
from tidegate.api.listening import server_config

PATH: Final = "/metrics"
CONNECTIONS_MAX: Final = 16
CLOSE_S: Final = 1
"""How long open requests may take at the end."""
FORM: Final = "text/plain; version=0.0.4"


@contextmanager
def serving(
    listener: socket.socket, render: Callable[[], bytes], token: AccessToken | None
) -> Iterator[None]:
    """Serve on a listening socket until the end of the context, which closes it."""
    # uvicorn handles signals only in the main thread, so this server does not.
    server = uvicorn.Server(server_config(page(render, token), CONNECTIONS_MAX, CLOSE_S))
    thread = threading.Thread(target=server.run, args=([listener],), name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(CLOSE_S + 1)
        with contextlib.suppress(OSError):
            listener.close()


def page(render: Callable[[], bytes], token: AccessToken | None) -> App:
    """The ASGI application."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _answer(scope, render, token)(scope, receive, send)

    return app


def _answer(scope: Scope, render: Callable[[], bytes], token: AccessToken | None) -> Response:
    if scope["path"] != PATH:
        return PlainTextResponse(f"there is only {PATH} here\n", 404)
    if scope["method"] != "GET":
        return PlainTextResponse("it can only be read, with GET\n", 405, headers={"Allow": "GET"})
    shown = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    if token is not None and not token.opens(shown):
        why = "the token is missing or another one\n"
        return PlainTextResponse(why, 401, headers={"WWW-Authenticate": "Bearer"})
    return Response(render(), media_type=FORM)
