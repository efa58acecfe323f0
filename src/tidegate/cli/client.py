"""Calls to a capture's HTTP API, and the output of their answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.access import AccessToken
from tidegate.errors import InvalidInput, Retryable, TidegateError

if TYPE_CHECKING:
    from http.client import HTTPConnection

ServerOption = Annotated[
    str, typer.Option("--server", help="A capture's address; with https:// if it was started with --api-tls.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

DEFAULT_SERVER: Final = "127.0.0.1:8300"
TIMEOUT_S: Final = 30.0


def call(
    server: str,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    query: dict[str, str] | None = None,
) -> Any:
    """One request. Raises Retryable without an answer or with a 503, otherwise InvalidInput."""
    # No HTTP library: the import of one takes longer than the request.
    from http.client import HTTPException
    from urllib.parse import quote, urlencode

    base = server if "://" in server else f"http://{server}"
    if "@" in base:
        # Not printed: the token may be in it.
        raise InvalidInput(
            "the address in --server has a user or a password",
            fix="put the token into a file, and name it by TIDEGATE_TOKEN_FILE or `tidegate --token-file`",
        )
    is_secure = not base.lower().startswith("http://")
    token = AccessToken.from_environment()
    headers = dict(token.header) if token else {}
    content = None
    if body is not None:
        content, headers["Content-Type"] = json.dumps(body), "application/json"
    try:
        connection, prefix = _connection(base)
        with closing(connection):
            asked = f"{prefix}/api/v2{quote(path)}" + (f"?{urlencode(query)}" if query else "")
            connection.request(method, asked, content, headers)
            answer = connection.getresponse()
            status, data = answer.status, answer.read()
    # ValueError: the address is no URL, or has a host that cannot be encoded.
    except (OSError, HTTPException, ValueError) as error:
        raise Retryable(
            "no capture answers",
            where=base,
            why=str(error) or type(error).__name__,
            fix="give the certificates that it asks for: tidegate --ca CA --cert CERT --key KEY ..."
            if is_secure
            else "start one with `tidegate server`, or name it with --server; write https://HOST:PORT if it "
            "was started with --api-tls",
        ) from error
    try:
        found = json.loads(data)
    except ValueError:
        found = {"error_msg": f"the answer is not JSON (status {status})"}
    if 200 <= status < 300:
        return found
    kind = Retryable if status == 503 else InvalidInput
    raise kind(str(found.get("error_msg", "the request was refused")))


def _connection(base: str) -> tuple[HTTPConnection, str]:
    """A connection that is not open yet, and the path in the address. Raises ValueError for no address."""
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    from tidegate.tls import Tls

    address, tls = urlsplit(base), Tls.from_environment()
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ValueError(f"this is no address of a server: {base}")
    prefix = address.path.rstrip("/")
    if address.scheme == "http":
        # Plain HTTP needs no certificates, and reading those of all authorities takes 20 ms.
        return HTTPConnection(address.hostname, address.port or 80, timeout=TIMEOUT_S), prefix
    context = tls.http_client() if tls is not None else None
    return HTTPSConnection(address.hostname, address.port or 443, timeout=TIMEOUT_S, context=context), prefix


def show(found: Any, text: str, as_json: bool) -> None:
    """Print an answer: as JSON, or in words."""
    print(json.dumps(found) if as_json else text)


def columns(rows: Sequence[Sequence[str]], numbers: Container[int] = ()) -> str:
    """Lines of words with aligned columns. `numbers`: the columns that are aligned on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def padded(row: Sequence[str]) -> Iterator[str]:
        for at, (text, width) in enumerate(zip(row, widths, strict=True)):
            yield text.rjust(width) if at in numbers else text.ljust(width)

    return "\n".join("  ".join(padded(row)).rstrip() for row in rows)


def counted(number: int, noun: str) -> str:
    """A number of things: 1 table, 1,205 tables."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


@contextmanager
def reported() -> Iterator[None]:
    """Print our errors in their form for users, and exit with their code."""
    try:
        yield
    except TidegateError as error:
        print(error.render(), file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
