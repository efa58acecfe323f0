"""Which capture delivers what, for the simulated owner: grants for a new division, and when to divide again.

The product's form: `server.owner.shares`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.control.grants import Grant
from tidegate.control.messages import Wish
from tidegate.control.owner import Owner
from tidegate.server.owner.peers import Peers
from tidegate.server.owner.sharing import Sharing
from tidegate.simulator.owner_grants import OwnerGrants
from tidegate.simulator.owner_link import ALL_KEYS, OwnerLink
from tidegate.simulator.virtual_time import Steps

if TYPE_CHECKING:
    from tidegate.simulator.control_process import Control


class OwnerShares:
    """The shares of the changefeed. A grant is stored before any capture acts on it."""

    def __init__(self, control: Control, peers: Peers, link: OwnerLink, grants: OwnerGrants) -> None:
        self._control, self._peers, self._link, self._grants = control, peers, link, grants
        self._world, self._off = control.world, control.world.off
        self.sharing = Sharing(control, ALL_KEYS, peers, link.reachable)
        self.reason = ""
        """Why the incarnation must end so that the key space is divided again; empty: it need not."""

    def raise_grants(self, owner: Owner) -> Steps[dict[str, Grant]]:
        """Divide the key space among the captures that answer, and store what each may write."""
        # Read again for each round. The write below compares these revisions, so it fails if another owner
        # has stored grants since.
        found = yield from self._grants.read()
        stored = {name: grant for name, (grant, _) in found.items()}
        before = {name: [one.id for one in grant.ranges] for name, grant in stored.items()}
        shares = self.sharing.divide(before, shared=True)
        token = self._control.token()
        grants = self._grants.shared_out(stored, token, shares)
        guards = tuple(seen for _, seen in found.values()) if "grants_guard" not in self._off else ()
        yield from self._grants.store(grants, guards)
        grants = {name: grants[name] for name in shares}
        self._peers.adopt(owner, grants, self._link)
        return grants

    def check_shares(self, owner: Owner | None, *, is_starting: bool) -> None:
        """Set `reason` if captures come or go, or their loads differ too much.

        `is_starting`: some granted ranges are not delivered yet; until they are, no better division is
        sought.
        """
        now, sharing = self._control.clock.monotonic(), self.sharing
        if not sharing.is_due(now):
            return
        self._link.announce()
        reachable = self._link.reachable()
        away = [peer for peer in self._peers if not peer.runs and peer not in reachable]
        for peer in away:
            peer.asked, peer.coming = None, ()
        gone = [peer.capture for peer in away]
        self._peers.forget(gone, now)
        sharing.spans.forget(gone)
        known = owner.barrier.resolved if owner is not None else None
        self.reason = self.reason or sharing.captures.lost(now, known)
        if not self.reason and not is_starting and owner is not None:
            self.reason, prepare = sharing.better(now, owner.ranges.resolved, shared=True)
            if not self.reason:
                for peer in prepare:
                    self._link.dispatch(peer, Wish.RUN if peer.runs else Wish.PREPARE)
                for peer in sharing.not_wanted():
                    self._link.dispatch(peer, Wish.RUN if peer.runs else Wish.REST)
        if self.reason:
            self._world.timeline.counts["divided again"] += 1
            self._world.note(self._control.capture, f"divides the key space again: {self.reason}")
