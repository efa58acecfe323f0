"""Captures and processors: one capture, one processor a feed for now."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidegate.api.status import capture_of


async def show_all(request: Request) -> Response:
    """GET /captures."""
    capture = capture_of(request)
    item = {
        "id": capture.id,
        "is_owner": True,
        "address": capture.options.address,
        "cluster_id": str(capture.cluster),
    }
    return JSONResponse({"total": 1, "items": [item]})


async def processors(request: Request) -> Response:
    """GET /processors."""
    capture = capture_of(request)
    items = [
        {
            "namespace": feed.namespace,
            "keyspace": feed.namespace,
            "changefeed_id": feed.name,
            "capture_id": capture.id,
        }
        for feed in sorted(capture.reactor.feeds)
    ]
    return JSONResponse({"total": len(items), "items": items})
