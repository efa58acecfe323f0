"""HTTP servers for the upstream's pages (`status_pages`): at a port, and behind PD's. GET only."""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tidegate.errors import InvalidInput
from tidegate.tls import Tls

Page = Callable[[str], Any]
"""A function from a path to its content: str for text, otherwise encoded as JSON; None: no such page."""
REQUEST_S: Final = 30.0
"""The connection of a client that sends nothing for this long is closed."""
REQUESTS_MAX: Final = 64
"""The most connections served at once, each by a thread; further ones are closed without an answer."""
POLL_S: Final = 0.05
"""How often a server looks whether it is to stop. Tests start and stop hundreds of upstreams."""


class _Pages(ThreadingHTTPServer):
    """An HTTP server with at most REQUESTS_MAX threads."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.Semaphore(REQUESTS_MAX)
        super().__init__(*arguments)

    def serve_forever(self, poll_interval: float = POLL_S) -> None:
        super().serve_forever(poll_interval)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class StatusServer:
    """Serves the pages at host:port, port 0 for a free one. `stop` may be called once."""

    def __init__(self, address: str) -> None:
        """Bind. Raises InvalidInput if the address is in use."""
        host, _, port = address.rpartition(":")
        self._page: Page | None = None
        try:
            self._server = _Pages((host, int(port)), self._handler())
        except OSError as error:
            raise InvalidInput(
                "the upstream's status port cannot listen",
                where=address,
                why=error.strerror or str(error),
                fix="choose a free --status-port",
            ) from error
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="status", daemon=True)

    def start(self, page: Page) -> None:
        """Begin to serve."""
        self._page = page
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        # `shutdown` waits for the loop to end, and would wait for ever if it was never started.
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        return _handler(lambda path: None if self._page is None else self._page(path))


class PageServer:
    """Serves the pages at an abstract Unix socket, with TLS if `tls`. `stop` may be called once."""

    def __init__(self, name: str, page: Page, tls: Tls | None) -> None:
        self._server = _UnixServer("\0" + name, _handler(page))  # abstract: begins with a zero byte
        self._server.tls = None if tls is None else tls.http()
        self._thread = threading.Thread(target=self._server.serve_forever, name="pd pages", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _UnixServer(_Pages):
    address_family = socket.AF_UNIX
    tls: ssl.SSLContext | None = None

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's version would look up a host name

    def get_request(self) -> tuple[socket.socket, Any]:
        sock, peer = super().get_request()
        if self.tls is not None:
            # The request's thread does the handshake, so a slow client does not delay others.
            sock = self.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return sock, peer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that disconnect or fail the TLS handshake."""


def _handler(page: Page) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            found = page(self.path)
            text = isinstance(found, str)
            shown = "not found" if found is None else found
            body = (shown if isinstance(shown, str) and text else json.dumps(shown)).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "text/plain" if text else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler
