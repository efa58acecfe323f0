"""Changefeeds over HTTP: create, list, show, update, pause, resume, re-partition, remove.

Bodies and answers are TiCDC's (tiflow `cdc/api/v2/model.go`); what TiCDC does not have stands under
`tidegate`. `namespace` and `keyspace` are the same thing here.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidegate import __version__
from tidegate.api.bounds import check_bounds
from tidegate.api.status import capture_of
from tidegate.codec.registry import settled
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.changefeed import Command, State
from tidegate.control.metadata import DEFAULT_NAMESPACE, FeedError, FeedId
from tidegate.control.synced import synced
from tidegate.errors import InvalidInput
from tidegate.filter.tables import why_ineligible
from tidegate.model.timestamp import physical_ms
from tidegate.mounter.table_version import TableVersion
from tidegate.server import initial_load
from tidegate.server.capture import Capture
from tidegate.server.feed import Feed
from tidegate.server.new_feed import SHOWN_TABLES, Refused, check_new, tables_at, weak_orders
from tidegate.server.node import Node
from tidegate.server.sharing import Plan
from tidegate.server.unreadable import NOT_KNOWN, UnreadableFeed
from tidegate.sink.reader.changes import Standing

DESCRIBED_STATES: Final = (State.NORMAL, State.WARNING, State.FAILED, State.STOPPED, State.FINISHED)
UNREADABLE: Final = "unreadable"
"""Shown as the state of a changefeed that this version cannot read. TiCDC has no such state."""


async def body_of(request: Request) -> dict[str, Any]:
    """The request's JSON object; an empty body is an empty object."""
    raw = await request.body()
    try:
        body = orjson.loads(raw) if raw else {}  # strict: no NaN, no half characters, no endless depth
    except orjson.JSONDecodeError as error:
        raise InvalidInput("The request body is not JSON.", why=str(error)[:200]) from error
    if not isinstance(body, dict):
        raise InvalidInput("The request body is not a JSON object.")
    check_bounds(body)
    return body


def _namespace(query: dict[str, Any]) -> str:
    return str(query.get("namespace") or query.get("keyspace") or DEFAULT_NAMESPACE)


def _feed_id(request: Request) -> FeedId:
    return FeedId.checked(_namespace(dict(request.query_params)), request.path_params["name"])


def feed_of(request: Request) -> Feed:
    """The feed the path and the query name; raises Refused (CDC:ErrChangeFeedNotExists)."""
    return capture_of(request).reactor.feeds.named(_feed_id(request))


def number(body: dict[str, Any], name: str) -> int:
    """A number of the body that fits 64 bits; 0 when it is missing. Raises InvalidInput."""
    value = body.get(name) or 0
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise InvalidInput(f"'{name}' is not a number of 64 bits.", why=f"{value!r}"[:100])
    return value


async def create(request: Request) -> Response:
    """POST /changefeeds: create a changefeed, and start it.

    Body: `changefeed_id` the name (left out: a UUID); `namespace` or `keyspace` (else of the query, else
        `default`); `sink_uri`; `replica_config` the settings, in snake_case; `start_ts` (0: now);
        `target_ts` (0: none).
    Answer: the changefeed, as GET /changefeeds/{name} shows it.
    Errors: ErrChangeFeedAlreadyExists, ErrColumnSelectorFailed, ErrExpressionColumnNotFound,
        ErrExpressionParseFailed, ErrInvalidIgnoreEventType, ErrKafkaTopicExprInvalid, ErrStartTsBeforeGC,
        ErrTableIneligible, ErrTargetTsBeforeStartTs.
    """
    body = await body_of(request)
    given = dict(body) | ({} if body.get("namespace") else dict(request.query_params))
    feed = FeedId.checked(_namespace(given), str(body.get("changefeed_id") or uuid.uuid4()))
    if parse_sink_uri(str(body.get("sink_uri") or "")).is_reader:
        raise InvalidInput(
            "A reader is made by its query.", where="sink_uri", fix='spark.readStream.format("tidegate")'
        )
    # In a thread: thousands of rules take their time, in which others must be answered.
    new = await asyncio.to_thread(
        check_new,
        feed,
        str(body.get("sink_uri") or ""),
        body.get("replica_config") or {},
        number(body, "start_ts"),
        number(body, "target_ts"),
    )
    return JSONResponse(full(await capture_of(request).reactor.create(new), request))


