"""Which capture delivers which part of a changefeed: stores the grants, and notices when they should change.

    divide --> grants are stored --> earlier writers are fenced --> ... --> `reason`: divide again

`server.owner.sharing` decides who gets what, and this module makes it durable. A grant is stored before any
capture acts on it. If several captures are going to write, all earlier writers are fenced before any of them
begins.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from tidegate.control.grants import Grant, writers_of
from tidegate.control.messages import Wish
from tidegate.control.metadata import FeedInfo
from tidegate.control.owner import Owner
from tidegate.log import event
from tidegate.model.timestamp import MAX
from tidegate.server.captures.membership import unreached
from tidegate.server.delivery.plan import FeedPlan
from tidegate.server.delivery.sink_thread import SinkThread, fence_writers
from tidegate.server.node import Node
from tidegate.server.owner.fence_ahead import FenceAhead
from tidegate.server.owner.peers import Peer, Peers
from tidegate.server.owner.processor_link import ProcessorLink
from tidegate.server.owner.processor_reports import ProcessorReports
from tidegate.server.owner.record import FeedRecord
from tidegate.server.owner.sharing import Sharing
from tidegate.sink.base import Description, Form, SharedSink

LOG: Final = logging.getLogger(__name__)


class FeedShares:
    """The shares of one changefeed. Lives in one asyncio loop."""

    def __init__(
        self,
        node: Node,
        record: FeedRecord,
        peers: Peers,
        link: ProcessorLink,
        reports: ProcessorReports,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake`: is called when the next fence is prepared."""
        self._node, self._record, self._peers, self._link, self._reports = node, record, peers, link, reports
        self.sharing = Sharing(node, record.wanted, peers, link.reachable, stays=not record.config.has_tables)
        self.ahead = FenceAhead(node, record, lambda: self.may_be_shared, wake)
        self.reason = ""
        """Why the incarnation must end so that the key space is divided again; empty: it need not."""
        self._planned = ""
        """The last reason for which takers have prepared: those that deliver can continue meanwhile."""
        self._grant: Grant | None = None
        """The grant that proves the owner's own writes."""
        self._described: tuple[FeedInfo, Description] | None = None
        """The sink's description, and the info for which it was made."""
        self._fenced: dict[str, Grant] = {}
        """The grants whose writers, and whose givers, were fenced; that is not stored yet."""
        self._is_shared_out = False
        """Whether this owner has granted ranges at least once."""

    def may_hand_over(self) -> bool:
        """Whether the key space must be divided again, and nothing is gained by a delay.

        While those that deliver can continue, the next fence is prepared first.
        """
        if not self.reason:
            return False
        self.ahead.begin()
        return self.ahead.is_done or self.reason != self._planned

    def forget_grant(self) -> None:
        """Give the next incarnation a new token; the feed must not run."""
        self._grant = None

    @property
    def may_be_shared(self) -> bool:
        """Whether several captures may write at the same time."""
        if not self._node.shared:
            return False
        info = self._record.info
        if self._described is None or self._described[0] is not info:
            self._described = info, self._record.plan.sink.describe()
        sink = self._described[1]
        return sink.form is Form.MESSAGES and sink.at_once(MAX) == MAX

    # --- an incarnation begins -----------------------------------------------------------------------

    async def raise_grants(self, owner: Owner) -> dict[str, Grant]:
        """Divide the key space among the captures that answer, and store what each may write."""
        node, feed = self._node, self._record.id
        # Read once: the write compares these revisions, so it fails if another owner has stored grants since.
        stored = await node.stored_grants(feed) if node.shared else None
        held = stored.grants if stored is not None else {}
        before = {name: [one.id for one in grant.ranges] for name, (grant, _) in held.items()}
        # An initial load is delivered by one capture.
        shares = self.sharing.divide(before, shared=self.may_be_shared and not self._record.loading)
        # Tokens order grants over the same keys, so with a shared etcd each round has a new one. A
        # capture that is alone keeps its token, and only its incarnation rises.
        token = self._grant.token if self._grant and not node.shared else node.token()
        plan = self._record.plan
        slots = {name: plan.slots(self._peers[name].cores) for name in shares}
        grants = await node.share_out(feed, self._record.info.instance, token, shares, slots, stored)
        self._is_shared_out = True
        self._reports.begin()
        self._peers.adopt(owner, grants, self._link)
        if len(grants) > 1 or node.capture not in grants:
            event(LOG, logging.INFO, "key space shared", changefeed=str(feed), among=sorted(grants))
        self._grant = grants[self.lead(grants)]
        return grants

    def lead(self, grants: dict[str, Grant]) -> str:
        """The capture whose grant proves the owner's own writes. Any grant of this round would be valid."""
        return self._node.capture if self._node.capture in grants else min(grants)

    async def fence_all(self, plan: FeedPlan, grants: dict[str, Grant], thread: SinkThread) -> None:
        """Stop every earlier writer on every capture before a new one begins, if several captures will write.

        Fencing only the givers is not enough: a capture that keeps its ranges may have left a transaction
        open. A reader of progress stops there, and would not see what others have made durable behind it. A
        single capture fences its own earlier writers and its givers itself (`Grant.givers`).
        """
        if len(grants) == 1:
            await self.ahead.drop()
            return
        feed, sink = self._record.id, await self.ahead.take() or plan.sink
        assert isinstance(sink, SharedSink), "several captures write to no other sink"
        stored = await self._node.grants(feed)
        writers = writers_of(stored)
        proving = dataclasses.replace(plan, grant=grants[plan.capture])
        fence = partial(fence_writers, proving, sink, writers, thread.answered)
        await thread.call(f"the fence of {', '.join(sorted(writers))}", fence)
        self._fenced = {**stored, **grants}

    async def settle(self, grants: dict[str, Grant]) -> None:
        """Store that the writers of `fence_all` are fenced. It must be stored before any capture begins:
        otherwise captures that exchange ranges would fence each other's new writers.
        """
        fenced, self._fenced = self._fenced, {}
        settled = await self._node.settle(self._record.id, fenced)
        for name in grants.keys() & settled.keys():
            self._peers[name].grant = settled[name]

    # --- it continues --------------------------------------------------------------------------------

    def check_shares(self, owner: Owner | None, *, is_starting: bool) -> None:
        """Notice captures that come and go, and loads that differ; if needed, set `reason` to divide again.

        `is_starting`: some granted ranges are not delivered yet; until they are, no better division is
        sought.
        """
        node, record, now = self._node, self._record, self._node.clock.monotonic()
        if not node.shared or not self.sharing.is_due(now):
            return
        had_reason = bool(self.reason)
        self._link.announce(now)
        away = [peer for peer in self._peers if not peer.runs and peer not in self._link.reachable()]
        for peer in away:  # its session has ended, and what it prepared is lost
            peer.asked, peer.coming, peer.needs, peer.opens = None, (), MAX, None
        gone = [peer.capture for peer in away]
        self._peers.forget(gone, now)
        self.sharing.spans.forget(gone)
        known = owner.barrier.resolved if owner is not None else None
        self.reason = self.reason or self.sharing.captures.lost(now, known)
        if self.sharing.captures.is_owner_cut_off:
            node.lost(unreached(record.id))
        if not self.reason and not is_starting:
            shared = self.may_be_shared and not record.loading
            self.reason, prepare = self.sharing.better(now, record.resolved_ts, shared=shared)
            self._planned = self.reason
            # With a reason the incarnation ends, and the next one dispatches to all.
            for peer in prepare if not self.reason else ():
                self._link.dispatch(peer, Wish.RUN if peer.runs else Wish.PREPARE)
            for peer in self.sharing.not_wanted() if not self.reason else ():
                self._link.dispatch(peer, Wish.RUN if peer.runs else Wish.REST)
        if self.reason and not had_reason:
            event(LOG, logging.INFO, "key space is divided again", changefeed=str(record.id), why=self.reason)

    # --- for people ----------------------------------------------------------------------------------

    def tables_of(self, peer: Peer) -> list[int]:
        """The tables and partitions whose rows a capture delivers now."""
        return self._tables_in(peer.grant) if peer.runs and peer.grant is not None else []

    def _tables_in(self, grant: Grant) -> list[int]:
        if not self._record.config.has_tables:
            return []
        return sorted({table for one in grant.ranges for table in self.sharing.spans.tables_in(one.id)})

    def left_on(self, capture: str) -> int:
        """The number of tables that a capture delivers or may still deliver; 1 if it is not known yet."""
        peer = self._peers.get(capture)
        if self.sharing.stays and capture == self._node.capture:
            return 0  # it moves with the ownership
        if not self._is_shared_out:
            return 1  # it may still deliver what an earlier owner granted
        if peer is None or peer.grant is None or not peer.grant.ranges:
            return 0
        return max(1, len(self._tables_in(peer.grant)))
