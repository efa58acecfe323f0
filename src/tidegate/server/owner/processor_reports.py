"""The reports of a changefeed's processors, and the owner's conclusions from them.

    message --> is it late? --> is it of a new process? --> peer, owner's machine, totals --> findings

The order is a promise. A late message about a processor's state changes nothing. A restarted process is
noticed before its message counts, because it may not begin what its predecessor was granted. DDL is compared
before progress counts, because a report made without knowing a DDL may leave out a table.

The consequences for the incarnation are returned as findings, and `server.owner.replication` acts on them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from tidegate import __version__
from tidegate.control.ddl_log import KnownDdl
from tidegate.control.grants import GrantedRange
from tidegate.control.messages import (
    Checkpoint,
    DispatchResponse,
    FromProcessor,
    ProcessorStatus,
    RangeProgress,
    RangeState,
    RangeStatus,
    Sync,
    Wish,
)
from tidegate.control.owner import Owner
from tidegate.errors import Retryable, TidegateError
from tidegate.log import event
from tidegate.model.reports import LoadState
from tidegate.server.delivery.totals import Totals
from tidegate.server.owner.peers import COUNTED, LAST, Peer, Peers

LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restarted:
    """The process of a capture that delivers has restarted, so this incarnation must end."""

    capture: str


@dataclass(frozen=True, slots=True)
class PartFailed:
    """A capture's part of the changefeed has failed."""

    error: TidegateError


@dataclass(frozen=True, slots=True)
class CannotPrepare:
    """A capture that was asked to prepare cannot do so, and must rest."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class RangesRun:
    """Some ranges are being delivered now."""


@dataclass(frozen=True, slots=True)
class MayHaveLeftovers:
    """A capture has reported what it holds, which may still be what an earlier owner granted it."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class RecordsOver:
    """Records of progress that no incarnation needs any more."""

    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class LoadDurable:
    """The initial load is durable on all captures that deliver."""


Finding = Restarted | PartFailed | CannotPrepare | RangesRun | MayHaveLeftovers | RecordsOver | LoadDurable