async def show_all(request: Request) -> Response:
    """GET /changefeeds: list the changefeeds.

    Query: `namespace` or `keyspace` (left out: all namespaces); `state` `all`, or one state (left out: all
        but finished ones).
    Answer: `total`, and `items` with `id`, `namespace`, `keyspace`, `upstream_id`, `state`,
        `checkpoint_tso`, `checkpoint_time`, `error`, and `tidegate` with `kind` (`changefeed` or `reader`).
    """
    query = dict(request.query_params)
    wanted = query.get("state", "")
    if wanted not in ("", "all", *State):
        raise InvalidInput(f"'{wanted}' is not a state.", fix="use all, " + ", ".join(DESCRIBED_STATES))
    namespace = query.get("namespace") or query.get("keyspace")
    feeds = [f for f in capture_of(request).reactor.feeds.values() if namespace in (None, "", f.id.namespace)]
    if wanted in ("", "all"):
        shown = [f for f in feeds if wanted == "all" or f.shown_state is not State.FINISHED]
    else:
        shown = [f for f in feeds if f.shown_state == wanted]
    places = await capture_of(request).readers.standings(shown)
    items = [brief(f, places.get(f.id)) for f in sorted(shown, key=lambda f: f.id)]
    if wanted in ("", "all"):
        unreadable, node = capture_of(request).reactor.feeds.unreadable, capture_of(request).node
        found = [one for _, one in sorted(unreadable.items()) if namespace in (None, "", one.id.namespace)]
        items += [_unreadable(one, node) for one in found]
    return JSONResponse({"total": len(items), "items": items})


async def show(request: Request) -> Response:
    """GET /changefeeds/{name}: show a changefeed.

    Query: `namespace` or `keyspace` (left out: `default`).
    Answer: `id`, `namespace`, `keyspace`, `upstream_id`, `sink_uri` without secrets, `create_time`,
        `start_ts`, `target_ts`, `config` all settings, `state`, `error`, `creator_version`, `resolved_ts`,
        `checkpoint_ts`, `checkpoint_time`, `task_status`, `admin_job_type` (always 0), and `tidegate`:
        totals, spans, the captures that deliver it, what it waits for, tables that are left out, the
        initial load, partitions, and `table_cuts`, the number of places at which tables are cut into pieces
        that have writers of their own.
    Errors: ErrChangeFeedNotExists.
    """
    feed = feed_of(request)
    places = await capture_of(request).readers.standings([feed])
    return JSONResponse(full(feed, request, places.get(feed.id)))


async def show_status(request: Request) -> Response:
    """GET /changefeeds/{name}/status: show where a changefeed is, and its last error.

    Query: `namespace` or `keyspace` (left out: `default`).
    Answer: `state`, `resolved_ts`, `checkpoint_ts`, `last_error`, `last_warning`, `tidegate`.
    Errors: ErrChangeFeedNotExists.
    """
    feed = feed_of(request)
    problem = error_json(feed.life.error)
    warning = feed.shown_state is State.WARNING
    return JSONResponse(
        {
            "state": str(feed.shown_state),
            "resolved_ts": feed.resolved_ts,
            "checkpoint_ts": feed.checkpoint,
            "last_error": None if warning else problem,
            "last_warning": problem if warning else None,
            "tidegate": own(feed, request),
        }
    )


async def show_meta(request: Request) -> Response:
    """GET /changefeeds/{name}/meta_info: show a changefeed without `tidegate` and `task_status`.

    Query: `namespace` or `keyspace` (left out: `default`).
    Answer: as GET /changefeeds/{name}, without the two.
    Errors: ErrChangeFeedNotExists.
    """
    found = full(feed_of(request), request)
    return JSONResponse(
        {name: value for name, value in found.items() if name not in ("tidegate", "task_status")}
    )


async def show_synced(request: Request) -> Response:
    """GET /changefeeds/{name}/synced: say whether everything upstream has is downstream (`control.synced`).

    Query: `namespace` or `keyspace` (left out: `default`).
    Answer: `synced`, `sink_checkpoint_ts`, `puller_resolved_ts`, `last_synced_ts` (left out if unknown),
        `now_ts`, all as times of day, and `info`, the reason.
    Errors: ErrChangeFeedNotExists.
    """
    feed, reactor = feed_of(request), capture_of(request).reactor
    now = await reactor.now()
    status = feed.config.synced_status
    verdict, why = synced(
        feed.checkpoint, feed.resolved_ts, feed.last_synced_ts, now, status.synced_check_interval,
        status.checkpoint_interval,
    )  # fmt: skip
    shown = {
        "synced": verdict,
        "sink_checkpoint_ts": ts_time(feed.checkpoint),
        "puller_resolved_ts": ts_time(feed.resolved_ts),
        "now_ts": ts_time(now),
        "info": why,
    }
    # The client refuses an empty time: what is not known is left out.
    known = {"last_synced_ts": ts_time(feed.last_synced_ts)} if feed.last_synced_ts else {}
    return JSONResponse(shown | known)


