"""The common parts of requests about changefeeds: their body, and the changefeed that they name."""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.requests import Request

from tidegate.api.bounds import check_bounds
from tidegate.api.status import capture_of
from tidegate.control.metadata import DEFAULT_NAMESPACE, FeedId
from tidegate.errors import InvalidInput
from tidegate.server.owner.feed import Feed

_FORM: Final = "send a JSON object, or no body"


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object in the body of a request; an empty body is an empty object. Raises InvalidInput."""
    raw = await request.body()
    try:
        body = orjson.loads(raw) if raw else {}  # strict: no NaN, no half characters, no endless depth
    except orjson.JSONDecodeError as error:
        raise InvalidInput("the request body is not JSON", why=str(error)[:200], fix=_FORM) from error
    if not isinstance(body, dict):
        raise InvalidInput("the request body is not a JSON object", fix=_FORM)
    check_bounds(body)
    return body


def namespace_of(query: dict[str, Any]) -> str:
    """The namespace that a query or body names; `keyspace` is another word for it."""
    return str(query.get("namespace") or query.get("keyspace") or DEFAULT_NAMESPACE)


def feed_id(request: Request) -> FeedId:
    """The changefeed that the path and the query name. Raises InvalidInput for a bad name."""
    return FeedId.checked(namespace_of(dict(request.query_params)), request.path_params["name"])


def feed_of(request: Request) -> Feed:
    """The feed that the path and the query name. Raises Refused (CDC:ErrChangeFeedNotExists)."""
    return capture_of(request).reactor.feeds.named(feed_id(request))


def number(body: dict[str, Any], name: str) -> int:
    """A number of the body; 0 if it is missing. Raises InvalidInput unless it is one of 64 bits."""
    value = body.get(name) or 0
    # Not `isinstance`: JSON's `true` is an int for it.
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise InvalidInput(
            f"'{name}' is not a number of 64 bits", why=f"{value!r}"[:100], fix="send a number"
        )
    return value
