"""The messages between a changefeed's owner and its processors: what is sent and repeated, and what is
accepted.

    meet: Announce until answered --> dispatch: all that is wanted --> repeat until answered --> ask_to_end

Messages may be lost, doubled or late. So each Dispatch says everything, and is repeated until it is answered.
Messages to another owner, or about another changefeed of the same name, are dropped before anything acts on
them. `server.owner.peers` has what the owner knows of each processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from tidegate import __version__
from tidegate.control.gc import History
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import (
    FROM_PROCESSOR,
    Announce,
    Dispatch,
    FromOwner,
    FromProcessor,
    Header,
    Sync,
    Wish,
    parse,
)
from tidegate.control.metadata import FeedId
from tidegate.errors import Retryable
from tidegate.log import event
from tidegate.model.span import Span
from tidegate.model.timestamp import MAX
from tidegate.server.captures.message_router import Box
from tidegate.server.node import Node
from tidegate.server.owner.peers import ANNOUNCE_S, Peer, Peers
from tidegate.server.owner.sharing import CAPTURES_S

LOG: Final = logging.getLogger(__name__)

MEET_S: Final = 3.0
"""How long a start waits for the answers of other captures; those that answer later get ranges later."""
AGAIN_S: Final = 5.0
"""How often a Dispatch is repeated."""
GIVE_UP_TRIES: Final = 3
"""How often a processor is asked, AGAIN_S apart, to end its work. Then the owner continues without its
answer, and the next incarnation fences it.
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """The part of a Dispatch that is the same for all processors of a changefeed."""

    instance: str
    wanted: Span
    """The part of the key space that the changefeed follows."""
    bound: int
    """No range may be delivered above this ts."""
    checkpoint: int
    """The stored checkpoint."""
    loading: bool
    """Whether the initial load must be delivered first."""
    history: History


