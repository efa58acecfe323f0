"""The ranges of a changefeed as its owner knows them now: state, reason, progress and load of each.

    owner's machine, processors, grants, loads --> facts --> `control.range_reasons` --> API, CLI, metrics

This module only reads. Before the owner's machine exists, all that the changefeed follows is one range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.control.range_reasons import (
    GRANTS,
    CaptureFacts,
    Coming,
    FeedFacts,
    OwnedRange,
    Why,
    explain,
)
from tidegate.model.span import Span
from tidegate.server.delivery.initial_load import words_of_load
from tidegate.server.node import Node
from tidegate.server.owner.peers import SILENT_S, Peer
from tidegate.server.owner.record import FeedRecord
from tidegate.server.owner.replication import PIPELINE_STARTS, Replication
from tidegate.server.owner.words import words_of_disagreement
from tidegate.tidb import keys, memcomparable

LONG_S = 86_400.0
"""The longest silence that is shown; it stands for a capture that was never received."""


@dataclass(frozen=True, slots=True)
class ShownRange:
    """One range of a changefeed, for people and metrics."""

    owned: OwnedRange
    why: Why
    load: int
    """Bytes of changes per second, of the spans that its capture has reported."""


def shown_ranges(node: Node, record: FeedRecord, replication: Replication) -> list[ShownRange]:
    """The ranges of a changefeed in key order, with the keys that no capture has."""
    owner, checkpoint = replication.owner, replication.checkpoint
    progress = owner.ranges.progress() if owner is not None else []
    # A range that has not reported yet is durable up to the checkpoint, as every range is.
    ranges = [
        OwnedRange(span, capture, running, max(durable, checkpoint), max(resolved, durable, checkpoint))
        for capture, span, running, durable, resolved in progress
    ]
    received = max(checkpoint, record.resolved_ts)
    for gap in gaps(record.wanted, [one.span for one in ranges]):
        ranges.append(OwnedRange(gap, "", False, checkpoint, received))
    ranges.sort(key=lambda one: one.span.start)
    captures, coming = _captures(node, replication, ranges), _coming(replication)
    found = explain(feed_facts(node, record, replication), ranges, captures, coming)
    loads = loads_in([one.span for one in ranges], replication.shares.sharing.spans.with_load)
    return [ShownRange(*each) for each in zip(ranges, found, loads, strict=True)]


def gaps(wanted: Span, spans: Iterable[Span]) -> list[Span]:
    """The parts of `wanted` that are in none of the spans, which are in key order."""
    found, at = [], wanted.start
    for span in spans:
        if span.start > at:
            found.append(Span(at, span.start))
        if span.end == b"":
            return found
        at = max(at, span.end)
    if wanted.end == b"" or at < wanted.end:
        found.append(Span(at, wanted.end))
    return found


def feed_facts(node: Node, record: FeedRecord, replication: Replication) -> FeedFacts:
    """The facts of a changefeed."""
    owner, life = replication.owner, record.life
    batch = owner.barrier.next if owner is not None else None
    is_ddl = batch is not None and bool(batch.events)
    return FeedFacts(
        state=life.state,
        checkpoint=replication.checkpoint,
        now_ms=node.now_ms(),
        error=life.error.message.partition("\n")[0] if life.error is not None else "",
        retry_in_s=max(0.0, life.retry_at - node.clock.monotonic()),
        waits_for=_waits_for(replication),
        divided=replication.shares.reason,
        disagreement=words_of_disagreement(owner.agreement.disagreement) if owner is not None else "",
        load=words_of_load(replication.reports.load) if record.loading else "",
        ddl_ts=batch.finished_ts if batch is not None and is_ddl else 0,
        ddl=batch.events[0].query if batch is not None and is_ddl else "",
        switch_ts=owner.repartition_ts if owner is not None else 0,
    )


def _waits_for(replication: Replication) -> str:
    """The thing that the owner waits for before captures may deliver; empty: they may."""
    waits = replication.waiting_for
    if waits == PIPELINE_STARTS:
        return ""  # each capture has a reason of its own
    if waits or replication.owner is None:
        return waits or "processor"
    return GRANTS if replication.sink.opened is None else ""


def _captures(node: Node, replication: Replication, ranges: Sequence[OwnedRange]) -> dict[str, CaptureFacts]:
    """The facts of the captures that have ranges, and of all that have a session."""
    there = {node.capture: node.address, **node.others()}
    names = {*there, *(one.capture for one in ranges if one.capture)}
    able, now = replication.shares.sharing.captures, node.clock.monotonic()
    found = {}
    for name in sorted(names):
        peer, is_there, shown = replication.peers.get(name), name in there, there.get(name) or name
        if peer is None:
            found[name] = CaptureFacts(shown, is_there, unable="does not answer")
            continue
        found[name] = _capture(
            peer,
            shown,
            now,
            is_there=is_there,
            others_take=name != node.capture,  # the owner never takes its own processor for lost
            drained=name in node.drained,
            unable=able.unable(peer),
        )
    return found


def _capture(
    peer: Peer, name: str, now: float, *, is_there: bool, others_take: bool, drained: bool, unable: str
) -> CaptureFacts:
    silent_s = min(LONG_S, max(0.0, now - peer.received_at))
    return CaptureFacts(
        name=name,
        has_session=is_there,
        silent_s=silent_s,
        lost_in_s=max(0.0, SILENT_S - silent_s) if others_take else 0.0,
        has_application=peer.ready,
        waits=peer.status.waits,
        drained=drained,
        unable=unable,
    )


def _coming(replication: Replication) -> list[Coming]:
    return [
        Coming(span, peer.capture, peer.ready, peer.received)
        for peer in replication.peers
        for span in peer.coming
    ]


def loads_in(ranges: Sequence[Span], spans: Mapping[Span, int]) -> list[int]:
    """The load of each range: the sum of the spans that begin in it. `ranges`: in key order.

    A span that begins before the first range counts there.
    """
    found, starts = [0] * len(ranges), [one.start for one in ranges]
    for span, load in spans.items():
        at = max(0, bisect_right(starts, span.start) - 1)
        if ranges and ranges[at].intersect(span) is not None:
            found[at] += load
    return found


def shared_tables(cuts: Iterable[bytes], ranges: Sequence[OwnedRange]) -> dict[int, int]:
    """The tables that several captures deliver, with the number of captures. `cuts`: record keys inside
    tables, the only places at which a table can be divided. `ranges`: in key order, without gaps.
    """
    starts, found = [one.span.start for one in ranges], {}
    for table in sorted({memcomparable.decode_int(key, 1) for key in cuts}):
        span = keys.record_span(table)
        first = max(0, bisect_right(starts, span.start) - 1)
        end = bisect_left(starts, span.end)
        captures = {one.capture for one in ranges[first:end] if one.capture}
        if len(captures) > 1:
            found[table] = len(captures)
    return found
