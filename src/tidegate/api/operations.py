"""Requests of an operator to a capture as a whole: log level, owner's resignation, TiCDC's `unsafe` routes.

The bodies are TiCDC's; their PD fields are ignored, because a capture has one upstream.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidegate.api.requests import body_of, number
from tidegate.api.status import capture_of
from tidegate.config.reading import config_from_json
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.gc import service_id
from tidegate.control.metadata import FeedInfo, KeyValue, feed_of_key
from tidegate.errors import InvalidInput, TidegateError
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.lock_resolver import LockResolver
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.log import event, redact
from tidegate.model import timestamp
from tidegate.model.span import Span
from tidegate.tidb.memcomparable import decode_bytes

LOG: Final = logging.getLogger(__name__)

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
    "panic": logging.CRITICAL,
    "dpanic": logging.CRITICAL,
}
"""The names of levels in TiCDC's logger."""
RESOLVE_BUDGET_MS: Final = 20_000
RESOLVE_AGE_MS: Final = 60_000
"""Locks of at least this age are resolved if a request names no ts, as in TiCDC's client."""


async def set_log_level(request: Request) -> Response:
    """POST /log: set the log level of this process until it ends.

    Body: `log_level` debug, info, warn, error, fatal or panic.
    Answer: `{}`.
    """
    level = str((await body_of(request)).get("log_level", "")).lower()
    if level not in LEVELS:
        raise InvalidInput(f"'{level[:40]}' is not a log level", fix="use one of " + ", ".join(LEVELS))
    logging.getLogger().setLevel(LEVELS[level])
    event(LOG, logging.INFO, "log level set", to=level)
    return JSONResponse({})


async def resign(request: Request) -> Response:
    """POST /owner/resign: give up ownership. The owner that is elected restarts the running changefeeds.

    Answer: 202 and `{}`.
    """
    await capture_of(request).resign()
    return JSONResponse({}, 202)


async def metadata(request: Request) -> Response:
    """GET /unsafe/metadata: show all metadata of this cluster, with secrets hidden.

    Answer: an array of objects with `key` and `value`.
    """
    capture = capture_of(request)
    loop, node = asyncio.get_running_loop(), capture.node
    # In the one thread that uses the metadata store.
    found = await loop.run_in_executor(node.disk, node.metadata.under, f"/tidegate/{node.cluster}/")
    return JSONResponse([{"key": kv.key, "value": _shown(kv)} for kv in found])


def _shown(found: KeyValue) -> str:
    """A stored value without secrets; those of a feed are in its sink URI and its settings."""
    named = feed_of_key(found.key)
    if named is None or named[1] != "info":
        return redact(found.value.decode(errors="replace"))
    try:
        # Read and rendered again: secrets are only recognised in a parsed URI and parsed settings.
        info = FeedInfo.from_bytes(found.value)
        uri, config = parse_sink_uri(info.sink_uri), config_from_json(info.config)
    except TidegateError as error:
        return f"(damaged: {error.what})"
    body: dict[str, Any] = json.loads(found.value)
    return json.dumps(body | {"sink_uri": uri.render(), "config": config.to_json(redact=True)})


async def resolve_lock(request: Request) -> Response:
    """POST /unsafe/resolve_lock: resolve the locks that ended transactions left in a region.

    Body: `region_id`; `ts` (0: a minute ago), locks up to which are resolved.
    Answer: `{}`.
    """
    body = await body_of(request)
    region, ts = number(body, "region_id"), number(body, "ts")
    if not region:
        raise InvalidInput("'region_id' is missing", fix="name a region, as PD numbers them")
    await asyncio.to_thread(_resolve, capture_of(request).pd, region, ts)
    return JSONResponse({})


def _resolve(pd: PdClient, region_id: int, ts: int) -> None:
    """Resolve old locks, but not those of live transactions. Raises InvalidInput for an unknown region."""
    found = pd.region_by_id(region_id)
    # PD has the keys of regions in TiKV's encoding; requests to a region have plain keys.
    start, end = (decode_bytes(key)[0] if key else b"" for key in (found.start_key, found.end_key))
    upto = ts or pd.tso() - timestamp.compose(RESOLVE_AGE_MS)
    LockResolver(RegionRequester(pd)).resolve_span(Span(start, end), upto, Backoff(RESOLVE_BUDGET_MS))


async def delete_gc_safepoint(request: Request) -> Response:
    """DELETE /unsafe/service_gc_safepoint: release the history that upstream keeps for changefeeds.

    As in TiCDC, a capture that has changefeeds holds it again at its next renewal, within a minute. If
    upstream's GC runs before that, the changefeeds that needed the removed versions fail.

    Answer: `{}`.
    """
    await body_of(request)
    capture = capture_of(request)
    # -1 is the history of upstream as a whole; each keyspace has a hold of its own.
    for scope in {-1, *capture.node.histories}:
        service = service_id(capture.cluster, capture.node.holder, scope)
        await asyncio.to_thread(capture.pd.hold_history, service, 0, 0, scope)
    event(LOG, logging.WARNING, "service GC safepoint deleted by request")
    return JSONResponse({})
