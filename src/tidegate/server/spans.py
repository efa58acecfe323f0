"""Which spans the puller must follow, for which feeds, from where; and what it has said about them.

The registry outlives the puller's process: when a new one introduces itself, it is told everything again.
A span is followed while any feed holds it, from the least ts that any of them still needs: where it asked
to begin, or what it has made durable since. If a feed comes later and needs more, because it begins earlier
or is resumed, the puller pulls what is missing by itself and puts it in front (`server/backfill.py`); the
others go on meanwhile.

What a feed has not delivered stays in the event store. When that fills up, a feed that stands still makes way
for those that share its spans and go on: else the spans would be given up for all of them.

The puller registers nothing below `safe_points`, which PD holds for us: the scan could lack what GC has
taken. It says what it has refused, and the feed that needs it cannot go on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from tidegate.config.values import TABLE_MODE
from tidegate.control.metadata import FeedId
from tidegate.model.reports import DropBelow, Refused, Remove, SafePoint, Status, ToPuller, Unwatch, Watch
from tidegate.model.span import Span, span_id
from tidegate.model.timestamp import MAX
from tidegate.server.catalogues import DDL_SPAN_ID
from tidegate.server.supervisor import Connection
from tidegate.tidb.keys import stripe_ids

STANDS_S: Final = 10.0
"""A feed that holds spans and has not gone on for so long stands still."""


class SpanRegistry:
    """Spans of one kv mode held by feeds; talks to the puller of the moment. One asyncio loop."""

    def __init__(self, kv_mode: str = TABLE_MODE) -> None:
        self._kv_mode = kv_mode
        self._spans: dict[str, Span] = {}
        self._stripes: set[str] = set()
        """Those of several tables."""
        self._holders: dict[str, dict[FeedId, int]] = {}
        self._held_by: dict[FeedId, set[str]] = {}
        """The spans of each feed."""
        self._puller: Connection | None = None
        self._dropped: dict[str, int] = {}
        self._refused: dict[str, Refused] = {}
        self._unguarded: set[FeedId] = set()
        self.safe_points = {-1: MAX}
        """Below it the puller registers nothing that is guarded; by keyspace, -1: all that are not named."""
        self.status: list[Mapping[str, Any]] = []
        """What the puller last said about its spans."""
        self._saying: list[Mapping[str, Any]] = []
        self.filling = ""
        """Why the event store may soon have no room, as the puller says."""
        self._went_on: dict[FeedId, float] = {}
        """When each feed did last, in monotonic seconds."""

    def connect(self, puller: Connection) -> None:
        """A puller has introduced itself: tell it everything."""
        self._puller = puller
        self._dropped.clear()
        for keyspace, ts in self.safe_points.items():
            puller.send(SafePoint(ts, keyspace))
        for name, span in self._spans.items():
            self._watch(name, span)

    def disconnect(self, puller: Connection) -> None:
        """A puller is gone."""
        if self._puller is puller:
            self._puller = None

    def keep_above(self, safe_point: int, keyspace: int = -1) -> None:
        """PD holds upstream's history for us from here on: that of a keyspace, or (-1) of the cluster."""
        before = self.safe_points.get(keyspace)
        self.safe_points[keyspace] = safe_point
        if self._puller is not None and safe_point != before:
            self._puller.send(SafePoint(safe_point, keyspace))

    def receive_status(self, status: Status) -> None:
        """A part of what the puller says about its spans; known once it is whole."""
        if status.first:
            self._saying = []
        self._saying += status.spans
        if status.last:
            self.status, self._saying, self.filling = self._saying, [], status.filling

    def receive_refused(self, refused: Refused) -> None:
        """The puller does not register a span."""
        name = span_id(refused.span, self._kv_mode)
        if name in self._spans:
            self._refused[name] = refused

    def refusal(self, feed: FeedId) -> Refused | None:
        """A span that the feed needs and cannot get any more."""
        for name, refusal in self._refused.items():
            if self._holders[name].get(feed, MAX) <= refusal.start_ts:
                return refusal
        return None

    def hold(self, feed: FeedId, span: Span, start_ts: int, *, guarded: bool = True) -> None:
        """Follow a span for a feed from `start_ts` on, or from where the feed holds it already.

        Not `guarded`: although upstream may not have the history any more. That goes for the span, whoever
        else holds it; spans that such a feed does not hold stay guarded.
        """
        if not guarded:
            self._unguarded.add(feed)
        name = span_id(span, self._kv_mode)
        holders = self._holders.setdefault(name, {})
        before, was_guarded = min(holders.values(), default=MAX), self._guarded(name)
        holders[feed] = min(start_ts, holders.get(feed, start_ts))
        self._held_by.setdefault(feed, set()).add(name)
        self._spans[name] = span
        if stripe_ids(span):
            self._stripes.add(name)
        if start_ts < before or self._guarded(name) is not was_guarded:
            self._watch(name, span)

    def drop(self, feed: FeedId, name: str, *, forget: bool = False, again_from: int | None = None) -> None:
        """A feed no longer needs a span; with `forget` its segments go too, when nobody else holds it.

        `again_from`: it will need the span again, from that ts on.
        """
        holders = self._holders.get(name, {})
        if again_from is not None and feed in holders:
            holders[feed] = again_from
            return
        guarded, least = self._guarded(name), min(holders.values(), default=MAX)
        holders.pop(feed, None)
        self._held_by.get(feed, set()).discard(name)
        if holders and (
            name in self._refused or self._guarded(name) is not guarded or min(holders.values()) > least
        ):
            # What was refused, or is being pulled from earlier, was for this feed.
            self._watch(name, self._spans[name])
        if not holders and name in self._spans:
            span = self._spans.pop(name)
            del self._holders[name]
            self._stripes.discard(name)
            self._dropped.pop(name, None)
            self._refused.pop(name, None)
            self._tell(Unwatch(span))
            if forget:
                self._tell(Remove(span))

    def release(self, feed: FeedId, *, forget: bool = False, but: Collection[str] = ()) -> None:
        """A feed needs nothing now, `but` some spans; `forget`: nor later."""
        for name in self._held_by.get(feed, set()) - set(but):
            self.drop(feed, name, forget=forget)
        if not self._held_by.get(feed):
            self._held_by.pop(feed, None)
        self._unguarded.discard(feed)
        self._went_on.pop(feed, None)

    def went_on(self, feed: FeedId, now: float) -> None:
        """A feed that holds spans has delivered something, or has nothing to deliver."""
        self._went_on[feed] = now

    def in_the_way_of(self, feed: FeedId, now: float) -> list[FeedId]:
        """The feeds that go on and share spans with one that stands still, while the event store fills up."""
        if not self.filling or now - self._went_on.setdefault(feed, now) < STANDS_S:
            return []
        shared = [
            holders for name, holders in self._holders.items() if feed in holders and name != DDL_SPAN_ID
        ]
        others = {other for holders in shared for other in holders} - {feed}
        return sorted(other for other in others if now - self._went_on.get(other, float("-inf")) < STANDS_S)

    def try_again(self, feed: FeedId, start_ts: int) -> None:
        """Follow from `start_ts` on what the puller has refused from an earlier ts on."""
        refused = [name for name, one in self._refused.items() if one.start_ts < start_ts]
        for name in [one for one in refused if feed in self._holders[one]]:
            self._holders[name][feed] = max(start_ts, self._holders[name][feed])
            self._begin_again(name)

    def _begin_again(self, name: str) -> None:
        """Follow a span from where it is needed now, also where it stands still before that."""
        self._tell(Unwatch(self._spans[name]))
        self._watch(name, self._spans[name])

    def within(self, feed: FeedId, ranges: Iterable[Span]) -> frozenset[str]:
        """The spans that a feed holds of some ranges."""
        held = {name: self._spans[name] for name in self._held_by.get(feed, ())}
        tasks = list(ranges)
        return frozenset(
            name for name, span in held.items() if any(one.intersect(span) is not None for one in tasks)
        )

    def needed(self, needs: Mapping[FeedId, tuple[int, int]]) -> None:
        """From where each feed would read rows, and DDL, were all that is stored gone.

        What is pulled anew is pulled from there, so it is to be told before what PD holds is raised.
        """
        for name, holders in self._holders.items():
            ddl = int(name == DDL_SPAN_ID)
            for feed in holders.keys() & needs.keys():
                holders[feed] = max(holders[feed], needs[feed][ddl])
        for name, refused in list(self._refused.items()):
            if min(self._holders[name].values()) > refused.start_ts:
                self._begin_again(name)  # nobody needs any more what was refused

    def drop_below(self, limits: Mapping[FeedId, tuple[int, int]]) -> None:
        """Let segments go that no holder needs; `limits`: where each feed is done with rows, with DDL."""
        for name, holders in self._holders.items():
            ddl = int(name == DDL_SPAN_ID)
            done = {feed: limits[feed][ddl] if feed in limits else 0 for feed in holders}
            limit = min(done.values())
            if limit > self._dropped.get(name, 0):
                self._dropped[name] = limit
                self._tell(DropBelow(self._spans[name], limit))

    @property
    def held(self) -> frozenset[str]:
        """The spans that feeds hold."""
        return frozenset(self._holders)

    def behind(
        self, floors: Mapping[str, int], *, only: FeedId | None = None, every: bool = False
    ) -> dict[FeedId, int]:
        """For each feed, how far the slowest of its stripes is: its own progress may have passed that.

        Upstream's history must be held from there: a region that is behind is registered again from where it
        stands, whoever wants its tables. `every`: of all its spans. If captures share a feed, its checkpoint
        rises by what others deliver while regions of a span that this one is to take still wait.
        """
        found: dict[FeedId, int] = {}
        names: Collection[str] = self._holders.keys() if every else self._stripes
        if only is not None:
            mine = self._held_by.get(only, set())
            names = mine if every else mine & self._stripes
        for name in names:
            floor, holders = floors.get(name, 0), self._holders[name]
            for feed in holders if only is None else {only} & holders.keys():
                least = floor or (holders[feed] if every else MAX)
                found[feed] = min(least, found.get(feed, least))
        return found

    def have_begun(self, feed: FeedId, floors: Mapping[str, int]) -> bool:
        """Whether something has come of each span of a feed, so that `behind` knows how far each is."""
        return all(floors.get(name, 0) for name in self._held_by.get(feed, ()))

    def sweep(self, stored: Mapping[str, tuple[Span, int]], floor: int) -> list[str]:
        """Remove stored spans that nobody holds and that hold nothing above `floor`; which they are.

        `stored`: span id to the span and the ts up to which it may hold rows. `floor`: what every feed is
        done with, whether it runs or not. The DDL span stays while there is any: catalogues that were saved
        some time before their checkpoints need it.
        """
        kept = self._holders.keys() | ({DDL_SPAN_ID} if floor < MAX else set())
        gone = [name for name, (_, upto) in stored.items() if upto <= floor and name not in kept]
        for name in gone:
            self._tell(Remove(stored[name][0]))
        return gone

    def _watch(self, name: str, span: Span) -> None:
        holders = self._holders[name]
        self._refused.pop(name, None)
        self._tell(Watch(span, min(holders.values()), self._guarded(name)))

    def _guarded(self, name: str) -> bool:
        """Whether all that hold a span asked for that."""
        return self._unguarded.isdisjoint(self._holders.get(name, ()))

    def _tell(self, report: ToPuller) -> None:
        if self._puller is not None:
            self._puller.send(report)
