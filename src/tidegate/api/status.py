"""Health, version, time, metrics, and the state of the Spark application."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidegate import __version__, metrics
from tidegate.errors import Retryable
from tidegate.model import timestamp
from tidegate.server.capture import Capture

VERSION = f"v8.5.0-tidegate-{__version__}"
"""TiCDC's CLI requires a semantic version of at least 6.2.0."""


def capture_of(request: Request) -> Capture:
    """The capture of this API. Raises Retryable while it is not open."""
    capture = starting_capture_of(request)
    if not capture.ready:
        raise Retryable(
            "the capture is not ready yet",
            where=capture.options.address,
            why=f"it waits for {capture.waiting_for or 'its own start or end'}",
            fix="try again later; GET /status says what it waits for",
        )
    return capture


def starting_capture_of(request: Request) -> Capture:
    """The capture of this API, possibly without reactor and node yet."""
    capture = request.app.state.capture
    assert isinstance(capture, Capture)
    return capture


async def show(request: Request) -> Response:
    """GET /status: say what this capture is; it answers while it waits for PD, too.

    Answer: `version`, `git_hash` (empty), `id`, `cluster_id`, `pid`, `is_owner`, `liveness` (always 0),
        `waiting_for`, `clock` (trouble with the clock), and `application`, the Spark application: `pid` (0:
        it does not run), `workers`, `at_work`, `waiting`.
    """
    capture = starting_capture_of(request)
    return JSONResponse(
        {
            "version": VERSION,
            "git_hash": "",
            "id": capture.id,
            "cluster_id": str(capture.cluster) if capture.cluster else "",
            "pid": os.getpid(),
            "is_owner": capture.ready,
            "liveness": 0,
            "waiting_for": capture.waiting_for,
            "clock": capture.reactor.clock_watch.trouble if capture.ready else "",
            "application": application(capture) if capture.ready else None,
        }
    )


def application(capture: Capture) -> dict[str, Any]:
    """The Spark application: its workers, and the changefeeds that wait for one. `pid` 0: it does not run."""
    found = capture.node.application
    working = found.working
    return {
        "pid": found.pid,
        "workers": working.workers,
        "at_work": [dataclasses.asdict(one) for one in working.at_work],
        "waiting": list(working.waiting),
    }


async def health(request: Request) -> Response:
    """GET /health: answer 200 while the capture can do its work, and 503 otherwise.

    Answer: `{}`.
    Errors: ErrUnhealthy (503).
    """
    capture = capture_of(request)
    problems = []
    if not capture.puller_alive:
        problems.append("the puller process is not running")
    if capture.node.ballast.trouble:
        problems.append(capture.node.ballast.trouble)
    if capture.reactor.history.error:
        problems.append(capture.reactor.history.error)
    if not problems:
        return JSONResponse({})
    return JSONResponse({"error_msg": "; ".join(problems), "error_code": "CDC:ErrUnhealthy"}, 503)


async def tso(request: Request) -> Response:
    """POST /tso: take a timestamp from PD.

    Answer: `timestamp` ms since 1970, `logic_time`.
    """
    now = await asyncio.to_thread(capture_of(request).pd.tso)
    return JSONResponse({"timestamp": timestamp.physical_ms(now), "logic_time": timestamp.logical(now)})


async def metrics_text(request: Request) -> Response:
    """GET /metrics: show the metrics.

    Answer: Prometheus' text form.
    """
    return Response(metrics.render(), media_type="text/plain; version=0.0.4")
