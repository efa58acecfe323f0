"""Readers over HTTP: the requests of `spark.readStream.format("tidegate")` (`server.changefeeds.readers`).

Pieces are sent as frames: number and length, 8 bytes each, big endian, then an Arrow IPC stream; two zeros
end them. A client with a ticket needs no token, because executors get only tickets.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import uuid
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tidegate.api.requests import body_of, number
from tidegate.api.status import capture_of
from tidegate.control.metadata import DEFAULT_NAMESPACE, FeedId
from tidegate.errors import InvalidInput, Retryable
from tidegate.server.changefeeds.reader_history import Query
from tidegate.server.changefeeds.readers import Readers, Ticket, numbers_of, piece_of
from tidegate.sink.reader.changes import Changes

WAIT_MS_MAX: Final = 10_000
"""How long a query may wait for new changes in one call."""
STREAMS_MAX: Final = 64
"""The most tickets that are read at once, as each read holds a piece of some MiB; others must ask again."""
STILL_S: Final = 60.0
"""A client that takes no data for this long is disconnected. It asks again for the pieces that it lacks."""
FRAME: Final = struct.Struct(">QQ")
_QUERY: Final = "send what docs/reference/http-api.md describes"
_streams = asyncio.Semaphore(STREAMS_MAX)


def _readers(request: Request) -> Readers:
    return capture_of(request).readers


def _feed_id(request: Request, body: dict[str, Any]) -> FeedId:
    return FeedId.checked(str(body.get("namespace") or DEFAULT_NAMESPACE), request.path_params["name"])


def _tables(body: dict[str, Any]) -> list[str]:
    found = body.get("tables")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise InvalidInput("'tables' is not a list of names", fix=_QUERY)
    return found


def _asked(body: dict[str, Any]) -> Query:
    columns = None
    if text := body.get("columns"):
        try:
            columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(str(text), validate=True)))
        except (ValueError, pa.ArrowException, OSError) as error:
            raise InvalidInput(
                "'columns' is not an Arrow schema in base64", why=str(error)[:200], fix=_QUERY
            ) from None
    return Query(str(body.get("instance") or ""), columns, number(body, "after_ddl"))


async def create(request: Request) -> Response:
    """POST /readers: create the changefeed of a Spark query.

    Body: `name` (left out: chosen); `namespace` (left out: `default`); `tables` a list of SCHEMA.TABLE;
        `rows` typed or generic (left out: typed); `start_ts` (0: now); `hold_s` seconds that changes are
        kept while the query is silent (0: --gc-ttl); `max_kept` bytes that are kept (0: 10 GiB).
    Answer: `reader` its name, `instance`, `ts` its start. If a reader of this name exists with the same
        options and was not used yet, it is that reader.
    Errors: ErrChangeFeedAlreadyExists, ErrStartTsBeforeGC, ErrTableIneligible.
    """
    body = await body_of(request)
    name = str(body.get("name") or f"reader-{uuid.uuid4().hex[:8]}")
    feed = FeedId.checked(str(body.get("namespace") or DEFAULT_NAMESPACE), name)
    numbers = (number(body, one) for one in ("start_ts", "hold_s", "max_kept"))
    made = await _readers(request).create(feed, _tables(body), str(body.get("rows") or "typed"), *numbers)
    return JSONResponse({"reader": feed.name, "instance": made.instance, "ts": made.start_ts})


async def columns(request: Request) -> Response:
    """POST /readers/columns: say which columns a query of these tables has.

    Body: `name` (of an existing reader; left out: none); `namespace`; `tables`; `rows` typed (left out:
        typed); `start_ts` (0: now).
    Answer: `columns`, an Arrow schema in base64.
    Errors: ErrTableIneligible.
    """
    body = await body_of(request)
    name = str(body.get("name") or "")
    feed = FeedId.checked(str(body.get("namespace") or DEFAULT_NAMESPACE), name) if name else None
    rows = str(body.get("rows") or "typed")
    found = await _readers(request).columns(feed, _tables(body), rows, number(body, "start_ts"))
    return JSONResponse({"columns": base64.b64encode(found.serialize()).decode()})


async def latest(request: Request) -> Response:
    """POST /readers/{name}/latest: say up to which ts a query can read.

    Body: `namespace`; `instance`; `columns` an Arrow schema in base64; `after_ddl` the ts of a DDL that the
        target has carried out; `start`; `max_bytes`; `target`; `wait_ms` how long to wait for news.
    Answer: `upto` the ts up to which the query can read now, `readable` the ts up to which changes are
        kept, `waits` why no more changes come.
    Errors: ErrChangeFeedNotExists, ErrReaderDDL, ErrReaderSilent, and the code of the reader's own error if
        it has failed.
    """
    body = await body_of(request)
    start, max_bytes, target = (number(body, one) for one in ("start", "max_bytes", "target"))
    wait_s = min(number(body, "wait_ms"), WAIT_MS_MAX) / 1000
    feed, asked = _feed_id(request, body), _asked(body)
    found = await _readers(request).latest(feed, asked, start, max_bytes, target, wait_s)
    return JSONResponse(found)


async def plan(request: Request) -> Response:
    """POST /readers/{name}/plan: cut a range of ts into parts, and give a ticket for each.

    Body: `namespace`; `instance`; `columns`; `after_ddl`; `start` and `end`, the range.
    Answer: `parts`, a `ticket` each, and `bytes`, the size of the changes.
    Errors: ErrChangeFeedNotExists, ErrReaderDDL, ErrReaderSilent.
    """
    body = await body_of(request)
    bounds = (number(body, one) for one in ("start", "end"))
    return JSONResponse(await _readers(request).plan(_feed_id(request, body), _asked(body), *bounds))


async def commit(request: Request) -> Response:
    """POST /readers/{name}/commit: report a ts that the query has committed. Changes up to it are discarded.

    Body: `namespace`; `instance`; `columns`; `after_ddl`; `ts`.
    Answer: `{}`.
    Errors: ErrChangeFeedNotExists.
    """
    body = await body_of(request)
    await _readers(request).commit(_feed_id(request, body), _asked(body), number(body, "ts"))
    return JSONResponse({})


async def changes(request: Request) -> Response:
    """GET /readers/changes: read the pieces of a ticket. The ticket takes the place of the token.

    Query: `past` the number of a piece; those beyond it are sent (left out: all).
    Answer: pieces, each its number and length (8 bytes each, big-endian) and an Arrow IPC stream; two zeros
        end them.
    Errors: ErrReaderTicket, ErrChangeFeedNotExists, ErrReaderDDL, ErrReaderSilent.
    """
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind != "Ticket":
        raise InvalidInput("there is no ticket", fix="send Authorization: Ticket ...")
    past = request.query_params.get("past", "0")
    # SQLite's integers have 64 bits with a sign; it raises an OverflowError for a larger one.
    if not past.isdigit() or int(past) >= 1 << 63:
        raise InvalidInput("'past' is not the number of a piece", fix=_QUERY)
    # Refused before the answer begins. After that the client could only wait.
    if _streams.locked():
        raise Retryable(f"{STREAMS_MAX} tickets are being read", fix="ask again in a moment")
    readers = _readers(request)
    # Before the first byte as well: an error is an answer only while none has begun.
    found, kept, ddl = await readers.open(text)
    numbers = await readers.do(numbers_of, found, kept, int(past), ddl=ddl)
    return ChangePieces(readers, found, kept, numbers)


class ChangePieces(Response):
    """Sends one piece after the other; each is read only when the client has taken the one before."""

    def __init__(self, readers: Readers, ticket: Ticket, kept: Changes, numbers: Sequence[int]) -> None:
        super().__init__(media_type="application/octet-stream")
        # Starlette has set it for an empty body.
        del self.headers["content-length"]
        self._readers, self._ticket, self._kept, self._numbers = readers, ticket, kept, numbers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""

        async def say(data: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(STILL_S):
                await send({"type": "http.response.body", "body": data, "more_body": more})

        async with _streams:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for n in self._numbers:
                piece = await self._readers.do(piece_of, self._ticket, self._kept, n)
                if piece is not None:
                    await say(FRAME.pack(piece.n, len(piece.data)))
                    await say(piece.data)
            await say(FRAME.pack(0, 0), more=False)
