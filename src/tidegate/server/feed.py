"""A changefeed on the node that owns it, as the rest of the node sees it: its commands and its state.

    FeedRecord    what is stored: info, status, life
    Replication   the owner's work while the feed runs, incarnation after incarnation
    FeedLife      the task that runs Replication as the life in FeedRecord says

The API, the reactor and housekeeping use only this class. It makes no decisions itself.
"""

from __future__ import annotations

import asyncio

from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri
from tidegate.control.changefeed import Command, Life, State
from tidegate.control.gc import History
from tidegate.control.metadata import (
    FeedError,
    FeedId,
    FeedInfo,
    FeedStatus,
)
from tidegate.control.owner import Owner
from tidegate.model.reports import LoadState
from tidegate.model.timestamp import physical_ms
from tidegate.server.feed_life import FeedLife
from tidegate.server.feed_plan import FeedPlan
from tidegate.server.feed_record import FeedRecord
from tidegate.server.feed_words import (
    words_of_first,
    words_of_history,
    words_of_owner,
    words_of_release,
)
from tidegate.server.initial_load import words_of_load
from tidegate.server.node import Captured, Node
from tidegate.server.peers import Peer, Peers
from tidegate.server.replication import PIPELINE_STARTS, Replication
from tidegate.server.sharing import Sharing
from tidegate.server.totals import Totals