class ProcessorReports:
    """The reports on one changefeed. Lives in one asyncio loop."""

    def __init__(
        self, capture: str, peers: Peers, set_loads: Callable[[str, Mapping[str, int]], None]
    ) -> None:
        """`capture`: the owner's own. `set_loads`: gets a capture's loads by span, in bytes per second."""
        self._capture, self._peers, self._set_loads = capture, peers, set_loads
        self.totals = Totals()
        """The sums and maxima over all processors."""
        self.last_synced_ts = 0
        """The greatest commit ts of a row delivered since the control process started; 0: there was none."""
        self.load = LoadState()
        """The progress of the initial load."""

    def begin(self) -> None:
        """Forget what processors reported about the incarnation that has ended."""
        for peer in self._peers:
            peer.status = dataclasses.replace(peer.status, waits="", load=LoadState(), loaded=False)

    def take(
        self, peer: Peer, message: FromProcessor, owner: Owner | None, now: float, *, loading: bool
    ) -> list[Finding]:
        """Take a message. `owner`: None while there is none. `loading`: an initial load is under way."""
        header = message.header
        is_other_process = header.capture_epoch > peer.latest[0]
        if is_other_process:
            peer.met_at = now  # it must answer for JOIN_S again before it gets ranges
        is_state = not isinstance(message, Checkpoint)
        if not peer.receive(now, header.capture_epoch, header.sequence, is_state=is_state):
            return []
        if peer.runs and peer.asked is not None and header.capture_epoch > peer.asked.header.capture_epoch:
            # Its process has restarted: what its predecessor was granted must not begin a second time.
            if is_other_process:
                peer.fails(now)
            return [Restarted(peer.capture)]
        match message:
            case Sync():
                return self._take_sync(peer, message, owner, now)
            case DispatchResponse():
                return self._take_response(peer, message, owner, now)
            case Checkpoint():
                self._take_progress(peer, message.incarnation, message.ranges, message.ddl, owner, now)
                # A delayed message may name records that a later incarnation writes again.
                is_now = (
                    peer.runs and peer.asked is not None and message.incarnation == peer.asked.incarnation
                )
                over: list[Finding] = [RecordsOver(message.over)] if message.over and is_now else []
                return [*self._take_totals(peer, message.incarnation, message.status, owner, loading), *over]
            case _:
                assert_never(message)

    def _take_sync(self, peer: Peer, message: Sync, owner: Owner | None, now: float) -> list[Finding]:
        header = message.header
        if peer.met_rev != header.owner_rev:
            peer.met_rev, peer.met_at = header.owner_rev, now
        peer.cores, peer.needs, peer.ready = message.cores, message.needs, message.ready
        peer.has(message.last_sequence)
        if peer.version != message.processor_version != __version__:
            _log_version(peer.capture, message.processor_version)
        peer.version = message.processor_version
        if peer.runs:
            # A Sync about other ranges than those it prepares for now says nothing about how far these are
            # received.
            peer.receives(message.received if tuple(message.coming) == peer.coming else 0, now)
        self._set_loads(peer.capture, message.loads)
        self._take_progress(peer, message.incarnation, message.checkpoints, message.ddl, owner, now)
        found: list[Finding] = []
        if owner is not None:
            found.append(_take_running(peer.capture, message.incarnation, message.ranges, owner))
        peer.holds = bool(message.ranges)
        return [*found, MayHaveLeftovers(peer)]

    def _take_progress(
        self,
        peer: Peer,
        incarnation: int,
        ranges: Sequence[RangeProgress],
        ddl: KnownDdl,
        owner: Owner | None,
        now: float,
    ) -> None:
        peer.knows(ddl.upto)
        if owner is not None:
            # First, because the progress counts only if the capture knows the same DDL
            # (`control.ddl_agreement`).
            owner.receive_ddl(peer.capture, ddl)
            owner.report(peer.capture, incarnation, ranges)
        # Only a processor that prepares has the coming ranges as its own; one that delivers reports those it
        # was granted.
        if not peer.runs and {one.id for one in ranges} == set(peer.coming):
            peer.receives(min((one.resolved_ts for one in ranges), default=0), now)

    def _take_response(
        self, peer: Peer, message: DispatchResponse, owner: Owner | None, now: float
    ) -> list[Finding]:
        asked = peer.asked
        is_running = any(one.state is RangeState.RUNNING for one in message.ranges)
        # An answer to an earlier Dispatch says nothing about what was asked for since.
        if asked is not None and message.answers >= asked.header.sequence and not is_running:
            peer.given_up.set()
        # It does not deliver, so no incarnation fails. The ranges stay with those that have them.
        if message.error is not None and not peer.runs and peer.coming:
            event(
                LOG, logging.WARNING, "capture cannot prepare", capture=peer.capture, error=message.error.what
            )
            peer.fails(now)
            peer.coming = ()
            return [CannotPrepare(peer)]
        if asked is None or message.incarnation != asked.incarnation or not peer.runs:
            return []
        if message.error is not None:
            return [PartFailed(self._failure_of(peer, message.error.error(), now))]
        if owner is None:
            return []
        return [_take_running(message.header.capture, message.incarnation, message.ranges, owner)]

    def _failure_of(self, peer: Peer, error: TidegateError, now: float) -> TidegateError:
        """Leave a capture that fails without ranges for a while; others may be able to deliver them."""
        peer.fails(now)
        if peer.capture == self._capture or isinstance(error, Retryable):
            return error
        return Retryable(
            error.what, where=f"capture {peer.capture}: {error.where}", why=error.why, fix=error.fix
        )

    def _take_totals(
        self, peer: Peer, incarnation: int, totals: ProcessorStatus, owner: Owner | None, loading: bool
    ) -> list[Finding]:
        asked = peer.asked
        if asked is None or (asked.wish, asked.incarnation) != (Wish.RUN, incarnation):
            return []
        is_changed, peer.status = totals != peer.status, totals
        self.last_synced_ts = max(self.last_synced_ts, totals.last_synced_ts)
        if owner is not None:
            owner.synced(totals.last_synced_ts)
        # Most messages have only progress, and the sums go through all processors.
        for name in (*COUNTED, *LAST) if is_changed else ():
            setattr(self.totals, name, self._peers.total(name))
        if not loading:
            return []
        self.load = self._peers.load()
        return [LoadDurable()] if self._peers.loaded and owner is not None else []


def _take_running(capture: str, incarnation: int, ranges: Sequence[RangeStatus], owner: Owner) -> RangesRun:
    running = [one for one in ranges if one.state is RangeState.RUNNING]
    owner.running(capture, incarnation, [GrantedRange(one.id, one.token) for one in running])
    return RangesRun()


def _log_version(capture: str, version: str) -> None:
    why = f"it runs Tidegate {version}, and the owner runs {__version__}"
    event(LOG, logging.WARNING, "capture gets no ranges while others can have them", capture=capture, why=why)