class ProcessorLink:
    """The link from one changefeed's owner to all processors. Lives in one asyncio loop."""

    def __init__(
        self,
        node: Node,
        feed: FeedId,
        peers: Peers,
        terms: Callable[[], Terms],
        take: Callable[[Peer, FromProcessor], None],
        wake: Callable[[], None],
    ) -> None:
        """`terms`: returns the current terms. `take`: gets each message to this owner, in order of arrival.
        `wake`: is called after all waiting messages were taken.
        """
        self._node, self._feed, self._peers = node, feed, peers
        self._terms, self._take, self._wake = terms, take, wake
        self._answered = asyncio.Event()
        """Set when a processor has answered this owner."""
        self._box = Box(self._on_mail)
        self._is_mail_due = False
        self.left_behind = False
        """Whether our processor has not confirmed its end, so that it may still write the feed's files."""
        node.router.owners[str(feed)] = self._box

    def reachable(self) -> list[Peer]:
        """The processors that messages may be sent to: our own, and those of captures that have a session.

        If this capture is not the owner any more, or ends, only its own, because the others belong to the
        next owner. If it steps down, none.
        """
        node = self._node
        if node.steps_down:
            return []
        alone = node.leaving or node.over() is not None
        names = [node.capture, *(() if alone else sorted(node.others()))]
        return [self._peers[name] for name in names]

    async def meet(self, waits: Callable[[], None]) -> None:
        """Announce this owner until our own processor has answered; others are waited for `MEET_S` at most.

        `waits` is called before each wait for an answer.
        """
        node, until = self._node, self._node.clock.monotonic() + MEET_S
        while missing := [peer for peer in self.reachable() if peer.met_rev != node.owner_rev]:
            now = node.clock.monotonic()
            if now >= until and self._peers[node.capture] not in missing:
                break
            # Before the announcement, so that no answer to it is lost.
            self._answered.clear()
            self.announce(now)
            waits()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANNOUNCE_S):
                    await self._answered.wait()

    def announce(self, now: float) -> None:
        """Announce this owner to each processor that has not answered it."""
        instance = self._terms().instance
        for peer in self.reachable():
            if not peer.answers(self._node.owner_rev, now) and now - peer.announced_at >= ANNOUNCE_S:
                peer.announced_at = now
                self._send(peer, Announce(self._header(peer, instance), __version__))

    def dispatch(self, peer: Peer, wish: Wish) -> None:
        """Send a processor everything that is wanted of it."""
        terms, grant = self._terms(), peer.grant
        ranges: tuple[GrantedRange, ...] = ()
        if wish in (Wish.RUN, Wish.PREPARE):
            # Before the first division it is not known which ranges it gets, so it prepares for all.
            coming = peer.coming or (terms.wanted,)
            # (0, 0) is the token of no grant: a processor that only prepares has nothing by which it could
            # write.
            ranges = grant.ranges if grant is not None else tuple(GrantedRange(one, (0, 0)) for one in coming)
        message = Dispatch(
            self._header(peer, terms.instance),
            wish,
            grant.incarnation if grant is not None else 0,
            ranges,
            terms.bound,
            terms.checkpoint,
            terms.loading,
            terms.history.needed,
            terms.history.safe_point,
            peer.coming if grant is not None else (),
        )
        # Before the message, so that no answer to it is lost.
        peer.ask(message, self._node.clock.monotonic())
        self._send(peer, message)

    def end_leftover(self, peer: Peer) -> None:
        """Let a processor release what an earlier owner granted it, or asked it to open.

        Until then it may hold upstream's history.
        """
        if (peer.holds or peer.needs < MAX) and peer.asked is None and peer.grant is None:
            self.dispatch(peer, Wish.REST)

    def repeat(self) -> None:
        """Repeat each Dispatch that has changed or was not answered. A new checkpoint alone is no reason, as
        only the removal of old segments waits for it; it is sent with the next bound.
        """
        now, terms = self._node.clock.monotonic(), self._terms()
        for peer in self._peers.running:
            assert peer.asked is not None
            again = now - peer.asked_at >= AGAIN_S
            if again or (peer.asked.bound, peer.asked.load) != (terms.bound, terms.loading):
                self.dispatch(peer, Wish.RUN)
        for peer in self.reachable():
            if peer.asked is not None and not (peer.runs or peer.rests) and now - peer.asked_at >= AGAIN_S:
                self.dispatch(peer, peer.asked.wish)

    def _ask_again(self, peer: Peer) -> None:
        """Repeat at once what a processor's predecessor was asked for, except to deliver: its ranges are
        divided again.

        Otherwise a capture that is killed and starts again at once would stop the checkpoint for `AGAIN_S`,
        because the end of the incarnation waits for its answer.
        """
        if (wish := peer.to_ask_again) is not None:
            self.dispatch(peer, wish)

    async def release(self, *, forget: bool) -> None:
        """Ask the processors that have work of the feed to end it. `forget`: the feed is removed, so all of
        them delete what they keep for it.
        """
        wish = Wish.DELETE if forget else Wish.REST
        await self.ask_to_end(wish, [one for one in self.reachable() if forget or one.asked is not None])
        mine = self._peers.get(self._node.capture)
        # A leftover on another capture is fenced; one here would write the same files as its successor.
        self.left_behind = mine is not None and mine.asked is not None and not mine.given_up.is_set()

    def check_ended(self) -> None:
        """Raises Retryable while work of the feed is still ending."""
        if self.left_behind:
            raise Retryable(
                "the changefeed has not ended yet",
                where=f"changefeed {self._feed}",
                why="its processor was asked to stop and has not answered",
                fix="retry the request; if this lasts, check that the disk answers, and restart the server",
            )

    async def ask_to_end(self, wish: Wish, peers: Sequence[Peer]) -> None:
        """Ask processors to give up their work; wait until they have done so or their captures are gone."""
        await asyncio.gather(*(self._end(peer, wish) for peer in peers))

    async def _end(self, peer: Peer, wish: Wish) -> None:
        # It has confirmed just this already. Another Dispatch would clear the confirmation.
        if peer.given_up.is_set() and peer.asked is not None and peer.asked.wish is wish:
            return
        clock = self._node.clock
        for _ in range(GIVE_UP_TRIES):
            self.dispatch(peer, wish)
            if peer.capture != self._node.capture and not peer.answers(
                self._node.owner_rev, clock.monotonic()
            ):
                return  # it does not answer, so waiting is useless; it is fenced
            until = clock.monotonic() + AGAIN_S
            while clock.monotonic() < until:
                if peer not in self.reachable():
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CAPTURES_S):
                        await peer.given_up.wait()
                        return
        who = {"capture": peer.capture, "wish": str(wish)}
        event(
            LOG, logging.WARNING, "processor does not release its ranges", changefeed=str(self._feed), **who
        )

    def _header(self, peer: Peer, instance: str) -> Header:
        node = self._node
        who = node.cluster, str(self._feed), instance
        # The epoch names the process. A successor must not start what was meant for its predecessor.
        return Header(*who, node.owner_rev, peer.capture, peer.latest[0], node.next_sequence())

    def _send(self, peer: Peer, message: FromOwner) -> None:
        peer.sent(message.header.sequence, self._node.clock.monotonic())
        self._node.router.to_processor(message)

    def _on_mail(self) -> None:
        if not self._is_mail_due:
            self._is_mail_due = True
            # All messages that come until the loop runs this cost one `wake`.
            asyncio.get_running_loop().call_soon(self._read_mail)

    def _read_mail(self) -> None:
        self._is_mail_due = False
        for data in self._box.take():
            try:
                message = parse(orjson.loads(data), FROM_PROCESSOR)
            except ValueError as error:
                event(
                    LOG,
                    logging.ERROR,
                    "a processor's message cannot be read",
                    changefeed=str(self._feed),
                    why=str(error),
                )
                continue
            header = message.header
            peer = self._peers.get(header.capture)
            ours = self._terms().instance, self._node.owner_rev
            # A late message to an earlier owner, or about a removed feed of this name, must not change what
            # we know.
            if peer is not None and (header.instance, header.owner_rev) == ours:
                self._take(peer, message)
                self._ask_again(peer)
                # After `take`: `meet` wakes, and looks at what the Sync has said.
                if isinstance(message, Sync):
                    self._answered.set()
        self._wake()
