"""Decides who gets which part of a changefeed's key space, and when it is divided in another way.

    captures come and go, tables come and go, loads change --> look --> takers prepare --> "divide it again"

`control.share` divides. This module decides among which captures, by which loads, and whether a new division
is worth its cost: all incarnations of the changefeed end for it and new ones begin, which stops the
checkpoint for about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.control.barrier import SpanTask
from tidegate.control.division import RANGES_PER_CAPTURE
from tidegate.control.grants import CAPTURES_MAX, GRANTS_MAX
from tidegate.control.share import Move, Piece, Shares, handed, load_of, moved, share
from tidegate.model.span import Span
from tidegate.model.timestamp import compose
from tidegate.server.catalogue.stripes import ids_of
from tidegate.server.owner.able_captures import AbleCaptures, DividingCapture
from tidegate.server.owner.delivered_spans import DeliveredSpans
from tidegate.server.owner.peers import WARM_MAX_S, WARM_S, Peer, Peers

CAPTURES_S: Final = 0.5
"""How often the existing captures are compared with those that deliver."""
BALANCE_S: Final = 60.0
"""How often loads are compared while the same captures deliver the same tables."""
TOLERANCE: Final = 0.2
"""By which share a load may exceed the best possible one after captures have come or gone."""
UNEVEN: Final = 0.5
"""The same while no capture comes or goes; more, because loads change all the time."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A possible new division, and what it would change."""

    shares: Shares
    moves: Sequence[Move]
    loads: Mapping[str, float]
    """By capture, in bytes per second; or in spans, if the changefeed has less than `WORTH`
    (`delivered_spans`).
    """
    before: Mapping[str, float]
    in_bytes: bool


