"""The messages between an owner and its processors in virtual time. It follows `server.owner.processor_link`.

meet: Announce until answered --> dispatch: all that is wanted --> follow up --> ask to end
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import orjson

from tidegate import __version__
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import (
    FROM_PROCESSOR,
    Announce,
    Dispatch,
    FromOwner,
    FromProcessor,
    Header,
    Wish,
    parse,
)
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp
from tidegate.server.captures.message_router import Box
from tidegate.server.owner.peers import ANNOUNCE_S, Peer, Peers
from tidegate.server.owner.sharing import CAPTURES_S
from tidegate.simulator.virtual_time import Signal, Steps
from tidegate.simulator.world import CLUSTER, FEED, INSTANCE

if TYPE_CHECKING:
    from tidegate.simulator.control_process import Control

MEET_S: Final = 3.0
AGAIN_S: Final = 5.0
GIVE_UP_TRIES: Final = 3
ALL_KEYS: Final = Span(b"", b"")


class OwnerLink:
    """The link from the owner of the changefeed to all processors."""

    def __init__(
        self,
        control: Control,
        peers: Peers,
        wake: Signal,
        terms: Callable[[], tuple[Timestamp, Timestamp]],
        take: Callable[[Peer, FromProcessor], None],
    ) -> None:
        """`terms`: the bound and the stored checkpoint. `take`: gets each message to this owner."""
        self._control, self._peers, self._wake = control, peers, wake
        self._terms, self._take = terms, take
        self._time, self._off = control.world.time, control.world.off
        self._box = Box(self._on_mail)
        self._mail_due = False
        control.router.owners[str(FEED)] = self._box

    @property
    def _now(self) -> float:
        """Seconds by the capture's own clock."""
        return self._control.clock.monotonic()

    def reachable(self) -> list[Peer]:
        """The processors that messages may be sent to."""
        control = self._control
        names = [control.capture, *(sorted(control.others()) if control.holds else [])]
        return [self._peers[name] for name in names]

    def meet(self) -> Steps[None]:
        """Announce ourselves until our own processor has answered, and to others for at most `MEET_S`."""
        until, mine = self._now + MEET_S, self._peers[self._control.capture]
        while missing := [p for p in self.reachable() if p.met_rev != self._control.owner_rev]:
            # Our own processor is waited for without limit, because it is in this process. Others that answer
            # later get ranges later.
            if self._now >= until and mine not in missing:
                return
            self.announce()
            yield self._wake.wait(ANNOUNCE_S)
            self._wake.clear()

    def announce(self) -> None:
        """Announce ourselves to each processor that has not answered."""
        now = self._now
        for peer in self.reachable():
            if not peer.answers(self._control.owner_rev, now) and now - peer.announced_at >= ANNOUNCE_S:
                peer.announced_at = now
                self._send(peer, Announce(self._header(peer), __version__))

    def dispatch(self, peer: Peer, wish: Wish) -> None:
        """Send a processor all that it must do."""
        grant, (bound, checkpoint) = peer.grant, self._terms()
        ranges: tuple[GrantedRange, ...] = ()
        if wish in (Wish.RUN, Wish.PREPARE):
            coming = peer.coming or (ALL_KEYS,)
            ranges = grant.ranges if grant is not None else tuple(GrantedRange(one, (0, 0)) for one in coming)
        message = Dispatch(
            self._header(peer),
            wish,
            grant.incarnation if grant is not None else 0,
            ranges,
            bound,
            checkpoint,
            False,
            coming=peer.coming if grant is not None else (),
        )
        # Before the message is sent, so that no answer to it is lost.
        peer.ask(message, self._now)
        self._send(peer, message)

    def _send(self, peer: Peer, message: FromOwner) -> None:
        peer.sent(message.header.sequence, self._now)
        self._control.router.to_processor(message)

    def ask_to_end(self, wish: Wish, peers: Sequence[Peer]) -> Steps[None]:
        """Ask processors to give up what they do; wait until each has, or counts as gone."""
        if "given_up" in self._off:
            for peer in peers:
                self.dispatch(peer, wish)
            return
        tries = dict.fromkeys((peer.capture for peer in peers), 0)
        asked_at = dict.fromkeys(tries, float("-inf"))
        left = list(peers)
        while left:
            now = self._now
            for peer in left:
                if now - asked_at[peer.capture] >= AGAIN_S:
                    tries[peer.capture] += 1
                    asked_at[peer.capture] = now
                    if tries[peer.capture] <= GIVE_UP_TRIES:
                        self.dispatch(peer, wish)
            # A capture that does not answer is given up. The next incarnation fences what it still writes.
            left = [peer for peer in left if self._may_answer(peer, tries[peer.capture])]
            if left:
                yield self._wake.wait(CAPTURES_S)
                self._wake.clear()

    def _may_answer(self, peer: Peer, tries: int) -> bool:
        """Whether a processor may still answer that it has given up."""
        if peer.given_up.is_set() or tries > GIVE_UP_TRIES or peer not in self.reachable():
            return False
        there = peer.answers(self._control.owner_rev, self._now)
        return there or peer.capture == self._control.capture

    def follow_up(self) -> None:
        """Dispatch again if something has changed, or the message may be lost."""
        now, (bound, _) = self._now, self._terms()
        for peer in self._peers.running:
            assert peer.asked is not None
            if now - peer.asked_at >= AGAIN_S or peer.asked.bound != bound:
                self.dispatch(peer, Wish.RUN)
        for peer in self.reachable():
            if peer.asked is not None and not (peer.runs or peer.rests) and now - peer.asked_at >= AGAIN_S:
                self.dispatch(peer, peer.asked.wish)

    def end_leftover(self, peer: Peer) -> None:
        """Make a processor release what an earlier owner gave it."""
        if peer.holds and peer.asked is None and peer.grant is None:
            self.dispatch(peer, Wish.REST)

    def _header(self, peer: Peer) -> Header:
        control = self._control
        return Header(
            CLUSTER,
            str(FEED),
            INSTANCE,
            control.owner_rev,
            peer.capture,
            peer.latest[0],
            control.next_sequence(),
        )

    # --- mail ----------------------------------------------------------------------------------------

    def _on_mail(self) -> None:
        """Read mail at once, whatever the loop waits for."""
        if not self._mail_due:
            self._mail_due = True
            self._time.within(self._control.process, 0.0, self._read_mail)

    def _read_mail(self) -> None:
        self._mail_due = False
        for data in self._box.take():
            message = parse(orjson.loads(data), FROM_PROCESSOR)
            header = message.header
            peer = self._peers.get(header.capture)
            mine = header.owner_rev == self._control.owner_rev or "term_of_message" in self._off
            if peer is not None and header.instance == INSTANCE and mine:
                self._take(peer, message)
                if (wish := peer.to_ask_again) is not None:
                    self.dispatch(peer, wish)
        self._wake.set()
