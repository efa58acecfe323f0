"""A standby answers requests about itself, and forwards those about changefeeds to the owner.

As in TiCDC, a client may ask any capture. A forwarded request is not forwarded again: otherwise two captures
that take each other for the owner would send it back and forth for ever.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from tidegate.api.status import starting_capture_of
from tidegate.errors import Retryable
from tidegate.server.captures.message_client import peer_client, scheme

PASSED_ON: Final = "x-tidegate-passed-on"
KEPT: Final = ("authorization", "content-type", "accept")
"""Headers of a request that are forwarded to the owner."""
ANSWER_S: Final = 60.0
OWN: Final = (
    *("/status", "/api/v2/status", "/api/v2/health", "/api/v2/log", "/metrics"),
    *("/api/v2/messages", "/api/v2/key_loads"),
)
"""Paths that each capture answers itself."""


def is_for_owner(request: Request) -> bool:
    """Whether the owner must answer the request."""
    capture = starting_capture_of(request)
    return not capture.ready and capture.session.owner is not None and request.url.path not in OWN


def may_change(request: Request) -> bool:
    """Whether the request may change what the owner owns. Messages of captures name their term and do not."""
    return request.method != "GET" and request.url.path not in OWN


async def to_owner(request: Request) -> Response:
    """The owner's answer. Raises Retryable if there is none."""
    import httpx  # here, as in `message_client`

    capture = starting_capture_of(request)
    owner = capture.session.owner
    assert owner is not None
    if PASSED_ON in request.headers:
        raise Retryable(
            "the captures do not agree on the owner yet",
            where=capture.options.address,
            fix="try again later",
        )
    # Without Host: it names this capture, and the owner refuses a name that is not its own.
    headers = {name: request.headers[name] for name in KEPT if name in request.headers}
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    try:
        async with peer_client(capture.options.api_tls, ANSWER_S) as client:
            answer = await client.request(
                request.method,
                f"{scheme(capture.options.api_tls)}://{owner.address}{path}",
                headers={**headers, PASSED_ON: capture.options.address},
                content=await request.body(),
            )
    except httpx.HTTPError as error:
        raise Retryable(
            "the owner does not answer",
            where=f"capture {owner.name} at {owner.address}",
            why=f"{type(error).__name__}: {error}",
            fix="try again: if it is gone, another capture is elected when its session ends",
        ) from error
    kind = answer.headers.get("content-type", "application/json")
    return Response(answer.content, answer.status_code, media_type=kind)
