"""Changefeeds over HTTP: create, list, show, update, pause, resume, re-partition, remove.

Bodies and answers are TiCDC's (tiflow `cdc/api/v2/model.go`); what TiCDC does not have is in `tidegate`
(`feed_json`). `namespace` and `keyspace` mean the same here.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import asdict
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidegate.api.feed_json import (
    brief,
    brief_unreadable,
    error_json,
    full,
    own,
    table_json,
    ts_time,
)
from tidegate.api.moves_json import hot_json, moves_json
from tidegate.api.requests import body_of, feed_id, feed_of, namespace_of, number
from tidegate.api.status import capture_of
from tidegate.codec.registry import canonical
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.changefeed import Command, State
from tidegate.control.metadata import FeedId
from tidegate.control.synced import synced
from tidegate.errors import InvalidInput
from tidegate.filter.tables import why_ineligible
from tidegate.server.changefeeds.hot_spans import hot_spans
from tidegate.server.changefeeds.new_feed import Refused, check_new, cost_of_cuts, tables_at, weak_orders

DESCRIBED_STATES: Final = (State.NORMAL, State.WARNING, State.FAILED, State.STOPPED, State.FINISHED)


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
    feed = FeedId.checked(namespace_of(given), str(body.get("changefeed_id") or uuid.uuid4()))
    # A reader needs its file of changes, which only POST /readers creates.
    if parse_sink_uri(str(body.get("sink_uri") or "")).is_reader:
        raise InvalidInput(
            "a reader is made by its query", where="sink_uri", fix='use spark.readStream.format("tidegate")'
        )
    # In a thread, because thousands of rules take long, and other requests must be answered meanwhile.
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
        `checkpoint_tso`, `checkpoint_time`, `error`, and `tidegate` with `kind` (`changefeed` or `reader`)
        and `checkpoint_lag_ms`, PD's time minus the checkpoint (null: it has finished, or the
        checkpoint is not known).
    """
    query = dict(request.query_params)
    wanted = query.get("state", "")
    if wanted not in ("", "all", *State):
        raise InvalidInput(f"'{wanted}' is not a state", fix="use all, " + ", ".join(DESCRIBED_STATES))
    namespace = query.get("namespace") or query.get("keyspace")
    feeds = [f for f in capture_of(request).reactor.feeds.values() if namespace in (None, "", f.id.namespace)]
    if wanted in ("", "all"):
        shown = [f for f in feeds if wanted == "all" or f.record.shown_state is not State.FINISHED]
    else:
        shown = [f for f in feeds if f.record.shown_state == wanted]
    places = await capture_of(request).readers.progress_of_readers(shown)
    items = [brief(f, places.get(f.id)) for f in sorted(shown, key=lambda f: f.id)]
    if wanted in ("", "all"):
        # Not if a state is asked for: nobody knows in which state they are.
        unreadable, node = capture_of(request).reactor.feeds.unreadable, capture_of(request).node
        found = [one for _, one in sorted(unreadable.items()) if namespace in (None, "", one.id.namespace)]
        items += [brief_unreadable(one, node) for one in found]
    return JSONResponse({"total": len(items), "items": items})


async def show(request: Request) -> Response:
    """GET /changefeeds/{name}: show a changefeed.

    Query: `namespace` or `keyspace` (left out: `default`).
    Answer: `id`, `namespace`, `keyspace`, `upstream_id`, `sink_uri` without secrets, `create_time`,
        `start_ts`, `target_ts`, `config` all settings, `state`, `error`, `creator_version`, `resolved_ts`,
        `checkpoint_ts`, `checkpoint_time`, `task_status`, `admin_job_type` (always 0), and `tidegate`:
        `checkpoint_lag_ms` as in the list, totals, spans, what it waits for, tables that are left out, the
        initial load, partitions; `gives_up`, what a reader of the sink must not rely on, in words;
        `table_cuts`, the number of places at which tables are cut into pieces that have writers of their own,
        `cuts_chosen` with when (`at`) and `why` they were last chosen,
        `cut_tables` with the `cost` of that in words, and the `tables` that several captures deliver now;
        `hot_spans` with `spans`, those that alone are more than 1.2 times the mean load of a capture, the
        first five, each with `load`, `times_mean`, the number of `tables`, `first_tables`, `by_itself`, what
        the owner does about it in words (empty: it may cut no tables), and `remedy`, the
        settings that cut it; and `more`, the number of the others;
        `captures`, its ranges of keys with capture, progress, load, `state` (`running`, `held`, `not
        running`), `reason` and `why`, the reason in words; and `ranges`, which has `total`, the number of
        `states`, and `reasons`: ranges with one reason, and an example.
    Errors: ErrChangeFeedNotExists.
    """
    feed = feed_of(request)
    places = await capture_of(request).readers.progress_of_readers([feed])
    return JSONResponse(full(feed, request, places.get(feed.id)))


