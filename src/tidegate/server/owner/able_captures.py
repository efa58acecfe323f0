"""Which captures may get ranges of a changefeed, and which of those that deliver cannot continue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from tidegate import __version__
from tidegate.clock import Clock
from tidegate.control.range_reasons import seconds
from tidegate.server.owner.peers import CUT_OFF_S, JOIN_S, SILENT_S, Peer, Peers


class DividingCapture(Protocol):
    """The capture that divides, and what it knows of others (`server.node.Node`)."""

    capture: str
    """Its name in grants."""
    owner_rev: int
    drained: set[str]
    """Captures that get no ranges while there are others."""

    @property
    def clock(self) -> Clock:
        """The clock that measures silence."""
        ...

    def others(self) -> Mapping[str, str]:
        """The other captures that have a session, by name."""
        ...

    def burdens(self) -> Mapping[str, int]:
        """The number of changefeeds that each capture works for, by name."""
        ...

    def now_ms(self) -> int:
        """Upstream's time as far as it is known, in ms since 1970."""
        ...


class AbleCaptures:
    """The captures among which a changefeed is shared. Lives in one asyncio loop."""

    def __init__(self, node: DividingCapture, peers: Peers, reachable: Callable[[], list[Peer]]) -> None:
        self._node, self._peers, self._reachable = node, peers, reachable
        self.is_owner_cut_off = False
        """Whether upstream reaches other captures but not the owner, which must then resign."""

    def able(self, *, joined_s: float | None = None) -> list[str]:
        """The captures that may get ranges, those with the fewest changefeeds first; at least this one.

        `joined_s`: how long the processor of a capture without ranges must have answered; by default
        `JOIN_S`.
        """
        node, now, burdens = self._node, self._node.clock.monotonic(), self._node.burdens()
        patience = JOIN_S if joined_s is None else joined_s
        found = [
            peer.capture
            for peer in self._reachable()
            if peer.answers(node.owner_rev, now) and (peer.runs or now - peer.met_at >= patience)
        ]
        for is_good in (
            lambda name: name not in node.drained,  # first, because a user asked for it
            lambda name: self._peers[name].version in ("", __version__),
            lambda name: self._peers[name].may_try(now),
        ):
            # A rule that no capture meets does not count, because one of them must deliver.
            found = list(filter(is_good, found)) or found
        found = found or [node.capture]
        return sorted(found, key=lambda name: (burdens.get(name, 0), name != node.capture, name))

    def unable(self, peer: Peer) -> str:
        """Why a capture may get no ranges now, in words that follow its name; empty: it may."""
        node, now = self._node, self._node.clock.monotonic()
        if not peer.answers(node.owner_rev, now):
            return "does not answer"
        if peer.capture in node.drained:
            return "is drained"
        if peer.version not in ("", __version__):
            return f"runs version {peer.version}, and the owner {__version__}"
        if (pause_s := peer.pause_s(now)) > 0:
            return f"has failed, and gets none for {seconds(pause_s)}"
        if not peer.runs and now - peer.met_at < JOIN_S:
            return f"has answered for less than {seconds(JOIN_S)}"
        return ""

    def lost(self, now: float, known: int | None) -> str:
        """Why the captures that deliver now cannot continue; empty: they can.

        `known`: up to which ts the owner knows DDL; None: it has not begun to read. A lost capture counts as
        failed. Also sets `is_owner_cut_off`.
        """
        others = (peer for peer in self._peers.running if peer.capture != self._node.capture)
        why = {peer.capture: words for peer in others if (words := self._why_lost(peer, now))}
        for name in why:
            # Otherwise a capture that crashes whenever it delivers would end the others' work each time.
            self._peers[name].fails(now)
        if why:
            return next(iter(why.values()))
        cut_off = self._peers.cut_off(now, self._node.capture, known)
        self.is_owner_cut_off = self._node.capture in cut_off
        for name in cut_off:
            if name != self._node.capture:
                self._peers[name].fails(now)
                return f"capture {name} has received nothing from upstream for {CUT_OFF_S:.0f} s"
        return ""

    def _why_lost(self, peer: Peer, now: float) -> str:
        """Why a capture that delivers cannot be asked for anything any more; empty: it can."""
        if peer.capture not in self._node.others():
            return f"capture {peer.capture} is gone"
        if peer.answers(self._node.owner_rev, now):
            return ""
        what = "has received nothing from the owner" if peer.is_deaf(now) else "has been silent"
        return f"capture {peer.capture} {what} for {SILENT_S:.0f} s"
