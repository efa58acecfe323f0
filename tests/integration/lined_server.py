"""`tidegate server` whose requests to other captures pass through lines that a test can cut.

    python -m tests.integration.lined_server '{"ADDRESS": "LINE", ...}' server ...

A request to the capture at ADDRESS goes to LINE (`tests.etcd.line`), which passes it on. So each capture can
have a line of its own to each other one, and everybody still knows a capture by its own address. Everything
else is `tidegate server`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import httpx

from tidegate.api import forward
from tidegate.cli.main import app
from tidegate.server.captures import message_client
from tidegate.tls import Tls


class Lined(httpx.AsyncHTTPTransport):
    """Sends each request to the line of its address."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        super().__init__(trust_env=False)
        self._lines = lines

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host, _, port = self._lines[f"{request.url.host}:{request.url.port}"].rpartition(":")
        request.url = request.url.copy_with(host=host, port=int(port))
        return await super().handle_async_request(request)


def main() -> None:
    lines = json.loads(sys.argv.pop(1))

    def lined(tls: Tls | None, timeout_s: float, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
        assert tls is None
        return httpx.AsyncClient(timeout=timeout_s, headers=headers, transport=Lined(lines), trust_env=False)

    for module in (message_client, forward):
        assert "peer_client" in vars(module), "a cut would cut nothing"
        vars(module)["peer_client"] = lined
    app()


if __name__ == "__main__":
    main()