async def update(request: Request) -> Response:
    """PUT /changefeeds/{name}: change a stopped or failed changefeed; what is left out, empty or 0 stays.

    Query: `namespace` or `keyspace` (left out: `default`).
    Body: `sink_uri`, `replica_config`, `target_ts`; `start_ts` must be 0 or unchanged.
    Answer: the changefeed, as GET /changefeeds/{name} shows it.
    Errors: ErrChangeFeedNotExists, ErrChangefeedUpdateRefused, ErrSnapshotLostByGC,
        ErrTargetTsBeforeStartTs, and those of POST /changefeeds about settings.
    """
    body, feed = await body_of(request), feed_of(request)
    if number(body, "start_ts") not in (0, feed.info.start_ts):
        raise Refused(
            "CDC:ErrAPIInvalidParam",
            "A changefeed's start-ts cannot be changed.",
            fix="remove the changefeed and create it with the wanted start-ts",
        )
    config = body.get("replica_config")
    if config is not None and not isinstance(config, dict):
        raise InvalidInput("'replica_config' is not a JSON object.")
    sink_uri, target_ts = str(body.get("sink_uri") or ""), number(body, "target_ts")
    changed = await capture_of(request).reactor.update(feed.id, sink_uri, config, target_ts)
    return JSONResponse(full(changed, request))


async def pause(request: Request) -> Response:
    """POST /changefeeds/{name}/pause: stop a changefeed. It keeps its checkpoint.

    Query: `namespace` or `keyspace` (left out: `default`).
    Answer: `{}`.
    Errors: ErrChangeFeedNotExists.
    """
    await capture_of(request).reactor.command(_feed_id(request), Command.PAUSE)
    return JSONResponse({})


async def resume(request: Request) -> Response:
    """POST /changefeeds/{name}/resume: start a stopped or failed changefeed again.

    Query: `namespace` or `keyspace` (left out: `default`).
    Body: `overwrite_checkpoint_ts` the ts to continue from (0 or left out: the checkpoint).
    Answer: `{}`.
    Errors: ErrChangeFeedNotExists, ErrChangefeedUpdateRefused, ErrStartTsBeforeGC,
        ErrTargetTsBeforeStartTs.
    """
    body = await body_of(request)
    ts = number(body, "overwrite_checkpoint_ts")
    await capture_of(request).reactor.resume(_feed_id(request), ts)
    return JSONResponse({})


async def repartition(request: Request) -> Response:
    """POST /changefeeds/{name}/repartition: spread rows over another number of partitions from some ts on.

    Query: `namespace` or `keyspace` (left out: `default`).
    Body: `partitions` their number.
    Answer: the changefeed, as GET /changefeeds/{name} shows it.
    Errors: ErrChangeFeedNotExists, ErrChangefeedUpdateRefused.
    """
    partitions = number(await body_of(request), "partitions")
    feed = await capture_of(request).reactor.repartition(_feed_id(request), partitions)
    return JSONResponse(full(feed, request))


async def rebalance(request: Request) -> Response:
    """POST /changefeeds/{name}/rebalance: divide its key space among the captures in the best way.

    Query: `namespace` or `keyspace` (left out: `default`).
    Body: `dry_run` true: only say what would move.
    Answer: `dry_run`, `unit` of loads, `captures` with the load `before` and `after` of each, `moves` with
    `start` and `end` (hex), `from`, `to`, `load`.
    Errors: ErrChangeFeedNotExists, ErrChangefeedUpdateRefused.
    """
    body = await body_of(request)
    dry_run = bool(body.get("dry_run", False))
    plan = await capture_of(request).reactor.placement.rebalance(_feed_id(request), dry_run=dry_run)
    return JSONResponse({"dry_run": dry_run, **_plan_json(plan)})


async def move(request: Request) -> Response:
    """POST /changefeeds/{name}/move: let a capture deliver some tables of a changefeed.

    Tables with neighbouring ids may share a span; they move together.

    Query: `namespace` or `keyspace` (left out: `default`).
    Body: `tables` as SCHEMA.TABLE or ids; `capture` its id.
    Answer: `unit`, `captures`, `moves` as POST /changefeeds/{name}/rebalance has them; no moves: it has them.
    Errors: ErrChangeFeedNotExists, ErrChangefeedUpdateRefused, ErrTableIneligible, ErrCaptureNotExist.
    """
    body, capture = await body_of(request), capture_of(request)
    tables = body.get("tables")
    if not isinstance(tables, list) or not tables:
        raise InvalidInput("The request names no tables.", fix='give "tables", a list of names or ids')
    name = capture.named(str(body.get("capture") or ""))
    plan = await capture.reactor.placement.move(_feed_id(request), [str(table) for table in tables], name)
    return JSONResponse(_plan_json(plan))


