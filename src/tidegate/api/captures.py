"""Captures and processors: a changefeed has a processor on each capture that delivers a part of it."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidegate import __version__
from tidegate.api.requests import feed_of
from tidegate.api.status import capture_of
from tidegate.server.captures.membership import CaptureInfo
from tidegate.server.changefeeds.new_feed import Refused


async def show_all(request: Request) -> Response:
    """GET /captures: list the captures of the cluster.

    Answer: `total`, and `items` with `id`, `is_owner`, `address`, `cluster_id`, and `tidegate` with `name`,
    `version`, `changefeeds`, `tables`, `drained`, `left`: tables that it delivers or may still deliver.
    """
    capture = capture_of(request)
    there = [CaptureInfo(capture.id, capture.node.capture, capture.options.address, __version__)]
    if (member := capture.session.membership) is not None:
        # In a thread, because membership's calls to etcd block.
        there = await asyncio.to_thread(member.captures)
    burdens = capture.node.burdens()
    items = [
        {
            "id": one.id,
            "is_owner": one.id == capture.id,
            "address": one.address,
            "cluster_id": str(capture.cluster),
            "tidegate": {
                "name": one.name,
                "version": one.version,
                "changefeeds": burdens.get(one.name, 0),
                "tables": capture.reactor.placement.tables_of(one.name),
                "drained": one.name in capture.node.drained,
                "left": capture.reactor.placement.left_on(one.name),
            },
        }
        for one in there
    ]
    return JSONResponse({"total": len(items), "items": items})


async def drain(request: Request) -> Response:
    """PUT /captures/{capture}/drain: give what it delivers to the others, and nothing to it any more.

    Answer: `current_table_count`, the tables that it still delivers; with status 202.
    Errors: ErrCaptureNotExist.
    """
    return await _drained(request, again=False)


async def undrain(request: Request) -> Response:
    """DELETE /captures/{capture}/drain: a drained capture may be given tables again.

    Answer: `current_table_count`, the tables that it delivers now; with status 202.
    Errors: ErrCaptureNotExist.
    """
    return await _drained(request, again=True)


async def _drained(request: Request, *, again: bool) -> Response:
    capture = capture_of(request)
    name = capture.session.named(request.path_params["capture"])
    if capture.session.membership is None:
        raise Refused(
            "CDC:ErrCaptureNotExist",
            "there is no other capture",
            why="the server runs without --etcd",
            fix="start the captures with --etcd: see docs/captures.md",
        )
    left = await capture.reactor.placement.drain(name, again=again)
    return JSONResponse({"current_table_count": left}, 202)


async def evict(request: Request) -> Response:
    """POST /captures/{capture}/evict: end its session, as if its lease had run out.

    Answer: `{}`, with status 202.
    Errors: ErrCaptureNotExist.
    """
    await capture_of(request).session.evict(request.path_params["capture"])
    return JSONResponse({}, 202)


async def processors(request: Request) -> Response:
    """GET /processors: list the changefeeds with each capture that delivers a part of them.

    Answer: `total`, and `items` with `namespace`, `keyspace`, `changefeed_id`, `capture_id`.
    """
    capture = capture_of(request)
    items = [
        {
            "namespace": name.namespace,
            "keyspace": name.namespace,
            "changefeed_id": name.name,
            "capture_id": capture.session.ids.get(peer.capture, peer.capture),
        }
        for name, feed in sorted(capture.reactor.feeds.items())
        for peer in feed.replication.peers.running
    ]
    return JSONResponse({"total": len(items), "items": items})


async def processor(request: Request) -> Response:
    """GET /processors/{name}/{capture}: list the tables whose rows a capture delivers for a changefeed.

    Query: `namespace` or `keyspace` (left out: `default`).
    Answer: `table_ids`.
    Errors: ErrCaptureNotExist, ErrChangeFeedNotExists.
    """
    feed, capture = feed_of(request), capture_of(request)
    names = {found: name for name, found in capture.session.ids.items()}
    name = names.get(request.path_params["capture"])
    if name is None:
        raise Refused(
            "CDC:ErrCaptureNotExist",
            f"[CDC:ErrCaptureNotExist]capture not exists, {request.path_params['capture'][:64]}",
            fix="choose one that GET /captures lists",
        )
    peer = feed.replication.peers.get(name)
    return JSONResponse({"table_ids": feed.replication.shares.tables_of(peer) if peer is not None else []})
