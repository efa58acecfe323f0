"""Which spans the puller must follow, for which feeds and from which ts; and the puller's reports about them.

The registry outlives the puller's process; a new process gets everything again after its hello. A span is
followed while any feed holds it, from the least ts that a feed still needs: where it asked to begin, or what
it has made durable since. A feed may come later and need an earlier part, because it begins earlier or is
resumed. Then the puller pulls the missing part separately and puts it in front
(`server/pulling/backfill.py`), and the other feeds continue meanwhile.

A feed's processor holds spans under the feed's id, and its owner holds the DDL span under `OwnerOf` it, if it
is on this capture. So each of them raises and releases only its own hold, as if they were two feeds.

Changes that a feed has not delivered stay in the event store. When the store fills up, a feed without
progress makes way for feeds that share its spans and make progress. Otherwise the store would drop the spans
of all.

The puller registers nothing below `safe_points`, which PD holds for us: a scan below could miss deletes that
GC has removed. It reports a span that it refuses, and a feed that needs the span fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tidegate.config.values import TABLE_MODE
from tidegate.control.metadata import FeedId
from tidegate.model.reports import (
    DropBelow,
    Refused,
    Remove,
    SafePoint,
    SpanStatus,
    Status,
    ToPuller,
    Unwatch,
    Watch,
)
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import MAX
from tidegate.model.ts_by_span import SpanOrder, ts_of
from tidegate.server.catalogue.catalogues import DDL_SPAN_ID, Catalogues
from tidegate.server.supervision.supervisor import Connection

STALLED_S: Final = 10.0
"""A feed that holds spans and has made no progress for this long hangs."""


@dataclass(frozen=True, slots=True)
class OwnerOf:
    """The owner of a feed, as a holder of the span from which it reads DDL."""

    feed: FeedId


Holder = FeedId | OwnerOf
"""A feed's id stands for its processor."""