def _plan_json(plan: Plan) -> dict[str, Any]:
    moves = [
        {
            "start": one.span.start.hex(),
            "end": one.span.end.hex(),
            "from": one.giver,
            "to": one.taker,
            "load": round(one.weight),
        }
        for one in plan.moves
    ]
    loads = {
        name: {"before": round(plan.before.get(name, 0)), "after": round(plan.loads.get(name, 0))}
        for name in sorted({*plan.before, *plan.loads})
    }
    unit = "bytes per second" if plan.in_bytes else "spans"
    return {"unit": unit, "captures": loads, "moves": moves}


async def remove(request: Request) -> Response:
    """DELETE /changefeeds/{name}: remove a changefeed and what is kept of it.

    Query: `namespace` or `keyspace` (left out: `default`).
    Answer: `{}`.
    Errors: ErrChangeFeedNotExists.
    """
    await capture_of(request).reactor.remove(_feed_id(request))
    return JSONResponse({})


async def verify_table(request: Request) -> Response:
    """POST /verify_table, /get_all_tables: list the tables that a changefeed would replicate, and the others.

    Body: `sink_uri`; `replica_config`; `start_ts` (0: now).
    Answer: `eligible_tables`, `ineligible_tables` with a `reason` each, `all_tables`; each table has
        `database_name`, `table_name`, `table_id`, `is_partition`. `tidegate` has `weak_orders`: tables
        whose dispatcher gives up some order.
    Errors: those of POST /changefeeds about settings.
    """
    body = await body_of(request)
    uri = parse_sink_uri(str(body.get("sink_uri") or ""))
    config = settled(await asyncio.to_thread(merge_config, body.get("replica_config") or {}, uri))
    reactor = capture_of(request).reactor
    good, bad = await tables_at(reactor.node.pd, config, number(body, "start_ts") or await reactor.now())
    eligible = [_table(table) for table in good]
    ineligible = [_table(table) | {"reason": why_ineligible(table)} for table in bad]
    weak = await asyncio.to_thread(weak_orders, good, config, uri.topic)
    return JSONResponse(
        {
            "eligible_tables": eligible,
            "ineligible_tables": ineligible,
            "all_tables": eligible + ineligible,
            "tidegate": {"weak_orders": [asdict(one) for one in weak]},
        }
    )


def _table(table: TableVersion) -> dict[str, Any]:
    return {
        "database_name": table.schema,
        "table_name": table.table,
        "table_id": table.id,
        "is_partition": table.is_partitioned,
    }


