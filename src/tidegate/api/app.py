"""Routes, and how errors become answers.

Every error is `{"error_msg", "error_code"}`: 400 for a request to mend, 503 for something outside that is
unavailable, 500 for the rest. Base path `/api/v2`; `/status` and `/metrics` at the root. Text in answers is
redacted.
"""

from __future__ import annotations

import logging
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from tidegate.api import captures, changefeeds, status
from tidegate.errors import InvalidInput, Retryable, TidegateError
from tidegate.log import redact
from tidegate.server.capture import Capture
from tidegate.server.reactor import Refused

LOG: Final = logging.getLogger(__name__)

ROUTES: Final = [
    Route("/status", status.show, methods=["GET"]),
    Route("/health", status.health, methods=["GET"]),
    Route("/tso", status.tso, methods=["POST"]),
    Route("/verify_table", changefeeds.verify_table, methods=["POST"]),
    Route("/get_all_tables", changefeeds.verify_table, methods=["POST"]),
    Route("/changefeeds", changefeeds.show_all, methods=["GET"]),
    Route("/changefeeds", changefeeds.create, methods=["POST"]),
    Route("/changefeeds/{name}", changefeeds.show, methods=["GET"]),
    Route("/changefeeds/{name}", changefeeds.update, methods=["PUT"]),
    Route("/changefeeds/{name}", changefeeds.remove, methods=["DELETE"]),
    Route("/changefeeds/{name}/pause", changefeeds.pause, methods=["POST"]),
    Route("/changefeeds/{name}/resume", changefeeds.resume, methods=["POST"]),
    Route("/changefeeds/{name}/status", changefeeds.show_status, methods=["GET"]),
    Route("/captures", captures.show_all, methods=["GET"]),
    Route("/processors", captures.processors, methods=["GET"]),
]


def create_app(capture: Capture) -> Starlette:
    """The API of a running capture."""
    app = Starlette(
        routes=[
            Mount("/api/v2", routes=ROUTES),
            Route("/status", status.show, methods=["GET"]),
            Route("/metrics", status.metrics_text, methods=["GET"]),
        ],
        exception_handlers={TidegateError: _refused, Exception: _broken},
    )
    app.state.capture = capture
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, TidegateError)
    code = "CDC:ErrInternalServerError"
    status_code = 500
    if isinstance(error, InvalidInput):
        code, status_code = "CDC:ErrAPIInvalidParam", 400
    elif isinstance(error, Retryable):
        code, status_code = "CDC:ErrUnavailable", 503
    if isinstance(error, Refused):
        code = error.code
    body = {"error_msg": redact(str(error)), "error_code": code}
    return JSONResponse(body, status_code)


async def _broken(request: Request, error: Exception) -> Response:
    LOG.error("request failed: %s %s", request.method, request.url.path, exc_info=error)
    body = {
        "error_msg": f"internal error: {type(error).__name__}",
        "error_code": "CDC:ErrInternalServerError",
    }
    return JSONResponse(body, 500)
