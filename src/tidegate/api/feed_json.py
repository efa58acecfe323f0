"""Changefeeds as JSON for the API: in lists, whole, and what TiCDC has no field for.

The members are TiCDC's (tiflow `cdc/api/v2/model.go`); ours are in `tidegate`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request

from tidegate import __version__
from tidegate.api.status import capture_of
from tidegate.control.metadata import FeedError
from tidegate.model.timestamp import physical_ms
from tidegate.mounter.table_version import TableVersion
from tidegate.server.capture import Capture
from tidegate.server.changefeeds.new_feed import SHOWN_TABLES
from tidegate.server.changefeeds.unreadable import NOT_KNOWN, UnreadableFeed
from tidegate.server.delivery import initial_load
from tidegate.server.node import Node
from tidegate.server.owner.feed import Feed
from tidegate.server.owner.sharing import Proposal
from tidegate.sink.reader.changes import ReaderProgress

UNREADABLE: Final = "unreadable"
"""The state shown for a changefeed that this version cannot read. TiCDC has no such state."""


def proposal_json(plan: Proposal) -> dict[str, Any]:
    """A new division of a feed's key space among captures."""
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


def table_json(table: TableVersion) -> dict[str, Any]:
    """A table in a list."""
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
    """The physical time of a ts in the only form that TiCDC's CLI reads."""
    return datetime.fromtimestamp(physical_ms(ts) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def brief(feed: Feed, place: ReaderProgress | None = None) -> dict[str, Any]:
    """A feed in a list. `place`: for a reader, whose checkpoint is the ts up to which its query is done."""
    checkpoint = feed.replication.checkpoint if place is None else place.place
    return {
        "upstream_id": feed.node.cluster,
        "namespace": feed.id.namespace,
        "keyspace": feed.id.namespace,
        "id": feed.id.name,
        "state": str(feed.record.shown_state),
        "checkpoint_tso": checkpoint,
        "checkpoint_time": ts_time(checkpoint),
        "error": error_json(feed.record.life.error),
        "tidegate": {"kind": "reader" if feed.record.uri.is_reader else "changefeed"},
    }


def brief_unreadable(feed: UnreadableFeed, node: Node) -> dict[str, Any]:
    """A changefeed that this version cannot read, in a list; its checkpoint is 0 if that is not known."""
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


def full(feed: Feed, request: Request, place: ReaderProgress | None = None) -> dict[str, Any]:
    """A feed with all members. `place` as in `brief`."""
    record, info = feed.record, feed.record.info
    checkpoint = feed.replication.checkpoint if place is None else place.place
    created = datetime.fromtimestamp(info.create_time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "upstream_id": feed.node.cluster,
        "namespace": feed.id.namespace,
        "keyspace": feed.id.namespace,
        "id": feed.id.name,
        "sink_uri": record.uri.render(),
        "create_time": created,
        "start_ts": info.start_ts,
        "target_ts": info.target_ts,
        "admin_job_type": 0,
        "config": record.config.to_json(redact=True),
        "state": str(record.shown_state),
        "error": error_json(record.life.error),
        "creator_version": info.creator_version or __version__,
        "resolved_ts": record.resolved_ts,
        "checkpoint_ts": checkpoint,
        "checkpoint_time": ts_time(checkpoint),
        "task_status": task_status(feed, capture_of(request)),
        "tidegate": own(feed, request) | {"reader": reader_json(feed, place)},
    }


def reader_json(feed: Feed, place: ReaderProgress | None) -> dict[str, Any] | None:
    """The changes kept for a reader's query, and the time of its last request; None for a changefeed."""
    if place is None:
        return None
    uri = feed.record.uri
    queried_at = datetime.fromtimestamp(place.queried_ms / 1000, UTC).isoformat(timespec="seconds")
    return {
        "tables": list(feed.record.config.filter.rules),
        "rows": uri.option("rows"),
        "done_ts": place.confirmed_ts,
        "readable_ts": place.readable,
        "kept_bytes": place.kept,
        "max_kept": int(uri.option("max-kept")),
        "queried_at": queried_at,
        "hold_s": int(uri.option("hold")),
    }


def task_status(feed: Feed, capture: Capture) -> list[dict[str, Any]]:
    """The tables and partitions whose rows each capture delivers now."""
    shares = feed.replication.shares
    return [
        {"capture_id": capture.ids.get(peer.capture, peer.capture), "table_ids": shares.tables_of(peer)}
        for peer in feed.replication.peers.running
    ]


def own(feed: Feed, request: Request) -> dict[str, Any]:
    """Members that TiCDC does not have: what the feed waits for, totals, spans."""
    record, replication = feed.record, feed.replication
    totals = replication.reports.totals
    processor = capture_of(request).processor_registry.processors.get(feed.id)
    # Only what this capture delivers. The members `captures` and `task_status` have the others.
    spans = processor.machine.spans.tasks.values() if processor is not None else ()
    left_out, some = replication.ddl.left_out(SHOWN_TABLES)
    return {
        "waiting_for": feed.waits_for(),
        "persisted_checkpoint_ts": record.persisted,
        "resolved_sent": replication.owner.resolved_sent if replication.owner else 0,
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
        "puller": processor.openings.pulled if processor is not None else {"rows": 0, "bytes": 0},
        "initial_load": shown_load(feed),
        "table_cuts": len(record.config.tidegate.table_cuts),
        "partitions": replication.sink.partitions,
        "repartition": record.info.repartition,
        "captures": shares_json(feed),
    }


def shares_json(feed: Feed) -> list[dict[str, Any]]:
    """The captures by the ranges of keys that they deliver, in the order of keys; no `end`: to the last."""
    there = {feed.node.capture: feed.node.address, **feed.node.others()}
    owner, sharing = feed.replication.owner, feed.replication.shares.sharing
    return [
        {
            "capture": name,
            "address": there.get(name, ""),
            "start": span.start.hex(),
            "end": span.end.hex(),
            "tables": len(sharing.tables_in(span)),
            "running": running,
            "checkpoint_ts": checkpoint,
            "resolved_ts": resolved,
        }
        for name, span, running, checkpoint, resolved in (owner.ranges.progress() if owner else ())
    ]


def shown_load(feed: Feed) -> dict[str, Any] | None:
    """The progress of the initial load; None for a feed without one."""
    wanted = feed.record.config.tidegate.initial_load
    return initial_load.shown(feed.replication.reports.load, loading=feed.record.loading) if wanted else None