class SpanRegistry:
    """The spans of one kv mode that feeds hold; sends orders to the puller. Lives in one asyncio loop."""

    def __init__(self, kv_mode: str = TABLE_MODE) -> None:
        self._kv_mode = kv_mode
        self._spans: dict[str, Span] = {}
        self._holders: dict[str, dict[Holder, int]] = {}
        self._held_by: dict[Holder, set[str]] = {}
        """The spans of each holder."""
        self._orders: dict[Holder, SpanOrder] = {}
        """The same in an order, for those that have asked for it since their spans changed."""
        self._raised: dict[Holder, tuple[int, int]] = {}
        """By holder: the ts to which `needed` has raised its spans (rows, DDL), not yet in `_holders`."""
        self._puller: Connection | None = None
        self._dropped: dict[str, int] = {}
        self._refused: dict[str, Refused] = {}
        self._unguarded: set[Holder] = set()
        self.safe_points = {-1: MAX}
        """The puller registers no guarded span below; by keyspace, -1: all keyspaces without an entry."""
        self.status: list[SpanStatus] = []
        """The puller's last complete report about its spans."""
        self._saying: list[SpanStatus] = []
        self.filling = ""
        """The puller's reason why the event store may soon be full; empty: none."""
        self._progress_at: dict[Holder, float] = {}
        """When each feed last made progress, in monotonic seconds."""

    def connect(self, puller: Connection) -> None:
        """Send everything to a puller that has just introduced itself."""
        self._puller = puller
        # The last puller may have ended before it carried out an order, so each limit is sent again.
        self._dropped.clear()
        # Before the spans, so that the puller knows what it must refuse.
        for keyspace, ts in self.safe_points.items():
            puller.send(SafePoint(ts, keyspace))
        for name, span in self._spans.items():
            self._watch(name, span)

    def disconnect(self, puller: Connection) -> None:
        """Forget a puller that is gone."""
        # The end of one connection may be noticed only after the next puller's hello.
        if self._puller is puller:
            self._puller = None

    def keep_above(self, safe_point: int, keyspace: int = -1) -> None:
        """Set the ts from which PD holds upstream's history: that of a keyspace, or (-1) of the cluster."""
        before = self.safe_points.get(keyspace)
        self.safe_points[keyspace] = safe_point
        if self._puller is not None and safe_point != before:
            self._puller.send(SafePoint(safe_point, keyspace))

    def receive_status(self, status: Status) -> None:
        """Take a part of the puller's report about its spans; `status` changes once it is complete."""
        if status.first:
            self._saying = []
        self._saying += status.spans
        if status.last:
            self.status, self._saying, self.filling = self._saying, [], status.filling

    def receive_refused(self, refused: Refused) -> None:
        """Note that the puller refuses to register a span."""
        name = span_id(refused.span, self._kv_mode)
        # A refusal that comes after the span was released would stay for ever, because nobody releases the
        # span again.
        if name in self._spans:
            self._refused[name] = refused

    def refusal(self, feed: Holder) -> Refused | None:
        """The refusal of a span that a holder needs, which it cannot get any more; None: there is none."""
        for name, refusal in self._refused.items():
            # A feed that begins above the refused ts does not need what was refused.
            if self._starts_of(name).get(feed, MAX) <= refusal.start_ts:
                return refusal
        return None

    def hold(self, feed: Holder, span: Span, start_ts: int, *, guarded: bool = True) -> None:
        """Follow a span for a feed from `start_ts`, or from the earlier ts from which the feed holds it.

        Not `guarded`: follow it even if upstream may not have the history any more. This applies to the span
        for all its holders; spans that such a feed does not hold stay guarded.
        """
        if not guarded:
            self._unguarded.add(feed)
        name = span_id(span, self._kv_mode)
        self._starts_of(name)
        holders = self._holders.setdefault(name, {})
        before, was_guarded = min(holders.values(), default=MAX), self._guarded(name)
        holders[feed] = min(start_ts, holders.get(feed, start_ts))
        self._held_by.setdefault(feed, set()).add(name)
        self._orders.pop(feed, None)
        self._spans[name] = span
        # Dropped rows are pulled again, also if another holder has asked for it before: an owner's hold of
        # rows keeps none of them.
        is_dropped = self._dropped.get(name, 0) > start_ts
        if start_ts < before or is_dropped or self._guarded(name) is not was_guarded:
            self._watch(name, span)

    def drop(self, feed: Holder, name: str, *, forget: bool = False, again_from: int | None = None) -> None:
        """Release a span of a feed. With `forget` its segments are removed when no other feed holds it.

        `again_from`: the feed will need the span again, from that ts.
        """
        holders = self._starts_of(name)
        if again_from is not None and feed in holders:
            holders[feed] = again_from
            return
        guarded, least = self._guarded(name), min(holders.values(), default=MAX)
        holders.pop(feed, None)
        self._held_by.get(feed, set()).discard(name)
        self._orders.pop(feed, None)
        if holders and (
            name in self._refused or self._guarded(name) is not guarded or min(holders.values()) > least
        ):
            # A refusal, or an earlier part that is being pulled, was only for this feed.
            self._watch(name, self._spans[name])
        if not holders and name in self._spans:
            span = self._spans.pop(name)
            del self._holders[name]
            self._dropped.pop(name, None)
            self._refused.pop(name, None)
            self._send(Unwatch(span))
            if forget:
                self._send(Remove(span))

    def release(self, feed: Holder, *, forget: bool = False, but: Collection[str] = ()) -> None:
        """Release all spans of a feed except those in `but`; `forget`: it will not need them later either."""
        for name in self._held_by.get(feed, set()) - set(but):
            self.drop(feed, name, forget=forget)
        if not self._held_by.get(feed):
            self._held_by.pop(feed, None)
            self._orders.pop(feed, None)
        self._unguarded.discard(feed)
        self._progress_at.pop(feed, None)

    def note_progress(self, feed: FeedId, now: float) -> None:
        """Note that a feed that holds spans has delivered something, or has nothing to deliver."""
        self._progress_at[feed] = now

    def feeds_blocked_by(self, feed: FeedId, now: float) -> list[FeedId]:
        """While the event store fills up: the feeds with progress that share spans with a stuck one.

        An owner delivers nothing, so it is in nobody's way.
        """
        # A feed that is not known yet counts from now, so that it has the whole time to make progress.
        if not self.filling or now - self._progress_at.setdefault(feed, now) < STALLED_S:
            return []
        shared = [
            holders for name, holders in self._holders.items() if feed in holders and name != DDL_SPAN_ID
        ]
        found = {other for holders in shared for other in holders if isinstance(other, FeedId)}
        others = found - {feed}
        return sorted(
            other for other in others if now - self._progress_at.get(other, float("-inf")) < STALLED_S
        )

    def try_again(self, feed: Holder, start_ts: int) -> None:
        """Follow from `start_ts` the spans that the puller refused to follow from an earlier ts."""
        # Collected first, because `_begin_again` removes them from `_refused`.
        refused = [name for name, one in self._refused.items() if one.start_ts < start_ts]
        for name in [one for one in refused if feed in self._holders[one]]:
            holders = self._starts_of(name)
            holders[feed] = max(start_ts, holders[feed])
            self._begin_again(name)

    def _begin_again(self, name: str) -> None:
        """Follow a span from where it is needed now, even if the puller waits at an earlier ts."""
        self._send(Unwatch(self._spans[name]))
        self._watch(name, self._spans[name])

    def within(self, feed: FeedId, ranges: Iterable[Span]) -> frozenset[str]:
        """The spans in some ranges that a feed holds."""
        held = {name: self._spans[name] for name in self._held_by.get(feed, ())}
        tasks = list(ranges)
        return frozenset(
            name for name, span in held.items() if any(one.intersect(span) is not None for one in tasks)
        )

    def needed(self, feed: Holder, rows: int, ddl: int) -> None:
        """Set the ts from which a holder would read rows, and DDL, if the event store were lost.

        Spans that are pulled again are pulled from there. So a processor calls this before it reports that it
        needs nothing below, and an owner before PD's hold is raised: otherwise a puller might register a
        region where history may be gone.
        """
        # Only noted: each changefeed calls this each second, for up to a thousand spans, and hardly anything
        # reads the starts of single spans (`_starts_of`).
        before = self._raised.get(feed, (0, 0))
        self._raised[feed] = max(rows, before[0]), max(ddl, before[1])
        for name, refused in list(self._refused.items()):
            if min(self._starts_of(name).values()) > refused.start_ts:
                self._begin_again(name)  # no feed needs the refused part any more

    def _starts_of(self, name: str) -> dict[Holder, int]:
        """The ts from which each holder needs a span; the caller may change it. Empty: nobody holds the span.

        Every reader of these ts must call this, and every writer before it sets one.
        """
        for feed, (rows, ddl) in self._raised.items():
            for held in self._held_by.get(feed, ()):
                holders, needed = self._holders[held], ddl if held == DDL_SPAN_ID else rows
                holders[feed] = max(needed, holders[feed])
        # All of them, so that a lower start that is set afterwards is not raised to what was needed before.
        self._raised.clear()
        return self._holders.get(name, {})

    def drop_below(self, limits: Mapping[Holder, tuple[int, int]]) -> None:
        """Drop segments that no holder needs. `limits`: the ts of rows and DDL that each has finished.

        An owner reads no rows. So its hold of a span of rows, which it has if a feed follows keys, neither
        keeps rows nor lets them go: while no processor holds the span, everything in it stays. An owner
        without a limit is still opening, and has asked no processor for anything yet, so it keeps everything.
        """
        for name, holders in self._holders.items():
            ddl = int(name == DDL_SPAN_ID)
            readers = (one for one in holders if ddl or isinstance(one, FeedId) or one not in limits)
            # docs/guarantees.md#changefeeds-share-one-event-store-each-at-its-own-place: the one that needs
            # the earliest changes decides.
            # A holder without a limit has finished nothing, so nothing may be dropped for it.
            limit = min((limits[feed][ddl] if feed in limits else 0 for feed in readers), default=0)
            if limit > self._dropped.get(name, 0):
                self._dropped[name] = limit
                self._send(DropBelow(self._spans[name], limit))

    @property
    def held(self) -> frozenset[str]:
        """The spans that feeds hold."""
        return frozenset(self._holders)

    def behind(self, feed: Holder, floors: Mapping[str, int]) -> int:
        """How far the slowest span of a holder is; MAX: it holds none.

        Upstream's history must be held from there, because a region that is behind is registered again from
        where it is. That may be below the feed's own progress: the feed may want no table of that region (in
        a stripe), or other captures deliver it, while regions that this capture prepares still wait.
        """
        order = self._order_of(feed)
        received = ts_of(floors, order)
        # A span without a floor has received nothing yet, and is registered from where the holder wants it.
        for place in np.flatnonzero(received == 0).tolist():
            received[place] = self._starts_of(order.names[place])[feed]
        return int(received.min()) if len(order) else MAX

    def have_begun(self, feed: FeedId, floors: Mapping[str, int]) -> bool:
        """Whether each span of a feed has received something, so that `behind` knows how far each is."""
        return bool(ts_of(floors, self._order_of(feed)).all())

    def _order_of(self, feed: Holder) -> SpanOrder:
        """The spans of a holder in an order, the same one until it holds others."""
        found = self._orders.get(feed)
        if found is None:
            found = SpanOrder(self._held_by.get(feed, ()))
            if feed in self._held_by:
                self._orders[feed] = found
        return found

    def sweep(self, stored: Mapping[str, tuple[Span, int]], floor: int) -> list[str]:
        """Remove stored spans that no feed holds and that have nothing above `floor`; returns their ids.

        `stored`: span id to the span and the ts up to which it may have rows. `floor`: every feed, running or
        not, is finished with rows up to here. The DDL span stays while there is a feed, because catalogues
        that were saved some time before their checkpoints need it.
        """
        kept = self._holders.keys() | ({DDL_SPAN_ID} if floor < MAX else set())
        gone = [name for name, (_, upto) in stored.items() if upto <= floor and name not in kept]
        for name in gone:
            self._send(Remove(stored[name][0]))
        return gone

    def _watch(self, name: str, span: Span) -> None:
        holders = self._starts_of(name)
        # The new Watch is answered on its own, by another refusal or by none.
        self._refused.pop(name, None)
        self._send(Watch(span, min(holders.values()), self._guarded(name)))

    def _guarded(self, name: str) -> bool:
        """Whether no holder of a span has asked for an unguarded one."""
        return self._unguarded.isdisjoint(self._holders.get(name, ()))

    def _send(self, report: ToPuller) -> None:
        if self._puller is not None:
            self._puller.send(report)


@dataclass(frozen=True, slots=True)
class Captured:
    """The event store of one kv mode, and the spans that its puller is asked to follow."""

    store: Path
    spans: SpanRegistry
    catalogues: Catalogues | None = None
    """The catalogues of tables; None for keys."""
