"""Captures and processors: a feed has one processor for now, on the capture that owns it."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidegate.api.changefeeds import feed_of, table_ids
from tidegate.api.status import capture_of
from tidegate.server.new_feed import Refused


async def show_all(request: Request) -> Response:
    """GET /captures."""
    capture = capture_of(request)
    there = [(capture.id, capture.options.address)]
    if (member := capture.membership) is not None:
        there = [(one.id, one.address) for one in await asyncio.to_thread(member.captures)]
    items = [
        {
            "id": found,
            "is_owner": found == capture.id,
            "address": address,
            "cluster_id": str(capture.cluster),
        }
        for found, address in there
    ]
    return JSONResponse({"total": len(items), "items": items})


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


async def processor(request: Request) -> Response:
    """GET /processors/ID/CAPTURE: the tables whose rows this capture delivers for a changefeed."""
    feed, capture = feed_of(request), capture_of(request)
    if request.path_params["capture"] != capture.id:
        raise Refused(
            "CDC:ErrCaptureNotExist",
            f"[CDC:ErrCaptureNotExist]capture not exists, {request.path_params['capture'][:64]}",
            fix="GET /captures lists the captures there are",
        )
    return JSONResponse({"table_ids": table_ids(feed, request)})
