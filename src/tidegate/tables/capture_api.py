"""Calls to a capture's HTTP API, from Spark's driver and from its tasks.

A call is retried while no capture answers (`tables.patience`). A response with status 400 or 500 raises the
error class that the caller gives, with the server's message: not every refused call ends the query.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tidegate.access import AccessToken
from tidegate.errors import Fatal, InvalidInput, Retryable, cut
from tidegate.tables.patience import patiently
from tidegate.tables.pieces import frames
from tidegate.tables.stream_options import refused
from tidegate.tls import Tls

TIMEOUT_S: Final = 60.0
"""Timeout of one attempt, in seconds."""


class Api:
    """Calls to a capture's HTTP API, retried for PATIENCE_S while no server answers."""

    def __init__(self, server: str, token_file: str) -> None:
        scheme, found, address = server.rpartition("://")
        self._address, self._secure = address.rstrip("/"), scheme == "https"
        self._token_file = token_file
        if (found and scheme not in ("http", "https")) or not self._address:
            raise refused(f"option server is no address: '{cut(server)}'", "give HOST:PORT")

    def call(
        self, path: str, body: dict[str, Any], refusal: type[InvalidInput] | type[Fatal]
    ) -> dict[str, Any]:
        """The answer to one POST. Raises `refusal` with the server's message; Retryable after PATIENCE_S."""
        # Read for each call, because the file may change while a query runs for months.
        token = AccessToken.from_file(Path(self._token_file)) if self._token_file else None
        headers = {"Content-Type": "application/json", **(token.header if token else {})}

        def attempt() -> dict[str, Any]:
            with self._answer("POST", path, json.dumps(body), headers, refusal) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found

        return patiently(attempt)

    def changes(self, ticket: str, past: int) -> Iterator[tuple[int, bytes]]:
        """Frames after frame `past`, from one attempt. Raises Retryable when they break off."""
        headers = {"Authorization": f"Ticket {ticket}"}
        with self._answer("GET", f"/readers/changes?past={past}", None, headers, Fatal) as answer:
            yield from frames(answer)

    def _answer(
        self,
        method: str,
        path: str,
        body: str | None,
        headers: dict[str, str],
        refusal: type[InvalidInput] | type[Fatal],
    ) -> Answer:
        return Answer(self._address, self._secure, method, f"/api/v2{path}", body, headers, refusal)


def _connection(address: str) -> http.client.HTTPSConnection:
    """With the certificates that the environment names, if any: `tidegate server --api-tls`."""
    tls = Tls.from_environment()
    context = None if tls is None else tls.http_client()
    return http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=context)


class Answer:
    """One request and the reading of its answer; leaving the block closes the connection."""

    def __init__(
        self,
        address: str,
        secure: bool,
        method: str,
        path: str,
        body: str | None,
        headers: dict[str, str],
        refusal: type[InvalidInput] | type[Fatal],
    ) -> None:
        try:
            if secure:
                self._connection: http.client.HTTPConnection = _connection(address)
            else:
                self._connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        except http.client.InvalidURL as error:
            raise refused(f"option server is no address: '{cut(address)}'", "give HOST:PORT") from error
        self._where, self._request, self._refusal = address, (method, path, body, headers), refusal

    def __enter__(self) -> Answer:
        try:
            self._connection.request(*self._request)
            self._response = self._connection.getresponse()
            status = self._response.status
            # With a bound: something else may answer at this address, and send without an end.
            words = "" if status == 200 else _words(self._response.read(1 << 16))
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._unavailable(error) from error
        if status == 200:
            return self
        self._connection.close()
        # Also those of a proxy whose capture restarts.
        if status in (502, 503, 504):
            raise Retryable(words, where=self._where)
        # Other statuses mean that the request did not reach the reader at all.
        kind = self._refusal if status in (400, 500) else InvalidInput
        raise kind(words, where=f"{self._where}, status {status}")

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def read(self, count: int | None = None) -> bytes:
        """The next `count` bytes, fewer only at the end. Raises Retryable."""
        try:
            return self._response.read(count)
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Retryable:
        return Retryable(
            "no capture answers",
            where=self._where,
            why=str(error) or type(error).__name__,
            fix="start one with `tidegate server`, or set the option server",
        )


def _words(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error_msg"])
    except (ValueError, KeyError, TypeError):
        return "the answer is not one of a capture"
