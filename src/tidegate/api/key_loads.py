"""Says which keys of a span have changed lately, to the owner that wants to cut it
(`server.captures.key_loads_client` asks).
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidegate.api.messages import capture_for_others
from tidegate.config.values import TABLE_MODE
from tidegate.errors import InvalidInput
from tidegate.eventstore.key_loads import key_loads
from tidegate.server.captures.key_loads_client import as_json

_SPAN: Final = re.compile(r"[0-9a-f]{1,64}")


async def show(request: Request) -> Response:
    """GET /key_loads: which keys of a span have changed lately on this capture; for the owner of changefeeds.

    Query: `span`, the id of a span. A header names the cluster.
    Answer: `starts`, the first keys of at most 256 buckets in hex; `weights`, their changed bytes; `rows`,
        the number of rows that were looked at.
    """
    capture = capture_for_others(request)
    span = request.query_params.get("span", "")
    if not _SPAN.fullmatch(span):  # it names a folder
        raise InvalidInput(f"'{span[:64]}' is not the id of a span", fix="send 'span' in hex")
    store = capture.node.captured(TABLE_MODE).store
    return JSONResponse(as_json(await asyncio.to_thread(key_loads, store, span)))