def error_json(error: FeedError | None) -> dict[str, Any] | None:
    """A feed's error as TiCDC shows it."""
    if error is None:
        return None
    when = datetime.fromtimestamp(error.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {"time": when, "addr": error.addr, "code": error.code, "message": error.message}


def ts_time(ts: int) -> str:
    """The physical time of a ts in the one form TiCDC's CLI reads."""
    return datetime.fromtimestamp(physical_ms(ts) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def brief(feed: Feed, place: Standing | None = None) -> dict[str, Any]:
    """A feed in a list. `place`: of a reader; its checkpoint is what its query is done with."""
    checkpoint = feed.checkpoint if place is None else place.place
    return {
        "upstream_id": feed.node.cluster,
        "namespace": feed.id.namespace,
        "keyspace": feed.id.namespace,
        "id": feed.id.name,
        "state": str(feed.shown_state),
        "checkpoint_tso": checkpoint,
        "checkpoint_time": ts_time(checkpoint),
        "error": error_json(feed.life.error),
        "tidegate": {"kind": "reader" if feed.uri.is_reader else "changefeed"},
    }


def _unreadable(feed: UnreadableFeed, node: Node) -> dict[str, Any]:
    """One that this version cannot read, in a list. A checkpoint that is not known either is left at 0."""
    checkpoint = feed.checkpoint if feed.checkpoint != NOT_KNOWN else 0
    refused = feed.refused()
    error = FeedError(str(refused), refused.code, node.now_ms(), node.address)
    return {
        "upstream_id": node.cluster,
        "namespace": feed.id.namespace,
        "keyspace": feed.id.namespace,
        "id": feed.id.name,
        "state": UNREADABLE,
        "checkpoint_tso": checkpoint,
        "checkpoint_time": ts_time(checkpoint),
        "error": error_json(error),
        "tidegate": {"kind": "changefeed"},
    }


def full(feed: Feed, request: Request, place: Standing | None = None) -> dict[str, Any]:
    """A feed with everything. `place` as in `brief`."""
    info = feed.info
    checkpoint = feed.checkpoint if place is None else place.place
    created = datetime.fromtimestamp(info.create_time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "upstream_id": feed.node.cluster,
        "namespace": feed.id.namespace,
        "keyspace": feed.id.namespace,
        "id": feed.id.name,
        "sink_uri": feed.uri.render(),
        "create_time": created,
        "start_ts": info.start_ts,
        "target_ts": info.target_ts,
        "admin_job_type": 0,
        "config": feed.config.to_json(redact=True),
        "state": str(feed.shown_state),
        "error": error_json(feed.life.error),
        "creator_version": info.creator_version or __version__,
        "resolved_ts": feed.resolved_ts,
        "checkpoint_ts": checkpoint,
        "checkpoint_time": ts_time(checkpoint),
        "task_status": task_status(feed, capture_of(request)),
        "tidegate": own(feed, request) | {"reader": reader_json(feed, place)},
    }


def reader_json(feed: Feed, place: Standing | None) -> dict[str, Any] | None:
    """What is kept for a reader's query, and when it was heard last; None for a changefeed."""
    if place is None:
        return None
    received = datetime.fromtimestamp(place.queried_ms / 1000, UTC).isoformat(timespec="seconds")
    return {
        "tables": list(feed.config.filter.rules),
        "rows": feed.uri.option("rows"),
        "done_ts": place.said,
        "readable_ts": place.readable,
        "kept_bytes": place.kept,
        "max_kept": int(feed.uri.option("max-kept")),
        "heard": received,
        "hold_s": int(feed.uri.option("hold")),
    }


def task_status(feed: Feed, capture: Capture) -> list[dict[str, Any]]:
    """The tables and partitions whose rows each capture delivers for a feed now."""
    return [
        {"capture_id": capture.ids.get(peer.capture, peer.capture), "table_ids": feed.tables_of(peer)}
        for peer in feed.peers.running
    ]


def own(feed: Feed, request: Request) -> dict[str, Any]:
    """What TiCDC has no field for: what is waited for, totals, spans."""
    totals = feed.totals
    processor = capture_of(request).reactor.processors.get(feed.id)
    spans = processor.machine.spans.values() if processor is not None else ()
    left_out, some = feed.left_out(SHOWN_TABLES)
    return {
        "waiting_for": feed.waits_for(),
        "persisted_checkpoint_ts": feed.persisted,
        "resolved_sent": feed.owner.resolved_sent if feed.owner else 0,
        "rows": totals.rows,
        "messages": totals.messages,
        "bytes": totals.bytes,
        "quarantined": totals.quarantined,
        "integrity": {
            "matched": totals.matched,
            "unchecked": totals.unchecked,
            "excused": totals.excused,
            "mismatched": totals.mismatched,
            "misencoded": totals.misencoded,
        },
        "batches": totals.batches,
        "batch_ms": totals.batch_ms,
        "lag_ms": totals.lag_ms,
        "ddl_events": totals.ddl_events,
        "pipeline_starts": totals.starts,
        "spans": [{"id": t.id, "physical_id": t.physical_id, "checkpoint_ts": t.start_ts} for t in spans],
        "ineligible": left_out,
        "ineligible_tables": [{"table": name, "reason": reason} for name, reason in some],
        "puller": processor.pulled if processor is not None else {"rows": 0, "bytes": 0},
        "initial_load": shown_load(feed),
        "table_cuts": len(feed.config.tidegate.table_cuts),
        "partitions": feed.partitions,
        "repartition": feed.info.repartition,
        "captures": shares_json(feed),
    }


def shares_json(feed: Feed) -> list[dict[str, Any]]:
    """Which capture delivers which range of keys, in their order; an empty `end` is the end of all."""
    there = {feed.node.capture: feed.node.address, **feed.node.others()}
    return [
        {
            "capture": name,
            "address": there.get(name, ""),
            "start": span.start.hex(),
            "end": span.end.hex(),
            "tables": len(feed.sharing.tables_in(span)),
            "running": running,
            "checkpoint_ts": checkpoint,
            "resolved_ts": resolved,
        }
        for name, span, running, checkpoint, resolved in (feed.owner.progress() if feed.owner else ())
    ]


def shown_load(feed: Feed) -> dict[str, Any] | None:
    """How far the initial load is; None for a feed without one."""
    wanted = feed.config.tidegate.initial_load
    return initial_load.shown(feed.load, loading=feed.loading) if wanted else None
