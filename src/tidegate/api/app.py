"""The routes, and how errors become answers.

Every error is `{"error_msg", "error_code"}`, also for an unknown route: 400 for a wrong request, 503 if
something outside is unavailable, 500 for other errors. The base path is `/api/v2`; `/status` and `/metrics`
are also at the root. Text in answers is redacted.
"""

from __future__ import annotations

import logging
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.api import captures, changefeeds, forward, key_loads, messages, operations, readers, status
from tidegate.api.status import starting_capture_of
from tidegate.errors import InvalidInput, Retryable, TidegateError
from tidegate.log import redact
from tidegate.server.capture import Capture
from tidegate.server.changefeeds.new_feed import Refused

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
    Route("/changefeeds/{name}/repartition", changefeeds.repartition, methods=["POST"]),
    Route("/changefeeds/{name}/rebalance", changefeeds.rebalance, methods=["POST"]),
    Route("/changefeeds/{name}/move", changefeeds.move, methods=["POST"]),
    Route("/changefeeds/{name}/status", changefeeds.show_status, methods=["GET"]),
    Route("/changefeeds/{name}/meta_info", changefeeds.show_meta, methods=["GET"]),
    Route("/changefeeds/{name}/synced", changefeeds.show_synced, methods=["GET"]),
    Route("/captures", captures.show_all, methods=["GET"]),
    Route("/captures/{capture}/drain", captures.drain, methods=["PUT"]),
    Route("/captures/{capture}/drain", captures.undrain, methods=["DELETE"]),
    Route("/captures/{capture}/evict", captures.evict, methods=["POST"]),
    Route("/processors", captures.processors, methods=["GET"]),
    Route("/processors/{name}/{capture}", captures.processor, methods=["GET"]),
    Route("/messages", messages.take, methods=["POST"]),
    Route("/key_loads", key_loads.show, methods=["GET"]),
    Route("/readers", readers.create, methods=["POST"]),
    Route("/readers/columns", readers.columns, methods=["POST"]),
    Route("/readers/changes", readers.changes, methods=["GET"]),
    Route("/readers/{name}/latest", readers.latest, methods=["POST"]),
    Route("/readers/{name}/plan", readers.plan, methods=["POST"]),
    Route("/readers/{name}/commit", readers.commit, methods=["POST"]),
    Route("/log", operations.set_log_level, methods=["POST"]),
    Route("/owner/resign", operations.resign, methods=["POST"]),
    Route("/unsafe/metadata", operations.metadata, methods=["GET"]),
    Route("/unsafe/resolve_lock", operations.resolve_lock, methods=["POST"]),
    Route("/unsafe/service_gc_safepoint", operations.delete_gc_safepoint, methods=["DELETE"]),
]

ROOT_ROUTES: Final = [
    Route("/status", status.show, methods=["GET"]),
    Route("/metrics", status.metrics_text, methods=["GET"]),
]
"""The routes outside of /api/v2."""


class ForOwner:
    """Forwards requests to the owner while the capture is a standby; counts those that an owner answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] == "http":
            request = Request(scope, receive)
            if forward.is_for_owner(request):
                try:
                    answer = await forward.to_owner(request)
                except TidegateError as error:
                    # Here and not by the handlers of `create_app`: they are inside of this middleware.
                    answer = await _refused(request, error)
                await answer(scope, receive, send)
                return
            if forward.may_change(request):
                with starting_capture_of(request).request():
                    await self._app(scope, receive, send)
                return
        await self._app(scope, receive, send)


def create_app(capture: Capture) -> Starlette:
    """The API of a running capture."""
    app = Starlette(
        middleware=[Middleware(ForOwner)],
        routes=[Mount("/api/v2", routes=ROUTES), *ROOT_ROUTES],
        exception_handlers={TidegateError: _refused, HTTPException: _no_route, Exception: _broken},
    )
    app.state.capture = capture
    return app


def code_of(error: TidegateError) -> tuple[str, int]:
    """The code and the HTTP status of the answer to an error."""
    if isinstance(error, Refused):
        return error.code, 400
    if isinstance(error, InvalidInput):
        return "CDC:ErrAPIInvalidParam", 400
    if isinstance(error, Retryable):
        return "CDC:ErrUnavailable", 503
    return "CDC:ErrInternalServerError", 500


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, TidegateError)
    code, status_code = code_of(error)
    return JSONResponse({"error_msg": redact(str(error)), "error_code": code}, status_code)


async def _no_route(request: Request, error: Exception) -> Response:
    """The router's 404 or 405. TiCDC's client prints only the `error_msg` of an answer."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    known = "a route of this API" if error.status_code == 404 else "a method of this route"
    body = {
        "error_msg": redact(f"{what} is not {known}; the base path is /api/v2"),
        "error_code": "CDC:ErrAPINotFound",
    }
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    LOG.error("request failed: %s %s", request.method, request.url.path, exc_info=error)
    body = {
        # Only the type: the text of an unexpected error may have anything in it, a secret for example. The
        # log has all.
        "error_msg": f"internal error: {type(error).__name__}",
        "error_code": "CDC:ErrInternalServerError",
    }
    return JSONResponse(body, 500)
