"""Calls to a capture's HTTP API, and the output of their answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from tidegate.access import AccessToken
from tidegate.errors import InvalidInput, Retryable, TidegateError

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
    import httpx

    from tidegate.tls import Tls

    base = server if "://" in server else f"http://{server}"
    token, tls = AccessToken.from_environment(), Tls.from_environment()
    is_secure = not base.lower().startswith("http://")  # httpx takes HTTPS:// too
    try:
        answer = httpx.request(
            method,
            f"{base}/api/v2{path}",
            json=body,
            params=query or {},
            headers=token.header if token else {},
            timeout=TIMEOUT_S,
            trust_env=False,
            # Plain HTTP needs no certificates, and reading those of all authorities takes 20 ms.
            verify=tls.http_client() if tls is not None and is_secure else is_secure,
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Retryable(
            "no capture answers",
            where=base,
            why=str(error),
            fix="give the certificates that it asks for: tidegate --ca CA --cert CERT --key KEY ..."
            if is_secure
            else "start one with `tidegate server`, or name it with --server; write https://HOST:PORT if it "
            "was started with --api-tls",
        ) from error
    try:
        found = answer.json()
    except ValueError:
        found = {"error_msg": f"the answer is not JSON (status {answer.status_code})"}
    if answer.is_success:
        return found
    kind = Retryable if answer.status_code == 503 else InvalidInput
    raise kind(str(found.get("error_msg", "the request was refused")))


def show(found: Any, text: str, as_json: bool) -> None:
    """Print an answer: as JSON, or in words."""
    print(json.dumps(found) if as_json else text)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Lines of words with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    return "\n".join(padded)


@contextmanager
def reported() -> Iterator[None]:
    """Print our errors in their form for users, and exit with their code."""
    try:
        yield
    except TidegateError as error:
        print(error.render(), file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
