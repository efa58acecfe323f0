"""Changefeeds as JSON for the API: in lists, whole, and what TiCDC has no field for.

The members are TiCDC's (tiflow `cdc/api/v2/model.go`); ours are in `tidegate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from starlette.requests import Request

from tidegate import __version__
from tidegate.api.moves_json import hot_json
from tidegate.api.status import capture_of
from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedError, FeedInfo
from tidegate.control.range_reasons import Delivery, Group, grouped
from tidegate.model.span import span_id
from tidegate.model.timestamp import physical_ms
from tidegate.mounter.table_version import TableVersion
from tidegate.server.capture import Capture
from tidegate.server.changefeeds.hot_spans import hot_spans
from tidegate.server.changefeeds.new_feed import SHOWN_TABLES, cost_of_cuts
from tidegate.server.changefeeds.unreadable import NOT_KNOWN, UnreadableFeed
from tidegate.server.delivery import initial_load
from tidegate.server.node import Node
from tidegate.server.owner.feed import Feed
from tidegate.server.owner.range_facts import ShownRange, shared_tables
from tidegate.sink.reader.changes import ReaderProgress

UNREADABLE: Final = "unreadable"
"""The state shown for a changefeed that this version cannot read. TiCDC has no such state."""
NAMES_TRIED: Final = 8
"""For how many tables of a range the name is looked up until one is found."""


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
        "tidegate": {
            "kind": "reader" if feed.record.uri.is_reader else "changefeed",
            "checkpoint_lag_ms": _lag_ms(feed, checkpoint),
        },
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
        "tidegate": {
            "kind": "changefeed",
            "checkpoint_lag_ms": _behind(checkpoint, node.now_ms()) if checkpoint else None,
        },
    }


def _lag_ms(feed: Feed, checkpoint: int) -> int | None:
    """The age of a feed's checkpoint; None if it has finished, because its checkpoint stays where it is."""
    finished = feed.record.shown_state is State.FINISHED
    return None if finished else _behind(checkpoint, feed.node.now_ms())


def _behind(ts: int, now_ms: int) -> int:
    """The age of a ts. Not below 0: PD's clock may be ahead of this machine's."""
    return max(0, now_ms - physical_ms(ts))


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
        "tidegate": own(feed, request)
        | {
            "checkpoint_lag_ms": _lag_ms(feed, checkpoint),
            "reader": reader_json(feed, place),
        },
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
        {
            "capture_id": capture.session.ids.get(peer.capture, peer.capture),
            "table_ids": shares.tables_of(peer),
        }
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
    ranges = feed.ranges()
    shown = ranges_json(feed, ranges)
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
        "cuts_chosen": cuts_chosen_json(record.info),
        "cut_tables": cut_tables_json(feed, ranges),
        "hot_spans": hot_json(hot_spans(feed)),
        "gives_up": list(record.plan.sink.describe().gives_up),
        "partitions": replication.sink.partitions,
        "repartition": record.info.repartition,
        "captures": [one for one in shown if one["capture"]],
        "ranges": reasons_json(feed, ranges, shown),
    }


def ranges_json(feed: Feed, ranges: Sequence[ShownRange]) -> list[dict[str, Any]]:
    """Ranges in the order of keys; no `end`: to the last key."""
    there = {feed.node.capture: feed.node.address, **feed.node.others()}
    now_ms, sharing = feed.node.now_ms(), feed.replication.shares.sharing
    return [
        {
            "id": span_id(one.owned.span),
            "capture": one.owned.capture,
            "address": there.get(one.owned.capture, ""),
            "start": one.owned.span.start.hex(),
            "end": one.owned.span.end.hex(),
            "tables": len(sharing.spans.tables_in(one.owned.span)),
            "running": one.owned.running,
            "state": str(one.why.delivery),
            "reason": str(one.why.reason),
            "why": one.why.words,
            "checkpoint_ts": one.owned.checkpoint,
            "resolved_ts": one.owned.resolved,
            "checkpoint_lag_ms": _behind(one.owned.checkpoint, now_ms),
            "resolved_lag_ms": _behind(one.owned.resolved, now_ms),
            "bytes_per_second": one.load,
        }
        for one in ranges
    ]


def reasons_json(feed: Feed, ranges: Sequence[ShownRange], shown: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The ranges by state; and those that something keeps, by reason and capture, with one of each. `shown`:
    all ranges as JSON.
    """
    groups, more = grouped((one.owned, one.why) for one in ranges)
    by_range = {one.owned.span: each for one, each in zip(ranges, shown, strict=True)}
    states = Counter(str(one.why.delivery) for one in ranges)
    return {
        "total": len(ranges),
        "states": {str(each): states[str(each)] for each in Delivery},
        "reasons": [
            {
                "state": str(group.why.delivery),
                "reason": str(group.why.reason),
                "why": group.why.words,
                "ranges": group.count,
                "example": by_range[group.example.span] | {"table": _a_table(feed, group)},
            }
            for group in groups
        ],
        "more": more,
    }


def _a_table(feed: Feed, group: Group) -> str:
    """The name of a table in the group's example; empty: none is known."""
    tasks, span = feed.replication.shares.sharing.spans.tasks.values(), group.example.span
    there = (task.physical_id for task in tasks if task.span.intersect(span) is not None)
    names = map(feed.replication.ddl.name_of, islice(there, NAMES_TRIED))
    return next(filter(None, names), "") if group.example.capture else ""


def cuts_chosen_json(info: FeedInfo) -> dict[str, str] | None:
    """When and why the places of cuts were last chosen; None: that is not known."""
    if not info.cuts_at_ms:
        return None
    at = datetime.fromtimestamp(info.cuts_at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    return {"at": at, "why": info.cuts_why}


def cut_tables_json(feed: Feed, ranges: Sequence[ShownRange]) -> dict[str, Any] | None:
    """The cost of cut tables, and those that several captures deliver now; None: no table is cut."""
    record, ddl = feed.record, feed.replication.ddl
    cuts = record.config.tidegate.table_cuts
    if not cuts or record.uri.is_reader:
        return None
    shared = shared_tables([bytes.fromhex(cut) for cut in cuts], [one.owned for one in ranges])
    return {
        "cost": cost_of_cuts(record.config),
        "tables": [
            {"table": ddl.name_of(table) or f"id {table}", "captures": count}
            for table, count in list(shared.items())[:SHOWN_TABLES]
        ],
        "more": max(0, len(shared) - SHOWN_TABLES),
    }


def shown_load(feed: Feed) -> dict[str, Any] | None:
    """The progress of the initial load; None for a feed without one."""
    wanted = feed.record.config.tidegate.initial_load
    return initial_load.shown(feed.replication.reports.load, loading=feed.record.loading) if wanted else None
