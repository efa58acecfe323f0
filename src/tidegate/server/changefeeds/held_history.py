"""The service safepoints at PD, one for each keyspace, that hold upstream's history for the changefeeds.

A scan below GC's safepoint would miss deletes that GC has removed, and nothing would show it. Two orders
prevent that. A hold is renewed before anything is registered below it, so that there is always one. And
before PD is asked for a later safepoint, pullers and owners get it as their lower bound, because history
below it may go as soon as PD has the call. `control/gc.py` decides which ts to hold, and when.

The owner knows itself what *it* may still read: the stored checkpoint, and the base of its catalogue. It
knows what processors may still read by their messages only (`Sync.needs`), on this capture as on others.
Until a processor has answered a Dispatch, nothing of what was held at that Dispatch is released (`Peer.ask`).

A new owner takes its own hold first, and only then removes those of earlier owners.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Final

from tidegate.config.values import TABLE_MODE
from tidegate.control.gc import HELD, GcGuard, History, Hold, earliest_start, service_id
from tidegate.control.metadata import Delete, FeedId, holder_key
from tidegate.errors import Retryable, TidegateError
from tidegate.eventstore import store_view
from tidegate.log import event
from tidegate.model.timestamp import readable
from tidegate.server.changefeeds.feeds import Feeds
from tidegate.server.changefeeds.new_feed import Refused
from tidegate.server.changefeeds.unreadable import UnreadableFeed
from tidegate.server.node import Node
from tidegate.server.owner.feed import Feed
from tidegate.server.pulling.spans import Captured, OwnerOf

LOG: Final = logging.getLogger(__name__)

PREDECESSORS_S: Final = 15.0
"""How long the holds of earlier owners stay, so that processors of other captures can report their needs."""
CREATING_TTL_S: Final = 3600


class HeldHistory:
    """The holds of the owner of all changefeeds. Lives in one asyncio loop."""

    def __init__(self, node: Node, feeds: Feeds) -> None:
        self.node, self._feeds = node, feeds
        self.error = ""
        """Why PD did not take the last hold; empty: it did."""
        self._guards = {-1: GcGuard(node.gc_ttl_s)}
        self._resuming: set[FeedId] = set()
        self._released: set[FeedId] = set()
        self._has_predecessors = bool(node.shared)
        """Whether earlier owners may still have holds at PD."""

    async def tend(self, *, force: bool = False) -> bool:
        """Renew the safepoints that are due, one for each keyspace; False: PD did not answer."""
        self._log_released()
        scopes = {f.record.scope for f in self._feeds.values()}
        scopes |= {one.scope for one in self._feeds.unreadable.values() if one.scope is not None}
        for scope in scopes - self._guards.keys():
            self._guards[scope] = GcGuard(self.node.gc_ttl_s)
        self.error, all_taken = "", True
        for scope, guard in list(self._guards.items()):
            all_taken = await self._tend_scope(scope, guard, force=force) and all_taken
        return all_taken

    async def _tend_scope(self, scope: int, guard: GcGuard, *, force: bool) -> bool:
        # First, because `needs` asks every changefeed.
        if not force and not guard.is_due(self.node.clock.monotonic()):
            return True
        taken = False
        while not taken:
            hold = guard.tick(self.needs(scope), self.node.clock.monotonic(), force=force)
            if hold is None:
                return True
            if hold.safe_point > self.node.histories.get(scope, History()).safe_point:
                # Before PD is asked, because from then on history below the safepoint may go at any moment.
                self.report_needs()
                self._keep_above(scope, History(hold.needed, hold.safe_point))
            try:
                least = await asyncio.to_thread(self._update, scope, hold)
            except TidegateError as error:
                guard.failed()
                self.error = error.what
                return False
            # If PD's least safepoint is higher, the next round asks at once for the history that is left.
            taken, force = guard.answered(hold, least), True
            if taken:
                self._keep_above(scope, History(hold.needed, hold.safe_point) if hold.ttl_s else History())
        return True

    def _keep_above(self, scope: int, history: History) -> None:
        """Do not let anything be registered or read below the safepoint.

        In the order of the owner's messages: a Dispatch of an earlier sequence may still wait in the box of a
        processor on this capture, and must not bring an earlier safepoint back.
        """
        self.node.receive_history(scope, (self.node.owner_rev, self.node.next_sequence()), history)
        for captured in self._captured():
            captured.spans.keep_above(history.safe_point, scope)

    def report_needs(self) -> None:
        """Set the ts from which each owner here may still read DDL. Processors set their own."""
        for feed in self._feeds.values():
            record = feed.record
            record.captured.spans.needed(OwnerOf(feed.id), *record.needs)

    def needs(self, scope: int) -> dict[FeedId, int]:
        """The ts from which each feed of a keyspace may still read, for feeds whose history is held."""
        feeds = [f for f in self._feeds.values() if f.record.scope == scope and self.is_held(f)]
        stores = {f.id: f.record.captured.store for f in feeds}
        floors = {store: store_view.read_frontier(store) for store in stores.values()}
        found = {f.id: self._needs_of(f, floors[stores[f.id]]) for f in feeds}
        return found | self._needs_of_unreadable(scope)

    def _needs_of(self, feed: Feed, floors: Mapping[str, int]) -> int:
        """The least ts that the owner of a feed, or one of its processors, may still read from upstream."""
        node, record = self.node, feed.record
        ddl_is_at = record.captured.spans.behind(OwnerOf(feed.id), floors)
        processors_need = feed.replication.peers.needs(node.clock.monotonic(), node.capture)
        return min(*record.needs, ddl_is_at, processors_need)

    def _needs_of_unreadable(self, scope: int) -> dict[FeedId, int]:
        """The same for feeds that cannot be read, including the catalogue that is saved for them."""
        catalogues = self.node.captured(TABLE_MODE).catalogues
        held = (one for one in self.unreadable_held if one.scope in (None, scope))
        bases = {one.id: catalogues.base_ts(one.checkpoint) if catalogues else None for one in held}
        checkpoints = {name: self._feeds.unreadable[name].checkpoint for name in bases}
        return {n: ts if (base := bases[n]) is None else min(ts, base) for n, ts in checkpoints.items()}

    @property
    def unreadable_held(self) -> list[UnreadableFeed]:
        """The feeds that cannot be read, and for which history is held."""
        now_ms, ttl_s = self.node.now_ms(), self.node.gc_ttl_s
        return [one for one in self._feeds.unreadable.values() if one.is_held(now_ms, ttl_s)]

    def is_held(self, feed: Feed) -> bool:
        """Whether history is held for a feed: not if it is finished, or stopped for longer than gc-ttl."""
        record = feed.record
        return record.life.state in HELD and (not record.released or feed.id in self._resuming)

    def _log_released(self) -> None:
        records = [feed.record for feed in self._feeds.values()]
        released = {one.id for one in records if one.life.state in HELD and one.released}
        for name in released - self._released:
            event(LOG, logging.WARNING, "history released", changefeed=str(name), gc_ttl_s=self.node.gc_ttl_s)
        self._released = released

    def _update(self, scope: int, hold: Hold) -> int:
        service, pd = service_id(self.node.cluster, self.node.holder, scope), self.node.pd
        if (over := self.node.over()) is not None:
            raise over
        least = pd.hold_history(service, hold.ttl_s, hold.safe_point, scope)
        if (over := self.node.over()) is not None:
            # The next owner may have removed this hold just before our call, so nobody else will do it.
            pd.hold_history(service, 0, 0, scope)
            raise over
        return least

    @contextlib.asynccontextmanager
    async def held_again(self, feed: Feed) -> AsyncIterator[None]:
        """Hold released history again, as far as PD still has it, while a feed is being started."""
        if not feed.record.released:
            yield
            return
        self._resuming.add(feed.id)
        try:
            await self.tend(force=True)
            yield
        finally:
            self._resuming.discard(feed.id)

    async def hold(self, service: str, start_ts: int, scope: int) -> None:
        """Hold upstream's history from `start_ts` on, or raise Refused with the earliest possible ts."""
        pd = self.node.pd
        # The guard of an admitted changefeed holds the ts before its start too. A check against `start_ts`
        # itself would admit a changefeed that fails at its first hold (tiflow #6350).
        least = await asyncio.to_thread(pd.hold_history, service, CREATING_TTL_S, start_ts - 1, scope)
        if least > start_ts - 1:
            await self.release(service, scope)
            possible = earliest_start(least)
            raise Refused(
                "CDC:ErrStartTsBeforeGC",
                f"[CDC:ErrStartTsBeforeGC]start-ts {start_ts} is not above the GC safepoint {least}",
                why="upstream has dropped old versions that an initial scan would need",
                fix=f"use a start-ts of at least {possible} ({readable(possible)})",
            )

    async def release(self, service: str, scope: int) -> bool:
        """Release a hold; False: PD did not answer, and the hold stays until it expires."""
        try:
            await asyncio.to_thread(self.node.pd.hold_history, service, 0, 0, scope)
        except TidegateError as error:
            event(LOG, logging.WARNING, "safepoint stays until it expires", service=service, error=str(error))
            return False
        return True

    async def release_predecessors(self, owner_for_s: float) -> None:
        """Release the holds of earlier owners, which our own holds replace; otherwise they stay until they
        expire.

        Only after this capture has been the owner for PREDECESSORS_S.
        """
        if not self._has_predecessors or owner_for_s < PREDECESSORS_S:
            return
        node, front = self.node, holder_key(self.node.cluster, "")
        # The first hold of this owner knew no processor. Now it counts those that have reported since.
        if not await self.tend(force=True):
            return
        try:
            for kv in await node.under(front):
                if (term := kv.key.removeprefix(front)) == node.term:
                    continue
                # An earlier owner may have held in any of them.
                for scope in {-1, *self._guards}:
                    held = service_id(node.cluster, f"{node.identity}-{term}", scope)
                    if not await self.release(held, scope):
                        return
                # Last: the key stays until each hold is released, so that another owner tries again
                # otherwise.
                await node.write(Delete(kv.key))
            self._has_predecessors = False
        except Retryable as error:
            event(LOG, logging.WARNING, "holds of earlier owners not released yet", error=str(error))

    def _captured(self) -> list[Captured]:
        """The tables' event store, and those of the other kv modes that feeds use."""
        return self.node.stores(self._feeds.kv_modes())