class Feed:
    """Lives in one asyncio loop. A caller that changes something holds `turn` from its first read on."""

    def __init__(self, node: Node, feed: FeedId, info: FeedInfo, status: FeedStatus) -> None:
        self.node, self.id = node, feed
        self.turn = asyncio.Lock()
        """Held by the caller of a command, from its first read of the feed's state to its last write."""
        self._record = FeedRecord(node, feed, info, status)
        self._replication = Replication(node, self._record)
        self._life = FeedLife(node, self._record, self._replication)

    # --- commands ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run the feed, unless its life has ended, it runs already, or another capture is the owner."""
        self._life.start()

    async def stop(self, *, forget: bool = False) -> None:
        """End everything that it started; the stored state stays. `forget`: the feed is removed for good."""
        await self._life.stop(forget=forget)

    async def command(self, command: Command) -> None:
        """Pause or resume, durably. Raises InvalidInput when its state does not allow it."""
        await self._life.command(command)

    async def update(self, info: FeedInfo) -> None:
        """Store other settings durably; the feed must not run. They take effect when it is resumed."""
        await self.stop()
        self.check_ended()
        await self._record.update(info)

    async def repartition(self, partitions: int) -> None:
        """Spread rows over this many partitions as soon as all earlier rows are sent; durable on return.

        This incarnation or a later one carries it out. The current number withdraws an earlier request.
        """
        await self._replication.layout.ask(partitions)

    def check_ended(self) -> None:
        """Raises Retryable while work of the feed is still ending."""
        self._replication.check_ended()

    def forget_grant(self) -> None:
        """Give the next incarnation a new token; the feed must not run."""
        self._replication.shares.forget_grant()

    def warn(self, error: FeedError) -> None:
        """Show an error that does not stop the pipeline."""
        self._replication.warn(error)

    # --- what is stored ------------------------------------------------------------------------------

    @property
    def info(self) -> FeedInfo:
        """The stored definition and state."""
        return self._record.info

    @property
    def uri(self) -> SinkUri:
        """The URI of its sink."""
        return self._record.uri

    @property
    def config(self) -> ReplicaConfig:
        """Its settings."""
        return self._record.config

    @property
    def plan(self) -> FeedPlan:
        """The part of its specification that is the same for all incarnations."""
        return self._record.plan

    @property
    def life(self) -> Life:
        """Its state, with the last failure."""
        return self._record.life

    @property
    def shown_state(self) -> State:
        """The state as TiCDC shows it: waiting for a retry is a warning."""
        return self._record.shown_state

    @property
    def persisted(self) -> int:
        """The stored checkpoint: where a restart begins."""
        return self._record.persisted

    @property
    def loading(self) -> bool:
        """Whether the initial load is still to be delivered."""
        return self._record.loading

    # --- what it needs of upstream -------------------------------------------------------------------

    @property
    def captured(self) -> Captured:
        """This capture's event store and catalogue for the part of upstream that it follows."""
        return self._record.captured

    @property
    def needs(self) -> tuple[int, int]:
        """The least ts from which its owner needs upstream's history: for rows, and for DDL."""
        return self._record.needs

    @property
    def scope(self) -> int:
        """The keyspace whose history it needs; -1: that of the cluster."""
        return self._record.scope

    @property
    def history(self) -> History:
        """The hold at PD on the history of the part of upstream that the feed follows."""
        return self._record.history

    @property
    def retained(self) -> int:
        """How far behind the checkpoint changes are kept, as a difference of ts."""
        return self._record.retained

    @property
    def released(self) -> bool:
        """Whether nothing is held for it, upstream or here: stopped too long ago, or its history is gone."""
        return self._record.released

    # --- how far it is -------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> int:
        """Everything up to here is durable downstream; never below `persisted`."""
        return self._replication.checkpoint

    @property
    def resolved_ts(self) -> int:
        """Everything upstream up to here is known."""
        return self._record.resolved_ts

    def lag_ms(self, now_ms: int) -> int:
        """PD's time minus the physical time of the checkpoint."""
        return max(0, now_ms - physical_ms(self.checkpoint))

    @property
    def totals(self) -> Totals:
        """The sums over all captures since the control process started."""
        return self._replication.reports.totals

    @property
    def load(self) -> LoadState:
        """The progress of the initial load."""
        return self._replication.reports.load

    @property
    def last_synced_ts(self) -> int:
        """The greatest commit ts of a row delivered since the control process started; 0: there was none."""
        return self._replication.reports.last_synced_ts

    @property
    def owner(self) -> Owner | None:
        """The owner machine; None while its catalogue is not open."""
        return self._replication.owner

    @property
    def partitions(self) -> int:
        """The number of partitions over which its topic's rows are spread; 0: not known, or no partitions."""
        return self._replication.sink.partitions

    def left_out(self, limit: int) -> tuple[int, list[tuple[str, str]]]:
        """Tables that pass the rules but cannot be replicated: their number, and (name, reason) of some."""
        return self._replication.ddl.left_out(limit)

    # --- who delivers it -----------------------------------------------------------------------------

    @property
    def peers(self) -> Peers:
        """The owner's knowledge of the processors of all captures."""
        return self._replication.peers

    @property
    def sharing(self) -> Sharing:
        """The decision which capture gets which part of the key space."""
        return self._replication.shares.sharing

    @property
    def may_be_shared(self) -> bool:
        """Whether several captures may write at the same time."""
        return self._replication.shares.may_be_shared

    def tables_of(self, peer: Peer) -> list[int]:
        """The tables and partitions whose rows a capture delivers now."""
        return self._replication.shares.tables_of(peer)

    def left_on(self, capture: str) -> int:
        """The number of tables that a capture delivers or may still deliver; 1 if it is not known yet."""
        return self._replication.shares.left_on(capture)

    # --- what it waits for ---------------------------------------------------------------------------

    @property
    def waiting_for(self) -> str:
        """Describes what must happen before anything can be delivered; empty: nothing."""
        return self._replication.waiting_for

    def waits_for(self) -> str:
        """Describes what the checkpoint waits for; empty when nothing is known."""
        if self.life.state in (State.STOPPED, State.FAILED):
            return self._words_of_history()
        waiting_for = self.waiting_for
        if waiting_for == PIPELINE_STARTS:
            running = self.peers.running
            return words_of_first(running, among=len(running)) or waiting_for
        if waiting_for or self.owner is None:
            return waiting_for
        if self.loading:
            return words_of_load(self.load)
        return words_of_owner(self.owner, self.peers, self.info.repartition, self.partitions)

    def _words_of_history(self) -> str:
        if self._record.lost:
            return ""  # its error says so
        needed = min(self.needs)
        if self.released:
            return words_of_release(self.life.state, needed, self.node.gc_ttl_s)
        return words_of_history(needed, self.history)
