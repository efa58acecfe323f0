"""Messages between the captures of a cluster (`server.captures.message_client` sends them): POST
/api/v2/messages.

A capture accepts them also while it is a standby, because it works for changefeeds of another owner.
"""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidegate.api.status import starting_capture_of
from tidegate.errors import InvalidInput, Retryable, TidegateError
from tidegate.server.capture import Capture
from tidegate.server.captures.message_client import CLUSTER, SENDER

MESSAGES_MAX: Final = 8192
"""The most messages in one request."""
_FORM: Final = f"send a JSON list of at most {MESSAGES_MAX} messages"


async def take(request: Request) -> Response:
    """POST /messages: take messages of another capture, each for an owner or a processor on this one.

    Body: a list of messages (`control.messages`), 8192 at most. Headers name the cluster and the sender.
    Answer: `{}`.
    """
    capture = capture_for_others(request)
    sender = request.headers.get(SENDER, "")[:64]
    unread = ""
    for message in _messages(await request.body()):
        try:
            capture.node.router.deliver(sender, json.dumps(message, separators=(",", ":")).encode())
        except (ValueError, TypeError, RecursionError, TidegateError) as error:
            unread = unread or str(error)[:200]  # one bad message must not stop the others
    if unread:
        fix = "run the same version of Tidegate on all captures, or upgrade those that are left"
        raise InvalidInput("this is not a message of a capture", where=f"from {sender}", why=unread, fix=fix)
    return JSONResponse({})


def capture_for_others(request: Request) -> Capture:
    """This capture, for a request of another one. Raises Retryable if it takes none now, and InvalidInput if
    the other one is of another cluster.
    """
    capture = starting_capture_of(request)
    if capture.session.membership is None or not capture.takes_messages:
        raise Retryable(
            "the capture takes no messages",
            where=capture.options.address,
            why="it runs alone, or is starting or ending",
            fix="nothing: messages are sent again",
        )
    # An address may be reused by a capture of another cluster, where changefeeds may have the same names.
    if request.headers.get(CLUSTER) != str(capture.cluster):
        raise InvalidInput(
            "the messages are for a capture of another cluster",
            where=capture.options.address,
            why=f"it is {capture.cluster} here, and {request.headers.get(CLUSTER, '')[:32]} there",
            fix="give captures of different clusters different addresses, or an etcd each",
        )
    return capture


def _messages(body: bytes) -> list[Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("the body is not JSON", why=str(error)[:200], fix=_FORM) from error
    if not isinstance(found, list) or len(found) > MESSAGES_MAX:
        raise InvalidInput("the body is not a list of messages", fix=_FORM)
    return found
