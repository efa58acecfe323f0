"""The processors' messages, as the simulated owner takes them: what each one changes for machine and shares.

The product's form: `server.owner.processor_reports`, and `Replication` for what follows from a report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, assert_never

from tidegate.control.ddl_log import KnownDdl
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import (
    Checkpoint,
    DispatchResponse,
    FromProcessor,
    RangeProgress,
    RangeState,
    RangeStatus,
    Sync,
    Wish,
)
from tidegate.control.owner import Owner
from tidegate.errors import Retryable, TidegateError
from tidegate.server.owner.peers import Peer
from tidegate.simulator.owner_link import OwnerLink
from tidegate.simulator.owner_shares import OwnerShares
from tidegate.simulator.owner_sink import OwnerSink

if TYPE_CHECKING:
    from tidegate.simulator.control_process import Control


class OwnerReports:
    """The reports of all processors. Only a processor's latest message says what it does; each one says how
    far it is.
    """

    def __init__(
        self,
        control: Control,
        link: OwnerLink,
        shares: OwnerShares,
        sink: OwnerSink,
        fail: Callable[[TidegateError], None],
    ) -> None:
        """`fail`: ends the incarnation with an error."""
        self._control, self._link, self._shares, self._sink = control, link, shares, sink
        self._off, self._fail = control.world.off, fail
        self.is_starting = False
        """Whether some range that was granted for this incarnation is not delivered yet."""

    @property
    def _now(self) -> float:
        """Seconds by the capture's own clock."""
        return self._control.clock.monotonic()

    def take(self, peer: Peer, message: FromProcessor, owner: Owner | None) -> None:
        """Handle a message. `owner`: the machine; None while it is not open."""
        header, now = message.header, self._now
        is_state = not isinstance(message, Checkpoint)
        # Compared before `receive`, which raises `latest`.
        is_other_process = header.capture_epoch > peer.latest[0]
        if is_other_process:
            peer.met_at = now
        is_latest = peer.receive(now, header.capture_epoch, header.sequence, is_state=is_state)
        if not is_latest and "order" not in self._off:
            return
        asked = peer.asked
        restarted = asked is not None and header.capture_epoch > asked.header.capture_epoch
        # Checked before the message counts: the new process must not begin what its predecessor was granted.
        if peer.runs and restarted and "once" not in self._off:
            self._shares.reason = self._shares.reason or f"capture {peer.capture} has started again"
            if is_other_process:
                peer.fails(now)
            return
        match message:
            case Sync():
                self._take_sync(peer, message, owner)
            case DispatchResponse():
                self._take_response(peer, message, owner)
            case Checkpoint():
                self._take_progress(peer, message.incarnation, message.ranges, message.ddl, owner)
                if owner is not None:
                    owner.synced(message.status.last_synced_ts)
            case _:
                assert_never(message)

    def _take_sync(self, peer: Peer, message: Sync, owner: Owner | None) -> None:
        if peer.met_rev != message.header.owner_rev:
            peer.met_rev, peer.met_at = message.header.owner_rev, self._now
        peer.cores, peer.ready = message.cores, message.ready
        peer.has(message.last_sequence)
        if peer.runs:
            peer.receives(message.received if tuple(message.coming) == peer.coming else 0, self._now)
        self._shares.sharing.spans.loads[peer.capture] = message.loads
        # Before the running ranges: the DDL that a processor knows is compared before its progress counts.
        self._take_progress(peer, message.incarnation, message.checkpoints, message.ddl, owner)
        self._take_running(peer.capture, message.incarnation, message.ranges, owner)
        peer.holds = bool(message.ranges)
        # Until the sink is open, what the capture holds may belong to the grants of this round.
        if self._sink.is_open:
            self._link.end_leftover(peer)

    def _take_progress(
        self,
        peer: Peer,
        incarnation: int,
        ranges: Sequence[RangeProgress],
        ddl: KnownDdl,
        owner: Owner | None,
    ) -> None:
        if owner is not None:
            owner.receive_ddl(peer.capture, ddl)
            owner.report(peer.capture, incarnation, ranges)
        if not peer.runs and {one.id for one in ranges} == set(peer.coming):
            peer.receives(min((one.resolved_ts for one in ranges), default=0), self._now)

    def _take_response(self, peer: Peer, message: DispatchResponse, owner: Owner | None) -> None:
        asked = peer.asked
        runs = any(one.state is RangeState.RUNNING for one in message.ranges)
        answers = asked is not None and message.answers >= asked.header.sequence
        # An answer to an earlier Dispatch may be late, and the capture may have begun something since it was
        # sent.
        if (answers or "answers" in self._off) and not runs:
            peer.given_up.set()
        if message.error is not None and not peer.runs and peer.coming:
            peer.fails(self._now)
            peer.coming = ()
            self._link.dispatch(peer, Wish.REST)
            return
        if asked is None or message.incarnation != asked.incarnation or not peer.runs:
            return
        if message.error is not None:
            peer.fails(self._now)
            self._fail(Retryable(f"capture {peer.capture}: {message.error.what}"))
        else:
            self._take_running(peer.capture, message.incarnation, message.ranges, owner)

    def _take_running(
        self, capture: str, incarnation: int, ranges: Sequence[RangeStatus], owner: Owner | None
    ) -> None:
        if owner is not None:
            found = [one for one in ranges if one.state is RangeState.RUNNING]
            owner.running(capture, incarnation, [GrantedRange(one.id, one.token) for one in found])
            if self.is_starting and owner.ranges.are_running:
                self.is_starting = False
                self._control.world.note(self._control.capture, "all ranges are delivered")
