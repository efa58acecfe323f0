"""Listening sockets for HTTP at the addresses of a command line, and how servers on them run."""

from __future__ import annotations

import socket
import ssl

import uvicorn

from tidegate.api.access_rules import App, Patient
from tidegate.errors import InvalidInput


def listen(address: str, option: str = "--addr") -> socket.socket:
    """A listening socket on `host:port`; port 0 takes a free one. Raises InvalidInput that names `option`."""
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit():
        raise InvalidInput(
            f"'{address}' is not an address", fix="write HOST:PORT, for example 127.0.0.1:8300"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: asyncio sets TCP_NODELAY for such sockets alone. Without it, an answer's body
    # waits for the client's delayed acknowledgement of its head, 40 ms for each request of a connection.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # A server that restarts must not wait until the connections of the last one have left TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        raise InvalidInput(
            "the server cannot listen on the address",
            where=address,
            why=str(error),
            fix=f"choose another {option}; port 0 takes a free one",
        ) from error
    return listener


def server_config(
    app: App, connections: int, close_s: int, tls: ssl.SSLContext | None = None
) -> uvicorn.Config:
    """The configuration of both HTTP servers: HTTP/1, without logs; `Patient` closes slow connections.

    `connections`: more clients get 503; `close_s`: how long open requests may take at the end.
    """
    return uvicorn.Config(
        app,
        http=Patient,
        ws="none",
        limit_concurrency=connections,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=close_s,
        ssl_context_factory=None if tls is None else lambda config, default: tls,
    )


def address_of(listener: socket.socket) -> str:
    """`host:port` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