@dataclass(slots=True)
class Sharing:
    """The sharing of one changefeed. Lives in one asyncio loop."""

    node: DividingCapture
    wanted: Span
    peers: Peers
    reachable: Callable[[], list[Peer]]
    stays: bool = False
    """Whether only the owner's capture delivers. So it is for a feed of keys, because the owner must pull all
    its keys anyway to know how far it may go.
    """
    spans: DeliveredSpans = field(default_factory=DeliveredSpans)
    captures: AbleCaptures = field(init=False)
    aim: Shares | None = None
    """The division for which takers prepare."""
    next: Shares | None = None
    """The division for which takers have prepared; None: the earlier captures continue."""
    _best_for: object = None
    """The circumstances in which no better division was found, so that it is not looked for again."""
    _planned_for: object = None
    """The circumstances for which `aim` was planned."""
    _looked_at: float = float("-inf")
    _asked_for: bool = False
    _by_hand: tuple[frozenset[int], str] | None = None
    """Tables to move by a user's request, and the capture that gets them."""
    _is_by_hand: bool = False
    """Whether `aim` is for that request."""
    _kept_for: frozenset[str] = frozenset()
    """The captures at the last move by request. Loads move nothing until the set of captures changes."""

    def __post_init__(self) -> None:
        self.captures = AbleCaptures(self.node, self.peers, self.reachable)

    def begin(self, tasks: Iterable[SpanTask]) -> None:
        """Set the spans that are delivered at the stored checkpoint."""
        self.spans.begin(tasks)
        self.aim = self.next = None

    def divide(self, before: Mapping[str, Sequence[Span]], *, shared: bool) -> Shares:
        """The division for the next incarnation. `shared`: whether several captures may write at once."""
        # An incarnation begins in any case, so captures that have just joined may take part.
        able, self.next = self.captures.able(joined_s=0.0), self._still_possible()
        if self.next is not None and (shared or len(self.next) == 1):
            found = self.next
            if self._is_by_hand:
                self._by_hand, self._kept_for = None, frozenset(self.captures.able())
        elif self._is_kept(able) and shared and self._covers(before, able):
            # Tables that were moved by hand stay where they are as long as the same captures are able.
            found = {name: tuple(spans) for name, spans in before.items() if spans}
        else:
            # Captures without ranges have not prepared. They get some once they have (`better`).
            there = [name for name in able if before.get(name)]
            found = self._divided(self._can_begin(there or able), before, shared=shared)
        self.aim = self.next = None
        self._asked_for = False
        for peer in self.peers:
            peer.warming_since = self.node.clock.monotonic()
        return found

    def _can_begin(self, names: Sequence[str]) -> Sequence[str]:
        """Those of the captures whose applications run, if they are at least half; otherwise all."""
        # A capture that was killed and has just started again still has its grants, but its application takes
        # seconds to start. The checkpoint would wait for that. It gets ranges again once it is ready
        # (`better`). But after a restart of all the first of many that is ready must not get everything:
        # it would pull, from the checkpoint on, what the event stores of the others have.
        ready = [name for name in names if self.peers[name].ready]
        return ready if 2 * len(ready) >= len(names) else names

    def _is_kept(self, able: Collection[str]) -> bool:
        """Whether a user has moved tables among exactly these captures."""
        return bool(self._kept_for) and self._kept_for == frozenset(able)

    @property
    def is_by_hand(self) -> bool:
        """Whether tables are where a user has moved them, or will be."""
        return bool(self._kept_for) or self._by_hand is not None

    def _covers(self, before: Mapping[str, Sequence[Span]], able: Collection[str]) -> bool:
        """Whether able captures together have all wanted keys."""
        given = sorted((span.start, span.end) for name in able for span in before.get(name, ()))
        reached = self.wanted.start
        for start, end in given:
            if start != reached:
                return False
            reached = end
        return bool(given) and reached == self.wanted.end

    def _still_possible(self) -> Shares | None:
        able = set(self.captures.able(joined_s=0.0))
        return self.next if self.next is not None and self.next.keys() <= able else None

    def _divided(
        self,
        able: Sequence[str],
        before: Mapping[str, Sequence[Span]],
        *,
        shared: bool,
        tolerance: float = TOLERANCE,
    ) -> Shares:
        if self.stays:
            return {self.node.capture: (self.wanted,)}
        # Captures that are too many for one transaction get ranges at the next division.
        others = [name for name in able if not before.get(name)]
        left_out = set(others[max(1, GRANTS_MAX - sum(map(bool, before.values()))) :])
        able = [name for name in able if name not in left_out]
        if len(able) == 1 or not self.spans.tasks:
            return {able[0]: (self.wanted,)}
        pieces, _ = self.spans.pieces
        most = CAPTURES_MAX if shared else 1
        return share(self.wanted, pieces, able, before, at_most=most, tolerance=tolerance)

    @property
    def now(self) -> dict[str, list[Span]]:
        """The ranges that each capture has now."""
        return {one.capture: [r.id for r in one.grant.ranges] for one in self.peers.running if one.grant}

    def plan(self, *, shared: bool) -> Proposal:
        """The best possible division, whatever it costs to get there."""
        before = self.now
        after = self._divided(self.captures.able(), before, shared=shared, tolerance=0.0)
        pieces, in_bytes = self.spans.pieces
        moves = moved(before, after, pieces)
        return Proposal(after, moves, load_of(after, pieces), load_of(before, pieces), in_bytes)

    def handed(self, tables: Collection[int], taker: str) -> Proposal:
        """The current division, except that one capture gets some tables, with all that share a span with
        them. A table that is cut moves with all its pieces.

        Raises KeyError with a table that is not delivered, ValueError if there would be too many ranges.
        """
        pieces, in_bytes = self.spans.pieces
        by_table: dict[int, list[Piece]] = {}
        for piece, task in zip(pieces, self.spans.in_order, strict=True):
            for table in ids_of(task):
                by_table.setdefault(table, []).append(piece)
        before = self.now
        given = [piece for table in tables for piece in by_table[table]]
        after = handed(self.wanted, pieces, before, given, taker)
        most = RANGES_PER_CAPTURE * len({*after, *self.captures.able()})
        # If there are more ranges already, none may be added, but what is there may move.
        if (ranges := sum(map(len, after.values()))) > max(most, sum(map(len, before.values()))):
            raise ValueError(f"the key space would be in {ranges} ranges, and {most} are allowed")
        moves = moved(before, after, pieces)
        return Proposal(after, moves, load_of(after, pieces), load_of(before, pieces), in_bytes)

    def hand(self, tables: Collection[int], taker: str) -> None:
        """Move the tables as soon as the taker has prepared."""
        self._by_hand, self.aim, self.next = (frozenset(tables), taker), None, None
        self._asked_for, self._best_for, self._planned_for = False, None, None

    def _handed(self, able: Collection[str]) -> Shares | None:
        """The division that a user has requested; None: there is no request, or it is not possible."""
        if self._by_hand is None:
            return None
        tables, taker = self._by_hand
        there = {table for task in self.spans.tasks.values() for table in ids_of(task)}
        try:
            return self.handed(tables & there, taker).shares if taker in able and tables & there else None
        except ValueError:
            return None

    def ask(self) -> None:
        """Divide the key space in the best way as soon as possible, for a user's request."""
        self._asked_for, self._best_for, self._planned_for = True, None, None
        self._by_hand, self._kept_for, self.aim, self.next = None, frozenset(), None, None

    # --- whether it is time --------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether it is time to look again; if so, the next time is `CAPTURES_S` later."""
        if now - self._looked_at < CAPTURES_S:
            return False
        self._looked_at = now
        return True

    def better(self, now: float, resolved_ts: int, *, shared: bool) -> tuple[str, list[Peer]]:
        """Why the key space must be divided again now, or ""; and the processors that must prepare for it."""
        able, before = self.captures.able(), self.now
        # The last of these circumstances changes every BALANCE_S, so loads are compared again at least that
        # often.
        known = tuple(sorted(able)), self.spans.changes, shared, tuple(sorted(before)), now // BALANCE_S
        if known == self._best_for:
            return "", []
        if self._kept_for and not self._is_kept(able):
            self._kept_for = frozenset()
        tolerance = 0.0 if self._asked_for else TOLERANCE if set(able) != before.keys() else UNEVEN
        # Without the last one, because a plan stays while its takers prepare, however long that takes.
        is_planned = self.aim is not None and known[:-1] == self._planned_for
        if self.aim is not None and is_planned:
            after = self.aim  # takers prepare for these; loads that change meanwhile count the next time
        elif (asked := self._handed(able) if shared else None) is not None:
            after, self._planned_for, self._is_by_hand = asked, known[:-1], True
        elif self._is_kept(able) and shared and not self._asked_for and self._covers(before, able):
            after = {name: tuple(spans) for name, spans in before.items() if spans}
        else:
            after = self._divided(able, before, shared=shared, tolerance=tolerance)
            self._planned_for, self._is_by_hand = known[:-1], False
        if not self._is_worth_it(before, after):
            self._best_for, self._asked_for = known, False
            # A user's request that changes nothing is done.
            self.aim = self._by_hand = None
            return "", []
        takers = {name: self._to_come(spans, before.get(name, ())) for name, spans in after.items()}
        waits = [self.peers[name] for name, ranges in takers.items() if ranges]
        prepare = [peer for peer in waits if peer.coming != takers[peer.capture]]
        for peer in prepare:
            # Tables that come and go change the ranges again and again. A taker that is not ready, or
            # receives nothing, must not get more time for that, because all other moves wait for it.
            if not peer.coming or (peer.ready and peer.received):
                peer.warming_since = now
            peer.coming, peer.received = takers[peer.capture], 0
        self.aim = after
        if all(peer.ready and peer.received >= min(self._warm_ts(peer), resolved_ts) for peer in waits):
            self.next = after
            return f"other shares are better: {', '.join(sorted(after))}", prepare
        late = [peer for peer in waits if now - peer.warming_since > WARM_MAX_S]
        if unable := [peer for peer in late if not peer.ready or not peer.received]:
            # While it prepares, upstream holds history for it, and nothing else is moved.
            for peer in unable:
                peer.fails_to_warm(now)
            self._planned_for = None
            return "", prepare
        if not late or any(not peer.ready or not peer.received for peer in waits):
            return "", prepare
        self.next = after
        return (
            f"other shares are better, although not all takers are ready: {', '.join(sorted(after))}",
            prepare,
        )

    def _warm_ts(self, peer: Peer) -> int:
        """How far a taker must have received its ranges by its last report.

        A taker that delivers reports it every `SYNC_S`, each at another time. If that time did not count,
        several takers would rarely be warm at the same moment, and many never.
        """
        behind_s = WARM_S + peer.unreported_s(self.node.clock.monotonic())
        return compose(self.node.now_ms() - round(behind_s * 1000))

    @staticmethod
    def _to_come(after: Sequence[Span], before: Sequence[Span]) -> tuple[Span, ...]:
        """The ranges that a capture does not have completely yet."""
        return tuple(one for one in after if not any(had.covers(one) for had in before))

    def _is_worth_it(self, before: Mapping[str, Sequence[Span]], after: Shares) -> bool:
        """Whether more would change than edges in empty key space, such as that of a dropped table."""
        now = {name: tuple(spans) for name, spans in before.items() if spans}
        if now == after or now.keys() != after.keys():
            return now != after
        pieces, _ = self.spans.pieces
        return any(one.weight for one in moved(now, after, pieces))

    def not_wanted(self) -> list[Peer]:
        """The processors that prepare for ranges which they will not get any more."""
        coming, now = self.aim or {}, self.now
        found = [
            peer
            for peer in self.peers
            if peer.coming and not self._to_come(coming.get(peer.capture, ()), now.get(peer.capture, ()))
        ]
        for peer in found:
            peer.coming = ()
        return found