async def show_status(request: Request) -> Response:
    """GET /changefeeds/{name}/status: show where a changefeed is, and its last error.

    Query: `namespace` or `keyspace` (left out: `default`).
    Answer: `state`, `resolved_ts`, `checkpoint_ts`, `last_error`, `last_warning`, `tidegate`.
    Errors: ErrChangeFeedNotExists.
    """
    feed = feed_of(request)
    record = feed.record
    problem = error_json(record.life.error)
    warning = record.shown_state is State.WARNING
    return JSONResponse(
        {
            "state": str(record.shown_state),
            "resolved_ts": record.resolved_ts,
            "checkpoint_ts": feed.replication.checkpoint,
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
    status = feed.record.config.synced_status
    checkpoint, resolved_ts = feed.replication.checkpoint, feed.record.resolved_ts
    last_synced_ts = feed.replication.reports.last_synced_ts
    verdict, why = synced(
        checkpoint, resolved_ts, last_synced_ts, now, status.synced_check_interval,
        status.checkpoint_interval,
    )  # fmt: skip
    shown = {
        "synced": verdict,
        "sink_checkpoint_ts": ts_time(checkpoint),
        "puller_resolved_ts": ts_time(resolved_ts),
        "now_ts": ts_time(now),
        "info": why,
    }
    # The client refuses an empty time, so an unknown one is left out.
    known = {"last_synced_ts": ts_time(last_synced_ts)} if last_synced_ts else {}
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
    if number(body, "start_ts") not in (0, feed.record.info.start_ts):
        raise Refused(
            "CDC:ErrAPIInvalidParam",
            "a changefeed's start-ts cannot be changed",
            fix="remove the changefeed and create it with the wanted start-ts",
        )
    config = body.get("replica_config")
    if config is not None and not isinstance(config, dict):
        raise InvalidInput("'replica_config' is not a JSON object", fix="send an object of settings")
    sink_uri, target_ts = str(body.get("sink_uri") or ""), number(body, "target_ts")
    changed = await capture_of(request).reactor.update(feed.id, sink_uri, config, target_ts)
    return JSONResponse(full(changed, request))


async def pause(request: Request) -> Response:
    """POST /changefeeds/{name}/pause: stop a changefeed. It keeps its checkpoint.

    Query: `namespace` or `keyspace` (left out: `default`).
    Answer: `{}`.
    Errors: ErrChangeFeedNotExists.
    """
    await capture_of(request).reactor.command(feed_id(request), Command.PAUSE)
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
    await capture_of(request).reactor.resume(feed_id(request), ts)
    return JSONResponse({})


async def repartition(request: Request) -> Response:
    """POST /changefeeds/{name}/repartition: spread rows over another number of partitions from some ts on.

    Query: `namespace` or `keyspace` (left out: `default`).
    Body: `partitions` their number.
    Answer: the changefeed, as GET /changefeeds/{name} shows it.
    Errors: ErrChangeFeedNotExists, ErrChangefeedUpdateRefused.
    """
    partitions = number(await body_of(request), "partitions")
    feed = await capture_of(request).reactor.repartition(feed_id(request), partitions)
    return JSONResponse(full(feed, request))


async def rebalance(request: Request) -> Response:
    """POST /changefeeds/{name}/rebalance: divide its key space among the captures in the best way.

    Query: `namespace` or `keyspace` (left out: `default`).
    Body: `dry_run` true: only say what would move.
    Answer: `dry_run`, `unit` of loads, `captures` with the load `before` and `after` of each; `moves`, the 20
        heaviest ranges that move, with `start` and `end` (hex), `from`, `to`, `load`, the number of `tables`,
        and `first_tables`, three at most, each with its name as `table`, and `is_whole`, whether all its rows
        are in the range; `other_moves`, the sums of `moves`, `tables` and `load` of all others; `cost` with
        `moves`, `tables`, `received_again` (bytes of changes since the checkpoint; null: there is little
        load), `gap_ms` (the expected pause of the checkpoint) and `is_gap_measured` (of the last division;
        otherwise typical); `gain` with `max`, `mean` and `max_over_mean` of the captures' loads, `before` and
        `after`; and `hot_spans` as GET /changefeeds/{name} has them.
    Errors: ErrChangeFeedNotExists, ErrChangefeedUpdateRefused.
    """
    body = await body_of(request)
    dry_run = bool(body.get("dry_run", False))
    planned = await capture_of(request).reactor.placement.rebalance(feed_id(request), dry_run=dry_run)
    hot = hot_json(hot_spans(feed_of(request)))
    return JSONResponse({"dry_run": dry_run, **moves_json(planned), "hot_spans": hot})


async def move(request: Request) -> Response:
    """POST /changefeeds/{name}/move: let a capture deliver some tables of a changefeed.

    Tables with neighbouring ids may share a span; they move together. A table in pieces moves as a whole.

    Query: `namespace` or `keyspace` (left out: `default`).
    Body: `tables` as SCHEMA.TABLE or ids; `capture` its id.
    Answer: `unit`, `captures`, `moves`, `other_moves`, `cost`, `gain` as POST /changefeeds/{name}/rebalance
        has them; no moves: it has them.
    Errors: ErrChangeFeedNotExists, ErrChangefeedUpdateRefused, ErrTableIneligible, ErrCaptureNotExist.
    """
    body, capture = await body_of(request), capture_of(request)
    tables = body.get("tables")
    if not isinstance(tables, list) or not tables:
        raise InvalidInput("the request names no tables", fix='give "tables", a list of names or ids')
    name = capture.session.named(str(body.get("capture") or ""))
    names = [str(table) for table in tables]
    return JSONResponse(moves_json(await capture.reactor.placement.move(feed_id(request), names, name)))


async def remove(request: Request) -> Response:
    """DELETE /changefeeds/{name}: remove a changefeed and what is kept of it.

    Query: `namespace` or `keyspace` (left out: `default`).
    Answer: `{}`.
    Errors: ErrChangeFeedNotExists.
    """
    await capture_of(request).reactor.remove(feed_id(request))
    return JSONResponse({})


async def verify_table(request: Request) -> Response:
    """POST /verify_table, /get_all_tables: list the tables that a changefeed would replicate, and the others.

    Body: `sink_uri`; `replica_config`; `start_ts` (0: now).
    Answer: `eligible_tables`, `ineligible_tables` with a `reason` each, `all_tables`; each table has
        `database_name`, `table_name`, `table_id`, `is_partition`. `tidegate` has `weak_orders`: tables
        whose dispatcher gives up some order; and `cut_tables`: the cost of several writers of a table, in
        words (empty: none has several).
    Errors: those of POST /changefeeds about settings.
    """
    body = await body_of(request)
    uri = parse_sink_uri(str(body.get("sink_uri") or ""))
    config = canonical(await asyncio.to_thread(merge_config, body.get("replica_config") or {}, uri))
    reactor = capture_of(request).reactor
    good, bad = await tables_at(reactor.node.pd, config, number(body, "start_ts") or await reactor.now())
    eligible = [table_json(table) for table in good]
    ineligible = [table_json(table) | {"reason": why_ineligible(table)} for table in bad]
    weak = await asyncio.to_thread(weak_orders, good, config, uri.topic)
    return JSONResponse(
        {
            "eligible_tables": eligible,
            "ineligible_tables": ineligible,
            "all_tables": eligible + ineligible,
            "tidegate": {"weak_orders": [asdict(one) for one in weak], "cut_tables": cost_of_cuts(config)},
        }
    )
