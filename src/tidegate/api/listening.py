"""Listening sockets for HTTP, as a command line names them."""

from __future__ import annotations

import socket

from tidegate.errors import InvalidInput


def listen(address: str, option: str = "--addr") -> socket.socket:
    """A listening socket on `host:port`; port 0 takes a free one. Raises InvalidInput, naming `option`."""
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit():
        raise InvalidInput(
            f"'{address}' is not an address.", fix="write HOST:PORT, for example 127.0.0.1:8300"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        raise InvalidInput(
            "Cannot listen on the address.",
            where=address,
            why=str(error),
            fix=f"choose another {option}; port 0 takes a free one",
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """`host:port` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
